"""The files of the page: all there, all from here, nothing that its own policy would forbid."""

import re
from importlib.resources import files

import pytest

from rampmeter.console import app

STATIC = files("rampmeter.console").joinpath("static")
OURS = [name for name in app._STATIC if not name.startswith("vendor/")]
TEXTS = {name: STATIC.joinpath(name).read_text() for name in OURS}


def test_what_is_served_is_there_and_what_is_there_is_served_or_a_licence():
    there = {path.name for path in STATIC.iterdir() if path.is_file()}
    there |= {f"vendor/{path.name}" for path in STATIC.joinpath("vendor").iterdir()}
    assert there - set(app._STATIC) == {"vendor/uPlot.LICENSE", "vendor/README.md"}
    assert set(app._STATIC) <= there


def test_the_vendored_library_is_of_the_version_that_is_written_down():
    (version,) = re.findall(r"uPlot (\d+\.\d+\.\d+)", STATIC.joinpath("vendor", "README.md").read_text())
    assert f"(v{version})" in STATIC.joinpath("vendor", "uPlot.iife.min.js").read_text()[:100]
    assert "MIT License" in STATIC.joinpath("vendor", "uPlot.LICENSE").read_text()


@pytest.mark.parametrize("name", OURS)
def test_no_file_has_inline_script_or_style_or_asks_elsewhere(name):
    text = TEXTS[name]
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text)
    assert not re.search(r"https?://(?!www\.w3\.org/)", text)
    if name.endswith(".html"):
        assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\son\w+=|\sstyle=", text)


def test_the_page_names_no_file_that_is_not_served():
    named = re.findall(r"(?:href|src)=\"static/([^\"]+)\"", TEXTS["index.html"])
    imported = [name for text in TEXTS.values() for name in re.findall(r"from \"\./([^\"]+)\"", text)]
    assert set(named) | set(imported) <= set(app._STATIC)
    assert {"console.js", "console.css", "vendor/uPlot.iife.min.js"} <= set(named)

"""RUNBOOK.md has a way out of every alert and of every slow pattern, by commands that there are."""

import re
import shlex
from pathlib import Path

import pytest
import typer
import yaml

from docker import alerts
from rampmeter import cli
from rampmeter.doctor.diagnosis import Pattern

TEXT = (Path(__file__).parents[2] / "RUNBOOK.md").read_text()
SECTIONS = dict(re.findall(r"^##+ (.+?)\n(.*?)(?=^##|\Z)", TEXT, flags=re.MULTILINE | re.DOTALL))
BLOCKS = re.findall(r"```console\n(.*?)```", TEXT, flags=re.DOTALL)
COMMANDS = sorted({line for block in BLOCKS for line in block.splitlines()})
NAMES = [alert["alert"] for alert in yaml.safe_load(alerts.SOURCE.read_text())["alerts"]]


@pytest.mark.parametrize("name", [*NAMES, *Pattern])
def test_there_is_a_way_out(name):
    text, *rest = SECTIONS[name].split("```console\n")
    assert text.strip(), "what it means"
    assert rest, "how to look"


def test_no_section_is_of_an_alert_that_is_gone():
    assert {title for title in SECTIONS if title.startswith("Rampmeter")} == set(NAMES)


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_is_one_that_the_command_line_takes(line):
    program, *words = shlex.split(line)
    assert program == "rampmeter"
    parse(typer.main.get_command(cli.app), program, words)
    parse(typer.main.get_command(cli.app), program, [*words, "--json"])


def parse(command, name, words):
    """As the command line does it, down to the command that would run; raises a usage error."""
    context = command.make_context(name, words)
    if hasattr(command, "commands"):
        name, found, left = command.resolve_command(context, [*context._protected_args, *context.args])
        parse(found, name, left)


@pytest.mark.parametrize(
    "line", ["rampmeter dig", "rampmeter lag --loud", "rampmeter pause planet x", "rampmeter dlq shew"]
)
def test_a_command_that_is_wrong_would_be_noticed(line):
    with pytest.raises(Exception, match=r"(?i)no such|is not one of"):
        test_a_command_is_one_that_the_command_line_takes(line)

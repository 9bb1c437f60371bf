"""The simulator compiled, beside the same simulator as it is."""

import re
import shutil

import pytest

from tests.support import command

pytestmark = [pytest.mark.slow, pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")]


def test_it_gives_the_same_bytes_and_is_faster(tmp_path):
    def simulated(*words):
        ran = command.run(
            "simulate", "--load", "1.1", "--json", *words, cwd=tmp_path, env={"HOME": str(tmp_path)}, timeout_s=500
        )
        assert ran.returncode == 0, ran.stderr
        (per_s,) = re.findall(r"s, ([0-9,]+) a second", ran.stderr)
        return ran.stdout, int(per_s.replace(",", ""))

    compiled, compiled_per_s = simulated("--compiled")
    as_it_is, per_s = simulated()
    assert compiled == as_it_is
    assert compiled_per_s > 1.3 * per_s

"""Every command of the runbook runs on a stack, as it is written there, and tells what happened by its status."""

import os
import pty
import re
import shlex
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support import command, started
from tests.support.streams_worker import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
BLOCKS = re.findall(r"```console\n(.*?)```", (Path(__file__).parents[2] / "RUNBOOK.md").read_text(), flags=re.DOTALL)
COMMANDS = list(dict.fromkeys(line for block in BLOCKS for line in block.splitlines()))
"""In their order, since some undo what those before them did."""
BY_THEMSELVES = [line for line in COMMANDS if line != "rampmeter top" and not re.match(r"rampmeter chaos [^-]", line)]
INCIDENTS = [line for line in COMMANDS if re.match(r"rampmeter chaos [^-]", line)]
STATUS = {
    # It had its answer before.
    "rampmeter cancel order-17 --wait 30": 1
}
ENV = {"RAMPMETER_STACK__READY_TIMEOUT_S": "280"}


@pytest.fixture(scope="module")
def up(tmp_path_factory):
    """A stack that has answered a request, and given up some that nobody can read or run."""
    with command.Up("--no-llama", cwd=tmp_path_factory.mktemp("runbook"), env=ENV, ready_s=300) as running:
        for line in ("submit hello --id order-17", "chaos dead-letters --for 3", "chaos errors --for 10"):
            done = running.run(*line.split(), timeout_s=180)
            assert done.returncode == 0, done.stderr
        yield running


@pytest.mark.parametrize("line", BY_THEMSELVES)
def test_a_command_runs(line, up):
    done = up.run(*shlex.split(line)[1:], timeout_s=300)
    assert done.returncode == STATUS.get(line, 0), done.stdout + done.stderr
    assert done.stdout + done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("line", INCIDENTS)
def test_an_incident_begins_and_ends_with_ctrl_c(line, up):
    log = up.cwd / "incident.log"
    with log.open("wb") as out:
        chaos = started.popen(shlex.split(line), **where(up), stdout=out, stderr=out)
    wait_until(lambda: "way out: " in log.read_text(), 120, log.read_text)
    chaos.send_signal(signal.SIGINT)
    assert chaos.wait(60) == 0, log.read_text()
    assert "what it changed is put back" in log.read_text()


def test_top_shows_itself_in_a_terminal_until_it_is_left(up):
    ours, its = pty.openpty()
    top = started.popen(["rampmeter", "top"], **where(up), stdin=its, stdout=its, stderr=its)
    os.close(its)
    os.set_blocking(ours, False)
    shown = b""

    def shows(word):
        nonlocal shown
        with suppress(BlockingIOError):
            shown += os.read(ours, 1 << 16)
        return word in shown

    wait_until(lambda: shows(b"default"), 120, lambda: shown.decode(errors="replace"))
    os.write(ours, b"q")
    assert top.wait(60) == 0
    os.close(ours)


def where(up):
    """As if the command were typed in the stack's folder."""
    path = f"{Path(command.RAMPMETER).parent}:{os.environ['PATH']}"
    return {"cwd": up.cwd, "env": command.environment({**ENV, "PATH": path, "TERM": "xterm-256color"})}

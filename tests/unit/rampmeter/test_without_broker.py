"""What every command says when no broker answers at the address of those who named none."""

import socket
import sys
from functools import partial

import pytest
import typer

from rampmeter import cli, state
from rampmeter.doctor import kafka
from rampmeter.settings import StackSettings
from topics import clients, process
from topics.settings import LOCAL_SERVERS, load

READS = {
    "submit": "hello", "audit": "", "lag": "", "explain": "id-1", "doctor": "", "top": "--json", "cancel": "id-1",
    "pause": "tenant acme", "resume": "tenant acme", "drain": "gpu-1", "serve": "", "replay-decisions": "",
    "what-if": "", "shadow-diff": "small", "topics plan": "", "topics apply": "", "topics check": "",
    "limits show": "", "limits set": "tenant acme --burst-s 5", "limits reset": "tenant acme", "dlq ls": "",
    "dlq show": "1", "dlq replay": "1", "autoscaler explain": "",
}  # fmt: skip
"""Every command that needs a broker, with arguments."""
STARTS_ITS_OWN = {"up", "demo", "replay", "reality-check"}
NEEDS_NONE = {"simulate", "topics export"}
SHOWS_IT = {"console"}
NEEDS_THE_STACK = {"chaos"}
HINT = "found from the folder in which it was started"


def is_taken():
    host, _, port = LOCAL_SERVERS.rpartition(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0


@pytest.fixture
def rampmeter(monkeypatch, capsys, tmp_path):
    """Run the command in this process, in a folder without a stack; returns its status and what it said."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(clients, "require_kafka", partial(clients.require_kafka, timeout_s=0.1))
    monkeypatch.setattr(kafka, "_TIMEOUT_S", 0.1)
    monkeypatch.setattr(process, "configure_logs", lambda *_: None)  # it would outlive the test
    monkeypatch.setenv("RAMPMETER_DOOR__KEYS", '{"acme": {"secret": "sixteen-or-more-of-it", "tenant": "acme"}}')

    def run(*args):
        monkeypatch.setattr(sys, "argv", ["rampmeter", *args])
        monkeypatch.setattr(cli.signal, "signal", lambda *_: None)
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return ended.value.code, "".join(capsys.readouterr())

    return run


def names(command, before=()):
    """Every command below it, as it is typed."""
    for name, inner in getattr(command, "commands", {"": command}).items():
        path = (*before, name)
        yield from names(inner, path) if hasattr(inner, "commands") else [" ".join(path)]


def test_every_command_is_one_of_those_that_say_it_or_need_no_broker():
    config = {name for name in names(typer.main.get_command(cli.app)) if name.startswith("config ")}
    told = set(READS) | STARTS_ITS_OWN | NEEDS_NONE | SHOWS_IT | NEEDS_THE_STACK | config
    assert set(names(typer.main.get_command(cli.app))) == told


@pytest.mark.skipif(is_taken(), reason=f"something answers at {LOCAL_SERVERS}")
@pytest.mark.parametrize("name", READS)
def test_who_named_no_broker_and_has_none_is_told_how_a_local_stack_is_found(rampmeter, name):
    status, said = rampmeter(*name.split(), *READS[name].split())
    assert status == process.EXIT_UNAVAILABLE
    assert LOCAL_SERVERS in said
    assert HINT in " ".join(said.split())


def test_who_named_a_broker_is_not(rampmeter, monkeypatch):
    monkeypatch.setenv("RAMPMETER_KAFKA__BOOTSTRAP_SERVERS", LOCAL_SERVERS)
    assert state.hint(LOCAL_SERVERS) == ""
    monkeypatch.setenv("RAMPMETER_KAFKA__BOOTSTRAP_SERVERS", "127.0.0.1:1")
    status, said = rampmeter("lag")
    assert (status, HINT in said) == (process.EXIT_UNAVAILABLE, False)


def test_whose_stack_runs_is_not(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert HINT in state.hint(LOCAL_SERVERS)
    assert state.hint("127.0.0.1:1") == ""
    settings = load(StackSettings)
    settings.stack.data_dir.mkdir()
    state.write(settings.stack.data_dir, settings, {})
    assert state.hint(LOCAL_SERVERS) == ""

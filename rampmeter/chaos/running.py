"""Runs one incident until its time is over or someone says stop, and puts back what it changed in any case."""

import contextlib
import secrets
import signal
import threading
from collections.abc import Iterator

import msgspec

from rampmeter.chaos.incidents import INCIDENTS, Incident
from rampmeter.chaos.scene import Scene
from rampmeter.chaos.site import Site
from rampmeter.output import Output
from topics import clients
from topics.clock import Clock

_TICK_S = 0.2
_FLUSH_S = 10.0


class Ran(msgspec.Struct, frozen=True):
    """How it went."""

    incident: str
    alert: str
    tenant: str
    lasted_s: float
    interrupted: bool
    requests: int


def run(name: str, site: Site, lasts_s: float | None, clock: Clock, output: Output) -> Ran:
    """Do it for its own time, or for as long as is said."""
    incident = INCIDENTS[name]
    lasts_s = incident.lasts_s if lasts_s is None else lasts_s
    tenant = f"chaos-{secrets.token_hex(2)}"
    producer = clients.producer(site.settings, delivered_within_s=_FLUSH_S)
    started_s = clock.mono_s()
    scene = Scene(site, clock, tenant, producer, started_s + lasts_s)
    _tell(name, incident, scene, lasts_s, output)
    with _stopping() as ending, contextlib.closing(incident.act(scene)) as act:
        while clock.mono_s() < scene.ends_s and site.is_there() and not ending.is_set():
            next(act)
            ending.wait(_TICK_S)
    producer.flush(_FLUSH_S)
    output.say("it is over, and what it changed is put back")
    return Ran(name, incident.alert, tenant, round(clock.mono_s() - started_s, 1), ending.is_set(), scene.sent)


@contextlib.contextmanager
def _stopping() -> Iterator[threading.Event]:
    """Set by Ctrl-C, SIGTERM and the end of the terminal: none of them cuts the undoing short."""
    ending = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: ending.set())
    yield ending


def _tell(name: str, incident: Incident, scene: Scene, lasts_s: float, output: Output) -> None:
    output.say(f"{name}: {incident.what}, for {lasts_s:g} s or until Ctrl-C; {incident.alert} should fire")
    if incident.way_out is None:
        output.say(f"way out: it clears when this ends; see {incident.alert} in RUNBOOK.md")
    else:
        output.say(f"way out: {incident.way_out.format(tenant=scene.tenant)}")

"""`python -m autoscaler`: size the configured pools until SIGTERM, then drain what was started."""

from topics import early  # noqa: F401 - before all else

# isort: split

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable

import structlog

from autoscaler.admissions import AdmissionReader
from autoscaler.backlog import BacklogReader
from autoscaler.fleet import FleetReader
from autoscaler.journal import Journal
from autoscaler.loop import Loop, Ports
from autoscaler.metrics import Metrics
from autoscaler.settings import AutoscalerSettings
from autoscaler.targets import factory
from topics import admin, clients, process, settings
from topics.clock import SystemClock
from topics.status import StatusServer

log = structlog.get_logger()


def main() -> int:
    """Run the autoscaler; returns 0 after a clean end."""
    loaded = settings.load(AutoscalerSettings)
    process.configure_logs(loaded, "autoscaler")
    clock = SystemClock()
    stop = _stop_on_signals()
    metrics = Metrics(loaded.autoscaler.scaled)
    clients.require_kafka(loaded)
    admin.require(loaded)
    scaling = loaded.autoscaler
    with (
        BacklogReader(loaded, clock, scaling.read_timeout_s) as backlogs,
        FleetReader(loaded, clock, scaling.read_timeout_s, scaling.telemetry_stale_s) as fleets,
        AdmissionReader(loaded, clock, scaling.read_timeout_s) as admissions,
        contextlib.closing(Journal(loaded, on_loss=metrics.unsent.inc)) as journal,
        contextlib.ExitStack() as stack,
    ):
        around = factory.Around(os.environ, clock, metrics, fleets, stack, [journal.publish])
        target = stack.enter_context(contextlib.closing(factory.build(loaded, around)))
        loop = Loop(loaded, clock, Ports(backlogs, fleets, admissions, target, around.publish), metrics)
        status = StatusServer(
            loaded.status_host, loaded.status_port, live=_liveness(loop, scaling.stale_after_s), ready=loop.complaint
        )
        status.start()
        log.info("started", status=status.url, pools=",".join(scaling.scaled), target=scaling.target)
        loop.run(stop)
        log.info("stopping")
    status.stop()
    return 0


def _stop_on_signals() -> threading.Event:
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    return stop


def _liveness(loop: Loop, stale_after_s: float) -> Callable[[], str | None]:
    def complaint() -> str | None:
        silent_s = loop.silent_s()
        return f"no round for {silent_s:.0f} s" if silent_s > stale_after_s else None

    return complaint


if __name__ == "__main__":
    sys.exit(process.exit_status(main))

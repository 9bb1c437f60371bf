"""What every `__main__` does: structured logs to stderr, exit statuses, and the end with the parent process."""

import gc
import logging
import os
import sys
import threading
from collections.abc import Callable

import structlog
from confluent_kafka import KafkaException

from topics import clients
from topics.errors import ConfigError, DependencyDown
from topics.settings import Settings

EXIT_FINDING = 1
EXIT_USAGE = 2
EXIT_UNAVAILABLE = 69
EXIT_BUG = 70
EXIT_CONFIG = 78
_FATAL_FIX = (
    "This client has given up for good, and only a new process can go on. "
    "Where RAMPMETER_GPU__INSTANCE_ID or RAMPMETER_KAFKA__GROUP_INSTANCE_ID is set, give each process one of its own."
)
_COLLECT_AFTER = (20_000, 20, 50)
"""More objects than a micro-batch makes, so that its own do not grow old while it is carried out."""


def configure_logs(settings: Settings, process: str) -> None:
    """Key-value lines for people, JSON lines for machines; never a record's content."""
    structlog.contextvars.bind_contextvars(process=process)
    renderer = (
        structlog.processors.JSONRenderer()
        if settings.log_json
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty() and "NO_COLOR" not in os.environ)
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, settings.log_level.upper())),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    logging.basicConfig(
        stream=sys.stderr, level=logging.WARNING, format="%(asctime)s %(name)s %(levelname)s %(message)s"
    )


def keep_start_up() -> None:
    """Tell the garbage collector that what there is now stays: call it when the process is about to begin its work.

    Otherwise each full collection looks through all modules and schemas again: 70 to 120 ms in which nothing moves.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_COLLECT_AFTER)


def end_within(limit_s: float) -> None:
    """Exit with status 0 after `limit_s`, whatever still holds the interpreter: all that others need is done.

    A thread that waits for a broker that is away, or an engine's shutdown, would keep it for minutes.
    """

    def end() -> None:
        structlog.get_logger().warning("end_cut_short", after_s=limit_s)
        os._exit(0)

    timer = threading.Timer(limit_s, end)
    timer.daemon = True
    timer.start()


def exit_status(main: Callable[[], int]) -> int:
    """Run `main`; say expected failures in plain words and turn them into the documented statuses."""
    try:
        return main()
    except ConfigError as error:
        for problem in error.problems:
            sys.stderr.write(f"configuration: {problem}\n")
        return EXIT_CONFIG
    except DependencyDown as error:
        sys.stderr.write(f"unavailable: {error}\n")
        return EXIT_UNAVAILABLE
    except KafkaException as error:
        if clients.is_fatal(error.args[0]):
            # The broker is well and has refused this member: to look at it would lead nowhere.
            sys.stderr.write(f"Kafka client: {error.args[0].str()}. {_FATAL_FIX}\n")
            return EXIT_BUG
        sys.stderr.write(f"unavailable: Kafka: {error.args[0].str()}. Look at the broker, then try again.\n")
        return EXIT_UNAVAILABLE

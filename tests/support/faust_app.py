"""A Faust application as streams builds it, whose one agent acts as the argument says; for tests in another process."""

import sys
import tempfile
import threading
from pathlib import Path

import faust

from streams import app as streams_app
from streams import progress as streams_progress
from streams.batches import micro_batches
from streams.settings import StreamsSettings
from topics import catalog, process
from topics.clock import SystemClock
from topics.records import Length, Priority
from topics.settings import load

DEAD_AGENT_S = 1.0


def say(*words):
    print(*words, flush=True)


async def acknowledge_all_but_the_first(stream):
    """Of partition 0; of the others all."""
    async for batch in micro_batches(stream, 100):
        for event in reversed(batch):
            if event.message.offset or event.message.partition:
                event.ack()


async def list_all(stream):
    async for batch in micro_batches(stream, 100):
        for event in batch:
            say("read", event.message.partition, event.message.offset)
            event.ack()


async def end(stream):
    async for _ in micro_batches(stream, 100):
        return


def main(acts):
    loaded = load(StreamsSettings)
    process.configure_logs(loaded, "faust")
    streams_progress._DEAD_AGENT_S = DEAD_AGENT_S
    progress = streams_progress.Progress(SystemClock(), 60.0, loaded.streams.recovery_limit_s)
    with tempfile.TemporaryDirectory(prefix="rampmeter-faust-") as folder:
        app = streams_app.build(loaded, Path(folder))
        raw = {"key_type": bytes, "value_type": bytes, "key_serializer": "raw", "value_serializer": "raw"}
        landing = app.topic(catalog.landing(loaded, Priority.HIGH, Length.SHORT), **raw)
        app.agent(landing, name="under_test", concurrency=1)(acts)
        app.Table("spend", default=dict, partitions=loaded.topics.landing_partitions)
        progress.watch(app)
        threading.Thread(target=_complain, args=(progress,), daemon=True).start()
        faust.Worker(app, loglevel="WARN", quiet=True, redirect_stdouts=False).execute_from_commandline()


def _complain(progress):
    while not threading.Event().wait(0.2):
        if (complaint := progress.complaint()) is not None:
            say("complaint", complaint)


if __name__ == "__main__":
    sys.exit(main(globals()[sys.argv[1]]))

"""The fastest rival of admission that Faust can be: an agent that only forwards each record with one awaited send."""

import sys
import tempfile

import faust

from topics import catalog
from topics.records import Length, Priority
from topics.settings import Settings, load

TARGET = "forward.admitted"


def build(settings, folder):
    app = faust.App(
        settings.topic("forward"),
        broker=f"kafka://{settings.kafka['bootstrap.servers']}",
        store="memory://",
        datadir=folder,
        web_enabled=False,
        topic_allow_declare=False,
        topic_disable_leader=True,
        consumer_auto_offset_reset="earliest",
        producer_acks=-1,
    )
    raw = {"key_type": bytes, "value_type": bytes, "key_serializer": "raw", "value_serializer": "raw"}
    landing = app.topic(*(catalog.landing(settings, p, n) for p in Priority for n in Length), **raw)
    target = app.topic(settings.topic(TARGET), **raw)

    @app.agent(landing)
    async def forward(stream):
        async for event in stream.events():
            await target.send(key=event.key, value=event.value)

    return app


def main():
    with tempfile.TemporaryDirectory(prefix="forward-") as folder:
        app = build(load(Settings), folder)
        faust.Worker(app, loglevel="WARN", quiet=True, redirect_stdouts=False).execute_from_commandline()


if __name__ == "__main__":
    sys.exit(main())

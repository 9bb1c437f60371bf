"""What the rivals of admission have in common: a Faust worker with stock settings, on the same landing topics."""

import tempfile

import faust

from topics import catalog
from topics.records import Length, Priority
from topics.settings import Settings, load


def run(group, target, attach):
    """Work until SIGTERM; `attach(app, settings, landing, target)` adds the agent."""
    settings = load(Settings)
    with tempfile.TemporaryDirectory(prefix=f"{group}-") as folder:
        app = faust.App(
            settings.topic(group),
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
        attach(app, settings, landing, app.topic(settings.topic(target), **raw))
        faust.Worker(app, loglevel="WARN", quiet=True, redirect_stdouts=False).execute_from_commandline()

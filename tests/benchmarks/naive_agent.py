"""The rival of admission: a Faust agent as one writes it first.  Per message one Redis call, one table write, one send.

It leaves out what ours adds (verification, placement, the decision log, redelivery checks) and reads the same bytes.
"""

import sys
import tempfile

import faust
import msgspec

from topics import catalog, clients, codec
from topics.records import Length, Priority
from topics.settings import Settings, load

TARGET = "naive.admitted"
GROUP = "naive"
UNITS_PER_BYTE, UNITS_PER_TOKEN = 0.017, 0.27


def changelog():
    """The topic of the agent's table, without prefix."""
    return f"{GROUP}-spend-changelog"


def build(settings, folder):
    app = faust.App(
        settings.topic(GROUP),
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
    spend = app.Table("spend", default=float, partitions=settings.topics.landing_partitions)
    redis = clients.redis_async(settings)
    decode = msgspec.json.Decoder(codec.Chat).decode

    @app.agent(landing)
    async def admit(stream):
        async for event in stream.events():
            chat = decode(event.value)
            units = UNITS_PER_BYTE * chat.text_bytes() + UNITS_PER_TOKEN * (chat.output_limit() or 0)
            if await redis.incrbyfloat("naive:budget", -units) > -1e18:
                tenant = event.key.decode()
                spend[tenant] += units
                await target.send(key=event.key, value=event.value)

    return app


def main():
    with tempfile.TemporaryDirectory(prefix="naive-") as folder:
        app = build(load(Settings), folder)
        faust.Worker(app, loglevel="WARN", quiet=True, redirect_stdouts=False).execute_from_commandline()


if __name__ == "__main__":
    sys.exit(main())

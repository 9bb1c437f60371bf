"""The rival of admission: a Faust agent as one writes it first.  Per message one Redis call, one table write, one send.

It leaves out what ours adds (verification, placement, the decision log, redelivery checks) and reads the same bytes.
"""

import sys

import msgspec

from tests.benchmarks import rival
from topics import clients, codec

TARGET = "naive.admitted"
GROUP = "naive"
UNITS_PER_BYTE, UNITS_PER_TOKEN = 0.017, 0.27


def changelog():
    """The topic of the agent's table, without prefix."""
    return f"{GROUP}-spend-changelog"


def attach(app, settings, landing, target):
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


if __name__ == "__main__":
    sys.exit(rival.run(GROUP, TARGET, attach))

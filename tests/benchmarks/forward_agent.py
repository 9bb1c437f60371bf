"""The fastest rival of admission that Faust can be: an agent that only forwards each record with one awaited send."""

import sys

from tests.benchmarks import rival

TARGET = "forward.admitted"


def attach(app, _settings, landing, target):
    @app.agent(landing)
    async def forward(stream):
        async for event in stream.events():
            await target.send(key=event.key, value=event.value)


if __name__ == "__main__":
    sys.exit(rival.run("forward", TARGET, attach))

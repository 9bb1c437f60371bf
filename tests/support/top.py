"""A snapshot as `rampmeter top` may meet it: work that waits, one consumer of each state, a loud tenant.

`python -m tests.support.top` writes docs/top.svg, a picture of the screen that shows it.
"""

import asyncio
import re
from pathlib import Path

import msgspec

from rampmeter.top.app import Top
from rampmeter.top.snapshot import Consumer, Lane, Pool, Snapshot, Tenant, Unread
from tests.support.builders import WALL_S
from tests.support.clock import FakeClock

READY = {"lanes": {}, "partitions": 8, "inflight_requests": 31, "queued_units": 1200.0, "capacity_units_per_s": 450.0}
FULL = {"kv_used_ratio": 0.78, "gpu_memory_used_ratio": 0.91, "gpu_busy_ratio": 0.97, "gpu_temperature_c": 71.0}
HOT = {**FULL, "kv_used_ratio": 0.98, "gpu_memory_used_ratio": 0.97, "gpu_temperature_c": 88.0}
UNKNOWN = dict.fromkeys(FULL)

LANES = (
    Lane("default", "high", "short", 12, 1_560.0, 1.7, 0.4, 22.9, 22.5),
    Lane("default", "high", "long", 40, 26_000.0, 28.9, 12.0, 4.1, 3.8),
    Lane("default", "medium", "short", 210, 27_300.0, 30.3, 18.0, 31.4, 24.9),
    Lane("default", "medium", "long", 55, 35_750.0, 39.7, 26.1, 3.0, 1.2),
    Lane("default", "low", "short", 91, 11_876.0, 13.2, 37.8, 6.2, 0.8),
    Lane("default", "low", "long", 0, 0.0, 0.0, 0.0, 0.0, 0.0),
    Lane("default", "aged", "short", 3, 390.0, 0.4, 41.0, 0.4, 0.3),
    Lane("default", "aged", "long", 0, 0.0, 0.0, 0.0, 0.0, 0.0),
    *(Lane("cpu", tier, length, 0, 0.0, 0.0, 0.0, 0.0, 0.0) for tier in ("high", "medium", "low", "aged")
      for length in ("short", "long")),
)  # fmt: skip
POOLS = (
    Pool("default", 2, 1, 1, 1, 411, 102_876.0, 114.3, 41.0, 9_120.0, 900.0),
    Pool("cpu", 1, 0, 0, 0, 0, 0.0, 0.0, 0.0, 0.0, None),
)
TENANTS = (
    Tenant("loud-team", 22.1, 5_304.0, 0.58, 520.0, 0.31, 180),
    Tenant("my-team", 9.4, 2_256.0, 0.25, 240.0, 0.0, 3),
    Tenant("search", 5.0, 1_200.0, 0.13, 110.0, 0.0, 0),
    Tenant("(others)", 1.1, 360.0, 0.04, 31.0, None, 2),
)
CONSUMERS = (
    Consumer("cpu-0", "cpu", "general", "ready", 0.1, **{**READY, "inflight_requests": 0}, **UNKNOWN),
    Consumer("gpu-5f7c9-2x4kl", "default", "general", "ready", 0.4, **READY, **FULL),
    Consumer("gpu-5f7c9-9sdfk", "default", "general", "draining", 0.2, **{**READY, "partitions": 0}, **FULL),
    Consumer("gpu-5f7c9-dead1", "default", "general", "silent", 31.0, **READY, **UNKNOWN),
    Consumer("gpu-5f7c9-h0t22", "default", "short", "closed", 0.3, **READY, **HOT, intake="closed by temperature"),
    Consumer("gpu-5f7c9-qqlt2", "default", "general", "ready", 0.3, **READY, **FULL),
)


def snapshot(**fields):
    """All of it could be read."""
    return msgspec.structs.replace(Snapshot(WALL_S, LANES, POOLS, TENANTS, CONSUMERS), **fields)


def blind():
    """A broker that does not answer: classes and pools are known by their names only."""
    why = "Local: Timed out"
    lanes = tuple(Lane(one.pool, one.tier, one.length) for one in LANES)
    unread = (Unread("lag of pool default", why, WALL_S - 12), Unread("telemetry", why), Unread("decisions", why))
    return Snapshot(WALL_S, lanes, tuple(Pool(one.pool) for one in POOLS), None, None, unread)


PICTURE = Path(__file__).parents[2] / "docs" / "top.svg"
_FONTS = re.compile(r"@font-face \{.*?\}\s*", flags=re.DOTALL)
"""They would be fetched from elsewhere."""


async def _draw():
    top = Top(lambda _: None, FakeClock(), "kafka-1:9093")
    async with top.run_test(size=(140, 34)) as pilot:
        top.take(snapshot())
        await pilot.pause()
        return _FONTS.sub("", top.export_screenshot(title="rampmeter top", simplify=True))


if __name__ == "__main__":
    PICTURE.write_text(asyncio.run(_draw()))

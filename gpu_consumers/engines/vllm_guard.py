"""`python -m gpu_consumers.engines.vllm_guard PID…`: ends vLLM's processes once the consumer has ended, however it did.

A killed consumer would otherwise leave them behind, with the GPU memory that its successor needs.  Standard input tells
of the end; handles of processes are held, since a number may have gone to another one by then.
"""

import contextlib
import os
import signal
import sys


def guard(pids: list[int]) -> None:
    """Wait for the end of standard input, then kill what is left."""
    handles = [os.pidfd_open(pid) for pid in pids]
    sys.stdin.buffer.read()
    for handle in handles:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, signal.SIGKILL)


if __name__ == "__main__":
    guard([int(pid) for pid in sys.argv[1:]])

"""`python -m gpu_consumers.engines.vllm_guard PID`: ends vLLM's processes once the consumer has ended, however it did.

A killed consumer would otherwise leave them behind, with the GPU memory that its successor needs.  While vLLM starts,
after the guard's empty line, they are all that process PID starts; then PID writes a line with their numbers.  Handles
of processes are held, since a number may have gone to another one by then.
"""

import contextlib
import os
import select
import signal
import sys
from pathlib import Path

LOOK_S = 0.2
"""A process whose parent dies sooner after its start stays behind."""

Handles = dict[int, int]


def guard(consumer: int) -> None:
    """Hold the processes until the end of standard input, then kill what is left."""
    others = {os.getpid(), *_descendants({consumer})}
    sys.stdout.write("\n")
    sys.stdout.flush()
    held: Handles = {}
    while not select.select([sys.stdin], [], [], LOOK_S)[0]:
        _hold(_descendants({consumer}) - others, held)
    if told := {int(pid) for pid in sys.stdin.readline().split()}:
        held = {}
        _hold(told | _descendants(told), held)
        sys.stdin.read()
    _hold(_descendants({pid for pid, handle in held.items() if not _has_ended(handle)}), held)
    for handle in held.values():
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, signal.SIGKILL)


def _hold(pids: set[int], held: Handles) -> None:
    for pid in pids - held.keys():
        with contextlib.suppress(ProcessLookupError):
            held[pid] = os.pidfd_open(pid)


def _has_ended(handle: int) -> bool:
    return bool(select.select([handle], [], [], 0)[0])


def _descendants(pids: set[int]) -> set[int]:
    found: set[int] = set()
    while pids := {child for pid in pids for child in _children(pid)}:
        found |= pids
    return found


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for thread in Path(f"/proc/{pid}/task").glob("*"):
        with contextlib.suppress(OSError):  # it has ended
            found += map(int, (thread / "children").read_text().split())
    return found


if __name__ == "__main__":
    guard(int(sys.argv[1]))

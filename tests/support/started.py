"""Processes that tests start: those that a failed test or fixture leaves behind end with its module."""

import subprocess

_STARTED = []


def popen(*args, **kwargs):
    """`subprocess.Popen`, not forgotten."""
    _STARTED.append(subprocess.Popen(*args, **kwargs))
    return _STARTED[-1]


def end_all():
    """Kill what still runs."""
    for process in _STARTED:
        if process.poll() is None:
            process.kill()
            process.wait()
    _STARTED.clear()

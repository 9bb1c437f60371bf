"""Imported before all else by what runs as a process: SIGTERM ends one that has not begun, with status 0.

Until the handlers of its own are there, which takes seconds, the signal's default would look like a crash; and as the
first process of a container, which has no default, it would wait for SIGKILL.
"""

import os
import signal

signal.signal(signal.SIGTERM, lambda *_: os._exit(0))

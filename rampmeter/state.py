"""The note that a running local stack leaves, so that other commands find it without variables."""

import json
import os
from pathlib import Path
from typing import Any, TypeVar

from rampmeter.settings import StackSettings
from topics.settings import LOCAL_SERVERS, Redis, Settings, load, redacted, variable_name

FILE_NAME = "stack.json"
_HINT = " A local stack of `rampmeter up` is found from the folder in which it was started; none runs from this one."
_SHARED = ("topics", "pools", "models", "default_model", "dedupe_window_s")

S = TypeVar("S", bound=Settings)


def write(data_dir: Path, settings: StackSettings, endpoints: dict[str, str]) -> None:
    """Note how to reach the stack of this process; only its owner may read it."""
    plain = settings.model_dump(mode="json")
    note = {
        "pid": os.getpid(),
        "endpoints": endpoints,
        "settings": {
            "kafka": {"bootstrap.servers": settings.kafka["bootstrap.servers"]},
            "redis": {"url": settings.redis.url},
            **{name: plain[name] for name in _SHARED},
        },
    }
    path = data_dir / FILE_NAME
    fresh = path.with_suffix(".new")
    fresh.touch(mode=0o600)
    fresh.write_text(json.dumps(note, indent=1))
    fresh.replace(path)


def remove(data_dir: Path) -> None:
    """Take the note away, if it is this process's."""
    path = data_dir / FILE_NAME
    if (_read(path) or {}).get("pid") == os.getpid():
        path.unlink(missing_ok=True)


def connect(kind: type[S]) -> S:
    """Settings of `kind`; where the user named no Kafka, those of the running local stack."""
    stack = load(StackSettings)
    if has_own_kafka(stack):
        return load(kind)
    note = _read(stack.stack.data_dir / FILE_NAME)
    if note is None or not _is_alive(int(note["pid"])):
        return load(kind)
    return load(kind, **note["settings"])


def hint(servers: str) -> str:
    """How a local stack is found, if these are the servers of those who named none and have none; else nothing."""
    settings = load(StackSettings)
    is_elsewhere = servers != LOCAL_SERVERS or has_own_kafka(settings)
    return "" if is_elsewhere or running(settings.stack.data_dir) is not None else _HINT


def running(data_dir: Path) -> int | None:
    """The process that runs the stack of this folder, if it lives."""
    note = _read(data_dir / FILE_NAME)
    return int(note["pid"]) if note is not None and _is_alive(int(note["pid"])) else None


def has_own_kafka(settings: Settings) -> bool:
    """Tell whether the user named a broker."""
    variable = variable_name(("kafka", "bootstrap.servers"))
    return settings.kafka["bootstrap.servers"] != LOCAL_SERVERS or variable in os.environ


def has_own_redis(settings: Settings) -> bool:
    """Tell whether the user named a Redis."""
    # Partial updates of a nested model do not tell which of its fields came from the user.
    return settings.redis.url != Redis().url or variable_name(("redis", "url")) in os.environ


def shown_redis(settings: Settings) -> str:
    """The Redis address without its password."""
    return str(redacted(settings)["redis"]["url"])


def _read(path: Path) -> dict[str, Any] | None:
    try:
        note: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return note


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True

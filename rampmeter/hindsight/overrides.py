"""`--set NAME=VALUE`: settings by the names that `rampmeter config print` shows, changed for one command."""

import difflib
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel

from topics.errors import ConfigError
from topics.settings import Settings, load

S = TypeVar("S", bound=Settings)

Change = tuple[str, Any]
"""A setting's name and its new value."""


def parsed(texts: Iterable[str]) -> list[Change]:
    """`NAME=VALUE` each, the value as JSON or else as text; raises ConfigError for what has no `=`."""
    changes: list[Change] = []
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise ConfigError([f"--set {text}: wants NAME=VALUE, as in --set streams.tenant_budget.burst_s=30"])
        changes.append((name.strip(), _value(value.strip())))
    return changes


def require_known(changes: Iterable[Change], kinds: Sequence[Settings]) -> None:
    """Raise ConfigError with every name that none of these settings has, and the nearest ones that they do have."""
    known = sorted({name for kind in kinds for name in names(kind)})
    problems = []
    for name, _ in changes:
        if not any(_has(kind, name) for kind in kinds):
            near = difflib.get_close_matches(name, known, n=3)
            hint = f"; did you mean {' or '.join(near)}?" if near else "; see `rampmeter config print`"
            problems.append(f"--set {name}: there is no such setting{hint}")
    if problems:
        raise ConfigError(problems)


def changed(settings: S, changes: Iterable[Change]) -> S:
    """The settings with those changes that are about them; raises ConfigError when a value does not fit."""
    data = {name: getattr(settings, name) for name in type(settings).model_fields}
    data = {name: _plain(value) for name, value in data.items()}
    for name, value in changes:
        if _has(settings, name):
            _put(data, settings, name, value)
    return load(type(settings), **data)


def names(settings: BaseModel) -> Iterator[str]:
    """The names of all settings, as `rampmeter config print` shows them."""
    yield from _names(settings, "")


def _names(value: object, path: str) -> Iterator[str]:
    parts = _parts(value)
    if not parts:
        yield path
    for name, part in parts.items():
        yield from _names(part, f"{path}.{name}" if path else name)


def _parts(value: object) -> dict[str, Any]:
    if isinstance(value, BaseModel):
        return {name: getattr(value, name) for name in type(value).model_fields}
    return {str(name): part for name, part in value.items()} if isinstance(value, dict) else {}


def _has(value: object, name: str) -> bool:
    """Whether there is such a setting; a mapping takes new names, with dots too."""
    if not name:
        return True
    parts = _parts(value)
    if any(_has(part, rest) for part, rest in _steps(parts, name)):
        return True
    return isinstance(value, dict) and not any(True for _ in _steps(parts, name))


def _steps(parts: dict[str, Any], name: str) -> Iterator[tuple[Any, str]]:
    for known, part in parts.items():
        if name == known or name.startswith(f"{known}."):
            yield part, name[len(known) + 1 :]


def _put(data: dict[str, Any], value: object, name: str, new: Any) -> None:
    parts = _parts(value)
    for known, part in parts.items():
        rest = name[len(known) + 1 :]
        if name == known:
            data[known] = new
            return
        if name.startswith(f"{known}.") and _has(part, rest):
            if not isinstance(data[known], dict):
                data[known] = {}
            _put(data[known], part, rest, new)
            return
    head, _, rest = name.rpartition(".")  # a new name in a mapping, or a field of its new member
    if head and isinstance(value, dict):
        member = data.setdefault(head, {})
        member[rest] = new
    else:
        data[name] = new


def _plain(value: object) -> Any:
    """Sections as mappings, so that single fields of them can be replaced."""
    parts = _parts(value)
    if isinstance(value, BaseModel | dict):
        keys = parts if isinstance(value, BaseModel) else value
        return {str(name): _plain(part) for name, part in zip(keys, parts.values(), strict=True)}
    return value


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text

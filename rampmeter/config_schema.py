"""The JSON Schema of a settings file for all processes, with what the code says of each setting."""

import ast
import inspect
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any, get_args

from pydantic import BaseModel

from topics.settings import Settings

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schema(kinds: Iterable[type[Settings]]) -> dict[str, Any]:
    """One schema for what any of these processes reads; a name that none of them knows is an error."""
    properties: dict[str, Any] = {}
    definitions: dict[str, Any] = {}
    for kind in kinds:
        made = kind.model_json_schema()
        _describe(made, kind)
        for section in _sections(kind):
            _describe(made["$defs"].get(section.__name__, {}), section)
        definitions |= made.get("$defs", {})
        properties |= made["properties"]
    return {
        "$schema": DIALECT,
        "title": "Rampmeter's settings",
        "type": "object",
        "properties": dict(sorted(properties.items())),
        "additionalProperties": False,
        "$defs": dict(sorted(definitions.items())),
    }


def _describe(made: dict[str, Any], model: type[BaseModel]) -> None:
    for name, text in _docs(model).items():
        if name in made.get("properties", {}):
            made["properties"][name].setdefault("description", text)


def _sections(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    """The models within a model, at any depth."""
    for field in model.model_fields.values():
        for found in _models(field.annotation):
            yield found
            yield from _sections(found)


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models(part)


def _docs(model: type[BaseModel]) -> Mapping[str, str]:
    """What stands below each field of a model and of those that it derives from, on one line."""
    found: dict[str, str] = {}
    for kind in reversed(model.__mro__):
        if issubclass(kind, BaseModel) and kind.__module__.split(".")[0] not in ("pydantic", "pydantic_settings"):
            found |= dict(_fields(ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]))
    return found


def _fields(body: ast.stmt) -> Iterator[tuple[str, str]]:
    statements = body.body if isinstance(body, ast.ClassDef) else []
    for field, below in pairwise(statements):
        if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
            continue
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) and isinstance(below.value.value, str):
            yield field.target.id, " ".join(below.value.value.split())

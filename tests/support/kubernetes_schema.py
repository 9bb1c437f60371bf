"""Kubernetes' own types, from lightkube's models, as a strict check of documents."""

import msgspec
from lightkube.core.resource_registry import LoadResourceError, resource_registry


def fault(document):
    """What is wrong with a document: a type, something missing, or a name that nobody reads.  None also for CRDs."""
    try:
        kind = resource_registry.load(document["apiVersion"], document["kind"])
    except LoadResourceError:
        return None
    if not issubclass(kind, msgspec.Struct):
        return None
    try:
        read = msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        return str(error)
    unread = _unread(document, msgspec.to_builtins(read), "$")
    return f"unknown: {', '.join(unread)}" if unread else None


def _unread(given, kept, path):
    if isinstance(given, dict) and isinstance(kept, dict):
        return [lost for name in given for lost in _unread(given[name], kept.get(name), f"{path}.{name}")]
    if isinstance(given, list) and isinstance(kept, list):
        return [
            lost
            for n, (one, other) in enumerate(zip(given, kept, strict=True))
            for lost in _unread(one, other, f"{path}[{n}]")
        ]
    return [] if given == kept else [path]

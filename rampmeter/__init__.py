"""What people touch: command, client, console, simulator and audit tools.

The clients are loaded when they are first asked for, so that importing the package costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rampmeter.ask import Ask
    from rampmeter.async_client import AsyncClient
    from rampmeter.client import Client, text_of
    from rampmeter.errors import ClientClosed, NoAnswer

__all__ = ["Ask", "AsyncClient", "Client", "ClientClosed", "NoAnswer", "text_of"]

_HOME = {
    "Ask": "ask",
    "AsyncClient": "async_client",
    "Client": "client",
    "ClientClosed": "errors",
    "NoAnswer": "errors",
    "text_of": "client",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)

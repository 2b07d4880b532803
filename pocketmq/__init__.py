"""PocketMQ: a message broker with RocketMQ's semantics, wire- and disk-compatible with it.

Importing this package is cheap: the client's names (``pocketmq.Producer``, …) are imported on first
use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from client import *  # noqa: F403 - for type checkers and editors

__version__ = "0.1.0"

_SUBMODULES = frozenset({"blocking", "serde"})


if not TYPE_CHECKING:  # With __getattr__, type checkers would accept every name.

    def __getattr__(name: str) -> Any:
        """Return a name of the client (PEP 562).

        Raises:
            AttributeError: the client has no such name.
            ImportError: a package of the application hides one that the client needs.
        """
        if name in _SUBMODULES:
            return import_module(f"pocketmq.{name}")
        # ``from pocketmq import logs`` calls this before importing the module ``logs``, so names
        # in lower case, which the client doesn't have, must not import the client.
        if name == "__all__" or not (name.startswith("_") or name.islower()):
            client = import_module("pocketmq.server.own_client").client
            if name in {"__all__", *client.__all__}:
                globals()[name] = value = getattr(client, name)
                return value
        raise AttributeError(f"module 'pocketmq' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the names of this module and of the client."""
    return sorted({*globals(), *import_module("pocketmq.server.own_client").client.__all__})

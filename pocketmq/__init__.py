"""PocketMQ: a message broker with RocketMQ's semantics, wire- and disk-compatible with it.

Importing this package costs nothing: the client's names (``pocketmq.Producer``, …) are looked up
when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from client import *  # noqa: F403 - its public names are ours, for type checkers and editors

__version__ = "0.1.0"

_SUBMODULES = frozenset({"blocking", "serde"})


if not TYPE_CHECKING:  # A type checker that sees __getattr__ takes any name for one that is there.

    def __getattr__(name: str) -> Any:
        """Look a name of the client up (PEP 562).

        Raises:
            AttributeError: The client has no such name.
            ImportError: A module of the application has the name of one that the client needs.
        """
        if name in _SUBMODULES:
            return import_module(f"pocketmq.{name}")
        # ``from pocketmq import logs`` asks here too, before it looks for the module ``logs``: the
        # client's own names are classes and constants.
        if name == "__all__" or not (name.startswith("_") or name.islower()):
            client = import_module("pocketmq.own_client").client
            if name in {"__all__", *client.__all__}:
                globals()[name] = value = getattr(client, name)
                return value
        raise AttributeError(f"module 'pocketmq' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Our own names and the client's."""
    return sorted({*globals(), *import_module("pocketmq.own_client").client.__all__})

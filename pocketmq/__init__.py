"""PocketMQ: a message broker with RocketMQ's semantics, wire- and disk-compatible with it.

Importing this package costs nothing: the client's names (``pocketmq.Producer``, …) are looked up
when they are first used.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

__version__ = "0.1.0"

_HOME = Path(__file__).resolve().parent.parent
_MODULES_OF_CLIENT = frozenset({"blocking", "serde"})


def _client() -> Any:
    module = importlib.import_module("client")
    found = Path(module.__file__ or "").resolve()
    if not found.is_relative_to(_HOME / "client"):
        msg = (
            f"'import client' finds {found}, not PocketMQ's {_HOME / 'client' / '__init__.py'}: "
            f"rename {found.name} of your application, or run it with 'python -P'"
        )
        raise ImportError(msg, name="client", path=str(found))
    return module


def __getattr__(name: str) -> Any:
    """Look a name of the client up (PEP 562).

    Raises:
        AttributeError: The client has no such name.
        ImportError: A ``client`` module of the application shadows ours.
    """
    # ``from pocketmq import logs`` asks here too, before it looks for the module ``logs``: the
    # client's own names are classes and constants.
    if name.startswith("_") or (name.islower() and name not in _MODULES_OF_CLIENT):
        msg = f"module 'pocketmq' has no attribute {name!r}"
        raise AttributeError(msg)
    return getattr(_client(), name)


def __dir__() -> list[str]:
    """Our own names and the client's."""
    return sorted({"__version__", *_client().__all__})

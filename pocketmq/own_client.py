"""Imports PocketMQ's ``client``; raises ``ImportError`` if a module of the application hides it."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

HOME = Path(__file__).resolve().parent.parent

for _name in ("client", "remoting"):
    _loaded = sys.modules.get(_name)
    # ``find_spec`` finds a module without executing it.
    _spec = find_spec(_name) if _loaded is None else _loaded.__spec__
    _found = "a module without a file" if _spec is None or _spec.origin is None else _spec.origin
    if Path(_found).resolve().parent != HOME / _name:
        _message = (
            f"PocketMQ's package {_name!r} is hidden by {_found}: move that into a package of your"
            f" application (app/{_name}.py is app.{_name}, run with 'python -m app'), or rename it"
        )
        raise ImportError(_message, name=_name, path=_found)

import client  # noqa: E402 - after the check above

__all__ = ["client"]

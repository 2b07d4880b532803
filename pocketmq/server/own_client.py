"""Imports PocketMQ's ``client``, also beside an application's ``client.py`` or ``remoting.py``.

Then all modules of our package are loaded, which takes up to a second, and its name is given back
to the application: ``client.errors`` is ours, and ``import client`` imports theirs.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from pkgutil import walk_packages
from types import ModuleType

HOME = Path(__file__).resolve().parents[2]


def _is_hidden(name: str) -> bool:
    """Return whether our package is hidden by a module of the application.

    Raises:
        ImportError: it is hidden by a package, whose modules may have the names of ours.
    """
    loaded = sys.modules.get(name)
    # ``find_spec`` finds a module without executing it.
    spec = find_spec(name) if loaded is None else loaded.__spec__
    origin = None if spec is None else spec.origin
    if origin is not None and Path(origin).resolve().parent == HOME / name:
        return False
    if spec is not None and spec.submodule_search_locations is not None:
        message = (
            f"PocketMQ's package {name!r} is hidden by {origin}: move that into a package of your"
            f" application (app/{name} is app.{name}, run with 'python -m app'), or rename it"
        )
        raise ImportError(message, name=name, path=origin)
    return True


def _load(name: str) -> ModuleType:
    spec = PathFinder.find_spec(name, [str(HOME)])
    assert spec is not None
    assert spec.loader is not None
    sys.modules[name] = module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _load_beside(names: list[str]) -> ModuleType:
    """Load all modules of our packages with these names, and ``client``; return that."""
    theirs = {name: sys.modules.pop(name, None) for name in names}
    try:
        ours = [_load(name) for name in names]
        for package in ours:
            for info in walk_packages(package.__path__, f"{package.__name__}."):
                with suppress(ImportError):  # of a package that is not installed
                    import_module(info.name)
        return import_module("client")
    finally:
        for name, module in theirs.items():
            del sys.modules[name]
            if module is not None:
                sys.modules[name] = module


client = _load_beside([name for name in ("remoting", "client") if _is_hidden(name)])

__all__ = ["client"]

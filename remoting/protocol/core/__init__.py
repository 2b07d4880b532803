"""The compiled core: what runs for every message, over the bytes where they lie.

Its modules are Cython. Without them everything works the same way in plain Python, and is slower.

Attributes:
    KIND: which one runs, ``compiled`` or ``python``.
    WHY: the reason if it is ``python``; empty otherwise.
"""

from __future__ import annotations

import os
from importlib import import_module
from importlib.util import find_spec
from typing import Final, Literal

MODULES: Final = ("answer", "header", "record", "index_entries", "messages")


def why_not(package: str, modules: tuple[str, ...]) -> str:
    """Why compiled modules of a package can't be used; empty: they can."""
    if os.environ.get("POCKETMQ_PURE", "0") not in {"", "0"}:
        return "POCKETMQ_PURE is set"
    missing = [name for name in modules if find_spec(f"{package}.{name}") is None]
    if len(missing) == len(modules):
        return "the compiled modules were not built, for want of a C compiler or Python.h"
    if missing:
        return f"of the compiled modules {', '.join(missing)} are missing: install PocketMQ anew"
    try:
        for name in modules:
            import_module(f"{package}.{name}")
    except Exception as error:  # noqa: BLE001 - whatever is wrong with them, Python goes on
        return f"the compiled modules can't be loaded, install PocketMQ anew: {error}"
    return ""


WHY: Final = why_not(__name__, MODULES)
KIND: Final[Literal["compiled", "python"]] = "python" if WHY else "compiled"

"""The compiled core: Cython modules with the code that runs for every message.

They work directly on the bytes of frames, records and files. Without them, pure Python code does
the same, more slowly.

Attributes:
    KIND: which implementation is used, ``compiled`` or ``python``.
    WHY: the reason if it is ``python``; empty otherwise.
"""

from __future__ import annotations

import os
from importlib import import_module
from importlib.util import find_spec
from typing import Final, Literal

MODULES: Final = ("answer", "header", "signed", "record", "index_entries", "messages")


def why_not(package: str, modules: tuple[str, ...]) -> str:
    """Return why a package's compiled modules can't be used; empty if they can."""
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
    except Exception as error:  # noqa: BLE001 - whatever is wrong, fall back to Python
        return f"the compiled modules can't be loaded, install PocketMQ anew: {error}"
    return ""


WHY: Final = why_not(__name__, MODULES)
KIND: Final[Literal["compiled", "python"]] = "python" if WHY else "compiled"

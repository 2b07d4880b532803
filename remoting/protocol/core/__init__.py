"""The compiled core: Cython modules with the code that runs for every message.

They work directly on the bytes of frames, records and files. Without them, pure Python code does
the same, more slowly.

Attributes:
    KIND: which implementation is used, ``compiled`` or ``python``.
    WHY: the reason if it is ``python``; empty otherwise.
"""

from __future__ import annotations

import os
import sysconfig
from importlib import import_module
from importlib.util import find_spec
from typing import Final, Literal

MODULES: Final = ("answer", "header", "signed", "record", "index_entries", "messages")

HAS_GIL: Final = not sysconfig.get_config_var("Py_GIL_DISABLED")
"""Whether this build of Python has the GIL. ``messages`` writes into the slots of new objects
itself: that is safe only if no other thread runs meanwhile, and with such a build's layout."""


def why_not(package: str, modules: tuple[str, ...], *, has_gil: bool = HAS_GIL) -> str:
    """Return why a package's compiled modules can't be used; empty if they can."""
    if os.environ.get("POCKETMQ_PURE", "0") not in {"", "0"}:
        return "POCKETMQ_PURE is set"
    if not has_gil:
        return "the compiled modules need a Python with the GIL, and this build is free-threaded"
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

"""The machine that the doctor itself runs on."""

from __future__ import annotations

import platform
import resource
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Final

import pocketmq
from broker import fast_path
from pocketmq.doctor.findings import Case, Finding, ok, warning
from remoting.process_limits import ENOUGH

ACCELERATORS: Final = {
    "uvloop": "a faster event loop",
    "orjson": "faster JSON headers",
    "isal": "faster checksums",
}


def core(why: str, broker: str = "") -> Finding:
    """Which core runs, here or in a broker."""
    who = f"{broker} runs on" if broker else "PocketMQ runs on"
    if not why:
        return ok("core", f"{who} the compiled core")
    remedy = (
        "unset it for the fast path"
        if "POCKETMQ_PURE" in why
        else "install a C compiler and Python.h (Debian: gcc and python3-dev), then PocketMQ anew"
    )
    return warning("core", f"{who} Python code, which is slower: {why}", remedy)


def here(_: Case) -> Iterator[Finding]:
    """Version, core, accelerators, limits."""
    yield ok("version", f"PocketMQ {pocketmq.__version__}")
    yield ok("interpreter", f"{platform.python_implementation()} {platform.python_version()}")
    yield core(fast_path.WHY)
    for module, use in ACCELERATORS.items():
        if find_spec(module) is not None:
            yield ok("accelerator", f"{module}: {use}")
        else:
            yield warning("accelerator", f"{module} is missing", f"pip install {module}: {use}")
    # A server raises its soft limit to the hard one when it starts.
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard == resource.RLIM_INFINITY or hard >= ENOUGH:
        yield ok("file descriptors", f"up to {hard} here" if hard >= 0 else "unlimited here")
    else:
        yield warning(
            "file descriptors",
            f"a server started here has only {hard}",
            f"raise the hard limit to {ENOUGH} or more before a server is started (ulimit -Hn, "
            "LimitNOFILE= of a systemd unit)",
        )

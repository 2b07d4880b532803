"""The machine that the doctor itself runs on."""

from __future__ import annotations

import platform
import resource
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Final

import pocketmq
from pocketmq.doctor.findings import Case, Finding, ok, warning

ENOUGH_FILES: Final = 4096
"""Descriptors: two a connection and one a mapped file leave room for some thousand clients."""

ACCELERATORS: Final = {
    "uvloop": "a faster event loop",
    "orjson": "faster JSON headers",
    "isal": "faster checksums",
}


def here(_: Case) -> Iterator[Finding]:
    """Version, accelerators, limits."""
    yield ok("version", f"PocketMQ {pocketmq.__version__}")
    yield ok("interpreter", f"{platform.python_implementation()} {platform.python_version()}")
    for module, use in ACCELERATORS.items():
        if find_spec(module) is not None:
            yield ok("accelerator", f"{module}: {use}")
        else:
            yield warning("accelerator", f"{module} is missing", f"pip install {module}: {use}")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= ENOUGH_FILES:
        yield ok("file descriptors", f"{soft} here")
    else:
        yield warning(
            "file descriptors",
            f"only {soft} here",
            f"ulimit -n {min(ENOUGH_FILES, hard) if hard > 0 else ENOUGH_FILES} before a server "
            "is started in this shell (LimitNOFILE= of a systemd unit)",
        )

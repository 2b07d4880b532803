"""The machine that the doctor itself runs on."""

from __future__ import annotations

import platform
import resource
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Final

import pocketmq
from pocketmq.doctor.findings import Case, Finding, ok, warning
from remoting.descriptors import ENOUGH

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

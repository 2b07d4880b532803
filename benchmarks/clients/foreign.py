"""The virtual environment of the other clients, created from a lock file."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from benchmarks.clients.servers import fetch_once

HERE = Path(__file__).parent
HOME = HERE.parent.parent / ".tools" / "bench-clients"
LOCK = HERE / "requirements.lock"

_PIN = re.compile(r"^([a-z0-9-]+)==([^ ]+)", re.MULTILINE)


def python() -> str:
    """Return the interpreter of the environment, which is created if it is not up to date.

    Raises:
        Unavailable: the packages can't be installed.
    """
    program = str(HOME / "bin" / "python")
    fetch_once(
        HOME,
        LOCK,
        [sys.executable, "-m", "venv", str(HOME)],
        [
            *(program, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"),
            *("--require-hashes", "-r", str(LOCK)),
        ],
    )
    return program


def versions() -> dict[str, str]:
    """Return the pinned version of each package."""
    return dict(_PIN.findall(LOCK.read_text()))

"""The virtual environment of the other clients, created from a lock file."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
HOME = HERE.parent.parent / ".tools" / "bench-clients"
LOCK = HERE / "requirements.lock"

_PIN = re.compile(r"^([a-z0-9-]+)==([^ ]+)", re.MULTILINE)


def python() -> str:
    """Return the interpreter of the environment, which is created if it is not up to date.

    Raises:
        subprocess.CalledProcessError: the packages can't be installed; pip prints the reason.
    """
    stamp = hashlib.sha256(sys.version.encode() + LOCK.read_bytes()).hexdigest()
    ready, program = HOME / ".ready", HOME / "bin" / "python"
    if not ready.exists() or ready.read_text() != stamp:
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(HOME)], check=True)
        subprocess.run(
            [
                *(str(program), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"),
                *("--require-hashes", "-r", str(LOCK)),
            ],
            check=True,
        )
        ready.write_text(stamp)
    return str(program)


def versions() -> dict[str, str]:
    """Return the pinned version of each package."""
    return dict(_PIN.findall(LOCK.read_text()))

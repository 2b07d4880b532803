"""The environment of the foreign clients, apart from ours: built once, from a lock file."""

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
    """The interpreter that has the foreign clients; it is the one that runs this, again.

    Raises:
        subprocess.CalledProcessError: The packages can't be installed; pip said why.
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
    """The pinned version of each package."""
    return dict(_PIN.findall(LOCK.read_text()))

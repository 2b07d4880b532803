"""Packages of npm, checked against what is expected of them."""

from __future__ import annotations

import base64
import hashlib
import subprocess
from pathlib import Path


def fetch(name: str, version: str, integrity: str, folder: Path) -> Path:
    """Return the archive of a package, fetched into an empty folder.

    Args:
        name: of the package.
        version: which of its versions.
        integrity: of the archive, as in a lock file of npm: ``sha512-`` and the digest in base64.
        folder: where to.
    """
    command = ["npm", "pack", "--silent", f"{name}@{version}"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=100)
    (archive,) = folder.glob("*.tgz")
    digest = hashlib.sha512(archive.read_bytes()).digest()
    assert f"sha512-{base64.b64encode(digest).decode()}" == integrity
    return archive

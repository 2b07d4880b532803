"""Unpack the captured stores."""

from __future__ import annotations

import tarfile
from pathlib import Path


def unpack(archive: Path, into: Path) -> None:
    """Unpack a tar archive."""
    with tarfile.open(archive) as tar:
        # Interpreters before 3.11.4 have no filters, and later ones ask for one.
        tar.extraction_filter = getattr(tarfile, "data_filter", lambda member, _: member)
        tar.extractall(into)

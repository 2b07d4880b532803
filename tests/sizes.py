"""The sizes of long tests: one code, small in ``make test`` and CI, full in ``make soak``."""

from __future__ import annotations

import os
from typing import TypeVar

T = TypeVar("T")

SOAK = os.environ.get("POCKETMQ_TEST_SIZE") == "soak"


def size(*, ci: T, soak: T) -> T:
    """What to take in this run."""
    return soak if SOAK else ci

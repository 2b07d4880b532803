"""The sizes of long tests: small in ``make test``, full in ``make soak``."""

from __future__ import annotations

import os
from typing import TypeVar

T = TypeVar("T")

SIZE = os.environ.get("POCKETMQ_TEST_SIZE") or ("ci" if os.environ.get("CI") == "true" else "test")


def size(*, ci: T, soak: T, test: T | None = None) -> T:
    """Return the value for this run's size; without ``test``, ``make test`` uses that of CI."""
    if SIZE == "soak":
        return soak
    return ci if test is None or SIZE == "ci" else test

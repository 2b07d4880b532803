"""Batches are laid out as columns from the first one on, not from when numpy has been loaded."""

from __future__ import annotations

import pytest

from broker.hot.numpy_loader import NUMPY


@pytest.fixture(scope="session", autouse=True)
def _numpy() -> None:
    NUMPY.columns()
    NUMPY.wait()

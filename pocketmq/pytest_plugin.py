"""The pytest fixture ``pocketmq_broker``: a real broker, shared by the tests of a session."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pocketmq.testing import StandaloneServer


@pytest.fixture(scope="session")
def pocketmq_broker() -> Iterator[StandaloneServer]:
    """Run a broker in a separate process; ``.nameserver`` is its address for clients."""
    from pocketmq import testing  # noqa: PLC0415 - pytest loads plugins in every run

    with testing.broker() as server:
        yield server

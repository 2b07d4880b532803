"""Apache's brokers that the tests share: a start takes several seconds of two processors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache

import pytest

from tests.interop.apache import VERSIONS, Apache, apache

SETTINGS = (
    "enablePropertyFilter=true",
    "transactionTimeOut=1000",
    "transactionCheckInterval=1000",
    # 5.x writes op messages so late that it would ask again about what has ended.
    "transactionOpBatchInterval=100",
)


@pytest.fixture(scope="session")
def shared_apache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Apache]]:
    """Return the running broker of a version; each test uses topics and groups of its own."""
    with ExitStack() as running:

        @cache
        def of(version: str) -> Apache:
            home = tmp_path_factory.mktemp("apache")
            return running.enter_context(apache(version, home, settings=SETTINGS))

        yield of


@pytest.fixture(scope="module", params=VERSIONS)
def there(request: pytest.FixtureRequest, shared_apache: Callable[[str], Apache]) -> Apache:
    """The running broker of each version; see ``shared_apache``."""
    return shared_apache(request.param)

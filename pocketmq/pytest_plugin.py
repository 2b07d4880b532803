"""The pytest fixtures: a real broker, and topics and groups of one test.

Each process of a run, so each worker of pytest-xdist, has its own broker.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from pocketmq.testing import StandaloneServer

_QUICK: Final = {
    "POCKETMQ_PUSH_CONSUMER_COMMIT_PERIOD": "0.05",
    "POCKETMQ_CONSUMER_AUTO_COMMIT_PERIOD": "0.05",
}
"""Options of consumers, unless the environment has others: without them, what was consumed is
committed after 5 s."""

_NAME_CHARS: Final = 60


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the ini option."""
    text = "settings of the test broker: RocketMQ's broker keys, one KEY=VALUE per line"
    parser.addini("pocketmq_settings", text, type="linelist")


def pytest_configure(config: pytest.Config) -> None:
    """Add the mark."""
    config.addinivalue_line(
        "markers",
        "pocketmq(queues=1, settings=None, accounts=None, tls=False): the number of queues of "
        "pocketmq_topic, and arguments of testing.broker",
    )


class _Brokers:
    """The brokers of this process: the one of the ini file, and one with a mark's arguments."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._settings = settings
        self._running: dict[object, tuple[dict[str, Any], ExitStack, StandaloneServer]] = {}

    def get(self, arguments: Mapping[str, Any], *, session: bool = False) -> StandaloneServer:
        """Return a broker with these arguments that runs.

        Args:
            session: it is never replaced: no test sets its clock.
        """
        from pocketmq import testing  # noqa: PLC0415 - pytest loads plugins in every run

        wanted = {**arguments, "settings": {**self._settings, **(arguments.get("settings") or {})}}
        key = session, bool(arguments)
        kept = self._running.get(key)
        if kept is not None and kept[0] == wanted and not kept[2].clock.ahead:
            return kept[2]
        if kept is not None:
            del self._running[key]
            kept[1].close()
        stack = ExitStack()
        server = stack.enter_context(testing.broker(**wanted))
        self._running[key] = wanted, stack, server
        return server

    def close(self) -> None:
        """Stop all brokers."""
        for _, stack, _ in self._running.values():
            stack.close()


@pytest.fixture(scope="session")
def _pocketmq_brokers(pytestconfig: pytest.Config) -> Iterator[_Brokers]:
    settings = {}
    for line in pytestconfig.getini("pocketmq_settings"):
        key, equals, value = line.partition("=")
        if not equals:
            raise pytest.UsageError(f"pocketmq_settings: {line!r} is not KEY=VALUE")
        settings[key.strip()] = value.strip()
    brokers = _Brokers(settings)
    yield brokers
    brokers.close()


@pytest.fixture(scope="session")
def pocketmq_broker(_pocketmq_brokers: _Brokers) -> StandaloneServer:
    """Run a broker in a separate process; ``.nameserver`` is its address for clients."""
    return _pocketmq_brokers.get({}, session=True)


@pytest.fixture
def pocketmq(
    _pocketmq_brokers: _Brokers, request: pytest.FixtureRequest
) -> Iterator[StandaloneServer]:
    """Return the broker for one test.

    After the test, faults end, a broker that was paused, stopped or killed runs again, and the
    topics and groups that the test left are deleted. Consumers commit quickly.
    """
    arguments = _arguments(request)
    arguments.pop("queues", None)
    server = _pocketmq_brokers.get(arguments)
    topics, groups = set(server.admin.topics()), set(server.admin.groups())
    with pytest.MonkeyPatch.context() as patch:
        for name, value in _QUICK.items():
            patch.setenv(name, os.environ.get(name, value))
        yield server
    if server.alive:
        server.resume()
    else:
        server.kill()  # also of a process that has ended by itself
        server.restart()
    server.clear_faults()
    for topic in set(server.admin.topics()) - topics:
        server.admin.delete_topic(topic)
    for group in set(server.admin.groups()) - groups:
        server.admin.delete_group(group)


@pytest.fixture
def pocketmq_topic(pocketmq: StandaloneServer, request: pytest.FixtureRequest) -> str:
    """Create a topic for one test, with one queue, and return its name."""
    name = _unique(request)
    pocketmq.admin.create_topic(name, queues=_arguments(request).get("queues", 1))
    return name


@pytest.fixture
def pocketmq_group(pocketmq: StandaloneServer, request: pytest.FixtureRequest) -> str:
    """Create a consumer group for one test, and return its name."""
    name = _unique(request)
    pocketmq.admin.create_group(name)
    return name


def _arguments(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Return the arguments of the marks; those of a test go before those of its module."""
    found: dict[str, Any] = {}
    for mark in request.node.iter_markers("pocketmq"):
        found = {**mark.kwargs, **found}
    return found


def _unique(request: pytest.FixtureRequest) -> str:
    name = re.sub(r"\W+", "-", request.node.name, flags=re.ASCII).strip("-")
    return f"{name[:_NAME_CHARS]}-{secrets.token_hex(4)}"

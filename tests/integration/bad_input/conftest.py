"""Two server processes under attack, and a well-behaved client.

The servers are shared by all tests here, so that later tests reveal what an attack left behind.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest

from pocketmq.server.process import private_megabytes
from remoting.protocol.codes import RequestCode
from tests.harness.processes import processes
from tests.integration.bad_input.meanwhile import Meanwhile
from tests.integration.bad_input.peer import Peer, Target

MEMORY_MEGABYTES = 256
"""Maximum MiB of a server after an attack; idle it has 45."""


@dataclass(frozen=True)
class Servers:
    """A name server and a broker that is registered with it."""

    nameserver: Target
    broker: Target


@pytest.fixture(scope="package")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """Run both servers as processes that are killed at the end."""
    with running(tmp_path_factory.mktemp("attacked")) as both:
        yield both


@contextmanager
def running(
    directory: Path, nameserver_settings: Mapping[str, object] | None = None, **settings: object
) -> Iterator[Servers]:
    """A name server and a broker with their stores below ``directory``."""
    with processes(
        directory, settings=settings, nameserver_settings=nameserver_settings
    ) as servers:
        yield Servers(
            Target(
                "nameserver",
                servers.nameserver,
                RequestCode.GET_BROKER_CLUSTER_INFO,
                RequestCode.GET_ROUTEINFO_BY_TOPIC,
            ),
            Target(
                "broker", servers.broker, RequestCode.GET_ALL_TOPIC_CONFIG, RequestCode.HEART_BEAT
            ),
        )


@pytest.fixture(scope="package")
def meanwhile(servers: Servers) -> Iterator[Meanwhile]:
    """Run the well-behaved client."""
    client = Meanwhile(servers.nameserver.address)
    client.start()
    yield client
    client.stop()


@pytest.fixture
def unharmed(servers: Servers, meanwhile: Meanwhile) -> Iterator[None]:
    """Check after the test that both servers serve, use little memory and logged no fault."""
    yield
    meanwhile.goes_on()
    for target in (servers.nameserver, servers.broker):
        with target.peer() as peer:
            assert peer.ask(target.harmless_request()).code == 0
        assert target.process.alive
        assert '"exception"' not in target.process.log
        assert private_megabytes(target.process.pid) < MEMORY_MEGABYTES


@pytest.fixture(params=["nameserver", "broker"])
def target(request: pytest.FixtureRequest, servers: Servers, unharmed: None) -> Target:
    """Each server in turn."""
    found = getattr(servers, request.param)
    assert isinstance(found, Target)
    return found


@pytest.fixture
def broker(servers: Servers, unharmed: None) -> Target:
    """The broker."""
    return servers.broker


@pytest.fixture
def nameserver(servers: Servers, unharmed: None) -> Target:
    """The name server."""
    return servers.nameserver


_numbers = count(1)


@pytest.fixture
def topic() -> str:
    """Return a unique name."""
    return f"bad-{next(_numbers)}"


@pytest.fixture
def peer(broker: Target) -> Iterator[Peer]:
    """A connection to the broker."""
    with broker.peer() as connected:
        yield connected

"""Two server processes under attack, and a client that behaves well meanwhile.

The servers live as long as these tests: what one attack leaves behind, the next ones would show.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from pocketmq.process import private_megabytes
from pocketmq.testing import SMALL_STORE, ServerProcess
from remoting.protocol.codes import RequestCode
from tests.integration.bad_input.meanwhile import Meanwhile
from tests.integration.bad_input.peer import Target

MEMORY_MEGABYTES = 256
"""No attack leaves a server with more; idle it has 45."""

BROKER = ["--name", "broker-a", "--port", "0", "--metrics-port", "0"]


def settings(values: Mapping[str, object]) -> list[str]:
    """Options for a server's settings."""
    return [f"--set={key}={value}" for key, value in values.items()]


@dataclass(frozen=True)
class Servers:
    """A name server and a broker that is registered with it."""

    nameserver: Target
    broker: Target


@pytest.fixture(scope="package")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """Two processes, killed at the end."""
    with running(tmp_path_factory.mktemp("attacked")) as both:
        yield both


class running:  # noqa: N801 - used like a function
    """A name server and a broker with their stores below ``directory``."""

    def __init__(
        self,
        directory: Path,
        *,
        nameserver_settings: Mapping[str, object] | None = None,
        **broker_settings: object,
    ) -> None:
        kv = {"kvConfigPath": directory / "kvConfig.json", **(nameserver_settings or {})}
        self._nameserver = ServerProcess(
            ["nameserver", "--port", "0", "--metrics-port", "0", *settings(kv)]
        )
        self._directory = directory
        self._broker_settings = broker_settings
        self._broker: ServerProcess | None = None

    def __enter__(self) -> Servers:
        try:
            self._nameserver.start()
            self._broker = ServerProcess(
                [
                    *("broker", "--nameserver", self._nameserver.addresses["nameserver"]),
                    *(*BROKER, "--store", str(self._directory / "store")),
                    *settings({**SMALL_STORE, **self._broker_settings}),
                ]
            )
            self._broker.start()
        except BaseException:
            self.__exit__()
            raise
        return Servers(
            Target(
                "nameserver",
                self._nameserver,
                RequestCode.GET_BROKER_CLUSTER_INFO,
                RequestCode.GET_ROUTEINFO_BY_TOPIC,
            ),
            Target(
                "broker", self._broker, RequestCode.GET_ALL_TOPIC_CONFIG, RequestCode.HEART_BEAT
            ),
        )

    def __exit__(self, *_: object) -> None:
        if self._broker is not None:
            self._broker.kill()
        self._nameserver.kill()


@pytest.fixture(scope="package")
def meanwhile(servers: Servers) -> Iterator[Meanwhile]:
    """The client that behaves well."""
    client = Meanwhile(servers.nameserver.address)
    client.start()
    yield client
    client.stop()


@pytest.fixture
def unharmed(servers: Servers, meanwhile: Meanwhile) -> Iterator[None]:
    """After the test both servers are well: they serve, fit into memory, and had no fault."""
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

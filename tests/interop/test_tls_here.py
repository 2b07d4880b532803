"""The unmodified Java clients, signed and over mutual TLS, at our servers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from pocketmq import testing
from tests.harness.certificates import Pair, self_signed
from tests.interop.apache import VERSIONS, JavaClient

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]


def topic_of(version: str) -> str:
    return f"orders-{version.replace('.', '_')}"


ACCOUNTS = {
    "java-client": {
        "topicPerms": [f"{topic_of(version)}=PUB|SUB" for version in VERSIONS],
        "defaultGroupPerm": "SUB",
    }
}


@dataclass(frozen=True)
class Here:
    """Servers that accept TLS only, and only with a client's certificate.

    Attributes:
        server: the servers.
        member: the certificate that they accept.
    """

    server: testing.StandaloneServer
    member: Pair


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Here]:
    member = self_signed(tmp_path_factory.mktemp("member"), "member")
    settings = {
        "tls.server.need.client.auth": "require",
        "tls.server.authClient": "true",
        "tls.server.trustCertPath": str(member.cert),
        "tls.client.certPath": str(member.cert),
        "tls.client.keyPath": str(member.key),
    }
    with testing.broker(settings=settings, accounts=ACCOUNTS, tls=True) as server:
        yield Here(server, member)


@pytest.mark.parametrize("version", VERSIONS)
def test_java_sends_and_consumes(here: Here, version: str, tmp_path: Path) -> None:
    settings = {
        "tls.enable": "true",
        "tls.test.mode.enable": "false",
        "tls.client.authServer": "true",
        "tls.client.trustCertPath": here.server.tls,
        "tls.client.certPath": here.member.cert,
        "tls.client.keyPath": here.member.key,
    }
    options = tuple(f"-D{key}={value}" for key, value in settings.items())
    java = JavaClient(version, "JSON", tmp_path, options)
    keys = here.server.credentials["java-client"]
    told = java.run(
        here.server.nameserver,
        *(keys.access_key, keys.secret_key, topic_of(version), "java-group", "denied"),
        program="Signed",
    )
    assert told[0][:2] == ["denied", "1"]
    assert told[2] == ["received", "true"]

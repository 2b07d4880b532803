"""Our client, command line and Spark, signed and over mutual TLS, at real Apache servers."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import client
from spark_connector import connections
from spark_connector.errors import BrokerError
from tests.harness.certificates import self_signed
from tests.integration.spark_connector.querying import batch_reader, numbers, rows
from tests.integration.spark_connector.writing import batch, received, write
from tests.interop.apache import VERSIONS, Apache
from tests.interop.guarded import KEYS, guarded, written_keys

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]


@dataclass(frozen=True)
class There:
    """Servers that accept TLS only, and only with a client's certificate.

    Attributes:
        apache: the servers.
        tls: what they accept.
        keys: the file of the account's keys.
    """

    apache: Apache
    tls: client.Tls
    keys: Path


@pytest.fixture(scope="module", params=VERSIONS)
def there(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[There]:
    home = tmp_path_factory.mktemp("tls")
    server, member = self_signed(home), self_signed(home, "member")
    # The broker is a client of the name server; enforcing makes it use TLS there, too.
    settings = {
        "tls.test.mode.enable": "false",
        "tls.server.need.client.auth": "require",
        "tls.server.keyPath": server.key,
        "tls.server.certPath": server.cert,
        "tls.server.authClient": "true",
        "tls.server.trustCertPath": member.cert,
        "tls.client.keyPath": member.key,
        "tls.client.certPath": member.cert,
        "tls.client.authServer": "true",
        "tls.client.trustCertPath": server.cert,
    }
    file = home / "tls.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    properties = (f"-Dtls.config.file={file}", "-Dtls.server.mode=enforcing")
    tls = client.Tls(ca=server.cert, cert=member.cert, key=member.key)
    with guarded(request.param, home, properties=properties, tls=tls) as running:
        yield There(running, tls, written_keys(home))
    connections.close_unused()


async def test_clients_send_consume_and_administer(there: There) -> None:
    topic = "TlsAsync"
    bodies = {b"%d" % n for n in range(5)} | {bytes(1_000_000)}
    left = set(bodies)
    all_handled = asyncio.Event()

    async def handle(message: client.ReceivedMessage[bytes]) -> None:
        left.discard(message.body)
        if not left:
            all_handled.set()

    async with client.Instance(
        there.apache.nameserver, credentials=KEYS, tls=there.tls
    ) as instance:
        await instance.admin().create_topic(topic, queues=2)
        messages = [client.Message(topic, body) for body in bodies]
        for receipt in await instance.producer(group="tls").send_many(messages):
            assert not isinstance(receipt, Exception), receipt
        async with (
            instance.push_consumer(
                group="tls-push", subscribe={topic: "*"}, handler=handle, start_from=client.FIRST
            ),
            asyncio.timeout(60),
        ):
            await all_handled.wait()


def test_blocking_clients_send_and_pull(there: There) -> None:
    with client.blocking.Instance(
        there.apache.nameserver, credentials=str(there.keys), tls=there.tls
    ) as instance:
        instance.admin().create_topic("TlsBlocking", queues=1)
        sent = instance.producer(group="tls-blocking").send("TlsBlocking", b"x")
        reader = instance.pull_consumer(group="tls-blocking-pull", start_from=client.FIRST)
        reader.assign(reader.queues("TlsBlocking"))
        assert [one.id for one in reader.get_many(1, timeout=30)] == [sent.id]


def test_the_command_line_sends_and_reads(there: There) -> None:
    tls = there.tls
    options = [f"--tls-ca={tls.ca}", f"--tls-cert={tls.cert}", f"--tls-key={tls.key}"]

    def run(*words: str, options: list[str] = options) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "pocketmq", *words, *options]
        command += ["--nameserver", there.apache.nameserver, "--credentials", str(there.keys)]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    for words in (("topic", "create", "TlsCommands"), ("send", "TlsCommands", "hello")):
        done = run(*words)
        assert done.returncode == 0, done.stderr
    assert "hello" in run("read", "TlsCommands").stdout
    for lacking, advice in (([], "set the option tls"), (options[:1], "set cert")):
        refused = run("topic", "list", options=lacking)
        assert refused.returncode == 1
        assert advice in refused.stderr


def test_spark_writes_and_reads(there: There) -> None:
    with client.blocking.Admin(there.apache.nameserver, credentials=KEYS, tls=there.tls) as admin:
        admin.create_topic("TlsRows", queues=2)
    options = {"tlsCa": str(there.tls.ca), "credentialsFile": str(there.keys)}
    pair = {"tlsCert": str(there.tls.cert), "tlsKey": str(there.tls.key)}
    name_server = there.apache.nameserver
    write(name_server, "TlsRows", batch(100), **options, **pair)
    found = received(name_server, "TlsRows", 100, credentials=KEYS, tls=there.tls)
    assert len(found) == 100
    reader = batch_reader(name_server, topic="TlsRows", **options, **pair)
    assert numbers(rows(reader)) == list(range(100))
    with pytest.raises(BrokerError, match="set cert"):
        rows(batch_reader(name_server, topic="TlsRows", **options))

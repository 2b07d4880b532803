"""Our signed requests at real brokers with access control: 4.9.7's ACL and 5.3.3's auth."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import client
from remoting.runtime.log import ROOT as LOGGERS
from spark_connector import connections
from spark_connector.errors import BrokerError
from tests.integration.pocketmq.conftest import CommandLine
from tests.integration.spark_connector.querying import batch_reader, numbers, rows
from tests.integration.spark_connector.writing import batch, received, write
from tests.interop.apache import Apache
from tests.interop.guarded import KEYS, guarded, written_keys
from tests.support.waiting import until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]


@pytest.fixture(scope="module", params=["4.9.7", "5.3.3"])
def there(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Apache]:
    with guarded(request.param, tmp_path_factory.mktemp("guarded")) as running:
        yield running
    connections.close_unused()


@pytest.fixture
def keys_file(tmp_path: Path) -> Path:
    return written_keys(tmp_path)


@pytest.mark.parametrize("codec", ["json", "rocketmq"])
async def test_clients_and_admins_pass(there: Apache, codec: str) -> None:
    topic = f"Signed-{codec}"
    handled: set[bytes] = set()
    all_handled = asyncio.Event()

    async def handle(message: client.ReceivedMessage[bytes]) -> None:
        handled.add(message.body)
        if len(handled) == 6:
            all_handled.set()

    async with client.Instance(there.nameserver, credentials=KEYS, codec=codec) as instance:  # type: ignore[arg-type]
        admin = instance.admin()
        await admin.create_topic(topic, queues=2)
        producer = instance.producer(
            group=f"signed-{codec}", transaction_checker=lambda _: client.TransactionState.COMMIT
        )
        receipts = [await producer.send(topic, b"%d" % n, keys=[f"k{n}"]) for n in range(3)]
        await producer.send_many([client.Message(topic, b"%d" % n) for n in range(3, 5)])
        async with producer.transaction(topic, b"5"):
            pass

        async def is_indexed() -> bool:
            return len(await admin.find_messages(topic, "k2")) == 1

        await until(is_indexed)
        found = await admin.message(receipts[0].id, topic=topic)
        assert found.body == b"0"
        assert [m.body for m in await admin.find_messages(topic, "k1")] == [b"1"]
        reader = instance.pull_consumer(group=f"signed-pull-{codec}")
        reader.assign(await reader.queues(topic))
        async with asyncio.timeout(60):
            pulled: set[bytes] = set()
            while len(pulled) < 6:
                pulled |= {m.body for m in await reader.get_many(10, timeout=5.0)}
            await reader.commit()
            async with instance.push_consumer(
                group=f"signed-push-{codec}",
                subscribe={topic: "*"},
                handler=handle,
                start_from=client.FIRST,
            ):
                await all_handled.wait()


async def test_requests_and_replies_pass(there: Apache) -> None:
    async def answer(message: client.ReceivedMessage[bytes]) -> None:
        await replier.reply(message, b"re: " + message.body)

    async with client.Instance(there.nameserver, credentials=KEYS) as instance:
        await instance.admin().create_topic("SignedAsks", queues=2)
        replier = instance.producer(group="signed-replier")
        requester = instance.producer(group="signed-requester")
        async with instance.push_consumer(
            group="signed-replier",
            subscribe={"SignedAsks": "*"},
            handler=answer,
            start_from=client.FIRST,
        ):
            reply = await requester.request("SignedAsks", b"1", timeout=60)
    assert reply.body == b"re: 1"


@pytest.mark.parametrize(
    "keys", [None, client.Credentials(KEYS.access_key, "wrong"), client.Credentials("nobody", "x")]
)
async def test_missing_and_wrong_keys_are_a_clear_error(
    there: Apache, keys: client.Credentials | None
) -> None:
    async with client.Admin(there.nameserver, credentials=keys) as admin:
        with pytest.raises(client.AccessDenied) as refused:
            await admin.create_topic("Refused")
    text = str(refused.value)
    assert there.broker in text
    assert ("POCKETMQ_CREDENTIALS" if keys is None else f"account {keys.access_key}") in text
    async with client.Producer(there.nameserver, credentials=keys, retries=0) as producer:
        with pytest.raises(client.AccessDenied, match="keys"):
            await producer.send("Signed-json", b"refused")


def test_the_command_line_passes_with_a_file(there: Apache, keys_file: Path) -> None:
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "pocketmq", *words, "--nameserver", there.nameserver]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    made = run("topic", "create", "Commanded", "--credentials", str(keys_file))
    assert made.returncode == 0, made.stderr
    refused = run("topic", "create", "Uncommanded")
    assert refused.returncode == 1
    assert "POCKETMQ_CREDENTIALS" in refused.stderr


def test_accounts_are_administered_at_4_9_and_5_3_says_how(
    there: Apache, keys_file: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # As commands do, which are processes otherwise; undone at the end.
    caplog.set_level(logging.ERROR, logger=LOGGERS)
    cli = CommandLine(there.nameserver, POCKETMQ_CREDENTIALS=str(keys_file))

    def shown(*words: str) -> list[list[str]]:
        text = cli("acl", *words)
        assert KEYS.secret_key not in text
        return [line.split("\t") for line in text.splitlines()]

    if cli.result("acl", "user", "list").exit_code:
        for words in (("user", "list"), ("version",), ("whitelist", "set", "10.1.2.3")):
            assert "mqadmin (createUser, createAcl)" in cli.fails("acl", *words)
        return
    fresh = str(tmp_path / "fresh.yml")
    given = ("--topic", "orders=PUB", "--group", "readers=SUB", "--white-address", "10.1.2.3")
    shown("user", "set", "billing", "--new-keys", fresh, "--default-topic", "SUB", *given)
    # What isn't given stays, although Apache's broker wants the whole account.
    shown("user", "set", "billing", "--admin")
    shown("topic", "set", "bills", "billing", "DENY")
    shown("user", "set", "billing", "--white-address", "")
    row = next(row for row in shown("user", "list") if row[0] == "billing")
    assert row == [
        *("billing", "yes", "bills=DENY,orders=PUB", "readers=SUB", "SUB", "DENY", "-", "broker-a")
    ]
    with client.blocking.Admin(there.nameserver, credentials=fresh) as admin:
        assert "billing" in admin.access_rules(there.broker).accounts
    shown("topic", "delete", "bills", "billing")
    assert "set it to DENY" in cli.fails("acl", "topic", "delete", "orders", "billing")
    shown("whitelist", "set", "10.1.2.3", "10.1.3.*")
    assert [row[0] for row in shown("whitelist", "get")] == ["10.1.2.3", "10.1.3.*"]
    shown("whitelist", "set", "--clear")
    assert shown("whitelist", "get") == []
    shown("user", "delete", "billing")
    assert [row[0] for row in shown("user", "list")] == [KEYS.access_key]
    assert int(shown("version")[0][1]) >= 7


def test_spark_writes_and_reads(
    there: Apache, keys_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POCKETMQ_CREDENTIALS", str(keys_file))
    with client.blocking.Admin(there.nameserver) as admin:
        admin.create_topic("SignedRows", queues=2)
    write(there.nameserver, "SignedRows", batch(100))
    assert len(received(there.nameserver, "SignedRows", 100)) == 100
    assert numbers(rows(batch_reader(there.nameserver, topic="SignedRows"))) == list(range(100))
    monkeypatch.delenv("POCKETMQ_CREDENTIALS")
    with pytest.raises(BrokerError, match="POCKETMQ_CREDENTIALS"):
        rows(batch_reader(there.nameserver, topic="SignedRows"))

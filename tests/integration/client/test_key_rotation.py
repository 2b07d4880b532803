"""Keys are replaced while messages are sent, at a broker with accounts."""

from __future__ import annotations

import asyncio
from pathlib import Path

import client
from client.network.context import context_of
from tests.harness.cluster import Cluster

OLD, NEW = "old-account", "new-account"


def write(file: Path, text: str) -> Path:
    """Replace a file in one step, readable by its owner only."""
    fresh = file.with_suffix(".fresh")
    fresh.write_text(text)
    fresh.chmod(0o600)
    return fresh.rename(file)


def accounts(*names: str) -> str:
    rows = "".join(
        f"- accessKey: {name}\n  secretKey: secret-of-{name}\n  admin: true\n" for name in names
    )
    return f"accounts:\n{rows}"


def keys(name: str) -> str:
    return f"accessKey: {name}\nsecretKey: secret-of-{name}\n"


async def test_keys_are_replaced_under_load_without_a_failed_send(tmp_path: Path) -> None:
    rules = write(tmp_path / "plain_acl.yml", accounts(OLD))
    file = write(tmp_path / "keys.yml", keys(OLD))
    async with Cluster(tmp_path, aclEnable="true", pocketmqAclFile=str(rules)) as cluster:
        await cluster.start()
        async with client.Instance(cluster.nameserver, credentials=file) as instance:
            admin = instance.admin()
            await admin.create_topic("orders", queues=2)
            # Without attempts after the first: each refusal would be seen.
            producer = instance.producer(group="rotation", retries=0)
            sent = 0

            async def accepted(account: str, *, admitted: bool) -> None:
                """Send with the file's keys until the broker admits, or refuses, an account."""
                nonlocal sent
                signed = client.Credentials(account, f"secret-of-{account}")
                probe = client.Admin(cluster.nameserver, credentials=signed)
                async with probe, asyncio.timeout(60):
                    address = (await probe.brokers())[0].address
                    while True:
                        await producer.send_many([client.Message("orders", b"x")] * 10)
                        sent += 10
                        try:
                            await probe.broker_config(address)
                        except client.AccessDenied:
                            if not admitted:
                                return
                        else:
                            if admitted:
                                return

            await accepted(OLD, admitted=True)
            write(rules, accounts(OLD, NEW))
            await accepted(NEW, admitted=True)
            write(file, keys(NEW))
            async with asyncio.timeout(60):
                while context_of(producer).remote.account != NEW:
                    await producer.send("orders", b"x")
                    sent += 1
            write(rules, accounts(NEW))
            await accepted(OLD, admitted=False)
            receipts = await producer.send_many([client.Message("orders", b"last")])
            assert all(isinstance(receipt, client.Receipt) for receipt in receipts)
            stats = await admin.topic_stats("orders")
            assert sum(queue.max_offset for queue in stats.values()) == sent + 1

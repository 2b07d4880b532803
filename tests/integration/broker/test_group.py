"""A group with a controller: roles, elections, and what is confirmed, acknowledged and refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

import client
from broker.app import Broker
from broker.errors import StartError
from broker.limits import BrokerLimits
from broker.replication.autoswitch import HANDSHAKE, SLAVE_HELLO
from broker.replication.epochs import EpochList
from broker.replication.stream import REPORT as TOKEN
from broker.store.limits import StoreLimits
from broker.store.os_files import Files
from broker.storetools.verify.findings import is_open
from remoting.access.accounts import dump
from remoting.errors import BindFailed
from remoting.pool import ConnectionPool
from remoting.protocol.bodies import decode
from remoting.protocol.bodies.controller import EpochEntryCache
from remoting.protocol.bodies.stats import HARuntimeInfo
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.own_codes import OwnRequestCode
from tests.harness.cluster import Cluster
from tests.harness.controller import ControllerServer
from tests.support.ports import free_port
from tests.support.waiting import until
from tests.unit.broker.store.stores import SlowDisk

QUICK = BrokerLimits(table_copy_seconds=0.1)
SECONDS = 60.0


class Trio:
    """A name server, a controller, and the brokers ``a``, ``b`` and ``c`` of one name."""

    def __init__(self, cluster: Cluster, controller: ControllerServer) -> None:
        self.cluster = cluster
        self.controller = controller
        self.ports = {name: str(free_port()) for name in "abc"}

    async def start(
        self,
        *names: str,
        files: Files | None = None,
        store_limits: StoreLimits | None = None,
        **settings: str,
    ) -> None:
        """Start brokers, and wait until they are in sync."""
        for name in names:
            await self.cluster.start(
                name,
                limits=QUICK,
                files=files,
                store_limits=store_limits,
                brokerName="broker-a",
                haListenPort=self.ports[name],
                enableControllerMode="true",
                controllerAddr=self.controller.address,
                **settings,
            )
        await self.settled()

    async def settled(self) -> None:
        """Wait until all brokers are in sync, and the master serves."""

        def is_so() -> bool:
            model = self.controller.model
            return len(model.members) == len(self.brokers) and self.master.serving

        await until(is_so, SECONDS)
        await until(lambda: self.master.registration and self.master.state.replica is None, SECONDS)

    @property
    def brokers(self) -> dict[str, Broker]:
        return self.cluster.brokers

    @property
    def master(self) -> Broker:
        """The broker that the controller has elected."""
        model = self.controller.model
        assert model.master is not None
        address = model.addresses[model.master]
        return next(one for one in self.brokers.values() if one.address == address)

    @property
    def master_name(self) -> str:
        return next(name for name, one in self.brokers.items() if one is self.master)

    async def send(self, body: bytes, delay: float | None = None) -> client.Receipt:
        """Send a message, which counts once it can't be lost."""
        async with client.Producer(self.cluster.nameserver, require_durable=True) as producer:
            return await producer.send("Safe", body, delay=delay)

    async def refused(self, reason: str) -> None:
        """Check that a message is refused for a reason."""
        with pytest.raises(client.SendError, match=reason):
            await self.send(b"refused")

    def epochs(self, name: str) -> EpochList:
        """Return what a broker's epoch file says."""
        path = self.brokers[name].store.paths.epochs
        return EpochList.decode(path.read_text())

    def are_equal(self) -> bool:
        """Return whether all brokers have the same log and the same epochs."""
        stores = [one.store for one in self.brokers.values() if one.serving]
        return (
            len(stores) == len(self.brokers)
            and len({store.log.end for store in stores}) == 1
            and len({self.epochs(name) for name in self.brokers}) == 1
        )

    async def ask(self, broker: Broker, code: int) -> Command:
        pool = ConnectionPool(name="test")
        try:
            return await pool.request(broker.address, Command.request(code), timeout=10)  # type: ignore[arg-type]
        finally:
            await pool.close()


@pytest_asyncio.fixture
async def trio(tmp_path: Path) -> AsyncIterator[Trio]:
    async with ControllerServer() as controller, Cluster(tmp_path) as cluster:
        yield Trio(cluster, controller)


async def test_another_master_is_elected_which_has_everything(trio: Trio) -> None:
    await trio.start("a", "b", "c")
    name = trio.master_name
    for number in range(10):
        await trio.send(b"%d" % number)
    await until(trio.are_equal, SECONDS)
    end = trio.master.store.log.end
    await trio.cluster.stop(name)
    await trio.settled()
    assert trio.master.store.log.end == end
    receipt = await trio.send(b"after")
    assert receipt.status is client.SendStatus.OK
    await trio.start(name)
    await until(trio.are_equal, SECONDS)
    assert [one.epoch for one in trio.epochs(name)] == [1, 2]


async def test_what_only_the_old_master_had_is_cut(trio: Trio) -> None:
    await trio.start("a", "b", "c", slaveTimeout="200")
    name = trio.master_name
    await trio.send(b"safe")
    await until(trio.are_equal, SECONDS)
    end = trio.master.store.log.end
    # Nobody can leave the set, and nobody acknowledges.
    trio.controller.is_silent = True
    for other in trio.brokers.keys() - {name}:
        await trio.cluster.stop(other)
    async with client.Producer(trio.cluster.nameserver) as producer:
        receipt = await producer.send("Safe", b"lost")
    assert receipt.status is client.SendStatus.FLUSH_SLAVE_TIMEOUT
    assert trio.master.store.log.end > end
    await trio.cluster.stop(name)
    trio.controller.is_silent = False
    await trio.start(*sorted({"a", "b", "c"} - {name}))
    await trio.send(b"kept")
    await trio.start(name)
    await until(trio.are_equal, SECONDS)
    store = trio.brokers[name].store
    assert await store.cold_reads.record_at(trio, end) is not None
    await trio.cluster.stop(name)
    assert b"lost" not in (store.paths.commit_log / f"{0:020}").read_bytes()


async def test_a_master_whose_disk_hangs_is_silent_and_succeeded(trio: Trio) -> None:
    disk = SlowDisk()
    hung = StoreLimits(hung_sync_seconds=0.5)
    await trio.start("a", files=disk, store_limits=hung, flushDiskType="SYNC_FLUSH")
    await trio.start("b", "c")
    await trio.send(b"before")
    old, model = trio.master, trio.controller.model
    assert (trio.master_name, old.state.group and old.state.group.problem) == ("a", None)
    disk.gate.clear()
    sending = asyncio.create_task(trio.send(b"hangs"))
    assert model.master is not None
    await until(lambda: max(model.alive.values()) - model.alive[model.master] > 3, SECONDS)
    assert old.state.group is not None
    assert "the disk hangs" in (old.state.group.problem or "")
    model.closed(model.master)  # as the controller's scan does later
    trio.controller.tell()
    disk.gate.set()
    await trio.settled()
    assert trio.master is not old
    await asyncio.gather(sending, return_exceptions=True)
    await trio.send(b"after")
    await until(trio.are_equal, SECONDS)
    assert old.state.group.problem is None


async def test_sends_are_refused_while_too_few_are_in_sync(trio: Trio) -> None:
    await trio.start("a")
    await trio.refused("in-sync replicas not enough: 1 of at least 2")
    assert trio.master.store.log.end == 0
    await trio.start("b")
    await trio.send(b"together")


async def test_one_replica_is_enough_if_the_operator_says_so(trio: Trio) -> None:
    await trio.start("a", minInSyncReplicas="1")
    receipt = await trio.send(b"alone")
    assert receipt.status is client.SendStatus.OK


async def test_a_store_joins_a_group_with_what_it_has(trio: Trio) -> None:
    broker = await trio.cluster.start("a", limits=QUICK, brokerName="broker-a")
    await trio.send(b"before")
    end = broker.store.log.end
    await trio.cluster.stop("a")
    await trio.start("a", "b")
    await until(trio.are_equal, SECONDS)
    assert trio.master.store.log.end == end
    assert trio.master_name == "a"


async def test_tools_ask_for_epochs_and_slaves(trio: Trio) -> None:
    await trio.start("a", "b")
    await trio.send(b"one")
    answer = await trio.ask(trio.master, RequestCode.GET_BROKER_EPOCH_CACHE)
    cache = decode(EpochEntryCache, answer.body)
    assert (cache.broker_id, cache.broker_name) == (1, "broker-a")
    assert [(one.epoch, one.start_offset) for one in cache.epoch_list] == [(1, 0)]
    assert cache.max_offset == trio.master.store.log.end
    status = decode(
        HARuntimeInfo, (await trio.ask(trio.master, RequestCode.GET_BROKER_HA_STATUS)).body
    )
    assert (status.master, status.in_sync_slave_nums) == (True, 1)


async def test_nobody_switches_a_group_by_hand(trio: Trio) -> None:
    await trio.start("a")
    for code in (OwnRequestCode.HAND_OVER, OwnRequestCode.PROMOTE):
        answer = await trio.ask(trio.master, code)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "the controller elects" in (answer.remark or "")


async def test_with_accounts_the_brokers_let_each_other_in_and_nobody_else(
    trio: Trio, tmp_path: Path
) -> None:
    keys = {"accessKey": "operator", "secretKey": "secret-of-operator"}
    accounts, credentials = tmp_path / "accounts.yml", tmp_path / "keys.yml"
    accounts.write_bytes(dump({"accounts": [{**keys, "admin": True}]}))
    credentials.write_bytes(dump(keys))
    credentials.chmod(0o600)
    settings = {
        "aclEnable": "true",
        "pocketmqAclFile": str(accounts),
        "pocketmqCredentials": str(credentials),
        "autoCreateTopicEnable": "true",
    }
    await trio.start("a", "b", **settings)
    port = trio.brokers[trio.master_name].config.ha_listen_port
    for token in (b"", TOKEN.pack(-1)):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(token + SLAVE_HELLO.pack(HANDSHAKE, 0, 0, 2))
        async with asyncio.timeout(SECONDS):
            assert await reader.read() == b""
        writer.close()
    operator = client.Credentials("operator", "secret-of-operator")
    async with client.Producer(
        trio.cluster.nameserver, require_durable=True, credentials=operator
    ) as producer:
        await producer.send("Safe", b"for both")


async def test_a_master_whose_port_is_taken_ends_and_leads_when_it_starts_again(
    trio: Trio,
) -> None:
    await trio.start("a", "b")
    await trio.send(b"1")
    old = trio.master_name
    (other,) = trio.brokers.keys() - {old}
    elected, port = trio.brokers[other], trio.ports[other]
    async with await asyncio.start_server(lambda *_: None, "127.0.0.1", int(port)):
        await trio.cluster.stop(old)
        with pytest.raises(BindFailed, match=port):
            async with asyncio.timeout(SECONDS):
                await elected.failed
        await trio.cluster.stop(other)
        assert not is_open(elected.store.paths.root)
    await trio.start(other, old)
    assert trio.master_name == other
    await trio.send(b"2")


async def test_a_slave_whose_master_has_no_address_goes_on_when_it_has_one(trio: Trio) -> None:
    await trio.start("a", "b")
    await trio.send(b"1")
    old, model = trio.master, trio.controller.model
    assert model.master is not None
    (slave,) = [broker for broker in trio.brokers.values() if broker is not old]

    def move(address: str) -> None:
        assert model.master is not None
        model.addresses[model.master] = address
        model.epoch, model.members_epoch = model.epoch + 1, model.members_epoch + 1
        model.notices = list(model.addresses)
        trio.controller.tell()

    def why() -> str:
        replica = slave.state.replica if slave.serving else None
        return (replica and replica.state.problem) or ""

    move("10.0.0.1")
    await until(lambda: "this is not host:port" in why(), SECONDS)
    # It also asks for tables, each half second.
    await asyncio.wait([slave.failed], timeout=1)
    assert not slave.failed.done()
    move(old.address)
    await until(trio.are_equal, SECONDS)
    await trio.settled()
    await trio.send(b"2")
    await until(trio.are_equal, SECONDS)


async def test_the_identity_of_another_broker_is_refused(trio: Trio, tmp_path: Path) -> None:
    await trio.start("a")
    await trio.cluster.stop("a")
    assert (tmp_path / "a" / "brokerIdentity").read_text() == "DefaultCluster#broker-a#1"
    (tmp_path / "a" / "brokerIdentity").write_text("DefaultCluster#broker-b#1")
    with pytest.raises(StartError, match="this store is that of broker"):
        await trio.start("a")


async def test_a_damaged_epoch_file_is_refused(trio: Trio, tmp_path: Path) -> None:
    await trio.start("a")
    await trio.cluster.stop("a")
    (tmp_path / "a" / "epochFileCheckpoint").write_text("2\n0\n1-0\n")
    with pytest.raises(StartError, match="put back a good copy"):
        await trio.start("a")


async def test_a_master_delivers_the_timers_of_the_one_between(trio: Trio) -> None:
    await trio.start("a", "b", minInSyncReplicas="1")
    first = trio.master_name
    await trio.send(b"early", delay=0.01)
    await trio.cluster.stop(first)
    await trio.settled()
    second = trio.master_name
    await trio.send(b"late", delay=3.0)
    await trio.start(first, minInSyncReplicas="1")
    await until(trio.are_equal, SECONDS)
    # What it has of the time when it was the master lacks the second message.
    wheel = trio.brokers[first].store.paths.root / "timerwheel"
    await until(lambda: not wheel.exists(), SECONDS)
    await trio.cluster.stop(second)
    await trio.settled()
    async with client.PullConsumer(trio.cluster.nameserver, group="readers") as consumer:
        queues = await consumer.queues("Safe")
        consumer.assign(queues)
        for queue in queues:
            await consumer.seek(queue, client.BEGIN)
        found: set[bytes] = set()
        async with asyncio.timeout(SECONDS):
            while b"late" not in found:
                found |= {one.body for one in await consumer.get_many(10, timeout=1.0)}

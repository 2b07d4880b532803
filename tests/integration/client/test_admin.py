"""``Admin`` at our name server and brokers."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec import structs

import client
from client.admin import shared_admin
from client.network.context import ClientContext
from client.network.remote import Remote
from remoting.protocol.codes import RequestCode
from remoting.protocol.command import Command
from remoting.protocol.headers.pull import ResetOffsetRequestHeader
from tests.harness.cluster import Cluster
from tests.support.ports import free_port
from tests.support.relay import Relay


def queue(number: int, broker: str = "broker-a") -> client.MessageQueue:
    return client.MessageQueue("T", broker, number)


async def test_topics_are_created_changed_listed_and_deleted(admin: client.Admin):
    await admin.create_topic("Orders", queues=3, permission="r")
    config = (await admin.topic_config("Orders"))["broker-a"]
    assert (config.read_queue_nums, config.write_queue_nums, config.perm) == (3, 3, 4)
    await admin.update_topic("Orders", write_queues=5, permission="rw")
    config = (await admin.topic_config("Orders"))["broker-a"]
    assert (config.read_queue_nums, config.write_queue_nums, config.perm) == (3, 5, 6)
    await admin.update_topic("Orders", queues=6, order=True)
    config = (await admin.topic_configs((await admin.brokers())[0].address))["Orders"]
    assert (config.read_queue_nums, config.write_queue_nums, config.order) == (6, 6, True)
    assert await admin.topics() == ["Orders", "T"]
    assert {"TBW102", "Orders", "broker-a"} <= set(await admin.topics(internal=True))
    route = await admin.topic_route("Orders")
    assert route.queue_datas[0].read_queue_nums == 6
    await admin.delete_topic("Orders")
    assert await admin.topics() == ["T"]
    with pytest.raises(client.TopicNotFound):
        await admin.topic_config("Orders")


async def test_an_update_leaves_a_topics_attributes_alone(admin: client.Admin):
    attributes = {"+message.type": "FIFO", "+cleanup.policy": "DELETE"}
    await admin.create_topic("Orders", queues=3, attributes=attributes)
    await admin.update_topic("Orders", queues=6)
    config = (await admin.topic_config("Orders"))["broker-a"]
    assert config.write_queue_nums == 6
    assert config.attributes == {"message.type": "FIFO", "cleanup.policy": "DELETE"}
    await admin.create_topic("Orders", queues=6, attributes={"-message.type": ""})
    config = (await admin.topic_config("Orders"))["broker-a"]
    assert config.attributes == {"cleanup.policy": "DELETE"}


async def test_a_topic_that_a_send_created_at_one_broker_is_created_at_the_others_of_its_cluster(
    cluster: Any, admin: client.Admin
):
    await cluster.start("broker-b")
    await admin.create_topic("Elsewhere", queues=1, brokers=["broker-b"])
    assert await admin.brokers_without("Elsewhere") == ["broker-a"]
    attributes = {"+message.type": "FIFO"}
    await admin.create_topic(
        "One", queues=3, order=True, brokers=["broker-b"], attributes=attributes
    )
    await admin.update_topic("One", write_queues=2)
    assert await admin.brokers_without("One") == ["broker-a"]
    await admin.update_topic("One", permission="r", everywhere=True)
    assert await admin.brokers_without("One") == []
    configs = await admin.topic_config("One")
    assert configs["broker-a"] == configs["broker-b"]
    one = configs["broker-a"]
    assert (one.read_queue_nums, one.write_queue_nums, one.perm, one.order) == (3, 2, 4, True)
    assert one.attributes == {"message.type": "FIFO"}
    with pytest.raises(client.TopicNotFound):
        await admin.brokers_without("Nothing")


async def test_bad_topics_are_refused_without_a_request(admin: client.Admin):
    for arguments in ({"queues": 0}, {"permission": "x"}, {"brokers": ["nobody"]}):
        with pytest.raises(client.UsageError):
            await admin.create_topic("Orders", **arguments)  # type: ignore[arg-type] # mixed
    with pytest.raises(client.UsageError):
        await admin.create_topic("a b")
    with pytest.raises(client.NoRoute, match="cluster Nowhere"):
        await admin.create_topic("Orders", cluster="Nowhere")


async def test_offsets_and_times_of_queues(cluster: Any, admin: client.Admin):
    before = datetime.now(UTC) - timedelta(seconds=1)
    async with client.Producer(cluster.nameserver) as producer:
        for number in range(5):
            await producer.send("T", b"%d" % number, queue=queue(0))
    assert len(await admin.queues("T")) == 4
    assert (await admin.min_offset(queue(0)), await admin.max_offset(queue(0))) == (0, 5)
    assert await admin.search_offset(queue(0), before) == 0
    earliest = await admin.earliest_stored_at(queue(0))
    assert earliest is not None
    assert before < earliest
    assert await admin.earliest_stored_at(queue(1)) is None
    stats = await admin.topic_stats("T")
    assert (stats[queue(0)].min_offset, stats[queue(0)].max_offset) == (0, 5)
    assert len(stats) == 4


async def test_committed_offsets_and_lag(cluster: Any, admin: client.Admin):
    async with client.Producer(cluster.nameserver) as producer:
        await producer.send_many([client.Message("T", b"x", queue=queue(n % 2)) for n in range(10)])
    assert await admin.committed("g", "T") == {queue(n): None for n in range(4)}
    await admin.commit("g", {queue(0): 2, queue(1): 5})
    assert (await admin.committed("g", "T"))[queue(0)] == 2
    lag = await admin.lag("g")
    assert lag.total == 3
    assert (lag.queues[queue(0)].end, lag.queues[queue(0)].committed) == (5, 2)
    assert lag.queues[queue(1)].messages == 0
    assert (await admin.lag("g", topic="T")).total == 3
    [broker] = await admin.brokers()
    assert (await admin.all_offsets(broker.address))["T@g"] == {0: 2, 1: 5}
    assert "g" in await admin.groups_of("T")


async def test_groups_are_created_listed_and_deleted(admin: client.Admin):
    await admin.create_group("g", max_retries=3, retry_queues=2, broadcast=False)
    config = (await admin.group_config("g"))["broker-a"]
    assert (config.retry_max_times, config.retry_queue_nums) == (3, 2)
    assert not config.consume_broadcast_enable
    assert await admin.groups() == ["g"]
    assert "TOOLS_CONSUMER" in await admin.groups(internal=True)
    await admin.commit("g", {queue(0): 1})
    await admin.delete_group("g", remove_offsets=True)
    assert await admin.groups() == []
    assert (await admin.committed("g", "T"))[queue(0)] is None
    with pytest.raises(client.UsageError):
        await admin.create_group("g", max_retries=-1)


async def test_updating_a_group_changes_only_the_given_settings(admin: client.Admin):
    await admin.create_group("g", max_retries=3, retry_queues=2, consume=False, broadcast=False)
    before = (await admin.group_config("g"))["broker-a"]
    await admin.create_group("g")
    assert (await admin.group_config("g"))["broker-a"] == before
    await admin.create_group("g", max_retries=0)
    changed = (await admin.group_config("g"))["broker-a"]
    assert changed == structs.replace(before, retry_max_times=0)


class OlderRemote(Remote):
    """Requests to brokers of 4.9, which don't serve some."""

    async def call(self, address: str, code: int, *args: Any, **kwargs: Any) -> Command:
        if code in {RequestCode.GET_TOPIC_CONFIG, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG}:
            raise client.NotSupported("as 4.9 does")
        return await super().call(address, code, *args, **kwargs)


class OlderContext(ClientContext):
    async def start(self) -> None:
        await super().start()
        self.remote = OlderRemote(self.remote.pool, self.remote.serialize, self.remote.timeout)


async def test_requests_that_an_older_broker_lacks_are_answered_from_its_lists(cluster: Any):
    context = OlderContext(cluster.nameserver, {})
    await context.start()
    admin = shared_admin(context)
    await admin.create_group("g")
    assert (await admin.topic_config("T"))["broker-a"].read_queue_nums == 4
    assert (await admin.group_config("g"))["broker-a"].group_name == "g"
    with pytest.raises(client.GroupNotFound):
        await admin.group_config("nobody")
    await context.close()


async def test_brokers_and_their_state(admin: client.Admin):
    [broker] = await admin.brokers()
    assert (broker.cluster, broker.name, broker.id) == ("DefaultCluster", "broker-a", 0)
    assert list((await admin.cluster()).broker_addr_table) == ["broker-a"]
    assert "bootTimestamp" in await admin.broker_runtime(broker.address)
    assert (await admin.broker_config(broker.address))["brokerName"] == "broker-a"
    assert "TBW102" in await admin.system_topics(broker.address)
    assert await admin.brokers(cluster="Other") == []
    with pytest.raises(client.UsageError, match="there are broker-a"):
        await admin.brokers(names=["broker-b"])


async def test_a_broker_whose_write_permission_is_wiped_gets_no_sends(
    cluster: Any, admin: client.Admin
):
    await cluster.start("broker-b")
    await admin.create_topic("Both", queues=2)
    assert await admin.wipe_write_permission("broker-a") > 0
    async with client.Producer(cluster.nameserver) as producer:
        receipts = await asyncio.gather(
            *(producer.send("Both", b"x", delay_level=0) for _ in range(4))
        )
        receipts += [await producer.send("Both", b"x") for _ in range(4)]
    assert {receipt.queue.broker_name for receipt in receipts} == {"broker-b"}
    assert await admin.add_write_permission("broker-a") > 0


async def test_key_value_configuration(admin: client.Admin):
    assert await admin.get_kv("ns", "k") is None
    assert await admin.kv("ns") == {}
    await admin.put_kv("ns", "k", "grüße")
    assert await admin.get_kv("ns", "k") == "grüße"
    assert await admin.kv("ns") == {"k": "grüße"}
    await admin.delete_kv("ns", "k")
    assert await admin.get_kv("ns", "k") is None


async def test_connections_are_listed(cluster: Any, admin: client.Admin):
    async with client.Instance(cluster.nameserver) as mq:
        await mq.producer(group="senders").send("T", b"x")
        [connection] = await admin.producer_connections("senders")
        assert connection.client_id == mq.client_id
        assert connection.language == "PYTHON"
    assert await admin.producer_connections("nobody") == []
    with pytest.raises(client.NotOnline):
        await admin.consumer_connections("nobody")


async def test_an_unreachable_broker_is_named(cluster: Any, admin: client.Admin):
    with pytest.raises(client.BrokerUnreachable, match=r"127\.0\.0\.1:1"):
        await admin.broker_runtime("127.0.0.1:1")


async def test_a_silent_broker_is_a_timeout(fake: Any):
    fake.on(RequestCode.GET_BROKER_RUNTIME_INFO, answer=lambda command, connection: None)
    async with client.Admin(fake.address, request_timeout=0.5) as admin:
        with pytest.raises(client.RequestTimeout, match="GET_BROKER_RUNTIME_INFO"):
            await admin.broker_runtime(fake.address)


async def test_a_commit_replaces_a_reset_that_no_member_has_noticed(fake: Any) -> None:
    fake.on(
        RequestCode.UPDATE_CONSUMER_OFFSET,
        answer=lambda command, _: command.reply(0, "Offset has been previously reset"),
    )
    queue = client.MessageQueue("T", fake.name, 2)
    async with client.Admin(fake.address) as admin:
        await admin.commit("g", {queue: 7})
    [reset] = [one for one in fake.seen if one.code == RequestCode.INVOKE_BROKER_TO_RESET_OFFSET]
    header = reset.read(ResetOffsetRequestHeader)
    assert (header.topic, header.group, header.queue_id, header.offset) == ("T", "g", 2, 7)


async def test_an_unreadable_answer_is_an_error_that_names_it(fake: Any):
    fake.on(
        RequestCode.GET_BROKER_RUNTIME_INFO,
        answer=lambda command, connection: command.reply(body=b"{{{"),
    )
    async with client.Admin(fake.address) as admin:
        with pytest.raises(client.RemoteError, match="GET_BROKER_RUNTIME_INFO"):
            await admin.broker_runtime(fake.address)


async def test_use_before_the_start_or_after_the_close_is_an_error(cluster: Any):
    admin = client.Admin(cluster.nameserver)
    with pytest.raises(client.UsageError, match="not started"):
        await admin.topics()
    await admin.start()
    await admin.start()
    await admin.close()
    with pytest.raises(client.UsageError, match="closed"):
        await admin.topics()
    with pytest.raises(client.UsageError, match="closed"):
        await admin.start()


async def test_clients_use_the_port_that_a_broker_advertises(empty_cluster: Cluster):
    port = free_port()
    async with Relay(f"127.0.0.1:{port}") as relay:
        published = relay.address.rpartition(":")[2]
        settings = {"listenPort": str(port), "pocketmqAdvertisedPort": published}
        await empty_cluster.start(**settings)
        async with client.Instance(empty_cluster.nameserver, request_timeout=10.0) as mq:
            admin = mq.admin()
            assert [broker.address for broker in await admin.brokers()] == [relay.address]
            receipt = await mq.producer().send("T", b"x")
            assert receipt.offset_id is not None
            assert (await admin.message(receipt.offset_id)).body == b"x"

"""Finding single messages by key and by id, over real sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import client
from remoting.pool import ConnectionPool
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.headers.admin import RegisterBrokerRequestHeader


@pytest.fixture
async def admin(cluster: Any) -> AsyncIterator[client.Admin]:
    async with client.Admin(cluster.nameserver) as made:
        await made.create_topic("T", queues=2)
        yield made


async def send(cluster: Any, *messages: client.Message) -> list[client.Receipt]:
    async with client.Producer(cluster.nameserver, group="p") as producer:
        return [await producer.send(message) for message in messages]


def bodies(messages: list[client.ReceivedMessage[bytes]]) -> list[bytes]:
    return [message.body for message in messages]


async def test_messages_are_found_by_each_of_their_keys(cluster: Any, admin: client.Admin) -> None:
    await send(
        cluster,
        client.Message("T", b"one", keys=["a", "b"]),
        client.Message("T", b"two", keys=["b"], tag="paid"),
    )
    assert bodies(await admin.find_messages("T", "a")) == [b"one"]
    found = await admin.find_messages("T", "b")
    assert bodies(found) == [b"one", b"two"]
    assert (found[1].tag, found[1].keys, found[1].topic) == ("paid", ["b"], "T")
    assert bodies(await admin.find_messages("T", "b", limit=1)) == [b"two"]
    assert await admin.find_messages("T", "c") == []


async def test_a_time_range_excludes_other_messages(cluster: Any, admin: client.Admin) -> None:
    await send(cluster, client.Message("T", b"one", keys=["a"]))
    hour, now = timedelta(hours=1), datetime.now(UTC)
    assert await admin.find_messages("T", "a", end=now - hour) == []
    assert await admin.find_messages("T", "a", begin=now + hour) == []
    assert len(await admin.find_messages("T", "a", begin=now - hour, end=now + hour)) == 1


async def test_a_message_is_returned_by_its_producers_id_and_by_the_brokers(
    cluster: Any, admin: client.Admin
) -> None:
    first, second = await send(cluster, client.Message("T", b"one"), client.Message("T", b"two"))
    message = await admin.message(second.id, topic="T")
    assert (message.body, message.queue, message.offset) == (b"two", second.queue, second.offset)
    place = message.offset_id
    assert (await admin.message(place)).body == b"two"
    assert (await admin.message(place, topic="T")).body == b"two"
    assert bodies(await admin.find_messages("T", first.id)) == [b"one"]


async def test_a_broker_with_an_impossible_address_hides_no_message(
    cluster: Any, admin: client.Admin
) -> None:
    (receipt,) = await send(cluster, client.Message("T", b"one"))
    header = RegisterBrokerRequestHeader(
        broker_name="a-broker",
        broker_addr="a..b:10911",
        cluster_name="DefaultCluster",
        ha_server_addr="",
        broker_id=0,
    )
    request = Command.request(RequestCode.REGISTER_BROKER, header)
    async with ConnectionPool() as pool:
        answer = await pool.request(cluster.nameserver, request, timeout=30)
        assert answer.code == ResponseCode.SUCCESS
        assert "a..b:10911" in {broker.address for broker in await admin.brokers()}
        assert (await admin.message(receipt.offset_id)).body == b"one"


async def test_missing_messages_are_not_found(cluster: Any, admin: client.Admin) -> None:
    (receipt,) = await send(cluster, client.Message("T", b"one"))
    message = await admin.message(receipt.id, topic="T")
    nowhere = message.offset_id[:-16] + "7" + "F" * 15
    for wanted, topic in ((nowhere, None), (nowhere, "T"), ("no-id", "T"), ("F" * 32, "T")):
        with pytest.raises(client.NotFound, match="there is no message"):
            await admin.message(wanted, topic=topic)
    await admin.create_topic("U")
    with pytest.raises(client.NotFound, match="in topic U"):
        await admin.message(message.offset_id, topic="U")


async def test_invalid_arguments_are_usage_errors(cluster: Any, admin: client.Admin) -> None:
    (receipt,) = await send(cluster, client.Message("T", b"one"))
    with pytest.raises(client.UsageError, match="give its topic"):
        await admin.message("no-id")
    with pytest.raises(client.UsageError, match="give the topic too"):
        await admin.message(receipt.id)
    with pytest.raises(client.UsageError, match="can't be empty"):
        await admin.find_messages("T", "")
    with pytest.raises(client.UsageError, match="1 or more"):
        await admin.find_messages("T", "a", limit=0)
    with pytest.raises(client.TopicNotFound):
        await admin.find_messages("NoSuchTopic", "a")

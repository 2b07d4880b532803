"""A message that an administrator has a consumer handle now (``queryMsgById -g … -d …``)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

import client
from remoting.pool import ConnectionPool
from remoting.protocol.bodies import decode
from remoting.protocol.bodies.stats import GetConsumerListByGroupResponseBody
from remoting.protocol.codes import RequestCode
from remoting.protocol.command import Command
from remoting.protocol.headers.group import (
    ConsumeMessageDirectlyResultRequestHeader,
    ConsumerGroupRequestHeader,
)
from tests.integration.client.pushing import consumer

TIMEOUT = 20.0
NOTHING = {"T": "another"}
"""A subscription that none of the messages matches."""

Ask = Callable[..., Any]


@pytest.fixture
async def ask(cluster: Any) -> AsyncIterator[Ask]:
    """Has the member of the group ``g`` handle the message with an id; returns the answer."""
    pool = ConnectionPool()
    async with client.Admin(cluster.nameserver) as admin:
        (broker,) = await admin.brokers()

    async def make(message_id: str | None, body: bytes = b"") -> Command:
        connection = await pool.get(broker.address)
        header = ConsumerGroupRequestHeader(consumer_group="g")
        reply = await connection.request(
            Command.request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, header), timeout=TIMEOUT
        )
        (member,) = decode(GetConsumerListByGroupResponseBody, reply.body).consumer_id_list
        header = ConsumeMessageDirectlyResultRequestHeader(
            consumer_group="g", client_id=member, msg_id=message_id
        )
        request = Command.request(RequestCode.CONSUME_MESSAGE_DIRECTLY, header, body=body)
        return await connection.request(request, timeout=TIMEOUT)

    yield make
    await pool.close()


async def sent(cluster: Any, body: bytes) -> str:
    async with client.Producer(cluster.nameserver) as producer:
        receipt = await producer.send(client.Message("T", body, tag="paid"))
        assert receipt.offset_id is not None
        return receipt.offset_id


def result_of(reply: Command) -> dict[str, Any]:
    assert reply.code == 0, reply.remark
    result: dict[str, Any] = json.loads(bytes(reply.body))
    assert result.pop("spentTimeMills") >= 0
    return result


async def test_the_handler_gets_the_message_and_its_outcome_is_answered(
    cluster: Any, ask: Ask
) -> None:
    seen: list[client.ReceivedMessage[bytes]] = []

    async def handle(message: client.ReceivedMessage[bytes]) -> None:
        if message.body == b"later":
            raise client.RetryLater(5)
        if message.body == b"bad":
            raise ValueError("no such account")
        if message.body == b"dead":
            message.dead_letter("unknown")
            return
        seen.append(message)

    ids = {body: await sent(cluster, body) for body in (b"good", b"later", b"bad", b"dead")}
    # The group doesn't subscribe to their tag: whatever it handles, it was asked to.
    async with consumer(cluster, handle, subscribe=NOTHING):
        good = result_of(await ask(ids[b"good"]))
        assert good == {"autoCommit": True, "consumeResult": "CR_SUCCESS", "order": False}
        (message,) = seen
        assert (message.topic, message.tag, message.queue.topic) == ("T", "paid", "T")
        later = result_of(await ask(ids[b"later"]))
        assert later["consumeResult"] == "CR_LATER"
        bad = result_of(await ask(ids[b"bad"]))
        assert bad["consumeResult"] == "CR_THROW_EXCEPTION"
        assert bad["remark"] == "ValueError('no such account')"
        dead = result_of(await ask(ids[b"dead"]))
        assert (dead["consumeResult"], dead["remark"]) == ("CR_LATER", "unknown")


async def test_the_admin_takes_either_id_and_names_what_is_missing(cluster: Any) -> None:
    offset_id = await sent(cluster, b"good")
    async with (
        client.Admin(cluster.nameserver) as admin,
        consumer(cluster, lambda _: None, subscribe=NOTHING),
    ):
        [member] = await admin.members("g")
        own_id = (await admin.message(offset_id)).id
        for message_id, topic in ((offset_id, None), (own_id, "T")):
            done = await admin.consume_directly("g", member.client_id, message_id, topic=topic)
            assert done.consume_result == "CR_SUCCESS"
        with pytest.raises(client.RemoteError, match="not online"):
            await admin.consume_directly("g", "nobody", offset_id)
        with pytest.raises(client.NotFound):
            await admin.consume_directly("g", member.client_id, "0" * 32, topic="T")


async def test_an_orderly_handler_in_a_thread_may_answer_too(cluster: Any, ask: Ask) -> None:
    def handle(message: client.ReceivedMessage[bytes]) -> object:
        return client.ROLLBACK if message.body == b"back" else client.COMMIT

    ids = [await sent(cluster, body) for body in (b"back", b"go")]
    order = client.Orderly(auto_commit=False)
    options = {"subscribe": NOTHING, "order": order}
    async with consumer(cluster, handle, **options):
        results = [result_of(await ask(one)) for one in ids]
    assert [one["consumeResult"] for one in results] == ["CR_ROLLBACK", "CR_COMMIT"]
    assert [(one["order"], one["autoCommit"]) for one in results] == [(True, False)] * 2


async def test_a_consumer_without_a_handler_refuses(cluster: Any, ask: Ask) -> None:
    message_id = await sent(cluster, b"x")
    async with consumer(cluster, None, subscribe=NOTHING):
        reply = await ask(message_id)
    assert reply.code == 1
    assert "has no handler" in (reply.remark or "")


async def test_a_message_that_cannot_be_read_is_an_error(cluster: Any, ask: Ask) -> None:
    seen: list[Any] = []
    async with consumer(cluster, seen.append):
        reply = await ask(None, b"no record")
    assert reply.code == 1
    assert (reply.remark or "").startswith("the message can't be read: ")
    assert seen == []


async def test_more_than_it_takes_at_a_time_is_refused(
    cluster: Any, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("client.group.member.MAX_HANDLED_NOW", 1)
    began, may_end = asyncio.Event(), asyncio.Event()

    async def handle(_: Any) -> None:
        began.set()
        await may_end.wait()

    message_id = await sent(cluster, b"x")
    async with consumer(cluster, handle, subscribe=NOTHING):
        first = asyncio.create_task(ask(message_id))
        await began.wait()
        reply = await ask(message_id)
        assert (reply.code, reply.remark) == (
            2,
            "the consumer handles 1 messages of administrators already",
        )
        may_end.set()
        assert result_of(await first)["consumeResult"] == "CR_SUCCESS"

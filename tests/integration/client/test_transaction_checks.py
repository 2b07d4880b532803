"""What a producer does when a broker refuses, asks about what it can't answer, or asks too often.

The broker is a scripted peer.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from typing import Any

import pytest

import client
from client.producer import transactions
from remoting.connection import Connection
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.headers.send import (
    CheckTransactionStateRequestHeader,
    EndTransactionRequestHeader,
    SendMessageResponseHeader,
)
from remoting.protocol.message import ids, properties
from remoting.protocol.message.record import COMPRESSED, encode_record, host_bytes
from tests.support.waiting import until

State = client.TransactionState
HOST = host_bytes("127.0.0.1", 10911)


def half_message(own: dict[str, str], body: bytes = b"x", sys_flag: int = 0) -> bytes:
    return encode_record(
        topic="T",
        body=body,
        properties=properties.encode(own),
        born_host=HOST,
        store_host=HOST,
        sys_flag=sys_flag,
    )


class Asking:
    """A scripted broker that asks about transactions on the connection of the last heartbeat."""

    def __init__(self, peer: Any) -> None:
        self.peer = peer
        self.connections: list[Connection] = []
        self.ends: list[EndTransactionRequestHeader] = []
        self.refuses = False
        peer.on(RequestCode.HEART_BEAT, answer=self._beat)
        peer.on(RequestCode.END_TRANSACTION, answer=self._end)
        peer.on_send(self._store)

    def _beat(self, command: Command, connection: Connection) -> Command:
        self.connections.append(connection)
        return command.reply()

    def _end(self, command: Command, _: Connection) -> Command | None:
        self.ends.append(command.read(EndTransactionRequestHeader))
        if command.is_oneway:
            return None
        if self.refuses:
            return command.reply(ResponseCode.SYSTEM_ERROR, "not found")
        return command.reply()

    def _store(self, command: Command, _: Connection) -> Command:
        header = SendMessageResponseHeader(
            msg_id=ids.offset_id_of(HOST, 4711), queue_id=0, queue_offset=3
        )
        return command.reply(header=header)

    async def ask(
        self,
        offset: int,
        *,
        group: str = "orders",
        key: str = "",
        record: bytes | None = None,
        bare: bool = False,
    ) -> None:
        """Ask about the half message at a queue offset, or with another record or no header."""
        await until(lambda: self.connections)
        own = {properties.PGROUP: group, properties.UNIQ_KEY: key or f"key {offset}"}
        header = CheckTransactionStateRequestHeader(
            tran_state_table_offset=offset, commit_log_offset=100 + offset
        )
        request = Command.request(
            RequestCode.CHECK_TRANSACTION_STATE,
            None if bare else header,
            body=half_message(own) if record is None else record,
            oneway=True,
        )
        self.connections[-1].send_oneway(request)

    async def answered(self, count: int) -> list[tuple[int, int]]:
        """Offsets and states of the answers, once there are so many."""
        await until(lambda: len(self.ends) >= count)
        return [(end.tran_state_table_offset, end.commit_or_rollback) for end in self.ends]


@pytest.fixture
def asking(fake: Any) -> Asking:
    return Asking(fake)


def producer(asking: Asking, checker: Callable[..., Any], **options: Any) -> client.Producer[bytes]:
    return client.Producer(
        asking.peer.address, group="orders", transaction_checker=checker, **options
    )


def unexpected(transaction: client.OpenTransaction[Any]) -> State:
    raise AssertionError(f"asked about {transaction}")


async def roll_back(_: client.OpenTransaction[Any]) -> State:
    return State.ROLLBACK


async def commit(_: client.OpenTransaction[Any]) -> State:
    return State.COMMIT


async def test_a_decision_that_the_broker_refuses_is_given_again_when_it_asks(asking):
    asking.refuses = True
    async with producer(asking, unexpected) as sender:
        transaction = sender.transaction("T", b"x")
        await transaction.start()
        assert not await transaction.commit()
        assert (transaction.state, transaction.confirmed) == (State.COMMIT, False)
        await asking.ask(7, key=transaction.id)
        assert await asking.answered(2) == [(3, State.COMMIT), (7, State.COMMIT)]
    assert [end.from_transaction_check for end in asking.ends] == [False, True]
    assert asking.ends[1].commit_log_offset == 107


async def test_a_decision_that_the_broker_refused_is_made_once_more_on_request(asking):
    asking.refuses = True
    async with producer(asking, unexpected) as sender:
        transaction = sender.transaction("T", b"x")
        await transaction.start()
        assert not await transaction.rollback()
        asking.refuses = False
        assert await transaction.rollback()
    assert transaction.confirmed


async def test_a_check_during_the_block_is_answered_unknown_without_the_checker(asking):
    async with producer(asking, roll_back) as sender:
        async with sender.transaction("T", b"x") as transaction:
            await asking.ask(7, key=transaction.id)
            assert await asking.answered(1) == [(7, State.UNKNOWN)]
        assert await asking.answered(2) == [(7, State.UNKNOWN), (3, State.COMMIT)]


async def test_the_checker_decides_about_a_transaction_that_the_application_has_dropped(asking):
    async with producer(asking, roll_back) as sender:
        transaction = sender.transaction("T", b"x")
        await transaction.start()
        key = transaction.id
        del transaction
        gc.collect()
        await asking.ask(7, key=key)
        assert await asking.answered(1) == [(7, State.ROLLBACK)]


async def test_a_check_for_a_group_that_nobody_has_is_left_to_others(asking):
    async with producer(asking, commit) as sender:
        await sender.send("T", b"hello")
        await asking.ask(1, group="strangers")
        await asking.ask(2)
        assert await asking.answered(1) == [(2, State.COMMIT)]


async def test_a_producer_without_a_checker_leaves_checks_to_the_next_of_its_group(asking):
    async with (
        client.Instance(asking.peer.address) as mq,
        mq.producer(group="orders") as first,
        mq.producer(group="orders", transaction_checker=commit),
    ):
        await first.send("T", b"hello")
        await asking.ask(1)
        assert await asking.answered(1) == [(1, State.COMMIT)]


@pytest.mark.parametrize(
    "record",
    [b"", b"\0" * 99, half_message({properties.PGROUP: "orders"})[:-5]],
    ids=["empty", "zeros", "cut off"],
)
async def test_a_check_whose_record_is_damaged_is_passed_over(asking, record, caplog):
    async with producer(asking, commit) as sender:
        await sender.send("T", b"hello")
        await asking.ask(1, record=record)
        await asking.ask(2)
        assert await asking.answered(1) == [(2, State.COMMIT)]
    assert "the message of a transaction check can't be read" in caplog.text


async def test_a_check_without_offsets_is_passed_over(asking, caplog):
    async with producer(asking, commit) as sender:
        await sender.send("T", b"hello")
        await asking.ask(1, bare=True)
        await asking.ask(2)
        assert await asking.answered(1) == [(2, State.COMMIT)]
    assert "a check of a transaction can't be read" in caplog.text


@pytest.mark.parametrize("interceptors", [[], [client.Interceptor()]], ids=["plain", "shown"])
async def test_a_body_that_can_not_be_read_is_unknown(asking, interceptors, caplog):
    record = half_message({properties.PGROUP: "orders"}, b"not zlib", COMPRESSED)
    async with producer(asking, commit, interceptors=interceptors) as sender:
        await sender.send("T", b"hello")
        await asking.ask(1, record=record)
        assert await asking.answered(1) == [(1, State.UNKNOWN)]
    assert "the transaction_checker failed; the broker will ask again" in caplog.text


async def test_a_check_whose_connection_is_gone_is_not_answered(asking, caplog):
    async def slow(_: client.OpenTransaction[Any]) -> State:
        gone = asking.connections[-1]
        gone.close()
        await until(lambda: asking.connections[-1] is not gone)
        return State.COMMIT

    async with producer(asking, slow, heartbeat_period=0.05) as sender:
        await sender.send("T", b"hello")
        await asking.ask(1)
        await until(lambda: "a transaction check is not answered" in caplog.text)
    assert asking.ends == []


async def test_more_checks_than_the_limit_are_left_for_later(asking, monkeypatch, caplog):
    monkeypatch.setattr(transactions, "MAX_CHECKS", 2)
    started: list[str] = []
    go_on = asyncio.Event()

    async def slow(transaction: client.OpenTransaction[Any]) -> State:
        started.append(transaction.id)
        await go_on.wait()
        return State.ROLLBACK

    async with producer(asking, slow) as sender:
        await sender.send("T", b"hello")
        for offset in range(3):
            await asking.ask(offset)
        await until(lambda: "too many transactions are being checked" in caplog.text)
        go_on.set()
        assert await asking.answered(2) == [(0, State.ROLLBACK), (1, State.ROLLBACK)]
        await asking.ask(2)
        assert (await asking.answered(3))[-1] == (2, State.ROLLBACK)
    assert started == ["key 0", "key 1", "key 2"]


async def test_a_producer_that_closes_ends_its_checks_unanswered(asking, caplog):
    running, cancelled = asyncio.Event(), asyncio.Event()

    async def endless(_: client.OpenTransaction[Any]) -> State:
        running.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
            # A check that comes now is for the other producers of the group.
            await asking.ask(2)
            await sender_saw(asking)
        raise AssertionError

    async with producer(asking, endless) as sender:
        await sender.send("T", b"hello")
        await asking.ask(1)
        await asyncio.wait_for(running.wait(), 10)
    assert cancelled.is_set()
    assert asking.ends == []
    assert "request failed" not in caplog.text


async def sender_saw(asking: Asking) -> None:
    """Return once the client has handled what the broker has sent on its connection so far."""
    request = Command.request(RequestCode.GET_CONSUMER_RUNNING_INFO)
    await asking.connections[-1].request(request, timeout=10)


async def test_the_checker_gets_the_message_as_it_was_sent(asking: Asking) -> None:
    seen: list[client.OpenTransaction[Any]] = []

    async def check(transaction: client.OpenTransaction[Any]) -> State:
        seen.append(transaction)
        return State.COMMIT

    async with producer(asking, check) as sender:
        await sender.send("T", b"hello")
        own = {
            properties.PGROUP: "orders",
            properties.UNIQ_KEY: "ID",
            properties.TRAN_MSG: "true",
            properties.TAGS: "paid",
            properties.KEYS: "a b",
            properties.SHARDING_KEY: "customer-7",
            properties.TRANSACTION_CHECK_TIMES: "2",
            "region": "eu",
        }
        await asking.ask(0, record=half_message(own, b"tea"))
        await asking.answered(1)
    (transaction,) = seen
    assert (transaction.id, transaction.checks) == ("ID", 2)
    assert transaction.message == client.Message(
        "T",
        b"tea",
        tag="paid",
        keys=("a", "b"),
        properties={"region": "eu"},
        sharding_key="customer-7",
    )

"""Messages are found by key, by unique id and by physical offset."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from broker.limits import BrokerLimits
from broker.store.limits import StoreLimits
from broker.store.results import PendingMessage
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.headers.query import (
    UNIQUE_KEY_QUERY,
    QueryMessageRequestHeader,
    ViewMessageRequestHeader,
)
from remoting.protocol.message.ids import parse_offset_id
from remoting.protocol.message.view import RecordView, iter_records
from tests.unit.broker.harness import Bench, fields_of
from tests.unit.broker.processors.replay import captured

TOPIC = "OneQueue"
FOREVER = 2**63 - 1
QUERY_AND_VIEW = "query_and_view.jsonl"


async def ask(bench: Bench, command: Command) -> Command:
    answer = bench.dispatch(command, bench.connection)
    found = await answer if isinstance(answer, Awaitable) else answer
    assert found is not None
    return found


async def query(bench: Bench, key: str, *, unique: bool | None = None, **more: Any) -> Command:
    fields = {"topic": TOPIC, "max_num": 32, "begin_timestamp": 0, "end_timestamp": FOREVER}
    header = QueryMessageRequestHeader(**(fields | more), key=key)
    extra = () if unique is None else ((UNIQUE_KEY_QUERY, str(unique).lower()),)
    request = Command.request(RequestCode.QUERY_MESSAGE, header, extra=extra)
    return await ask(bench, request)


async def view(bench: Bench, offset: int) -> Command:
    header = ViewMessageRequestHeader(offset=offset)
    return await ask(bench, Command.request(RequestCode.VIEW_MESSAGE_BY_ID, header))


def bodies(answer: Command) -> list[bytes]:
    return [record.body for record in iter_records(answer.body)]


def keyed(key: str) -> str:
    return f"KEYS\x01{key}\x02UNIQ_KEY\x01ID-{key}"


@pytest.fixture(autouse=True)
def topic(bench: Bench) -> None:
    bench.topic(TOPIC)


def send(bench: Bench, *keys: str, body: bytes | None = None) -> list[int]:
    """Send messages with these keys; return their physical offsets."""
    offsets = []
    for key in keys:
        answer = bench.send(TOPIC, body or key.encode(), properties=keyed(key))
        offsets.append(parse_offset_id(fields_of(answer)["msgId"]).physical_offset)
    return offsets


def refused(answer: Command) -> bool:
    return answer.code == ResponseCode.QUERY_NOT_FOUND and not answer.body


async def test_messages_with_a_key_come_in_the_order_of_the_log(bench: Bench) -> None:
    first, _, last = send(bench, "same", "other", "same")
    answer = await query(bench, "same")
    assert answer.code == ResponseCode.SUCCESS
    assert [r.physical_offset for r in iter_records(answer.body)] == [first, last]
    assert int(fields_of(answer)["indexLastUpdatePhyoffset"]) == last
    assert int(fields_of(answer)["indexLastUpdateTimestamp"]) == bench.clock.now_ms()


async def test_of_too_many_messages_the_newest_come(bench: Bench) -> None:
    offsets = send(bench, *["same"] * 70)
    answer = await query(bench, "same", max_num=3)
    assert [r.physical_offset for r in iter_records(answer.body)] == offsets[-3:]
    assert len(bodies(await query(bench, "same", max_num=10_000))) == 64
    assert len(bodies(await query(bench, "same", max_num=10_000, unique=False))) == 64
    assert len(bodies(await query(bench, "same", max_num=1, unique=True))) == 32
    assert refused(await query(bench, "same", max_num=0))
    assert refused(await query(bench, "same", max_num=-1))


async def test_a_message_is_found_by_its_unique_id(bench: Bench) -> None:
    send(bench, "a", "b")
    assert bodies(await query(bench, "ID-b", unique=True)) == [b"b"]


async def test_missing_messages_are_not_found(bench: Bench) -> None:
    send(bench, "a")
    for answer in (
        await query(bench, "b"),
        await query(bench, "a", topic="Other"),
        await query(bench, "a", end_timestamp=bench.clock.now_ms() - 1),
        await query(bench, "a", begin_timestamp=bench.clock.now_ms() + 1),
    ):
        assert refused(answer)
        assert answer.remark == "can not find message, maybe time range not correct"
        assert fields_of(answer) == {
            "indexLastUpdateTimestamp": "0",
            "indexLastUpdatePhyoffset": "0",
        }


async def test_a_message_is_found_from_its_store_time_on(bench: Bench) -> None:
    send(bench, "first")
    bench.clock.advance(1.5)
    send(bench, "a")
    now = bench.clock.now_ms()
    assert bodies(await query(bench, "a", begin_timestamp=now, end_timestamp=now)) == [b"a"]


async def test_a_key_with_the_same_hash_is_another_key(bench: Bench) -> None:
    send(bench, "Aa", "BB")
    assert bodies(await query(bench, "Aa")) == [b"Aa"]
    assert bodies(await query(bench, "BB")) == [b"BB"]


@pytest.mark.parametrize(("limit", "count"), [(3000, 2), (10, 1)])
async def test_an_answer_is_no_longer_than_a_frame(
    make_bench: Callable[..., Bench], limit: int, count: int
) -> None:
    bench = make_bench(limits=BrokerLimits(query_bytes=limit))
    bench.topic(TOPIC)
    offsets = send(bench, *["same"] * 5, body=b"x" * 1000)
    answer = await query(bench, "same")
    assert [r.physical_offset for r in iter_records(answer.body)] == offsets[-count:]


async def test_a_message_is_returned_by_its_physical_offset(bench: Bench) -> None:
    first, second = send(bench, "a", "b")
    for offset, body in ((first, b"a"), (second, b"b")):
        answer = await view(bench, offset)
        assert answer.code == ResponseCode.SUCCESS
        assert RecordView(answer.body).body == body


@pytest.mark.parametrize("offset", [-1, 1, 10**9, 2**62])
async def test_an_offset_inside_a_message_returns_none(bench: Bench, offset: int) -> None:
    send(bench, "a", "b")
    answer = await view(bench, offset)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark == f"can not find message by the offset, {offset}"


async def test_a_message_with_a_wrong_checksum_is_not_returned(bench: Bench) -> None:
    (offset,) = send(bench, "a")
    record = bench.store.queries.record_at(offset)
    assert record is not None
    record[8] ^= 1
    assert refused(await query(bench, "a"))
    assert (await view(bench, offset)).code == ResponseCode.SYSTEM_ERROR


async def test_in_sync_mode_nothing_is_returned_before_it_is_synced(make_bench: Any) -> None:
    bench = make_bench(flush_disk_type="SYNC_FLUSH")
    bench.topic(TOPIC)
    result = bench.store.put(_pending())
    assert refused(await query(bench, "a"))
    assert (await view(bench, result.physical_offset)).code == ResponseCode.SYSTEM_ERROR
    bench.store.flush()
    assert bodies(await query(bench, "a")) == [b"a"]
    assert (await view(bench, result.physical_offset)).code == ResponseCode.SUCCESS


def _pending() -> PendingMessage:
    return PendingMessage(TOPIC, 0, b"a", properties=keyed("a").encode())


async def test_too_many_queries_are_answered_busy(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(store_limits=StoreLimits(max_index_queries=2))
    bench.topic(TOPIC)
    send(bench, "a")
    answers = await asyncio.gather(*(query(bench, "a") for _ in range(3)))
    assert [answer.code for answer in answers].count(ResponseCode.SYSTEM_BUSY) == 1
    assert "try again" in str(answers[-1].remark)


async def test_captured_queries_are_answered_as_apaches_broker_answers(bench: Bench) -> None:
    exchanges = captured(QUERY_AND_VIEW)
    places: list[int] = []
    for one in exchanges:
        request, theirs = one.request, one.theirs
        if request.code == RequestCode.SEND_MESSAGE_V2:
            answer = await ask(bench, request)
            places.append(parse_offset_id(fields_of(answer)["msgId"]).physical_offset)
        elif request.code == RequestCode.QUERY_MESSAGE:
            answer = await ask(bench, _in_any_time(request))
            assert theirs is not None
            assert (answer.code, answer.remark) == (theirs.code, theirs.remark)
            assert fields_of(answer).keys() == theirs.fields.keys()
            assert [(r.message_id, r.keys) for r in iter_records(answer.body)] == [
                (r.message_id, r.keys) for r in iter_records(theirs.body)
            ]
    assert len(places) == 2


def _in_any_time(request: Command) -> Command:
    header = request.read(QueryMessageRequestHeader)
    header.begin_timestamp, header.end_timestamp = 0, FOREVER
    unique = (UNIQUE_KEY_QUERY, request.fields[UNIQUE_KEY_QUERY])
    return Command.request(RequestCode.QUERY_MESSAGE, header, extra=(unique,))


async def test_a_query_does_not_wait_for_others(bench: Bench) -> None:
    send(bench, *[f"k{n}" for n in range(20)])
    answers = await asyncio.gather(*(query(bench, f"k{n}") for n in range(20)))
    assert [bodies(answer) for answer in answers] == [[b"k%d" % n] for n in range(20)]

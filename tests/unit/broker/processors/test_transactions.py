"""Transactions at the broker: half messages, what ends them, checks, and what a restart finds."""

from __future__ import annotations

import asyncio
import json
import shutil
from typing import Any

import pytest

from broker.delivery.transactions import GROUP
from broker.limits import BrokerLimits
from broker.store.results import PendingMessage
from remoting.errors import CommandTooLarge, ConnectionLost
from remoting.protocol import names
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.frame import cut, decode
from remoting.protocol.headers.send import (
    CheckTransactionStateRequestHeader,
    EndTransactionRequestHeader,
    ResumeCheckHalfMessageRequestHeader,
)
from remoting.protocol.limits import MAX_PROPERTIES_BYTES
from remoting.protocol.message.ids import parse_offset_id
from remoting.protocol.message.record import (
    MIN_TAIL_BYTES,
    encode_record,
    host_bytes,
    record_size,
)
from remoting.protocol.message.view import RecordView, iter_records
from tests.support.waiting import until
from tests.unit.broker.harness import Bench, FakeConnection, fields_of, heartbeat
from tests.unit.broker.processors.replay import FRAMES, captured
from tests.unit.broker.processors.sends import ADDED, ADDED_TEXT, refusal, stored

COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0
TIMEOUT_MS = 6_000
BODY_AT = 88
"""Where the body of a record begins."""

LOG_FILE_BYTES = 1 << 20
"""Of the bench's store."""

TEXT = (
    "KEYS\x01k\x02TRAN_MSG\x01true\x02UNIQ_KEY\x01U1\x02WAIT\x01true\x02PGROUP\x01pg\x02TAGS\x01T"
)


def half(bench: Bench, body: bytes = b"order", text: str = TEXT, **fields: Any) -> tuple[int, int]:
    """Send a transactional message; its queue offset and physical offset."""
    if "T" not in bench.state.topics:
        bench.topic("T", queues=4)
    fields = {"queue_id": 2, "sys_flag": 4, **fields}
    header = bench.send("T", body, properties=text, **fields).header
    return header.queue_offset, int(header.msg_id[16:], 16)


def end(bench: Bench, place: tuple[int, int], kind: int, **fields: Any) -> Command | None:
    header = EndTransactionRequestHeader(
        **{
            "producer_group": "pg",
            "tran_state_table_offset": place[0],
            "commit_log_offset": place[1],
            "commit_or_rollback": kind,
            "msg_id": "U1",
            **fields,
        }
    )
    return bench.ask(Command.request(RequestCode.END_TRANSACTION, header))


def check(bench: Bench) -> None:
    asyncio.run(bench.state.transactions.check(bench.processors.transactions.ask))


def late(bench: Bench, ms: int = TIMEOUT_MS + 1) -> None:
    """Let time pass that makes a half message late."""
    bench.clock.advance(ms / 1000)


def producer(bench: Bench, port: int = 6000) -> FakeConnection:
    connection = FakeConnection(port)
    bench.must(heartbeat(f"client-{port}", producers=["pg"]), connection)
    return connection


def ops(bench: Bench) -> list[int]:
    return [int(bytes(record.stored_body)) for record in stored(bench, names.OP_HALF_TOPIC)]


def bodies(bench: Bench, queue_id: int = 2) -> list[bytes]:
    return [bytes(record.stored_body) for record in stored(bench, "T", queue_id)]


def born_now(bench: Bench) -> dict[str, Any]:
    return {"born_timestamp": bench.clock.now_ms()}


def asked(connection: FakeConnection) -> list[CheckTransactionStateRequestHeader]:
    return [one.header for one in connection.pushed if one.code == 39]


# --- half messages


def test_a_transactional_message_is_stored_in_the_half_topic_and_is_not_visible(bench):
    place = half(bench)
    assert place[0] == 0
    (record,) = stored(bench, names.HALF_TOPIC)
    assert record.sys_flag == 0
    assert record.properties == {
        **dict(pair.split("\x01") for pair in TEXT.split("\x02")),
        **ADDED,
        "REAL_TOPIC": "T",
        "REAL_QID": "2",
    }
    assert bodies(bench) == []
    assert bench.state.counters.transactions_prepared == 1
    assert bench.state.transactions.open_count == 1


def test_the_answer_has_the_queue_that_was_asked_for_and_the_half_messages_offset(bench):
    half(bench)
    header = bench.send("T", properties=TEXT, queue_id=3, sys_flag=4).header
    assert (header.queue_id, header.queue_offset) == (3, 1)


@pytest.mark.parametrize("value", ["TRUE", "True", "true"])
def test_the_property_decides_whatever_its_case_and_the_system_flag(bench, value):
    half(bench, text=f"TRAN_MSG\x01{value}\x02PGROUP\x01pg", sys_flag=0)
    assert len(stored(bench, names.HALF_TOPIC)) == 1


def test_a_retry_that_still_has_the_property_is_an_ordinary_delayed_message(bench):
    bench.topic("T")
    bench.send("T", properties="TRAN_MSG\x01true\x02DELAY\x013", reconsume_times=1)
    assert stored(bench, names.HALF_TOPIC) == []
    assert len(stored(bench, names.SCHEDULE_TOPIC, 2)) == 1


@pytest.mark.parametrize(
    ("text", "fields", "why"),
    [
        ("TRAN_MSG\x01true\x02DELAY\x013", {}, "has a time of delivery"),
        ("TRAN_MSG\x01true\x02TIMER_DELAY_SEC\x013", {}, "has a time of delivery"),
        ("A\x01b", {"sys_flag": 4}, "not the property TRAN_MSG=true"),
        ("A\x01b", {"sys_flag": 12}, "not the property TRAN_MSG=true"),
    ],
)
def test_what_can_be_no_half_message_is_refused(bench, text, fields, why):
    bench.topic("T")
    code, remark = refusal(bench, properties=text, **fields)
    assert code == ResponseCode.MESSAGE_ILLEGAL
    assert why in remark


def test_a_transactional_batch_is_refused(bench):
    bench.topic("T")
    code, remark = refusal(
        bench, code=RequestCode.SEND_BATCH_MESSAGE, batch=True, properties="TRAN_MSG\x01true"
    )
    assert code == ResponseCode.MESSAGE_ILLEGAL
    assert "send its messages singly" in remark


def test_a_broker_may_reject_transactions(make_bench):
    bench = make_bench(reject_transaction_message=True)
    bench.topic("T")
    assert refusal(bench, properties="TRAN_MSG\x01true") == (
        ResponseCode.NO_PERMISSION,
        "the broker[127.0.0.1] sending transaction message is forbidden",
    )


# --- ending


def test_a_commit_stores_the_message_where_it_was_sent_to(bench):
    place = half(bench)
    (before,) = stored(bench, names.HALF_TOPIC)
    assert end(bench, place, COMMIT).code == ResponseCode.SUCCESS
    (record,) = stored(bench, "T", 2)
    assert record.stored_body == b"order"
    assert record.sys_flag == COMMIT
    assert record.prepared_transaction_offset == place[1]
    assert record.properties_text == before.properties_text
    assert record.born_timestamp_ms == before.born_timestamp_ms
    assert record.born_host == before.born_host


def test_the_op_message_is_that_of_apaches_broker(bench):
    place = half(bench)
    end(bench, place, COMMIT)
    (record,) = stored(bench, names.OP_HALF_TOPIC)
    assert record.stored_body == b"0"
    assert record.properties_text == b"WAIT\x01true\x02TAGS\x01d"
    assert record.born_host == record.store_host == ("127.0.0.1", 20911)


def test_a_rollback_leaves_an_op_message_only(bench):
    end(bench, half(bench), ROLLBACK)
    assert bodies(bench) == []
    assert ops(bench) == [0]
    assert bench.state.transactions.open_count == 0


@pytest.mark.parametrize("kind", [UNKNOWN, 4, 1, -1])
def test_another_outcome_changes_nothing(bench, kind):
    answer = end(bench, half(bench), kind)
    assert answer.code == (ResponseCode.SUCCESS if kind == UNKNOWN else ResponseCode.SYSTEM_ERROR)
    assert ops(bench) == []
    assert bench.state.transactions.open_count == 1


@pytest.mark.parametrize(("first", "second"), [(COMMIT, COMMIT), (ROLLBACK, COMMIT)])
def test_a_transaction_ends_once(bench, first, second):
    place = half(bench)
    end(bench, place, first)
    before = bodies(bench)
    answer = end(bench, place, second)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "has ended already" in answer.remark
    assert bodies(bench) == before
    assert ops(bench) == [0]


@pytest.mark.parametrize(
    ("change", "remark"),
    [
        ({"producer_group": "other"}, "The producer group wrong"),
        ({"tran_state_table_offset": 1}, "The transaction state table offset wrong"),
        ({"commit_log_offset": 1 << 40}, "Find prepared transaction message failed"),
        ({"commit_log_offset": -1}, "Find prepared transaction message failed"),
    ],
)
def test_a_request_for_another_message_is_refused_as_by_apaches_broker(bench, change, remark):
    place = half(bench)
    answer = end(bench, place, COMMIT, **change)
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, remark)
    assert bodies(bench) == []
    assert bench.state.counters.transactions_refused == 1


def test_a_half_message_that_is_the_body_of_another_message_is_none(bench):
    offset, _ = half(bench)
    at = bench.state.store.log.end + BODY_AT
    forged = encode_record(
        topic=names.HALF_TOPIC,
        body=b"",
        queue_offset=offset,
        physical_offset=at,
        properties=TEXT.encode() + b"\x02REAL_TOPIC\x01T\x02REAL_QID\x012",
        born_host=host_bytes("127.0.0.1", 1),
        store_host=host_bytes("127.0.0.1", 1),
    )
    bench.send("T", forged)
    answer = end(bench, (offset, at), ROLLBACK)
    assert answer.remark == "Find prepared transaction message failed"
    assert bench.state.transactions.open_count == 1


def test_an_offset_within_a_record_or_of_an_ordinary_message_is_no_half_message(bench):
    _, physical = half(bench)
    reply = bench.send("T", properties="PGROUP\x01pg")
    ordinary = int(reply.header.msg_id[16:], 16)
    for offset in (physical + 8, ordinary):
        answer = end(bench, (0, offset), COMMIT)
        assert answer.remark == "Find prepared transaction message failed"


def test_a_senders_own_real_topic_does_not_count(bench):
    place = half(bench, text=TEXT + "\x02REAL_TOPIC\x01SCHEDULE_TOPIC_XXXX")
    (record,) = stored(bench, names.HALF_TOPIC)
    assert record.properties["REAL_TOPIC"] == "T"
    end(bench, place, COMMIT)
    assert bodies(bench) == [b"order"]


def test_a_carried_half_message_for_one_of_the_brokers_topics_can_not_be_committed(bench):
    text = "PGROUP\x01pg\x02REAL_TOPIC\x01SCHEDULE_TOPIC_XXXX\x02REAL_QID\x010"
    result = bench.store.put(PendingMessage(names.HALF_TOPIC, 0, b"x", text.encode()))
    answer = end(bench, (result.queue_offset, result.physical_offset), COMMIT)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "SCHEDULE_TOPIC_XXXX, where only the broker's own messages may go" in answer.remark


# --- checks


def test_a_young_half_message_is_not_checked(bench):
    connection = producer(bench)
    half(bench, **born_now(bench))
    late(bench, TIMEOUT_MS - 1)
    check(bench)
    assert asked(connection) == []
    assert len(stored(bench, names.HALF_TOPIC)) == 1


def test_a_late_one_is_stored_again_and_its_producer_is_asked(bench):
    connection = producer(bench)
    half(bench, **born_now(bench))
    late(bench)
    check(bench)
    first, second = stored(bench, names.HALF_TOPIC)
    assert second.properties == {**first.properties, "TRANSACTION_CHECK_TIMES": "1"}
    assert second.born_timestamp_ms == first.born_timestamp_ms
    (command,) = connection.pushed
    assert command.is_oneway
    header = command.header
    assert (header.tran_state_table_offset, header.commit_log_offset) == (
        1,
        second.physical_offset,
    )
    assert header.msg_id == header.transaction_id == "U1"
    assert header.offset_msg_id == second.offset_id
    (record,) = iter_records(memoryview(command.body))
    assert (record.topic, record.queue_id) == ("T", 2)
    assert record.properties == {**second.properties, "WAIT": "false"}
    assert record.physical_offset == second.physical_offset
    assert record.stored_body == b"order"
    assert ops(bench) == [0]


async def test_a_changed_interval_ends_the_pause_between_two_checks(make_bench):
    bench = make_bench(transaction_check_interval_ms=3_600_000)
    connection = producer(bench)
    half(bench, **born_now(bench))
    late(bench)
    checking = asyncio.create_task(bench.state.transactions.run(bench.processors.transactions.ask))
    # The pause begins.
    await asyncio.sleep(0)
    change = Command.request(
        RequestCode.UPDATE_BROKER_CONFIG, body=b"transactionCheckInterval=1000"
    )
    assert bench.must(change).code == 0
    await until(lambda: asked(connection))
    checking.cancel()


@pytest.mark.parametrize("kind", [COMMIT, ROLLBACK])
def test_the_answer_to_a_check_ends_the_transaction(bench, kind):
    connection = producer(bench)
    half(bench, **born_now(bench))
    late(bench)
    check(bench)
    (header,) = asked(connection)
    place = header.tran_state_table_offset, header.commit_log_offset
    assert end(bench, place, kind, from_transaction_check=True).code == ResponseCode.SUCCESS
    assert bodies(bench) == ([b"order"] if kind == COMMIT else [])
    assert ops(bench) == [0, 1]
    late(bench)
    check(bench)
    assert len(asked(connection)) == 1


def test_a_producer_may_still_end_a_checked_one_at_its_former_offset(bench):
    connection = producer(bench)
    place = half(bench, **born_now(bench))
    for _ in range(3):
        late(bench)
        check(bench)
    assert end(bench, place, COMMIT).code == ResponseCode.SUCCESS
    assert bodies(bench) == [b"order"]
    header = asked(connection)[-1]
    again = end(bench, (header.tran_state_table_offset, header.commit_log_offset), COMMIT)
    assert again.code == ResponseCode.SYSTEM_ERROR
    assert bodies(bench) == [b"order"]


def test_checks_stop_at_the_first_that_is_not_late(bench):
    connection = producer(bench)
    half(bench, **born_now(bench))
    late(bench)
    half(bench, **born_now(bench))
    check(bench)
    assert [one.tran_state_table_offset for one in asked(connection)] == [2]


def test_producers_of_the_group_are_asked_one_after_the_other(bench):
    connections = [producer(bench, port) for port in (6000, 6001)]
    for _ in range(4):
        half(bench, **born_now(bench))
    late(bench)
    check(bench)
    assert [len(asked(one)) for one in connections] == [2, 2]


def test_without_a_producer_it_waits_for_the_next_check(bench):
    half(bench, **born_now(bench))
    late(bench)
    check(bench)
    assert bench.state.counters.transaction_checks_without_producer == 1
    assert bench.state.transactions.oldest_ms > 0
    connection = producer(bench)
    late(bench)
    check(bench)
    assert len(asked(connection)) == 1


@pytest.mark.parametrize("error", [ConnectionLost("10.0.0.7", "closed"), CommandTooLarge(17, 16)])
def test_a_producer_that_can_not_be_asked_does_not_end_the_check(bench, error):
    connection = producer(bench)

    def refuse(_: Command) -> None:
        raise error

    connection.send_oneway = refuse
    for _ in range(2):
        half(bench, **born_now(bench))
    late(bench)
    check(bench)
    assert bench.state.transactions.open_count == 2


def test_after_the_last_check_it_goes_to_the_topic_of_discarded_ones(make_bench):
    bench = make_bench(transaction_check_max=2)
    connection = producer(bench)
    half(bench, **born_now(bench))
    for _ in range(4):
        late(bench)
        check(bench)
    assert len(asked(connection)) == 2
    (record,) = stored(bench, names.CHECK_MAX_TIME_TOPIC)
    assert record.stored_body == b"order"
    assert record.properties["TRANSACTION_CHECK_TIMES"] == "2"
    assert bench.state.transactions.open_count == 0
    assert bench.state.counters.transactions_discarded == 1


def test_what_a_full_disk_refuses_is_checked_and_discarded_later(make_bench):
    bench = make_bench(transaction_check_max=1)
    connection = producer(bench)
    half(bench, **born_now(bench))
    for done in ((1, 0), (1, 1)):
        before = len(asked(connection)), len(stored(bench, names.CHECK_MAX_TIME_TOPIC))
        late(bench)
        for full, expected in (("the disk is full", before), (None, done)):
            bench.store.disk.measured(full)
            check(bench)
            discarded = stored(bench, names.CHECK_MAX_TIME_TOPIC)
            assert (len(asked(connection)), len(discarded)) == expected
    assert bench.state.transactions.open_count == 0


def test_one_older_than_what_the_store_keeps_is_discarded(make_bench):
    bench = make_bench(file_reserved_time_hours=1)
    half(bench, **born_now(bench))
    late(bench, 3_600_001)
    check(bench)
    assert len(stored(bench, names.CHECK_MAX_TIME_TOPIC)) == 1


def test_a_message_may_ask_for_more_time(bench):
    connection = producer(bench)
    half(bench, text=TEXT + "\x02CHECK_IMMUNITY_TIME_IN_SECONDS\x0160", **born_now(bench))
    half(bench, **born_now(bench))
    late(bench)
    check(bench)
    assert [one.tran_state_table_offset for one in asked(connection)] == [2]
    late(bench, 60_000)
    check(bench)
    assert [one.tran_state_table_offset for one in asked(connection)] == [2, 3, 4]


@pytest.mark.parametrize("left", [0, 25, 26, 37, 38])
def test_properties_without_room_for_the_number_of_checks_hold_up_no_check(make_bench, left):
    """Of the bytes that properties may have ``left`` are not used; a check takes 26 and 11 more."""
    bench = make_bench(file_reserved_time_hours=1)
    connection = producer(bench)
    text = TEXT.replace("WAIT\x01true\x02", "")
    half(bench, text=text, **born_now(bench))
    used = len(stored(bench, names.HALF_TOPIC)[0].properties_text)
    text += "\x02A\x01" + "x" * (MAX_PROPERTIES_BYTES - left - used - 3)
    # A send leaves more room; Apache's brokers don't.
    whole = f"{text}\x02{ADDED_TEXT}".encode()
    message = PendingMessage("T", 2, b"order", whole, sys_flag=4)
    message.born_timestamp_ms = bench.clock.now_ms()
    bench.state.transactions.prepare(message)
    stored_at = bench.store.put(message)
    place = (stored_at.queue_offset, stored_at.physical_offset)
    half(bench, **born_now(bench))
    late(bench)
    check(bench)
    expected = [3, 1, 4] if left < 26 else [3, 4, 5]
    assert [one.tran_state_table_offset for one in asked(connection)] == expected
    assert bench.state.transactions.open_count == 3
    for ask in connection.pushed:
        (record,) = iter_records(memoryview(ask.body))
        assert record.stored_body == b"order"
    late(bench, 3_600_000)
    check(bench)
    assert len(stored(bench, names.CHECK_MAX_TIME_TOPIC)) == 3
    assert end(bench, place, COMMIT).code == ResponseCode.SYSTEM_ERROR


def test_a_half_message_larger_than_the_limit_of_now_holds_up_no_check(make_bench, bench):
    place = half(bench, b"x" * 2_000, **born_now(bench))
    half(bench, **born_now(bench))
    bench.close()
    after = make_bench(root=bench.config.store_path_root_dir, max_message_size=1_000)
    assert end(after, place, COMMIT).code == ResponseCode.MESSAGE_ILLEGAL
    connection = producer(after)
    late(after)
    check(after)
    assert [one.tran_state_table_offset for one in asked(connection)] == [0, 2]
    late(after, 73 * 3_600_000)
    check(after)
    assert after.state.transactions.open_count == 0
    assert [record.stored_body for record in stored(after, names.CHECK_MAX_TIME_TOPIC)] == [
        b"order"
    ]


@pytest.mark.parametrize("target", ["REAL_TOPIC\x01T\x02REAL_QID\x0199999999999", "A\x01b"])
def test_a_carried_half_message_without_a_queue_is_discarded_in_the_end(make_bench, target):
    bench = make_bench(transaction_check_max=2)
    connection = producer(bench)
    bench.store.put(PendingMessage(names.HALF_TOPIC, 0, b"x", f"PGROUP\x01pg\x02{target}".encode()))
    for _ in range(3):
        late(bench)
        check(bench)
    assert asked(connection) == []
    assert len(stored(bench, names.CHECK_MAX_TIME_TOPIC)) == 1


@pytest.mark.parametrize("value", ["-1", "soon", "9" * 30])
def test_an_immunity_time_that_is_none_is_the_timeout(bench, value):
    connection = producer(bench)
    half(bench, text=TEXT + f"\x02CHECK_IMMUNITY_TIME_IN_SECONDS\x01{value}", **born_now(bench))
    late(bench)
    check(bench)
    assert len(asked(connection)) == 1


def test_too_many_behind_one_with_an_immunity_time_end_it(make_bench):
    bench = make_bench(limits=BrokerLimits(half_window=2))
    connection = producer(bench)
    half(bench, text=TEXT + "\x02CHECK_IMMUNITY_TIME_IN_SECONDS\x013600", **born_now(bench))
    for _ in range(2):
        end(bench, half(bench, **born_now(bench)), COMMIT)
    late(bench)
    check(bench)
    assert len(asked(connection)) == 1


def test_a_clock_that_is_set_back_does_not_put_checks_off(bench):
    connection = producer(bench)
    half(bench, **born_now(bench))
    bench.clock.jump(-3_600_000)
    half(bench, **born_now(bench))
    late(bench)
    check(bench)
    assert len(asked(connection)) == 2


# --- as Apache's broker does it


def test_apaches_transactions_come_to_the_same_end(make_bench):
    """The captured requests, in the order in which 4.9.7 stored what came of them.

    Our records are longer, so requests for a place in its log are for another place in ours.
    """
    bench = make_bench(transaction_timeout_ms=1_000)
    bench.clock.jump(1_795_213_230_330 - bench.clock.now_ms())
    bench.topic("TxTopic", queues=4)
    bench.topic("Filler")
    bench.send("Filler", bytes(9280 - 91 - len("Filler") - len(ADDED_TEXT)))
    places: dict[str, str] = {}
    exchanges = captured("transaction.jsonl")
    sends = [e for e in exchanges if e.request.code == RequestCode.SEND_MESSAGE_V2]
    ends = [e for e in exchanges if e.request.code == RequestCode.END_TRANSACTION]
    for one in (sends[0], sends[1], ends[0], sends[2], ends[1], ends[2], sends[3], ends[3]):
        answer = bench.ask(at_our_place(one.request, places))
        if one.theirs is not None:
            ours, theirs = fields_of(answer), fields_of(one.theirs)
            if "msgId" in theirs:
                places[offset_of(theirs.pop("msgId"))] = offset_of(ours.pop("msgId"))
                assert ours.pop("transactionId") in one.request.fields["i"]
            assert ours == theirs
    connection = FakeConnection()
    bench.must(heartbeat(producers=["pg_tx"]), connection)
    late(bench, 3_000)
    check(bench)
    moved = {"commitLogOffset": "...", "offsetMsgId": "..."}
    first, second = zip(connection.pushed, captured_checks(), strict=True)
    for ours, theirs in (first, second):
        assert fields_of(ours) | moved == theirs.fields | moved
        (mine,), (their,) = iter_records(memoryview(ours.body)), iter_records(theirs.body)
        assert described(mine) == described(their)
    (commit,) = [one for one in ends[4:] if one.request.fields["commitOrRollback"] == "8"]
    asked_here, asked_there = first
    places[asked_there.fields["commitLogOffset"]] = fields_of(asked_here)["commitLogOffset"]
    bench.ask(at_our_place(commit.request, places))
    assert [bodies_of(bench, queue) for queue in (2, 0)] == [[b"commit me"], [b"check me"]]
    assert bench.state.transactions.open_count == 1


def at_our_place(request: Command, places: dict[str, str]) -> Command:
    place = request.fields.get("commitLogOffset")
    if place is None:
        return request
    fields = {**request.fields, "commitLogOffset": places[place]}
    return Command.request(request.code, extra=fields, oneway=request.is_oneway)


def offset_of(message_id: str) -> str:
    return str(parse_offset_id(message_id).physical_offset)


def captured_checks() -> list[Command]:
    lines = map(json.loads, (FRAMES / "transaction.jsonl").read_text().splitlines())
    frames = [one["frame_hex"] for one in lines if one["code_name"] == "CHECK_TRANSACTION_STATE"]
    return [decode(frame) for frame in map(cut, map(bytes.fromhex, frames)) if frame is not None]


def described(record: RecordView) -> tuple[object, ...]:
    """What does not depend on connections and on when it was stored again."""
    return (
        *(record.topic, record.queue_id, record.queue_offset),
        *({**record.properties, **ADDED}, bytes(record.stored_body), record.body_crc, record.magic),
        *(record.sys_flag, record.flag, record.born_timestamp_ms, record.store_host),
        *(record.reconsume_times, record.prepared_transaction_offset),
    )


def bodies_of(bench: Bench, queue_id: int) -> list[bytes]:
    return [bytes(record.stored_body) for record in stored(bench, "TxTopic", queue_id)]


# --- discarded ones, again


def test_a_discarded_one_can_be_checked_again(make_bench):
    bench = make_bench(transaction_check_max=1)
    connection = producer(bench)
    half(bench, **born_now(bench))
    for _ in range(3):
        late(bench)
        check(bench)
    (record,) = stored(bench, names.CHECK_MAX_TIME_TOPIC)
    assert resume(bench, record.offset_id).code == ResponseCode.SUCCESS
    late(bench)
    check(bench)
    header = asked(connection)[-1]
    end(bench, (header.tran_state_table_offset, header.commit_log_offset), COMMIT)
    assert bodies(bench) == [b"order"]


def test_an_open_one_is_checked_from_the_beginning(bench):
    half(bench, **born_now(bench))
    late(bench)
    check(bench)
    record = stored(bench, names.HALF_TOPIC)[-1]
    assert resume(bench, record.offset_id).code == ResponseCode.SUCCESS
    assert stored(bench, names.HALF_TOPIC)[-1].properties["TRANSACTION_CHECK_TIMES"] == "0"
    assert bench.state.transactions.open_count == 1


@pytest.mark.parametrize("text", [None, "", "nonsense", "7F000001000051AF0000000000000008"])
def test_an_id_of_no_half_message_can_not_be_resumed(bench, text):
    half(bench)
    assert resume(bench, text).code == ResponseCode.SYSTEM_ERROR


def test_one_that_has_ended_can_not_be_resumed(bench):
    end(bench, half(bench), COMMIT)
    (record,) = stored(bench, names.HALF_TOPIC)
    answer = resume(bench, record.offset_id)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "has ended already" in answer.remark


def resume(bench: Bench, message_id: str | None) -> Command:
    header = ResumeCheckHalfMessageRequestHeader(msg_id=message_id)
    return bench.must(Command.request(RequestCode.RESUME_CHECK_HALF_MESSAGE, header))


# --- what a restart finds


def restarted(make_bench: Any, bench: Bench) -> Bench:
    """Another broker on the same store, with the offsets that were committed."""
    bench.close()
    after = make_bench(root=bench.config.store_path_root_dir)
    after.clock.advance(1)
    for topic in (names.HALF_TOPIC, names.OP_HALF_TOPIC):
        offset = bench.state.offsets.query(GROUP, topic, 0)
        if offset >= 0:
            after.state.offsets.commit(GROUP, topic, 0, offset)
    asyncio.run(after.state.transactions.load())
    return after


def test_a_restart_finds_what_is_open_and_what_has_ended(make_bench, bench):
    places = [half(bench, b"%d" % number) for number in range(5)]
    end(bench, places[3], COMMIT)
    end(bench, places[0], ROLLBACK)
    after = restarted(make_bench, bench)
    assert after.state.transactions.open_count == 3
    assert end(after, places[3], COMMIT).code == ResponseCode.SYSTEM_ERROR
    assert end(after, places[1], COMMIT).code == ResponseCode.SUCCESS
    assert bodies(after) == [b"3", b"1"]


def test_checks_commit_what_is_done_with_and_a_restart_begins_there(make_bench, bench):
    places = [half(bench, **born_now(bench)) for _ in range(3)]
    end(bench, places[1], COMMIT)
    end(bench, places[0], COMMIT)
    check(bench)
    assert bench.state.offsets.query(GROUP, names.HALF_TOPIC, 0) == 2
    assert bench.state.offsets.query(GROUP, names.OP_HALF_TOPIC, 0) == 2
    after = restarted(make_bench, bench)
    assert after.state.transactions.open_count == 1


def test_a_half_message_may_be_ended_before_the_log_is_safe_that_has_it(make_bench):
    bench = make_bench(flush_disk_type="SYNC_FLUSH")
    bench.topic("T", queues=4)
    message = PendingMessage("T", 2, b"order", TEXT.encode(), sys_flag=4)
    bench.state.transactions.prepare(message)
    place = 0, bench.store.put(message).physical_offset
    assert bench.store.queries.max_offset(names.HALF_TOPIC, 0) == 0
    assert end(bench, place, COMMIT).code == ResponseCode.SUCCESS
    bench.store.flush()
    assert bodies(bench) == [b"order"]


def test_what_has_ended_counts_when_the_log_is_safe_that_ends_it(make_bench):
    bench = make_bench(flush_disk_type="SYNC_FLUSH")
    bench.topic("T", queues=4)
    message = PendingMessage("T", 2, b"order", TEXT.encode(), sys_flag=4)
    bench.state.transactions.prepare(message)
    bench.store.put(message)
    bench.store.flush()
    bench.state.transactions.end(stored(bench, names.HALF_TOPIC)[0], commit=True)
    check(bench)
    assert bench.state.offsets.query(GROUP, names.HALF_TOPIC, 0) == -1
    bench.store.flush()
    check(bench)
    assert bench.state.offsets.query(GROUP, names.HALF_TOPIC, 0) == 1


def test_a_broker_without_transactions_commits_no_offsets(bench):
    check(bench)
    assert bench.state.offsets.query(GROUP, names.HALF_TOPIC, 0) == -1


def test_op_messages_of_5_x_are_read(make_bench, bench):
    """Several offsets with commas, in any order."""
    for _ in range(5):
        half(bench)
    put_op(bench, b"3,0,1")
    put_op(bench, b"junk,,99999999999999999999999")
    after = restarted(make_bench, bench)
    assert after.state.transactions.open_count == 2


def test_op_messages_of_half_messages_that_do_not_exist_end_no_later_ones(make_bench, bench):
    half(bench)
    put_op(bench, b"1,999999999999999999")
    after = restarted(make_bench, bench)
    assert after.state.transactions.open_count == 1
    assert end(after, half(after), COMMIT).code == ResponseCode.SUCCESS
    assert bodies(after) == [b"order"]


def put_op(bench: Bench, body: bytes) -> None:
    bench.store.put(PendingMessage(names.OP_HALF_TOPIC, 0, body))


def test_offsets_beyond_a_log_that_lost_its_end_are_not_believed(make_bench, bench):
    half(bench)
    bench.state.offsets.commit(GROUP, names.HALF_TOPIC, 0, 1000)
    bench.state.offsets.commit(GROUP, names.OP_HALF_TOPIC, 0, 1000)
    after = restarted(make_bench, bench)
    place = half(after)
    assert end(after, place, COMMIT).code == ResponseCode.SUCCESS


def test_a_check_that_was_not_noted_asks_once_not_twice(make_bench, bench):
    """A half message that was stored again has an op message where it was."""
    half(bench, **born_now(bench))
    late(bench)
    check(bench)
    bench.state.offsets.remove_group(GROUP)
    after = restarted(make_bench, bench)
    assert after.state.transactions.open_count == 1


# --- what a kill between two records leaves


def cut_off(
    make_bench: Any, bench: Bench, end: int, *, done: int = 0, too_full: str | None = None
) -> Bench:
    """A broker that starts on the store as a kill leaves it when the log has grown to ``end``.

    Half messages below queue offset ``done`` are done with.
    """
    root = bench.config.store_path_root_dir
    copy = root.with_name(f"{root.name}-{end}")
    shutil.copytree(root, copy)
    for path in (copy / "commitlog").iterdir():
        with path.open("r+b") as file:
            file.seek(min(max(0, end - int(path.name)), LOG_FILE_BYTES))
            file.write(bytes(LOG_FILE_BYTES - file.tell()))
    after = make_bench(copy, transaction_check_max=bench.config.transaction_check_max)
    after.clock.jump(bench.clock.now_ms() - after.clock.now_ms())
    after.store.disk.measured(too_full)
    after.state.offsets.commit(GROUP, names.HALF_TOPIC, 0, done)
    asyncio.run(after.state.transactions.load())
    return after


def ends_behind(bench: Bench, begin: int) -> list[int]:
    """Where the records end that were stored since the log ended at ``begin``."""
    places = [("T", 2), (names.HALF_TOPIC, 0), (names.OP_HALF_TOPIC, 0)]
    places += [(names.CHECK_MAX_TIME_TOPIC, 0)]
    records = [record for place in places for record in stored(bench, *place)]
    return sorted(one.physical_offset + one.size for one in records if one.physical_offset >= begin)


def lives(bench: Bench) -> int:
    """How many transactions are open, committed or discarded."""
    discarded = stored(bench, names.CHECK_MAX_TIME_TOPIC)
    return bench.state.transactions.open_count + len(bodies(bench)) + len(discarded)


def check_again(bench: Bench) -> None:
    late(bench)
    check(bench)


def resume_last(bench: Bench) -> None:
    resume(bench, stored(bench, names.HALF_TOPIC)[-1].offset_id)


def commit_last(bench: Bench) -> None:
    record = stored(bench, names.HALF_TOPIC)[-1]
    end(bench, (record.queue_offset, record.physical_offset), COMMIT)


@pytest.mark.parametrize("rolls", [False, True], ids=["in a file", "at the end of a file"])
@pytest.mark.parametrize("action", [commit_last, check_again, resume_last])
@pytest.mark.parametrize("checks", [1, 2])
def test_a_transaction_is_there_once_wherever_a_kill_ends_the_log(
    make_bench, checks, action, rolls
):
    """The store of each moment of ``action`` in turn; after two checks a third discards."""
    bench = make_bench(transaction_check_max=2)
    half(bench, b"another", TEXT.replace("U1", "U0"), queue_id=3, **born_now(bench))
    half(bench, **born_now(bench))
    for _ in range(checks):
        check_again(bench)
    begin = bench.store.log.end
    if rolls:
        rehearsal = cut_off(make_bench, bench, begin)
        action(rehearsal)
        first = ends_behind(rehearsal, begin)[0]
        room = LOG_FILE_BYTES - begin - MIN_TAIL_BYTES - (first - begin)
        bench.store.put(PendingMessage("Filler", 0, bytes(room - record_size(0, len("Filler"), 0))))
        begin = bench.store.log.end
    action(bench)
    # The last: the log has rolled, and the next file is empty.
    places = [begin, *ends_behind(bench, begin), *([LOG_FILE_BYTES] if rolls else [])]
    for place in places:
        after = cut_off(make_bench, bench, place)
        assert lives(after) == 2
        assert lives(cut_off(make_bench, after, after.store.log.end)) == 2


def test_the_former_place_still_ends_what_a_kill_stored_again_without_an_op_message(
    make_bench, bench
):
    place = half(bench, **born_now(bench))
    begin = bench.store.log.end
    check_again(bench)
    after = cut_off(make_bench, bench, ends_behind(bench, begin)[0])
    assert end(after, place, COMMIT).code == ResponseCode.SUCCESS
    assert ops(after) == [0, 1]
    assert lives(after) == 1


def test_one_that_apaches_broker_stored_again_last_stays_open(make_bench, bench):
    """There the internal group's offset says that its former place is done with."""
    half(bench, **born_now(bench))
    begin = bench.store.log.end
    check_again(bench)
    after = cut_off(make_bench, bench, ends_behind(bench, begin)[0], done=1)
    assert after.state.transactions.open_count == 1
    assert ops(after) == []


def test_a_copy_of_a_committed_message_ends_no_transaction(make_bench, bench):
    """As a retry is: it still has the system flag of a commit."""
    half(bench)
    bench.store.put(PendingMessage("%RETRY%g", 0, b"order", b"A\x01b", sys_flag=COMMIT))
    after = cut_off(make_bench, bench, bench.store.log.end)
    assert after.state.transactions.open_count == 1


def test_a_start_on_a_full_disk_ends_it_and_stores_the_op_message_later(make_bench, bench):
    half(bench)
    begin = bench.store.log.end
    commit_last(bench)
    after = cut_off(make_bench, bench, ends_behind(bench, begin)[0], too_full="the disk is full")
    assert lives(after) == 1
    assert ops(after) == []
    check(after)
    assert ops(after) == []
    after.store.disk.measured(None)
    check(after)
    assert ops(after) == [0]

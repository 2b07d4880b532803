"""Sends: what is stored, singly and in batches, and when and how they are answered."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from remoting.protocol.codes import RequestCode
from remoting.protocol.command import Command
from remoting.protocol.headers.send import SendMessageRequestHeader
from remoting.protocol.message import batch
from remoting.protocol.message.ids import parse_offset_id
from remoting.protocol.message.view import RecordView
from tests.unit.broker.harness import Bench, FakeConnection, answer_of, fields_of, send_command
from tests.unit.broker.processors.sends import ADDED, ADDED_TEXT, stored
from tests.unit.broker.store.test_cold_reads import SlowFiles

# --- what is stored


def test_a_message_is_stored_unchanged(bench):
    bench.topic("T", queues=4)
    reply = bench.send(
        "T",
        b"hello",
        queue_id=2,
        flag=9,
        sys_flag=0x301,
        reconsume_times=3,
        properties="KEYS\x01k1 k2\x02TAGS\x01paid\x02UNIQ_KEY\x01U1",
    )
    assert reply.code == 0
    assert reply.remark is None
    (record,) = stored(bench, "T", 2)
    assert record.stored_body == b"hello"
    assert (record.flag, record.sys_flag, record.reconsume_times) == (9, 0x301, 3)
    assert record.born_timestamp_ms == 1_700_000_000_123
    assert record.born_host == ("10.0.0.7", 5555)
    assert record.store_host == ("127.0.0.1", 20911)
    assert record.properties == {
        "KEYS": "k1 k2",
        "TAGS": "paid",
        "UNIQ_KEY": "U1",
        **ADDED,
    }


def test_the_answer_says_where_the_message_is(bench):
    bench.topic("T", queues=4)
    bench.send("T", queue_id=2)
    reply = bench.send("T", queue_id=2, properties="UNIQ_KEY\x01U1")
    assert fields_of(reply) == {
        "msgId": reply.header.msg_id,
        "queueId": "2",
        "queueOffset": "1",
        "transactionId": "U1",
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
    }
    place = parse_offset_id(reply.header.msg_id)
    assert (place.ip, place.port) == ("127.0.0.1", 20911)
    assert RecordView(bench.store.queries.record_at(place.physical_offset)).queue_offset == 1


def test_the_wait_property_is_removed_and_those_of_the_broker_added(bench):
    bench.topic("T")
    bench.send("T", properties="WAIT\x01true\x02TAGS\x01a\x02")
    assert stored(bench, "T")[0].properties == {"TAGS": "a", **ADDED}


def test_a_message_without_properties_gets_those_of_the_broker_only(bench):
    bench.topic("T")
    bench.send("T", properties=None)
    assert stored(bench, "T")[0].properties_text == ADDED_TEXT.encode()


def test_an_unpaired_surrogate_in_a_property_does_no_harm(bench):
    bench.topic("T")
    assert bench.send("T", properties="k\x01\ud800").code == 0
    assert stored(bench, "T")[0].properties["k"] == "?"


def test_a_body_may_be_empty(bench):
    bench.topic("T")
    assert bench.send("T", b"").code == 0
    assert stored(bench, "T")[0].stored_body == b""


def test_a_topic_of_many_tags_marks_its_messages(bench):
    bench.topic("T", topic_filter_type="MULTI_TAG")
    bench.send("T", properties="TAGS\x01a")
    assert stored(bench, "T")[0].sys_flag == 2


def test_the_long_header_works_like_the_short_one(bench):
    bench.topic("T")
    header = SendMessageRequestHeader(
        producer_group="pg",
        topic="T",
        default_topic="TBW102",
        default_topic_queue_nums=4,
        queue_id=0,
        sys_flag=0,
        born_timestamp=5,
        flag=0,
        properties="TAGS\x01V1",
    )
    reply = bench.must(Command.request(RequestCode.SEND_MESSAGE, header, body=b"v1"))
    assert reply.code == 0
    assert stored(bench, "T")[0].tags == "V1"


def test_a_oneway_message_is_stored_and_not_answered(bench):
    bench.topic("T")
    assert bench.ask(send_command("T", oneway=True)) is None
    assert bench.ask(send_command("bad topic!", oneway=True)) is None
    assert len(stored(bench, "T")) == 1


def test_a_client_with_an_ipv6_address_is_kept_with_it(bench):
    bench.topic("T")
    connection = FakeConnection()
    connection.remote = ("2001:db8::1", 77)
    bench.must(send_command("T"), connection)
    assert stored(bench, "T")[0].born_host == ("2001:db8::1", 77)


# --- batches


def elements(*bodies: bytes, text: bytes = b"") -> bytes:
    return batch.encode([(number, body, text) for number, body in enumerate(bodies)])


def send_batch(bench: Bench, body: bytes, **fields) -> Command:
    return bench.must(
        send_command("T", body, code=RequestCode.SEND_BATCH_MESSAGE, batch=True, **fields)
    )


def test_a_batch_becomes_one_record_per_message(bench):
    bench.topic("T")
    bench.send("T")
    reply = send_batch(
        bench, elements(b"one", b"two", text=b"TAGS\x01a\x02"), properties="WAIT\x01true"
    )
    first, second = stored(bench, "T")[1:]
    assert [first.stored_body, second.stored_body] == [b"one", b"two"]
    assert [first.flag, second.flag] == [0, 1]
    assert first.properties_text == f"TAGS\x01a\x02WAIT\x01true\x02{ADDED_TEXT}".encode()
    assert first.tags == "a"
    assert reply.header.queue_offset == 1
    places = [parse_offset_id(one).physical_offset for one in reply.header.msg_id.split(",")]
    assert places == [first.physical_offset, second.physical_offset]


def test_elements_without_a_last_separator_get_one(bench):
    bench.topic("T")
    send_batch(bench, elements(b"one", text=b"TAGS\x01a"), properties=None)
    assert stored(bench, "T")[0].properties_text == f"TAGS\x01a\x02{ADDED_TEXT}".encode()


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"", "no message"),
        (elements(b"one")[:-3], "cut off|has a"),
        (elements(b"one", b"two")[:30], "cut off"),
    ],
)
def test_a_broken_batch_is_refused_as_a_whole(bench, body, sentence):
    bench.topic("T")
    reply = send_batch(bench, body)
    assert reply.code == 13
    assert re.search(sentence, reply.remark)
    assert stored(bench, "T") == []


def test_a_batch_cannot_be_delayed(bench):
    bench.topic("T")
    reply = send_batch(bench, elements(b"one"), properties="DELAY\x012")
    assert reply.code == 13


# --- when answers come


async def test_in_sync_mode_the_answer_waits_for_the_disk(make_bench):
    bench = make_bench(flush_disk_type="SYNC_FLUSH")
    bench.topic("T")
    bench.store.start(asyncio.get_running_loop())
    answer = bench.dispatch(send_command("T"), bench.connection)
    assert isinstance(answer, asyncio.Future)
    assert not answer.done()
    reply = await asyncio.wait_for(answer, 10)
    assert reply.code == 0
    assert reply.header.queue_offset == 0
    assert bench.store.syncer.log.flushed == bench.store.log.end


async def test_in_sync_mode_a_message_may_decline_to_wait(make_bench):
    bench = make_bench(flush_disk_type="SYNC_FLUSH")
    bench.topic("T")
    bench.store.start(asyncio.get_running_loop())
    answer = bench.dispatch(send_command("T", properties="WAIT\x01false"), bench.connection)
    assert isinstance(answer, Command)
    assert answer.code == 0


class LateFiles(SlowFiles):
    """A disk whose syncs wait until the test releases them."""

    def before_sync(self, path: Path) -> None:
        self.let.wait(10)


async def test_a_message_whose_sync_takes_too_long_is_stored_and_answered_as_such(make_bench):
    disk = LateFiles()
    bench = make_bench(files=disk, flush_disk_type="SYNC_FLUSH", sync_flush_timeout_ms=20)
    bench.topic("T")
    bench.store.start(asyncio.get_running_loop())
    disk.let.clear()
    reply = await answer_of(bench, send_command("T"))
    disk.let.set()
    assert reply.code == 10
    assert reply.header.msg_id


@pytest.mark.parametrize("mode", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_sends_to_a_new_topic_wait_until_it_is_on_the_disk(make_bench, mode):
    bench = make_bench(flush_disk_type=mode)
    bench.store.start(asyncio.get_running_loop())
    saved = asyncio.get_running_loop().create_future()
    bench.changes.pending["New"] = saved
    answer = asyncio.ensure_future(bench.dispatch(send_command("New"), bench.connection))
    await asyncio.sleep(0.05)
    assert not answer.done()
    bench.topic("Old")
    assert bench.store.config.defers or bench.send("Old").code == 0
    saved.set_result(False)
    assert (await answer).code == 0

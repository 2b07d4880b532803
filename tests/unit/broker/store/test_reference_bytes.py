"""The same messages give the same bytes as the reference store (1024-byte files)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.store.engine import GetStatus, MessageStore, PendingMessage, StoreConfig
from remoting.protocol.message import properties
from remoting.protocol.message.record import host_bytes
from remoting.protocol.message.tags import tags_code
from tests.support.clock import ManualClock

BORN = 1_600_000_000_000
BORN_HOST = host_bytes("10.1.2.3", 54321)
TIMES = (0x1A1FAFDD6E8, 0x1A1FAFDD712, 0x1A1FAFDD72D, 0x1A1FAFDD75B, 0x1A1FAFDD77B, 0x1A1FAFDD786)

RECORDS = {
    0: (
        "0000008adaa320a73610a68600000000000000000000000000000000000000000000000000000000"
        "00000174876e80000a0102030000d431000001a1fafdd6e80a09080700002a9f0000000000000000"
        "000000000000000568656c6c6f09546f7069635465737400214b455953016b31206b320254414753"
        "015461674102554e49515f4b455901554b31"
    ),
    138: (
        "0000009cdaa320a76c814a3700000002000000000000000000000000000000000000008a00000000"
        "00000174876e80000a0102030000d431000001a1fafdd7120a09080700002a9f0000000000000000"
        "000000000000000764656c61796564135343484544554c455f544f5049435f58585858002744454c"
        "41590133025245414c5f544f50494301546f70696354657374025245414c5f5149440131"
    ),
    294: (
        "00000074daa320a747cc1be000000000000000000000000000000001000000000000012600000000"
        "00000174876e80000a0102030000d431000001a1fafdd72d0a09080700002a9f0000000000000000"
        "0000000000000002623109546f70696354657374000e78013102434c5553544552014331"
    ),
    410: (
        "00000071daa320a711b5c3ad00000000000000000000000000000002000000000000019a00000000"
        "00000174876e80000a0102030000d431000001a1fafdd72d0a09080700002a9f0000000000000000"
        "000000000000000362323209546f70696354657374000a434c5553544552014331"
    ),
    1524: (
        "00000068daa320a77b5a41210000000000000000000000000000000000000000000005f400000004"
        "00000174876e80000a0102030000d431000001a1fafdd77b0a09080700002a9f0000000000000000"
        "000000000000000468616c6609546f706963546573740000"
    ),
    1628: (
        "00000072daa320a77706591600000000000000000000000000000004000000000000065c00000010"
        "00000174876e800020010db800000000000000000000000100000005000001a1fafdd7860a090807"
        "00002a9f00000000000000000000000000000002763609546f706963546573740000"
    ),
}
ENTRIES = (
    "00000000000000000000008a000000000027a807"
    "0000000000000126000000740000000000000000"
    "000000000000019a000000710000000000000000"
    "0000000000000400000001f40000000000000000"
    "000000000000065c000000720000000000000000"
)


def pending(body: bytes, text: dict[str, str | None], **more: object) -> PendingMessage:
    values: dict[str, object] = {
        "topic": "TopicTest",
        "queue_id": 0,
        "tags_code": tags_code(text.get("TAGS")),
        "born_timestamp_ms": BORN,
        "born_host": BORN_HOST,
    }
    return PendingMessage(
        body=body,
        properties=properties.encode(text),
        **(values | more),  # type: ignore[arg-type] # a test's keywords
    )


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    clock = ManualClock(now_ms=TIMES[0])
    store = MessageStore(
        StoreConfig(
            root=tmp_path / "store",
            mapped_file_size_commit_log=1024,
            mapped_file_size_consume_queue=2000,
            store_host=("10.9.8.7", 10911),
        ),
        clock=clock,
    )
    store.open()

    def wait_until(moment: int) -> None:
        clock.advance((moment - clock.now_ms()) / 1000)

    store.put(pending(b"hello", {"KEYS": "k1 k2", "TAGS": "TagA", "UNIQ_KEY": "UK1"}))
    wait_until(TIMES[1])
    delayed = {"DELAY": "3", "REAL_TOPIC": "TopicTest", "REAL_QID": "1"}
    store.put(
        pending(
            b"delayed",
            delayed,
            topic="SCHEDULE_TOPIC_XXXX",
            queue_id=2,
            tags_code=TIMES[1] + 10_000,
        )
    )
    wait_until(TIMES[2])
    store.put_batch(
        [pending(b"b1", {"x": "1", "CLUSTER": "C1"}), pending(b"b22", {"CLUSTER": "C1"})]
    )
    wait_until(TIMES[3])
    store.put(pending(b"z" * 400, {}))
    wait_until(TIMES[4])
    store.put(pending(b"half", {}, sys_flag=4))
    wait_until(TIMES[5])
    store.put(pending(b"v6", {}, born_host=host_bytes("2001:db8::1", 5)))
    yield store
    store.close()


def test_the_records_are_byte_for_byte_those_of_the_reference(store: MessageStore) -> None:
    log = b"".join(path.read_bytes() for path in sorted(store.paths.commit_log.iterdir()))
    for at, text in RECORDS.items():
        record = bytes.fromhex(text)
        assert log[at : at + len(record)].hex() == record.hex(), at
    assert log[523:531].hex() == "000001f5cbd43194"
    assert not any(log[531:1024])


def test_the_queue_entries_are_those_of_the_reference(store: MessageStore) -> None:
    queues = store.paths.consume_queues
    entries = (queues / "TopicTest/0" / ("0" * 20)).read_bytes()
    assert len(entries) == 2000
    assert entries[:100].hex() == ENTRIES
    assert not any(entries[100:])
    delayed = (queues / "SCHEDULE_TOPIC_XXXX/2" / ("0" * 20)).read_bytes()
    assert delayed[:20].hex() == "000000000000008a0000009c000001a1fafdfe22"


@pytest.mark.parametrize(
    ("offset", "status", "following", "count"),
    [
        (-1, GetStatus.OFFSET_TOO_SMALL, 0, 0),
        (0, GetStatus.FOUND, 5, 5),
        (1, GetStatus.FOUND, 5, 4),
        (4, GetStatus.FOUND, 5, 1),
        (5, GetStatus.OFFSET_OVERFLOW_ONE, 5, 0),
        (6, GetStatus.OFFSET_OVERFLOW_BADLY, 5, 0),
        (100, GetStatus.OFFSET_OVERFLOW_BADLY, 5, 0),
    ],
)
def test_reads_are_answered_as_the_reference_answers_them(
    store: MessageStore, offset: int, status: GetStatus, following: int, count: int
) -> None:
    result = store.get("TopicTest", 0, offset, 32)
    assert (result.status, result.next_offset, result.count) == (status, following, count)
    assert (result.min_offset, result.max_offset) == (0, 5)


def test_an_unknown_queue_is_empty_and_is_not_created_by_a_read(store: MessageStore) -> None:
    result = store.get("Unknown", 0, 5, 32)
    assert (result.status, result.next_offset) == (GetStatus.NO_MESSAGE_IN_QUEUE, 0)
    assert store.queries.min_offset("Unknown", 0) == store.queries.max_offset("Unknown", 0) == 0
    assert store.queries.earliest_store_time("Unknown", 0) == -1
    assert store.queries.offset_by_time("Unknown", 0, 0) == 0
    assert store.queues.topics() == ["SCHEDULE_TOPIC_XXXX", "TopicTest"]


def test_times_are_answered_as_the_reference_answers_them(store: MessageStore) -> None:
    assert store.queries.offset_by_time("TopicTest", 0, 0) == 0
    assert store.queries.offset_by_time("TopicTest", 0, TIMES[5] + 10**9) == 4
    assert store.queries.earliest_store_time("TopicTest", 0) == TIMES[0]
    assert store.queries.store_time_at("TopicTest", 0, 4) == TIMES[5]


def test_a_clean_stop_leaves_the_same_files_as_the_reference(store: MessageStore) -> None:
    root = store.paths.root
    assert (root / "abort").read_bytes() == b""
    store.close()
    assert sorted(path.name for path in root.iterdir()) == [
        "checkpoint",
        "commitlog",
        "consumequeue",
        "index",
        "lock",
        "pocketmq-checkpoint",
    ]
    assert (root / "lock").read_bytes() == b"lock"
    checkpoint = (root / "checkpoint").read_bytes()
    assert len(checkpoint) == 4096
    assert checkpoint[:16].hex() == f"{TIMES[5]:016x}" * 2
    assert not any(checkpoint[16:])

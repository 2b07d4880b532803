"""Delayed messages with a real store and a manual clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from broker.delivery.deliverer import Delays
from broker.delivery.redelivery import postpone
from broker.store.engine import MessageStore, PendingMessage, PutResult, PutStatus
from broker.store.limits import StoreLimits
from broker.store.os_files import Files
from broker.traffic.counts import BrokerCounters
from remoting.protocol.disk.delays import FILE_NAME
from remoting.protocol.message.tags import tags_code
from remoting.protocol.names import HALF_TOPIC, SCHEDULE_TOPIC
from tests.support.clock import ManualClock
from tests.unit.broker.store.stores import (
    FailingFiles,
    bodies,
    message,
    opened,
    read_all,
)
from tests.unit.broker.store.test_cold_reads import SlowFiles

LEVELS = "1s 5s"
LEVELS_MS = (1000, 5000)


class SettableClock(ManualClock):
    """A clock whose wall time can be set."""

    __slots__ = ()

    def set_back(self, seconds: float) -> None:
        self._now_ms -= round(seconds * 1000)


class Late:
    """A store with its delayed messages, as a broker has them."""

    def __init__(self, root: Path, files: Any = None, **changes: Any) -> None:
        self.root = root
        self.clock = SettableClock()
        self.counters = BrokerCounters()
        self.saved: dict[int, int] | None = None
        self.files = files or Files()
        self.changes = changes
        self.store: MessageStore
        self.delays: Delays

    def open(self) -> None:
        self.store = opened(self.root, files=self.files, clock=self.clock, **self.changes)
        self.delays = Delays(LEVELS_MS, self.store, self.clock, self.counters)
        self.delays.open(self.root / "config", self.files, self.saved, self.save)
        self.store.dispatcher.on_arrival = self.arrived

    def save(self, offsets: dict[int, int]) -> None:
        self.saved = offsets

    def arrived(self, topic: str, queue_id: int, _: int, code: int) -> None:
        if topic == SCHEDULE_TOPIC:
            self.delays.arrived(queue_id, code)

    def send(self, body: bytes, level: int = 1, **fields: Any) -> None:
        pending = message(body, **fields)
        postpone(pending, level, LEVELS_MS)
        assert self.store.put(pending).status is PutStatus.OK

    async def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        await asyncio.wait_for(self.delays.deliver_due(), 10)

    def kill(self) -> None:
        """Stop as a killed process does: the page cache stays."""
        abort = self.store.paths.abort
        self.store.close()
        abort.touch()


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Late]]:
    made: list[Late] = []

    def make_one(**options: Any) -> Late:
        late = Late(tmp_path / "store", **options)
        late.open()
        made.append(late)
        return late

    yield make_one
    for late in made:
        late.store.close()


@pytest.fixture
def late(make: Callable[..., Late]) -> Late:
    return make()


async def test_after_a_step_of_the_clock_all_that_is_due_is_delivered_once(late: Late) -> None:
    for number in range(500):
        late.send(b"%d" % number)
    task = asyncio.create_task(late.delays.run())
    await asyncio.sleep(0)
    late.clock.advance(10)
    await asyncio.wait_for(asyncio.gather(late.delays.catch_up(), late.delays.catch_up()), 10)
    assert bodies(late.store) == [b"%d" % number for number in range(500)]
    task.cancel()


async def test_messages_of_a_deleted_topic_are_not_delivered_to_a_new_one(
    make: Callable[..., Late],
) -> None:
    late = make()
    late.send(b"old")
    late.send(b"other", topic="Other")
    late.send(b"old retry", topic="%RETRY%g", properties=b"RETRY_TOPIC\x01TopicTest")
    late.store.delete_topic("TopicTest")
    late.kill()
    late.open()
    late.send(b"new")
    late.send(b"new retry", topic="%RETRY%g", properties=b"RETRY_TOPIC\x01TopicTest")
    await late.pass_time(1)
    assert bodies(late.store) == [b"new"]
    assert bodies(late.store, "Other") == [b"other"]
    assert bodies(late.store, "%RETRY%g") == [b"new retry"]


# --- what is delivered when


async def test_a_message_is_delivered_when_its_delay_is_over_and_not_before(late: Late) -> None:
    late.send(b"soon")
    late.send(b"later", 2)
    await late.pass_time(0.999)
    assert bodies(late.store) == []
    await late.pass_time(0.001)
    assert bodies(late.store) == [b"soon"]
    await late.pass_time(4.0)
    assert bodies(late.store) == [b"soon", b"later"]
    assert late.counters.messages_delivered_late == 2


async def test_a_delivered_message_is_the_sent_one_with_its_whole_text(late: Late) -> None:
    late.send(
        b"body",
        queue_id=3,
        tag="paid",
        flag=9,
        sys_flag=0x301,
        reconsume_times=2,
        store_host=b"\x0a\x00\x00\x07\x00\x00\x2a\x9f",
    )
    waiting = read_all(late.store, SCHEDULE_TOPIC, 0)[0]
    late.clock.advance(1)
    await late.delays.deliver_due()
    (record,) = read_all(late.store, "TopicTest", 3)
    assert record.stored_body == b"body"
    assert record.properties_text == waiting.properties_text
    assert record.properties == {"TAGS": "paid", "REAL_TOPIC": "TopicTest", "REAL_QID": "3"}
    for name in ("flag", "sys_flag", "reconsume_times", "born_timestamp_ms", "born_host"):
        assert getattr(record, name) == getattr(waiting, name)
    assert record.store_host == waiting.store_host == ("10.0.0.7", 10911)
    assert record.store_timestamp_ms == waiting.store_timestamp_ms + 1000
    codes = await late.store.cold_reads.tags_codes("me", "TopicTest", 3, 0, 10)
    assert codes == [tags_code("paid")]


async def test_hosts_of_either_kind_are_kept(late: Late) -> None:
    born, stored = b"\x20" * 16 + b"\0\0\x12\x34", b"\x30" * 16 + b"\0\0\x43\x21"
    late.send(b"one", born_host=born)
    late.send(b"two", store_host=stored)
    await late.pass_time(1)
    one, two = read_all(late.store)
    assert one.born_host_bytes == born
    assert two.store_host_bytes == stored


async def test_many_messages_keep_their_order_in_each_level(late: Late) -> None:
    for number in range(300):
        late.send(b"%d" % number, 1 + number % 2, topic=f"T{number % 2}")
    await late.pass_time(5)
    assert bodies(late.store, "T0") == [b"%d" % n for n in range(0, 300, 2)]
    assert bodies(late.store, "T1") == [b"%d" % n for n in range(1, 300, 2)]


async def test_the_task_sleeps_until_the_first_is_due_and_wakes_for_an_earlier_one(
    late: Late, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float | None] = []
    timeout = asyncio.timeout

    def noted(seconds: float | None) -> Any:
        waits.append(seconds)
        return timeout(None)

    monkeypatch.setattr(asyncio, "timeout", noted)
    task = asyncio.create_task(late.delays.run())
    for send in (lambda: None, lambda: late.send(b"later", 2), lambda: late.send(b"soon", 1)):
        send()
        await asyncio.sleep(0.01)
    late.send(b"soon after", 1)
    await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert waits == [None, 5.0, 1.0]


async def test_a_clock_set_back_delivers_at_once_what_would_wait_too_long(late: Late) -> None:
    late.send(b"soon")
    late.clock.set_back(3600)
    await late.delays.deliver_due()
    assert bodies(late.store) == [b"soon"]


async def test_in_sync_mode_what_the_disk_does_not_have_is_neither_delivered_nor_seen(
    make: Callable[..., Late],
) -> None:
    late = make(flush_disk_type="SYNC_FLUSH")
    late.send(b"soon")
    await late.pass_time(5)
    assert late.counters.messages_delivered_late == 0
    late.store.flush()
    await late.delays.deliver_due()
    assert late.counters.messages_delivered_late == 1
    assert bodies(late.store) == []
    late.store.flush()
    assert bodies(late.store) == [b"soon"]


# --- restarts


async def test_a_restart_delivers_what_came_due_meanwhile(late: Late) -> None:
    late.send(b"one")
    await late.pass_time(1)
    late.send(b"two")
    late.send(b"three", 2)
    late.delays.save_all()
    late.store.close()
    late.clock.advance(3)
    late.open()
    await late.delays.deliver_due()
    assert bodies(late.store) == [b"one", b"two"]
    await late.pass_time(2)
    assert bodies(late.store) == [b"one", b"two", b"three"]
    assert late.saved == {1: 1}


async def test_a_killed_broker_continues_where_it_was(late: Late) -> None:
    for number in range(100):
        late.send(b"%d" % number)
    await late.pass_time(1)
    late.send(b"100")
    late.kill()
    assert late.saved is None
    late.open()
    await late.pass_time(1)
    assert bodies(late.store) == [b"%d" % number for number in range(101)]


async def test_progress_is_not_written_before_the_disk_has_the_deliveries(late: Late) -> None:
    late.send(b"one")
    await late.pass_time(1)
    late.delays.save()
    assert late.saved is None
    late.store.flush()
    late.send(b"two")
    await late.pass_time(1)
    late.delays.save()
    assert late.saved == {1: 1}
    late.delays.save()
    late.store.flush()
    late.delays.save()
    assert late.saved == {1: 2}


async def test_in_controller_mode_progress_is_not_written_before_deliveries_are_confirmed(
    make: Callable[..., Late],
) -> None:
    late = make(controlled=True)

    def confirm() -> None:
        late.store.syncer.confirm(late.store.log.end)

    late.send(b"one")
    confirm()
    await late.pass_time(1)
    late.store.flush()
    late.delays.save()
    assert late.saved is None
    confirm()
    late.send(b"two")
    confirm()
    await late.pass_time(1)
    late.delays.save_all()
    assert late.saved == {1: 1}
    # The next master cuts this delivery, and gives this log another end, as long.
    late.store.close()
    late.open()
    assert late.delays.offsets == {1: 1}


async def test_after_losing_the_end_of_the_log_messages_are_delivered_twice_rather_than_never(
    late: Late,
) -> None:
    late.send(b"one")
    await late.pass_time(1)
    note = (late.root / "config" / FILE_NAME).read_bytes()
    late.store.close()
    shorter = Late(late.root.with_name("shorter"))
    shorter.open()
    shorter.send(b"one")
    shorter.store.close()
    (shorter.root / "config" / FILE_NAME).write_bytes(note)
    shorter.open()
    await shorter.pass_time(1)
    assert bodies(shorter.store) == [b"one"]
    shorter.store.close()


async def test_lost_progress_is_logged_as_an_error(late: Late) -> None:
    late.send(b"one")
    await late.pass_time(1)
    late.store.close()
    (late.root / "config" / FILE_NAME).unlink()
    with capture_logs() as logs:
        late.open()
    assert "delayOffset.json is missing" in logs[0]["event"]
    await late.delays.deliver_due()
    assert bodies(late.store) == [b"one", b"one"]


async def test_levels_that_were_taken_out_are_still_delivered(late: Late) -> None:
    pending = message(b"old level")
    postpone(pending, 3, (*LEVELS_MS, 60_000))
    late.store.put(pending)
    late.store.close()
    late.open()
    await late.pass_time(59)
    assert bodies(late.store) == []
    await late.pass_time(1)
    assert bodies(late.store) == [b"old level"]


# --- trouble


async def test_a_full_disk_delays_and_loses_nothing(make: Callable[..., Late]) -> None:
    files = FailingFiles()
    late = make(files=files)
    for number in range(5):
        late.send(b"%d" % number, topic="New")
    files.full = True
    with capture_logs() as logs:
        await late.pass_time(1)
    assert any("can't be stored now" in log["event"] for log in logs)
    assert late.counters.messages_delivered_late == 0
    files.full = False
    await late.pass_time(2)
    assert bodies(late.store, "New") == [b"%d" % number for number in range(5)]


async def test_what_was_delivered_before_a_failure_is_not_delivered_again(
    late: Late, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        late.send(b"%d" % number)
    put, puts = late.store.put, count()

    def failing(pending: PendingMessage) -> PutResult:
        if next(puts) == 2:
            raise OSError(12, "Cannot allocate memory")
        return put(pending)

    monkeypatch.setattr(late.store, "put", failing)
    await late.pass_time(1)
    assert bodies(late.store) == [b"0", b"1"]
    await late.pass_time(1)
    assert bodies(late.store) == [b"%d" % number for number in range(5)]


async def test_a_message_without_a_real_topic_is_logged_and_skipped(late: Late) -> None:
    for text in (b"", b"REAL_TOPIC\x01T\x02REAL_QID\x01x"):
        late.store.put(message(b"lost", topic=SCHEDULE_TOPIC, properties=text, due_in_ms=1000))
    late.send(b"half", topic=HALF_TOPIC)
    late.send(b"good")
    with capture_logs() as logs:
        await late.pass_time(1)
    assert bodies(late.store) == [b"good"]
    assert len({log["id"] for log in logs}) == 3


async def test_a_damaged_record_is_skipped_alone(late: Late) -> None:
    for number in range(4):
        late.send(b"%d" % number)
    place = read_all(late.store, SCHEDULE_TOPIC, 0)[1].physical_offset
    with (late.root / "commitlog" / ("0" * 20)).open("r+b") as log:
        log.seek(place)
        log.write(b"\0" * 16)
    with capture_logs() as logs:
        await late.pass_time(1)
        assert bodies(late.store) == []
        await late.pass_time(1)
    assert bodies(late.store) == [b"0", b"2", b"3"]
    assert [(log["level"], log["offset"]) for log in logs if "offset" in log] == [(1, 1)]


async def test_a_body_that_has_become_too_large_blocks_no_other_message(late: Late) -> None:
    late.send(b"x" * 2000)
    late.send(b"small")
    late.store.close()
    late.changes = {"max_message_size": 1024}
    late.open()
    with capture_logs() as logs:
        await late.pass_time(1)
    assert bodies(late.store) == [b"small"]
    assert logs[0]["event"].startswith("a delayed message is not delivered")


async def test_messages_from_long_ago_are_read_in_a_thread(tmp_path: Path) -> None:
    files = SlowFiles()
    limits = StoreLimits(hot_log_bytes=1024, hot_queue_entries=4)
    late = Late(tmp_path / "store", files=files, limits=limits)
    late.open()
    for number in range(150):
        late.send(b"%d" % number)
    late.store.close()
    late.open()
    files.cold = True
    await late.pass_time(1)
    assert bodies(late.store) == [b"%d" % number for number in range(150)]
    assert {str(path.parent.name) for path, _, _ in files.fetched} >= {"commitlog", "0"}
    late.store.close()


async def test_a_disk_that_cannot_be_read_is_tried_again(tmp_path: Path) -> None:
    files = SlowFiles()
    late = Late(tmp_path / "store", files=files, limits=StoreLimits(hot_log_bytes=1024))
    late.open()
    late.send(b"one")
    late.store.close()
    late.open()
    files.cold = True
    files.error = OSError(5, "Input/output error")
    with capture_logs() as logs:
        await late.pass_time(1)
    assert "retrying" in logs[-1]["event"]
    files.error = None
    await late.pass_time(1)
    assert bodies(late.store) == [b"one"]
    late.store.close()

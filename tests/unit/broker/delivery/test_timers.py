"""Timer messages with a real store and a manual clock."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from broker.delivery import timer_rules as rules
from broker.delivery.timers import Timers
from broker.limits import BrokerLimits
from broker.store.engine import MessageStore, PutStatus
from broker.store.os_files import Files
from broker.store.raw_files import extents
from broker.storetools.verify.check import CheckOptions, check
from broker.storetools.verify.findings import Severity
from broker.storetools.verify.repair import repair
from broker.traffic.counts import BrokerCounters
from remoting.protocol.disk import delays, timer
from remoting.protocol.limits import MAX_PROPERTIES_BYTES
from remoting.protocol.message import properties
from remoting.protocol.names import HALF_TOPIC, TIMER_TOPIC
from tests.support.clock import ManualClock
from tests.support.virtual_time import virtual
from tests.unit.broker.store.stores import LOG_FILE, FailingFiles, bodies, message, opened, read_all

LOG_FILE_BYTES = 52 * 40 + 20
LIMITS = BrokerLimits(delivered_at_once=3, timers_read_at_once=4, timers_loaded_at_once=5)


class TickingClock(ManualClock):
    """The clock of an event loop whose steps take time: a ms for each question."""

    def __init__(self, loop_time: Callable[[], float]) -> None:
        super().__init__()
        self._loop_time = loop_time
        self._asked_at = self._asked = self._last_ms = 0

    def now_ms(self) -> int:
        at_ms = 1_700_000_000_000 + round(self._loop_time() * 1000)
        self._asked = self._asked + 1 if at_ms == self._asked_at else 0
        self._asked_at = at_ms
        self._last_ms = max(self._last_ms, at_ms + self._asked)
        return self._last_ms


class Timed:
    """A store with its timer messages, as a broker has them."""

    def __init__(
        self,
        root: Path,
        *,
        window: int = 172_800,
        files: Any = None,
        log_file: int = LOG_FILE,
        clock: ManualClock | None = None,
        limits: BrokerLimits = LIMITS,
        controlled: bool = False,
    ) -> None:
        self.root = root
        self.controlled = controlled
        self.limits = limits
        self.log_file = log_file
        self.clock = clock or ManualClock(now_ms=1_700_000_000_500)
        self.counters = BrokerCounters()
        self.window = window
        self.files = files or Files()
        self.store: MessageStore
        self.timers: Timers

    def open(self) -> None:
        self.store = opened(
            self.root,
            files=self.files,
            clock=self.clock,
            mapped_file_size_commit_log=self.log_file,
            controlled=self.controlled,
        )
        self.timers = Timers(
            self.store,
            self.clock,
            self.counters,
            window_slots=self.window,
            log_file_bytes=LOG_FILE_BYTES,
            limits=self.limits,
        )
        self.timers.open(self.root / "config", self.files)

    def send(self, body: bytes, due_ms: int, *, uniq: str = "", **fields: Any) -> None:
        """Store a message that is due after ``due_ms`` from now."""
        at = self.clock.now_ms() + due_ms
        pending = message(body, **fields)
        found = {properties.TIMER_DELIVER_MS: str(at), properties.UNIQ_KEY: uniq or None}
        pending.properties = properties.join(pending.properties, properties.encode(found))
        rules.to_timer(pending, at)
        assert self.store.put(pending).status is PutStatus.OK

    def recall(self, uniq: str, due_ms: int) -> None:
        at = rules.slot_of(self.clock.now_ms() + due_ms) + 1
        key = rules.recall_key("TopicTest", uniq)
        pending = message(b"0")
        found = {properties.TIMER_DELIVER_MS: str(at), properties.TIMER_DEL_UNIQKEY: key}
        pending.properties = properties.encode(found)
        rules.to_timer(pending, at)
        assert self.store.put(pending).status is PutStatus.OK

    async def turn(self) -> None:
        await asyncio.wait_for(self.timers.deliver_due(), 90)

    async def pass_ms(self, ms: int) -> None:
        self.clock.advance(ms / 1000)
        await self.turn()

    async def stop(self) -> None:
        self.timers.wheel.save_all()
        self.store.close()

    def lose_wheel(self) -> None:
        """Leave zeros of the wheel, in one hole."""
        wheel = self.root / "timerwheel"
        os.truncate(wheel, 0)
        os.truncate(wheel, timer.WHEEL_BYTES)

    def kill(self) -> None:
        """Stop as a killed process does: the page cache stays."""
        abort = self.store.paths.abort
        self.store.close()
        abort.touch()


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Timed]]:
    made: list[Timed] = []

    def make_one(**options: Any) -> Timed:
        timed = Timed(tmp_path / "store", **options)
        timed.open()
        made.append(timed)
        return timed

    yield make_one
    for timed in made:
        timed.store.close()


@pytest.fixture
def timed(make: Callable[..., Timed]) -> Timed:
    return make()


# --- what is delivered when


@pytest.mark.parametrize("wait_ms", [1, 499, 500, 501, 999, 1000, 1500, 7001, 86_400_000])
async def test_a_message_is_delivered_at_its_ms_and_not_before(timed: Timed, wait_ms: int) -> None:
    timed.send(b"now", wait_ms)
    await timed.pass_ms(wait_ms - 1)
    assert bodies(timed.store) == []
    await timed.pass_ms(1)
    assert bodies(timed.store) == [b"now"]
    assert timed.counters.timers_delivered == 1
    assert timed.timers.wheel.waiting == 0


@pytest.mark.parametrize("window", [172_800, 5])
async def test_messages_of_a_deleted_topic_are_not_delivered_to_a_new_one(
    make: Callable[..., Timed], window: int
) -> None:
    timed = make(window=window)
    timed.send(b"old", 9000)
    timed.send(b"other", 9000, topic="Other")
    await timed.turn()
    timed.store.delete_topic("TopicTest")
    timed.kill()
    timed.open()
    timed.send(b"new", 9000)
    for _ in range(20):
        await timed.pass_ms(500)
    assert bodies(timed.store) == [b"new"]
    assert bodies(timed.store, "Other") == [b"other"]
    assert timed.timers.wheel.waiting == 0


@virtual
async def test_the_second_after_a_message_in_the_last_ms_of_one_is_not_late(
    make: Callable[..., Timed],
) -> None:
    loop = asyncio.get_running_loop()
    timed = make(clock=TickingClock(loop.time))
    begin_ms = timed.clock.now_ms() // 1000 * 1000 + 10_000
    due = [begin_ms + 1000 * n + ms for n in range(100) for ms in (1, 990 + n % 10)]
    for at in due:
        timed.send(b"1", at - timed.clock.now_ms())
    running = loop.create_task(timed.timers.run())
    await asyncio.sleep(120)
    running.cancel()

    stored = [record.store_timestamp_ms for record in read_all(timed.store)]
    late = [ms - at for ms, at in zip(stored, due, strict=True)]
    assert 0 <= min(late) <= max(late) < 100


async def test_messages_are_delivered_in_the_order_of_their_times(timed: Timed) -> None:
    waits = [3000, 10, 2500, 999, 1700, 1, 2501, 11, 1699]
    for wait_ms in waits:
        timed.send(b"%d" % wait_ms, wait_ms)
    await timed.turn()
    assert timed.timers.wheel.waiting == len(waits)
    for _ in range(35):
        await timed.pass_ms(100)
    assert bodies(timed.store) == [b"%d" % wait_ms for wait_ms in sorted(waits)]


async def test_messages_of_one_ms_are_delivered_in_the_order_of_sending(timed: Timed) -> None:
    for number in range(200):
        timed.send(b"%d" % number, 5000)
    await timed.pass_ms(5000)
    assert bodies(timed.store) == [b"%d" % number for number in range(200)]


async def test_a_message_sent_into_the_present_second_waits_for_its_ms(timed: Timed) -> None:
    timed.send(b"later", 400)
    await timed.pass_ms(200)
    timed.send(b"sooner", 100)
    await timed.pass_ms(100)
    assert bodies(timed.store) == [b"sooner"]
    await timed.pass_ms(100)
    assert bodies(timed.store) == [b"sooner", b"later"]


async def test_a_relative_time_counts_from_the_store_time(timed: Timed) -> None:
    pending = message(b"soon")
    pending.properties = b"TIMER_DELAY_MS\x01700"
    rules.to_timer(pending, timed.clock.now_ms() + 700)
    assert timed.store.put(pending).status is PutStatus.OK
    await timed.pass_ms(699)
    assert bodies(timed.store) == []
    await timed.pass_ms(1)
    assert bodies(timed.store) == [b"soon"]


async def test_a_delivered_message_is_the_sent_one_with_the_times_of_the_wheel(
    timed: Timed,
) -> None:
    at = timed.clock.now_ms() + 2000
    timed.send(b"body", 2000, queue_id=3, tag="paid", flag=9, reconsume_times=2, uniq="U1")
    waiting = read_all(timed.store, TIMER_TOPIC, 0)[0]
    await timed.pass_ms(2000)
    (record,) = read_all(timed.store, "TopicTest", 3)
    assert record.stored_body == b"body"
    assert record.properties == {
        "TAGS": "paid",
        "TIMER_DELIVER_MS": str(at),
        "UNIQ_KEY": "U1",
        "TIMER_OUT_MS": str(rules.slot_of(at)),
        "REAL_TOPIC": "TopicTest",
        "REAL_QID": "3",
        "TIMER_ENQUEUE_MS": "1700000000000",
        "TIMER_DEQUEUE_MS": str(at),
    }
    for name in ("flag", "sys_flag", "reconsume_times", "born_timestamp_ms", "store_host"):
        assert getattr(record, name) == getattr(waiting, name)


async def test_what_was_due_while_the_broker_was_stopped_is_delivered_at_the_start(
    timed: Timed,
) -> None:
    for days in (1, 2):
        timed.send(b"%d" % days, days * 86_400_000 - 77)
    await timed.turn()
    await timed.stop()
    timed.clock.advance(13 * 86_400)  # more than the wheel reaches beside the window
    timed.open()
    await timed.turn()
    assert bodies(timed.store) == [b"1", b"2"]
    timed.send(b"next", 1)
    await timed.pass_ms(1)
    assert bodies(timed.store) == [b"1", b"2", b"next"]


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("back_ms", [3000, 25_000, 3_600_000])
async def test_after_the_clock_is_set_back_new_timers_are_delivered_in_time_or_at_once(
    timed: Timed, back_ms: int, restarts: bool
) -> None:
    timed.send(b"first", 900)
    await timed.pass_ms(5000)
    timed.clock.jump(-back_ms)
    if restarts:
        await timed.stop()
        timed.open()
    with capture_logs() as logs:
        timed.send(b"behind the last delivery", 1000)
        timed.send(b"ahead of it", back_ms + 2000)
        await timed.turn()
    assert bodies(timed.store) == [b"first", b"behind the last delivery"]
    assert ["clock was set back" in log["event"] for log in logs] == [True]
    await timed.pass_ms(back_ms + 1999)
    assert len(bodies(timed.store)) == 2
    await timed.pass_ms(1)
    assert bodies(timed.store)[2:] == [b"ahead of it"]


async def test_timers_wait_for_a_retry_by_the_monotonic_clock(tmp_path: Path) -> None:
    files = FailingFiles()
    timed = Timed(tmp_path / "store", files=files)
    timed.open()
    timed.send(b"one", 1000)
    await timed.turn()
    files.full = True
    await timed.pass_ms(1500)
    files.full = False
    timed.clock.jump(-400)
    await timed.pass_ms(1000)
    assert bodies(timed.store) == [b"one"]
    timed.store.close()


# --- longer than the roll window


@pytest.mark.parametrize("wait_ms", [4000, 5001, 9999, 30_000, 61_234])
async def test_a_message_behind_the_roll_window_is_stored_again_and_never_early(
    make: Callable[..., Timed], wait_ms: int
) -> None:
    timed = make(window=4)
    timed.send(b"far", wait_ms, uniq="U")
    left = wait_ms
    while left > 1:
        step = min(500, left - 1)
        await timed.pass_ms(step)
        left -= step
    assert bodies(timed.store) == []
    await timed.pass_ms(1)
    (record,) = read_all(timed.store)
    assert record.stored_body == b"far"
    rolled = len(read_all(timed.store, TIMER_TOPIC, 0)) - 1
    assert int(record.properties.get("TIMER_ROLL_TIMES", 0)) == rolled
    assert (rolled > 0) == (wait_ms > 4500)


@pytest.mark.parametrize("left", [0, 40, 80, 110])
@pytest.mark.parametrize("asks", [b"TIMER_DELIVER_MS\x011700000010000", b"TIMER_DELAY_MS\x019500"])
async def test_properties_without_room_for_the_times_of_the_wheel_are_delivered_as_sent(
    make: Callable[..., Timed], asks: bytes, left: int
) -> None:
    timed = make(window=4, log_file=1 << 20)
    pending = message(b"far")
    pending.properties = asks
    rules.to_timer(pending, 1_700_000_010_000)
    room = MAX_PROPERTIES_BYTES - left - len(pending.properties) - len("\x02A\x01")
    pending.properties += b"\x02A\x01" + b"x" * room
    assert timed.store.put(pending).status is PutStatus.OK
    for _ in range(95):
        assert bodies(timed.store) == []
        await timed.pass_ms(100)
    await timed.pass_ms(1000)
    (record,) = read_all(timed.store)
    assert ("TIMER_DEQUEUE_MS" in record.properties) == (left >= 80)
    assert len(read_all(timed.store, TIMER_TOPIC, 0)) > 1


async def test_a_relative_time_that_was_rolled_ends_with_its_second(
    make: Callable[..., Timed],
) -> None:
    timed = make(window=4)
    pending = message(b"far")
    pending.properties = b"TIMER_DELAY_SEC\x0130"
    rules.to_timer(pending, timed.clock.now_ms() + 30_000)
    assert timed.store.put(pending).status is PutStatus.OK
    for _ in range(300):
        await timed.pass_ms(100)
    assert bodies(timed.store) == []
    await timed.pass_ms(500)
    assert bodies(timed.store) == [b"far"]


# --- recalls


@pytest.mark.parametrize("window", [172_800, 4])
@pytest.mark.parametrize("after_ms", [0, 9500, 10_300])
async def test_a_recalled_message_is_not_delivered(
    make: Callable[..., Timed], after_ms: int, window: int
) -> None:
    timed = make(window=window)
    for uniq in ("A", "B", "C"):
        timed.send(uniq.encode(), 10_400, uniq=uniq)
    for _ in range(after_ms // 100):
        await timed.pass_ms(100)
    timed.recall("B", 10_400 - after_ms)
    await timed.turn()
    for _ in range(120):
        await timed.pass_ms(100)
    assert bodies(timed.store) == [b"A", b"C"]
    assert timed.counters.timers_recalled == 1
    assert timed.timers.wheel.waiting == 0


async def test_a_recall_of_a_message_that_does_not_exist_changes_nothing(timed: Timed) -> None:
    timed.send(b"A", 1400, uniq="A")
    timed.recall("B", 1400)
    await timed.pass_ms(1400)
    assert bodies(timed.store) == [b"A"]
    assert len(read_all(timed.store)) == 1


# --- kills and restarts


async def test_after_a_clean_stop_nothing_is_delivered_twice_or_lost(timed: Timed) -> None:
    for number in range(60):
        timed.send(b"%d" % number, 100 + number * 37)
    for _ in range(24):
        await timed.pass_ms(100)
        await timed.stop()
        timed.open()
    await timed.turn()
    assert bodies(timed.store) == [b"%d" % number for number in range(60)]


@pytest.mark.parametrize("step_ms", [7, 50, 333])
async def test_after_a_kill_nothing_is_delivered_twice_or_lost(timed: Timed, step_ms: int) -> None:
    for number in range(60):
        timed.send(b"%d" % number, 100 + number * 37)
    for step in range(2400 // step_ms):
        await timed.pass_ms(step_ms)
        if step % 5 == 0:
            timed.kill()
            timed.open()
    await timed.turn()
    assert bodies(timed.store) == [b"%d" % number for number in range(60)]


async def test_without_our_progress_a_slot_is_repeated_from_its_beginning(timed: Timed) -> None:
    timed.send(b"first", 600)
    timed.send(b"second", 1200)
    timed.send(b"third", 5000)
    await timed.pass_ms(600)
    await timed.timers.wheel.save()
    timed.store.flush()
    await timed.timers.wheel.save()
    await timed.pass_ms(600)
    timed.kill()
    (timed.root / "config" / timer.PROGRESS_NAME).unlink()
    timed.open()
    await timed.pass_ms(4000)
    assert set(bodies(timed.store)) == {b"first", b"second", b"third"}


async def test_messages_that_the_wheel_lacks_after_a_power_failure_are_read_again(
    timed: Timed,
) -> None:
    for number in range(100):
        timed.send(b"%d" % number, 3000 + number)
    await timed.turn()
    timed.kill()
    # The pages of the second log file and of the wheel did not reach the disk.
    second = timed.root / "timerlog" / f"{LOG_FILE_BYTES:020d}"
    second.write_bytes(bytes(LOG_FILE_BYTES))
    timed.open()
    await timed.pass_ms(4000)
    assert bodies(timed.store) == [b"%d" % number for number in range(100)]


async def test_slots_that_the_power_failure_lost_are_rebuilt_from_the_log(timed: Timed) -> None:
    for number in range(100):
        timed.send(b"%d" % number, 3000 + number)
    await timed.turn()
    timed.kill()
    (timed.root / "timerwheel").write_bytes(bytes(timer.WHEEL_BYTES))
    timed.open()
    assert timed.timers.wheel.waiting == 100
    await timed.pass_ms(4000)
    assert bodies(timed.store) == [b"%d" % number for number in range(100)]


def damage(path: Path, size: int, how: str) -> None:
    """Damage each used part of ``size`` bytes of a file; its holes stay holes."""
    with path.open("r+b") as file:
        length = path.stat().st_size
        for begin, end in list(extents(file.fileno(), length)):
            for at in range(begin // size * size, min(end, length - size), size):
                old = os.pread(file.fileno(), size, at)
                if not any(old):
                    continue
                new = {
                    "zero": bytes(size),
                    "junk": random.Random(at).randbytes(size),
                    "flip": bytes((*old[:-10], old[-10] ^ 1, *bytes(9))),
                }
                os.pwrite(file.fileno(), new[how], at)


@pytest.mark.parametrize("kills", [False, True])
@pytest.mark.parametrize("how", ["zero", "junk", "flip"])
@pytest.mark.parametrize(
    ("names", "size"),
    [
        (["timerwheel"], 32),
        (["timerlog/00000000000000000000"], 52),
        (["timerlog/00000000000000002100"], 52),
        (["config/timercheck"], 56),
        (["config/timerProgress"], 76),
        (["timerwheel", "config/timercheck"], 32),
        (["timerwheel", "config/timercheck", "config/timerProgress"], 32),
    ],
)
async def test_damaged_timer_files_lose_no_timer(
    timed: Timed, names: list[str], size: int, how: str, kills: bool
) -> None:
    for number in range(60):
        timed.send(b"%d" % number, 200 + number * 150)
    for _ in range(20):
        await timed.pass_ms(100)
    if kills:
        await timed.timers.wheel.save()
        timed.kill()
    else:
        await timed.stop()
    for name in names:
        damage(timed.root / name, size, how)
    timed.open()
    for _ in range(80):
        await timed.pass_ms(100)
    assert sorted(set(map(int, bodies(timed.store)))) == list(range(60))
    if len(names) < 3:
        # At most what was delivered since the last sync is repeated.
        assert len(bodies(timed.store)) <= 60 + 13


@pytest.mark.parametrize("how", ["zero", "junk"])
@pytest.mark.parametrize(
    ("name", "size", "kind"),
    [
        ("timerwheel", 32, "timers"),
        ("timerlog/00000000000000000000", 52, "timers"),
        ("config/timercheck", 56, "small-file"),
        ("config/timerProgress", 76, "small-file"),
        ("config/deliveryProgress", 24, "small-file"),
    ],
)
async def test_the_check_of_a_store_finds_damaged_timer_files_and_a_repair_loses_no_timer(
    timed: Timed, name: str, size: int, kind: str, how: str
) -> None:
    for number in range(60):
        timed.send(b"%d" % number, 200 + number * 150)
    for _ in range(20):
        await timed.pass_ms(100)
    await timed.stop()
    path = timed.root / name
    if not path.exists():
        path.write_bytes(delays.encode({1: 3}, 10).ljust(delays.FILE_BYTES, b"\0"))
    assert check(timed.root, CheckOptions()).findings.is_sound
    damage(path, size, how)
    if how == "zero" and kind == "small-file":
        path.write_bytes(b"\1" * 100)
    found = check(timed.root, CheckOptions()).findings
    assert {one.kind for one in found.shown if one.severity is not Severity.NOTE} == {kind}
    assert repair(timed.root, CheckOptions(), lambda _: None).after.findings.is_sound
    timed.open()
    for _ in range(80):
        await timed.pass_ms(100)
    assert sorted(map(int, bodies(timed.store))) == list(range(60))


async def test_the_check_of_a_young_store_finds_no_damaged_timer_files(timed: Timed) -> None:
    await timed.stop()
    path = timed.root / "config" / timer.CHECK_NAME
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(timer.encode_check(timer.TimerCheck(), 1, 1).ljust(timer.CHECK_BYTES, b"\0"))
    assert check(timed.root, CheckOptions()).findings.is_sound


@pytest.mark.parametrize("field", [0, 1, 2, 4, 5])
async def test_a_unit_with_one_wrong_field_loses_no_timer(timed: Timed, field: int) -> None:
    for number in range(20):
        timed.send(b"%d" % number, 3000 + number * 100)
    await timed.turn()
    await timed.stop()
    path = timed.root / "timerlog" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    unit = list(timer.UNIT.unpack_from(data, 7 * timer.UNIT.size))
    unit[field] ^= 4096 if field else 1
    if field == 2:
        unit[field] = timer.NORMAL | timer.DELETE
    timer.UNIT.pack_into(data, 7 * timer.UNIT.size, *unit)
    path.write_bytes(bytes(data))
    with capture_logs() as logs:
        timed.open()
        for _ in range(60):
            await timed.pass_ms(100)
    assert sum("built again" in log["event"] for log in logs) == 1
    assert bodies(timed.store) == [b"%d" % number for number in range(20)]


async def test_a_rebuild_that_is_killed_continues(timed: Timed) -> None:
    for number in range(60):
        timed.send(b"%d" % number, 200 + number * 100)
    for _ in range(30):
        await timed.pass_ms(100)
    await timed.stop()
    timed.lose_wheel()
    timed.open()
    for _ in range(9):
        await timed.timers._step()
        timed.kill()
        timed.open()
    for _ in range(40):
        await timed.pass_ms(100)
    assert bodies(timed.store) == [b"%d" % number for number in range(60)]


async def test_a_rebuild_delivers_rolled_messages_once(make: Callable[..., Timed]) -> None:
    timed = make(window=4)
    for number in range(20):
        timed.send(b"%d" % number, 9000 + number * 100, uniq=f"U{number}")
    for _ in range(70):
        await timed.pass_ms(100)
    await timed.stop()
    timed.lose_wheel()
    timed.open()
    for _ in range(60):
        await timed.pass_ms(100)
    assert sorted(bodies(timed.store)) == sorted(b"%d" % number for number in range(20))


async def test_damaged_timer_files_stop_the_start_with_advice(timed: Timed) -> None:
    timed.send(b"one", 3000)
    await timed.turn()
    await timed.stop()
    (timed.root / "timerwheel").write_bytes(b"short")
    with pytest.raises(Exception, match=r"timerwheel has 5 bytes .* timerWheelEnable=false"):
        timed.open()
    for path in (timed.root / "timerlog").iterdir():
        path.unlink()
    (timed.root / "timerwheel").unlink()
    (timed.root / "config" / timer.CHECK_NAME).unlink()
    (timed.root / "config" / timer.PROGRESS_NAME).unlink()
    timed.store.close()
    with capture_logs() as logs:
        timed.open()
    assert "timer files are missing" in logs[0]["event"]
    await timed.pass_ms(3000)
    assert bodies(timed.store) == [b"one"]


async def test_log_files_go_when_the_commit_log_has_deleted_their_messages(timed: Timed) -> None:
    for number in range(100):
        timed.send(b"%d" % number, 10)
    await timed.turn()
    await timed.pass_ms(1000)
    assert len(list((timed.root / "timerlog").iterdir())) == 3
    timed.timers.wheel._files.trim(timed.store.log.end)
    assert len(list((timed.root / "timerlog").iterdir())) == 1


async def test_a_copy_without_the_wheel_delivers_what_waits_and_nothing_twice(
    timed: Timed,
) -> None:
    for number in range(20):
        timed.send(b"%d" % number, 500 + number * 500)
    await timed.pass_ms(5000)
    await timed.stop()
    (timed.root / "timerwheel").unlink()
    for path in (timed.root / "timerlog").iterdir():
        path.unlink()
    timed.clock.advance(1)
    timed.open()
    delivered = bodies(timed.store)
    await timed.pass_ms(9000)
    # Only the slot that was being delivered may be repeated.
    assert bodies(timed.store)[len(delivered) :][-8:] == [b"%d" % n for n in range(12, 20)]
    assert sorted(set(map(int, bodies(timed.store)))) == list(range(20))
    assert len(bodies(timed.store)) <= 22


async def test_the_checkpoint_has_only_deliveries_that_are_on_the_disk(timed: Timed) -> None:
    def check() -> timer.TimerCheck:
        return timer.decode_check((timed.root / "config" / timer.CHECK_NAME).read_bytes())

    begin_ms = timed.clock.now_ms() - 500
    timed.send(b"first", 600)
    timed.send(b"second", 9000)
    await timed.turn()
    await timed.timers.wheel.save()
    assert check() == (begin_ms, 104, 2)
    await timed.pass_ms(3000)
    await timed.timers.wheel.save()
    await timed.timers.wheel.save()
    assert check() == (begin_ms, 104, 2)
    timed.store.flush()
    await timed.timers.wheel.save()
    assert check() == (begin_ms + 3000, 104, 2)


async def test_slaves_are_told_of_confirmed_deliveries_only(make: Callable[..., Timed]) -> None:
    timed = make(controlled=True)
    wheel, syncer = timed.timers.wheel, timed.store.syncer
    timed.send(b"1", 600)
    syncer.confirm(timed.store.log.end)
    await timed.turn()
    begin_ms = wheel.read_ms
    await timed.pass_ms(3000)
    assert wheel.read_ms > begin_ms
    timed.store.flush()
    for _ in range(2):
        await wheel.save()
    assert wheel.check_point().read_ms == begin_ms
    syncer.confirm(timed.store.log.end)
    await wheel.save()
    assert wheel.check_point().read_ms == wheel.read_ms


async def test_without_timer_messages_slaves_are_told_the_present_second(timed: Timed) -> None:
    await timed.pass_ms(5000)
    assert timed.timers.wheel.check_point() == (timed.clock.now_ms() - 500, 0, 0)


# --- errors


async def test_a_full_disk_delays_timers_and_loses_none(tmp_path: Path) -> None:
    files = FailingFiles()
    timed = Timed(tmp_path / "store", files=files)
    timed.open()
    timed.send(b"one", 1000)
    await timed.turn()
    timed.send(b"two", 1000)
    files.full = True
    await timed.pass_ms(1000)
    files.full = False
    await timed.pass_ms(1000)
    assert bodies(timed.store) == [b"one", b"two"]
    timed.store.close()


async def test_a_queue_that_takes_nothing_delays_its_messages_and_no_others(
    tmp_path: Path,
) -> None:
    files = FailingFiles()
    timed = Timed(tmp_path / "store", files=files)
    timed.open()
    for number in range(4):
        timed.send(b"%d" % number, 1000 + number, queue_id=number % 2)
    await timed.turn()
    files.full, files.full_for = True, "TopicTest/1/"
    await timed.pass_ms(1003)
    assert bodies(timed.store) == [b"0", b"2"]
    files.full = False
    await timed.pass_ms(1000)
    assert bodies(timed.store) == [b"0", b"2"]
    assert bodies(timed.store, "TopicTest", 1) == [b"1", b"3"]
    assert timed.counters.timers_delivered == 4
    timed.store.close()


@pytest.mark.parametrize(
    "text", [b"", b"TIMER_OUT_MS\x01soon", b"TIMER_OUT_MS\x01-5", b"TIMER_OUT_MS\x01" + b"9" * 25]
)
async def test_a_message_without_a_time_is_logged_and_skipped(timed: Timed, text: bytes) -> None:
    bad = message(b"bad", topic=TIMER_TOPIC, properties=text)
    assert timed.store.put(bad).status is PutStatus.OK
    timed.send(b"good", 1000)
    with capture_logs() as logs:
        await timed.pass_ms(1000)
    assert [log["event"] for log in logs if log["log_level"] == "error"] == [
        "a timer message is not delivered; its record stays in the store"
    ]
    assert bodies(timed.store) == [b"good"]


async def test_a_message_for_a_topic_of_the_broker_is_logged_and_skipped(timed: Timed) -> None:
    timed.send(b"half", 1000, topic=HALF_TOPIC)
    timed.send(b"good", 1000)
    with capture_logs() as logs:
        await timed.pass_ms(1000)
    assert any("broker's own messages" in log.get("reason", "") for log in logs)
    assert bodies(timed.store) == [b"good"]


async def test_a_broker_without_timers_has_no_files(timed: Timed) -> None:
    timed.store.put(message(b"plain"))
    await timed.pass_ms(5000)
    await timed.stop()
    assert not (timed.root / "timerwheel").exists()


async def test_overdue_messages_are_counted(timed: Timed) -> None:
    for number in range(5):
        timed.send(b"%d" % number, 1000 + number * 100)
    assert timed.timers.wheel.unread == timed.timers.wheel.waiting == 5
    await timed.turn()
    assert (timed.timers.wheel.unread, timed.timers.wheel.waiting) == (0, 5)
    assert timed.timers.wheel.overdue() == (0, 0)
    timed.clock.advance(1.35)
    assert timed.timers.wheel.overdue() == (4, 0.35)
    await timed.turn()
    assert timed.timers.wheel.overdue() == (0, 0)
    assert timed.timers.wheel.waiting == 1


async def test_a_second_may_be_full(make: Callable[..., Timed]) -> None:
    timed = make(limits=BrokerLimits(timers_per_second=2))
    slot_ms = rules.slot_of(timed.clock.now_ms() + 5000)
    for number in range(2):
        assert not timed.timers.wheel.congested(slot_ms)
        timed.send(b"%d" % number, 5000)
        await timed.turn()
    assert timed.timers.wheel.congested(slot_ms)
    assert not timed.timers.wheel.congested(slot_ms + 1000)

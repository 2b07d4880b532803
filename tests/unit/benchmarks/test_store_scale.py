"""Which positions are pulled, how answers are checked, and the output."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.store import scale
from benchmarks.store.shape import PULL_MESSAGES, Shape, topic_of
from benchmarks.tools import BenchmarkError
from remoting.protocol import frame
from remoting.protocol.command import Command
from remoting.protocol.message.record import encode_record

RUN = {"pulls": 100, "p50_us": 50.0, "p99_us": 100.0, "cold": 0.0}
VERIFIED = {"seconds": 2.0, "cpu_s": 3.0, "mb_per_s": 510.0}
MEMORY = {"private_mb": 40.0, "rollup_mb": 400.0}
RESULT: dict[str, Any] = {
    "log_bytes": 1 << 30,
    "queues": 1000,
    "fill_s": 12.0,
    "descriptors": 1024,
    "maps": 256,
    "start_s": {"big": 0.4, "small": 0.3},
    "memory": {"after start": MEMORY, "in the end": {**MEMORY, "private_mb": 151.0}},
    "small_memory": MEMORY,
    "pulls": {"big": [{**RUN, "p99_us": p99} for p99 in (90.0, 190.0, 700.0)], "small": [RUN] * 3},
    "verify": {"disk_mb_per_s": 900.0, "cold": {**VERIFIED, "mb_per_s": 300.0}, "warm": VERIFIED},
}


@pytest.mark.parametrize("in_a_row", [1, 32, 100])
@pytest.mark.parametrize("queues", [16, 1000])
def test_every_pull_finds_all_its_messages_and_every_queue_is_asked(
    queues: int, in_a_row: int
) -> None:
    shape = Shape.of(Path("store"), 1 << 20, queues, in_a_row)
    rounds = list(shape.places(1000, 3))
    assert [len(places) for places in rounds] == [1000] * 3
    for places in rounds:
        assert {queue for queue, _ in places} == set(range(queues))
        assert all(0 <= at <= shape.max_offset - PULL_MESSAGES for _, at in places)


def test_a_queue_is_not_pulled_from_the_same_position_twice_in_a_row() -> None:
    shape = Shape.of(Path("store"), 64 << 20, 100, 32)
    last: dict[int, int] = {}
    for places in shape.places(100, 5):
        for queue, at in places:
            assert last.get(queue) != at
            last[queue] = at
    assert set(last.values()) == {shape.max_offset - PULL_MESSAGES - 16}


def test_queues_are_four_to_a_topic() -> None:
    assert [topic_of(number) for number in (3, 4)] == [("scale-0", 3), ("scale-1", 0)]


def answer(first: int, messages: int) -> bytearray:
    records = [
        encode_record(
            topic="t",
            body=b"body",
            queue_offset=first + number,
            born_host=bytes(8),
            store_host=bytes(8),
        )
        for number in range(messages)
    ]
    return bytearray(frame.encode(Command.request(0, body=b"".join(records))))


def test_an_answer_with_other_messages_makes_no_figures() -> None:
    scale.check(answer(7, PULL_MESSAGES), 7)
    for wrong in (answer(8, PULL_MESSAGES), answer(7, PULL_MESSAGES - 1), answer(7, 0)):
        with pytest.raises(BenchmarkError, match="a pull at 7 was answered"):
            scale.check(wrong, 7)


def test_each_bar_stands_beside_its_figure() -> None:
    output = scale.text(RESULT)
    assert "at most 256 files mapped, fewer than there are queues" in output
    assert "private memory at most 151.0 MB <= 150: NO" in output
    assert "pull p99 big/small 1.90 (0.90-7.00) <= 2: yes" in output
    assert "300.0 MB/s >= 500: NO" in output
    assert "510.0 MB/s >= 500: yes" in output
    assert scale.text({**RESULT, "verify": None}).endswith("there is no such command")

"""Both kinds of ids equal RocketMQ's, and no id is given twice."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoting.protocol.message import ids
from remoting.protocol.message.ids import UniqueIdGenerator

GOLDEN = json.loads((Path(__file__).parents[4] / "golden/messages.json").read_text("utf-8"))
UNIQUE = GOLDEN["uniq_keys"]
NOVEMBER_MS = 1793491200000
DECEMBER_MS = 1796083200000


def november(now_ms: int) -> tuple[int, int]:
    assert NOVEMBER_MS <= now_ms < DECEMBER_MS
    return NOVEMBER_MS, DECEMBER_MS


@pytest.mark.parametrize("case", GOLDEN["message_ids"], ids=lambda c: c["msgId"])
def test_an_offset_id_is_built_and_read_as_in_java(case: dict[str, Any]) -> None:
    ip, port, offset = str(ip_address(case["ip"])), case["port"], case["offset"]
    assert ids.offset_id(case["ip"], port, offset) == case["msgId"]
    assert ids.parse_offset_id(case["msgId"]) == (ip, port, offset)
    assert ids.parse_offset_id(case["msgId"].lower()) == (ip, port, offset)
    assert offset == case["decoded_offset"]


def test_the_documented_offset_ids() -> None:
    assert ids.offset_id("127.0.0.1", 10911, 0x1122334455) == "7F00000100002A9F0000001122334455"
    assert (
        ids.offset_id("2001:db8::1", 10911, 5)
        == "20010DB800000000000000000000000100002A9F0000000000000005"
    )


@given(
    st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6)),
    st.integers(0, 65535),
    st.integers(-(2**63), 2**63 - 1),
)
def test_an_offset_id_round_trips(address: Any, port: int, offset: int) -> None:
    mapped = getattr(address, "ipv4_mapped", None) or address
    text = ids.offset_id(str(address), port, offset)
    assert ids.parse_offset_id(text) == (str(mapped), port, offset)


@pytest.mark.parametrize("case", UNIQUE, ids=lambda c: f"{c['uniqKey']}-{c['version']}")
def test_a_unique_id_is_made_as_java_made_it(case: dict[str, Any]) -> None:
    now_ms = NOVEMBER_MS + case["ms_since_month_start"]
    assert now_ms == case["generated_between_ms"][0]
    class_hash = int(case["class_loader_hash_hex"], 16)
    generator = UniqueIdGenerator(
        case["ip"], case["pid_low16"] + (3 << 16), class_hash, lambda: now_ms, month_bounds=november
    )
    assert [generator.next() for _ in range(case["counter"] + 1)][-1] == case["uniqKey"]


@pytest.mark.parametrize("text", ["", "7F", "x" * 32, "7F 00 " * 5 + "AB", "0" * 33, "0" * 58])
def test_an_invalid_id_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no offset id"):
        ids.parse_offset_id(text)


def test_a_long_text_is_not_repeated_whole_in_the_error() -> None:
    with pytest.raises(ValueError, match="no offset id") as caught:
        ids.parse_offset_id("x" * 10_000)
    assert len(str(caught.value)) < 200


def test_the_time_part_restarts_with_the_month() -> None:
    clock = iter([DECEMBER_MS - 1, DECEMBER_MS, DECEMBER_MS + 5, DECEMBER_MS - 2])
    months = [(NOVEMBER_MS, DECEMBER_MS), (DECEMBER_MS, DECEMBER_MS + 31 * 86_400_000)]
    generator = UniqueIdGenerator(
        "10.0.0.1",
        1,
        2,
        lambda: next(clock),
        month_bounds=lambda now: months[now >= DECEMBER_MS],
    )
    times = [int(generator.next()[20:28], 16) for _ in range(4)]
    length = DECEMBER_MS - NOVEMBER_MS
    assert times == [length - 1, 0, 5, length - 2]


def test_the_counter_wraps_after_65536() -> None:
    generator = UniqueIdGenerator("10.0.0.1", 1, 2, lambda: NOVEMBER_MS, month_bounds=november)
    made = [generator.next() for _ in range(65537)]
    assert made[0] == made[65536]
    assert len(set(made)) == 65536
    assert made[0] == "0A00000100010000000200000000" + "0000"


def test_ids_taken_at_once_are_those_that_would_have_come_one_by_one() -> None:
    one, many = (
        UniqueIdGenerator("10.0.0.1", 1, 2, lambda: NOVEMBER_MS, month_bounds=november)
        for _ in range(2)
    )
    assert many.take(0) == []
    assert [*many.take(300), many.next()] == [one.next() for _ in range(301)]


def test_threads_never_get_the_same_id() -> None:
    generator = UniqueIdGenerator("fd00::2", 1, 2, lambda: NOVEMBER_MS, month_bounds=november)
    with ThreadPoolExecutor(8) as pool:
        lists = list(pool.map(lambda _: [generator.next() for _ in range(2000)], range(8)))
    made = [text for texts in lists for text in texts]
    assert len(set(made)) == 16_000
    assert {len(text) for text in made} == {56}


@pytest.fixture
def in_zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "XST-5")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("in_zone")
def test_the_month_is_that_of_the_local_time_zone() -> None:
    five_hours = 5 * 3600 * 1000
    bounds = (NOVEMBER_MS - five_hours, DECEMBER_MS - five_hours)
    assert ids.local_month(NOVEMBER_MS - five_hours) == bounds
    assert ids.local_month(DECEMBER_MS - five_hours - 1) == bounds
    assert ids.local_month(DECEMBER_MS - five_hours)[0] == bounds[1]


def test_december_ends_with_the_year() -> None:
    start, end = ids.local_month(DECEMBER_MS + 10 * 86_400_000)
    assert end - start == 31 * 86_400_000

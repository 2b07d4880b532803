"""Both ends of RocketMQ's replication stream, against captured bytes and against each other."""

from __future__ import annotations

import json
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.replication.stream import (
    HEADER,
    HEARTBEAT_SECONDS,
    MAX_FRAME_BYTES,
    REPORT,
    SILENCE_SECONDS,
    MasterStream,
    SlaveStream,
    StreamError,
    first_offset,
)


@pytest.fixture
def captured(golden: Path) -> list[dict[str, Any]]:
    lines = (golden / "ha" / "stream.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def frame(offset: int, data: bytes = b"") -> bytes:
    return HEADER.pack(offset, len(data)) + data


def test_a_slave_takes_what_apaches_master_sent_and_reports_as_apaches_slave(
    captured: list[dict[str, Any]],
) -> None:
    begin = captured[0]["t"]
    slave = SlaveStream(0, 0.0)
    assert slave.report(0, 0.0).hex() == captured[0]["frame_hex"]
    for event in captured[1:]:
        now = event["t"] - begin
        if event["dir"] == "s2c":
            slave.receive(bytes.fromhex(event["frame_hex"]), now)
            slave.appended(len(slave.pending))
        else:
            assert slave.report(slave.begin, now).hex() == event["frame_hex"]


def test_a_master_sends_what_apaches_master_sent(captured: list[dict[str, Any]]) -> None:
    begin, log = captured[0]["t"], b""
    master = MasterStream(0.0)
    for event in captured:
        now, data = event["t"] - begin, bytes.fromhex(event["frame_hex"])
        if event["dir"] == "c2s":
            asked = master.request
            master.receive(data, now)
            if asked is None:
                assert master.request == 0
                master.start(first_offset(0, 0, 7520, 65536))
            continue
        body = data[HEADER.size :]
        if not body:
            assert master.pause(now + 0.1) == 0
        assert master.header(len(body), now) + body == data
        log += body
    assert master.sent == master.acked == len(log) == 7520


SIZES = st.lists(st.integers(0, 100), min_size=1, max_size=20).filter(any)


@given(
    log=st.binary(max_size=1000),
    begin=st.integers(0, 1 << 40),
    sent=SIZES,
    received=SIZES,
    appended=SIZES,
)
def test_a_log_arrives_in_whatever_pieces(
    log: bytes, begin: int, sent: list[int], received: list[int], appended: list[int]
) -> None:
    sends, reads, appends = cycle(sent), cycle(received), cycle(appended)
    stream, at = b"", 0
    while at < len(log):
        data = log[at : at + next(sends)]
        stream += frame(begin + at, data)
        at += len(data)
    slave = SlaveStream(begin, 0.0)
    kept = b""
    while stream:
        size = next(reads)
        slave.receive(stream[:size], 1.0)
        stream = stream[size:]
        taken = min(next(appends), len(slave.pending))
        kept += slave.pending[:taken]
        slave.appended(taken)
        assert slave.begin == begin + len(kept)
    assert kept + slave.pending == log
    assert slave.end == begin + len(log)


@pytest.mark.parametrize("offset", [-1, 0, 99, 101, 1 << 62])
@pytest.mark.parametrize("size", [0, 5])
def test_a_frame_that_does_not_continue_the_log_is_refused(offset: int, size: int) -> None:
    slave = SlaveStream(100, 0.0)
    with pytest.raises(StreamError, match="ends at 100"):
        slave.receive(frame(offset, bytes(size)), 1.0)
    assert not slave.pending


@pytest.mark.parametrize("size", [-1, MAX_FRAME_BYTES + 1, (1 << 31) - 1])
def test_a_frame_of_an_impossible_size_is_refused(size: int) -> None:
    with pytest.raises(StreamError, match=f"a frame of {size} bytes"):
        SlaveStream(0, 0.0).receive(HEADER.pack(0, size), 1.0)


def test_a_slave_that_assumes_the_first_byte_requests_the_second() -> None:
    slave = SlaveStream(0, 0.0, assumed=b"\0")
    assert slave.report(0, 0.0) == REPORT.pack(1)
    slave.receive(frame(1, b"abc"), 0.1)
    assert slave.pending == b"\0abc"
    assert slave.report(0, 1.0) == b""
    slave.appended(4)
    assert slave.report(4, 1.0) == REPORT.pack(4)


def test_a_slave_reports_when_its_log_has_grown_and_each_5_seconds() -> None:
    slave = SlaveStream(8, 0.0)
    assert slave.report(8, 0.0) == REPORT.pack(8)
    assert slave.report(8, 4.9) == b""
    assert slave.pause(4.0) == pytest.approx(1.0)
    assert slave.report(8, HEARTBEAT_SECONDS) == REPORT.pack(8)
    assert slave.report(9, 5.1) == REPORT.pack(9)
    assert slave.report(7, 10.1) == REPORT.pack(8), "a report never goes back"


def test_silence_ends_a_connection_at_both_ends() -> None:
    slave, master = SlaveStream(0, 0.0), MasterStream(0.0)
    slave.receive(frame(0), 3.0)
    master.receive(REPORT.pack(0), 3.0)
    assert 0 <= slave.pause(22.9) <= 0.2
    with pytest.raises(StreamError, match="the master has sent nothing for 20 seconds"):
        slave.pause(3.0 + SILENCE_SECONDS)
    with pytest.raises(StreamError, match="the slave has sent nothing for 20 seconds"):
        master.pause(3.0 + SILENCE_SECONDS)


def test_a_master_sends_so_many_bytes_in_each_second() -> None:
    master = MasterStream(10.0)
    master.start(0)
    assert master.room(10.0, 100) == 100
    master.header(60, 10.0)
    assert master.room(10.9, 100) == 40
    master.header(40, 10.9)
    assert master.room(10.9, 100) == 0
    assert master.refill(10.9) == pytest.approx(0.1)
    assert master.room(10.9, 50) == 0, "the limit may be lowered"
    assert master.room(11.0, 100) == 100
    master.header(0, 11.0)
    assert master.room(15.0, 100) == 100, "what was not sent is not added"


def test_a_token_comes_before_the_first_report_and_is_no_offset() -> None:
    master = MasterStream(0.0)
    master.receive(REPORT.pack(-77) + REPORT.pack(5)[:3], 1.0)
    assert (master.token, master.request) == (-77, None)
    master.receive(REPORT.pack(5)[3:], 1.0)
    assert (master.token, master.request) == (-77, 5)
    without = MasterStream(0.0)
    without.receive(REPORT.pack(5) + REPORT.pack(-77), 1.0)
    assert (without.token, without.request) == (None, 5)


def test_half_a_report_is_kept_for_the_next_read() -> None:
    master = MasterStream(0.0)
    master.receive(REPORT.pack(77)[:5], 1.0)
    assert master.request is None
    master.receive(REPORT.pack(77)[5:], 1.0)
    assert master.request == 77


def test_only_what_was_sent_on_the_connection_counts_as_acknowledged() -> None:
    master = MasterStream(0.0)
    master.receive(REPORT.pack(50), 0.0)
    master.start(50)
    assert master.acked == 0, "the peer may be anybody until it has got a frame"
    master.receive(REPORT.pack(50), 0.0)
    assert master.acked == 0
    master.header(10, 0.1)
    master.receive(REPORT.pack(60), 0.2)
    assert master.acked == 60
    master.receive(REPORT.pack(55), 0.3)
    assert master.acked == 60
    with pytest.raises(StreamError, match="acknowledges offset 61, but was sent the log up to 60"):
        master.receive(REPORT.pack(61), 0.4)
    assert master.acked == 60


@pytest.mark.parametrize(
    ("request_offset", "begin"), [(0, 300), (1, 1), (100, 100), (350, 350), (399, 399)]
)
def test_a_master_begins_where_the_slave_ends_and_for_0_with_its_last_file(
    request_offset: int, begin: int
) -> None:
    start = 0 if request_offset < 100 else 100
    assert first_offset(request_offset, start, 399, 100) == begin


@pytest.mark.parametrize(
    ("request_offset", "reason"),
    [
        (400, "the slave has messages that the master lacks"),
        (1 << 40, "the slave has messages that the master lacks"),
        (99, "so the slave needs an empty store or a copy"),
        (-5, "so the slave needs an empty store or a copy"),
    ],
)
def test_a_slave_of_another_log_is_refused_with_both_offsets(
    request_offset: int, reason: str
) -> None:
    with pytest.raises(StreamError, match=reason) as error:
        first_offset(request_offset, 100, 399, 100)
    assert str(request_offset) in str(error.value)

"""Both ends of the stream of controller mode, against a captured failover and each other."""

from __future__ import annotations

import json
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.replication.autoswitch import (
    DATA,
    ENTRY,
    MASTER_HELLO,
    REPORT,
    SLAVE_HELLO,
    AutoSwitchMaster,
    AutoSwitchSlave,
    Plan,
)
from broker.replication.epochs import EpochList
from broker.replication.stream import (
    HEARTBEAT_SECONDS,
    MAX_FRAME_BYTES,
    SILENCE_SECONDS,
    TRANSFER_BYTES,
    StreamError,
)
from broker.replication.stream import REPORT as TOKEN

EPOCHS = EpochList([(1, 0), (2, 100)])


@pytest.fixture
def captured(golden: Path) -> list[list[dict[str, Any]]]:
    """The frames of each connection, up to where frames were left out."""
    lines = map(json.loads, (golden / "ha" / "autoswitch.jsonl").read_text().splitlines())
    connections = []
    for _, group in groupby(lines, key=lambda line: line["conn"]):
        frames = list(group)
        kinds = [frame["kind"] for frame in frames]
        stop = next(
            (i for i, kind in enumerate(kinds) if kind in {"left out", "connection closed"}), None
        )
        connections.append(frames[:stop])
    return connections


def hello(end: int, epochs: EpochList) -> bytes:
    return AutoSwitchMaster(epochs, 0.0).handshake(end)


def following(epochs: EpochList = EPOCHS, end: int = 150, *, confirmed: int = 0) -> AutoSwitchSlave:
    """A slave of the same log."""
    slave = AutoSwitchSlave(3, epochs, end, 0.0, confirmed=confirmed)
    slave.receive(hello(max(end, 150), EPOCHS), 0.0)
    slave.accept(0.0)
    return slave


def leading(epochs: EpochList = EPOCHS, end: int = 150, *, first: int = 150) -> AutoSwitchMaster:
    """A master of a slave that has reported for the first time."""
    master = AutoSwitchMaster(epochs, 0.0)
    master.receive(SLAVE_HELLO.pack(1, 0, 0, 3), 0.0)
    master.handshake(end)
    master.receive(REPORT.pack(2, first), 0.0)
    return master


def test_a_slave_takes_what_apaches_master_sent_and_answers_as_apaches_slave(
    captured: list[list[dict[str, Any]]],
) -> None:
    ends, epochs = [0, 21834, 152244], EpochList()
    assert len(captured) == len(ends)
    for frames, end in zip(captured, ends, strict=True):
        begin = frames[0]["t"]
        slave = AutoSwitchSlave(frames[0]["slave_broker_id"], epochs, end, 0.0)
        assert slave.hello.hex() == frames[0]["frame_hex"]
        received = 0
        for frame in frames[1:]:
            now = frame["t"] - begin
            if frame["dir"] == "s2c":
                slave.receive(bytes.fromhex(frame["frame_hex"]), now)
                received += frame["kind"] == "master sends log" and frame["body_len"]
                if frame["state"] == "HANDSHAKE":
                    assert slave.plan is not None
                    assert [list(one) for one in slave.plan.epochs] == frame["epochs_epoch_start"]
                    assert slave.plan.point == end
                    epochs = slave.plan.epochs
                    slave.accept(now)
            elif frame["offset"] >= slave.begin:
                slave.appended(frame["offset"] - slave.begin)
                report = slave.report(slave.begin, now)
                # Apache's reports again are each 5 s, too, but not counted from the last one.
                assert report.hex() in {frame["frame_hex"], ""}
        assert slave.end == end + received
        if frames[-1]["kind"] == "master sends log":
            assert slave.confirmed == frames[-1]["confirm_offset"]


def test_a_master_sends_what_apaches_master_sent(captured: list[list[dict[str, Any]]]) -> None:
    for frames in captured:
        epochs = EpochList(frames[1]["epochs_epoch_start"])
        begin, end = frames[0]["t"], frames[1]["master_max"]
        master = AutoSwitchMaster(epochs, 0.0)
        for frame in frames:
            now, data = frame["t"] - begin, bytes.fromhex(frame["frame_hex"])
            if frame["dir"] == "c2s":
                asked = master.request
                master.receive(data, now)
                if asked is None and master.request is not None:
                    master.start(master.request)
            elif frame["state"] == "HANDSHAKE":
                assert master.broker_id == frames[0]["slave_broker_id"]
                assert master.handshake(end) == data
            else:
                body = data[DATA.size :]
                end = max(end, master.sent + len(body))
                assert not body or master.size(end) == min(TRANSFER_BYTES, end - master.sent)
                assert master.frame(len(body), frame["confirm_offset"], now) + body == data
        assert master.acked == [line for line in frames if line["dir"] == "c2s"][-1]["offset"]


@given(data=st.data())
def test_a_log_with_its_epochs_arrives_in_whatever_pieces(data: st.DataObject) -> None:
    log = data.draw(st.binary(min_size=1, max_size=200))
    starts = sorted({0, *data.draw(st.sets(st.integers(1, len(log)), max_size=3))})
    epochs = EpochList(enumerate(starts, 1))
    master, slave = AutoSwitchMaster(epochs, 0.0), AutoSwitchSlave(7, EpochList(), 0, 0.0)
    copy = bytearray()

    def to_slave(sent: bytes) -> None:
        while sent:
            size = data.draw(st.integers(1, len(sent)))
            slave.receive(sent[:size], 0.0)
            sent = sent[size:]

    master.receive(slave.hello, 0.0)
    to_slave(master.handshake(len(log)))
    assert slave.plan == Plan(0, epochs)
    slave.accept(0.0)
    master.receive(slave.report(0, 0.0), 0.0)
    assert master.request == 0
    while size := master.size(len(log)):
        at = master.sent
        assert epochs.at(at)[0] == epochs.at(at + size - 1)[0], "a frame has one epoch"
        to_slave(master.frame(size, 3, 0.0) + log[at : at + size])
        copy += slave.pending
        slave.appended(len(slave.pending))
        master.receive(slave.report(slave.begin, 0.0), 0.0)
    assert copy == log
    assert master.acked == len(log)
    assert slave.confirmed == 3


def test_a_slave_cuts_what_its_master_does_not_have() -> None:
    slave = AutoSwitchSlave(3, EpochList([(1, 0), (2, 80)]), 120, 0.0, confirmed=80)
    slave.receive(hello(500, EpochList([(1, 0), (3, 80), (4, 400)])), 0.0)
    assert slave.plan == Plan(80, EpochList([(1, 0), (3, 80), (4, 400)]))
    assert slave.report(120, 1.0) == b"", "nothing is reported before the cut"
    slave.accept(1.0)
    assert slave.report(80, 1.0) == REPORT.pack(2, 80)
    slave.receive(DATA.pack(2, 4, 80, 3, 80, 80) + b"abcd", 1.0)
    assert slave.pending == b"abcd"


def test_a_slave_never_cuts_what_is_confirmed() -> None:
    slave = AutoSwitchSlave(3, EpochList([(1, 0), (2, 80)]), 120, 0.0, confirmed=81)
    with pytest.raises(StreamError, match=r"parts from this one at 80.* confirmed up to 81"):
        slave.receive(hello(500, EpochList([(1, 0), (3, 80)])), 0.0)
    assert slave.plan is None


def test_a_slave_does_not_follow_a_master_of_an_older_epoch_than_its_own_bytes() -> None:
    own = EpochList([(1, 0), (2, 80)])
    with pytest.raises(StreamError, match="the master is at epoch 1, and this broker at 2"):
        AutoSwitchSlave(3, own, 120, 0.0).receive(hello(500, EpochList([(1, 0)])), 0.0)
    empty = AutoSwitchSlave(3, own, 80, 0.0)
    empty.receive(hello(500, EpochList([(1, 0)])), 0.0)
    assert empty.plan == Plan(80, EpochList([(1, 0)])), "epoch 2 has no byte here"


def test_a_slave_does_not_follow_a_master_before_the_one_that_the_controller_named() -> None:
    with pytest.raises(StreamError, match="the master is at epoch 1, and this broker at 3"):
        AutoSwitchSlave(3, EpochList(), 0, 0.0, epoch=3).receive(
            hello(500, EpochList([(1, 0)])), 0.0
        )
    empty = AutoSwitchSlave(3, EpochList(), 0, 0.0, epoch=3)
    empty.receive(hello(500, EpochList([(1, 0), (3, 500)])), 0.0)
    assert empty.plan == Plan(0, EpochList([(1, 0), (3, 500)]))


def test_logs_without_a_common_epoch_are_not_mixed() -> None:
    slave = AutoSwitchSlave(3, EpochList([(1, 0)]), 120, 0.0)
    with pytest.raises(StreamError, match="no epoch in common"):
        slave.receive(hello(500, EpochList([(3, 200)])), 0.0)


def test_an_empty_log_begins_where_its_masters_does() -> None:
    slave = AutoSwitchSlave(3, EpochList(), 0, 0.0)
    slave.receive(hello(5000, EpochList([(2, 4096)])), 0.0)
    slave.accept(0.0)
    assert slave.report(0, 0.0) == REPORT.pack(2, 0)
    slave.receive(DATA.pack(2, 2, 4096, 2, 4096, 0) + b"ab", 0.0)
    assert (slave.begin, slave.end) == (4096, 4098)


def test_the_last_frame_of_an_epoch_may_have_the_next_ones_number() -> None:
    slave = following(end=90)
    slave.receive(DATA.pack(2, 10, 90, 2, 100, 0) + bytes(10), 0.0)
    assert slave.end == 100


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (MASTER_HELLO.pack(2, 12, 0, 1), "a handshake of state 2"),
        (MASTER_HELLO.pack(1, -12, 0, 1), "and -12 bytes"),
        (MASTER_HELLO.pack(1, 13, 0, 1), "and 13 bytes"),
        (MASTER_HELLO.pack(1, 12 * 1001, 0, 1), "and 12012 bytes"),
        (
            MASTER_HELLO.pack(1, 12, 150, 3) + ENTRY.pack(3, 0) + bytes(DATA.size),
            "data before a report",
        ),
    ],
)
def test_a_handshake_that_is_none_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(StreamError, match=reason):
        AutoSwitchSlave(3, EPOCHS, 150, 0.0).receive(data, 0.0)


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (DATA.pack(1, 0, 150, 2, 100, 0), "a frame of state 1"),
        (DATA.pack(2, -1, 150, 2, 100, 0), "a frame of -1 bytes"),
        (DATA.pack(2, MAX_FRAME_BYTES + 1, 150, 2, 100, 0), "a frame of"),
        (DATA.pack(2, 1, 149, 2, 100, 0), "from offset 149, but this one ends at 150"),
        (DATA.pack(2, 0, 151, 2, 100, 0), "from offset 151"),
        (DATA.pack(2, 0, -1, 2, 100, 0), "from offset -1"),
        (DATA.pack(2, 1, 150, 3, 150, 0), "no epoch 3 from 150 on"),
        (DATA.pack(2, 1, 150, 2, 101, 0), "no epoch 2 from 101 on"),
    ],
)
def test_a_frame_that_does_not_continue_the_log_is_refused(frame: bytes, reason: str) -> None:
    slave = following()
    with pytest.raises(StreamError, match=reason):
        slave.receive(frame, 0.0)
    assert not slave.pending


def test_the_first_report_says_where_a_master_begins_and_counts_at_once() -> None:
    master = leading(first=40)
    assert (master.broker_id, master.request, master.acked) == (3, 40, 40)
    master.start(40)
    assert master.size(150) == 60, "up to the end of its epoch"
    master.frame(60, 0, 0.0)
    master.receive(REPORT.pack(2, 100), 0.0)
    assert master.acked == 100
    with pytest.raises(StreamError, match="acknowledges offset 101, but was sent the log up to"):
        master.receive(REPORT.pack(2, 101), 0.0)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (SLAVE_HELLO.pack(2, 0, 0, 3), "state 2 and broker id 3"),
        (SLAVE_HELLO.pack(1, 0, 0, 0), "broker id 0"),
        (3 * TOKEN.pack(-2), "state -1 and broker id"),
        (SLAVE_HELLO.pack(1, 0, 0, 3) + REPORT.pack(1, 5), "report of state 1"),
        (SLAVE_HELLO.pack(1, 0, 0, 3) + REPORT.pack(2, 151), "begins at 151"),
        (SLAVE_HELLO.pack(1, 0, 0, 3) + REPORT.pack(2, 1 << 40), "log ended at 150"),
        (SLAVE_HELLO.pack(1, 0, 0, 3) + REPORT.pack(2, -1), "begins at -1"),
    ],
)
def test_a_slave_that_breaks_the_protocol_is_refused(data: bytes, reason: str) -> None:
    master = AutoSwitchMaster(EPOCHS, 0.0)
    master.handshake(150)
    with pytest.raises(StreamError, match=reason):
        master.receive(data, 0.0)
    assert master.acked == 0


@pytest.mark.parametrize("token", [None, -1, -(1 << 63)])
def test_a_handshake_in_pieces_after_a_token_and_a_learner(token: int | None) -> None:
    master = AutoSwitchMaster(EPOCHS, 0.0)
    for byte in (b"" if token is None else TOKEN.pack(token)) + SLAVE_HELLO.pack(1, 0, 1, 3):
        assert not master.has_begun
        master.receive(bytes([byte]), 0.0)
    assert (master.token, master.broker_id, master.is_learner) == (token, 3, True)


def test_silence_ends_a_connection_before_and_after_the_handshake() -> None:
    for slave in (AutoSwitchSlave(3, EPOCHS, 150, 0.0), following()):
        assert slave.pause(1.0) <= HEARTBEAT_SECONDS
        with pytest.raises(StreamError, match="nothing for 20 seconds"):
            slave.pause(SILENCE_SECONDS)
    with pytest.raises(StreamError, match="nothing for 20 seconds"):
        leading().pause(SILENCE_SECONDS)

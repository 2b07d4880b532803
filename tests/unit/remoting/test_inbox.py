"""The inbox returns every frame, however the input is split."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoting.protocol.errors import FrameError
from remoting.protocol.frame import Inbox, cut

FRAMES = st.lists(st.binary(max_size=40), max_size=8)


def a_frame(payload: bytes) -> bytes:
    return (4 + len(payload)).to_bytes(4, "big") + b"\0\0\0\0" + payload


def work_all(inbox: Inbox) -> list[bytes]:
    found = []
    while inbox.ready:
        frame = cut(inbox.buffer, inbox.position)
        assert frame is not None
        found.append(bytes(frame.body))
        inbox.advance(frame.end)
    return found


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    bounds = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[start:end] for start, end in itertools.pairwise(bounds)]


@given(FRAMES, st.lists(st.integers(min_value=0), max_size=20))
def test_frames_come_out_whole_and_in_order_however_they_were_cut(
    payloads: list[bytes], cuts: list[int]
) -> None:
    inbox = Inbox(1000)
    found = []
    for piece in pieces(b"".join(map(a_frame, payloads)), cuts):
        inbox.add(piece)
        found += work_all(inbox)
    assert found == payloads
    assert len(inbox) == 0
    assert inbox.ready or inbox.empty


@given(FRAMES, st.lists(st.integers(min_value=0), max_size=20), st.randoms())
def test_frames_may_be_processed_later_than_they_arrive(
    payloads: list[bytes], cuts: list[int], random: object
) -> None:
    inbox = Inbox(1000)
    found = []
    for piece in pieces(b"".join(map(a_frame, payloads)), cuts):
        inbox.add(piece)
        if inbox.ready and random.random() < 0.5:  # type: ignore[attr-defined] # a Random
            frame = cut(inbox.buffer, inbox.position)
            assert frame is not None
            found.append(bytes(frame.body))
            inbox.advance(frame.end)
    assert found + work_all(inbox) == payloads


def test_one_read_is_processed_in_place() -> None:
    inbox = Inbox(1000)
    read = a_frame(b"one") + a_frame(b"two")
    inbox.add(read)
    assert inbox.buffer is read
    inbox.advance(len(a_frame(b"one")))
    assert inbox.buffer is read


def test_a_large_frame_is_joined_once() -> None:
    inbox = Inbox(1 << 20)
    frame = a_frame(bytes(1 << 19))
    inbox.add(frame[:100])
    first = inbox.buffer
    for start in range(100, len(frame), 1000):
        assert inbox.buffer is first
        assert (inbox.ready, inbox.empty) == (False, False)
        inbox.add(frame[start : start + 1000])
    assert inbox.buffer == frame


def test_byte_by_byte_costs_little_more_than_the_bytes() -> None:
    inbox = Inbox(1 << 20)
    frame = a_frame(bytes(range(256)) * 600)
    for position in range(len(frame) - 1):
        assert not inbox.ready
        inbox.add(frame[position : position + 1])
    need, parts = inbox.take_rest()
    assert len(parts) <= 4, "64 KiB each"
    assert (need, b"".join(parts)) == (len(frame), frame[:-1])


def test_an_incomplete_frame_does_not_keep_its_read_in_memory() -> None:
    inbox = Inbox(1000)
    inbox.add(a_frame(bytes(500)) + b"\0\0")
    inbox.advance(len(a_frame(bytes(500))))
    assert inbox.buffer == b"\0\0"
    assert (inbox.ready, inbox.empty) == (False, False)


def test_a_length_above_the_limit_is_refused_as_soon_as_it_is_known() -> None:
    inbox = Inbox(1000)
    inbox.add(b"\0\0")
    with pytest.raises(FrameError, match="1000"):
        inbox.add(b"\x03\xe9")


def test_clearing_forgets_everything() -> None:
    inbox = Inbox(1000)
    inbox.add(a_frame(b"x")[:5])
    inbox.add(b"")
    inbox.clear()
    assert len(inbox) == 0
    assert not inbox.ready

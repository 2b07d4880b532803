"""Large frames are read into their own buffer; nothing else about a connection changes."""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoting.counters import CloseReason
from remoting.limits import BEGIN_BYTES, LARGE_REST_BYTES, ConnectionLimits
from remoting.protocol.frame import encode
from remoting.reading import BufferPool
from tests.unit.remoting.transcripts import Peer, echo, request, turns

LARGE = BEGIN_BYTES + 3 * LARGE_REST_BYTES


@pytest.fixture
async def peer() -> AsyncIterator[Peer]:
    peer = Peer(handler=echo)
    yield peer
    peer.endpoint.alarms.close()


def large(opaque: int = 1) -> bytes:
    return encode(request(opaque=opaque, body=bytes(range(256)) * (LARGE // 256)))


def is_read_apart(peer: Peer) -> bool:
    return peer.transport.reader is not peer.connection


@given(
    st.lists(st.binary(max_size=600), min_size=1, max_size=8),
    st.lists(st.integers(min_value=0), max_size=30),
    st.lists(st.booleans(), max_size=30),
)
def test_neither_the_split_of_the_reads_nor_their_timing_matters(
    bodies: list[bytes], cuts: list[int], stuck: list[bool]
) -> None:
    async def scenario() -> None:
        limits = ConnectionLimits(unsent_high_water_bytes=100, large_rest_bytes=40, begin_bytes=20)
        peer = Peer(handler=echo, limits=limits, buffers=BufferPool(20))
        data = b"".join(encode(request(opaque=n, body=body)) for n, body in enumerate(bodies))
        bounds = sorted({0, len(data), *(cut % len(data) for cut in cuts)})
        unread = b""
        for (start, end), holds in zip(
            itertools.pairwise(bounds),
            itertools.chain(stuck, itertools.repeat(False)),
            strict=False,
        ):
            peer.transport.stuck = holds
            unread += data[start:end]
            if peer.transport.reading:
                peer.transport.reads(unread)
                unread = b""
        peer.transport.stuck = False
        while unread or peer.transport.unsent or peer.counters.frames_in < len(bodies):
            peer.transport.take(1 << 20)
            await turns()
            peer.transport.reads(unread)
            unread = b""
        assert [bytes(answer.body) for answer in peer.written()] == bodies
        assert peer.counters.bytes_in == len(data)
        assert peer.counters.bytes_held == 0
        peer.endpoint.alarms.close()

    asyncio.run(scenario())


async def test_consecutive_large_frames_are_read_into_their_own_buffers(peer: Peer) -> None:
    for opaque in (1, 2):
        peer.transport.reads(large(opaque)[:BEGIN_BYTES])
        assert is_read_apart(peer)
        assert BEGIN_BYTES <= peer.counters.bytes_held <= len(large(opaque))
        peer.transport.reads(large(opaque)[BEGIN_BYTES:])
        assert is_read_apart(peer)
        [answer] = peer.written()
        assert (answer.opaque, len(answer.body)) == (opaque, LARGE)
        assert peer.counters.bytes_held == 0


async def test_an_idle_connection_keeps_only_a_small_buffer_of_a_large_frame(peer: Peer) -> None:
    peer.transport.reads(large()[:BEGIN_BYTES])
    peer.transport.reads(large()[BEGIN_BYTES:])
    reader = peer.transport.reader
    assert isinstance(reader, asyncio.BufferedProtocol)
    # A loop asks for memory before it knows that there is nothing to read.
    memory = reader.get_buffer(-1)
    assert isinstance(memory, memoryview)
    assert isinstance(memory.obj, bytearray)
    assert len(memory.obj) == BEGIN_BYTES
    assert len(peer.endpoint.buffers.take(1)) > LARGE


async def test_a_small_frame_after_large_ones_is_read_normally(peer: Peer) -> None:
    peer.transport.reads(large()[:BEGIN_BYTES])
    peer.transport.reads(large()[BEGIN_BYTES:])
    peer.transport.reads(encode(request(opaque=2))[:3])
    assert is_read_apart(peer)
    peer.transport.reads(encode(request(opaque=2))[3:] + encode(request(opaque=3)))
    assert not is_read_apart(peer)
    assert [answer.opaque for answer in peer.written()] == [1, 2, 3]


async def test_a_nearly_complete_frame_is_read_normally(peer: Peer) -> None:
    data = encode(request(body=bytes(BEGIN_BYTES + LARGE_REST_BYTES // 2)))
    peer.transport.reads(data[:BEGIN_BYTES])
    assert not is_read_apart(peer)
    peer.transport.reads(data[BEGIN_BYTES:])
    assert len(peer.written()) == 1


async def test_a_peer_that_announces_much_and_sends_little_uses_little_memory() -> None:
    buffers = []

    class Counting(BufferPool):
        def take(self, size: int, most: int = sys.maxsize) -> memoryview:
            buffers.append(super().take(size, most))
            return buffers[-1]

    peer = Peer(handler=echo, buffers=Counting())
    frame = encode(request(body=bytes(8 << 20)))
    peer.transport.reads(frame[: BEGIN_BYTES - 1])
    assert (is_read_apart(peer), buffers) == (False, [])
    come = BEGIN_BYTES
    peer.transport.reads(frame[BEGIN_BYTES - 1 : come])
    while come < len(frame):
        assert len(buffers[-1]) <= min(4 * come, len(frame))
        assert peer.counters.bytes_held == len(buffers[-1])
        peer.transport.reads(frame[come : come + 50_000])
        come += 50_000
    assert len(peer.written()) == 1


def test_one_buffer_serves_one_frame_after_the_other() -> None:
    buffers = BufferPool()
    first, second = buffers.take(10), buffers.take(10)
    assert first.obj is not second.obj
    buffers.give(first)
    buffers.give(second)
    assert buffers.take(BEGIN_BYTES).obj is first.obj
    buffers.give(first)
    larger = buffers.take(BEGIN_BYTES + 1)
    assert larger.obj is not first.obj
    buffers.give(larger)
    buffers.give(first)
    assert buffers.take(1).obj is larger.obj
    huge = buffers.take(16 << 20)
    buffers.give(huge)
    assert buffers.take(1).obj is not huge.obj


async def test_two_large_frames_at_once_have_a_buffer_each() -> None:
    one = Peer(handler=echo)
    two = Peer(handler=echo, buffers=one.endpoint.buffers)
    data = large(1), large(2)
    for start in range(0, len(data[0]), BEGIN_BYTES):
        for peer, frame in zip((one, two), data, strict=True):
            peer.transport.reads(frame[start : start + BEGIN_BYTES])
    for peer, frame in zip((one, two), data, strict=True):
        [answer] = peer.written()
        assert frame.endswith(bytes(answer.body))


async def test_a_large_frame_that_does_not_arrive_ends_the_connection(peer: Peer) -> None:
    peer.transport.reads(large()[:BEGIN_BYTES])
    for _ in range(2):
        peer.transport.reads(large()[BEGIN_BYTES : BEGIN_BYTES + 1])
        peer.wait(14)
    assert not peer.connection.closed
    peer.wait(3)
    assert peer.counters.dropped[CloseReason.SLOW_FRAME] == 1
    peer.vanish()
    assert peer.counters.bytes_held == 0


async def test_the_next_large_frame_has_the_whole_time(peer: Peer) -> None:
    data = large()
    peer.transport.reads(data[:BEGIN_BYTES])
    for _ in range(5):
        peer.wait(20)
        peer.transport.reads(data[BEGIN_BYTES:])
        peer.transport.reads(data[:BEGIN_BYTES])
    peer.transport.reads(data[BEGIN_BYTES:])
    peer.wait(100)
    assert not peer.connection.closed
    assert peer.counters.frames_in == 6


async def test_garbage_after_a_large_frame_ends_the_connection(peer: Peer) -> None:
    peer.transport.reads(large()[:BEGIN_BYTES])
    peer.transport.reads(large()[BEGIN_BYTES:])
    peer.transport.reads(b"\x7f\xff\xff\xff\x00\x00\x00\x00")
    assert len(peer.written()) == 1
    assert peer.counters.dropped[CloseReason.BAD_FRAME] == 1
    assert peer.connection.closed


async def test_a_half_sent_frame_is_dropped_with_its_peer(peer: Peer) -> None:
    peer.transport.reads(large()[:BEGIN_BYTES])
    reader = peer.transport.reader
    assert isinstance(reader, asyncio.BufferedProtocol)
    assert not reader.eof_received()
    reader.connection_lost(None)
    assert peer.connection.closed
    assert peer.counters.bytes_held == 0
    assert peer.endpoint.buffers.take(1).obj is not None


async def test_unread_answers_are_detected_while_a_frame_arrives(peer: Peer) -> None:
    peer.transport.reads(large()[:BEGIN_BYTES])
    reader = peer.transport.reader
    assert isinstance(reader, asyncio.BufferedProtocol)
    reader.pause_writing()
    assert not peer.transport.reading
    reader.resume_writing()
    assert peer.transport.reading
    peer.transport.reads(large()[BEGIN_BYTES:])
    assert len(peer.written()) == 1

"""The same frames processed by the fast and the slow path, and the results of each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from struct import pack, unpack_from
from typing import Any

import pytest

from broker.processors.pull import HeldPull
from broker.store.results import Ack
from remoting.protocol.codes import SerializeType
from remoting.protocol.command import Command
from remoting.protocol.frame import cut, decode, encode, encode_head
from remoting.protocol.limits import MAX_FRAME_BYTES
from remoting.protocol.message.record import host_bytes
from tests.support.core import LACKING
from tests.unit.broker.harness import Bench
from tests.unit.broker.store.stores import FailingFiles

if LACKING:
    pytest.skip(LACKING, allow_module_level=True)

from broker.fast_path.host import Host
from broker.fast_path.read_pass import MAX_PLANS, ReadPass

REMOTE = ("10.0.0.7", 5555)


class Wire:
    """A connection that encodes what is sent on it, and processes frames on the slow path."""

    remote_text = "10.0.0.7:5555"
    closed = False
    crowded = False
    may_defer = True
    speaks_msgpack = True

    def __init__(self, bench: Bench, remote: tuple[str, int] = REMOTE) -> None:
        self._bench = bench
        self.remote = remote
        self.connection: Any = self
        self.born_host = host_bytes(*remote)
        self.sent: list[bytes] = []
        self.cold = 0
        self.held = 0

    def send(self, command: Command) -> None:
        self.sent.append(encode(command))

    def send_with_body(self, command: Command, body: Iterable[memoryview]) -> None:
        pieces = b"".join(body)
        self.sent.append(encode_head(command, len(pieces)) + pieces)

    def send_pieces(self, pieces: Sequence[bytes | memoryview]) -> None:
        self.sent.append(b"".join(pieces))

    def flush(self) -> None:
        pass

    def defer_answers(self, answers: int) -> None:
        self.held += answers

    def complete_answers(self, answers: int) -> None:
        self.held -= answers

    def work_slow(self, buffer: bytes, position: int) -> int:
        frame = cut(buffer, position, max_frame_bytes=MAX_FRAME_BYTES)
        if frame is None:
            return position
        self.cold += 1
        command = decode(frame)
        if not command.is_response:
            answer = self._bench.answer(command, self, self._bench.guarded)
            if answer is not None and not command.is_oneway:
                self.send(answer)
        return frame.end


class Side:
    """One of the two brokers, to which frames are fed."""

    files: FailingFiles

    def __init__(
        self, root: Path, *, fast: bool, max_plans: int = MAX_PLANS, **settings: Any
    ) -> None:
        self.name = root.name
        self.bench = Bench(root, **settings)
        self.wire = Wire(self.bench)
        self.arrivals: dict[tuple[str, int, int], int] = {}
        self.bench.store.dispatcher.on_arrival = self._arrived
        self.read_pass = _read_pass(self.bench, max_plans) if fast else None
        self._rest = b""
        self.woken: list[Any] = []

    @property
    def frames(self) -> int:
        """Return how many frames took the fast path."""
        return self.read_pass.frames if self.read_pass else 0

    def _arrived(self, topic: str, queue_id: int, max_offset: int, tags_code: int) -> None:
        self.arrivals[topic, queue_id, tags_code] = max_offset
        woken = self.bench.state.long_polls.arrived(topic, queue_id, max_offset, tags_code)
        self.woken += woken

    def feed(self, chunk: bytes, may_go_on: Callable[[], bool] = lambda: True) -> None:
        """Process one read, then answer the parked pulls that it woke."""
        self.woken = []
        buffer, position = self._rest + chunk, 0
        while True:
            if self.read_pass:
                end = self.read_pass.work(self.wire, buffer, position, len(buffer), may_go_on)
            else:
                end = self.wire.work_slow(buffer, position)
            if end == position:
                break
            position = end
        self._rest = buffer[position:]
        self.woken.sort(key=lambda pull: _opaque(pull.request))
        self.bench.processors.pull.wake(self.woken)

    async def durable(self) -> None:
        """Wait until everything stored is synced."""
        store = self.bench.store
        if store.config.defers:
            done: asyncio.Future[Ack] = asyncio.get_running_loop().create_future()
            store.when_durable(store.log.end, done.set_result)
            assert await asyncio.wait_for(done, 10) is Ack.OK

    def _answers(self) -> list[bytes]:
        """Return the answers in order; requests that wait for the disk have none yet."""
        sent = [
            frame.replace(self.name.encode(), b"<side>")
            for frame in frames(b"".join(self.wire.sent))
        ]
        return sorted(sent) if self.bench.store.config.defers else sent

    def left(self) -> dict[str, Any]:
        """Return all observable results of the frames."""
        bench, store = self.bench, self.bench.store
        queues = {}
        for topic in store.queues.topics():
            for queue_id in store.queues.queue_ids(topic):
                queue = store.queues.get((topic, queue_id))
                assert queue is not None
                entries = [queue.entry(n) for n in range(queue.min_offset, queue.max_offset)]
                queues[topic, queue_id] = (queue.next_offset, entries)
        log = [path.read_bytes() for path in sorted(store.paths.commit_log.glob("0*"))]
        counters = bench.state.counters
        return {
            "answers": self._answers(),
            "log": log,
            "end": store.log.end,
            "queues": queues,
            "arrivals": self.arrivals,
            "offsets": bench.state.offsets.table,
            "topics": sorted(bench.state.topics.table),
            "groups": sorted(bench.state.groups.table),
            "counters": counters,
            "puts": (store.stats.puts, store.stats.put_bytes, store.stats.refused_puts),
            "gets": (store.stats.got_messages, store.stats.got_bytes),
            "parked": len(bench.state.long_polls),
            "denied": bench.guard.denied if bench.guard else 0,
        }


def frames(stream: bytes) -> Iterator[bytes]:
    """Return the frames of a stream one by one."""
    position = 0
    while position < len(stream):
        (length,) = unpack_from(">I", stream, position)
        yield stream[position : position + 4 + length]
        position += 4 + length


def _read_pass(bench: Bench, max_plans: int) -> ReadPass:
    host = Host(bench.state, bench.processors, bench.guard)
    return ReadPass(host, max_frame_bytes=MAX_FRAME_BYTES, max_plans=max_plans)


def _opaque(held: HeldPull) -> int:
    return held.command.opaque


def frame(header: bytes, body: bytes = b"", codec: SerializeType = SerializeType.JSON) -> bytes:
    """Return a frame with this raw header."""
    return pack(">II", 4 + len(header) + len(body), codec << 24 | len(header)) + header + body

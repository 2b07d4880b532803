"""A load generator in Python for loads that the one in C lacks: signed requests, many topics.

Requests are encoded once and sent repeatedly. Of the answers only the length is read, because a
broker answers the requests of one connection in order.
"""

from __future__ import annotations

import selectors
import socket
import statistics
import time
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path
from typing import Final

from remoting.protocol import frame
from remoting.protocol.codes import RequestCode
from remoting.protocol.command import Command
from remoting.protocol.headers.pull import PullMessageRequestHeader
from remoting.protocol.headers.send import SendMessageRequestHeaderV2

READ_BYTES: Final = 1 << 20
LENGTH_BYTES: Final = 4
SUBSCRIPTION: Final = 4
"""The flag of a pull that carries its subscription and is not parked."""

ANSWER_WITHIN: Final = 30.0
TICKS: Final = 100
"""Clock ticks a second in /proc (USER_HZ, fixed on Linux)."""


def send_frame(topic: str, queue_id: int, size: int, *, queues: int) -> bytes:
    """Encode a send of ``size`` bytes to a queue; the first send creates the topic."""
    header = SendMessageRequestHeaderV2(
        producer_group="bench",
        topic=topic,
        default_topic="TBW102",
        default_topic_queue_nums=queues,
        queue_id=queue_id,
        sys_flag=0,
        born_timestamp=int(time.time() * 1000),
        flag=0,
        properties="WAIT\x01true",
    )
    return frame.encode(Command.request(RequestCode.SEND_MESSAGE_V2, header, body=b"x" * size))


def pull_frame(topic: str, queue_id: int, offset: int, *, count: int) -> bytes:
    """Encode a pull of ``count`` messages from an offset, which is answered at once."""
    header = PullMessageRequestHeader(
        consumer_group="bench",
        topic=topic,
        queue_id=queue_id,
        queue_offset=offset,
        max_msg_nums=count,
        sys_flag=SUBSCRIPTION,
        commit_offset=0,
        suspend_timeout_millis=0,
        sub_version=0,
        subscription="*",
    )
    return frame.encode(Command.request(RequestCode.PULL_MESSAGE, header))


def address_of(text: str) -> tuple[str, int]:
    """Split ``host:port``."""
    host, _, port = text.rpartition(":")
    return host, int(port)


def cpu_seconds(pid: int) -> float:
    """Return the CPU time that a process has used, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


@dataclass(slots=True)
class Figures:
    """The figures of a load; times in seconds."""

    seconds: float
    latencies_s: list[float] = field(repr=False)
    cpu_s: float

    def as_json(self) -> dict[str, float]:
        """Return the figures for tables and JSON files."""
        count = len(self.latencies_s)
        cuts = statistics.quantiles(self.latencies_s, n=1000) if count > 1 else [0.0] * 999
        return {
            "requests": count,
            "per_s": round(count / self.seconds, 1),
            "p50_ms": round(1000 * cuts[499], 3),
            "p99_ms": round(1000 * cuts[989], 3),
            "cpu_us_per": round(1e6 * self.cpu_s / count, 2) if count else 0.0,
        }


class Lane:
    """One connection with several requests in flight."""

    def __init__(self, address: str) -> None:
        self.socket = socket.create_connection(address_of(address), timeout=ANSWER_WITHIN)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._pending = bytearray()
        self._sent: deque[float] = deque()

    def send(self, frames: Sequence[bytes]) -> None:
        """Send requests and record the time of sending."""
        now = time.perf_counter()
        self._sent.extend([now] * len(frames))
        self.socket.sendall(b"".join(frames))

    def receive(self) -> list[float]:
        """Read once; return the latencies of the requests whose answers are complete."""
        data = self.socket.recv(READ_BYTES)
        if not data:
            msg = "the broker closed the connection"
            raise ConnectionError(msg)
        pending = self._pending
        pending += data
        at = 0
        took = []
        now = time.perf_counter()
        while len(pending) - at >= LENGTH_BYTES:
            end = at + LENGTH_BYTES + int.from_bytes(pending[at : at + LENGTH_BYTES], "big")
            if end > len(pending):
                break
            at = end
            took.append(now - self._sent.popleft())
        del pending[:at]
        return took

    @property
    def unanswered(self) -> int:
        """The number of requests in flight."""
        return len(self._sent)


def pump(
    address: str,
    frames: Sequence[bytes],
    *,
    connections: int,
    inflight: int,
    seconds: float,
    warm: float,
    pid: int,
) -> Figures:
    """Keep ``inflight`` requests in flight on each connection and return the figures.

    Args:
        address: the broker.
        frames: the requests, sent in rotation.
        connections: the number of connections.
        inflight: the number of requests in flight on each.
        seconds: the counted time.
        warm: the time before it, which is not counted.
        pid: the process whose CPU time is measured.
    """
    with ExitStack() as stack, selectors.DefaultSelector() as selector:
        lanes = [Lane(address) for _ in range(connections)]
        turns = cycle(frames)
        latencies: list[float] = []
        for lane in lanes:
            stack.callback(lane.socket.close)
            selector.register(lane.socket, selectors.EVENT_READ, lane)
            lane.send(list(islice(turns, inflight)))
        begun = time.perf_counter()
        count_from, stop_at = begun + warm, begun + warm + seconds
        cpu = cpu_seconds(pid)
        counting = False
        while (now := time.perf_counter()) < stop_at:
            if not counting and now >= count_from:
                counting, cpu = True, cpu_seconds(pid)
                latencies.clear()
            for key, _ in selector.select(timeout=0.1):
                took = key.data.receive()
                latencies += took
                if took:
                    key.data.send(list(islice(turns, len(took))))
        return Figures(time.perf_counter() - count_from, latencies, cpu_seconds(pid) - cpu)


def send_each(address: str, frames: Sequence[bytes], *, inflight: int = 256) -> None:
    """Send each request once and wait for all answers."""
    lane = Lane(address)
    try:
        rest = iter(frames)
        while portion := list(islice(rest, inflight - lane.unanswered)):
            lane.send(portion)
            lane.receive()
        while lane.unanswered:
            lane.receive()
    finally:
        lane.socket.close()

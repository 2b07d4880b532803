"""The named limits of connections, servers and pools, each with its reason.

Limits of the wire itself (frame, header) are in ``remoting.protocol.limits``. Sizes in bytes,
durations in seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from remoting.process_limits import ConnectionRoom, memory_bytes
from remoting.protocol.limits import MAX_FRAME_BYTES

CONNECT_TIMEOUT: Final = 3.0
"""To connect (cf. NettyClientConfig.connectTimeoutMillis)."""

IDLE_TIMEOUT: Final = 120.0
"""Without a read and a write, after which a connection is closed; both ends of RocketMQ do so."""

STALL_SECONDS: Final = 0.25
"""A deadline judged so late was delayed by our own loop, which an application kept busy."""

MAX_LOOKS: Final = 1024
"""Turns of the loop that read what has arrived before a deadline is judged: a socket's buffer
(some 6 MB at most) takes fewer."""

FRAME_TIMEOUT: Final = 30.0
"""For a frame to arrive whole: 16 MiB at 0.6 MB/s. Slower is a fault or an attack."""

SLICE_SECONDS: Final = 0.001
"""Work on one read before other connections get their turn."""

SLICE_BYTES: Final = 1024 * 1024
"""Bytes of one read worked before other connections get their turn."""

READ_AHEAD_BYTES: Final = 1024 * 1024
"""Read and not yet worked; above it reading rests until the slices have caught up."""

LARGE_REST_BYTES: Final = 128 * 1024
"""Missing bytes of a frame from which on it is read into a buffer of its own; less comes in one
more read."""

BEGIN_BYTES: Final = 64 * 1024
"""Bytes of a frame that are here before it gets a buffer of its own, or that are read of one whose
length isn't known yet."""

UNSENT_HIGH_WATER_BYTES: Final = 1024 * 1024
"""Answers a peer has not taken, above which we stop reading its requests."""

UNSENT_LOW_WATER_BYTES: Final = 256 * 1024
"""Answers a peer has not taken, below which reading goes on."""

MAX_UNSENT_BYTES: Final = 64 * 1024 * 1024
"""What we hold for a peer that does not read: four of the largest frames, then it is dropped."""

MEMORY_SHARE: Final = 1 / 8
"""Part of the memory that the process may use for each of the two totals below, so that peers can't
take what handlers, tables and the page cache need."""

LEAST_TOTAL_BYTES: Final = 2 * MAX_FRAME_BYTES
"""What such a total is at least: a frame of the largest size arrives in any container."""

MAX_TOTAL_HELD_BYTES: Final = 512 * 1024 * 1024
"""Incomplete frames and untaken answers of all connections together, or a share of the memory if
that is less. Above it, connections that hold more than their part of it are dropped; from half of
it on nobody is read from before what was read is worked."""

UNSENT_TIMEOUT: Final = 30.0
"""How long a peer may stay above the high-water mark before it is dropped."""

MAX_IN_PROGRESS_BYTES: Final = 32 * 1024 * 1024
"""Requests of one connection whose handlers are still at work: two of the largest frames."""

MAX_IN_PROGRESS_REQUESTS: Final = 1024
"""Handlers at work for one connection; each is a task of some 3 KiB."""

MAX_TOTAL_IN_PROGRESS_BYTES: Final = 256 * 1024 * 1024
"""Requests of all connections whose handlers are still at work, or a share of the memory if that is
less; more get SYSTEM_BUSY."""

MAX_TOTAL_IN_PROGRESS_REQUESTS: Final = 16_384
"""Handlers at work for all connections; more get SYSTEM_BUSY."""

MAX_PENDING_REQUESTS: Final = 65_535
"""Requests of ours without an answer yet (cf. NettySystemConfig.CLIENT_ASYNC_SEMAPHORE_VALUE)."""

MAX_CONNECTIONS: Final = 10_000
"""Connections of one server: some 100 MB of sockets and buffers at worst when all are idle."""

BACKLOG: Final = 1024
"""Connections that wait to be accepted (cf. NettyServerConfig)."""


CLOSE_TIMEOUT: Final = 5.0
"""To send what is left after a close was asked for; then the connection is cut."""

DRAIN_TIMEOUT: Final = 10.0
"""For handlers in progress to finish when a server stops."""

MAX_POOL_ADDRESSES: Final = 4096
"""Addresses a pool remembers (connections and back-offs): far more than the largest cluster."""

BACKOFF_FIRST: Final = 0.1
"""The first pause after a failed connect; doubled by each further failure."""

BACKOFF_MAX: Final = 2.0
"""The longest pause between connects: a server that is back is found within it."""

RECEIVE_BUFFER_BYTES: Final = 256 * 1024
"""First size of a blocking connection's receive buffer; it grows to the largest frame met."""


def total_bytes(most: int, memory: int) -> int:
    """A bound of all connections together, ``most`` or its share of the memory there is."""
    return min(most, max(LEAST_TOTAL_BYTES, int(memory * MEMORY_SHARE)))


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """The bounds of one connection, and of all that share an endpoint."""

    max_frame_bytes: int = MAX_FRAME_BYTES
    idle_timeout: float = IDLE_TIMEOUT
    frame_timeout: float = FRAME_TIMEOUT
    unsent_high_water_bytes: int = UNSENT_HIGH_WATER_BYTES
    unsent_low_water_bytes: int = UNSENT_LOW_WATER_BYTES
    max_unsent_bytes: int = MAX_UNSENT_BYTES
    max_total_held_bytes: int = field(
        default_factory=lambda: total_bytes(MAX_TOTAL_HELD_BYTES, memory_bytes())
    )
    unsent_timeout: float = UNSENT_TIMEOUT
    max_in_progress_bytes: int = MAX_IN_PROGRESS_BYTES
    max_in_progress_requests: int = MAX_IN_PROGRESS_REQUESTS
    max_total_in_progress_bytes: int = field(
        default_factory=lambda: total_bytes(MAX_TOTAL_IN_PROGRESS_BYTES, memory_bytes())
    )
    max_total_in_progress_requests: int = MAX_TOTAL_IN_PROGRESS_REQUESTS
    max_pending_requests: int = MAX_PENDING_REQUESTS
    close_timeout: float = CLOSE_TIMEOUT
    slice_bytes: int = SLICE_BYTES
    read_ahead_bytes: int = READ_AHEAD_BYTES
    large_rest_bytes: int = LARGE_REST_BYTES
    begin_bytes: int = BEGIN_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits(ConnectionLimits):
    """The bounds of a server and of each of its connections."""

    max_connections: int = MAX_CONNECTIONS
    room: ConnectionRoom | None = None
    """Shared with the other servers of the process; None: descriptors are not looked at."""

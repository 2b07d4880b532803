"""The limits of connections, servers and pools, each with its reason.

Limits of the protocol (frame, header) are in ``remoting.protocol.limits``. Sizes are in bytes,
durations in seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from remoting.protocol.limits import MAX_FRAME_BYTES
from remoting.runtime.process_limits import ConnectionRoom, memory_bytes

CONNECT_TIMEOUT: Final = 3.0
"""The time to connect (cf. NettyClientConfig.connectTimeoutMillis)."""

IDLE_TIMEOUT: Final = 120.0
"""A connection without reads and writes for this long is closed, as at both ends in RocketMQ."""

STALL_SECONDS: Final = 0.25
"""If the deadline of a request is checked this late, the application has blocked the event loop."""

MAX_EXPIRY_CHECKS: Final = 1024
"""Iterations of the event loop to read what has arrived before requests time out. Emptying a
socket's buffer (some 6 MB at most) takes fewer."""

FRAME_TIMEOUT: Final = 30.0
"""The time for a frame to arrive whole: 16 MiB at 0.6 MB/s. Slower is a fault or an attack."""

SLICE_SECONDS: Final = 0.001
"""The time for which one read is processed before other connections are served."""

SLICE_BYTES: Final = 1024 * 1024
"""The bytes of one read that are processed before other connections are served."""

READ_AHEAD_BYTES: Final = 1024 * 1024
"""Bytes read and not yet processed; above it, reading pauses until they are processed."""

LARGE_REST_BYTES: Final = 128 * 1024
"""A frame that lacks at least this many bytes is read into a separate buffer; fewer bytes arrive
with one more read."""

BEGIN_BYTES: Final = 64 * 1024
"""Bytes of a frame that must have arrived before it gets a separate buffer, and the bytes read of
a frame whose length is not known yet."""

UNSENT_HIGH_WATER_BYTES: Final = 1024 * 1024
"""Above this many unsent bytes of answers, a server stops reading the peer's requests."""

UNSENT_LOW_WATER_BYTES: Final = 256 * 1024
"""Below this many unsent bytes of answers, reading resumes."""

MAX_UNSENT_BYTES: Final = 64 * 1024 * 1024
"""A peer that does not read is dropped above this many unsent bytes: four of the largest frames."""

MEMORY_SHARE: Final = 1 / 8
"""The share of the memory that each of the two totals below may use, so that peers can't take what
handlers, tables and the page cache need."""

LEAST_TOTAL_BYTES: Final = 2 * MAX_FRAME_BYTES
"""The minimum of these totals, so that a frame of the largest size fits in any container."""

MAX_TOTAL_HELD_BYTES: Final = 512 * 1024 * 1024
"""Bytes of incomplete frames and unsent answers of all connections, or ``MEMORY_SHARE`` if that is
less. Above it, connections that hold more than their share of it are dropped."""

PAUSE_SHARE: Final = 1 / 2
"""The share of ``MAX_TOTAL_HELD_BYTES`` above which each connection reads no more until it has
processed what it has read."""

UNSENT_TIMEOUT: Final = 30.0
"""How long a peer may stay above the high-water mark before it is dropped."""

MAX_IN_PROGRESS_BYTES: Final = 32 * 1024 * 1024
"""Bytes of one connection's requests in progress: two of the largest frames."""

MAX_IN_PROGRESS_REQUESTS: Final = 1024
"""Requests in progress of one connection; each is a task of some 3 KiB."""

MAX_TOTAL_IN_PROGRESS_BYTES: Final = 256 * 1024 * 1024
"""Bytes of all connections' requests in progress, or ``MEMORY_SHARE`` if that is less; further ones
are answered SYSTEM_BUSY."""

MAX_TOTAL_IN_PROGRESS_REQUESTS: Final = 16_384
"""Requests in progress of all connections; further ones are answered SYSTEM_BUSY."""

MAX_PENDING_REQUESTS: Final = 65_535
"""A client's unanswered requests (cf. NettySystemConfig.CLIENT_ASYNC_SEMAPHORE_VALUE)."""

MAX_CONNECTIONS: Final = 10_000
"""Connections of one server: at most some 100 MB of sockets and buffers when all are idle, or 500
with TLS."""

BACKLOG: Final = 1024
"""The listen backlog: connections that wait to be accepted (cf. NettyServerConfig)."""

HANDSHAKE_TIMEOUT: Final = 10.0
"""The time from accepting a connection on a port with TLS to the end of its handshake: three round
trips, even over slow networks."""

MAX_HANDSHAKES: Final = 1024
"""Connections of one port with TLS that have not finished their handshake; further ones wait in the
backlog."""

FAIR_HANDSHAKE_SECONDS: Final = 2.0
"""The age from which the oldest unfinished handshake is closed for a new one, if there are too
many. An honest peer needs milliseconds; 1,024 at once, with keys of RSA 2048, some 1.3 s."""

CLOSE_TIMEOUT: Final = 5.0
"""The time to send what is queued after ``close``; then the connection is aborted."""

END_OF_TLS_SECONDS: Final = 0.02
"""The interval at which a closing connection with TLS looks whether all its bytes have arrived."""

DRAIN_TIMEOUT: Final = 10.0
"""The time for handlers in progress to finish when a server stops."""

MAX_POOL_ADDRESSES: Final = 4096
"""Addresses that a pool keeps state for; far more than the largest cluster has."""

BACKOFF_FIRST: Final = 0.1
"""The pause after the first failure to connect; each further failure doubles it."""

BACKOFF_MAX: Final = 2.0
"""The longest pause between attempts to connect, and so to notice that a server is back."""

RECEIVE_BUFFER_BYTES: Final = 256 * 1024
"""Initial size of a blocking connection's receive buffer, which grows to the largest frame."""


def total_bytes(limit: int, memory: int) -> int:
    """Return ``limit``, or ``MEMORY_SHARE`` of ``memory`` if that is less."""
    return min(limit, max(LEAST_TOTAL_BYTES, int(memory * MEMORY_SHARE)))


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """The limits of one connection, and of all connections of an endpoint."""

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
    """The limits of a server and of each of its connections."""

    max_connections: int = MAX_CONNECTIONS
    max_connections_per_address: int = 0
    """0: not limited, because many clients may share an address behind a proxy."""
    room: ConnectionRoom | None = None
    """Shared with the other servers of the process; None: file descriptors are not checked."""
    handshake_timeout: float = HANDSHAKE_TIMEOUT
    max_handshakes: int = MAX_HANDSHAKES
    fair_handshake_seconds: float = FAIR_HANDSHAKE_SECONDS

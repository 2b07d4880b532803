"""Measurements of a server process: private memory, event loop stalls, request times.

A timer fires every ``PERIOD`` seconds; its delay shows how long the loop was blocked by one
callback. It is cheap, but runs only with ``--metrics-port``.

The time of a request is that of its handler, from the decoded request to the answer, or to the
point where the request waits: for the disk with SYNC_FLUSH, or for a message in a held pull.
Waiting doesn't occupy the loop and has separate metrics. Requests that the fast path handles
together share the time of that call.
"""

from __future__ import annotations

import asyncio
import re
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from time import monotonic, perf_counter
from typing import TYPE_CHECKING, Final

from remoting.protocol.codes import RequestCode

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from remoting.connection import Connection
    from remoting.endpoint import Handler
    from remoting.protocol.command import Command


_MAPPING = re.compile(r"[0-9a-f]+-[0-9a-f]+ ...([ps]) ")
_MEGABYTE = 1024 * 1024


def private_bytes(pid: int) -> int:
    """Return the memory that only this process uses, in bytes; 0 if the system doesn't report it.

    That is Private_Clean and Private_Dirty of every mapping except shared ones: the pages of a
    shared file mapping belong to the page cache, and the kernel counts them as private only while
    no other process maps the same file.
    """
    kilobytes, shared = 0, False
    try:
        lines = Path(f"/proc/{pid}/smaps").read_text(errors="replace").splitlines()
    except OSError:
        return 0
    for line in lines:
        mapping = _MAPPING.match(line)
        if mapping:
            shared = mapping[1] == "s"
        elif not shared and line.startswith(("Private_Clean:", "Private_Dirty:")):
            kilobytes += int(line.split()[1])
    return kilobytes * 1024


def private_megabytes(pid: int) -> float:
    """Return ``private_bytes`` in MiB."""
    return private_bytes(pid) / _MEGABYTE


PERIOD: Final = 0.05
"""Seconds between two samples; shorter stalls are caught only by chance."""

STALL_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
"""Upper bounds in seconds; one more bucket counts longer stalls."""


class Durations:
    """A histogram of durations.

    Attributes:
        bounds: upper bounds of the buckets, in seconds.
        buckets: counts; one more bucket counts durations above all bounds.
        total: sum of all durations, in seconds.
        longest: longest duration, in seconds.
    """

    __slots__ = ("bounds", "buckets", "longest", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.buckets = [0] * (len(bounds) + 1)
        self.total = self.longest = 0.0

    def count(self, seconds: float, number: int = 1) -> None:
        """Add a duration, or several that took ``seconds`` in total; negative ones count as 0."""
        if seconds < 0:
            seconds = 0.0
        self.buckets[bisect_left(self.bounds, seconds / number)] += number
        self.total += seconds
        self.longest = max(self.longest, seconds)

    def histogram(self) -> tuple[list[tuple[str, float]], float]:
        """Return Prometheus' buckets, which count the durations up to their bounds, and the sum."""
        names = [*(str(bound) for bound in self.bounds), "+Inf"]
        counts = map(float, accumulate(self.buckets))
        return list(zip(names, counts, strict=True)), self.total


class LoopMonitor:
    """Measures stalls of the running event loop between ``start`` and ``stop``."""

    def __init__(self) -> None:
        self.stalls = Durations(STALL_BUCKETS)
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        """Start to sample the running loop."""
        self._loop = asyncio.get_running_loop()
        self._arm(self._loop)

    def stop(self) -> None:
        """Stop sampling."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = loop.call_later(PERIOD, self._look, loop, monotonic() + PERIOD)

    def _look(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        self.stalls.count(monotonic() - due)
        self._arm(loop)


LATENCY_BUCKETS: Final = (
    1e-5,
    2.5e-5,
    5e-5,
    1e-4,
    2.5e-4,
    5e-4,
    1e-3,
    2.5e-3,
    5e-3,
    0.01,
    0.05,
    0.25,
    1.0,
)
"""Upper bounds in seconds; one more bucket counts longer requests."""

_FAMILIES: Final[dict[str, tuple[RequestCode, ...]]] = {
    "send": (
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
    ),
    "pull": (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE),
    "offset": (
        RequestCode.QUERY_CONSUMER_OFFSET,
        RequestCode.UPDATE_CONSUMER_OFFSET,
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
        RequestCode.GET_MAX_OFFSET,
        RequestCode.GET_MIN_OFFSET,
        RequestCode.GET_EARLIEST_MSG_STORETIME,
    ),
    "client": (
        RequestCode.HEART_BEAT,
        RequestCode.UNREGISTER_CLIENT,
        RequestCode.GET_CONSUMER_LIST_BY_GROUP,
        RequestCode.LOCK_BATCH_MQ,
        RequestCode.UNLOCK_BATCH_MQ,
    ),
    "route": (RequestCode.GET_ROUTEINFO_BY_TOPIC,),
    "registration": (
        RequestCode.REGISTER_BROKER,
        RequestCode.UNREGISTER_BROKER,
        RequestCode.QUERY_DATA_VERSION,
    ),
}
_FAMILY_OF: Final = {int(code): name for name, codes in _FAMILIES.items() for code in codes}


def codes_of(name: str) -> tuple[int, ...]:
    """Return the request codes of a family, such as ``send``, or of one of RocketMQ's names.

    Raises:
        KeyError: there is no such family or name.
    """
    return _FAMILIES.get(name) or (RequestCode[name],)


OTHER: Final = "admin"
"""The family of all other requests."""


class RequestTimes:
    """Measures the durations of requests by family.

    Attributes:
        families: family name -> durations; a family is added with its first request.
    """

    def __init__(self) -> None:
        self.families: dict[str, Durations] = {}

    def around(self, handler: Handler) -> Handler:
        """Return a handler that calls ``handler`` and measures it."""

        def timed(
            command: Command, connection: Connection
        ) -> Command | Awaitable[Command | None] | None:
            started = perf_counter()
            try:
                return handler(command, connection)
            finally:
                self.count(command.code, 1, perf_counter() - started)

        return timed

    def count(self, code: int, requests: int, seconds: float) -> None:
        """Add requests of one code that took ``seconds`` in total."""
        name = _FAMILY_OF.get(code, OTHER)
        times = self.families.get(name)
        if times is None:
            times = self.families[name] = Durations(LATENCY_BUCKETS)
        times.count(seconds, requests)

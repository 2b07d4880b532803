"""How long requests take, by family; switched on with the metrics.

What is measured is the handler's own work, from the decoded request to its answer, or to the point
where it begins to wait: for the disk with SYNC_FLUSH, or for a message in a parked pull. Waiting
costs the loop nothing and is told by the metrics of fsyncs and parked pulls. What a broker does on
its short way is measured by the pass: its requests share the time of it.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Final

from remoting.protocol.codes import RequestCode

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from remoting.connection import Connection
    from remoting.endpoint import Handler
    from remoting.protocol.command import Command

LATENCY_BUCKETS: Final = (
    *(0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005),
    *(0.001, 0.0025, 0.005, 0.01, 0.05, 0.25, 1.0),
)
"""Upper bounds, seconds; one more bucket holds what took longer."""

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
OTHER: Final = "admin"
"""The family of every other request."""


@dataclass(slots=True)
class Times:
    """The requests of one family."""

    buckets: list[int] = field(default_factory=lambda: [0] * (len(LATENCY_BUCKETS) + 1))
    total: float = 0.0

    def count(self, seconds: float, requests: int = 1) -> None:
        """A request took so long, or several together."""
        self.buckets[bisect_left(LATENCY_BUCKETS, seconds / requests)] += requests
        self.total += seconds


class RequestTimes:
    """Measures the requests that one handler does.

    Attributes:
        families: name -> its times; a family is there from its first request on.
    """

    def __init__(self) -> None:
        self.families: dict[str, Times] = {}

    def around(self, handler: Handler) -> Handler:
        """The same handler, measured."""

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
        """So many requests of a code's family took so long together."""
        name = _FAMILY_OF.get(code, OTHER)
        times = self.families.get(name)
        if times is None:
            times = self.families[name] = Times()
        times.count(seconds, requests)

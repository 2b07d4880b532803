from array import array
from collections.abc import Callable
from typing import Protocol

from broker.fast_path.host import Host
from broker.fast_path.templates import Answers
from broker.store.consume_queue import ConsumeQueue
from broker.store.record_validator import TagsCodes
from broker.traffic.quotas import Meter
from remoting.connection import Connection
from remoting.protocol.bodies.heartbeat import SubscriptionData
from remoting.protocol.headers.pull import PullMessageRequestHeader

MAX_PLANS: int

class Peer(Protocol):
    """The sender of a read; see ``FastPathFeed``."""

    born_host: bytes
    connection: Connection

    def work_slow(self, buffer: bytes, position: int) -> int: ...

class SendPlan:
    """What all sends with the same repeating fields have in common."""

    def __init__(
        self,
        queue: ConsumeQueue,
        answers: tuple[Answers, Answers],
        *,
        flag: int,
        sys_flag: int,
        reconsume_times: int,
        batch: bool,
        count: array[int],
        meter: Meter | None = None,
    ) -> None:
        """``answers`` come from ``SendAnswers``; the other values but ``count`` are in records.

        The sends are added to ``count``, the topic's in ``Traffic``. ``meter`` limits them.
        """

class PullPlan:
    """What all pulls with the same repeating fields have in common: the header but its offsets."""

    @property
    def header(self) -> PullMessageRequestHeader: ...
    @property
    def codes(self) -> TagsCodes | None: ...
    @property
    def subscription(self) -> SubscriptionData | None:
        """The group's subscription that ``codes`` come from; None if they come from the header."""

    @property
    def meter(self) -> Meter | None: ...
    @property
    def account(self) -> str | None: ...
    @property
    def max_count(self) -> int: ...
    @property
    def max_bytes(self) -> int: ...
    def __init__(
        self,
        header: PullMessageRequestHeader,
        codes: TagsCodes | None,
        limits: tuple[int, int],
        count: array[int],
        meter: Meter | None = None,
        account: str | None = None,
    ) -> None:
        """``limits`` are the most messages and bytes for one pull.

        Pulls answered from windows are added to ``count``, the group's in ``Traffic``. ``meter``
        limits the pulls, ``account`` has signed them.
        """

    def decide(self, codes: TagsCodes | None, subscription: SubscriptionData | None) -> None:
        """Set the filter: the tags codes, and the subscription that they come from."""

class ReadPass:
    """The fast path of one broker; see ``read_pass.pyx``."""

    @property
    def frames(self) -> int: ...
    on_served: Callable[[int, int, float], None] | None
    def __init__(self, host: Host, *, max_frame_bytes: int, max_plans: int = ...) -> None: ...
    def work(
        self,
        peer: Peer,
        buffer: bytes,
        position: int,
        stop: int,
        may_go_on: Callable[[], bool],
    ) -> int:
        """Handle the frames from ``position`` on; return the position after the last one."""

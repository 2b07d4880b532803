from collections.abc import Callable
from typing import Protocol

from broker.fast_path.host import Host
from broker.processors.pull import Codes
from broker.store.consume_queue import ConsumeQueue
from remoting.connection import Connection
from remoting.protocol.bodies.heartbeat import SubscriptionData
from remoting.protocol.core.answer import AnswerTemplate
from remoting.protocol.headers.pull import PullMessageRequestHeader

MAX_PLANS: int

class Peer(Protocol):
    """Who a read came from; see ``FastPathFeed``."""

    born_host: bytes
    connection: Connection

    def work_slow(self, buffer: bytes, position: int) -> int: ...

class SendPlan:
    """What all sends of one kind have in common."""

    def __init__(
        self,
        queue: ConsumeQueue,
        answers: tuple[AnswerTemplate, AnswerTemplate],
        *,
        flag: int,
        sys_flag: int,
        reconsume_times: int,
        batch: bool,
    ) -> None:
        """``answers`` are those of ``SendAnswers``; the rest is as in records."""

class PullPlan:
    """What all pulls of one kind have in common: all of their headers but the offsets."""

    @property
    def header(self) -> PullMessageRequestHeader: ...
    @property
    def codes(self) -> Codes: ...
    @property
    def subscription(self) -> SubscriptionData | None:
        """Of the group, by which ``codes`` were decided; None when they are in the header."""

    @property
    def max_count(self) -> int: ...
    @property
    def max_bytes(self) -> int: ...
    def __init__(
        self, header: PullMessageRequestHeader, codes: Codes, limits: tuple[int, int]
    ) -> None:
        """``limits``: how many messages, and bytes, a pull gets at most."""

    def decide(self, codes: Codes, subscription: SubscriptionData | None) -> None:
        """Choose messages with these tags codes from now on."""

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
        """Work the frames of ``buffer`` from ``position`` on; the position behind the last one."""

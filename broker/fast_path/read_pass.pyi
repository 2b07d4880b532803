from collections.abc import Callable
from typing import Protocol

from broker.fast_path.host import Host, Piece
from remoting.connection import Connection

MAX_PLANS: int

class Peer(Protocol):
    """Who a read came from; see ``FastPathFeed``."""

    born_host: bytes
    connection: Connection

    @property
    def post(self) -> Callable[[list[Piece]], None]: ...
    @property
    def hold(self) -> Callable[[int], None]: ...
    @property
    def release(self) -> Callable[[int], None]: ...
    @property
    def crowded(self) -> bool: ...
    @property
    def may_hold(self) -> bool: ...
    def work_cold(self, buffer: bytes, position: int) -> int: ...

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

"""Whether a part of the client may be used: it is started, not closed, and in its own process."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Coroutine
from enum import Enum, auto
from typing import Any

from client.errors import PocketMQError, UsageError

_forks = 0


def _forked() -> None:
    global _forks  # noqa: PLW0603 - the count is a property of the process
    _forks += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


class LifecycleState(Enum):
    """The states of a part."""

    NEW = auto()
    OPEN = auto()
    CLOSED = auto()


class Lifecycle:
    """The state of one part.

    Args:
        name: what errors call the part.

    Attributes:
        closing: the task that closes it; None: that hasn't begun.
        failure: the error that closed it; None if it is open or was closed by a call of ``close``.
    """

    __slots__ = ("_forks", "_name", "_starting", "closing", "failure", "state")

    def __init__(self, name: str) -> None:
        self._name = name
        self._forks = _forks
        self._starting = asyncio.Lock()
        self.state = LifecycleState.NEW
        self.closing: asyncio.Task[None] | None = None
        self.failure: PocketMQError | None = None

    @property
    def forked(self) -> bool:
        """Whether this process is a fork of the one in which the part was created."""
        return self._forks != _forks

    def check(self) -> None:
        """Raise UsageError, or the part's ``failure``, unless the part is open.

        In a fork of the process that created it, it isn't.
        """
        if self.state is LifecycleState.OPEN and self._forks == _forks:
            return
        self.check_process()
        if self.state is LifecycleState.NEW:
            raise UsageError(
                f"the {self._name} is not started",
                hint="use `async with`, or await start() first",
            )
        if self.failure is not None:
            raise self.failure
        raise UsageError(f"the {self._name} is closed", hint="make a new one")

    def check_process(self) -> None:
        """Raise UsageError in a fork: sockets and event loop belong to the parent."""
        if self._forks != _forks:
            raise UsageError(
                f"the {self._name} was made before this process was forked",
                hint="make it in the child process",
            )

    async def start(self, work: Callable[[], Awaitable[None]]) -> None:
        """Start the part with ``work`` unless it is open; several callers do it once.

        Raises UsageError, or the part's ``failure``, if the part is closed.
        """
        async with self._starting:
            self.check_process()
            if self.state is LifecycleState.CLOSED:
                self.check()
            if self.state is LifecycleState.NEW:
                await work()

    def begin_to_close(self, work: Callable[[], Coroutine[Any, Any, None]]) -> asyncio.Task[None]:
        """Start the task that closes the part, unless that was done before."""
        if self.closing is None:
            self.closing = asyncio.create_task(work(), name=f"closing the {self._name}")
        return self.closing

    async def close(
        self, work: Callable[[], Coroutine[Any, Any, None]], *, wait: bool = True
    ) -> None:
        """Close a part that was started, in a task.

        Everybody who closes it waits for the same task; cancelling the wait doesn't cancel it.
        """
        if self.state is LifecycleState.NEW or self.forked:
            return
        closing = self.begin_to_close(work)
        if wait and not closing.done():
            await asyncio.wait([closing])
            if not closing.cancelled():
                closing.result()

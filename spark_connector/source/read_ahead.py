"""Schedules the pulls of one range and puts their answers in order. No I/O.

A range is cut into windows of offsets, each requested with one pull; several pulls are in flight at
a time. The broker decides how many messages an answer holds (Apache's by default: at most 32
messages or 256 KiB; with a filter, the matches among those it scanned). Therefore:

- If an answer covers only the front of its window, the remainder becomes a window that is
  requested next.
- If an answer covers more than its window, the following windows are shortened or dropped.
- The width of new windows adapts to the answers. It shrinks at once, and doubles after a number of
  consecutive full answers. That number doubles after each failed widening, and is reset after a
  successful one.
- Until the first answer arrives only one pull is in flight.

Answers are returned in the order of their offsets. One that arrives early is kept and counts
against ``depth``, so at most ``depth`` answers are in memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, NamedTuple

FULL_BEFORE_WIDER: Final = 4
"""Consecutive full answers after which a wider window is tried."""

MOST_BEFORE_WIDER: Final = 64
"""The upper bound of that number after failed attempts."""


class _State(Enum):
    WANTED = auto()
    ASKED = auto()
    ANSWERED = auto()


@dataclass(slots=True, eq=False)
class PullWindow:
    """The offsets ``[start, end)`` of one pull, and its answer."""

    start: int
    end: int
    state: _State = _State.WANTED
    opaque: int = -1
    next_offset: int = -1
    body: memoryview | None = None
    is_lost: bool = False


class PullPart(NamedTuple):
    """The next answer in offset order.

    Attributes:
        first: messages below this offset were returned before.
        next_offset: the end of the offsets that the answer covers.
        body: records; None if there are none.
        is_lost: the broker has deleted the messages at these offsets.
    """

    first: int
    next_offset: int
    body: memoryview | None
    is_lost: bool


class ReadAhead:
    """The pulls of one range.

    Args:
        start, end: the range of queue offsets, the end excluded.
        width: the most messages requested with one pull.
        depth: the most pulls in flight, including answers that wait for earlier ones.

    Attributes:
        position: all answers below this offset have been returned.
        end: the end of the range.
        width: the width of the next new window.
    """

    def __init__(self, start: int, end: int, *, width: int, depth: int) -> None:
        self.position = start
        self.end = max(start, end)
        self.width = self._most = width
        self._depth = depth
        self._planned = start
        self._windows: list[PullWindow] = []
        self._has_answers = False
        self._full = 0
        self._full_before_wider = FULL_BEFORE_WIDER
        self._is_trying = False

    @property
    def in_flight(self) -> int:
        """The number of unanswered pulls."""
        return sum(window.state is _State.ASKED for window in self._windows)

    @property
    def done(self) -> bool:
        """Whether all answers have been returned and no pull is unanswered."""
        return self.position >= self.end and not self.in_flight

    @property
    def head(self) -> PullWindow | None:
        """The window whose answer is returned next."""
        return self._windows[0] if self._windows else None

    def next_pull(self) -> PullWindow | None:
        """Return a window to pull now, or None if enough are in flight.

        The caller has to send the pull and call ``sent``.
        """
        depth = self._depth if self._has_answers else 1
        active = sum(window.state is not _State.WANTED for window in self._windows)
        for index, window in enumerate(self._windows):
            if window.state is _State.WANTED:
                if index and active >= depth:
                    return None
                if window.end - window.start > self.width:
                    # Split off what exceeds the current width.
                    middle = window.start + self.width
                    self._windows.insert(index + 1, PullWindow(middle, window.end))
                    window.end = middle
                return window
        if active >= depth or self._planned >= self.end:
            return None
        window = PullWindow(self._planned, min(self._planned + self.width, self.end))
        self._planned = window.end
        self._windows.append(window)
        return window

    def sent(self, window: PullWindow, opaque: int) -> None:
        """Record that a window's pull was sent."""
        window.state, window.opaque = _State.ASKED, opaque

    def find(self, opaque: int) -> PullWindow | None:
        """Return the window whose pull has this ``opaque``, or None."""
        return next((window for window in self._windows if window.opaque == opaque), None)

    def answered(
        self,
        window: PullWindow,
        next_offset: int,
        body: memoryview | None = None,
        *,
        is_lost: bool = False,
    ) -> None:
        """Record the answer of a window's pull.

        Args:
            window: the window.
            next_offset: the end of the offsets covered by the answer, above the window's start.
            body: records; kept until they are returned, so they must not be overwritten.
            is_lost: the broker has deleted the messages at these offsets.
        """
        assert window.state is _State.ASKED
        assert next_offset > window.start
        window.state, window.next_offset = _State.ANSWERED, next_offset
        window.body, window.is_lost = body, is_lost
        if not is_lost:
            self._has_answers = True
            self._adapt(window.end - window.start, next_offset - window.start)
        if next_offset < window.end:
            index = self._windows.index(window)
            self._windows.insert(index + 1, PullWindow(next_offset, window.end))
            window.end = next_offset

    def next_part(self) -> PullPart | None:
        """Return the next answer in offset order, or None if it has not arrived."""
        while self._windows and self._windows[0].state is _State.ANSWERED:
            window = self._windows.pop(0)
            first, self.position = self.position, max(self.position, window.next_offset)
            self._planned = max(self._planned, self.position)
            self._drop_superfluous()
            if window.next_offset > first and first < self.end:
                return PullPart(first, window.next_offset, window.body, window.is_lost)
        return None

    def restart(self) -> None:
        """Drop all windows and continue at ``position``, after the connection was lost."""
        self._windows.clear()
        self._planned = self.position

    def cut(self, end: int) -> None:
        """End the range earlier. No pull may be in flight."""
        self.end = max(self.position, min(end, self.end))
        self.restart()

    def _drop_superfluous(self) -> None:
        """Shorten or drop windows that were not requested yet but are covered by other answers."""
        kept = []
        for window in self._windows:
            if window.state is _State.WANTED:
                window.start = max(window.start, self.position)
                if window.start >= window.end:
                    continue
            kept.append(window)
        self._windows = kept

    def _adapt(self, asked: int, brought: int) -> None:
        if brought > asked:
            self.width = max(self.width, brought)
            self._full = 0
        elif brought < asked:
            self._full = 0
            self._is_trying = False
            if brought < self.width:
                self.width = brought
                self._full_before_wider = min(self._full_before_wider * 2, MOST_BEFORE_WIDER)
        elif asked >= self.width and self.width < self._most:
            if self._is_trying:
                self._is_trying = False
                self._full_before_wider = FULL_BEFORE_WIDER
            self._full += 1
            if self._full >= self._full_before_wider:
                self._full = 0
                self.width = min(self.width * 2, self._most)
                self._is_trying = True

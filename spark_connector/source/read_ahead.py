"""Which pulls of a range are in flight, and the order of their answers: pure.

A range is cut into windows, each asked for with one pull, several at a time. How many messages an
answer brings is the broker's decision (Apache's: 32, or 256 KiB; with a filter, as many as it found
in what it looked through), so:

- a window of which an answer covers only the front leaves a remainder, which is asked for next;
- an answer that covers more than its window makes what follows shorter, or superfluous;
- the width of new windows follows the answers: down at once, up by doubling after a row of full
  ones, which has to be longer after every doubling in vain (and is short again after a good one);
- nothing is guessed before the first answer: until then one pull is in flight.

Answers are given out in the order of their offsets, whatever order they come in. What came too
early is kept, and counts as in flight: memory is bounded by ``depth`` answers.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, NamedTuple

FULL_BEFORE_WIDER: Final = 4
"""Full answers in a row after which a wider window is tried."""

MOST_BEFORE_WIDER: Final = 64
"""The same after many attempts in vain."""


class _State(Enum):
    WANTED = auto()
    ASKED = auto()
    ANSWERED = auto()


@dataclass(slots=True, eq=False)
class PullWindow:
    """Offsets ``[start, end)`` asked for with one pull."""

    start: int
    end: int
    state: _State = _State.WANTED
    opaque: int = -1
    next_offset: int = -1
    body: memoryview | None = None
    is_lost: bool = False


class PullPart(NamedTuple):
    """An answer in its turn.

    Attributes:
        first: offset from which on its messages are news.
        next_offset: they, or the lack of any, reach up to here.
        body: records; None when there are none.
        is_lost: the offsets are gone at the broker.
    """

    first: int
    next_offset: int
    body: memoryview | None
    is_lost: bool


class ReadAhead:
    """The pulls of one range.

    Args:
        start, end: the range.
        width: the most messages asked for with one pull.
        depth: the most pulls in flight.

    Attributes:
        position: everything below has been given out.
        end: where the range ends.
        width: of the next new window.
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
        """Pulls that were sent and not answered."""
        return sum(window.state is _State.ASKED for window in self._windows)

    @property
    def done(self) -> bool:
        """Whether everything was given out, and no answer is still to come."""
        return self.position >= self.end and not self.in_flight

    @property
    def head(self) -> PullWindow | None:
        """The window whose answer is given out next."""
        return self._windows[0] if self._windows else None

    def next_pull(self) -> PullWindow | None:
        """A window to ask for now; ``sent`` has to follow. None: enough are in flight."""
        depth = self._depth if self._has_answers else 1
        active = sum(window.state is not _State.WANTED for window in self._windows)
        for index, window in enumerate(self._windows):
            if window.state is _State.WANTED:
                if index and active >= depth:
                    return None
                return self._front(index)
        if active >= depth or self._planned >= self.end:
            return None
        window = PullWindow(self._planned, min(self._planned + self.width, self.end))
        self._planned = window.end
        self._windows.append(window)
        return window

    def sent(self, window: PullWindow, opaque: int) -> None:
        """A window was asked for."""
        window.state, window.opaque = _State.ASKED, opaque

    def find(self, opaque: int) -> PullWindow | None:
        """The window whose answer this is."""
        return next((one for one in self._windows if one.opaque == opaque), None)

    def answered(
        self,
        window: PullWindow,
        next_offset: int,
        body: memoryview | None = None,
        *,
        is_lost: bool = False,
    ) -> None:
        """An answer came.

        Args:
            window: what was asked for.
            next_offset: what the answer covers ends here; behind the window's start.
            body: records; they are kept until it is their turn, so they must not be overwritten.
            is_lost: the broker has nothing there any more.
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
        """The next answer whose turn it is."""
        while self._windows and self._windows[0].state is _State.ANSWERED:
            window = self._windows.pop(0)
            first, self.position = self.position, max(self.position, window.next_offset)
            self._planned = max(self._planned, self.position)
            self._drop_superfluous()
            if window.next_offset > first and first < self.end:
                return PullPart(first, window.next_offset, window.body, window.is_lost)
        return None

    def restart(self) -> None:
        """The connection is gone, and with it what was in flight or waited for its turn."""
        self._windows.clear()
        self._planned = self.position

    def cut(self, end: int) -> None:
        """The range ends earlier; call it when nothing is in flight."""
        self.end = max(self.position, min(end, self.end))
        self.restart()

    def _front(self, index: int) -> PullWindow:
        """As much of a window's front as is asked for at once; the rest becomes its own."""
        window = self._windows[index]
        if window.end - window.start > self.width:
            middle = window.start + self.width
            self._windows.insert(index + 1, PullWindow(middle, window.end))
            window.end = middle
        return window

    def _drop_superfluous(self) -> None:
        """What was not asked for yet, and has been brought by other answers."""
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
            self._shrink(brought)
        elif asked >= self.width and self.width < self._most:
            if self._is_trying:
                self._is_trying = False
                self._full_before_wider = FULL_BEFORE_WIDER
            self._full += 1
            if self._full >= self._full_before_wider:
                self._full = 0
                self.width = min(self.width * 2, self._most)
                self._is_trying = True

    def _shrink(self, brought: int) -> None:
        self._full = 0
        self._is_trying = False
        if brought < self.width:
            self.width = brought
            self._full_before_wider = min(self._full_before_wider * 2, MOST_BEFORE_WIDER)

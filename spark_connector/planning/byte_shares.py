"""How a limit in bytes is divided among queues.

Our brokers tell what a range of messages takes in their log, exactly (``remoting.protocol.
byte_range``), so of theirs no more is taken than the limit has room for. Each queue is asked how
far its part of the limit reaches, parts being in proportion to what the queues have to read. A
message whose size an answer told is then taken without a question if there is room for it. Where
that leaves more, because some queues had less to read than their part, those whose messages are
small enough are asked once more, one after the other. In the end there is no room for the next
message of at least one queue, unless the second answers, too, were far from what was expected.

Queues that got nothing, for their next message had no room, are the first to be served in the next
batch, who waits for longest before all. Else a large message would never have its turn beside a
queue of small ones that has always more. One larger than the whole limit makes a batch of its own.

For a broker that can't tell, an estimate from samples answers in its place.

No I/O here: brokers are asked through ``Sizes``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from remoting.protocol.byte_range import ByteAnswer, ByteQuestion
from remoting.protocol.queue import MessageQueue
from spark_connector.planning.offsets import Offsets

SIZE_WEIGHT: Final = 0.3
"""Weight of the newest sample in the average of stored sizes."""

SAMPLED_QUEUES: Final = 3
"""Queues whose messages are sampled for an estimate; those with most to read."""

UNSEEN_BYTES: Final = 1024
"""What a message is taken to have as long as none could be sampled."""


class Sizes(Protocol):
    """What only brokers know."""

    def measure(
        self, questions: Mapping[MessageQueue, ByteQuestion]
    ) -> Mapping[MessageQueue, ByteAnswer | None]:
        """How far limits reach in queues, each with a range that has a message and a limit.

        Returns:
            Answers that went at least a message further, or tell its size. None where a broker
            can't tell. Queues that can't be asked now are left out.
        """
        ...

    def mean_size(self, queue: MessageQueue, offset: int) -> float | None:
        """The average stored size, in bytes, of some messages; None: there are none."""
        ...


class Passed(NamedTuple):
    """A message that had no room in the batch before.

    Attributes:
        offset: in its queue.
        size: stored bytes.
    """

    offset: int
    size: int


@dataclass(slots=True)
class _Part:
    """What one queue gives to a batch: messages up to ``at``.

    Attributes:
        begin, end: what it has to read.
        mean: what a message of it takes, about.
        following: the size of the message at ``at``, if it is known.
        reachable: whether its broker could be asked.
    """

    queue: MessageQueue
    begin: int
    end: int
    mean: float
    at: int = field(init=False)
    following: int | None = None
    reachable: bool = True

    def __post_init__(self) -> None:
        self.at = self.begin

    @property
    def is_open(self) -> bool:
        """Whether there is more to read."""
        return self.at < self.end and self.reachable

    @property
    def weight(self) -> int:
        """The bytes it has yet to read, about."""
        return max(1, round((self.end - self.at) * self.mean))

    def take(self, answer: ByteAnswer | None) -> int:
        """Go as far as a limit reached; how many bytes that is. None: there was no answer."""
        if answer is None:
            self.reachable = False
            return 0
        count = answer.reached - self.at
        if count:
            self.mean = answer.size / count
        elif answer.following is not None:
            self.mean = answer.following
        self.at, self.following = answer.reached, answer.following
        return answer.size


@dataclass(slots=True)
class ByteShares:
    """A limit in bytes, with what it has to remember.

    Attributes:
        limit: of a batch.
        mean_bytes: the average of sampled sizes; 0: there was no sample yet.
        passed: the next messages of queues that got nothing in the batch before, by how long they
            have been waiting.
    """

    limit: int
    mean_bytes: float = 0.0
    passed: dict[MessageQueue, Passed] = field(default_factory=dict)
    _means: dict[MessageQueue, float] = field(default_factory=dict)

    def ends(self, begins: Offsets, ends: Offsets, sizes: Sizes) -> Offsets:
        """Where a batch ends that may take ``[begins, ends)`` and keeps to the limit.

        It takes at least one message if there is one in a queue that can be asked. A queue is
        asked twice at most.
        """
        usual = self._usual_mean()
        parts = {
            queue: _Part(queue, begin, ends[queue], self._means.get(queue, usual))
            for queue, begin in begins.items()
            if begin < ends[queue]
        }
        self.passed = {
            queue: passed
            for queue, passed in self.passed.items()
            if queue in parts and parts[queue].begin == passed.offset
        }
        self._divide(parts, sizes)
        self._remember(parts, begins)
        return begins | {queue: part.at for queue, part in parts.items()}

    def learn_size(self, mean_bytes: float) -> None:
        """A sample of stored sizes was taken."""
        if self.mean_bytes:
            self.mean_bytes += SIZE_WEIGHT * (mean_bytes - self.mean_bytes)
        else:
            self.mean_bytes = mean_bytes

    def _divide(self, parts: Mapping[MessageQueue, _Part], sizes: Sizes) -> None:
        for queue, passed in self.passed.items():
            parts[queue].following = passed.size
        first = next(iter(self.passed), None)
        if first is not None and self.passed[first].size > self.limit:
            parts[first].at += 1
            return
        left = self._give([parts[queue] for queue in self.passed], self.limit)
        left = self._ask([part for part in parts.values() if part.is_open], left, sizes)
        left = self._give(self._in_turn(parts), left)
        left = self._ask_again([part for part in parts.values() if part.is_open], left, sizes)
        self._give(self._in_turn(parts), left)
        if all(part.at == part.begin for part in parts.values()):
            for part in self._in_turn(parts)[:1]:
                part.at += 1

    def _in_turn(self, parts: Mapping[MessageQueue, _Part]) -> list[_Part]:
        """Those that have more to read: first who was passed over or has nothing, or has most."""
        waiting = {queue: number for number, queue in enumerate(self.passed)}
        return sorted(
            (part for part in parts.values() if part.is_open),
            key=lambda part: (
                waiting.get(part.queue, len(waiting)),
                part.at > part.begin,
                -part.weight,
            ),
        )

    def _give(self, parts: Iterable[_Part], left: int) -> int:
        """One message for each queue, as far as its size is known and there is room for it."""
        for part in parts:
            if part.is_open and part.following is not None and part.following <= left:
                left -= part.following
                part.at += 1
                part.following = None
        return left

    def _ask(self, parts: list[_Part], left: int, sizes: Sizes) -> int:
        """Let each queue take what its part of ``left`` has room for; what is left then."""
        if not parts:
            return left
        total = sum(part.weight for part in parts)
        questions = {
            part.queue: ByteQuestion(part.at, part.end, left * part.weight // total)
            for part in parts
        }
        told = sizes.measure(questions)
        self._sample(
            (part for part in parts if part.queue in told and told[part.queue] is None), sizes
        )
        answers = self._answers(told, questions)
        for part in parts:
            left -= part.take(answers.get(part.queue))
        return left

    def _ask_again(self, parts: list[_Part], left: int, sizes: Sizes) -> int:
        """The same, where what one leaves is for those that come after it."""
        total = sum(part.weight for part in parts)
        for part in sorted(parts, key=lambda part: part.weight):
            limit = left * part.weight // total
            total -= part.weight
            if limit >= (part.following or max(1, part.mean)):
                question = {part.queue: ByteQuestion(part.at, part.end, limit)}
                answers = self._answers(sizes.measure(question), question)
                left -= part.take(answers.get(part.queue))
        return left

    def _answers(
        self,
        told: Mapping[MessageQueue, ByteAnswer | None],
        questions: Mapping[MessageQueue, ByteQuestion],
    ) -> dict[MessageQueue, ByteAnswer]:
        """The same, with estimates for those who can't tell."""
        mean_bytes = self.mean_bytes or UNSEEN_BYTES
        return {
            queue: estimate(questions[queue], mean_bytes) if answer is None else answer
            for queue, answer in told.items()
        }

    def _sample(self, parts: Iterable[_Part], sizes: Sizes) -> None:
        """Learn how large the next messages are, about."""
        longest = sorted(parts, key=lambda part: part.at - part.end)
        for part in longest[:SAMPLED_QUEUES]:
            mean_bytes = sizes.mean_size(part.queue, part.at)
            if mean_bytes is not None:
                self.learn_size(mean_bytes)

    def _usual_mean(self) -> float:
        """What a message of a queue takes that nothing is known of."""
        if self._means:
            return sum(self._means.values()) / len(self._means)
        return self.mean_bytes or UNSEEN_BYTES

    def _remember(self, parts: Mapping[MessageQueue, _Part], begins: Offsets) -> None:
        known = self._means
        self._means = {
            queue: parts[queue].mean if queue in parts else known[queue]
            for queue in begins
            if queue in parts or queue in known
        }
        passed_over = [
            part
            for part in self._in_turn(parts)
            if part.at == part.begin and part.following is not None
        ]
        self.passed = {part.queue: Passed(part.at, part.following or 0) for part in passed_over}


def estimate(question: ByteQuestion, mean_bytes: float) -> ByteAnswer:
    """What a broker would answer if all messages had the average size."""
    assert question.limit is not None
    size = max(1, round(mean_bytes))
    length = question.end - question.begin
    count = min(length, question.limit // size)
    following = size if count < length else None
    return ByteAnswer(count * size, question.begin + count, following)

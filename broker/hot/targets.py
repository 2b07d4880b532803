"""Where sends go, worked out once per kind of send.

Of a producer's messages all but the text of the properties, the time and the opaque repeat. What
follows from the rest, whether the send is admitted, its queue, the record's constant fields, its
answer's template, is kept under just those texts of the header until something it was made from
changes. What is refused, or only the general path can decide, is not kept.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Final, TypeAlias

from broker.hot.answers import SendAnswers, framed_template
from broker.hot.headers import AnySendFields, small_integer
from broker.state import BrokerState
from broker.store.bulk import Run
from remoting.protocol import names
from remoting.protocol.bodies.topic import TopicConfig
from remoting.protocol.headers.base import parse_bool
from remoting.protocol.limits import MAX_TOPIC_LENGTH
from remoting.protocol.message.sys_flag import HOSTS_V6_MASK, TRANSACTION_MASK

MAX_TARGETS: Final = 16_384
"""Kinds of sends remembered, of about 1 KiB each: a producer's to ten thousand queues. More are a
stream of odd headers, for which it starts anew."""

Key: TypeAlias = tuple[str, ...]

key_of: Final[Callable[[AnySendFields], Key]] = attrgetter(*"bedfhjklm")
"""The texts of a header that tell its kind."""

_SINGLE_TAG: Final = "SINGLE_TAG"


class Target:
    """What all sends of one kind have in common."""

    __slots__ = (
        "_digits",
        "_frame",
        "answer",
        "batch",
        "batch_answer",
        "flag",
        "queue_id",
        "reconsume_times",
        "run",
        "sys_flag",
        "topic_text",
    )

    def __init__(self, run: Run, numbers: _Numbers, answers: SendAnswers) -> None:
        self.run = run
        self.queue_id = run.queue.queue_id
        self.flag = numbers.flag
        self.sys_flag = numbers.sys_flag & ~HOSTS_V6_MASK
        self.reconsume_times = numbers.reconsume_times
        self.batch = numbers.batch
        topic = run.queue.topic_bytes
        self.topic_text = bytes((len(topic),)) + topic
        self.answer = answers.one(self.queue_id)
        self.batch_answer = answers.many(self.queue_id)
        self._frame = b""
        self._digits = 0, 0

    def frame(self, count: int, opaque: int) -> bytes:
        """The template of the frames that answer the last ``count`` messages of this pass.

        Their opaques are as long as ``opaque``. Empty if they have not all the same length.
        """
        last = self.run.next_offset - 1
        digits = len(str(last)), len(str(opaque))
        if len(str(last - count + 1)) != digits[0]:
            return b""
        if digits != self._digits:
            self._digits = digits
            self._frame = framed_template(self.answer, len(self.answer % (0, last, opaque)))
        return self._frame


class _Numbers:
    """The numbers of a send's header."""

    __slots__ = ("batch", "flag", "queue_id", "reconsume_times", "sys_flag")

    def __init__(self, fields: AnySendFields) -> None:
        """Raises ``ValueError`` when one of them is unusual."""
        self.queue_id = _number(fields.e)
        self.sys_flag = _number(fields.f)
        self.flag = _number(fields.h)
        self.reconsume_times = _number(fields.j)
        # These two are not used, but must be such.
        _number(fields.d)
        _number(fields.l)
        if self.sys_flag & TRANSACTION_MASK:
            raise ValueError(fields)
        self.batch = parse_bool(fields.m)


class Targets:
    """The kinds of sends met.

    Attributes:
        generation: another number whenever what was found before is no longer true.
    """

    __slots__ = (
        "_answers",
        "_known",
        "_queues",
        "_removals",
        "_runs",
        "_state",
        "_topics_version",
        "generation",
        "get",
    )

    def __init__(self, state: BrokerState, answers: SendAnswers) -> None:
        self._state = state
        self._answers = answers
        self._queues = state.store.queues
        self._known: dict[Key, Target] = {}
        self._runs: dict[tuple[str, int], Run] = {}
        self._topics_version = state.topics.data_version
        self._removals = self._queues.removals
        self.generation = 0
        self.get = self._known.get

    def refresh(self) -> None:
        """Forget everything if topics or queues have changed. Nothing may wait to be stored."""
        if (
            self._state.topics.data_version is not self._topics_version
            or self._queues.removals != self._removals
        ):
            self._topics_version = self._state.topics.data_version
            self._removals = self._queues.removals
            self.generation += 1
            self._known.clear()
            self._runs.clear()

    def find(self, key: Key, fields: AnySendFields) -> Target | None:
        """The target of a kind of send met for the first time; None: the general path decides."""
        try:
            numbers = _Numbers(fields)
        except ValueError:
            return None
        config = self._state.topics.get(fields.b)
        if config is None or not self._admits(config, numbers.queue_id):
            return None
        if self._state.changes.topic_pending(fields.b) is not None:
            return None
        queue = self._queues.get((fields.b, numbers.queue_id))
        if queue is None:
            return None
        run = self._runs.setdefault((fields.b, numbers.queue_id), Run(queue))
        target = Target(run, numbers, self._answers)
        if len(self._known) >= MAX_TARGETS:
            self._known.clear()
        self._known[key] = target
        return target

    def _admits(self, topic: TopicConfig, queue_id: int) -> bool:
        """Whether a send is admitted without any of the special cases of the general path."""
        state = self._state
        name = topic.topic_name
        return (
            queue_id < max(topic.write_queue_nums, topic.read_queue_nums)
            and topic.topic_filter_type == _SINGLE_TAG
            and (not topic.order or bool(state.config.broker_permission & names.PERM_WRITE))
            and len(name) <= MAX_TOPIC_LENGTH
            and name not in names.NOT_SENDABLE_TOPICS
            and not name.startswith(names.RETRY_PREFIX)
            and state.clock.now_ms() >= state.config.start_accept_send_request_timestamp_ms
        )


def _number(text: str) -> int:
    value = small_integer(text)
    if value is None:
        raise ValueError(text)
    return value

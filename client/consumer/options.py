"""Options of a push consumer."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias, TypeVar

from client import limits
from client.config import GroupArguments, GroupOptions, one_of, positive
from client.errors import UsageError
from client.positions import Duration, Place, Position, check_topic_name, seconds, utf8_size
from remoting.protocol.message.tags import SqlExpression, TagExpression

if TYPE_CHECKING:
    from client.consumer.received import ReceivedMessage

T = TypeVar("T")

Handler: TypeAlias = (
    Callable[["ReceivedMessage[T]"], object] | Callable[[list["ReceivedMessage[T]"]], object]
)
"""``async def`` or ``def``; called with a message, or with a list of them if ``batch_size`` > 1."""

Model: TypeAlias = Literal["clustering", "broadcasting"]
OnExhausted: TypeAlias = Literal["dead_letter", "stop", "block"]


class Tags:
    """A subscription by tag: ``Tags("paid", "refunded")``; ``Tags()`` matches all messages."""

    __slots__ = ("text",)

    def __init__(self, *tags: str) -> None:
        given: tuple[Any, ...] = tags
        for tag in given:
            if not isinstance(tag, str) or not tag.strip() or "||" in tag:
                raise UsageError(f"{tag!r} is no tag", hint="give each tag as one text")
        self.text = " || ".join(tags) or "*"

    def __repr__(self) -> str:
        return f"client.Tags({self.text})"


class Sql:
    """An SQL92 expression that selects messages by their properties: ``Sql("amount > 100")``.

    The broker evaluates it; see the page on filters for what it can say. Apache's brokers need
    ``enablePropertyFilter=true``.
    """

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        given: Any = text
        if not isinstance(given, str) or not text.strip():
            raise UsageError(f"{given!r} is no expression", hint='e.g. client.Sql("amount > 100")')
        if len(text) > limits.MAX_EXPRESSION_LENGTH:
            raise UsageError(
                f"the expression has {len(text)} characters, at most "
                f"{limits.MAX_EXPRESSION_LENGTH} are possible",
                hint="shorten it, or choose among the messages in the application",
            )
        self.text = text

    def __repr__(self) -> str:
        return f"client.Sql({self.text!r})"


Wanted: TypeAlias = str | Tags | Sql
"""``"*"`` for all messages of a topic, ``"A || B"`` or ``Tags("A", "B")`` for tags, or ``Sql``."""

Subscribe: TypeAlias = Mapping[str, Wanted]
"""Topic -> which of its messages; see ``Wanted``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Orderly:
    """Consume each queue in order, one message at a time across all members of the group.

    Attributes:
        max_retries: retries of a failing message before ``on_exhausted`` applies; None: unlimited,
            so the queue stays blocked for as long as the message fails.
        suspend: seconds the queue rests after the first failure; doubles with each further one.
        max_suspend: upper limit of the rest, in seconds.
        on_exhausted: ``dead_letter``: dead-letter the message and continue. ``stop``: stop the
            consumer with an error. ``block``: keep retrying, every ``max_suspend`` seconds.
        auto_commit: False: the handler returns ``COMMIT`` to commit, or ``ROLLBACK`` to have all
            messages since the last commit delivered again; None postpones the decision.
    """

    max_retries: int | None = 16
    suspend: Duration = 1.0
    max_suspend: Duration = 30.0
    on_exhausted: OnExhausted = "dead_letter"
    auto_commit: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "suspend", seconds(self.suspend, "suspend"))
        object.__setattr__(self, "max_suspend", seconds(self.max_suspend, "max_suspend"))
        if self.max_retries is not None and self.max_retries < 0:
            raise UsageError(
                f"max_retries can't be {self.max_retries}", hint="give 0 or more, or None"
            )
        one_of("on_exhausted", self.on_exhausted, "dead_letter", "stop", "block")

    def rest(self, failures: int) -> float:
        """Return the seconds a queue rests after ``failures`` failures of its first message."""
        assert isinstance(self.suspend, float)
        assert isinstance(self.max_suspend, float)
        doublings = min(max(failures, 1) - 1, 40)
        return min(self.max_suspend, self.suspend * 2.0**doublings)


class PushArguments(GroupArguments, total=False):
    """Keyword arguments of ``PushConsumer``; see ``PushOptions``."""

    concurrency: int
    batch_size: int
    order: Orderly | None
    model: Model
    consume_timeout: Duration
    max_retries: int
    breaker: int | None
    max_span: int
    commit_period: Duration
    local_offsets: str | Path | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PushOptions(GroupOptions):
    """Options of a push consumer besides ``GroupOptions``, times in seconds.

    Attributes:
        concurrency: maximum number of handlers running at the same time.
        batch_size: if > 1, the handler gets lists of up to this many messages of one queue.
        order: consume each queue in order; None: many messages of a queue concurrently.
        model: ``clustering``: members share the messages. ``broadcasting``: each gets all.
        consume_timeout: time limit of a handler call; afterwards its messages are retried.
        max_retries: retries of a message before it is dead-lettered; not used with ``order``.
        breaker: number of consecutive messages whose handler raised the same exception type at the
            same line after which consumption pauses until ``resume``; None: never.
        max_span: maximum distance from a queue's commit point to the newest message read, in
            offsets; beyond it pulling waits. Not used with ``order``.
        commit_period: offsets are committed with pulls, and at least this often.
        local_offsets: the offsets file of this process, for broadcasting.
    """

    SECTION: ClassVar[str] = "push_consumer"

    start_from: Position = Place.END
    prefetch_messages: int = limits.PUSH_PREFETCH_MESSAGES
    prefetch_bytes: int = limits.PUSH_PREFETCH_BYTES
    concurrency: int = limits.CONCURRENCY
    batch_size: int = 1
    order: Orderly | None = None
    model: Model = "clustering"
    consume_timeout: float = limits.CONSUME_TIMEOUT
    max_retries: int = limits.MAX_RETRIES
    breaker: int | None = limits.BREAKER_FAILURES
    max_span: int = limits.MAX_SPAN
    commit_period: float = limits.AUTO_COMMIT_PERIOD
    local_offsets: str | Path | None = None

    def __post_init__(self) -> None:
        GroupOptions.__post_init__(self)
        if self.order is not None and not isinstance(self.order, Orderly):
            raise UsageError(f"order can't be {self.order!r}", hint="use client.Orderly()")
        one_of("model", self.model, "clustering", "broadcasting")
        if self.max_retries < 0:
            raise UsageError(f"max_retries can't be {self.max_retries}")
        if self.local_offsets is not None and self.shared:
            raise UsageError(
                "local_offsets is for broadcasting; the offsets of a group are at the broker",
                hint="leave it out, or use model='broadcasting'",
            )
        positive(self, "concurrency", "batch_size", "consume_timeout", "max_span", "commit_period")
        if self.breaker is not None:
            positive(self, "breaker")

    @property
    def shared(self) -> bool:
        """Whether the members share the messages (clustering)."""
        return self.model == "clustering"


def subscriptions_of(subscribe: Subscribe, group: str) -> dict[str, TagExpression]:
    """Return the tag expression of each topic. Raises UsageError."""
    if not isinstance(subscribe, Mapping):
        raise UsageError(
            f"subscribe has to map topics to tags, not {subscribe!r}",
            group=group,
            hint="e.g. subscribe={'orders': '*'}",
        )
    return {topic: expression_of(tags, group, topic) for topic, tags in subscribe.items()}


def expression_of(tags: Wanted, group: str, topic: str | None = None) -> TagExpression:
    """Parse the expression of one topic, or of any. Raises UsageError."""
    if topic is not None:
        check_topic_name(topic)
    text: Any = tags.text if isinstance(tags, Tags | Sql) else tags
    if not isinstance(text, str):
        raise UsageError(
            f"tags can't be {tags!r}",
            topic=topic,
            group=group,
            hint="use '*', client.Tags or client.Sql",
        )
    utf8_size(text, "the expression holds", topic=topic, group=group)
    if isinstance(tags, Sql):
        return SqlExpression.of(text)
    try:
        return TagExpression.parse(text)
    except ValueError as error:
        raise UsageError(str(error), topic=topic, group=group) from None


def _check_signature(handler: Callable[..., object], group: str, *, batches: bool) -> None:
    """Raise UsageError for a handler that can't be called with one argument."""
    try:
        signature = inspect.signature(handler)
    except (TypeError, ValueError):
        return  # some builtins have no introspectable signature
    try:
        signature.bind(None)
    except TypeError as error:
        name = getattr(handler, "__qualname__", repr(handler))
        what = "a list of messages" if batches else "a message"
        raise UsageError(
            f"the handler {name}{signature} can't be called with {what}: {error}",
            group=group,
            hint="give it one parameter",
        ) from None


def check_handler(
    handler: object, options: PushOptions, given: Mapping[str, Any], group: str
) -> None:
    """Raise UsageError for a handler that can't be called, or options that contradict it."""
    if handler is not None and not callable(handler):
        raise UsageError(f"the handler can't be {handler!r}", group=group, hint="give a function")
    if handler is not None:
        _check_signature(handler, group, batches=options.batch_size > 1)
    if options.order is not None and "max_retries" in given:
        raise UsageError(
            "with order= the retries are configured there",
            group=group,
            hint="e.g. order=client.Orderly(max_retries=2)",
        )
    if handler is not None:
        return
    if options.batch_size > 1:
        raise UsageError(
            "batch_size needs a handler",
            group=group,
            hint="give handler=, or leave it out to iterate message by message",
        )
    if options.order is not None and not options.order.auto_commit:
        raise UsageError(
            "auto_commit=False needs a handler, which returns COMMIT or ROLLBACK",
            group=group,
            hint="give handler=; when iterating, a message is committed by its ack()",
        )

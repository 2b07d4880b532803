"""Resetting the offsets of a group, and skipping messages.

A reset is planned first: the committed offset of each queue now and afterwards. Then the new
offsets are committed, whether members are online or not. Online members keep their own read
positions, so the broker is asked to notify them (INVOKE_BROKER_TO_RESET_OFFSET); they drop the
messages they hold and continue from the new offsets. A PocketMQ broker takes these from the
request's body. An Apache broker computes them itself for all queues of the topic, from a time;
while members are online there, a reset that can't be expressed this way is refused before anything
is changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from client.admin.base import decoded
from client.admin.descriptions import merged
from client.admin.groups import GroupAdmin
from client.errors import NotOnline, UsageError
from client.positions import Place, Position, check_group, check_topic_name, milliseconds
from remoting.protocol.bodies import encode
from remoting.protocol.bodies.group import ResetOffsetBody
from remoting.protocol.bodies.heartbeat import ConsumeType
from remoting.protocol.codes import RequestCode
from remoting.protocol.headers.pull import ResetOffsetRequestHeader
from remoting.protocol.names import TOOLS_CONSUMER_GROUP
from remoting.protocol.queue import MessageQueue

TO_THE_END: Final = -1
"""Timestamp of a reset request that means: after the newest message."""


@dataclass(frozen=True, slots=True)
class ResetStep:
    """The effect of a reset on one queue.

    Attributes:
        begin, end: the offsets of the oldest message and of the next message.
        before: the committed offset before the reset, or None.
        after: the committed offset after the reset.
    """

    queue: MessageQueue
    begin: int
    end: int
    before: int | None
    after: int

    @property
    def changes(self) -> bool:
        """Whether the committed offset changes."""
        return self.before != self.after

    @property
    def lag_before(self) -> int | None:
        """Messages not consumed before the reset; None without a committed offset."""
        return None if self.before is None else max(0, self.end - self.before)

    @property
    def lag_after(self) -> int:
        """Messages not consumed after the reset."""
        return max(0, self.end - self.after)


@dataclass(frozen=True, slots=True)
class Reset:
    """A reset, planned or applied.

    Attributes:
        steps: one per queue.
        online: the client ids of the group's members, which are notified.
        unaware: the members that ignore resets: they choose their queues themselves, keep their
            read positions, and commit them later. Stop them first.
        applied: False after a dry run.
    """

    group: str
    topic: str
    steps: tuple[ResetStep, ...]
    online: tuple[str, ...]
    unaware: tuple[str, ...]
    applied: bool


@dataclass(frozen=True, slots=True)
class _Order:
    """The arguments of a reset."""

    group: str
    topic: str
    to: Position
    partial: bool


class ResetAdmin(GroupAdmin):
    """The part of ``Admin`` that resets offsets."""

    async def reset(
        self,
        group: str,
        topic: str,
        *,
        to: Position,
        queues: Collection[MessageQueue] | None = None,
        missing_only: bool = False,
        dry_run: bool = False,
    ) -> Reset:
        """Set a group's offsets in a topic, with or without members online.

        Args:
            to: an offset (clamped to the queue's range), ``BEGIN``, ``END``, or a datetime: the
                first message stored at or after it.
            queues: only these queues.
            missing_only: only queues in which the group has committed nothing.
            dry_run: change nothing and return the plan.

        Raises:
            GroupNotFound: no broker has the group.
            UsageError: members are online at an Apache broker that can't do this meanwhile.
        """
        check_group(group)
        check_topic_name(topic)
        await self.group_config(group)
        wanted = await self.queues(topic)
        if queues is not None:
            _check_known(queues, wanted)
            wanted = [queue for queue in wanted if queue in queues]
        steps = await asyncio.gather(*(self._step(group, queue, to) for queue in wanted))
        if missing_only:
            steps = [step for step in steps if step.before is None]
        order = _Order(group, topic, to, partial=missing_only or queues is not None)
        return await self._carry_out(order, steps, dry_run=dry_run)

    async def skip(
        self, group: str, queue: MessageQueue, *, messages: int = 1, dry_run: bool = False
    ) -> Reset:
        """Move a group past the next message of one queue, e.g. one that blocks it.

        Args:
            messages: how many to skip, at most to the queue's end.
            dry_run: change nothing and return the plan.

        Raises:
            UsageError: there is nothing to skip, or members are online at an Apache broker.
        """
        check_group(group)
        if messages < 1:
            raise UsageError(f"messages can't be {messages}", queue=queue, group=group)
        await self.group_config(group)
        _check_known([queue], await self.queues(queue.topic))
        at = await self._stored(group, queue)
        for state in (await self.describe_group(group)).queues:
            if state.queue == queue and state.blocked is not None:
                # The blocked offset that a member reports is newer than its last commit.
                at = max(at or 0, state.blocked.offset)
        if at is None:
            raise UsageError(
                "the group has committed nothing in this queue, so no message of it is next",
                queue=queue,
                group=group,
                hint="reset the queue to the offset you want",
            )
        step = await self._step(group, queue, at + messages)
        if step.after <= at:
            raise UsageError(
                f"there is no message to skip: the queue ends at {step.end}",
                queue=queue,
                group=group,
            )
        order = _Order(group, queue.topic, step.after, partial=True)
        return await self._carry_out(order, [step], dry_run=dry_run)

    async def _step(self, group: str, queue: MessageQueue, to: Position) -> ResetStep:
        begin, end, before, target = await asyncio.gather(
            self._offsets.minimum(queue),
            self._offsets.maximum(queue),
            self._stored(group, queue),
            # Pull as the tools' group, so that brokers don't count this as a pull of ``group``.
            self._offsets.find(queue, to, TOOLS_CONSUMER_GROUP),
        )
        begin = max(begin, 0)
        return ResetStep(queue, begin, end, before, after=min(max(target, begin), end))

    async def _stored(self, group: str, queue: MessageQueue) -> int | None:
        """Return the committed offset or None; a 4.x broker answers 0 for both 0 and None."""
        offset = await self._offsets.committed(queue, group)
        if offset != 0:
            return offset
        address = (await self._masters_of(queue.topic))[queue.broker_name]
        table = await self.all_offsets(address)
        return table.get(f"{queue.topic}@{group}", {}).get(queue.queue_id)

    async def _carry_out(
        self, order: _Order, steps: Sequence[ResetStep], *, dry_run: bool
    ) -> Reset:
        masters = await self._masters_of(order.topic)
        parts = await asyncio.gather(
            *(self._describe(name, address, order.group) for name, address in masters.items())
        )
        online = {
            name: part for name, part in zip(masters, parts, strict=True) if part.members and steps
        }
        members = merged(order.group, online.values()).members
        done = list(steps)
        by_time = {name for name, part in online.items() if not part.complete}
        if by_time:
            _check_expressible(order, min(by_time))
        if not dry_run:
            await self.commit(order.group, {step.queue: step.after for step in steps})
            for name in online:
                theirs = [step for step in steps if step.queue.broker_name == name]
                moved = await self._tell(masters[name], order, theirs, by_time=name in by_time)
                if name in by_time:
                    done = [replace(s, after=moved.get(s.queue, s.after)) for s in done]
        # Members that choose their queues themselves ignore the broker's notification.
        return Reset(
            group=order.group,
            topic=order.topic,
            steps=tuple(done),
            online=tuple(member.client_id for member in members),
            unaware=tuple(
                member.client_id
                for member in members
                if (member.consume_type == ConsumeType.CONSUME_ACTIVELY and member.strategy is None)
            ),
            applied=not dry_run,
        )

    async def _tell(
        self, address: str, order: _Order, steps: Sequence[ResetStep], *, by_time: bool
    ) -> dict[MessageQueue, int]:
        """Let a broker reset the group's members; return the offsets it sent them.

        A PocketMQ broker sends the offsets of ``steps``; an Apache broker computes them from a
        time.
        """
        timestamp_ms, body = 0, b""
        if not by_time:
            body = encode(ResetOffsetBody(offset_table={step.queue: step.after for step in steps}))
        elif isinstance(order.to, datetime):
            timestamp_ms = milliseconds(order.to)
        elif order.to is Place.END:
            timestamp_ms = TO_THE_END
        header = ResetOffsetRequestHeader(
            topic=order.topic, group=order.group, timestamp=timestamp_ms, is_force=True
        )
        code = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
        try:
            answer = await self._remote.call(
                address, code, header, body=body, group=order.group, topic=order.topic
            )
        except NotOnline:
            # All members have left meanwhile; the offsets are already committed.
            return {}
        return decoded(ResetOffsetBody, answer, code, address).offset_table


def _check_known(queues: Collection[MessageQueue], known: Collection[MessageQueue]) -> None:
    for queue in queues:
        if queue not in known:
            raise UsageError(
                "there is no such queue", queue=queue, hint="see `pocketmq topic status`"
            )


def _check_expressible(order: _Order, broker: str) -> None:
    if order.partial or isinstance(order.to, int):
        raise UsageError(
            "an Apache broker moves a group that is online in all queues of a topic at once, and "
            "only to a time or an end",
            group=order.group,
            topic=order.topic,
            broker=broker,
            hint="stop its consumers first",
        )

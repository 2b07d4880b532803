"""Moving groups to another place: resets, and skipping one message.

A reset is planned first: for each queue what is committed now, and what it will be. Applying it
commits the new offsets, whether anybody is online or not. Members that are online have positions
of their own, so a broker tells them where to go on (INVOKE_BROKER_TO_RESET_OFFSET); they drop what
they hold, and commit from there. A broker of ours takes the offsets from the request's body. An
Apache broker works out those of all queues itself, from a time; what it can't express is refused
before anything is changed while members are online there.
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
"""A reset's timestamp that means: after the newest message."""


@dataclass(frozen=True, slots=True)
class ResetStep:
    """The effect of a reset on one queue.

    Attributes:
        begin, end: the first offset that is there, and the one the next message will get.
        before: what the group had committed; None for nothing.
        after: what it has committed then.
    """

    queue: MessageQueue
    begin: int
    end: int
    before: int | None
    after: int

    @property
    def changes(self) -> bool:
        """Whether it is another offset."""
        return self.before != self.after

    @property
    def lag_before(self) -> int | None:
        """Messages that waited, as far as the group had an offset."""
        return None if self.before is None else max(0, self.end - self.before)

    @property
    def lag_after(self) -> int:
        """Messages that wait then."""
        return max(0, self.end - self.after)


@dataclass(frozen=True, slots=True)
class Reset:
    """A reset, planned or done.

    Attributes:
        steps: each queue it is about.
        online: the client ids that were in the group, and are told.
        unaware: those of them that ignore resets: they pull queues of their own choice, go on where
            they are, and commit that. Stop them first.
        applied: False: nothing was changed (``dry_run``).
    """

    group: str
    topic: str
    steps: tuple[ResetStep, ...]
    online: tuple[str, ...]
    unaware: tuple[str, ...]
    applied: bool


@dataclass(frozen=True, slots=True)
class _Order:
    """A reset as it was requested."""

    group: str
    topic: str
    to: Position
    partial: bool


class ResetAdmin(GroupAdmin):
    """The part of ``Admin`` that moves groups."""

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
        """Make a group go on elsewhere in a topic, with or without members online.

        Args:
            to: an offset (kept within what the queue holds), ``BEGIN``, ``END``, or a datetime:
                the first message stored at or after.
            queues: only these.
            missing_only: only queues in which the group has committed nothing.
            dry_run: change nothing, only say what would be.

        Raises:
            GroupNotFound: no broker has the group.
            UsageError: members are online at an Apache broker, which can't do this then.
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
        """Move one queue past the message that the group wants next, e.g. one that blocks it.

        Args:
            messages: how many, at most to the queue's end.
            dry_run: change nothing, only say what would be.

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
                # What a member says about the message that blocks it is newer than its commit.
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
        begin, end, before, found = await asyncio.gather(
            self._offsets.minimum(queue),
            self._offsets.maximum(queue),
            self._stored(group, queue),
            # As a tool, so that brokers don't count this as a pull of the group.
            self._offsets.find(queue, to, TOOLS_CONSUMER_GROUP),
        )
        begin = max(begin, 0)
        return ResetStep(queue, begin, end, before, after=min(max(found, begin), end))

    async def _stored(self, group: str, queue: MessageQueue) -> int | None:
        """What is committed, for certain: a 4.x broker answers 0 also where nothing is."""
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
        # Members that choose their queues themselves don't take resets from brokers.
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
        """Let a broker reset the group's members; the offsets it told them.

        A broker of ours tells them the offsets of ``steps``; one of Apache's works them out from a
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
            # They left meanwhile: the committed offsets are all there is.
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

"""Reports of a member: events and logs after a rebalance, and responses to brokers' requests.

After a rebalance only changes since the previous one are reported. Requests of administration tools
for a member's settings, queue states and stacks are forwarded by the broker on the member's
connection (cf. DefaultMQPushConsumerImpl.consumerRunningInfo, consumerStatus, UtilAll.jstack).
"""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from types import FrameType
from typing import Any

from client.errors import PocketMQError, TopicNotFound
from client.events import (
    Event,
    GroupChanged,
    NoQueues,
    QueuesUnknown,
    QueuesUnread,
    RebalanceFailed,
)
from client.group.rebalancer import Difference, View
from client.group.view import GroupMembers
from client.limits import MAX_STACK_DEPTH, MAX_STACKS
from remoting.protocol.bodies import encode
from remoting.protocol.bodies.clients import ConsumerRunningInfo, ConsumeStatus, ProcessQueueInfo
from remoting.protocol.bodies.group import GetConsumerStatusBody
from remoting.protocol.bodies.heartbeat import ConsumerData
from remoting.protocol.codes import VERSION, ResponseCode, name_of
from remoting.protocol.command import Command
from remoting.protocol.errors import HeaderError
from remoting.protocol.headers.group import GetConsumerStatusRequestHeader
from remoting.protocol.names import RETRY_PREFIX
from remoting.protocol.queue import MessageQueue
from remoting.runtime.log import Log

_log = Log("client")


class Reports:
    """The events and log lines of one member's rebalance rounds.

    Args:
        member: the member's client id.
        tell: passes events to the application.
        shared: whether the members share the queues (clustering).

    Attributes:
        members: the client ids of all members in the last round.
    """

    def __init__(
        self, group: str, member: str, tell: Callable[[Event], None], *, shared: bool
    ) -> None:
        self._group = group
        self._member = member
        self._tell = tell
        self._shared = shared
        self.members: tuple[str, ...] = ()
        self._idle = False
        self._unknown: tuple[MessageQueue, ...] = ()
        self._failing: dict[str, str] = {}
        self._unread: frozenset[QueuesUnread] = frozenset()

    def round_over(
        self,
        views: Mapping[str, View | None],
        everybody: GroupMembers | None,
        difference: Difference,
        failed: Mapping[str, PocketMQError],
    ) -> None:
        """Report what changed in a round.

        Args:
            everybody: all members of the group; None: not known now, or not shared.
        """
        for topic, error in failed.items():
            # Not an error: a group's retry topic is created after its first member has joined.
            expected = topic.startswith(RETRY_PREFIX) and isinstance(error, TopicNotFound)
            if self._failing.get(topic) != str(error) and not expected:
                _log.warning("not rebalanced", group=self._group, topic=topic, error=str(error))
                self._tell(RebalanceFailed(self._group, topic, error))
        self._failing = {topic: str(error) for topic, error in failed.items()}
        if difference.unknown and difference.unknown != self._unknown:
            _log.warning(
                "the strategy names queues that don't exist",
                group=self._group,
                queues=", ".join(map(str, difference.unknown)),
            )
            self._tell(QueuesUnknown(self._group, difference.unknown))
        self._unknown = difference.unknown
        states = [view for view in views.values() if view is not None]
        if self._shared and states:
            if everybody is not None and everybody.ids != self.members:
                self.members = everybody.ids
                _log.info("group changed", group=self._group, members=len(self.members))
                self._tell(GroupChanged(self._group, self.members))
            self._report_idle(states, difference)
        self._report_share(difference)

    def unread(self, events: Iterable[QueuesUnread]) -> None:
        """Report the topics whose queues are not all read, unless the round before had the same."""
        before, self._unread = self._unread, frozenset(events)
        for event in sorted(self._unread - before, key=lambda event: event.topic):
            _log.warning(
                "members that don't subscribe to a topic get queues of it, which nobody reads; "
                "subscribe all members to it, or give it a group of its own",
                group=self._group,
                topic=event.topic,
                members=" ".join(event.members),
                foreign=" ".join(event.foreign),
                queues=", ".join(map(str, event.queues)),
                docs=event.docs,
            )
            self._tell(event)

    def _report_share(self, difference: Difference) -> None:
        for topic in sorted({queue.topic for queue in (*difference.gained, *difference.lost)}):
            _log.info(
                "rebalanced",
                group=self._group,
                topic=topic,
                member=self._member,
                members=len(self.members),
                queues=sum(queue.topic == topic for queue in difference.wanted),
                gained=sum(queue.topic == topic for queue in difference.gained),
                lost=sum(queue.topic == topic for queue in difference.lost),
            )

    def _report_idle(self, views: list[View], difference: Difference) -> None:
        queues = sum(not _is_retry(queue) for view in views for queue in view.queues)
        own = any(not _is_retry(queue) for queue in difference.wanted)
        if not own and not self._idle:
            _log.warning(
                "no queue for this member",
                group=self._group,
                members=len(self.members),
                queues=queues,
                docs=NoQueues.docs,
            )
            self._tell(NoQueues(self._group, len(self.members), queues))
        self._idle = not own


def _is_retry(queue: MessageQueue) -> bool:
    return queue.topic.startswith(RETRY_PREFIX)


CONSUME_ORDERLY = "PROP_CONSUMEORDERLY"


@dataclass(frozen=True, slots=True)
class Running:
    """The part of a consumer's running info that the consumer itself provides.

    Attributes:
        settings: property name, as in RocketMQ's consumers -> value.
        queues: the state of each queue.
        topics: the rates and times of each topic.
    """

    settings: Mapping[str, str] = field(default_factory=dict)
    queues: Mapping[MessageQueue, ProcessQueueInfo] = field(default_factory=dict)
    topics: Mapping[str, ConsumeStatus] = field(default_factory=dict)


def running_info(
    data: ConsumerData,
    running: Running,
    owned: Iterable[MessageQueue],
    *,
    ordered: bool,
    name_servers: Iterable[str],
    started_ms: int,
    jstack: str | None = None,
) -> bytes:
    """Return the body of the response to GET_CONSUMER_RUNNING_INFO."""
    properties = {
        "PROP_NAMESERVER_ADDR": "".join(f"{address};" for address in name_servers),
        "PROP_CONSUME_TYPE": data.consume_type,
        "PROP_CLIENT_VERSION": name_of(VERSION),
        "PROP_CONSUMER_START_TIMESTAMP": str(started_ms),
        CONSUME_ORDERLY: "true" if ordered else "false",
        "consumerGroup": data.group_name,
        "messageModel": data.message_model,
        "consumeFromWhere": data.consume_from_where,
        **running.settings,
    }
    table = {queue: running.queues.get(queue, ProcessQueueInfo()) for queue in owned}
    return encode(
        ConsumerRunningInfo(
            properties=properties,
            subscription_set=data.subscription_data_set,
            mq_table=table,
            status_table=dict(running.topics),
            jstack=jstack,
        )
    )


def consumer_status(command: Command, running: Running) -> Command:
    """Return the response to GET_CONSUMER_STATUS_FROM_CLIENT: commit points by queue."""
    try:
        topic = command.read(GetConsumerStatusRequestHeader).topic
    except HeaderError as error:
        return command.reply(ResponseCode.SYSTEM_ERROR, str(error))
    table = {
        queue: held.commit_offset for queue, held in running.queues.items() if queue.topic == topic
    }
    return command.reply(body=encode(GetConsumerStatusBody(message_queue_table=table)))


def stacks() -> str:
    """Return the stack of every thread and of every task of the running event loop.

    The innermost call comes first. Source files are not read, so that this doesn't block.
    """
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    threads, tasks = sys._current_frames(), asyncio.all_tasks()
    blocks: list[str] = []
    for task in islice(tasks, MAX_STACKS):
        frames: list[FrameType] = []
        coroutine: Any = task.get_coro()
        # Each coroutine waits for the next one; the last one waits for a future.
        while (frame := getattr(coroutine, "cr_frame", None)) is not None:
            frames.append(frame)
            coroutine = coroutine.cr_await
        blocks.append(_block(task.get_name(), "task", reversed(frames)))
    for ident, innermost in islice(threads.items(), MAX_STACKS):
        calls = (frame for frame, _ in traceback.walk_stack(innermost))
        blocks.append(_block(names.get(ident, "unknown"), f"TID: {ident}", calls))
    left_out = len(threads) + len(tasks) - len(blocks)
    if left_out:
        blocks.append(f"{left_out} more threads and tasks\n")
    return "\n\n".join(blocks)


def _block(name: str, kind: str, frames: Iterable[FrameType]) -> str:
    calls = (
        f"{frame.f_code.co_qualname} ({frame.f_code.co_filename}:{frame.f_lineno})"
        for frame in islice(frames, MAX_STACK_DEPTH)
    )
    return "\n".join(f"{name:<40}{text}" for text in (kind, *calls))

"""What goes on in a cluster: the progress of all groups, rates, connections, and pending work."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from client.admin.base import AdminBase, decoded, gathered
from client.admin.groups import Lag, QueueLag
from client.errors import NotSupported, PocketMQError, UsageError
from client.positions import check_group, check_topic_name, known_instant
from remoting.protocol.bodies.clients import ConnectionPage
from remoting.protocol.bodies.stats import (
    BrokerStatsData,
    ConsumeStatsList,
    GroupProgress,
    GroupProgressPage,
    KVTable,
    QueryConsumeTimeSpanBody,
    TopicList,
    TopicProgress,
)
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.headers.admin import PageRequestHeader
from remoting.protocol.headers.group import GroupRequestHeader
from remoting.protocol.headers.query import (
    GetConsumeStatsInBrokerHeader,
    QueryConsumeTimeSpanRequestHeader,
    ViewBrokerStatsDataRequestHeader,
)
from remoting.protocol.names import is_system_group, is_tool_group
from remoting.protocol.own_codes import OwnRequestCode
from remoting.protocol.queue import MessageQueue

PAGE: Final = 1000
"""Entries of a page unless the caller says otherwise."""

_KNOWN_OR_NOT: Final = frozenset({ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR})


class LagPage(NamedTuple):
    """The progress of some groups.

    Attributes:
        groups: by their names; also those without an offset, which have no queues.
        next: where the next page begins: pass it as ``after``. None: there is none.
        unreachable: why brokers didn't answer, by their names: their queues are missing.
    """

    groups: list[Lag]
    next: str | None
    unreachable: dict[str, PocketMQError]


class SpanRates(NamedTuple):
    """How much there is per second, over the last minute, hour and day."""

    minute: float
    hour: float
    day: float


class TrafficRates(NamedTuple):
    """What is sent to a topic, or what a group gets of it.

    Attributes:
        messages, bytes: how many of them.
        sent_back: messages that the group's consumers failed to handle.
        dead: messages that became the group's dead letters.
    """

    messages: SpanRates
    bytes: SpanRates
    sent_back: SpanRates
    dead: SpanRates


class TimeSpan(NamedTuple):
    """The times of a queue's messages.

    Attributes:
        oldest, newest: when they were stored; None without messages.
        consumed: when the last one that the group has consumed was stored.
        delay: how long the group's next message has waited.
    """

    oldest: datetime | None
    newest: datetime | None
    consumed: datetime | None
    delay: timedelta


class PendingWork(NamedTuple):
    """What a broker still has to deliver.

    Attributes:
        delayed: messages that wait for the end of a delay level.
        timers: messages that wait for a time.
        late: how long the first of these should have been delivered already.
        half: open transactions; 0 from Apache's brokers, which don't say.
        oldest_half_at: when the oldest of them was sent, as of the last check; None: there is none.
    """

    delayed: int
    timers: int
    late: timedelta
    half: int
    oldest_half_at: datetime | None


class TrafficAdmin(AdminBase):
    """The part of ``Admin`` about what goes on: lags, rates, connections, pending work."""

    async def lags(self, *, after: str = "", limit: int = PAGE, internal: bool = False) -> LagPage:
        """Return how far all groups are behind, with one request to each broker.

        Args:
            after: the name of a group: only those whose names come after it.
            limit: the most groups. There may be fewer, because a broker answers with the groups
                of about 20,000 queues at most.
            internal: include system groups and the groups of command-line tools.
        """
        _check_limit(limit)
        brokers = await self._readers()
        pages, unreachable = await gathered(
            {name: self._progress(address, after, limit) for name, address in brokers.items()}
        )
        if not pages:
            raise next(iter(unreachable.values()))
        # Of the groups after the first page's end, some brokers haven't told yet.
        end = min((page.next for page in pages.values() if page.next is not None), default=None)
        queues: dict[str, dict[MessageQueue, QueueLag]] = {}
        rates: dict[str, float] = {}
        for broker, page in pages.items():
            for progress in page.groups:
                name = progress.group
                if end is None or name <= end:
                    queues.setdefault(name, {}).update(_queue_lags(broker, progress))
                    rates[name] = rates.get(name, 0.0) + progress.tps
        names = sorted(queues)
        if len(names) > limit:
            names = names[:limit]
            end = names[-1]
        lags = [
            Lag(name, dict(sorted(queues[name].items())), rates[name])
            for name in names
            if internal or not (is_system_group(name) or is_tool_group(name))
        ]
        return LagPage(lags, end, unreachable)

    async def _progress(self, address: str, after: str, limit: int) -> GroupProgressPage:
        code: int = OwnRequestCode.GET_GROUP_PROGRESS
        header = PageRequestHeader(after=after, limit=limit)
        try:
            return await self._ask(GroupProgressPage, address, code, header)
        except NotSupported:
            code = RequestCode.GET_BROKER_CONSUME_STATS
        listed = await self._ask(
            ConsumeStatsList, address, code, GetConsumeStatsInBrokerHeader(is_order=False)
        )
        found: dict[str, GroupProgress] = {}
        for part in listed.consume_stats_list:
            for name, topics in part.items():
                if name <= after:
                    continue
                progress = found.setdefault(name, GroupProgress(name))
                for stats in topics:
                    progress.tps += stats.consume_tps
                    for queue, one in stats.offset_table.items():
                        row = (queue.queue_id, one.broker_offset, one.consumer_offset)
                        progress.topics.append(
                            TopicProgress(queue.topic, [(*row, one.last_timestamp)])
                        )
        return GroupProgressPage(list(found.values()))

    async def rates(self, topic: str, group: str | None = None) -> TrafficRates:
        """Return how much producers send to a topic or, with ``group``, how much the group gets.

        The brokers count since their start, and sample every 10 s, 10 min and 1 h.
        """
        check_topic_name(topic)
        names: Sequence[str] = ("TOPIC_PUT_NUMS", "TOPIC_PUT_SIZE")
        if group is not None:
            check_group(group)
            names = ("GROUP_GET_NUMS", "GROUP_GET_SIZE", "SNDBCK_PUT_NUMS", "DLQ_PUT_NUMS")
        key = topic if group is None else f"{topic}@{group}"
        brokers = await self._readers(topic)

        async def rate(name: str) -> SpanRates:
            found = await asyncio.gather(
                *(self._statistic(address, name, key) for address in brokers.values())
            )
            return SpanRates(
                sum(one.stats_minute.tps for one in found),
                sum(one.stats_hour.tps for one in found),
                sum(one.stats_day.tps for one in found),
            )

        rates = await asyncio.gather(*map(rate, names))
        none = SpanRates(0.0, 0.0, 0.0)
        return TrafficRates(*rates, *[none] * (4 - len(rates)))

    async def _statistic(self, address: str, name: str, key: str) -> BrokerStatsData:
        code = RequestCode.VIEW_BROKER_STATS_DATA
        header = ViewBrokerStatsDataRequestHeader(stats_name=name, stats_key=key)
        answer = await self._remote.call(address, code, header, accept=_KNOWN_OR_NOT)
        if answer.code != ResponseCode.SUCCESS:
            return BrokerStatsData()  # nothing was counted yet
        return decoded(BrokerStatsData, answer, code, address)

    async def topics_of(self, group: str) -> list[str]:
        """Return the topics in which a group has offsets, sorted.

        Apache's brokers before 5.0 can't say it (NotSupported).
        """
        check_group(group)
        code = RequestCode.QUERY_TOPICS_BY_CONSUMER
        header = GroupRequestHeader(group=group)
        names: set[str] = set()
        for address in (await self._readers()).values():
            names.update((await self._ask(TopicList, address, code, header)).topic_list)
        return sorted(names)

    async def time_span(self, group: str, topic: str) -> dict[MessageQueue, TimeSpan]:
        """Return when the messages of each queue were stored, and how long a group's wait."""
        check_group(group)
        check_topic_name(topic)
        code = RequestCode.QUERY_CONSUME_TIME_SPAN
        header = QueryConsumeTimeSpanRequestHeader(topic=topic, group=group)
        spans: dict[MessageQueue, TimeSpan] = {}
        for address in (await self._readers(topic)).values():
            answer = await self._ask(
                QueryConsumeTimeSpanBody, address, code, header, topic=topic, group=group
            )
            for one in answer.consume_time_span_set:
                if one.message_queue is not None:
                    spans[one.message_queue] = TimeSpan(
                        known_instant(one.min_time_stamp),
                        known_instant(one.max_time_stamp),
                        known_instant(one.consume_time_stamp),
                        timedelta(milliseconds=one.delay_time),
                    )
        return dict(sorted(spans.items()))

    async def connections(
        self, address: str, *, after: str = "", limit: int = PAGE
    ) -> ConnectionPage:
        """Return the open connections of one broker. Only PocketMQ's brokers list them.

        Args:
            address: the broker's.
            after: the address of a connection: only those whose addresses, as texts, come after it.
            limit: the most connections; a broker lists at most 1,000.
        """
        _check_limit(limit)
        header = PageRequestHeader(after=after, limit=limit)
        return await self._ask(ConnectionPage, address, OwnRequestCode.LIST_CONNECTIONS, header)

    async def pending(self, address: str) -> PendingWork:
        """Return what one broker still has to deliver: delayed, timed and half messages."""
        code = RequestCode.GET_BROKER_RUNTIME_INFO
        table = (await self._ask(KVTable, address, code)).table
        delayed = 0
        for key, value in table.items():
            if key.startswith("scheduleMessageOffset_"):
                delivered, _, end = value.partition(",")
                delayed += max(0, int(end) - int(delivered))
        oldest_ms = int(table.get("pocketmqTransactionsOldestMs", "0"))
        return PendingWork(
            delayed,
            timers=max(0, int(table.get("timerCongestNum", "0"))),
            late=timedelta(seconds=max(0, int(table.get("timerReadBehind", "0")))),
            half=int(table.get("pocketmqTransactionsOpen", "0")),
            oldest_half_at=known_instant(oldest_ms),
        )


def _check_limit(limit: int) -> None:
    if limit < 1:
        raise UsageError(f"limit has to be 1 or more, not {limit}")


def _queue_lags(broker: str, progress: GroupProgress) -> dict[MessageQueue, QueueLag]:
    return {
        MessageQueue(topic.topic, broker, queue_id): QueueLag(
            end, committed, consumed_at=known_instant(last_ms)
        )
        for topic in progress.topics
        for queue_id, end, committed, last_ms in topic.queues
    }

"""Statistics of the broker, its topics and groups.

Handles GET_GROUP_PROGRESS and the codes 28, 45, 202, 208, 315, 317 and 907.

Administration tools print the table of GET_BROKER_RUNTIME_INFO. It has all keys of RocketMQ 4.9
and 5.x, because RocketMQ's tools fail if one is missing. PocketMQ has no thread pools, so their
queues are reported as empty.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from broker.errors import RequestRefused
from broker.limits import MAX_QUEUES_DESCRIBED
from broker.processors.offload import Answer, Offload, sliced, sliced_by_size
from broker.replication.master import MAX_GAP_BYTES
from broker.sampler import Rates
from broker.state import BrokerState
from broker.traffic.counts import SPANS
from broker.traffic.quotas import Quotas
from remoting.errors import ConnectionLost
from remoting.protocol.bodies import encode, relaxed_json
from remoting.protocol.bodies.group import DelayOffsetSerializeWrapper
from remoting.protocol.bodies.stats import (
    BrokerStatsData,
    ConsumeStats,
    ConsumeStatsList,
    GroupProgress,
    HAClientInfo,
    HAConnectionInfo,
    HARuntimeInfo,
    KVTable,
    OffsetWrapper,
    TopicOffset,
    TopicProgress,
    TopicStatsTable,
)
from remoting.protocol.codes import VERSION, ResponseCode, name_of
from remoting.protocol.command import Command
from remoting.protocol.headers.admin import PageRequestHeader, TopicRequestHeader
from remoting.protocol.headers.query import (
    GetConsumeStatsInBrokerHeader,
    GetConsumeStatsRequestHeader,
    ViewBrokerStatsDataRequestHeader,
)
from remoting.protocol.message.view import RecordView
from remoting.protocol.names import SCHEDULE_TOPIC
from remoting.runtime.process_limits import limit

if TYPE_CHECKING:
    from remoting.connection import Connection


_POOLS: Final = {
    "sendThreadPoolQueueCapacity": "10000",
    "pullThreadPoolQueueCapacity": "100000",
    "queryThreadPoolQueueCapacity": "20000",
    "EndTransactionThreadPoolQueueCapacity": "100000",
    "sendThreadPoolQueueSize": "0",
    "queryThreadPoolQueueSize": "0",
    "EndTransactionQueueSize": "0",
    "sendThreadPoolQueueHeadWaitTimeMills": "0",
    "pullThreadPoolQueueHeadWaitTimeMills": "0",
    "queryThreadPoolQueueHeadWaitTimeMills": "0",
    "pageCacheLockTimeMills": "0",
    "ackThreadPoolQueueCapacity": "100000",
    "ackThreadPoolQueueSize": "0",
    "ackThreadPoolQueueHeadWaitTimeMills": "0",
    "litePullThreadPoolQueueCapacity": "100000",
    "litePullThreadPoolQueueSize": "0",
    "litePullThreadPoolQueueHeadWaitTimeMills": "0",
    "brokerActive": "true",
    "dispatchMaxBuffer": "0",
    "dispatchBehindBytes": "0",
    "putMessageDistributeTime": "null",
    "putMessageEntireTimeMax": "0",
    "getMessageEntireTimeMax": "0",
    "putLatency99": "0.00",
    "putLatency999": "0.00",
    "remainTransientStoreBufferNumbs": "2147483647",
}
"""Constant values of keys without a counterpart here, such as the capacities of 4.9's queues."""

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


MAX_NAMES_SHOWN: Final = 20
"""Names of topics in the runtime information; they are for a person to read."""


class StatsProcessor:
    """Handles requests for statistics."""

    __slots__ = ("_offload", "_quotas", "_rates", "_state")

    def __init__(
        self,
        state: BrokerState,
        offload: Offload,
        quotas: Quotas,
        rates: Rates,
    ) -> None:
        self._offload = offload
        self._state = state
        self._quotas = quotas
        self._rates = rates

    def runtime(self, command: Command, _: Connection) -> Command:
        """Handle GET_BROKER_RUNTIME_INFO: return the table that administration tools print."""
        counters = self._state.counters
        unknown = {name for name in self._quotas.topics_named if name not in self._state.topics}
        table = {
            **runtime_info(self._state, self._rates),
            # For our doctor.
            "pocketmqTransactionsOpen": str(self._state.transactions.open_count),
            "pocketmqTransactionsOldestMs": str(self._state.transactions.oldest_ms),
            "pocketmqTransactionsDiscarded": str(counters.transactions_discarded),
            "pocketmqTransactionChecksWithoutProducer": str(
                counters.transaction_checks_without_producer
            ),
            "pocketmqQuotaRefusals": str(sum(self._quotas.refusals.values())),
            "pocketmqQuotasWithoutTopic": ", ".join(sorted(unknown)[:MAX_NAMES_SHOWN]),
        }
        return command.reply(body=encode(KVTable(table=table)))

    def replication_token(self, command: Command, _: Connection) -> Command:
        """Handle GET_REPLICATION_TOKEN: let a slave in."""
        slaves = self._state.slaves
        if slaves is None:
            return command.reply(
                ResponseCode.SYSTEM_ERROR, "this broker serves no slaves: set its haListenPort"
            )
        return command.reply(body=slaves.new_token())

    def replicas(self, command: Command, _: Connection) -> Command:
        """Handle GET_BROKER_HA_STATUS (cf. DefaultHAService.getRuntimeInfo)."""
        state = self._state
        end = state.store.log.end
        if state.replica is not None:
            replica = state.replica.state
            slave = HAClientInfo(
                master_addr=replica.master.stream if replica.master else None,
                max_offset=end,
                activated=replica.connected,
            )
            return command.reply(body=encode(HARuntimeInfo(ha_client_runtime_info=slave)))
        slaves = [
            HAConnectionInfo(
                addr=link.address,
                slave_ack_offset=link.stream.acked,
                diff=end - link.stream.acked,
                in_sync=(
                    end - link.stream.acked < MAX_GAP_BYTES
                    if state.group is None
                    else link.replica is not None and link.replica.broker_id in state.group.members
                ),
                transfer_from_where=link.stream.sent,
            )
            for link in (state.slaves.links if state.slaves else ())
        ]
        info = HARuntimeInfo(
            master=True,
            master_commit_log_max_offset=end,
            in_sync_slave_nums=sum(slave.in_sync for slave in slaves),
            ha_connection_info=slaves,
        )
        return command.reply(body=encode(info))

    def delay_offsets(self, command: Command, _: Connection) -> Command:
        """Handle GET_ALL_DELAY_OFFSET: return the next offset of each delay level."""
        state = self._state
        # In controller mode only what is confirmed may count elsewhere, and that is what is saved.
        progress = state.delay_offsets if state.group is None else state.changes.delay_offsets
        table = dict(progress or {})
        return command.reply(body=encode(DelayOffsetSerializeWrapper(offset_table=table)))

    def topic_stats(self, command: Command, connection: Connection) -> Answer:
        """Handle GET_TOPIC_STATS_INFO: return the offsets of each queue of a topic.

        Queues that the topic has lost, but whose messages are still there, are included.
        """
        name = command.read(TopicRequestHeader).topic
        topic = self._state.topics.get(name)
        if topic is None:
            raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist")
        return self._offload.answer(
            command,
            connection,
            sliced(self._queue_ids(name, topic.write_queue_nums)),
            lambda ids: TopicStatsTable(
                {
                    self._state.message_queue(name, queue_id): self._topic_offset(name, queue_id)
                    for queue_id in ids
                }
            ),
        )

    def consume_stats(self, command: Command, connection: Connection) -> Answer:
        """Handle GET_CONSUME_STATS: return a group's progress in each queue of its topics.

        Queues that a topic has lost before the group had read them are included.
        """
        header = command.read(GetConsumeStatsRequestHeader)
        group = header.consumer_group
        queues = [
            (name, queue_id)
            for name, ids in self._queues_of(group, self._topics_of(header))
            for queue_id in ids
        ]
        tps = sum(self._state.traffic.get_tps(group, name) for name in {name for name, _ in queues})
        return self._offload.answer(
            command,
            connection,
            sliced(queues),
            lambda some: ConsumeStats(
                {self._state.message_queue(*key): self._progress(group, *key) for key in some},
                tps,
            ),
        )

    def _queues_of(self, group: str, names: Iterable[str]) -> Iterator[tuple[str, list[int]]]:
        """Yield the topics of a group, and the queues in which it has, or had, something to read.

        Leaves out topics that an online group no longer subscribes to.
        """
        state = self._state
        online = state.consumers.groups.get(group)
        for name in names:
            topic = state.topics.get(name)
            if topic is not None and (
                online is None or not online.subscriptions or name in online.subscriptions
            ):
                yield (
                    name,
                    [
                        queue_id
                        for queue_id in self._queue_ids(name, topic.read_queue_nums)
                        if queue_id < topic.read_queue_nums
                        or state.offsets.query(group, name, queue_id)
                        < state.store.queries.max_offset(name, queue_id)
                    ],
                )

    def _queue_ids(self, topic: str, count: int) -> list[int]:
        return [*range(count), *self._state.store.queues.beyond(topic, count)]

    def view(self, command: Command, _: Connection) -> Command:
        """Handle VIEW_BROKER_STATS_DATA: return one of ``broker.traffic.counts.STATS``."""
        header = command.read(ViewBrokerStatsDataRequestHeader)
        name, key = header.stats_name, header.stats_key
        statistic = self._state.traffic.find(name, key)
        if statistic is None:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"The stats <{name}> <{key}> not exist")
        item, column = statistic
        spans = (item.rate(span, column) for span in range(len(SPANS)))
        return command.reply(body=encode(BrokerStatsData(*spans)))

    async def all_consume_stats(self, command: Command, connection: Connection) -> Command | None:
        """Handle GET_BROKER_CONSUME_STATS: return the progress of all groups in all topics."""
        is_order = command.read(GetConsumeStatsInBrokerHeader).is_order
        topics_of = self._state.offsets.topics_of
        lag = 0

        def read(groups: Sequence[str]) -> bytes:
            progress = {
                group: list(self._stats_of(group, sorted(topics_of(group)), is_order=is_order))
                for group in groups
            }
            nonlocal lag
            lag += sum(
                one.broker_offset - one.consumer_offset
                for stats in progress.values()
                for topic in stats
                for one in topic.offset_table.values()
            )
            return b",".join(
                relaxed_json.dumps({group: stats}) for group, stats in progress.items()
            )

        try:
            parts = await self._offload.each(
                connection, self._slices(self._state.groups.table), read
            )
        except ConnectionLost:
            return None
        empty = encode(ConsumeStatsList(broker_addr=self._state.address, total_diff=lag))
        head, brackets, tail = empty.partition(b"[]")
        assert brackets
        return command.reply(body=b"".join((head, b"[", b",".join(parts), b"]", tail)))

    async def group_progress(self, command: Command, connection: Connection) -> Command | None:
        """Handle GET_GROUP_PROGRESS: return the progress of the next groups, by their names.

        There are fewer than asked for if they have more than ``MAX_QUEUES_DESCRIBED`` queues.
        """
        header = command.read(PageRequestHeader)
        later = sorted(name for name in self._state.groups.table if name > header.after)
        page, room = [], MAX_QUEUES_DESCRIBED
        for group in later[: max(header.limit, 0)]:
            if room <= 0:
                break
            page.append(group)
            room -= self._size_of(group)

        def read(groups: Sequence[str]) -> bytes:
            return msgspec.json.encode([self._progress_of(group) for group in groups])[1:-1]

        try:
            parts = await self._offload.each(connection, self._slices(page), read)
        except ConnectionLost:
            return None
        following = page[-1] if page and len(page) < len(later) else None
        tail = b'],"next":' + msgspec.json.encode(following) + b"}"
        return command.reply(body=b'{"groups":[' + b",".join(parts) + tail)

    def _slices(self, groups: Iterable[str]) -> list[list[str]]:
        """Return groups in slices, by the queues of their topics."""
        return sliced_by_size((group, self._size_of(group)) for group in groups)

    def _size_of(self, group: str) -> int:
        """Return about how many queues a group reads."""
        table = self._state.topics.table
        names = self._state.offsets.topics_of(group)
        return 1 + sum(table[name].write_queue_nums for name in names if name in table)

    def _progress_of(self, group: str) -> GroupProgress:
        state = self._state
        found = GroupProgress(group)
        for name, ids in self._queues_of(group, sorted(state.offsets.topics_of(group))):
            rows = [self._progress(group, name, queue_id) for queue_id in ids]
            found.topics.append(
                TopicProgress(
                    name,
                    [
                        (queue_id, row.broker_offset, row.consumer_offset, row.last_timestamp)
                        for queue_id, row in zip(ids, rows, strict=True)
                    ],
                )
            )
            found.tps += state.traffic.get_tps(group, name)
        return found

    def _stats_of(
        self, group: str, topics: Sequence[str], *, is_order: bool
    ) -> Iterator[ConsumeStats]:
        state = self._state
        online = state.consumers.groups.get(group)
        for name in topics:
            topic = state.topics.get(name)
            if topic is None or (is_order and not topic.order):
                continue
            if online is not None and online.subscriptions and name not in online.subscriptions:
                continue
            yield ConsumeStats(
                {
                    state.message_queue(name, queue_id): self._progress(group, name, queue_id)
                    for queue_id in range(topic.write_queue_nums)
                },
                state.traffic.get_tps(group, name),
            )

    def _topics_of(self, header: GetConsumeStatsRequestHeader) -> list[str]:
        if header.topic:
            return [header.topic]
        if header.topic_list:
            return [name for name in header.topic_list.split(";") if name]
        return sorted(self._state.offsets.topics_of(header.consumer_group))

    def _progress(self, group: str, topic: str, queue_id: int) -> OffsetWrapper:
        store = self._state.store
        consumed = max(self._state.offsets.query(group, topic, queue_id), 0)
        last_ms = store.queries.store_time_at(topic, queue_id, consumed - 1) if consumed > 0 else 0
        online = self._state.consumers.groups.get(group)
        pull = None if online is None else online.pulls.get((topic, queue_id))
        return OffsetWrapper(
            broker_offset=store.queries.max_offset(topic, queue_id),
            consumer_offset=consumed,
            last_timestamp=max(last_ms, 0),
            pull_offset=consumed if pull is None else max(pull[2], consumed),
        )

    def _topic_offset(self, topic: str, queue_id: int) -> TopicOffset:
        store = self._state.store
        end = store.queries.max_offset(topic, queue_id)
        last_ms = store.queries.store_time_at(topic, queue_id, end - 1) if end > 0 else 0
        return TopicOffset(
            min_offset=max(store.queries.min_offset(topic, queue_id), 0),
            max_offset=end,
            last_update_timestamp=max(last_ms, 0),
        )


def runtime_info(state: BrokerState, rates: Rates) -> dict[str, str]:
    """Return the table of GET_BROKER_RUNTIME_INFO."""
    return {
        **_POOLS,
        "pullThreadPoolQueueSize": str(len(state.long_polls)),
        **_about(state),
        **_messages(state, rates),
        **_delays(state),
        **_timers(state, rates),
        **_disk(state),
        **_own_keys(state),
    }


def _about(state: BrokerState) -> dict[str, str]:
    now_ms = state.clock.now_ms()
    seconds = max(now_ms - state.started_ms, 0) // 1000
    days, hours, minutes = seconds // 86_400, seconds // 3600 % 24, seconds // 60 % 60
    opens_ms = state.config.start_accept_send_request_timestamp_ms
    return {
        "bootTimestamp": str(state.started_ms),
        "runtime": f"[ {days} days, {hours} hours, {minutes} minutes, {seconds % 60} seconds ]",
        "brokerVersionDesc": name_of(VERSION),
        "brokerVersion": str(VERSION),
        "startAcceptSendRequestTimeStamp": str(opens_ms),
    }


def _messages(state: BrokerState, rates: Rates) -> dict[str, str]:
    counters, stats = state.counters, state.store.stats
    days = rates.days
    return {
        "putMessageTimesTotal": str(stats.puts),
        "putMessageFailedTimes": str(stats.refused_puts),
        "putMessageSizeTotal": str(stats.put_bytes),
        "putMessageAverageSize": str(stats.put_bytes / stats.puts if stats.puts else 0.0),
        "putTps": rates.per_second("put"),
        "getFoundTps": rates.per_second("found"),
        "getMissTps": rates.per_second("missed"),
        # Numbers from the start on, as RocketMQ's: its dashboard divides by how many there are.
        "getTotalTps": rates.per_second("asked", missing="0.0"),
        "getTransferedTps": rates.per_second("transferred"),
        "getTransferredTps": rates.per_second("transferred"),
        "msgPutTotalTodayNow": str(counters.messages_sent),
        "msgPutTotalTodayMorning": str(days.today_morning.put),
        "msgPutTotalYesterdayMorning": str(days.yesterday_morning.put),
        "msgGetTotalTodayNow": str(counters.messages_pulled),
        "msgGetTotalTodayMorning": str(days.today_morning.transferred),
        "msgGetTotalYesterdayMorning": str(days.yesterday_morning.transferred),
    }


def _delays(state: BrokerState) -> dict[str, str]:
    store, delivered = state.store, state.delay_offsets
    return {
        f"scheduleMessageOffset_{queue_id + 1}": (
            f"{delivered.get(queue_id + 1, 0)},{store.queries.max_offset(SCHEDULE_TOPIC, queue_id)}"
        )
        for queue_id in store.queues.queue_ids(SCHEDULE_TOPIC)
    }


def _timers(state: BrokerState, rates: Rates) -> dict[str, str]:
    """Return 5.x's keys about timer messages."""
    timers = state.timers
    taken, delivered = (
        rates.per_second(kind, missing="0.0").split(" ")[0]
        for kind in ("timers_taken", "timers_delivered")
    )
    return {
        "timerReadBehind": str(0 if timers is None else int(timers.overdue()[1])),
        "timerOffsetBehind": str(0 if timers is None else timers.unread),
        "timerCongestNum": str(0 if timers is None else timers.waiting),
        "timerEnqueueTps": taken,
        "timerDequeueTps": delivered,
    }


def _disk(state: BrokerState) -> dict[str, str]:
    store = state.store
    log, queues = store.paths.commit_log, store.paths.consume_queues
    usage = shutil.disk_usage(_existing(log))
    record = state.store.queries.record_at(state.store.log.start)
    return {
        "commitLogMinOffset": str(store.log.start),
        "commitLogMaxOffset": str(store.log.end),
        "remainHowManyDataToFlush": _human(store.log.end - store.syncer.log.flushed),
        "earliestMessageTimeStamp": str(
            -1 if record is None else RecordView(record).store_timestamp_ms
        ),
        "commitLogDiskRatio": _ratio(state, log),
        f"commitLogDiskRatio_{log}": _ratio(state, log),
        "consumeQueueDiskRatio": _ratio(state, queues),
        "commitLogDirCapacity": f"Total : {_human(usage.total)}, Free : {_human(usage.free)}.",
    }


def _own_keys(state: BrokerState) -> dict[str, str]:
    """Return PocketMQ's own keys, for ``pocketmq doctor``."""
    store, recovery, retention = state.store, state.store.recovery, state.store.retention
    table = {
        "pocketmqLogFilesDeleted": str(retention.stats.log_files),
        "pocketmqLogFilesDeletedYoung": str(retention.stats.unexpired_files),
        "pocketmqFilesNotDeleted": str(retention.removals.failures),
        "pocketmqDamagedMessages": str(store.stats.damaged_messages),
        "pocketmqRestoredEntries": str(store.stats.restored_entries),
        "pocketmqStorePath": str(store.paths.root),
        "pocketmqWhyNotWritable": store.why_not_writable,
        "pocketmqOffsetsLost": str(state.offsets_lost).lower(),
        "pocketmqRecoverySeconds": f"{recovery.seconds:.3f}",
        "pocketmqRecoverySteppedOver": str(recovery.damaged_records),
        "pocketmqIndexBacklogBytes": str(store.index.backlog_bytes),
        "pocketmqNamedBefore": state.named_before,
        "pocketmqIdTakenBy": state.taken_by(),
        "pocketmqIndexTrouble": store.index.trouble,
        "pocketmqDescriptorLimit": str(limit()),
        "pocketmqConnections": str(state.room.taken),
        "pocketmqConnectionsMax": str(min(state.room.allowed, state.config.max_connections)),
        "pocketmqTlsDaysLeft": None if state.tls is None else str(state.tls.days_left),
        "pocketmqTlsProblem": None if state.tls is None else state.tls.problem,
        **_replication(state),
        "pocketmqOpenToNetwork": "true" if state.config.open_to_network else "false",
        "pocketmqCore": "python" if state.why_not_compiled else "compiled",
        "pocketmqWhyNotCompiled": state.why_not_compiled,
    }
    return {key: value for key, value in table.items() if value is not None}


def _replication(state: BrokerState) -> dict[str, str | None]:
    table: dict[str, str | None] = {
        "pocketmqBrokerRole": state.config.broker_role,
        # A slave compares it with that of its own log.
        "pocketmqNewestMessageMs": str(state.store.writer.last_store_ms),
    }
    if (group := state.group) is not None:
        table["pocketmqGroupId"] = str(group.broker_id)
        table["pocketmqEpoch"] = str(group.role.epoch)
        table["pocketmqInSync"] = ",".join(map(str, sorted(group.members)))
        table["pocketmqMinInSync"] = str(state.config.least_in_sync)
        table["pocketmqGroupProblem"] = group.problem
    if state.replica is not None:
        table["pocketmqReplicationProblem"] = state.replica.state.problem
        table["pocketmqReplicationDiffers"] = str(state.replica.state.differs).lower()
        table["pocketmqReplicationLagBytes"] = str(state.replica.lag_bytes)
    elif state.slaves is not None:
        table["pocketmqSlaves"] = str(len(state.slaves.links))
        table["pocketmqNotReplicatedBytes"] = str(state.store.log.end - state.slaves.replicated)
    return table


def _existing(path: Path) -> Path:
    """Return the path or its nearest existing parent: directories are created with a file."""
    while not path.exists():
        path = path.parent
    return path


def _ratio(state: BrokerState, path: Path) -> str:
    return f"{state.store.files.disk_use(_existing(path)).percent / 100:.2f}"


def _human(size: int) -> str:
    value, unit = float(size), 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value /= 1024
        unit += 1
    return f"{size} B" if unit == 0 else f"{value:.1f} {_UNITS[unit]}"

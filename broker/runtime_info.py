"""The table of GET_BROKER_RUNTIME_INFO: what administration tools print about a broker.

The keys are RocketMQ's, all of them, because its tools stop at the first one they miss. Thread
pools do not exist here; their queues are always empty.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

from broker import fast_path
from broker.rates import Rates
from broker.state import BrokerState
from remoting.process_limits import limit
from remoting.protocol.codes import VERSION, name_of
from remoting.protocol.message.view import RecordView
from remoting.protocol.names import SCHEDULE_TOPIC

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
    "dispatchMaxBuffer": "0",
    "dispatchBehindBytes": "0",
    "putMessageDistributeTime": "null",
    "putMessageEntireTimeMax": "0",
    "getMessageEntireTimeMax": "0",
    "putLatency99": "0.00",
    "putLatency999": "0.00",
    "remainTransientStoreBufferNumbs": "2147483647",
}
"""What has no counterpart here: empty queues of threads, and their capacities in 4.9."""

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def runtime_info(state: BrokerState, rates: Rates) -> dict[str, str]:
    """All keys with their values."""
    return {
        **_POOLS,
        "pullThreadPoolQueueSize": str(len(state.long_polls)),
        **_about(state),
        **_messages(state, rates),
        **_delays(state),
        **_disk(state),
        **_retention(state),
        **_store_files(state),
        **_descriptors(state),
        "pocketmqCore": fast_path.KIND,
        "pocketmqWhyNotCompiled": fast_path.WHY,
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
        "getTotalTps": rates.per_second("asked"),
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
            f"{delivered.get(queue_id + 1, 0)},{store.max_offset(SCHEDULE_TOPIC, queue_id)}"
        )
        for queue_id in store.queue_ids(SCHEDULE_TOPIC)
    }


def _disk(state: BrokerState) -> dict[str, str]:
    store = state.store
    log, queues = store.paths.commit_log, store.paths.consume_queues
    usage = shutil.disk_usage(_existing(log))
    record = state.store.record_at(state.store.start_offset)
    return {
        "commitLogMinOffset": str(store.start_offset),
        "commitLogMaxOffset": str(store.end_offset),
        "remainHowManyDataToFlush": _human(store.end_offset - store.durable_offset),
        "earliestMessageTimeStamp": str(
            -1 if record is None else RecordView(record).store_timestamp_ms
        ),
        "commitLogDiskRatio": _ratio(state, log),
        f"commitLogDiskRatio_{log}": _ratio(state, log),
        "consumeQueueDiskRatio": _ratio(state, queues),
        "commitLogDirCapacity": f"Total : {_human(usage.total)}, Free : {_human(usage.free)}.",
    }


def _retention(state: BrokerState) -> dict[str, str]:
    """What RocketMQ does not tell, for our doctor."""
    store = state.store
    deleted = store.retention.stats
    told = {
        "pocketmqLogFilesDeleted": str(deleted.log_files),
        "pocketmqLogFilesDeletedYoung": str(deleted.young_files),
        "pocketmqFilesNotDeleted": str(store.retention.failures),
        "pocketmqDamagedMessages": str(store.stats.damaged_messages),
        "pocketmqRestoredEntries": str(store.stats.restored_entries),
        "pocketmqStorePath": str(store.paths.root),
    }
    if store.why_not_writable is not None:
        told["pocketmqWhyNotWritable"] = store.why_not_writable
    return told


def _store_files(state: BrokerState) -> dict[str, str]:
    """The same for the start and the index."""
    found, index = state.store.recovery, state.store.index
    told = {
        "pocketmqOffsetsLost": str(state.offsets_lost).lower(),
        "pocketmqRecoverySeconds": f"{found.seconds:.3f}",
        "pocketmqRecoverySteppedOver": str(found.damaged_records),
        "pocketmqIndexBacklogBytes": str(index.backlog_bytes),
    }
    if state.named_before is not None:
        told["pocketmqNamedBefore"] = state.named_before
    if index.trouble is not None:
        told["pocketmqIndexTrouble"] = index.trouble
    return told


def _descriptors(state: BrokerState) -> dict[str, str]:
    """For our doctor: how many connections there are, and what there are descriptors for."""
    return {
        "pocketmqDescriptorLimit": str(limit()),
        "pocketmqConnections": str(state.room.taken),
        "pocketmqConnectionsMax": str(min(state.room.most, state.config.max_connections)),
    }


def _existing(path: Path) -> Path:
    """A directory comes with its first file; until then its disk is that of its parent."""
    while not path.exists():
        path = path.parent
    return path


def _ratio(state: BrokerState, path: Path) -> str:
    return f"{state.store.disk_use(_existing(path)).percent / 100:.2f}"


def _human(size: int) -> str:
    value, unit = float(size), 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value /= 1024
        unit += 1
    return f"{size} B" if unit == 0 else f"{value:.1f} {_UNITS[unit]}"

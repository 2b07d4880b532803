"""The settings of a broker: the keys of RocketMQ's ``broker.conf``, and a few of PocketMQ's own.

PocketMQ's own keys start with ``pocketmq``, such as ``pocketmqMaxTopics``, which is
``POCKETMQ_MAX_TOPICS`` in the environment. Durations are in milliseconds unless the key says
otherwise, as in RocketMQ.

``KEYS_WITHOUT_EFFECT`` and ``REFUSED_KEYS`` cover the other keys that RocketMQ 4.9.7 reports
(GET_BROKER_CONFIG), and the most used keys that 5.3.3 added.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import ClassVar, Final

from broker.limits import (
    LIMITS,
    MAX_DELAY_LEVELS,
    MAX_DELAY_MS,
    MAX_ROLL_WINDOW_SLOTS,
    MAX_TIMER_SECONDS,
    BrokerLimits,
)
from broker.store.config import RetentionConfig
from broker.store.limits import StoreLimits
from broker.traffic.quotas import NO_LIMITS, QuotaRates, RatesByKind, parse_rates
from remoting.access.audit import AUTO, audit_path, audit_setting
from remoting.access.patterns import parse as parse_pattern
from remoting.addresses import is_loopback
from remoting.limits import MAX_IN_PROGRESS_REQUESTS
from remoting.protocol.disk.index_file import DEFAULT_ENTRIES, DEFAULT_SLOTS
from remoting.protocol.limits import MAX_FRAME_BYTES, MAX_HEADER_BYTES
from remoting.runtime.settings import (
    ConfigError,
    RefusedKey,
    address,
    addresses,
    boolean,
    choice,
    host,
    integer,
    multiple_of,
    name,
    nearest,
    path,
    refused,
    setting,
    word,
)
from remoting.security.server_tls import TLS_REFUSED_KEYS, TlsServerSettings

_SIZING_OF_JAVA_THREADS = """
    ackMessageThreadPoolNums adminBrokerThreadPoolNums clientManageThreadPoolNums
    clientManagerThreadPoolQueueCapacity consumerManageThreadPoolNums
    consumerManagerThreadPoolQueueCapacity endTransactionPoolQueueCapacity
    endTransactionThreadPoolNums heartbeatThreadPoolNums heartbeatThreadPoolQueueCapacity
    litePullMessageThreadPoolNums processReplyMessageThreadPoolNums pullMessageThreadPoolNums
    pullThreadPoolQueueCapacity putMessageFutureThreadPoolNums putThreadPoolQueueCapacity
    queryMessageThreadPoolNums queryThreadPoolQueueCapacity replyThreadPoolQueueCapacity
    sendMessageThreadPoolNums sendThreadPoolQueueCapacity
    useReentrantLockWhenPutMessage brokerFastFailureEnable osPageCacheBusyTimeOutMills
    waitTimeMillsInHeartbeatQueue waitTimeMillsInPullQueue waitTimeMillsInSendQueue
    waitTimeMillsInTransactionQueue fastFailIfNoBufferInStorePool transientStorePoolEnable
    transientStorePoolSize transferMsgByHeap isolateLogEnable highSpeedMode
"""

_SOCKETS = """
    serverWorkerThreads serverSelectorThreads serverCallbackExecutorThreads
    serverOnewaySemaphoreValue serverAsyncSemaphoreValue serverSocketSndBufSize
    serverSocketRcvBufSize serverSocketBacklog serverPooledByteBufAllocatorEnable
    serverNettyWorkerGroupEnable serverShutdownWaitSeconds
    useEpollNativeSelector writeBufferHighWaterMark writeBufferLowWaterMark bindAddress
    clientWorkerThreads clientCallbackExecutorThreads clientOnewaySemaphoreValue
    clientAsyncSemaphoreValue clientChannelMaxIdleTimeSeconds clientSocketSndBufSize
    clientSocketRcvBufSize clientPooledByteBufAllocatorEnable clientCloseSocketIfTimeout
    channelNotActiveInterval connectTimeoutMillis disableNettyWorkerGroup socksProxyConfig
    enableShutdownGracefully enableTransparentRetry maxReconnectIntervalTimeSeconds
    tls.client.authServer
"""

_STORE = """
    mappedFileSizeConsumeQueueExt bitMapLengthConsumeQueueExt
    commitIntervalCommitLog flushCommitLogTimed deleteConsumeQueueFilesInterval
    flushCommitLogLeastPages commitCommitLogLeastPages flushConsumeQueueLeastPages
    flushCommitLogThoroughInterval commitCommitLogThoroughInterval
    flushConsumeQueueThoroughInterval maxTransferBytesOnMessageInMemory
    maxTransferCountOnMessageInMemory maxTransferBytesOnMessageInDisk
    maxTransferCountOnMessageInDisk
    messageIndexSafe
    haSendHeartbeatInterval haHousekeepingInterval haTransferBatchSize haSlaveFallbehindMax
    warmMapedFileEnable flushLeastPagesWhenWarmMapedFile offsetCheckInSlave
    diskFallRecorded maxLmqConsumeQueueNum enableScheduleAsyncDeliver
    scheduleAsyncDeliverMaxPendingLimit scheduleAsyncDeliverMaxResendNum2Blocked
    debugLockEnable
    putMsgIndexHightWater defaultQueryMaxNum maxMsgsNumBatch dispatchFromSenderThread
    storePathConsumeQueue storePathIndex storeCheckpoint abortFile
    enableBuildConsumeQueueConcurrently enableCleanExpiredOffset
    maxFilterMessageSize topicQueueLockNum travelCqFileNumWhenGetMessage
    sampleSteps sampleCountThreshold maxConsumeQueueScan
    coldDataFlowControlEnable autoMessageVersionOnTopicLen
    bootstrapTimeoutSeconds maxRecoveryCommitlogFiles readUnCommitted
"""

_BEHAVIOUR = """
    rocketmqHome brokerConfigPath configBlackList rmqAddressServerDomain
    rmqAddressServerSubGroup enableDetailStat
    autoDeleteUnusedStats flushConsumerOffsetHistoryInterval
    disableConsumeIfConsumerReadSlowly consumerFallbehindThreshold
    expectConsumerNumUseFilter maxErrorRateOfBloomFilter
    filterSupportRetry
    maxDelayTime filterServerNums commercialEnable commercialBaseCount commercialBigCount
    commercialTimerCount commercialTransCount enableScheduleMessageStats isEnableBatchPush
    accountStatsEnable accountStatsPrintZeroValues loadBalancePollNameServerInterval
    persistConsumerOffsetIncrementally popPollingSize popPollingMapSize popReviveTopicNum
    reviveQueueNum enablePopLog enablePopBufferMerge popCkStayBufferTime
    serverLoadBalancerEnable defaultMessageRequestMode defaultPopShareQueueNum
    useServerSideResetOffset consumerOffsetUpdateVersionStep delayOffsetUpdateVersionStep
    lockInStrictMode compatibleWithOldNameSrv brokerHeartbeatInterval
    brokerNotActiveTimeoutMillis timerCheckMetricsWhen enableNetWorkFlowControl
    enableBroadcastOffsetStore
    transferOffsetByHeap asyncSendEnable
    enableRegisterTopicAfterCreate enableSingleTopicRegister enableSplitRegistration
    splitRegistrationSize metricsExporterType metricsGrpcExporterTarget
    metricsPromExporterPort metricsPromExporterHost metricsLabel disableConsumeFilter
    validateSystemTopicWhenUpdateTopic allowRecallWhenBrokerNotWriteable
"""

KEYS_WITHOUT_EFFECT: Final = frozenset(
    (_SIZING_OF_JAVA_THREADS + _SOCKETS + _STORE + _BEHAVIOUR).split()
)

_REPLICATION = (
    "PocketMQ replicates to slaves, as with brokerRole=ASYNC_MASTER and SLAVE; remove the key"
)
_ACCESS_CONTROL = (
    "PocketMQ has the access control of RocketMQ 4.9: use aclEnable=true and write the users and "
    "their rules to config/plain_acl.yml in the store"
)
_LIGHT_QUEUES = "PocketMQ doesn't write one message to several queues; remove the key"

REFUSED_KEYS: Final[dict[str, RefusedKey]] = {
    **TLS_REFUSED_KEYS,
    "enableDLegerCommitLog": refused(_REPLICATION),
    "duplicationEnable": refused(_REPLICATION),
    "totalReplicas": refused(
        "the controller knows the replicas of a group, and without it there is one; remove the key",
        "1",
    ),
    "enableSlaveActingMaster": refused(_REPLICATION),
    "authenticationEnabled": refused(_ACCESS_CONTROL),
    "authorizationEnabled": refused(_ACCESS_CONTROL),
    "enableCalcFilterBitMap": refused(
        "PocketMQ filters without RocketMQ's Bloom filter; remove the key"
    ),
    "enableConsumeQueueExt": refused(
        "PocketMQ doesn't keep the queues' extension files; remove the key"
    ),
    "timerPrecisionMs": refused(
        "the timer wheel has slots of 1000 ms, in which PocketMQ delivers each message at its ms; "
        "use 1000",
        "1000",
    ),
    "enableCompaction": refused(
        "PocketMQ doesn't compact topics: it deletes by age, and the last message of a key goes "
        "with the others; use false"
    ),
    "enableLmq": refused(_LIGHT_QUEUES),
    "enableMultiDispatch": refused(_LIGHT_QUEUES),
    "messageStorePlugIn": refused("PocketMQ loads no Java plug-in; remove the key", ""),
    "storeType": refused("PocketMQ's store is the file store; remove the key", "default", ""),
    "readOnlyCommitLogStorePaths": refused(
        "PocketMQ keeps its log in one directory; remove the key", ""
    ),
    "fetchNamesrvAddrByAddressServer": refused(
        "PocketMQ asks no address server; name the name servers in namesrvAddr"
    ),
}


_AT_RUN_TIME = """
    brokerPermission autoCreateTopicEnable autoCreateSubscriptionGroup enableMixedMessageType
    notifyConsumerIdsChangedEnable startAcceptSendRequestTimeStamp storeReplyMessageEnable
    rejectTransactionMessage transactionTimeOut transactionCheckInterval transactionCheckMax
    longPollingEnable shortPollingTimeMills enablePropertyFilter filterDataCleanTimeSpan
    fileReservedTime deleteWhen diskMaxUsedSpaceRatio diskSpaceCleanForciblyRatio
    diskSpaceWarningLevelRatio cleanFileForciblyEnable deleteFileBatchMax cleanResourceInterval
    accessMessageInMemoryMaxRatio slaveReadEnable haFlowControlEnable maxHaTransferByteInSecond
    pocketmqDiskCleanFreeBytes pocketmqDiskFullFreeBytes
    pocketmqMaxTopics pocketmqMaxGroups pocketmqPullMaxMessages pocketmqPullMaxBytes
    pocketmqMaxTopicMessagesPerSecond pocketmqMaxTopicBytesPerSecond
    pocketmqMaxAccountMessagesPerSecond pocketmqMaxAccountBytesPerSecond
"""

RUNTIME_KEYS: Final = frozenset(_AT_RUN_TIME.split())
"""Keys that UPDATE_BROKER_CONFIG may change. The others are read once, at the start."""


DEFAULT_PORT: Final = 10911
DEFAULT_NAME: Final = "broker-a"
DEFAULT_FORCED_PERCENT: Final = 85
CONSUME_QUEUE_ENTRY_BYTES: Final = 20
_HOUR_MS: Final = 3600 * 1000
_DAY_MS: Final = 24 * _HOUR_MS
_LAST_HOUR: Final = 23
_UNITS_MS: Final = {"s": 1000, "m": 60_000, "h": _HOUR_MS, "d": _DAY_MS}
_DELAY: Final = re.compile(r"([0-9]{1,9})([smhd])")

DEFAULT_LEVELS: Final = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
"""RocketMQ's 18 delay levels."""

_FIRST_DELAY_MS: Final = 60_000
"""Delay after the start before the first deletion (cf. DefaultMessageStore.addScheduleTask)."""
_GIB: Final = 1 << 30
_MILLISECONDS: Final = integer(1, _DAY_MS)


def _one_directory(text: str) -> Path:
    if "," in text:
        raise ValueError("must be one directory: PocketMQ doesn't spread the log over several")
    return path(text)


def _hours_of_the_day(text: str) -> str:
    hours = [part.strip() for part in text.split(";") if part.strip()]
    is_list = hours and all(part.isascii() and part.isdigit() for part in hours)
    if not is_list or max(map(int, hours)) > _LAST_HOUR:
        raise ValueError("must be hours of the day from 0 to 23, with ; between them: 04;16")
    return ";".join(hours)


def parse_levels(text: str) -> tuple[int, ...]:
    """Return the delays of the levels in ms, from level 1 on.

    Raises:
        ValueError: the value is invalid; the text continues "messageDelayLevel ...".
    """
    words = [_DELAY.fullmatch(word) for word in text.split()]
    levels = [int(word[1]) * _UNITS_MS[word[2]] for word in words if word is not None]
    if not 0 < len(levels) == len(words) <= MAX_DELAY_LEVELS:
        raise ValueError(
            f"must be 1 to {MAX_DELAY_LEVELS} delays with a blank in between, each a number and "
            f"one of s m h d, such as 1s 30s 5m"
        )
    if not 0 < min(levels) <= max(levels) <= MAX_DELAY_MS:
        raise ValueError(f"must have delays of 1s to {MAX_DELAY_MS // _DAY_MS}d")
    return tuple(levels)


def _delay_levels(text: str) -> str:
    parse_levels(text)
    return text


def name_of_host(hostname: str) -> str:
    """Return the host's name if it is a valid broker name, else ``broker-a``."""
    try:
        return name(hostname)
    except ValueError:
        return DEFAULT_NAME


def _slaves(text: str) -> str:
    parse_pattern(text)
    return text


@dataclass(frozen=True, kw_only=True)
class BrokerConfig(TlsServerSettings):
    """A broker's settings, each under RocketMQ's key (cf. BrokerConfig, MessageStoreConfig)."""

    KEYS_WITHOUT_EFFECT: ClassVar[frozenset[str]] = KEYS_WITHOUT_EFFECT
    REFUSED_KEYS: ClassVar[Mapping[str, RefusedKey]] = REFUSED_KEYS
    OTHER_ENVIRONMENT: ClassVar[Mapping[str, str]] = {"namesrvAddr": "NAMESRV_ADDR"}

    # names and addresses
    cluster_name: str = setting("brokerClusterName", name, "DefaultCluster")
    broker_name: str = setting("brokerName", lambda text: text and name(text), "")
    """If empty, the name saved in the store, or ``name_of_new_store`` if the store is new."""
    host_name: str = field(default_factory=lambda: name_of_host(socket.gethostname()))
    """This host's name: the default name of brokers before stores saved it."""
    name_of_new_store: str = field(default_factory=lambda: name_of_host(socket.gethostname()))
    broker_id: int = setting("brokerId", integer(0, 2**31 - 1), 0)
    broker_role: str = setting(
        "brokerRole", choice("ASYNC_MASTER", "SYNC_MASTER", "SLAVE"), "ASYNC_MASTER"
    )
    ha_master_address: str | None = setting("haMasterAddress", address, None)
    """The replication port of a slave's master; else name servers tell it."""
    slave_addresses: str | None = setting("pocketmqSlaveAddresses", _slaves, None)
    """Which addresses may connect to the replication port: a pattern of white lists."""
    bind_host: str = setting("pocketmqBindHost", host, "127.0.0.1")
    broker_ip1: str | None = setting("brokerIP1", host, None)
    """The host that clients connect to; see ``advertised_host``."""
    advertised_port: int | None = setting("pocketmqAdvertisedPort", integer(1, 65535), None)
    """The port that clients connect to, where it isn't the one that the broker listens on."""
    broker_ip2: str | None = setting("brokerIP2", host, None)
    listen_port: int = setting("listenPort", integer(0, 65535), DEFAULT_PORT)
    ha_listen_port: int | None = setting("haListenPort", integer(0, 65535), None)
    """The port for slaves; a master without it serves none."""
    slave_timeout_ms: int = setting("slaveTimeout", _MILLISECONDS, 3_000)
    """How long a SYNC_MASTER waits for a slave's acknowledgement."""
    slave_read_enable: bool = setting("slaveReadEnable", boolean, False)
    """Whether consumers far behind are sent to a slave, and back when they have caught up."""
    ha_flow_control_enable: bool = setting("haFlowControlEnable", boolean, False)
    """Whether a master limits what it sends to each slave: see ``slave_rate``."""
    max_ha_transfer_byte_in_second: int = setting(
        "maxHaTransferByteInSecond", integer(1024, 2**31 - 1), 100 * 1024 * 1024
    )

    # a group whose master a controller elects
    enable_controller_mode: bool = setting("enableControllerMode", boolean, False)
    controller_addr: tuple[str, ...] = setting("controllerAddr", addresses, ())
    all_ack_in_sync_state_set: bool | None = setting("allAckInSyncStateSet", boolean, None)
    """Whether a message is acknowledged once all replicas in sync have it, the default; in RocketMQ
    off by default, so that acknowledged messages can be lost."""
    in_sync_replicas: int = setting("inSyncReplicas", integer(1, 15), 1)
    """How many replicas have an acknowledged message, the master counted, without the above."""
    min_in_sync_replicas: int | None = setting("minInSyncReplicas", integer(1, 15), None)
    """Sends are refused while fewer replicas are in sync, the master counted; by default 2."""
    ha_max_time_slave_not_catchup_ms: int = setting(
        "haMaxTimeSlaveNotCatchup", _MILLISECONDS, 15_000
    )
    """When a slave that is behind for so long doesn't count as in sync any more."""
    is_role_given: bool = False
    """Whether the role is the one that the controller has given."""
    broker_election_priority: int = setting(
        "brokerElectionPriority", integer(0, 2**31 - 1), 2**31 - 1
    )
    """Of two equal candidates, the controller elects the one with the lower number."""
    region_id: str = setting("regionId", word, "DefaultRegion")

    # name servers
    namesrv_addr: tuple[str, ...] = setting("namesrvAddr", addresses, ())
    credentials: Path | None = setting(  # noqa: RUF009 - declares a field
        "pocketmqCredentials", path, None
    )
    use_tls: bool = setting("useTLS", boolean, False)
    tls_client_trust: Path | None = setting(  # noqa: RUF009 - declares a field
        "tls.client.trustCertPath", path, None
    )
    tls_client_cert: Path | None = setting(  # noqa: RUF009 - declares a field
        "tls.client.certPath", path, None
    )
    tls_client_key: Path | None = setting(  # noqa: RUF009 - declares a field
        "tls.client.keyPath", path, None
    )
    tls_client_key_password: str | None = setting("tls.client.keyPassword", str, None, secret=True)
    check_name_server_host: bool = True
    """Whether the certificate of a name server must name its address."""
    force_register: bool = setting("forceRegister", boolean, True)
    compressed_register: bool = setting("compressedRegister", boolean, False)
    register_name_server_period_ms: int = setting("registerNameServerPeriod", _MILLISECONDS, 30_000)
    register_broker_timeout_ms: int = setting("registerBrokerTimeoutMills", _MILLISECONDS, 6_000)

    # topics, groups and what clients may do
    broker_permission: int = setting("brokerPermission", integer(0, 7), 6)
    default_topic_queue_nums: int = setting("defaultTopicQueueNums", integer(1, 65_536), 8)
    auto_create_topic_enable: bool = setting("autoCreateTopicEnable", boolean, True)
    auto_create_subscription_group: bool = setting("autoCreateSubscriptionGroup", boolean, True)
    cluster_topic_enable: bool = setting("clusterTopicEnable", boolean, True)
    broker_topic_enable: bool = setting("brokerTopicEnable", boolean, True)
    enable_mixed_message_type: bool = setting("enableMixedMessageType", boolean, False)
    """Whether a topic may have the attribute ``message.type=MIXED``."""
    trace_topic_enable: bool = setting("traceTopicEnable", boolean, False)
    msg_trace_topic_name: str = setting("msgTraceTopicName", name, "RMQ_SYS_TRACE_TOPIC")
    trace_on: bool = setting("traceOn", boolean, True)
    notify_consumer_ids_changed_enable: bool = setting(
        "notifyConsumerIdsChangedEnable", boolean, True
    )
    start_accept_send_request_timestamp_ms: int = setting(
        "startAcceptSendRequestTimeStamp", integer(0, 2**63 - 1), 0
    )
    store_reply_message_enable: bool = setting("storeReplyMessageEnable", boolean, True)
    reject_transaction_message: bool = setting("rejectTransactionMessage", boolean, False)
    transaction_timeout_ms: int = setting("transactionTimeOut", _MILLISECONDS, 6_000)
    """How old a half message is when its producer is first asked about it."""
    transaction_check_interval_ms: int = setting("transactionCheckInterval", _MILLISECONDS, 30_000)
    transaction_check_max: int = setting("transactionCheckMax", integer(1, 1_000_000), 15)
    enable_property_filter: bool = setting("enablePropertyFilter", boolean, True)
    """Whether consumers may filter by SQL92; off by default in RocketMQ."""
    filter_data_clean_time_span_ms: int = setting(
        "filterDataCleanTimeSpan", integer(0, 365 * _DAY_MS), _DAY_MS
    )
    """How long the filter of a group is kept after it has left."""
    long_polling_enable: bool = setting("longPollingEnable", boolean, True)
    short_polling_time_ms: int = setting("shortPollingTimeMills", _MILLISECONDS, 1_000)
    flush_consumer_offset_interval_ms: int = setting(
        "flushConsumerOffsetInterval", _MILLISECONDS, 5_000
    )
    server_channel_max_idle_time_s: int = setting(
        "serverChannelMaxIdleTimeSeconds", integer(1, 86_400), 120
    )

    # access
    acl_enable: bool = setting("aclEnable", boolean, False)
    acl_file: Path | None = setting(  # noqa: RUF009 - declares a field
        "pocketmqAclFile", path, None
    )
    """See ``accounts_file``; if None, ``config/plain_acl.yml`` below ``store_path_root_dir``."""
    audit_log: str = setting("pocketmqAuditLog", audit_setting, AUTO)
    """See ``audit_path``."""

    # the store
    store_path_root_dir: Path = setting(  # noqa: RUF009 - declares a field
        "storePathRootDir", path, factory=lambda: Path.home() / "store"
    )
    store_path_commit_log: Path | None = setting(  # noqa: RUF009 - declares a field
        "storePathCommitLog", _one_directory, None
    )
    mapped_file_size_commit_log: int = setting(
        "mappedFileSizeCommitLog", integer(4096, 2**31 - 1), _GIB
    )
    mapped_file_size_consume_queue: int = setting(
        "mappedFileSizeConsumeQueue",
        multiple_of(CONSUME_QUEUE_ENTRY_BYTES, CONSUME_QUEUE_ENTRY_BYTES, 2**31 - 20),
        6_000_000,
    )
    flush_disk_type: str = setting(
        "flushDiskType", choice("ASYNC_FLUSH", "SYNC_FLUSH"), "ASYNC_FLUSH"
    )
    flush_interval_commit_log_ms: int = setting("flushIntervalCommitLog", _MILLISECONDS, 500)
    flush_interval_consume_queue_ms: int = setting("flushIntervalConsumeQueue", _MILLISECONDS, 1000)
    sync_flush_timeout_ms: int = setting("syncFlushTimeout", _MILLISECONDS, 5_000)
    max_message_size: int = setting(
        "maxMessageSize", integer(1024, MAX_FRAME_BYTES - MAX_HEADER_BYTES), 4 * 1024 * 1024
    )
    check_crc_on_recover: bool = setting("checkCRCOnRecover", boolean, True)
    message_delay_level: str = setting("messageDelayLevel", _delay_levels, DEFAULT_LEVELS)
    timer_wheel_enable: bool = setting("timerWheelEnable", boolean, True)
    timer_max_delay_sec: int = setting(
        "timerMaxDelaySec", integer(1, MAX_TIMER_SECONDS), 3 * 24 * 3600
    )
    timer_roll_window_slot: int = setting(
        "timerRollWindowSlot", integer(2, MAX_ROLL_WINDOW_SLOTS), 2 * 24 * 3600
    )
    """A timer message that waits for more seconds than this is stored again on the way."""
    mapped_file_size_timer_log: int = setting(
        "mappedFileSizeTimerLog", integer(4096, 2**31 - 1), 100 * 1024 * 1024
    )
    recall_message_enable: bool = setting("recallMessageEnable", boolean, True)
    """Whether timer messages may be recalled; false by default in RocketMQ."""
    flush_delay_offset_interval_ms: int = setting("flushDelayOffsetInterval", _MILLISECONDS, 10_000)
    access_message_in_memory_max_ratio: int = setting(
        "accessMessageInMemoryMaxRatio", integer(0, 100), 40
    )
    """Percentage of the memory that the newest part of the log is assumed to occupy. A new group
    starts at 0 in a queue whose first message is in it."""
    message_index_enable: bool = setting("messageIndexEnable", boolean, True)
    max_hash_slots: int = setting("maxHashSlotNum", integer(1, 100_000_000), DEFAULT_SLOTS)
    max_index_entries: int = setting("maxIndexNum", integer(2, 80_000_000), DEFAULT_ENTRIES)

    # how long messages are kept
    file_reserved_time_hours: int = setting("fileReservedTime", integer(1, 1_000_000), 72)
    delete_when: str = setting("deleteWhen", _hours_of_the_day, "04")
    disk_max_used_space_ratio: int = setting("diskMaxUsedSpaceRatio", integer(10, 95), 75)
    disk_space_clean_forcibly_ratio: int = setting(
        "diskSpaceCleanForciblyRatio", integer(1, 100), DEFAULT_FORCED_PERCENT
    )
    disk_space_warning_level_ratio: int = setting("diskSpaceWarningLevelRatio", integer(1, 100), 90)
    disk_clean_free_bytes: int = setting("pocketmqDiskCleanFreeBytes", integer(0, 2**62), 0)
    """If not 0, replaces ``diskSpaceCleanForciblyRatio``: files are deleted when less is free."""
    disk_full_free_bytes: int = setting("pocketmqDiskFullFreeBytes", integer(0, 2**62), 0)
    """If not 0, replaces ``diskSpaceWarningLevelRatio``: messages are refused when less is free."""
    clean_file_forcibly_enable: bool = setting("cleanFileForciblyEnable", boolean, True)
    delete_file_batch_max: int = setting("deleteFileBatchMax", integer(1, 10_000), 10)
    clean_resource_interval_ms: int = setting("cleanResourceInterval", _MILLISECONDS, 10_000)
    delete_commit_log_files_interval_ms: int = setting(
        "deleteCommitLogFilesInterval", integer(0, _DAY_MS), 100
    )
    destroy_maped_file_interval_forcibly_ms: int = setting(
        "destroyMapedFileIntervalForcibly", _MILLISECONDS, 120_000
    )
    redelete_hanged_file_interval_ms: int = setting(
        "redeleteHangedFileInterval", _MILLISECONDS, 120_000
    )

    # PocketMQ's own limits
    max_topics: int = setting("pocketmqMaxTopics", integer(1, 1_000_000), 10_000)
    """With this many topics clients can create no more; administrators still can."""
    max_groups: int = setting("pocketmqMaxGroups", integer(1, 1_000_000), 10_000)
    """The same limit for subscription groups."""
    max_parked_pulls: int = setting("pocketmqMaxParkedPulls", integer(1, 10_000_000), 100_000)
    """Pulls that wait for a message at the same time; further ones are answered at once."""
    max_connections: int = setting("pocketmqMaxConnections", integer(1, 1_000_000), 10_000)
    max_connections_per_address: int = setting(
        "pocketmqMaxConnectionsPerAddress", integer(0, 1_000_000), 0
    )
    """0: not limited, because many clients may share an address behind a proxy."""
    max_requests_in_flight: int = setting(
        "pocketmqMaxRequestsInFlight", integer(1, 65_536), MAX_IN_PROGRESS_REQUESTS
    )
    """Requests in progress of one connection; the broker reads the next when one is answered."""
    max_topic_messages_per_second: QuotaRates = setting(  # noqa: RUF009 - declares a field
        "pocketmqMaxTopicMessagesPerSecond", parse_rates, NO_LIMITS
    )
    """Messages that are sent to a topic, and that each group pulls from it; see ``quotas``."""
    max_topic_bytes_per_second: QuotaRates = setting(  # noqa: RUF009 - declares a field
        "pocketmqMaxTopicBytesPerSecond", parse_rates, NO_LIMITS
    )
    max_account_messages_per_second: QuotaRates = setting(  # noqa: RUF009 - declares a field
        "pocketmqMaxAccountMessagesPerSecond", parse_rates, NO_LIMITS
    )
    """Messages that an account sends, and that it pulls; needs ``aclEnable``."""
    max_account_bytes_per_second: QuotaRates = setting(  # noqa: RUF009 - declares a field
        "pocketmqMaxAccountBytesPerSecond", parse_rates, NO_LIMITS
    )
    limits: BrokerLimits = LIMITS
    """Fixed limits of the broker; only tests change them."""
    pull_max_messages: int = setting("pocketmqPullMaxMessages", integer(1, 65_536), 1024)
    pull_max_bytes: int = setting(
        "pocketmqPullMaxBytes", integer(4096, MAX_FRAME_BYTES // 2), 4 * 1024 * 1024
    )

    store_limits: StoreLimits = field(default_factory=StoreLimits)
    """Fixed bounds of the store; only tests change them."""

    def check(self) -> None:
        """Check settings that parsing one value can't check.

        Raises:
            ConfigError: the broker would be a slave, or settings contradict each other.
        """
        super().check()
        if not self.enable_controller_mode:
            self._check_without_controller()
        elif not self.is_role_given:
            self._check_controller()
        if not self.is_role_given and self.is_slave is not (self.broker_id > 0):
            raise ConfigError(
                f"brokerRole={self.broker_role} and brokerId={self.broker_id}"
                " contradict each other: a master has brokerId=0, and a slave a larger one"
            )
        needs_master = self.is_slave and not self.enable_controller_mode
        if needs_master and not (self.namesrv_addr or self.ha_master_address):
            raise ConfigError(
                "a slave has to find its master: set namesrvAddr, or haMasterAddress to the host"
                " and haListenPort of the master"
            )
        if self.broker_role == "SYNC_MASTER" and not self.replicates:
            raise ConfigError(
                "a SYNC_MASTER acknowledges what a slave has: set haListenPort, to which slaves"
                " connect"
            )
        if self.advertised_port is not None and not self.listen_port:
            raise ConfigError(
                "pocketmqAdvertisedPort needs listenPort: the other end of the mapping has to"
                " know the port that the broker listens on"
            )
        self._check_disk_bounds()
        account_rates = self.max_account_messages_per_second, self.max_account_bytes_per_second
        if not self.acl_enable and any(rates.limits_any for rates in account_rates):
            raise ConfigError(
                "quotas of accounts (pocketmqMaxAccountMessagesPerSecond, "
                "pocketmqMaxAccountBytesPerSecond) need aclEnable=true: without it, requests "
                "belong to no account"
            )

    def _check_without_controller(self) -> None:
        for key, is_default in (
            ("controllerAddr", not self.controller_addr),
            ("allAckInSyncStateSet", not self.all_ack_in_sync_state_set),
            ("inSyncReplicas", self.in_sync_replicas == 1),
            ("minInSyncReplicas", self.min_in_sync_replicas in {None, 1}),
        ):
            if not is_default:
                raise ConfigError(
                    f"{key} needs enableControllerMode=true: without a controller a SYNC_MASTER"
                    " waits for one slave; remove the key"
                )

    def _check_controller(self) -> None:
        for condition, problem in (
            (
                not self.controller_addr,
                "needs controllerAddr: the addresses of the controllers, with ; between them",
            ),
            (not self.broker_name, "needs brokerName, which the brokers of a group share"),
            (
                self.ha_listen_port is None,
                "needs haListenPort: each broker of a group may become the master of the others",
            ),
            (
                self.broker_role != "ASYNC_MASTER" or self.broker_id != 0,
                "leaves brokerRole and brokerId to the controller: remove them",
            ),
            (
                self.ha_master_address is not None,
                "leaves the master to the controller: remove haMasterAddress",
            ),
            (
                not self.all_in_sync_acknowledge and self.in_sync_replicas > self.least_in_sync,
                f"can't acknowledge with inSyncReplicas={self.in_sync_replicas} while sends are"
                f" taken with minInSyncReplicas={self.least_in_sync}: raise the latter",
            ),
            (
                self.all_in_sync_acknowledge and self.in_sync_replicas > 1,
                "waits for all replicas in sync, so inSyncReplicas has no effect: set"
                " minInSyncReplicas, or allAckInSyncStateSet=false",
            ),
        ):
            if condition:
                raise ConfigError(f"enableControllerMode=true {problem}")

    def as_role(self, role: str, broker_id: int) -> BrokerConfig:
        """Return the settings of this broker in another role. Raises ``ConfigError``."""
        config = replace(self, broker_role=role, broker_id=broker_id)
        config.check()
        return config

    def changes(self, values: Mapping[str, str]) -> dict[str, str]:
        """Return what these values change at run time, as texts; nothing is changed yet.

        Keys without effect, and values that a setting already has, change nothing.

        Raises:
            ConfigError: a key is unknown or refused, a value is bad, or a setting can only be
                changed by a restart; the text names all such settings.
        """
        for key in values:
            if key not in self.known_keys():
                raise ConfigError(f"there is no setting {key!r}{nearest(key, self.known_keys())}")
        before, after = self.as_properties(), self.updated(values).as_properties()
        changed = {key: after[key] for key in sorted(values) if after.get(key) != before.get(key)}
        if fixed := changed.keys() - RUNTIME_KEYS:
            raise ConfigError(
                f"only a restart can change {', '.join(sorted(fixed))}: set it in the broker's "
                "configuration and restart the broker; nothing has been changed"
            )
        return changed

    def _check_disk_bounds(self) -> None:
        """Check the order of the disk bounds.

        As the disk fills, the broker must first delete expired files, then also files that are not
        expired, and only then refuse messages. A percentage that a number of free bytes replaces is
        not compared. Neither is the default of ``diskSpaceCleanForciblyRatio``: many files set
        only ``diskMaxUsedSpaceRatio=88``, which RocketMQ accepts.
        """
        forced = self.disk_space_clean_forcibly_ratio
        ratios = {"diskMaxUsedSpaceRatio": self.disk_max_used_space_ratio}
        if (
            self.clean_file_forcibly_enable
            and not self.disk_clean_free_bytes
            and forced != DEFAULT_FORCED_PERCENT
        ):
            ratios["diskSpaceCleanForciblyRatio"] = forced
        if not self.disk_full_free_bytes:
            ratios["diskSpaceWarningLevelRatio"] = self.disk_space_warning_level_ratio
        for (low, less), (high, more) in pairwise(ratios.items()):
            if less > more:
                raise ConfigError(
                    f"{low}={less} is above {high}={more}, but has to be reached first: set {low} "
                    f"to {more} or below, or {high} to {less} or above"
                )
        clean, full = self.disk_clean_free_bytes, self.disk_full_free_bytes
        if self.clean_file_forcibly_enable and clean and full > clean:
            raise ConfigError(
                f"pocketmqDiskFullFreeBytes={full} is above pocketmqDiskCleanFreeBytes={clean}, "
                "so messages would be refused before old ones are deleted to make room: set "
                f"pocketmqDiskFullFreeBytes to {clean} or below"
            )

    @property
    def all_in_sync_acknowledge(self) -> bool:
        """Whether an acknowledged message is at all replicas in sync (controller mode)."""
        return self.all_ack_in_sync_state_set is not False

    @property
    def least_in_sync(self) -> int:
        """Replicas in sync, the master counted, without which a master takes no messages."""
        return self.min_in_sync_replicas or 2

    @property
    def accounts_file(self) -> Path:
        """The file of accounts."""
        return self.acl_file or self.store_path_root_dir / "config" / "plain_acl.yml"

    @property
    def advertised_host(self) -> str:
        """The host in routes, which clients connect to.

        It is ``brokerIP1`` if set, else the host that the broker listens on. For a broker that
        listens on all interfaces it is the address of the default route.
        """
        if self.broker_ip1 is not None:
            return self.broker_ip1
        try:
            is_everywhere = ipaddress.ip_address(self.bind_host).is_unspecified
        except ValueError:
            is_everywhere = False
        if not is_everywhere:
            return self.bind_host
        # Connecting a datagram socket sends nothing; it makes the kernel choose the address.
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect(("192.0.2.1", 9))
            except OSError:
                return "127.0.0.1"
            return str(probe.getsockname()[0])

    @property
    def audit_path(self) -> Path | None:
        """The file of the audit log; None: none is written."""
        return audit_path(self.audit_log, self.store_path_root_dir, acl_enable=self.acl_enable)

    @property
    def is_slave(self) -> bool:
        """Whether the broker copies a master."""
        return self.broker_role == "SLAVE"

    @property
    def replicates(self) -> bool:
        """Whether the broker serves slaves."""
        return self.ha_listen_port is not None and not self.is_slave

    @property
    def slave_rate(self) -> int | None:
        """Bytes per second that a master sends to each slave at most; None: no limit."""
        return self.max_ha_transfer_byte_in_second if self.ha_flow_control_enable else None

    @property
    def open_to_network(self) -> bool:
        """Whether everybody who reaches the broker from another machine may do everything."""
        return not self.acl_enable and not is_loopback(self.bind_host)

    @property
    def delay_levels_ms(self) -> tuple[int, ...]:
        """The delays of the levels in ms, from level 1 on."""
        return parse_levels(self.message_delay_level)

    @property
    def retention(self) -> RetentionConfig:
        """The store's settings for deleting files and for a full disk."""
        return RetentionConfig(
            reserved_ms=self.file_reserved_time_hours * _HOUR_MS,
            delete_hours=frozenset(map(int, self.delete_when.split(";"))),
            max_used_percent=self.disk_max_used_space_ratio,
            forced_used_percent=self.disk_space_clean_forcibly_ratio,
            full_used_percent=self.disk_space_warning_level_ratio,
            forced_free_bytes=self.disk_clean_free_bytes,
            full_free_bytes=self.disk_full_free_bytes,
            forcibly=self.clean_file_forcibly_enable,
            batch=self.delete_file_batch_max,
            first_delay_ms=min(_FIRST_DELAY_MS, 6 * self.clean_resource_interval_ms),
            interval_ms=self.clean_resource_interval_ms,
            log_pause_ms=self.delete_commit_log_files_interval_ms,
            hold_ms=self.destroy_maped_file_interval_forcibly_ms,
            retry_ms=self.redelete_hanged_file_interval_ms,
        )

    @cached_property
    def rates(self) -> RatesByKind:
        """The quotas on messages and bytes per second."""
        return {
            ("topic", "messages"): self.max_topic_messages_per_second,
            ("topic", "bytes"): self.max_topic_bytes_per_second,
            ("account", "messages"): self.max_account_messages_per_second,
            ("account", "bytes"): self.max_account_bytes_per_second,
        }

    @property
    def sync_flush(self) -> bool:
        """Whether a send is answered only when its message is on disk."""
        return self.flush_disk_type == "SYNC_FLUSH"

"""The keys of a RocketMQ broker that have no effect here, and those that must not be ignored.

The lists are what brokers of 4.9.7 report about themselves (GET_BROKER_CONFIG), and 5.3.3's most
used additions, less the keys that are fields of ``BrokerConfig``.
"""

from __future__ import annotations

from typing import Final

from remoting.settings import Refused, refused

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
"""

_STORE = """
    mappedFileSizeConsumeQueueExt bitMapLengthConsumeQueueExt
    commitIntervalCommitLog flushCommitLogTimed deleteConsumeQueueFilesInterval
    flushCommitLogLeastPages commitCommitLogLeastPages flushConsumeQueueLeastPages
    flushCommitLogThoroughInterval commitCommitLogThoroughInterval
    flushConsumeQueueThoroughInterval maxTransferBytesOnMessageInMemory
    maxTransferCountOnMessageInMemory maxTransferBytesOnMessageInDisk
    maxTransferCountOnMessageInDisk accessMessageInMemoryMaxRatio
    messageIndexSafe
    haSendHeartbeatInterval haHousekeepingInterval haTransferBatchSize haSlaveFallbehindMax
    haMaxTimeSlaveNotCatchup haFlowControlEnable maxHaTransferByteInSecond
    slaveTimeout warmMapedFileEnable flushLeastPagesWhenWarmMapedFile offsetCheckInSlave
    diskFallRecorded maxLmqConsumeQueueNum enableScheduleAsyncDeliver
    scheduleAsyncDeliverMaxPendingLimit scheduleAsyncDeliverMaxResendNum2Blocked
    debugLockEnable
    putMsgIndexHightWater defaultQueryMaxNum maxMsgsNumBatch dispatchFromSenderThread
    storePathConsumeQueue storePathIndex storeCheckpoint abortFile
    enableBuildConsumeQueueConcurrently timerMaxDelaySec timerPrecisionMs
    timerCheckMetricsWhen enableCleanExpiredOffset
    maxFilterMessageSize topicQueueLockNum travelCqFileNumWhenGetMessage
    sampleSteps sampleCountThreshold maxConsumeQueueScan
    coldDataFlowControlEnable autoMessageVersionOnTopicLen
    bootstrapTimeoutSeconds maxRecoveryCommitlogFiles readUnCommitted
"""

_BEHAVIOUR = """
    rocketmqHome brokerConfigPath configBlackList rmqAddressServerDomain
    rmqAddressServerSubGroup storeReplyMessageEnable enableDetailStat
    autoDeleteUnusedStats flushConsumerOffsetHistoryInterval slaveReadEnable
    disableConsumeIfConsumerReadSlowly consumerFallbehindThreshold enableCalcFilterBitMap
    expectConsumerNumUseFilter maxErrorRateOfBloomFilter filterDataCleanTimeSpan
    filterSupportRetry transactionTimeOut transactionCheckMax
    transactionCheckInterval
    maxDelayTime filterServerNums commercialEnable commercialBaseCount commercialBigCount
    commercialTimerCount commercialTransCount enableScheduleMessageStats isEnableBatchPush
    accountStatsEnable accountStatsPrintZeroValues loadBalancePollNameServerInterval
    persistConsumerOffsetIncrementally popPollingSize popPollingMapSize popReviveTopicNum
    reviveQueueNum enablePopLog enablePopBufferMerge popCkStayBufferTime
    serverLoadBalancerEnable defaultMessageRequestMode defaultPopShareQueueNum
    useServerSideResetOffset consumerOffsetUpdateVersionStep delayOffsetUpdateVersionStep
    lockInStrictMode compatibleWithOldNameSrv brokerHeartbeatInterval
    brokerNotActiveTimeoutMillis enableNetWorkFlowControl enableBroadcastOffsetStore
    transferOffsetByHeap asyncSendEnable recallMessageEnable
    enableRegisterTopicAfterCreate enableSingleTopicRegister enableSplitRegistration
    splitRegistrationSize metricsExporterType metricsGrpcExporterTarget
    metricsPromExporterPort metricsPromExporterHost metricsLabel disableConsumeFilter
    validateSystemTopicWhenUpdateTopic allowRecallWhenBrokerNotWriteable
"""

KEYS_WITHOUT_EFFECT: Final = frozenset(
    (_SIZING_OF_JAVA_THREADS + _SOCKETS + _STORE + _BEHAVIOUR).split()
)

_REPLICATION = (
    "PocketMQ doesn't replicate yet: one broker holds one copy; "
    "use ASYNC_MASTER, or an Apache RocketMQ cluster where a second copy is needed"
)
_ONE_COPY = (
    "PocketMQ doesn't replicate yet and acknowledges a message that one broker has; use 1, or an "
    "Apache RocketMQ cluster where more copies are needed"
)
_ACCESS_CONTROL = (
    "PocketMQ has no access control yet and would let everybody in; "
    "take the key out, and keep the broker on an address that only its users reach"
)
_CONTROLLER = "PocketMQ has no controller mode; take the key out"
_LIGHT_QUEUES = "PocketMQ doesn't write one message to several queues; take the key out"

REFUSED_KEYS: Final[dict[str, Refused]] = {
    "brokerRole": refused(_REPLICATION, "async_master", ""),
    "enableDLegerCommitLog": refused(_REPLICATION),
    "duplicationEnable": refused(_REPLICATION),
    "totalReplicas": refused(_ONE_COPY, "1"),
    "inSyncReplicas": refused(_ONE_COPY, "1"),
    "minInSyncReplicas": refused(_ONE_COPY, "1"),
    "allAckInSyncStateSet": refused(
        "PocketMQ doesn't replicate yet: no other broker acknowledges a message; use false"
    ),
    "enableSlaveActingMaster": refused(_REPLICATION),
    "enableControllerMode": refused(_CONTROLLER),
    "controllerAddr": refused(_CONTROLLER, ""),
    "aclEnable": refused(_ACCESS_CONTROL),
    "authenticationEnabled": refused(_ACCESS_CONTROL),
    "authorizationEnabled": refused(_ACCESS_CONTROL),
    "useTLS": refused("PocketMQ doesn't speak TLS yet; take the key out, or put a tunnel in front"),
    "enablePropertyFilter": refused(
        "PocketMQ has no SQL92 filter yet; take the key out, and let consumers filter by tag"
    ),
    "enableConsumeQueueExt": refused(
        "PocketMQ doesn't keep the queues' extension files; take the key out"
    ),
    "timerWheelEnable": refused(
        "PocketMQ has no timers yet and refuses messages that ask for one; use false, and delay "
        "levels"
    ),
    "enableCompaction": refused(
        "PocketMQ doesn't compact topics: it deletes by age, and the last message of a key goes "
        "with the others; use false"
    ),
    "rejectTransactionMessage": refused(
        "PocketMQ has no transactions yet and refuses transactional messages; use true", "true"
    ),
    "enableLmq": refused(_LIGHT_QUEUES),
    "enableMultiDispatch": refused(_LIGHT_QUEUES),
    "messageStorePlugIn": refused("PocketMQ loads no Java plug-in; take the key out", ""),
    "storeType": refused("PocketMQ's store is the file store; take the key out", "default", ""),
    "readOnlyCommitLogStorePaths": refused(
        "PocketMQ keeps its log in one directory; take the key out", ""
    ),
    "fetchNamesrvAddrByAddressServer": refused(
        "PocketMQ asks no address server; name the name servers in namesrvAddr"
    ),
}

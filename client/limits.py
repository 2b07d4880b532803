"""The client's limits and periods. Sizes are in bytes, times in seconds."""

from __future__ import annotations

from typing import Final

MAX_IN_FLIGHT_MESSAGES: Final = 20_000
"""Messages accepted by a producer and not yet acknowledged: about 20 full batches."""

MAX_IN_FLIGHT_BYTES: Final = 64 * 1024 * 1024
"""Bytes of their bodies and properties: sixteen messages of the largest size."""

WAITING_PER_IN_FLIGHT: Final = 10
"""Sends that may wait for room, per message that may be in flight. If ``asyncio.gather`` starts
more sends, the excess fails at once."""

MAX_BATCH_MESSAGES: Final = 1024
"""Messages in one automatic batch: larger batches don't lower the cost per message."""

MAX_BATCH_BYTES: Final = 1024 * 1024
"""Encoded bytes of one automatic batch: well below a broker's ``maxMessageSize``."""

SPREAD_MESSAGES: Final = 256
"""Smallest batch when a burst is spread over a topic's queues."""

SEND_TIMEOUT: Final = 3.0
"""One send including all its attempts (cf. sendMsgTimeout)."""

SEND_RETRIES: Final = 2
"""Attempts after the first (cf. retryTimesWhenSendFailed)."""

COMPRESS_OVER_BYTES: Final = 4096
"""Smallest body that is compressed (cf. compressMsgBodyOverHowmuch)."""

DEFAULT_TOPIC_QUEUES: Final = 4
"""Queues of a topic that a send creates (cf. defaultTopicQueueNums)."""

ROUTE_REFRESH_PERIOD: Final = 30.0
"""Between refreshes of the routes in use (cf. pollNameServerInterval)."""

FALLBACK_ROUTE_PERIOD: Final = 1.0
"""The same for a topic that a send is creating, whose real route is expected soon."""

ROUTE_RETRY_PERIOD: Final = 1.0
"""Minimum time between two refreshes of a route that a failing broker causes."""

NEW_TOPIC_PAUSES: Final = (0.05, 0.1, 0.2)
"""Before each further query for a missing topic: its broker may be about to register it."""

MAX_CLIENT_ID_PART: Final = 200
"""Characters of an instance or unit name: a PocketMQ broker accepts client ids of up to 512."""

MAX_ROUTES: Final = 10_000
"""Topics whose route one instance keeps."""

NAME_SERVER_TIMEOUT: Final = 3.0
"""One request to a name server (cf. mqClientApiTimeout)."""

NAME_SERVER_PATIENCE: Final = 0.3
"""Before the next name server is asked too, if one is silent: a tenth of SEND_TIMEOUT."""

REQUEST_TIMEOUT: Final = 5.0
"""One request to a broker other than a send or pull (cf. MQAdmin)."""

RUNNING_INFO_TIMEOUT: Final = 3.0
"""A query for a member's running info, which its broker forwards: a member that hangs must not
delay the others."""

MAX_STACKS: Final = 500
"""Threads, and tasks, whose stacks a member's running info has: formatting them takes about 5 ms,
in which the event loop does nothing else."""

MAX_STACK_DEPTH: Final = 50
"""Calls of one stack; the deepest recursions take 40 ms in all."""

CONNECT_TIMEOUT: Final = 3.0
"""Opening one connection."""

REQUEST_REPLY_TIMEOUT: Final = 3.0
"""One request to a consumer with its reply (cf. sendMsgTimeout)."""

REPLY_TIMEOUT: Final = 15.0
"""One reply: its broker gives the requester ten seconds to take it."""

MAX_REQUESTS: Final = 10_000
"""Requests of one client that wait for a reply."""

MAX_CHECKS: Final = 2_000
"""Transactions that brokers ask one producer about at the same time (cf. checkRequestHoldMax)."""

MAX_DECISIONS: Final = 10_000
"""Transactions whose end no broker has confirmed and whose decision is remembered: 2 MB."""

TRANSACTION_CHECK_TIMEOUT: Final = 60.0
"""One call of a transaction checker: brokers ask again after about as long."""

INTERCEPTOR_CLOSE_TIMEOUT: Final = 5.0
"""For one interceptor to send what it still holds, when its producer or consumer closes."""

MAX_BROKERS_KNOWN: Final = 10_000
"""Brokers whose answers a client remembers; beyond that it drops all of them."""

MAX_TRACE_RECORDS: Final = 2_048
"""Trace records of one producer or consumer that wait to be sent (cf. AsyncTraceDispatcher)."""

MAX_TRACE_BATCH: Final = 100
"""Records in one trace message (cf. AsyncTraceDispatcher)."""

TRACE_LINGER: Final = 0.1
"""How long a trace record may wait for others to share its message."""

TRACE_SEND_TIMEOUT: Final = 5.0
"""One trace message (cf. AsyncTraceDispatcher)."""

TRACE_CLOSE_TIMEOUT: Final = 3.0
"""For the trace records that wait when a producer or consumer closes; below
INTERCEPTOR_CLOSE_TIMEOUT."""

HEARTBEAT_PERIOD: Final = 30.0
"""Between heartbeats to all brokers of the known routes (cf. heartbeatBrokerInterval)."""

HEARTBEAT_TIMEOUT: Final = 3.0
"""The answer to one heartbeat."""

HEARTBEAT_RETRY: Final = 0.2
"""Before the next heartbeat to a broker that is starting or overloaded."""

UNREGISTER_TIMEOUT: Final = 1.0
"""Unregistering from a broker at close, which a dead broker must not delay."""

PULL_SUSPEND: Final = 15.0
"""How long a broker may hold a pull that finds no message (cf. brokerSuspendMaxTime)."""

PULL_TIMEOUT: Final = 30.0
"""The answer to a held pull (cf. consumerTimeoutMillisWhenSuspend)."""

PULL_MESSAGES: Final = 512
"""Messages requested with one pull: larger pulls don't lower the cost per message. Apache's brokers
return at most 32."""

PREFETCH_MESSAGES: Final = 2000
"""Messages read ahead per queue (cf. pullThresholdForQueue: 1000, with pulls of 32)."""

PREFETCH_BYTES: Final = 8 * 1024 * 1024
"""Bytes read ahead per queue: two answers of a broker's largest size."""

RETRY_DELAY_FIRST: Final = 0.05
"""The bound of the pause after the first failed attempt; it doubles with each further one."""

RETRY_DELAY_MAX: Final = 0.5
"""The longest pause between attempts: a client resumes soon after a broker is back."""

RETRY_AFTER_MAX: Final = 60.0
"""The longest wait that a client accepts from a broker's refusal."""

REPORT_PERIOD: Final = 30.0
"""Minimum time between two log lines about the same lasting problem."""

DELAY_LEVELS: Final = (
    *(1, 5, 10, 30),
    *(60, 120, 180, 240, 300, 360, 420, 480, 540, 600),
    *(1200, 1800, 3600, 7200),
)
"""The default delay levels in seconds, from level 1 on.

A broker may be configured with other levels (``messageDelayLevel``); the client can't see them.
"""

MAX_DELAY_LEVEL: Final = len(DELAY_LEVELS)
"""The highest level that a producer accepts by default."""

AUTO_COMMIT_PERIOD: Final = 5.0
"""Between automatic commits (cf. persistConsumerOffsetInterval)."""

CLOSE_TIMEOUT: Final = 10.0
"""How long close waits for messages in flight, commits and unregistering."""

MAX_TIME_WALK: Final = 10_000
"""Messages read to find the first one stored at or after a time: some share one millisecond."""

CONCURRENCY: Final = 20
"""Handler calls of a push consumer that run concurrently (cf. consumeThreadMin)."""

BREAKER_FAILURES: Final = 20
"""Messages in a row that fail with the same error before a push consumer is paused."""

CONSUME_TIMEOUT: Final = 15 * 60.0
"""How long one handler call may take (cf. consumeTimeout)."""

MAX_RETRIES: Final = 16
"""How often a message is retried before it becomes a dead letter (cf. maxReconsumeTimes)."""

PUSH_PREFETCH_MESSAGES: Final = 1000
"""Messages a push consumer holds per queue (cf. pullThresholdForQueue)."""

PUSH_PREFETCH_BYTES: Final = 100 * 1024 * 1024
"""Bytes a push consumer holds per queue (cf. pullThresholdSizeForQueue)."""

MAX_SPAN: Final = 2000
"""Offsets from a queue's commit point to its newest message read (cf. consumeConcurrentlyMaxSpan).
"""

RUN_MESSAGES: Final = 32
"""Messages a worker takes at a time when the handler is called for each: few enough to leave some
to other workers, enough to make taking them cheap."""

SLICE: Final = 0.002
"""Time for which handlers that never suspend may run before the event loop runs other tasks."""

MAX_HANDLED_NOW: Final = 16
"""Messages that a consumer handles at a time because an administrator asked for it."""

BLOCKED_LOOP: Final = 1.0
"""Time after which a handler that blocked the event loop is reported."""

MAX_EXPRESSION_LENGTH: Final = 32 * 1024
"""Characters of an SQL92 expression: the limit of our brokers, because each pull carries it."""

MAX_DEAD_REASON: Final = 500
"""Characters of the reason stored with a dead letter."""

KEPT_PAUSE: Final = 5.0
"""Before a message that can't be sent back to the broker is handled again (cf.
submitConsumeRequestLater)."""

CANCEL_TIMEOUT: Final = 1.0
"""How long a cancelled handler may run when its consumer stops, or loses an ordered queue."""

CANCEL_GRACE: Final = 0.1
"""Between the cancellation of a worker and the failure of its consumer: when the whole program
ends, the consumer must not report a failure."""

MAX_TURN: Final = 60.0
"""How long a worker may handle messages of one queue before it takes another queue's (cf.
MAX_TIME_CONSUME_CONTINUOUSLY)."""

WARN_FAILURES: Final = 3
"""Failures of an orderly message after which it is reported as blocking its queue."""

MAX_LOCAL_OFFSETS_BYTES: Final = 16 * 1024 * 1024
"""Size of a broadcast consumer's offsets file: enough for over a hundred thousand queues."""

REBALANCE_PERIOD: Final = 20.0
"""Between rebalances (cf. rocketmq.client.rebalance.waitInterval)."""

REBALANCE_RETRY_FIRST: Final = 1.0
"""After a rebalance that failed for a topic; doubles up to REBALANCE_PERIOD."""

MAX_QUEUES_HELD: Final = 10_000
"""Queues of one group member. Each has a lock to renew and a pull in flight: more would leave the
event loop no time for anything else."""

CHANGED_AT_ONCE: Final = 64
"""Queues that a member takes or gives up at a time: about 10 ms without other tasks of the loop."""

CHANGE_PATIENCE: Final = 0.02
"""The longest wait for one such portion before the next one: some of its queues wait for a lock or
a handler for minutes."""

HANDOVER_TIMEOUT: Final = 5.0
"""How long the new owner of an unordered queue waits for the previous one to finish with it."""

ORDERED_DRAIN_TIMEOUT: Final = 15 * 60.0
"""How long the handler of a lost ordered queue may run (cf. consumeTimeout); the next owner waits.
"""

LOST_GRACE: Final = 5.0
"""How long releasing a queue may take beyond its deadline: the last commit."""

LAST_COMMIT_TIMEOUT: Final = 4.0
"""How long the last commit of a lost queue is retried while its broker is unreachable."""

FIRST_COMMIT_TRIES: Final = 5
"""Attempts at the first commit for a topic until the broker has stored it: a concurrent first
commit of another member can overwrite it."""

MAX_FIRST_COMMITS: Final = 10_000
"""First commits that a client remembers as stored; beyond that it drops all of them, and reads the
next commit of each group and topic back again."""

CARRIED_COMMIT: Final = 0.2
"""Time that a broker may take from a pull to the commit it carries. Apache's brokers have separate
thread pools for pulls and commits, so a later commit may be stored first."""

UNLOCK_TIMEOUT: Final = 2.0
"""How long unlocking queues is retried while their broker is unreachable."""

LOCK_TIMEOUT: Final = 1.0
"""One request for queue locks (cf. RebalanceImpl.lock)."""

LOCK_LIFE: Final = 30.0
"""Time after which a lock that was not renewed counts as lost (cf.
rocketmq.client.rebalance.lockMaxLiveTime)."""

LOCK_RENEWAL_PERIOD: Final = 20.0
"""Between renewals of a lock (cf. rocketmq.client.rebalance.lockInterval)."""

LOCK_RETRY: Final = 0.1
"""Between attempts to lock a queue while its previous owner finishes with it."""

LOCK_RETRY_SLOW: Final = 1.0
"""The same when the previous owner takes long, or ended without unlocking."""

START_RETRY_MAX: Final = 5.0
"""The longest pause between attempts to determine where a queue starts."""

RESTART_GRACE: Final = 3.0
"""After reconnecting to a broker, members that it doesn't list may still be reconnecting."""

WATCH_FIRST: Final = 1.0
"""After a change of a group until brokers are asked for its problems: the group settles meanwhile.
"""

WATCH_PERIOD: Final = 30.0
"""Between queries for a group's problems while nothing changes."""

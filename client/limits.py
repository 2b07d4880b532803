"""The client's named limits and periods, each with its reason. Sizes in bytes, times in seconds."""

from __future__ import annotations

from typing import Final

MAX_IN_FLIGHT_MESSAGES: Final = 20_000
"""Messages a producer accepted and no broker acknowledged yet: some 200 full batches."""

MAX_IN_FLIGHT_BYTES: Final = 64 * 1024 * 1024
"""Their bodies and properties: sixteen messages of the largest size."""

WAITING_PER_IN_FLIGHT: Final = 10
"""Sends that may wait for room, for each message that may be in flight: of ``asyncio.gather`` with
more, those beyond fail at once."""

MAX_BATCH_MESSAGES: Final = 1024
"""Messages of one automatic batch: more no longer costs less per message."""

MAX_BATCH_BYTES: Final = 1024 * 1024
"""Encoded bytes of one automatic batch, well under a broker's ``maxMessageSize``."""

SPREAD_MESSAGES: Final = 256
"""A burst is spread over a topic's queues in batches of at least so many messages."""

SEND_TIMEOUT: Final = 3.0
"""One send with all its attempts (cf. sendMsgTimeout)."""

SEND_RETRIES: Final = 2
"""Attempts after the first (cf. retryTimesWhenSendFailed)."""

COMPRESS_OVER_BYTES: Final = 4096
"""Bodies from this size are compressed (cf. compressMsgBodyOverHowmuch)."""

DEFAULT_TOPIC_QUEUES: Final = 4
"""Queues asked for when a send creates its topic (cf. defaultTopicQueueNums)."""

ROUTE_REFRESH_PERIOD: Final = 30.0
"""Between refreshes of the routes in use (cf. pollNameServerInterval)."""

FALLBACK_ROUTE_PERIOD: Final = 1.0
"""The same for a topic that a send is about to create: its real route comes soon."""

ROUTE_RETRY_PERIOD: Final = 1.0
"""A failing broker causes a refresh of its topics' routes, at most once in this time."""

NEW_TOPIC_PAUSES: Final = (0.05, 0.1, 0.2)
"""Between queries for a topic that isn't there: its broker may be about to register it."""

MAX_ROUTES: Final = 10_000
"""Topics whose route one instance keeps."""

NAME_SERVER_TIMEOUT: Final = 3.0
"""One request to a name server (cf. mqClientApiTimeout)."""

REQUEST_TIMEOUT: Final = 5.0
"""One request to a broker that is not a send or a pull (cf. MQAdmin)."""

RUNNING_INFO_TIMEOUT: Final = 3.0
"""A member's running info, through its broker: a hung member must not delay the others."""

CONNECT_TIMEOUT: Final = 3.0
"""Opening one connection."""

HEARTBEAT_PERIOD: Final = 30.0
"""Heartbeats to all brokers of the known routes (cf. heartbeatBrokerInterval)."""

HEARTBEAT_TIMEOUT: Final = 3.0
"""One heartbeat."""

HEARTBEAT_RETRY: Final = 0.2
"""Between heartbeats to a broker that can't take them yet: it is starting, or too busy."""

UNREGISTER_TIMEOUT: Final = 1.0
"""Unregistering from a broker at close: a dead one must not hold it up."""

PULL_SUSPEND: Final = 15.0
"""How long a broker may hold a pull that finds nothing (cf. brokerSuspendMaxTime)."""

PULL_TIMEOUT: Final = 30.0
"""A held pull's answer (cf. consumerTimeoutMillisWhenSuspend)."""

PULL_MESSAGES: Final = 512
"""Messages asked for with one pull: more no longer cost less each. Apache's brokers give 32."""

PREFETCH_MESSAGES: Final = 2000
"""Messages read ahead per queue (cf. pullThresholdForQueue, 1000, for pulls of 32)."""

PREFETCH_BYTES: Final = 8 * 1024 * 1024
"""Bytes read ahead per queue: two answers of a broker's largest size."""

RETRY_DELAY_FIRST: Final = 0.05
"""The pause after a first failed attempt; it doubles from there."""

RETRY_DELAY_MAX: Final = 0.5
"""The longest pause between attempts: a client goes on soon after a broker is back."""

REPORT_PERIOD: Final = 30.0
"""A problem that lasts is logged again after this time."""

MAX_DELAY_LEVEL: Final = 18
"""The delay levels of a broker that isn't told otherwise (cf. messageDelayLevel)."""

AUTO_COMMIT_PERIOD: Final = 5.0
"""Between automatic commits (cf. persistConsumerOffsetInterval)."""

CLOSE_TIMEOUT: Final = 10.0
"""The longest that close waits for messages in flight, commits and unregistering."""

MAX_TIME_WALK: Final = 10_000
"""Messages of one millisecond looked through to find the first at or after an instant."""

CONCURRENCY: Final = 20
"""Handlers of a push consumer that run at the same time (cf. consumeThreadMin)."""

BREAKER_FAILURES: Final = 20
"""Messages in a row that fail with the same error before a push consumer is paused."""

CONSUME_TIMEOUT: Final = 15 * 60.0
"""How long a handler may take for its messages (cf. consumeTimeout)."""

MAX_RETRIES: Final = 16
"""How often a message is retried before it is dead-lettered (cf. maxReconsumeTimes)."""

PUSH_PREFETCH_MESSAGES: Final = 1000
"""Messages a push consumer holds per queue (cf. pullThresholdForQueue)."""

PUSH_PREFETCH_BYTES: Final = 100 * 1024 * 1024
"""Bytes it holds per queue (cf. pullThresholdSizeForQueue)."""

MAX_SPAN: Final = 2000
"""From a queue's commit point to its newest message (cf. consumeConcurrentlyMaxSpan)."""

RUN_MESSAGES: Final = 32
"""Messages a worker takes at a time when it calls a handler for each: so few that others get some,
so many that taking them costs little."""

SLICE: Final = 0.002
"""Seconds handlers that never wait may keep the event loop before others get a turn."""

BLOCKED_LOOP: Final = 1.0
"""Seconds after which a handler that kept the event loop is reported."""

MAX_DEAD_REASON: Final = 500
"""Characters of the reason that a dead letter carries."""

KEPT_PAUSE: Final = 5.0
"""A message that can't be sent back is handled again after so long (cf. submitConsumeRequestLater).
"""

CANCEL_TIMEOUT: Final = 1.0
"""What a cancelled handler gets to end when its consumer stops, or loses an ordered queue."""

CANCEL_GRACE: Final = 0.1
"""After a worker was cancelled, until its consumer fails: not when the whole program ends."""

MAX_TURN: Final = 60.0
"""One queue's messages in a row before other queues get the worker
(cf. MAX_TIME_CONSUME_CONTINUOUSLY)."""

WARN_FAILURES: Final = 3
"""An orderly message that failed so often is reported as blocking its queue."""

MAX_LOCAL_OFFSETS_BYTES: Final = 16 * 1024 * 1024
"""A broadcast consumer's offsets file: more than a hundred thousand queues."""

REBALANCE_PERIOD: Final = 20.0
"""Between looks at who is in the group (cf. rocketmq.client.rebalance.waitInterval)."""

REBALANCE_RETRY_FIRST: Final = 1.0
"""After a rebalance that failed for a topic; doubles up to the period."""

HANDOVER_TIMEOUT: Final = 5.0
"""How long an unordered queue's new owner waits for the previous one to finish with it."""

ORDERED_DRAIN_TIMEOUT: Final = 15 * 60.0
"""How long a lost ordered queue's handler may go on (cf. consumeTimeout): the next owner waits."""

LOST_GRACE: Final = 5.0
"""What letting go of a queue may take beyond its deadline: the last commit."""

LAST_COMMIT_TIMEOUT: Final = 4.0
"""How long a broker that is away is waited for with a lost queue's last commit."""

FIRST_COMMIT_TRIES: Final = 5
"""Attempts at a topic's first commit until the broker has it: another member's first commit at the
same moment can overwrite it."""

CARRIED_COMMIT: Final = 0.2
"""What a broker may take from a pull to the commit it carries. Apache's brokers have a pool of
threads for pulls and another for commits, so a later commit may come first."""

UNLOCK_TIMEOUT: Final = 2.0
"""How long a broker that is away is waited for with the locks it is given back."""

LOCK_TIMEOUT: Final = 1.0
"""One request for queue locks (cf. RebalanceImpl.lock)."""

LOCK_LIFE: Final = 30.0
"""A lock not renewed for so long counts as lost (cf. rocketmq.client.rebalance.lockMaxLiveTime)."""

LOCK_RENEWAL_PERIOD: Final = 20.0
"""Between renewals of a lock (cf. rocketmq.client.rebalance.lockInterval)."""

LOCK_RETRY: Final = 0.1
"""Between attempts to get a lock while its owner finishes with the queue."""

LOCK_RETRY_SLOW: Final = 1.0
"""The same when its owner takes long, or is gone without giving it back."""

START_RETRY_MAX: Final = 5.0
"""The longest pause between attempts to find out where a queue begins."""

RESTART_GRACE: Final = 3.0
"""After connecting to a broker again, members it doesn't know may still be on their way back."""

WATCH_FIRST: Final = 1.0
"""How long a group settles after a change before brokers are asked for its problems."""

WATCH_PERIOD: Final = 30.0
"""Between such questions while nothing changes."""

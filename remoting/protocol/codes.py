"""The codes of requests, responses and languages, under RocketMQ's names; ordinals of releases.

``RequestCode`` and ``ResponseCode`` list all codes of 4.9.8 and 5.3.3, whether PocketMQ serves them
or not; a comment marks codes of one release line only. A command's ``code`` is a plain ``int``: a
peer may send any number, and an unknown one is answered ``REQUEST_CODE_NOT_SUPPORTED``.

Every frame carries the ordinal of its sender's release (cf. MQVersion). ``4.x.y`` is
213 + 20x + 2y and ``5.x.y`` is 413 + 20x + 2y, with x and y from 0 to 9; the number before a
release is its SNAPSHOT. The ordinals of 3.x are irregular: the table lists those that matter.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

VERSION: Final = 407
"""The release that PocketMQ reports in every frame: V4_9_7 (cf. MQVersion)."""

FLAG_RESPONSE: Final = 1
"""Bit of ``Command.flag``: the command is an answer."""

FLAG_ONEWAY: Final = 2
"""Bit of ``Command.flag``: the sender expects no answer."""

OWN_REQUEST_CODES: Final = range(20001, 32001)
"""PocketMQ's own request codes. They fit into the 16 signed bits of a binary header."""


class SerializeType(IntEnum):
    """The codec of a frame's header: the frame's fifth byte (cf. SerializeType)."""

    JSON = 0
    ROCKETMQ = 1
    MSGPACK = 2  # PocketMQ's own; only on connections whose peer has agreed to it


class Language(IntEnum):
    """The language of a frame's sender (cf. LanguageCode): a name in JSON, else a number."""

    JAVA = 0
    CPP = 1
    DOTNET = 2
    PYTHON = 3
    DELPHI = 4
    ERLANG = 5
    RUBY = 6
    OTHER = 7
    HTTP = 8
    GO = 9
    PHP = 10
    OMS = 11
    RUST = 12
    NODE_JS = 13  # 5.x


class RequestCode(IntEnum):
    """The kind of a request (cf. RequestCode)."""

    SEND_MESSAGE = 10
    PULL_MESSAGE = 11
    QUERY_MESSAGE = 12
    QUERY_BROKER_OFFSET = 13
    QUERY_CONSUMER_OFFSET = 14
    UPDATE_CONSUMER_OFFSET = 15
    UPDATE_AND_CREATE_TOPIC = 17
    UPDATE_AND_CREATE_TOPIC_LIST = 18  # 5.x
    GET_ALL_TOPIC_CONFIG = 21
    GET_TOPIC_CONFIG_LIST = 22
    GET_TOPIC_NAME_LIST = 23
    UPDATE_BROKER_CONFIG = 25
    GET_BROKER_CONFIG = 26
    TRIGGER_DELETE_FILES = 27
    GET_BROKER_RUNTIME_INFO = 28
    SEARCH_OFFSET_BY_TIMESTAMP = 29
    GET_MAX_OFFSET = 30
    GET_MIN_OFFSET = 31
    GET_EARLIEST_MSG_STORETIME = 32
    VIEW_MESSAGE_BY_ID = 33
    HEART_BEAT = 34
    UNREGISTER_CLIENT = 35
    CONSUMER_SEND_MSG_BACK = 36
    END_TRANSACTION = 37
    GET_CONSUMER_LIST_BY_GROUP = 38
    CHECK_TRANSACTION_STATE = 39
    NOTIFY_CONSUMER_IDS_CHANGED = 40
    LOCK_BATCH_MQ = 41
    UNLOCK_BATCH_MQ = 42
    GET_ALL_CONSUMER_OFFSET = 43
    GET_ALL_DELAY_OFFSET = 45
    CHECK_CLIENT_CONFIG = 46
    GET_CLIENT_CONFIG = 47  # 5.x
    UPDATE_AND_CREATE_ACL_CONFIG = 50  # 4.9
    DELETE_ACL_CONFIG = 51  # 4.9
    GET_BROKER_CLUSTER_ACL_INFO = 52  # 4.9
    UPDATE_GLOBAL_WHITE_ADDRS_CONFIG = 53  # 4.9
    GET_BROKER_CLUSTER_ACL_CONFIG = 54  # 4.x
    GET_TIMER_CHECK_POINT = 60  # 5.x
    GET_TIMER_METRICS = 61  # 5.x
    PUT_KV_CONFIG = 100
    GET_KV_CONFIG = 101
    DELETE_KV_CONFIG = 102
    REGISTER_BROKER = 103
    UNREGISTER_BROKER = 104
    GET_ROUTEINFO_BY_TOPIC = 105
    GET_BROKER_CLUSTER_INFO = 106
    UPDATE_AND_CREATE_SUBSCRIPTIONGROUP = 200
    GET_ALL_SUBSCRIPTIONGROUP_CONFIG = 201
    GET_TOPIC_STATS_INFO = 202
    GET_CONSUMER_CONNECTION_LIST = 203
    GET_PRODUCER_CONNECTION_LIST = 204
    WIPE_WRITE_PERM_OF_BROKER = 205
    GET_ALL_TOPIC_LIST_FROM_NAMESERVER = 206
    DELETE_SUBSCRIPTIONGROUP = 207
    GET_CONSUME_STATS = 208
    SUSPEND_CONSUMER = 209
    RESUME_CONSUMER = 210
    RESET_CONSUMER_OFFSET_IN_CONSUMER = 211
    RESET_CONSUMER_OFFSET_IN_BROKER = 212
    ADJUST_CONSUMER_THREAD_POOL = 213
    WHO_CONSUME_THE_MESSAGE = 214
    DELETE_TOPIC_IN_BROKER = 215
    DELETE_TOPIC_IN_NAMESRV = 216
    REGISTER_TOPIC_IN_NAMESRV = 217  # 5.x
    GET_KVLIST_BY_NAMESPACE = 219
    RESET_CONSUMER_CLIENT_OFFSET = 220
    GET_CONSUMER_STATUS_FROM_CLIENT = 221
    INVOKE_BROKER_TO_RESET_OFFSET = 222
    INVOKE_BROKER_TO_GET_CONSUMER_STATUS = 223
    GET_TOPICS_BY_CLUSTER = 224
    UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST = 225  # 5.x
    QUERY_TOPIC_CONSUME_BY_WHO = 300
    REGISTER_FILTER_SERVER = 301
    REGISTER_MESSAGE_FILTER_CLASS = 302
    QUERY_CONSUME_TIME_SPAN = 303
    GET_SYSTEM_TOPIC_LIST_FROM_NS = 304
    GET_SYSTEM_TOPIC_LIST_FROM_BROKER = 305
    CLEAN_EXPIRED_CONSUMEQUEUE = 306
    GET_CONSUMER_RUNNING_INFO = 307
    QUERY_CORRECTION_OFFSET = 308
    CONSUME_MESSAGE_DIRECTLY = 309
    SEND_MESSAGE_V2 = 310
    GET_UNIT_TOPIC_LIST = 311
    GET_HAS_UNIT_SUB_TOPIC_LIST = 312
    GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST = 313
    CLONE_GROUP_OFFSET = 314
    VIEW_BROKER_STATS_DATA = 315
    CLEAN_UNUSED_TOPIC = 316
    GET_BROKER_CONSUME_STATS = 317
    UPDATE_NAMESRV_CONFIG = 318
    GET_NAMESRV_CONFIG = 319
    SEND_BATCH_MESSAGE = 320
    QUERY_CONSUME_QUEUE = 321
    QUERY_DATA_VERSION = 322
    RESUME_CHECK_HALF_MESSAGE = 323
    SEND_REPLY_MESSAGE = 324
    SEND_REPLY_MESSAGE_V2 = 325
    PUSH_REPLY_MESSAGE_TO_CLIENT = 326
    ADD_WRITE_PERM_OF_BROKER = 327
    GET_ALL_PRODUCER_INFO = 328
    DELETE_EXPIRED_COMMITLOG = 329
    QUERY_TOPICS_BY_CONSUMER = 343  # 5.x
    QUERY_SUBSCRIPTION_BY_CONSUMER = 345  # 5.x
    GET_TOPIC_CONFIG = 351  # 5.x
    GET_SUBSCRIPTIONGROUP_CONFIG = 352  # 5.x
    UPDATE_AND_GET_GROUP_FORBIDDEN = 353  # 5.x
    CHECK_ROCKSDB_CQ_WRITE_PROGRESS = 354  # 5.x
    EXPORT_ROCKSDB_CONFIG_TO_JSON = 355  # 5.x
    LITE_PULL_MESSAGE = 361  # 5.x
    RECALL_MESSAGE = 370  # 5.x
    QUERY_ASSIGNMENT = 400  # 5.x
    SET_MESSAGE_REQUEST_MODE = 401  # 5.x
    GET_ALL_MESSAGE_REQUEST_MODE = 402  # 5.x
    UPDATE_AND_CREATE_STATIC_TOPIC = 513  # 5.x
    GET_BROKER_MEMBER_GROUP = 901  # 5.x
    ADD_BROKER = 902  # 5.x
    REMOVE_BROKER = 903  # 5.x
    BROKER_HEARTBEAT = 904  # 5.x
    NOTIFY_MIN_BROKER_ID_CHANGE = 905  # 5.x
    EXCHANGE_BROKER_HA_INFO = 906  # 5.x
    GET_BROKER_HA_STATUS = 907  # 5.x
    RESET_MASTER_FLUSH_OFFSET = 908  # 5.x
    CONTROLLER_ALTER_SYNC_STATE_SET = 1001  # 5.x
    CONTROLLER_ELECT_MASTER = 1002  # 5.x
    CONTROLLER_REGISTER_BROKER = 1003  # 5.x
    CONTROLLER_GET_REPLICA_INFO = 1004  # 5.x
    CONTROLLER_GET_METADATA_INFO = 1005  # 5.x
    CONTROLLER_GET_SYNC_STATE_DATA = 1006  # 5.x
    GET_BROKER_EPOCH_CACHE = 1007  # 5.x
    NOTIFY_BROKER_ROLE_CHANGED = 1008  # 5.x
    UPDATE_CONTROLLER_CONFIG = 1009  # 5.x
    GET_CONTROLLER_CONFIG = 1010  # 5.x
    CLEAN_BROKER_DATA = 1011  # 5.x
    CONTROLLER_GET_NEXT_BROKER_ID = 1012  # 5.x
    CONTROLLER_APPLY_BROKER_ID = 1013  # 5.x
    UPDATE_COLD_DATA_FLOW_CTR_CONFIG = 2001  # 5.x
    REMOVE_COLD_DATA_FLOW_CTR_CONFIG = 2002  # 5.x
    GET_COLD_DATA_FLOW_CTR_INFO = 2003  # 5.x
    SET_COMMITLOG_READ_MODE = 2004  # 5.x
    AUTH_CREATE_USER = 3001  # 5.x
    AUTH_UPDATE_USER = 3002  # 5.x
    AUTH_DELETE_USER = 3003  # 5.x
    AUTH_GET_USER = 3004  # 5.x
    AUTH_LIST_USER = 3005  # 5.x
    AUTH_CREATE_ACL = 3006  # 5.x
    AUTH_UPDATE_ACL = 3007  # 5.x
    AUTH_DELETE_ACL = 3008  # 5.x
    AUTH_GET_ACL = 3009  # 5.x
    AUTH_LIST_ACL = 3010  # 5.x
    POP_MESSAGE = 200050  # 5.x
    ACK_MESSAGE = 200051  # 5.x
    PEEK_MESSAGE = 200052  # 5.x
    CHANGE_MESSAGE_INVISIBLETIME = 200053  # 5.x
    NOTIFICATION = 200054  # 5.x
    POLLING_INFO = 200055  # 5.x
    POP_ROLLBACK = 200056  # 5.x
    BATCH_ACK_MESSAGE = 200151  # 5.x


class ResponseCode(IntEnum):
    """The result of a request (cf. RemotingSysResponseCode, ResponseCode).

    209, 210 and 211 have different meanings in 4.9 and 5.x: the 5.x names are aliases.
    """

    SUCCESS = 0
    SYSTEM_ERROR = 1
    SYSTEM_BUSY = 2
    REQUEST_CODE_NOT_SUPPORTED = 3
    TRANSACTION_FAILED = 4
    FLUSH_DISK_TIMEOUT = 10
    SLAVE_NOT_AVAILABLE = 11
    FLUSH_SLAVE_TIMEOUT = 12
    MESSAGE_ILLEGAL = 13
    SERVICE_NOT_AVAILABLE = 14
    VERSION_NOT_SUPPORTED = 15
    NO_PERMISSION = 16
    TOPIC_NOT_EXIST = 17
    TOPIC_EXIST_ALREADY = 18
    PULL_NOT_FOUND = 19
    PULL_RETRY_IMMEDIATELY = 20
    PULL_OFFSET_MOVED = 21
    QUERY_NOT_FOUND = 22
    SUBSCRIPTION_PARSE_FAILED = 23
    SUBSCRIPTION_NOT_EXIST = 24
    SUBSCRIPTION_NOT_LATEST = 25
    SUBSCRIPTION_GROUP_NOT_EXIST = 26
    FILTER_DATA_NOT_EXIST = 27
    FILTER_DATA_NOT_LATEST = 28
    INVALID_PARAMETER = 29  # 5.x
    TRANSACTION_SHOULD_COMMIT = 200
    TRANSACTION_SHOULD_ROLLBACK = 201
    TRANSACTION_STATE_UNKNOW = 202
    TRANSACTION_STATE_GROUP_WRONG = 203
    NO_BUYER_ID = 204
    NOT_IN_CURRENT_UNIT = 205
    CONSUMER_NOT_ONLINE = 206
    CONSUME_MSG_TIMEOUT = 207
    NO_MESSAGE = 208
    UPDATE_AND_CREATE_ACL_CONFIG_FAILED = 209  # 4.9
    POLLING_FULL = 209  # 5.x
    DELETE_ACL_CONFIG_FAILED = 210  # 4.9
    POLLING_TIMEOUT = 210  # 5.x
    UPDATE_GLOBAL_WHITE_ADDRS_CONFIG_FAILED = 211  # 4.9
    BROKER_NOT_EXIST = 211  # 5.x
    BROKER_DISPATCH_NOT_COMPLETE = 212  # 5.x
    BROADCAST_CONSUMPTION = 213  # 5.x
    FLOW_CONTROL = 215
    NOT_LEADER_FOR_QUEUE = 501  # 5.x
    ILLEGAL_OPERATION = 604  # 5.x
    GO_AWAY = 1500  # 5.x
    CONTROLLER_FENCED_MASTER_EPOCH = 2000  # 5.x
    CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH = 2001  # 5.x
    CONTROLLER_INVALID_MASTER = 2002  # 5.x
    CONTROLLER_INVALID_REPLICAS = 2003  # 5.x
    CONTROLLER_MASTER_NOT_AVAILABLE = 2004  # 5.x
    CONTROLLER_INVALID_REQUEST = 2005  # 5.x
    CONTROLLER_BROKER_NOT_ALIVE = 2006  # 5.x
    CONTROLLER_NOT_LEADER = 2007  # 5.x
    CONTROLLER_BROKER_METADATA_NOT_EXIST = 2008  # 5.x
    CONTROLLER_INVALID_CLEAN_BROKER_METADATA = 2009  # 5.x
    CONTROLLER_BROKER_NEED_TO_BE_REGISTERED = 2010  # 5.x
    CONTROLLER_MASTER_STILL_EXIST = 2011  # 5.x
    CONTROLLER_ELECT_MASTER_FAILED = 2012  # 5.x
    CONTROLLER_ALTER_SYNC_STATE_SET_FAILED = 2013  # 5.x
    CONTROLLER_BROKER_ID_INVALID = 2014  # 5.x
    CONTROLLER_JRAFT_INTERNAL_ERROR = 2015  # 5.x
    CONTROLLER_BROKER_LIVE_INFO_NOT_EXISTS = 2016  # 5.x
    USER_NOT_EXIST = 3001  # 5.x
    POLICY_NOT_EXIST = 3002  # 5.x
    RPC_UNKNOWN = -1000  # 5.x
    RPC_ADDR_IS_NULL = -1002  # 5.x
    RPC_SEND_TO_CHANNEL_FAILED = -1004  # 5.x
    RPC_TIME_OUT = -1006  # 5.x


HIGHER_VERSION: Final = 612
"""This and all larger ordinals stand for releases newer than the last one known."""

V3_0_7_SNAPSHOT: Final = 28
"""Clients since this release serve a broker's offset resets and status queries."""

V3_0_11: Final = 37
"""Brokers since this release register with topics and filter servers in one body."""

V3_1_8_SNAPSHOT: Final = 62
"""Clients since this release report their running state and consume a message on demand."""

V3_4_9: Final = 121
"""Consumers since this release send the limit of retries (``maxReconsumeTimes``)."""

V4_9_3: Final = 399
"""5.3.3 leaves a field out of the signatures of clients up to this release; see ``signing``."""

V4_9_4: Final = 401
"""Clients since this release get routes in standard JSON without requesting it."""

_FIRST_OF_4: Final = 213
_FIRST_OF_5: Final = 413
_PER_MINOR: Final = 20
_PER_PATCH: Final = 2

_RELEASES_OF_3: Final = {
    1: "V3_0_0_ALPHA1",
    15: "V3_0_0_FINAL",
    26: "V3_0_6_SNAPSHOT",
    28: "V3_0_7_SNAPSHOT",
    37: "V3_0_11",
    47: "V3_1_0",
    62: "V3_1_8_SNAPSHOT",
    79: "V3_2_6",
    121: "V3_4_9",
    137: "V3_5_8",
    143: "V3_6_2",
}


def name_of(ordinal: int) -> str:
    """Return RocketMQ's name of a release, such as ``V4_9_7``."""
    if ordinal >= HIGHER_VERSION:
        return "HIGHER_VERSION"
    if ordinal < _FIRST_OF_4 - 1:
        return _RELEASES_OF_3.get(ordinal, f"V3 (ordinal {ordinal})")
    major, first = (5, _FIRST_OF_5) if ordinal >= _FIRST_OF_5 - 1 else (4, _FIRST_OF_4)
    half_steps = ordinal - first + 1
    minor, rest = divmod(half_steps, _PER_MINOR)
    patch, is_release = divmod(rest, _PER_PATCH)
    return f"V{major}_{minor}_{patch}" + ("" if is_release else "_SNAPSHOT")

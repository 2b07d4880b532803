"""Reserved names (system topics and groups, prefixes), permissions, and the validation of names.

A legal name contains no path separator and no dot, so it is safe as part of a path.
"""

from __future__ import annotations

import re
from typing import Final

from remoting.protocol.limits import MAX_GROUP_LENGTH, MAX_TOPIC_LENGTH

RETRY_PREFIX: Final = "%RETRY%"
"""Prefix of a group's name in the name of its retry topic (cf. MixAll)."""

DLQ_PREFIX: Final = "%DLQ%"
"""Prefix of a group's name in the name of its dead-letter topic (cf. MixAll)."""

AUTO_CREATE_TOPIC: Final = "TBW102"
"""The template of auto-created topics (cf. TopicValidator.AUTO_CREATE_TOPIC_KEY_TOPIC)."""

SELF_TEST_TOPIC: Final = "SELF_TEST_TOPIC"
BENCHMARK_TOPIC: Final = "BenchmarkTest"
OFFSET_MOVED_TOPIC: Final = "OFFSET_MOVED_EVENT"
SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_HALF_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
CHECK_MAX_TIME_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
REPLY_TOPIC_SUFFIX: Final = "_REPLY_TOPIC"
SYSTEM_TOPIC_PREFIX: Final = "rmq_sys_"
SYSTEM_GROUP_PREFIX: Final = "CID_RMQ_SYS_"

SYSTEM_TOPICS: Final = frozenset(
    {
        AUTO_CREATE_TOPIC,
        SELF_TEST_TOPIC,
        BENCHMARK_TOPIC,
        OFFSET_MOVED_TOPIC,
        SCHEDULE_TOPIC,
        TRACE_TOPIC,
        HALF_TOPIC,
        OP_HALF_TOPIC,
        CHECK_MAX_TIME_TOPIC,
        TIMER_TOPIC,
    }
)
"""System topics of every broker (cf. TopicValidator); a broker adds topics named after itself."""

NOT_SENDABLE_TOPICS: Final = frozenset(
    {
        SCHEDULE_TOPIC,
        HALF_TOPIC,
        OP_HALF_TOPIC,
        CHECK_MAX_TIME_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_TOPIC,
        TIMER_TOPIC,
    }
)
"""Topics that only the broker itself may write to (cf. TopicValidator.NOT_ALLOWED_SEND...)."""

TOOL_GROUP_PREFIX: Final = "pocketmq-"
"""Groups of PocketMQ's command line: pocketmq-read, -tail, -export and -bench."""

TOOLS_CONSUMER_GROUP: Final = "TOOLS_CONSUMER"
DEFAULT_PRODUCER_GROUP: Final = "DEFAULT_PRODUCER"
DEFAULT_CONSUMER_GROUP: Final = "DEFAULT_CONSUMER"
CLIENT_INNER_PRODUCER_GROUP: Final = "CLIENT_INNER_PRODUCER"
"""The producer group that every Java client instance has in addition to its own."""

SYSTEM_GROUPS: Final = frozenset(
    {
        TOOLS_CONSUMER_GROUP,
        "FILTERSRV_CONSUMER",
        "SELF_TEST_C_GROUP",
        "CID_ONS-HTTP-PROXY",
        "CID_ONSAPI_PULL",
        "CID_ONSAPI_PERMISSION",
        "CID_ONSAPI_OWNER",
        "CID_RMQ_SYS_TRANS",
    }
)
"""Subscription groups that exist without being created (cf. SubscriptionGroupManager)."""

PERM_READ: Final = 4
PERM_WRITE: Final = 2
PERM_INHERIT: Final = 1
"""New topics may inherit this topic's settings (cf. PermName)."""

_LEGAL_NAME: Final = re.compile(r"[%|a-zA-Z0-9_-]+")


def validate_topic(name: str) -> None:
    """Raise ``ValueError``, with a message for the user, if this is not a legal topic name."""
    _validate("topic", name, MAX_TOPIC_LENGTH)


def validate_group(name: str) -> None:
    """Raise ``ValueError``, with a message for the user, if this is not a legal group name."""
    _validate("group", name, MAX_GROUP_LENGTH)


def _validate(kind: str, name: str, longest: int) -> None:
    if not name.strip():
        raise ValueError(f"the {kind}'s name is blank: give one")
    if len(name) > longest:
        raise ValueError(
            f"the {kind} {name[:40]}... has {len(name)} characters: use at most {longest}"
        )
    if _LEGAL_NAME.fullmatch(name) is None:
        raise ValueError(
            f"the {kind} {name!r} contains illegal characters: use only letters, digits and % | _ -"
        )


def retry_topic(group: str) -> str:
    """Return the name of a group's retry topic."""
    return RETRY_PREFIX + group


def dlq_topic(group: str) -> str:
    """Return the name of a group's dead-letter topic."""
    return DLQ_PREFIX + group


def is_system_topic(name: str) -> bool:
    """Return whether this is a system topic, which can't be created or deleted."""
    return name in SYSTEM_TOPICS or name.startswith(SYSTEM_TOPIC_PREFIX)


def holds_messages_of_others(name: str) -> bool:
    """Return whether only the broker writes to this topic, and its messages tell about others.

    They wait there for a time or a decision, or they are replies or traces.
    """
    return (
        name in {SCHEDULE_TOPIC, HALF_TOPIC, OP_HALF_TOPIC, CHECK_MAX_TIME_TOPIC, TRACE_TOPIC}
        or name.startswith(SYSTEM_TOPIC_PREFIX)
        or name.endswith(REPLY_TOPIC_SUFFIX)
    )


def is_internal_topic(name: str) -> bool:
    """Return whether this is a system, retry, dead-letter or reply topic."""
    return (
        is_system_topic(name)
        or name.startswith((RETRY_PREFIX, DLQ_PREFIX))
        or name.endswith(REPLY_TOPIC_SUFFIX)
    )


def is_tool_group(name: str) -> bool:
    """Return whether this is a consumer group of PocketMQ's command line."""
    return name.startswith(TOOL_GROUP_PREFIX)


def is_system_group(name: str) -> bool:
    """Return whether this is a system group, which exists without being created."""
    return name in SYSTEM_GROUPS or name.startswith(SYSTEM_GROUP_PREFIX)

"""Offsets as a streaming query's checkpoint keeps them.

``{"v":1,"topics":{"t":{"broker-a":{"0":123}}}}``: the offset that is to be read next in each queue.
The version stands in it from the first day, and brokers are named because queue ids repeat at each.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from remoting.protocol.queue import MessageQueue
from spark_connector.errors import ConnectorError
from spark_connector.source.options import Subscription

VERSION: Final = 1

Offsets: TypeAlias = dict[MessageQueue, int]
"""The next offset of each queue."""


def to_json(offsets: Mapping[MessageQueue, int]) -> dict[str, Any]:
    """What Spark writes into its offset log."""
    topics: dict[str, dict[str, dict[str, int]]] = {}
    for queue in sorted(offsets):
        brokers = topics.setdefault(queue.topic, {})
        brokers.setdefault(queue.broker_name, {})[str(queue.queue_id)] = offsets[queue]
    return {"v": VERSION, "topics": topics}


def from_json(value: Any) -> Offsets:
    """The reverse.

    Raises:
        ConnectorError: it isn't this format, or a newer version of it.
    """
    if not isinstance(value, dict) or "v" not in value:
        raise _unreadable(value, "no checkpoint of format rocketmq")
    if value["v"] != VERSION:
        raise _unreadable(value, f"of version {value['v']}; this connector reads {VERSION}")
    try:
        return {
            MessageQueue(topic, broker, int(queue_id)): _offset(offset)
            for topic, brokers in value["topics"].items()
            for broker, queues in brokers.items()
            for queue_id, offset in queues.items()
        }
    except (KeyError, ValueError, AttributeError, TypeError):
        raise _unreadable(value, "damaged") from None


def check_topics(offsets: Mapping[MessageQueue, int], subscription: Subscription) -> None:
    """Whether a checkpoint is of what the query reads; more may have been added since.

    Raises:
        ConnectorError: it has a topic or queue that the query doesn't read.
    """
    for queue in offsets:
        if not subscription.includes(queue):
            raise ConnectorError(
                f"the checkpoint has offsets of queue {queue}, but the query reads {subscription}",
                "give the query its own checkpoint directory, or read that topic too",
            )


def _offset(value: object) -> int:
    if type(value) is not int or value < 0:
        raise ValueError
    return value


def _unreadable(value: object, why: str) -> ConnectorError:
    return ConnectorError(
        f"the checkpoint's offsets {str(value)[:120]} can't be used: they are {why}",
        "use the checkpoint's own source and version, or begin with a new checkpoint directory",
    )

"""The JSON format of offsets in a streaming query's checkpoint.

``{"v":1,"topics":{"t":{"broker-a":{"0":123}}}}``: the version of the format, and the offset that is
read next in each queue. Brokers are named because each has queues with the same ids.
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
    """Return the JSON object that Spark writes into its offset log."""
    topics: dict[str, dict[str, dict[str, int]]] = {}
    for queue in sorted(offsets):
        brokers = topics.setdefault(queue.topic, {})
        brokers.setdefault(queue.broker_name, {})[str(queue.queue_id)] = offsets[queue]
    return {"v": VERSION, "topics": topics}


def from_json(value: Any) -> Offsets:
    """Parse what ``to_json`` returns.

    Raises:
        ConnectorError: the value has another format or another version.
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
    """Check that a query reads all queues of a checkpoint; it may read others too.

    Raises:
        ConnectorError: the checkpoint has a queue that the query doesn't read.
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

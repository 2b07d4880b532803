"""The JSON format of offsets in a streaming query's checkpoint.

``{"v":1,"topics":{"t":{"broker-a":{"0":123}}}}``: the version of the format, and the offset that is
read next in each queue. Brokers are named because each has queues with the same ids.

Two more objects of this shape are optional. ``marks`` identifies a queue after its topic may have
been recreated: the end of the queue when its offset was chosen, and when its last message was
stored, such as ``[130,1767225600000]``. ``begins`` has the queues that a batch doesn't begin at the
end of the batch before, and where it begins them: the first batch, new queues, recreated topics.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias, TypeVar

from remoting.protocol.queue import MessageQueue
from spark_connector.errors import ConnectorError
from spark_connector.source.options import Subscription

VERSION: Final = 1

Offsets: TypeAlias = dict[MessageQueue, int]
"""The next offset of each queue."""

Marks: TypeAlias = dict[MessageQueue, tuple[int, int]]
"""The end of each queue, and when the message before it was stored, in ms since 1970."""

_T = TypeVar("_T")


def to_json(
    offsets: Mapping[MessageQueue, int],
    marks: Mapping[MessageQueue, tuple[int, int]] | None = None,
    begins: Mapping[MessageQueue, int] | None = None,
) -> dict[str, Any]:
    """Return the JSON object that Spark writes into its offset log."""
    optional = {"marks": marks, "begins": begins}
    more = {name: _tree(values) for name, values in optional.items() if values}
    return {"v": VERSION, "topics": _tree(offsets), **more}


def _tree(values: Mapping[MessageQueue, Any]) -> dict[str, dict[str, dict[str, Any]]]:
    topics: dict[str, dict[str, dict[str, Any]]] = {}
    for queue in sorted(values):
        brokers = topics.setdefault(queue.topic, {})
        brokers.setdefault(queue.broker_name, {})[str(queue.queue_id)] = values[queue]
    return topics


def from_json(value: Any) -> Offsets:
    """Return the offsets of what ``to_json`` returns.

    Raises:
        ConnectorError: the value has another format or another version.
    """
    return _parse(value, "topics", _offset)


def marks_of(value: Any) -> Marks:
    """Return the marks of what ``to_json`` returns. Raises ConnectorError like ``from_json``."""
    return _parse({"marks": {}} | value, "marks", _mark)


def begins_of(value: Any) -> Offsets:
    """Return the beginnings of what ``to_json`` returns. Raises ConnectorError."""
    return _parse({"begins": {}} | value, "begins", _offset)


def _parse(value: Any, name: str, convert: Callable[[object], _T]) -> dict[MessageQueue, _T]:
    if not isinstance(value, dict) or "v" not in value:
        raise _unreadable(value, "no checkpoint of format rocketmq")
    if value["v"] != VERSION:
        raise _unreadable(value, f"of version {value['v']}; this connector reads {VERSION}")
    try:
        return {
            MessageQueue(topic, broker, int(queue_id)): convert(number)
            for topic, brokers in value[name].items()
            for broker, queues in brokers.items()
            for queue_id, number in queues.items()
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


def _mark(value: Any) -> tuple[int, int]:
    end, stored_ms = value
    return _offset(end), _offset(stored_ms)


def _unreadable(value: object, why: str) -> ConnectorError:
    return ConnectorError(
        f"the checkpoint's offsets {str(value)[:120]} can't be used: they are {why}",
        "use the checkpoint's own source and version, or begin with a new checkpoint directory",
    )

"""The errors of reading, in words: which queue, which offsets, which broker, and what to do."""

from __future__ import annotations

from spark_connector.errors import BrokerError, DataLossError, DecodeError, UnknownTopicError
from spark_connector.planning.ranges import RangePartition
from spark_connector.reading.answers import Ends, NoTopic

_OR_SKIP = "set onDataLoss=skip to read what is left"


def _queue(partition: RangePartition) -> str:
    return (
        f"topic {partition.topic}, queue {partition.queue_id} of broker {partition.broker_name} "
        f"({', '.join(partition.addresses)})"
    )


def gone(partition: RangePartition, first: int, end: int, count: int) -> DataLossError:
    """Messages within the range are gone, others behind them are there."""
    what = f"{count} of the messages" if count < end - first else f"{count} messages"
    return DataLossError(
        f"{what} from offset {first} up to {end} are gone: {_queue(partition)}; wanted were "
        f"{partition.start} up to {partition.end}",
        f"the broker keeps messages for fileReservedTime hours: read sooner or keep them longer; "
        f"{_OR_SKIP}",
    )


def ended(partition: RangePartition, position: int, ends: Ends) -> DataLossError:
    """The queue ends before the range does."""
    return DataLossError(
        f"no messages from offset {position} up to {partition.end}, the queue has {ends.min_offset}"
        f" up to {ends.max_offset}: {_queue(partition)}",
        "the topic was deleted and made anew, or the broker lost what it had not flushed: "
        f"restart the query from a new checkpoint; or {_OR_SKIP}",
    )


def no_topic(partition: RangePartition, position: int, answer: NoTopic) -> UnknownTopicError:
    """The topic vanished."""
    return UnknownTopicError(
        f"the topic vanished while offset {position} up to {partition.end} were to be read: "
        f"{_queue(partition)} says {answer.remark}",
        f"create it anew, leave it out of the query, or {_OR_SKIP}",
    )


def refused(partition: RangePartition, position: int, reason: str, hint: str) -> BrokerError:
    """The broker answers, but does not serve."""
    return BrokerError(
        f"the broker refuses to give messages from offset {position} on: {_queue(partition)}: "
        f"{reason}",
        hint or "look at the broker's log",
    )


def unreachable(
    partition: RangePartition, position: int, reason: str, waited: float
) -> BrokerError:
    """The broker did not answer for too long."""
    return BrokerError(
        f"no messages from offset {position} on for {waited:.0f} s: {_queue(partition)}: {reason}",
        "see that the broker runs and can be reached from the executors, or raise readTimeoutMs",
    )


def damaged(partition: RangePartition, first: int, end: int, error: DecodeError) -> DecodeError:
    """What came can't be understood."""
    return DecodeError(
        f"{error.what}; it came with offsets {first} up to {end} of {_queue(partition)}", error.hint
    )

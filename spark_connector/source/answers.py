"""Pull requests for a range of a queue, the errors of their answers, and pauses between retries."""

from __future__ import annotations

import random
from typing import Final

from client.wire.backoff import Backoff
from client.wire.offsets import pull_header
from client.wire.pull_answer import Ends, NoTopic
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command
from spark_connector.errors import BrokerError, DataLossError, DecodeError, UnknownTopicError
from spark_connector.limits import MAX_ANSWER_BYTES, RETRY_FIRST, RETRY_MAX
from spark_connector.source.options import ReadOptions
from spark_connector.source.ranges import RangePartition

REFUSAL_HINTS: Final[dict[int, str]] = {
    ResponseCode.NO_PERMISSION: "let the topic, its broker and the group be read",
    ResponseCode.SUBSCRIPTION_PARSE_FAILED: "check the option filterTags or filterSql",
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: (
        "create the group at the broker, or name one that is there with the option consumerGroup"
    ),
}
"""Response codes for which a retry is useless, and what to do about them."""


def pull_request(partition: RangePartition, options: ReadOptions, offset: int, end: int) -> Command:
    """Return a pull of the messages ``[offset, end)`` that the broker answers at once."""
    header = pull_header(
        partition.queue,
        options.group,
        offset,
        messages=min(end - offset, options.pull_batch_size),
        expression=options.tags.text,
        expression_type=options.tags.kind,
        max_bytes=MAX_ANSWER_BYTES,
    )
    return Command.request(RequestCode.PULL_MESSAGE, header)


class RetryState:
    """Consecutive failures without progress in between.

    Args:
        choose: randomises the pauses, to spread the retries of many tasks.

    Attributes:
        failures: the number of consecutive failures.
        refusals: the number of these that were refusals by the broker.
    """

    def __init__(self, choose: random.Random) -> None:
        self._backoff = Backoff(choose, first=RETRY_FIRST, most=RETRY_MAX)
        self._since: float | None = None
        self.failures = 0
        self.refusals = 0

    def reset(self) -> None:
        """Reset the counters and pauses after progress."""
        self._since = None
        self.failures = self.refusals = 0
        self._backoff.reset()

    def failed(self, now: float, *, refused: bool = False) -> float:
        """Count a failure; return the seconds since the first consecutive one.

        Args:
            now: the current time, monotonic seconds.
            refused: whether the broker refused the request.
        """
        if self._since is None:
            self._since = now
        self.failures += 1
        self.refusals += refused
        return now - self._since

    def pause(self) -> float:
        """Return the seconds to wait before the next attempt."""
        return self._backoff.next()


_OR_SKIP = "set onDataLoss=skip to read what is left"


def _queue(partition: RangePartition) -> str:
    return (
        f"topic {partition.topic}, queue {partition.queue_id} of broker {partition.broker_name} "
        f"({', '.join(partition.addresses)})"
    )


def gone(partition: RangePartition, first: int, end: int, count: int) -> DataLossError:
    """Return the error for deleted messages that are followed by existing ones.

    Args:
        partition: the range that is read.
        first, end: the offsets within which messages are missing, the end excluded.
        count: the number of missing messages.
    """
    what = f"{count} of the messages" if count < end - first else f"{count} messages"
    return DataLossError(
        f"{what} from offset {first} up to {end} were deleted: {_queue(partition)}; wanted were "
        f"{partition.start} up to {partition.end}",
        f"the broker keeps messages for fileReservedTime hours: read sooner or keep them longer; "
        f"{_OR_SKIP}",
    )


def ended(partition: RangePartition, position: int, ends: Ends) -> DataLossError:
    """Return the error for a queue that ends before the range does."""
    return DataLossError(
        f"no messages from offset {position} up to {partition.end}, the queue has {ends.min_offset}"
        f" up to {ends.max_offset}: {_queue(partition)}",
        "the topic was deleted and recreated, or the broker lost what it had not flushed: "
        f"restart the query from a new checkpoint; or {_OR_SKIP}",
    )


def no_topic(partition: RangePartition, position: int, answer: NoTopic) -> UnknownTopicError:
    """Return the error for a deleted topic."""
    return UnknownTopicError(
        f"the topic vanished while offset {position} up to {partition.end} were to be read: "
        f"{_queue(partition)} says {answer.remark}",
        f"create it again, leave it out of the query, or {_OR_SKIP}",
    )


def refused(partition: RangePartition, position: int, reason: str, hint: str) -> BrokerError:
    """Return the error for a broker that refuses pulls."""
    return BrokerError(
        f"the broker refuses to give messages from offset {position} on: {_queue(partition)}: "
        f"{reason}",
        hint or "check the broker's log",
    )


def unreachable(
    partition: RangePartition, position: int, reason: str, waited: float
) -> BrokerError:
    """Return the error for a broker that has not answered for ``waited`` seconds."""
    return BrokerError(
        f"no messages from offset {position} on for {waited:.0f} s: {_queue(partition)}: {reason}",
        "check that the broker runs and can be reached from the executors, or raise readTimeoutMs",
    )


def damaged(partition: RangePartition, first: int, end: int, error: DecodeError) -> DecodeError:
    """Return a decode error that names the range and the broker."""
    return DecodeError(
        f"{error.what}; it came with offsets {first} up to {end} of {_queue(partition)}", error.hint
    )

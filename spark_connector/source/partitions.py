"""The tasks of the batch and the streaming reader: creating and running them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pyspark.sql.datasource import InputPartition

from client.network.routes import Route
from remoting.protocol.queue import MessageQueue
from spark_connector.errors import UnknownTopicError
from spark_connector.schema import Column
from spark_connector.source.brokers import addresses_of
from spark_connector.source.options import ReadOptions, SourceOptions
from spark_connector.source.ranges import RangePartition, gather, split
from spark_connector.spark import check_interpreter


class QueuePartition(InputPartition):
    """The ranges one task reads, usually one."""

    def __init__(self, ranges: Sequence[RangePartition]) -> None:
        super().__init__(None)
        self.ranges = tuple(ranges)


def ranges_of(
    offsets: Mapping[MessageQueue, tuple[int, int]], routes: Mapping[str, Route]
) -> list[RangePartition]:
    """Return the ranges that are not empty, with the addresses of their brokers.

    Raises:
        UnknownTopicError: the broker of such a queue is not in the route of its topic.
    """
    ranges = []
    for queue, (start, end) in sorted(offsets.items()):
        if start >= end:
            continue
        addresses = addresses_of(routes, queue)
        if not addresses:
            raise UnknownTopicError(
                f"offsets [{start}, {end}) of queue {queue} are to be read, but its broker "
                "is not registered at any name server",
                "start the broker again, or begin with a new checkpoint if the topic was deleted",
            )
        ranges.append(
            RangePartition(queue.topic, queue.broker_name, queue.queue_id, start, end, addresses)
        )
    return ranges


def tasks(ranges: Iterable[RangePartition], options: SourceOptions) -> list[InputPartition]:
    """Split ranges as the options require and return the tasks; small pieces share one."""
    pieces = split(
        ranges,
        min_partitions=options.min_partitions,
        max_records=options.max_records_per_partition,
    )
    needed = -(-sum(piece.offsets for piece in pieces) // options.max_records_per_partition)
    most = max(options.min_partitions, options.max_partitions, needed)
    return [QueuePartition(shared) for shared in gather(pieces, most)]


def read(
    partition: InputPartition, options: ReadOptions, columns: Sequence[Column]
) -> Iterator[Any]:
    """Yield the messages of a task as Arrow batches.

    Spark passes an empty partition of its own for a query without tasks; it yields nothing.
    """
    check_interpreter()
    from spark_connector.decode.decoder import Decoder  # noqa: PLC0415 - after the check
    from spark_connector.decode.model import DecodeSettings  # noqa: PLC0415
    from spark_connector.source.pull import RangeReader  # noqa: PLC0415

    if not isinstance(partition, QueuePartition):
        return
    for part in partition.ranges:
        settings = DecodeSettings(
            tuple(columns),
            part.broker_name,
            verify_crc=options.verify_crc,
            decompress=options.decompress,
            on_decode_error=options.on_decode_error,
        )
        yield from RangeReader(part, options, Decoder(settings)).batches()

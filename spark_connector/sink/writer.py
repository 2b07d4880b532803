"""The batch and the streaming writer: created on the driver, pickled, and run in tasks.

A write is at least once: a task or micro-batch that Spark repeats sends its rows again, and
messages sent before a failure stay. Readers recognise duplicates by unique keys. Keys by position
are derived from an id of the run, so they are the same at each repetition. For a stream this id is
its query and micro-batch; for a batch write it is random, created on the driver and shared by all
attempts of its tasks.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from remoting.runtime.log import Log
from spark_connector.connections import Lease
from spark_connector.errors import ConnectorError, OptionError
from spark_connector.requests import Calls, NameServerCalls
from spark_connector.sink.columns import choose, writable
from spark_connector.sink.dispatcher import Counts, ParcelDispatcher
from spark_connector.sink.encoder import Encoder, Recipe
from spark_connector.sink.options import Partitioner, SinkOptions, UniqKey, sink_options
from spark_connector.sink.placing import deciding_columns
from spark_connector.sink.routes import WriteRoutes
from spark_connector.sink.unique_keys import ColumnKeys, PositionKeys, UniqueKeys, random_keys
from spark_connector.spark import STREAM_SINKS, DataSourceStreamArrowWriter, require

_log = Log("spark")

_QUERY_PROPERTY = "sql.streaming.queryId"
_BATCH_PROPERTY = "streaming.sql.batchId"


@dataclass(frozen=True, slots=True)
class SinkPlan:
    """A write as checked by the driver; pickled for the tasks.

    Attributes:
        options: the options of the write.
        chosen: the column names, as returned by ``columns.choose``.
        deciding: the columns that determine the queue.
        uniq_key: how unique keys are created.
        into_table: whether the options are those of a table, see ``tables``.
    """

    options: SinkOptions
    chosen: Mapping[str, str]
    deciding: tuple[str, ...]
    uniq_key: UniqKey
    into_table: bool = False

    @classmethod
    def of(cls, options: SinkOptions, fields: list[tuple[str, str]]) -> SinkPlan:
        """Return the plan for writing a data frame.

        Args:
            options: the options of the write.
            fields: name and type (``simpleString``) of each column of the data frame.

        Raises:
            OptionError: the data frame and the options don't match.
        """
        keep_place = options.partitioner is Partitioner.COLUMN
        chosen = choose(writable(fields, keep_place=keep_place))
        if options.topic is None and "topic" not in chosen:
            raise OptionError(
                "a write needs a topic for its rows", "give the option topic, or a column topic"
            )
        partitioner = options.partitioner.value if options.partitioner else None
        deciding = deciding_columns(partitioner, tuple(chosen))
        return cls(options, chosen, tuple(deciding), _uniq_key(options, chosen))

    def unique_keys(self, run: str, partition: int) -> UniqueKeys:
        """Return the function that creates a task's unique keys."""
        if self.uniq_key is UniqKey.RANDOM:
            return random_keys
        by_position = PositionKeys(run, partition)
        return ColumnKeys(by_position) if self.uniq_key is UniqKey.COLUMN else by_position


def _uniq_key(options: SinkOptions, chosen: Mapping[str, str]) -> UniqKey:
    has_column = "uniqKey" in chosen
    kind = options.uniq_key or (UniqKey.COLUMN if has_column else UniqKey.POSITION)
    if kind is UniqKey.COLUMN and not has_column:
        raise OptionError("uniqKey=column needs the column uniqKey", "add it to the frame")
    if kind is not UniqKey.COLUMN and has_column:
        raise OptionError(
            f"uniqKey={kind} does not use the column uniqKey",
            "drop the column, or write uniqKey=column",
        )
    return kind


def write_rows(
    plan: SinkPlan,
    batches: Iterator[Any],
    run: str,
    partition: int,
    *,
    lease: Lease | None = None,
) -> tuple[int, Counts]:
    """Send all rows of a task.

    Args:
        plan: the write.
        batches: Arrow record batches.
        run: the id of the run, see ``PositionKeys``.
        partition: the task's partition.
        lease: leases connections; by default from this process's cache.

    Returns:
        The number of rows, and the counters.

    Raises:
        ConnectorError: a row could not be sent; earlier ones may have been.
    """
    options = plan.options
    lease = lease or options.connection.lease()
    name_servers = NameServerCalls(Calls(options.connection, lease=lease))
    routes = WriteRoutes(name_servers, options.default_queues)
    recipe = Recipe(
        plan.chosen,
        options.topic,
        plan.deciding,
        plan.unique_keys(run, partition),
        options.delay_level,
        options.max_batch_bytes,
    )
    encoder = Encoder(recipe, routes.queues)
    dispatcher = ParcelDispatcher(options, routes, lease)
    try:
        for batch in batches:
            if plan.into_table:
                _check_no_topic(plan, batch)
            for parcel in encoder.encode(batch):
                dispatcher.send(parcel)
        dispatcher.flush()
    except BaseException as failure:
        dispatcher.close(failure)
        raise
    dispatcher.close()
    return encoder.rows, dispatcher.counts


def _check_no_topic(plan: SinkPlan, batch: Any) -> None:
    topics = batch.column(plan.chosen["topic"])
    if topics.null_count < len(topics):
        raise ConnectorError(
            f"rows to insert into a table have a topic, such as {topics.drop_null()[0]}: Spark may "
            "have passed the options of the table from which they were read",
            "list the columns without topic: INSERT INTO t (body, tags) SELECT body, tags FROM ...",
        )


@dataclass
class Written(WriterCommitMessage):
    """The result of one task: rows, which are stored (one-way: sent), and counters."""

    rows: int
    counts: Counts


class RocketMQWriter(DataSourceArrowWriter):
    """Writes one data frame.

    Args:
        plan: the write.
    """

    def __init__(self, plan: SinkPlan) -> None:
        self.plan = plan
        self._run = uuid.uuid4().hex

    def write(self, iterator: Iterator[Any]) -> Written:
        """Send a partition's rows; runs in a task."""
        return _write(self.plan, iterator, self._run)

    def commit(self, messages: list[Any]) -> None:
        """Log the totals after all tasks have succeeded; runs on the driver."""
        _report(self.plan, messages, {})

    def abort(self, messages: list[Any]) -> None:
        """Log that the write has failed after all retries of a task; runs on the driver."""
        _report_failure(self.plan, messages, {})


class RocketMQStreamWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a query.

    Args:
        plan: the write.
    """

    def __init__(self, plan: SinkPlan) -> None:
        self.plan = plan

    def write(self, iterator: Iterator[Any]) -> Written:
        """Send a partition's rows; runs in a task."""
        run = micro_batch(TaskContext.get())
        if run is None:
            run = uuid.uuid4().hex
            if self.plan.uniq_key is UniqKey.POSITION:
                _log.warning(
                    "Spark does not say which micro-batch this is, so its messages get new unique "
                    "keys each time it runs; use uniqKey=column",
                    topic=self.plan.options.topic,
                )
        return _write(self.plan, iterator, run)

    def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Log the totals after all tasks of a micro-batch have succeeded; runs on the driver."""
        _report(self.plan, messages, {"batch": batchId})

    def abort(self, messages: list[Any], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Log that a micro-batch has failed after all retries of a task; runs on the driver."""
        _report_failure(self.plan, messages, {"batch": batchId})


def batch_writer(
    given: Mapping[str, str], schema: Any, overwrite: bool, *, into_table: bool = False
) -> RocketMQWriter:
    """Return the writer for ``df.write`` and INSERT.

    Args:
        given: the options.
        schema: the schema of the rows.
        overwrite: whether the mode is ``overwrite``.
        into_table: whether the options are those of a table, see ``tables``.

    Raises:
        OptionError: options and schema are wrong or don't match, or the mode is ``overwrite``.
    """
    if overwrite:
        raise OptionError(
            "mode('overwrite') is not supported: messages of a topic can't be replaced",
            "write with mode('append')",
        )
    return RocketMQWriter(replace(_plan(given, schema), into_table=into_table))


def stream_writer(given: Mapping[str, str], schema: Any, overwrite: bool) -> RocketMQStreamWriter:
    """Return the writer for ``df.writeStream``.

    Raises:
        OptionError: options and schema are wrong or don't match, or the output mode is
            ``complete``. (Spark itself rejects the mode ``update`` for sinks in Python.)
    """
    if overwrite:
        raise OptionError(
            "outputMode('complete') is not supported: messages of a topic can't be replaced",
            "write with outputMode('append'); for changes as they come use outputMode('update') "
            "and df.write in foreachBatch",
        )
    require(STREAM_SINKS, "a stream sink", "write each micro-batch with df.write in foreachBatch")
    return RocketMQStreamWriter(_plan(given, schema))


def micro_batch(context: Any) -> str | None:
    """Return an id of the task's query and micro-batch that is the same in all repetitions.

    Spark passes neither to a sink's task; both are read from local properties that its streaming
    engine sets for its own use.

    Returns:
        The id, or None if the properties are missing.
    """
    if context is None:
        return None
    query = context.getLocalProperty(_QUERY_PROPERTY)
    batch = context.getLocalProperty(_BATCH_PROPERTY)
    return f"{query}/{batch}" if query and batch else None


def _plan(given: Mapping[str, str], schema: Any) -> SinkPlan:
    options: SinkOptions = sink_options(given)
    fields = [(field.name, field.dataType.simpleString()) for field in schema.fields]
    plan = SinkPlan.of(options, fields)
    left_out = [name for name, _ in fields if name not in plan.chosen.values()]
    if left_out:
        _log.info("columns of messages that were read are not written", columns=left_out)
    return plan


def _write(plan: SinkPlan, iterator: Iterator[Any], run: str) -> Written:
    context = TaskContext.get()
    rows, counts = write_rows(plan, iterator, run, context.partitionId() if context else 0)
    return Written(rows, counts)


def _report(plan: SinkPlan, messages: list[Any], facts: dict[str, Any]) -> None:
    done = [message for message in messages if isinstance(message, Written)]
    facts = {
        "topic": plan.options.topic or "by column",
        **facts,
        "rows": sum(message.rows for message in done),
        "bytes": sum(message.counts.bytes for message in done),
        "requests": sum(message.counts.requests for message in done),
        "retries": sum(message.counts.retries for message in done),
    }
    unconfirmed = sum(message.counts.unconfirmed for message in done)
    if unconfirmed:
        _log.warning(
            "written, but the broker's disk or slave was too slow to confirm some; check it",
            **facts,
            unconfirmed=unconfirmed,
        )
    else:
        _log.info("written", **facts)


def _report_failure(plan: SinkPlan, messages: list[Any], facts: dict[str, Any]) -> None:
    done = [message for message in messages if isinstance(message, Written)]
    _log.warning(
        "a write failed; what its tasks had sent stays in the topic, and will be there twice if "
        "it is repeated",
        topic=plan.options.topic or "by column",
        **facts,
        tasks_done=len(done),
        rows=sum(message.rows for message in done),
    )

"""The writers that Spark calls: checked on the driver, pickled, run in tasks, told how it went.

A write is at least once: a task or a micro-batch that Spark runs again sends its rows again, and
what was sent before a failure stays. By their unique keys readers recognise the repeats. Keys by
position name the run: of a stream that is its query and micro-batch, the same at each repetition;
of a batch write a random one made on the driver, the same for all attempts of its tasks.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from remoting.log import Log
from spark_connector.errors import OptionError
from spark_connector.sink.options import SinkOptions, UniqKey, sink_options
from spark_connector.sink.task import SinkPlan, write_rows

_log = Log("spark")

_QUERY_PROPERTY = "sql.streaming.queryId"
_BATCH_PROPERTY = "streaming.sql.batchId"


@dataclass
class Written(WriterCommitMessage):
    """What one task wrote.

    Attributes:
        partition, attempt: the task.
        rows: it was given; all of them are stored (one-way: sent).
        bytes, requests, retries, busy, unconfirmed: see ``dispatcher.Counts``.
    """

    partition: int
    attempt: int
    rows: int
    bytes: int
    requests: int
    retries: int
    busy: int
    unconfirmed: int


class RocketMQWriter(DataSourceArrowWriter):
    """Writes one frame.

    Args:
        plan: what to write and how.
    """

    def __init__(self, plan: SinkPlan) -> None:
        self._plan = plan
        self._run = uuid.uuid4().hex

    def write(self, iterator: Iterator[Any]) -> Written:
        """Send a partition's rows; runs in a task."""
        return _write(self._plan, iterator, self._run)

    def commit(self, messages: list[Any]) -> None:
        """All tasks are done; runs on the driver."""
        _report(self._plan, messages, {})

    def abort(self, messages: list[Any]) -> None:
        """Some task failed for good; runs on the driver."""
        _report_failure(self._plan, messages, {})


class RocketMQStreamWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a query.

    Args:
        plan: what to write and how.
    """

    def __init__(self, plan: SinkPlan) -> None:
        self._plan = plan

    def write(self, iterator: Iterator[Any]) -> Written:
        """Send a partition's rows; runs in a task."""
        run = micro_batch(TaskContext.get())
        if run is None:
            run = uuid.uuid4().hex
            if self._plan.uniq_key is UniqKey.POSITION:
                _log.warning(
                    "Spark does not say which micro-batch this is, so its messages get new unique "
                    "keys each time it runs; use uniqKey=column",
                    topic=self._plan.options.topic,
                )
        return _write(self._plan, iterator, run)

    def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803 - Spark's name
        """All tasks of a micro-batch are done; runs on the driver."""
        _report(self._plan, messages, {"batch": batchId})

    def abort(self, messages: list[Any], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Some task of a micro-batch failed for good; runs on the driver."""
        _report_failure(self._plan, messages, {"batch": batchId})


def batch_writer(given: Mapping[str, str], schema: Any, overwrite: bool) -> RocketMQWriter:
    """The writer of ``df.write``.

    Raises:
        OptionError: options and schema are wrong or don't fit, or the mode is ``overwrite``.
    """
    if overwrite:
        raise OptionError(
            "mode('overwrite') can't be served: messages of a topic can't be replaced",
            "write with mode('append')",
        )
    return RocketMQWriter(_plan(given, schema))


def stream_writer(given: Mapping[str, str], schema: Any, overwrite: bool) -> RocketMQStreamWriter:
    """The writer of ``df.writeStream``.

    Raises:
        OptionError: options and schema are wrong or don't fit, or the output mode is ``complete``.
            (Spark itself lets no sink in Python have the mode ``update``.)
    """
    if overwrite:
        raise OptionError(
            "outputMode('complete') can't be served: messages of a topic can't be replaced",
            "write with outputMode('append'); for changes as they come use outputMode('update') "
            "and df.write in foreachBatch",
        )
    return RocketMQStreamWriter(_plan(given, schema))


def micro_batch(context: Any) -> str | None:
    """Query and micro-batch of the task, the same whenever it is repeated; None: unknown.

    Spark gives a sink's task neither; both are in properties that its engine sets for itself.
    """
    if context is None:
        return None
    query = context.getLocalProperty(_QUERY_PROPERTY)
    batch = context.getLocalProperty(_BATCH_PROPERTY)
    return f"{query}/{batch}" if query and batch else None


def _plan(given: Mapping[str, str], schema: Any) -> SinkPlan:
    options: SinkOptions = sink_options(given)
    fields = [(field.name, field.dataType.simpleString()) for field in schema.fields]
    return SinkPlan.of(options, fields)


def _write(plan: SinkPlan, iterator: Iterator[Any], run: str) -> Written:
    context = TaskContext.get()
    partition = context.partitionId() if context else 0
    rows, counts = write_rows(plan, iterator, run, partition)
    return Written(
        partition,
        context.attemptNumber() if context else 0,
        rows,
        counts.bytes,
        counts.requests,
        counts.retries,
        counts.busy,
        counts.unconfirmed,
    )


def _report(plan: SinkPlan, messages: list[Any], facts: dict[str, Any]) -> None:
    done = [message for message in messages if isinstance(message, Written)]
    facts = {
        "topic": plan.options.topic or "by column",
        **facts,
        "rows": sum(message.rows for message in done),
        "bytes": sum(message.bytes for message in done),
        "requests": sum(message.requests for message in done),
        "retries": sum(message.retries for message in done),
    }
    unconfirmed = sum(message.unconfirmed for message in done)
    if unconfirmed:
        _log.warning(
            "written, but the broker's disk or slave was too slow to confirm some; look at it",
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

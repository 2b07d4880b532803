"""The interface between Spark and the writer, without a JVM."""

from __future__ import annotations

import logging
import pickle
from typing import Any

import pytest
from pyspark.sql.types import StructType

from spark_connector.errors import OptionError
from spark_connector.sink.dispatcher import Counts
from spark_connector.sink.writer import Written, batch_writer, micro_batch, stream_writer

OPTIONS = {"nameServer": "127.0.0.1:1", "topic": "flights"}
SCHEMA = StructType().add("body", "binary")


class Context:
    """The part of a task's context that is used."""

    def __init__(self, **properties: str) -> None:
        self._properties = properties

    def getLocalProperty(self, name: str) -> str | None:  # noqa: N802 - Spark's name
        return self._properties.get(name)


def written(**more: Any) -> Written:
    return Written(rows=5, counts=Counts(bytes=10, requests=1, **more))


def test_a_task_of_a_stream_knows_its_query_and_micro_batch() -> None:
    known = {"sql.streaming.queryId": "q", "streaming.sql.batchId": "7"}
    assert micro_batch(Context(**known)) == "q/7"
    assert micro_batch(Context()) is None
    assert micro_batch(None) is None


def test_a_stream_whose_micro_batch_is_unknown_warns_that_keys_do_not_repeat(
    caplog: pytest.LogCaptureFixture,
) -> None:
    result = stream_writer(OPTIONS, SCHEMA, False).write(iter(()))
    assert (result.rows, result.counts.requests) == (0, 0)
    assert "use uniqKey=column" in caplog.text


def test_a_task_without_rows_sends_no_request() -> None:
    assert batch_writer(OPTIONS, SCHEMA, False).write(iter(())).rows == 0


def test_writers_and_their_results_survive_pickling() -> None:
    for writer in (batch_writer(OPTIONS, SCHEMA, False), stream_writer(OPTIONS, SCHEMA, False)):
        assert pickle.loads(pickle.dumps(writer)).plan == writer.plan
    assert pickle.loads(pickle.dumps(written())) == written()


def test_messages_cannot_be_replaced() -> None:
    with pytest.raises(OptionError, match=r"mode\('overwrite'\) is not supported"):
        batch_writer(OPTIONS, SCHEMA, True)
    with pytest.raises(OptionError, match=r"outputMode\('complete'\) is not supported"):
        stream_writer(OPTIONS, SCHEMA, True)


def test_the_driver_logs_what_was_written(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    batch_writer(OPTIONS, SCHEMA, False).commit([written(), None, written(retries=2)])
    assert "written: topic=flights rows=10 bytes=20 requests=2 retries=2" in caplog.text


def test_the_driver_warns_of_a_disk_that_did_not_confirm(caplog: pytest.LogCaptureFixture) -> None:
    stream_writer(OPTIONS, SCHEMA, False).commit([written(unconfirmed=3)], 7)
    assert "too slow to confirm some" in caplog.text
    assert "batch=7" in caplog.text


def test_the_driver_warns_that_a_failed_write_leaves_rows(caplog: pytest.LogCaptureFixture) -> None:
    batch_writer(OPTIONS, SCHEMA, False).abort([written()])
    stream_writer(OPTIONS, SCHEMA, False).abort([], 7)
    assert "tasks_done=1 rows=5" in caplog.text
    assert "batch=7 tasks_done=0 rows=0" in caplog.text

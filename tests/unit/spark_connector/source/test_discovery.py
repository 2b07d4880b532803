"""What Spark discovers, and when: the shim, the data source, the planner of filters."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from spark_connector.errors import ConnectorError, OptionError
from spark_connector.source.batch import PushDownReader, RocketMQBatchReader
from spark_connector.source.data_source import RocketMQDataSource
from spark_connector.source.pushdown import PLANNER, offered
from spark_connector.spark import check_interpreter

OPTIONS = {"nameserver": "127.0.0.1:9", "topic": "t"}
BODY = StructType([StructField("body", BinaryType())])
HEAVY = {"pyspark", "pyarrow", "numpy", "client", "remoting", "spark_connector"}


def source(**options: str) -> RocketMQDataSource:
    return RocketMQDataSource(OPTIONS | options)


def test_discovering_sources_imports_nothing_heavy():
    script = "import sys, pyspark_rocketmq; print(*{m.split('.')[0] for m in sys.modules})"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert not HEAVY & set(done.stdout.split())


def test_the_format_is_found_by_its_module():
    shim = importlib.import_module("pyspark_rocketmq")
    assert shim.DefaultSource is RocketMQDataSource
    assert shim.DefaultSource.name() == "rocketmq"
    assert not hasattr(shim, "AnythingElse")


def test_a_failed_import_is_reported_when_the_format_is_used(monkeypatch: pytest.MonkeyPatch):
    shim = importlib.import_module("pyspark_rocketmq")
    monkeypatch.setitem(sys.modules, "spark_connector.source.data_source", None)
    unusable = shim.DefaultSource
    assert unusable.name() == "rocketmq"
    with pytest.raises(
        ImportError,
        match=r"format rocketmq can't be used with PySpark [0-9.]+: .* halted.*; install",
    ):
        unusable({}).schema()


def test_making_readers_opens_no_connection():
    assert source().schema().startswith("topic string, brokerName string")
    assert type(source().reader(BODY)) is RocketMQBatchReader
    source().streamReader(BODY).stop()


def test_columns_follow_options():
    assert "properties" not in source(includeproperties="false").schema()
    assert source(kafkanames="true").schema().startswith("key binary, value binary")
    assert "headers" not in source(kafkanames="true", includeheaders="false").schema()


def test_a_stream_has_no_ending():
    with pytest.raises(OptionError, match=r"endingTimestamp can't be given to a streaming query"):
        source(endingtimestamp="now").streamReader(BODY)


def test_stream_limits_are_logged_as_without_effect_in_a_batch(
    caplog: pytest.LogCaptureFixture,
):
    source(maxoffsetspertrigger="5").reader(BODY)
    assert "options have no effect in a batch query" in caplog.text
    assert "maxOffsetsPerTrigger" in caplog.text


@pytest.mark.parametrize(
    ("given", "kind"), [({"pushdown": "true"}, PushDownReader), ({}, RocketMQBatchReader)]
)
def test_filters_are_offered_by_the_planner_alone_and_taken_if_wanted(
    tmp_path: Path, given: dict[str, str], kind: type
):
    assert not offered()
    file = tmp_path / PLANNER
    code = compile("made = make()\noffer = offered()", str(file), "exec")
    names: dict[str, Any] = {"make": lambda: source(**given).reader(BODY), "offered": offered}
    exec(code, names)
    assert names["offer"]
    assert type(names["made"]) is kind


def test_this_spark_has_the_filter_planner():
    from pyspark.sql.worker import data_source_pushdown_filters

    assert Path(data_source_pushdown_filters.__file__).name == PLANNER


def test_a_python_without_a_needed_module_is_reported(monkeypatch: pytest.MonkeyPatch):
    check_interpreter()
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConnectorError, match=r"has no usable pyarrow.*PYSPARK_PYTHON"):
        check_interpreter()

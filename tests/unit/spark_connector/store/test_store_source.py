"""The entry point through which Spark loads the source."""

from __future__ import annotations

import subprocess
import sys

import pytest
from pyspark.sql.types import StructType

import pyspark_rocketmq_store
from spark_connector.errors import ConnectorError, OptionError
from spark_connector.schema import STORE_COLUMNS
from spark_connector.store.data_source import RocketMQStoreDataSource, StoreScanReader

HEAVY = ("numpy", "pyarrow", "pyspark", "client", "spark_connector")


def source(**options: str) -> RocketMQStoreDataSource:
    return RocketMQStoreDataSource({"path": "/store"} | options)


def test_spark_finds_the_source_by_a_module_that_imports_nothing() -> None:
    assert pyspark_rocketmq_store.DefaultSource is RocketMQStoreDataSource
    assert RocketMQStoreDataSource.name() == "rocketmq.store"
    assert not hasattr(pyspark_rocketmq_store, "Other")
    code = f"import sys, pyspark_rocketmq_store; print([m for m in {HEAVY} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_missing_package_is_reported_when_the_format_is_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "spark_connector.store.data_source", None)
    found = pyspark_rocketmq_store.DefaultSource
    assert found.name() == "rocketmq.store"
    with pytest.raises(ImportError, match=r"install pocketmq\[spark\]"):
        found({}).schema()
    monkeypatch.setitem(sys.modules, "pyspark.sql.datasource", None)
    assert not hasattr(pyspark_rocketmq_store, "DefaultSource")


def test_wrong_options_are_reported_first() -> None:
    with pytest.raises(OptionError, match="did you mean 'scan'"):
        source(scam="log").schema()


def test_a_schema_selects_columns() -> None:
    reader = source().reader(StructType().add("file", "string").add("body", "binary"))
    assert isinstance(reader, StoreScanReader)
    assert reader.columns == (STORE_COLUMNS["file"], STORE_COLUMNS["body"])
    with pytest.raises(OptionError, match="perhaps 'file' is meant"):
        source().reader(StructType().add("fle", "string"))


def test_streaming_and_writing_are_refused() -> None:
    with pytest.raises(ConnectorError, match="to follow topics use format"):
        source().streamReader(schema=StructType())
    with pytest.raises(ConnectorError, match="to write to topics use format"):
        source().writer(StructType(), False)
    with pytest.raises(ConnectorError, match="to write to topics use format"):
        source().streamWriter(StructType(), False)

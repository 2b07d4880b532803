"""Makes ``format("rocketmq.store")`` known to Spark, like ``pyspark_rocketmq``."""

from __future__ import annotations

from typing import Any

from pyspark_rocketmq import unusable


def __getattr__(name: str) -> Any:
    """Return the data source for ``DefaultSource``."""
    if name != "DefaultSource":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from spark_connector.store.data_source import RocketMQStoreDataSource  # noqa: PLC0415
    except ImportError as error:
        return unusable("rocketmq.store", error, "install pocketmq[spark]")
    return RocketMQStoreDataSource

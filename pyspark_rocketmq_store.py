"""Lets Spark find ``format("rocketmq.store")``: it looks for ``DefaultSource`` in ``pyspark_*``.

Spark imports all such modules at once, and one that fails to import hides the sources of all. So
nothing is imported here before Spark asks for the class, and nothing ever raises: what can't be
imported is said when the format is used.
"""

from __future__ import annotations

from typing import Any

from pyspark_rocketmq import unusable


def __getattr__(name: str) -> Any:
    """The data source, when Spark asks for it."""
    if name != "DefaultSource":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from spark_connector.store.data_source import RocketMQStoreDataSource  # noqa: PLC0415
    except ImportError as error:
        return unusable("rocketmq.store", error, "install pocketmq[spark]")
    return RocketMQStoreDataSource

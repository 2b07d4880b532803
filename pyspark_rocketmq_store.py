"""Spark finds ``format("rocketmq.store")`` by this module's name.

It imports every ``pyspark_*`` module, and one that fails hides the sources of all others. So what
the source is made of is imported when it is asked for, and what is missing then is no error here.
"""

from __future__ import annotations


def __getattr__(name: str) -> type:
    """``DefaultSource``, the class that Spark looks for."""
    if name == "DefaultSource":
        try:
            from spark_connector.store.data_source import RocketMQStoreDataSource  # noqa: PLC0415
        except ImportError as error:
            raise AttributeError(f"rocketmq.store can't be loaded: {error}") from error
        return RocketMQStoreDataSource
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

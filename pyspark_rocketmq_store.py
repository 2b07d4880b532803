"""Lets Spark find ``format("rocketmq.store")``: it looks for ``DefaultSource`` in ``pyspark_*``.

Spark imports all such modules at once, and one that fails to import hides the sources of all. So
nothing is imported here before Spark asks for the class, and nothing ever raises: what can't be
imported is said when the format is used.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    """The data source, when Spark asks for it."""
    if name != "DefaultSource":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from spark_connector.store.data_source import RocketMQStoreDataSource  # noqa: PLC0415
    except ImportError as error:
        return _missing(error)
    return RocketMQStoreDataSource


def _missing(error: ImportError) -> Any:
    """A source that says why the real one can't be imported."""
    try:
        from pyspark.sql.datasource import DataSource  # noqa: PLC0415
    except ImportError:
        raise AttributeError(f"module {__name__!r} needs pyspark 4.2 or later: {error}") from error
    reason = f"format rocketmq.store can't be used: {error}; install pocketmq[spark]"

    class Unusable(DataSource):
        """Stands in for the source."""

        @classmethod
        def name(cls) -> str:
            return "rocketmq.store"

        def schema(self) -> str:
            raise ImportError(reason)

    return Unusable

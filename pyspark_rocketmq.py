"""Lets Spark find ``format("rocketmq")``: it looks for ``DefaultSource`` in modules ``pyspark_*``.

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
        from spark_connector.source.data_source import RocketMQDataSource  # noqa: PLC0415
    except ImportError as error:
        return unusable("rocketmq", error, "install pocketmq[spark] with pyspark>=4.2")
    return RocketMQDataSource


def unusable(format_name: str, error: ImportError, hint: str) -> Any:
    """A source that says why the real one can't be imported."""
    try:
        from pyspark.sql.datasource import DataSource  # noqa: PLC0415
    except ImportError:
        raise AttributeError(f"module {__name__!r} needs pyspark 4.2 or later: {error}") from error

    reason = f"format {format_name} can't be used: {error}; {hint}"

    class Unusable(DataSource):
        """Stands in for the source."""

        @classmethod
        def name(cls) -> str:
            return format_name

        def schema(self) -> str:
            raise ImportError(reason)

    return Unusable

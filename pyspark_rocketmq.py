"""Makes ``format("rocketmq")`` known to Spark.

Spark searches modules ``pyspark_*`` for a ``DefaultSource``. It imports all of them at once, and
one failed import hides the sources of all. So nothing is imported here before Spark requests the
class, and a failed import is reported only when the format is used.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    """Return the data source for ``DefaultSource``."""
    if name != "DefaultSource":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from spark_connector.source.data_source import RocketMQDataSource  # noqa: PLC0415
    except ImportError as error:
        return unusable("rocketmq", error, "install pocketmq[spark]")
    return RocketMQDataSource


def unusable(format_name: str, error: ImportError, hint: str) -> Any:
    """Return a data source that raises ImportError when it is used.

    Args:
        format_name: the name of the format.
        error: why the real source can't be imported.
        hint: what to do about it.
    """
    try:
        import pyspark  # noqa: PLC0415
        from pyspark.sql.datasource import DataSource  # noqa: PLC0415
    except ImportError:
        raise AttributeError(f"module {__name__!r} needs PySpark 4.0 or later: {error}") from error

    reason = (
        f"format {format_name} can't be used with PySpark {pyspark.__version__}: {error}; {hint}"
    )

    class Unusable(DataSource):
        """Stands in for the source."""

        @classmethod
        def name(cls) -> str:
            return format_name

        def schema(self) -> str:
            raise ImportError(reason)

    return Unusable

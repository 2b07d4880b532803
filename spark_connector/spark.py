"""Names of PySpark that not all supported releases have, with stand-ins for those that lack them.

PySpark 4.0 has no filters and no stream sink that takes Arrow batches; 4.0 and 4.1 have no limits
of streams. A release never uses the stand-ins for what it lacks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pyspark

from spark_connector.errors import OptionError

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceStreamArrowWriter,
        EqualNullSafe,
        EqualTo,
        Filter,
        GreaterThan,
        GreaterThanOrEqual,
        In,
        IsNotNull,
        LessThan,
        LessThanOrEqual,
    )
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
else:
    from pyspark.sql import datasource

    try:
        from pyspark.sql.streaming import datasource as limits
    except ImportError:
        limits = None

    def _named(module: Any, name: str) -> type:
        return getattr(module, name, None) or type(name, (), {})

    DataSourceStreamArrowWriter = _named(datasource, "DataSourceStreamArrowWriter")
    EqualNullSafe = _named(datasource, "EqualNullSafe")
    EqualTo = _named(datasource, "EqualTo")
    Filter = _named(datasource, "Filter")
    GreaterThan = _named(datasource, "GreaterThan")
    GreaterThanOrEqual = _named(datasource, "GreaterThanOrEqual")
    In = _named(datasource, "In")
    IsNotNull = _named(datasource, "IsNotNull")
    LessThan = _named(datasource, "LessThan")
    LessThanOrEqual = _named(datasource, "LessThanOrEqual")
    ReadAllAvailable = _named(limits, "ReadAllAvailable")
    ReadLimit = _named(limits, "ReadLimit")
    ReadMaxRows = _named(limits, "ReadMaxRows")
    SupportsTriggerAvailableNow = _named(limits, "SupportsTriggerAvailableNow")

__all__ = [
    "DataSourceStreamArrowWriter",
    "EqualNullSafe",
    "EqualTo",
    "Filter",
    "GreaterThan",
    "GreaterThanOrEqual",
    "In",
    "IsNotNull",
    "LessThan",
    "LessThanOrEqual",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxRows",
    "SupportsTriggerAvailableNow",
    "require",
]

VERSION: Final = tuple(int(part) for part in pyspark.__version__.split(".")[:2])
"""Major and minor version of the PySpark in use."""

LIMITS: Final = (4, 2)
"""The first version whose streams have limits."""

STREAM_SINKS: Final = (4, 1)
"""The first version whose stream sinks take Arrow batches."""


def require(version: tuple[int, int], what: str, hint: str) -> None:
    """Raise OptionError if this Spark is older than ``version``.

    Args:
        version: the first one that has ``what``.
        what: the subject of the error's sentence.
        hint: what to do without a newer Spark.
    """
    if version > VERSION:
        needed = ".".join(map(str, version))
        raise OptionError(f"{what} needs Spark {needed}; this is {pyspark.__version__}", hint)

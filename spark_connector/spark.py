"""What Spark and its Python workers have: names of PySpark, and packages.

PySpark 4.0 has no filters and no stream sink that takes Arrow batches; 4.0 and 4.1 have no limits
of streams. Names that a release lacks have stand-ins, which it never uses.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any, Final

import pyspark

from spark_connector.errors import ConnectorError, OptionError

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
    "check_interpreter",
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


NEEDED: Final = ("numpy", "pyarrow")
"""Modules that driver and executors need."""


def check_interpreter() -> None:
    """Raise ConnectorError if this interpreter lacks a package needed for reading and writing.

    Spark starts its workers with ``PYSPARK_PYTHON`` or the first ``python3`` of the ``PATH``, which
    may differ from the driver's interpreter.
    """
    for module in NEEDED:
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise ConnectorError(
                f"the Python of Spark's workers, {sys.executable}, has no usable {module}: {error}",
                "install pocketmq[spark] there, or set PYSPARK_PYTHON to a Python that has it",
            ) from error

"""Checks that the Python interpreter of Spark's workers has the required packages.

Spark starts its workers with ``PYSPARK_PYTHON`` or the first ``python3`` of the ``PATH``, which may
differ from the driver's interpreter.
"""

from __future__ import annotations

import importlib
import sys
from typing import Final

from spark_connector.errors import ConnectorError

NEEDED: Final = ("numpy", "pyarrow")
"""Modules that driver and executors need."""


def check_interpreter() -> None:
    """Raise ConnectorError if this interpreter lacks a package needed for reading and writing."""
    for module in NEEDED:
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise ConnectorError(
                f"the Python of Spark's workers, {sys.executable}, has no usable {module}: {error}",
                "install pocketmq[spark] there, or set PYSPARK_PYTHON to a Python that has it",
            ) from error

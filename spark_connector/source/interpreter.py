"""Whether the Python that Spark runs us with has what we need.

Spark starts its workers with ``PYSPARK_PYTHON`` or the first ``python3`` there is, not with the
driver's Python; on other machines it may be another one altogether.
"""

from __future__ import annotations

import importlib
import sys
from typing import Final

from spark_connector.errors import ConnectorError

NEEDED: Final = ("numpy", "pyarrow")
"""Modules that driver and executors need."""


def check_interpreter() -> None:
    """Raises ConnectorError when this Python lacks what reading and writing need."""
    for module in NEEDED:
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise ConnectorError(
                f"the Python of Spark's workers, {sys.executable}, has no usable {module}: {error}",
                "install pocketmq[spark] there, or set PYSPARK_PYTHON to a Python that has it",
            ) from error

"""Records as they are stored and pulled, turned into Arrow batches for Spark; no Spark in it."""

from spark_connector.decode.decoder import Decoder
from spark_connector.decode.layout import walk
from spark_connector.decode.model import (
    MAX_BATCH_BYTES,
    MAX_BATCH_ROWS,
    BatchTooLargeError,
    DecodedBatch,
    Starts,
)

__all__ = [
    "MAX_BATCH_BYTES",
    "MAX_BATCH_ROWS",
    "BatchTooLargeError",
    "DecodedBatch",
    "Decoder",
    "Starts",
    "walk",
]

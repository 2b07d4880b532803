"""Decoding of stored or pulled records to Arrow batches; independent of Spark."""

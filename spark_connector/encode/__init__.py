"""From Arrow batches to the bodies of sends. No I/O, no Spark."""

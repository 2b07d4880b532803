"""Records as they are stored and pulled, turned into Arrow batches for Spark; no Spark in it."""

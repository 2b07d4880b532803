"""Processes that serve: start, stop, workers, probes and metrics."""

"""Checking and repairing a store."""

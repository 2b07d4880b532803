"""Copying a store while its broker runs."""

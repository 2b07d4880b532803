"""Receiving messages."""

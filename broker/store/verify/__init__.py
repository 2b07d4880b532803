"""Checking a store's directory, and building anew what can be built from its log."""

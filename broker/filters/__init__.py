"""Filters by property: SQL92 expressions, and which consumer group filters by which. Pure."""

"""Deleting old messages: by age and hour, and when the disk runs full."""

"""What every process needs around its connections: clock, log, settings, tasks, durable files."""

from typing import Final

DOCS: Final = "https://github.com/pocketmq/pocketmq/blob/main/docs/"
"""The address of the documentation, which logs, errors and reports refer to, with a slash."""

"""The address of the documentation, which logs, errors and reports refer to."""

from __future__ import annotations

from typing import Final

DOCS: Final = "https://github.com/pocketmq/pocketmq/blob/main/docs/"
"""The project's ``Documentation`` address, with a slash."""

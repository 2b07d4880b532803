"""Where the documentation is: logs, errors and reports name its pages."""

from __future__ import annotations

from typing import Final

DOCS: Final = "https://github.com/pocketmq/pocketmq/blob/main/docs/"
"""The project's ``Documentation`` address, with a slash."""

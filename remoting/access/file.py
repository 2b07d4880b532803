"""The file of accounts: read, watched and changed.

Other programs may change the file at any time. ``refresh`` reads it when its size, time or inode
has changed; a file that can't be used leaves the rules as they are, and is reported once.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from remoting.access.accounts import MAX_BYTES, AclError, Rules, dump, items, load, rules_of
from remoting.protocol.command import natural
from remoting.runtime import durable_file
from remoting.runtime.log import Log
from remoting.security.credentials import open_to_others

WATCH_SECONDS: Final = 0.5
"""The interval of ``refresh``: a change has effect within a second."""

_PRIVATE: Final = 0o600
_log = Log("access")


class AclFile:
    """The rules of a ``plain_acl.yml``. Its methods except ``watch`` read the disk: use a thread.

    Attributes:
        path: the file.
        rules: the rules of the last version that could be used.
        content: that version's content, with keys that PocketMQ doesn't know.
        problem: why the current version can't be used; empty if it is in use.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rules = Rules()
        self.content: dict[str, Any] = {}
        self.problem = ""
        self._stamp: tuple[int, ...] = ()
        # Edits and the watch run in different threads.
        self._lock = threading.Lock()

    def open(self) -> None:
        """Read the file for the first time.

        Raises:
            AclError: it is missing, can't be read, or its rules can't be used.
        """
        self.refresh()
        if self.problem:
            raise AclError(f"{self.path}: {self.problem}")

    def refresh(self) -> bool:
        """Read the file if it has changed; return whether the rules were replaced."""
        with self._lock:
            try:
                status = self.path.stat()
                stamp = (status.st_ino, status.st_size, status.st_mtime_ns, status.st_mode)
                if stamp == self._stamp:
                    return False
                self._stamp = stamp
                with self.path.open("rb") as stream:
                    content = load(stream.read(MAX_BYTES + 1))
                rules = rules_of(content)
            except (AclError, OSError) as error:
                problem = str(error) if isinstance(error, AclError) else str(error.strerror)
                if isinstance(error, OSError):
                    self._stamp = ()
                if problem != self.problem:
                    _log.error(
                        "the accounts can't be used; the rules before stay in effect",
                        file=str(self.path),
                        reason=problem,
                    )
                self.problem = problem
                return False
            if open_to_others(status, os.geteuid()):
                _log.warning(
                    "others may open the file of accounts, which has their secrets: chmod 600",
                    file=str(self.path),
                )
            if self.problem or self.content:
                _log.info("accounts read", file=str(self.path), accounts=len(rules.accounts))
            self.rules, self.content, self.problem = rules, content, ""
            return True

    async def watch(self, on_change: Callable[[], None] | None = None) -> None:
        """Refresh the rules until cancelled; call ``on_change`` when they have been replaced."""
        rules = self.rules
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            await asyncio.to_thread(self.refresh)
            if self.rules is not rules:
                rules = self.rules
                if on_change is not None:
                    on_change()

    def edit(self, change: Callable[[dict[str, Any]], None]) -> None:
        """Change the file's content, and replace the file atomically.

        Args:
            change: changes the content, and raises ``AclError`` to refuse.

        Raises:
            AclError: refused, or the new rules couldn't be used; nothing was changed.
            OSError: writing failed.
        """
        self.refresh()
        with self._lock:
            if self.problem:
                raise AclError(f"the file of accounts can't be used: {self.problem}")
            content = load(dump(self.content))
            change(content)
            versions = [one for one in items(content, "dataVersion") if isinstance(one, dict)]
            before = str(versions[0].get("counter", "0")) if versions else "0"
            counter = natural(before, 0) + 1
            now_ms = time.time_ns() // 1_000_000
            content["dataVersion"] = [{"counter": str(counter), "timestamp": str(now_ms)}]
            data = dump(content)
            rules = rules_of(load(data))
            # The new file has the permissions of the old one from the first byte on.
            mode = self.path.stat().st_mode & 0o777
            fresh = self.path.with_name(self.path.name + ".tmp")
            fresh.unlink(missing_ok=True)
            os.close(os.open(fresh, os.O_CREAT | os.O_EXCL | os.O_WRONLY, _PRIVATE))
            fresh.chmod(mode)
            durable_file.replace(self.path, data, backup=False)
            self.rules, self.content = rules, content

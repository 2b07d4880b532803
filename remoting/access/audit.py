"""The audit log: administrative changes and denied requests, as JSON lines.

Lines go into a bounded queue, which a thread of the standard library's ``QueueListener`` empties
into a rotating file: no request waits for the disk. When the queue is full, or the disk refuses a
line, the line is lost; losses are counted and logged. Denials, which strangers can cause, have a
rate limit; the next line tells how many were left out.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from collections.abc import Awaitable, Collection, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from io import TextIOWrapper
from logging import LogRecord, makeLogRecord
from logging.handlers import QueueListener, RotatingFileHandler
from pathlib import Path
from queue import Full, Queue
from threading import Thread
from typing import TYPE_CHECKING, Any, Final, Self

from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.own_codes import OwnRequestCode
from remoting.protocol.signing import ACCESS_KEY, SIGNATURE
from remoting.runtime import settings
from remoting.runtime.clock import Clock
from remoting.runtime.log import Log, RateLimitedLog

if TYPE_CHECKING:
    from remoting.access.guard import Guard
    from remoting.connection import Connection
    from remoting.endpoint import Handler

AUTO: Final = "auto"
OFF: Final = "off"

MAX_FILE_BYTES: Final = 16 * 1024 * 1024
"""Size at which a file is rotated: some 50,000 lines."""

OLD_FILES: Final = 7
"""Rotated files that are kept: with the current one, 128 MiB at most."""

MAX_WAITING: Final = 4096
"""Lines that wait for the disk, about 4 MB; denials alone fill it in 200 s."""

STOP_SECONDS: Final = 5.0
"""How long a stop waits for a disk that doesn't respond."""

MAX_TEXT: Final = 256
"""Characters of a field; the names of topics and groups have at most 255."""

MAX_FIELDS: Final = 32
"""Fields of a request; no administrative request has more than 20."""

MAX_BODY: Final = 2048
"""Characters of a body: settings, or the configuration of topics and groups."""

_PRIVATE: Final = 0o600

# Names of keys and fields with secrets, and of the key-value table's values, which may be anything.
_SECRET: Final = re.compile(r"secret|password|token|^value$", re.IGNORECASE)
_SECRET_IN_TEXT: Final = re.compile(
    r"""((?:secret|password|token)[^\s=:"]*"?\s*[=:]\s*)"""
    r"""("(?:\\.|[^"\\])*"?|(?:\\[\s\S]|[^\n\\])*)""",
    re.IGNORECASE,
)
_log = Log("access")


class AuditLog:
    """An audit log that is open; use it on the event loop's thread.

    Args:
        file: the file, opened.
        name: the server's name in each line.
        clock: the time of the lines, and of the limit of denials.
        max_waiting: lines that may wait for the disk.
    """

    def __init__(
        self, file: AuditFile, name: str, clock: Clock, *, max_waiting: int = MAX_WAITING
    ) -> None:
        self._file = file
        self._name = name
        self._clock = clock
        self._queue: Queue[LogRecord] = Queue(max_waiting)
        self._refused = 0
        self._denials = RateLimitedLog(clock, self._write)
        self._full = RateLimitedLog(clock, _log.error, interval=60, burst=1)
        self._listener = QueueListener(self._queue, file)
        self._listener.start()

    @classmethod
    async def open(cls, path: Path, name: str, clock: Clock) -> Self:
        """Open a server's audit log.

        Raises:
            ConfigError: the file can't be written.
        """
        try:
            return cls(await asyncio.to_thread(AuditFile, path, clock), name, clock)
        except OSError as error:
            raise settings.ConfigError(
                f"the audit log {path} can't be written: {error.strerror}; set pocketmqAuditLog "
                "to another path, or to off"
            ) from None

    @property
    def lost(self) -> int:
        """Lines that were not written, since the start."""
        return self._refused + self._file.failed

    async def close(self) -> None:
        """Write the lines that wait, and close the file; give up after ``STOP_SECONDS``."""
        # Not a thread of an executor, for which the interpreter would wait at its exit.
        stopping = Thread(target=self._stop, daemon=True)
        stopping.start()
        await asyncio.to_thread(stopping.join, STOP_SECONDS)
        if stopping.is_alive():
            _log.error("the disk of the audit log doesn't respond", lost=self._queue.qsize())
            self._file.stream = None  # or ``logging.shutdown`` would flush it at exit

    def wrap(self, handler: Handler, audited: Collection[int], guard: Guard | None) -> Handler:
        """Return a handler that records the requests with these codes, and their results.

        Args:
            handler: handles all requests.
            audited: the codes.
            guard: has checked the requests; None: nobody has.
        """

        def recording(
            command: Command, connection: Connection
        ) -> Command | Awaitable[Command | None] | None:
            if command.code not in audited:
                return handler(command, connection)
            account = guard.account_of(command, connection) if guard is not None else None
            # Before the handler runs, for the body is a view of a buffer.
            facts = {**_origin(command, connection, account), **_contents(command)}
            with self._failures(facts):
                answer = handler(command, connection)
            if answer is None or isinstance(answer, Command):
                return self._answered(facts, answer)
            return self._later(facts, answer)

        return recording

    def denied(self, command: Command, connection: Connection, reason: str) -> None:
        """Record a denied request, whose access key is only what the request says."""
        key = command.fields.get(ACCESS_KEY) if command.values is None else None
        facts = _origin(command, connection, key)
        self._denials.write("denial", **facts, result="denied", text=reason)

    @contextmanager
    def _failures(self, facts: dict[str, Any]) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            self._changed(facts, "failed", str(error) or type(error).__name__)
            raise

    async def _later(
        self, facts: dict[str, Any], answer: Awaitable[Command | None]
    ) -> Command | None:
        with self._failures(facts):
            response = await answer
        return self._answered(facts, response)

    def _answered(self, facts: dict[str, Any], answer: Command | None) -> Command | None:
        if answer is None:
            self._changed(facts, "unknown", "the client asked for no answer")
        elif answer.code == ResponseCode.SUCCESS:
            self._changed(facts, "ok")
        else:
            self._changed(facts, _name(answer.code, ResponseCode), answer.remark or "")
        return answer

    def _changed(self, facts: dict[str, Any], result: str, text: str = "") -> None:
        self._write("change", **facts, result=result, **({"text": text[:MAX_BODY]} if text else {}))

    def _write(self, event: str, **facts: Any) -> None:
        time = datetime.fromtimestamp(self._clock.now_ms() / 1000, UTC)
        stamp = time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line = {"time": stamp, "server": self._name, "event": event, **facts}
        if not line.get("unreported"):
            line.pop("unreported", None)
        try:
            self._queue.put_nowait(makeLogRecord({"msg": json.dumps(line)}))
        except Full:
            self._refused += 1
            self._full.write(
                "too many lines of the audit log wait for the disk; lines are lost",
                file=str(self._file.path),
                lost=self.lost,
            )

    def _stop(self) -> None:
        # The listener takes its stop from the queue, which may be full.
        self._queue.join()
        self._listener.stop()
        self._file.close()


class AuditFile(RotatingFileHandler):
    """The file of an audit log: private, and opened for each line.

    Attributes:
        path: the file's path.
        failed: lines that could not be written.
    """

    def __init__(
        self,
        path: Path,
        clock: Clock,
        *,
        max_bytes: int = MAX_FILE_BYTES,
        old_files: int = OLD_FILES,
    ) -> None:
        """Open the file, and create its directory.

        Raises:
            OSError: that is not possible.
        """
        self.path = path
        self.failed = 0
        self._trouble = RateLimitedLog(clock, _log.error, interval=60, burst=1)
        path.parent.mkdir(parents=True, exist_ok=True)
        super().__init__(path, maxBytes=max_bytes, backupCount=old_files, encoding="utf-8")
        self._close_stream()

    def _open(self) -> TextIOWrapper:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        stream = os.fdopen(os.open(self.path, flags, _PRIVATE), "a", encoding="utf-8")
        if self.path.is_file():
            # A failed write, or a power cut, may have left a part of a line.
            with suppress(OSError), self.path.open("rb") as written:
                written.seek(-1, os.SEEK_END)
                if written.read() != b"\n":
                    stream.write("\n")
        return stream

    # One thread writes, so no lock is needed: ``logging.shutdown`` would wait for it at exit.

    def handle(self, record: LogRecord) -> bool:
        """Write a line."""
        self.emit(record)
        return True

    def flush(self) -> None:
        """Pass what is buffered to the operating system."""
        if self.stream is not None:
            self.stream.flush()

    def emit(self, record: LogRecord) -> None:
        """Open the file, which another program may have moved, and write a line."""
        super().emit(record)
        self._close_stream()

    def _close_stream(self) -> None:
        stream, self.stream = self.stream, None
        with suppress(OSError):
            if stream is not None:
                stream.close()

    def handleError(self, record: LogRecord) -> None:  # noqa: ARG002, N802 - as logging has it
        """Count a line that could not be written."""
        error = sys.exc_info()[1]
        self.failed += 1
        self._trouble.write(
            "the audit log can't be written; lines are lost",
            file=str(self.path),
            reason=getattr(error, "strerror", None) or str(error),
            lost=self.failed,
        )


def audit_setting(text: str) -> str:
    """Parse ``pocketmqAuditLog``: ``auto``, ``off`` or a path."""
    return text if text in {AUTO, OFF} else str(settings.path(text))


def audit_path(setting: str, home: Path, *, acl_enable: bool) -> Path | None:
    """Return where a server writes its audit log; None: nowhere.

    Args:
        setting: the value of ``pocketmqAuditLog``.
        home: the directory of the server's data.
        acl_enable: whether it checks accounts.
    """
    if setting == OFF or (setting == AUTO and not acl_enable):
        return None
    return home / "logs" / "audit.log" if setting == AUTO else Path(setting)


def own_file(setting: str, who: str) -> str:
    """Return the setting for one of several servers: each writes and rotates its own file."""
    if setting in {AUTO, OFF}:
        return setting
    path = Path(setting)
    return str(path.with_name(f"{path.stem}-{who}{path.suffix}"))


def _origin(command: Command, connection: Connection, who: str | None) -> dict[str, Any]:
    return {
        "who": (who or "-")[:MAX_TEXT],
        "from": connection.remote_text,
        "action": _name(command.code, RequestCode, OwnRequestCode),
        "code": command.code,
    }


def _contents(command: Command) -> dict[str, Any]:
    """Return the fields and the body of a request, without secrets."""
    facts: dict[str, Any] = {}
    if command.values is not None:
        # A header in msgpack has no names of fields.
        facts["fields"] = [str(value)[:MAX_TEXT] for value in command.values[:MAX_FIELDS]]
    else:
        facts["fields"] = {
            name[:MAX_TEXT]: "***" if _SECRET.search(name) else text[:MAX_TEXT]
            for name, text in list(command.fields.items())[:MAX_FIELDS]
            if name not in {ACCESS_KEY, SIGNATURE}
        }
    if command.body:
        body = bytes(command.body[:MAX_BODY]).decode("utf-8", "replace")
        facts["body"] = _SECRET_IN_TEXT.sub(r"\1***", body)
    return facts


def _name(code: int, *kinds: type[RequestCode | OwnRequestCode | ResponseCode]) -> str:
    for kind in kinds:
        with suppress(ValueError):
            return kind(code).name
    return str(code)

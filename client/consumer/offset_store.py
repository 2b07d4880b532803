"""Offset stores: at the brokers, or in a local file for broadcasting.

``BrokerOffsets`` and ``LocalOffsets`` serve a group member. ``OffsetCommits`` makes the commits of
a pull consumer; it skips offsets that the brokers already have.

The local file is JSON (cf. LocalFileOffsetStore). A new version is written to a temporary file and
synced, the old one is kept as ``<name>.bak``, then the new one is renamed into place. The backup is
used if the file is missing or damaged. If both are damaged, the consumer doesn't start, because
starting over would skip or repeat messages. On systems with ``flock``, a lock file ensures that
only one consumer uses the file.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

from client.consumer.reader import QueueReader
from client.errors import PocketMQError, UsageError
from client.group.start_offsets import OffsetStore
from client.limits import LAST_COMMIT_TIMEOUT, MAX_LOCAL_OFFSETS_BYTES
from client.network.remote import try_for
from client.offsets import Offsets
from client.wire.backoff import Backoff
from remoting.protocol.queue import MessageQueue
from remoting.runtime import durable_file
from remoting.runtime.log import Log


async def commit_last(store: OffsetStore, queue: MessageQueue, offset: int) -> None:
    """Commit the last offset of a lost queue; retries while the broker can't be reached.

    Raises:
        PocketMQError: it was not committed within ``LAST_COMMIT_TIMEOUT``.
    """
    await try_for(LAST_COMMIT_TIMEOUT, partial(store.commit, queue, offset))


class BrokerOffsets(OffsetStore):
    """The offsets of one group, each at the broker of its queue."""

    def __init__(self, offsets: Offsets, group: str) -> None:
        self._offsets = offsets
        self._group = group

    async def stored(self, queue: MessageQueue) -> int | None:
        """See ``OffsetStore``."""
        return await self._offsets.committed(queue, self._group)

    async def commit(self, queue: MessageQueue, offset: int) -> None:
        """See ``OffsetStore``; the broker has stored the offset when this returns."""
        await self._offsets.commit(queue, self._group, offset)


_log = Log("client")

FOLDER: Final = ".pocketmq"


def default_file(group: str) -> Path:
    """Return the default offsets file of a group, in the user's home directory."""
    return Path.home() / FOLDER / "offsets" / f"{group}.json"


class LocalOffsets(OffsetStore):
    """The offsets of one broadcasting consumer.

    Raises:
        UsageError: the file and its backup are damaged, can't be read, or are in use.
    """

    def __init__(self, file: Path, group: str) -> None:
        self._file = file
        self._group = group
        self._changed = False
        self._saving = asyncio.Lock()
        self._lock: int | None = self._take()
        try:
            self._offsets = self._load()
        except BaseException:
            self.close()
            raise

    async def stored(self, queue: MessageQueue) -> int | None:
        """See ``OffsetStore``."""
        return self._offsets.get(queue)

    async def commit(self, queue: MessageQueue, offset: int) -> None:
        """See ``OffsetStore``; the offset is written to the file by ``save``."""
        self._offsets[queue] = offset
        self._changed = True

    async def save(self) -> None:
        """Write the file if anything was committed. An OSError is logged; the next call retries."""
        # One at a time: all use the same temporary file.
        async with self._saving:
            if not self._changed:
                return
            self._changed = False
            text = _text(self._group, self._offsets)
            try:
                await asyncio.to_thread(durable_file.replace, self._file, text)
            except OSError as error:
                self._changed = True
                _log.warning("local offsets not written", file=str(self._file), error=str(error))

    def close(self) -> None:
        """Release the lock of the file."""
        if self._lock is not None:
            with suppress(ImportError):
                import fcntl  # noqa: PLC0415 - missing on Windows

                # A fork of this process keeps the file open, and without this the lock.
                fcntl.flock(self._lock, fcntl.LOCK_UN)
            os.close(self._lock)
            self._lock = None

    def _take(self) -> int:
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            lock = os.open(self._file.with_name(self._file.name + ".lock"), os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise self._unusable(f"can't be used: {error}") from error
        try:
            import fcntl  # noqa: PLC0415 - missing on Windows
        except ImportError:
            return lock
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            raise self._unusable("is used by another consumer") from None
        return lock

    def _unusable(self, why: str) -> UsageError:
        return UsageError(
            f"the offsets file {self._file} {why}",
            group=self._group,
            hint="give each broadcasting consumer its own file with local_offsets=",
        )

    def _load(self) -> dict[MessageQueue, int]:
        offsets, problems = durable_file.load(
            self._file, _parsed, max_bytes=MAX_LOCAL_OFFSETS_BYTES
        )
        if offsets is None:
            if not problems:
                return {}
            raise UsageError(
                f"the offsets in {self._file.parent} are damaged ({'; '.join(problems)})",
                group=self._group,
                hint=f"put {self._file.name} back from a copy, or remove it and its backup to"
                " begin at start_from",
            )
        if problems:
            _log.warning(
                "offsets file damaged, backup taken", file=str(self._file), error=problems[0]
            )
        return offsets


def _text(group: str, offsets: dict[MessageQueue, int]) -> bytes:
    rows = [
        {
            "topic": queue.topic,
            "broker": queue.broker_name,
            "queue": queue.queue_id,
            "offset": offset,
        }
        for queue, offset in sorted(offsets.items())
    ]
    return json.dumps({"group": group, "offsets": rows}, indent=1).encode()


def _parsed(text: bytes) -> dict[MessageQueue, int]:
    """Parse an offsets file. Raises ValueError if it is invalid."""
    try:
        rows: Any = json.loads(text)["offsets"]
        offsets = {
            MessageQueue(row["topic"], row["broker"], row["queue"]): row["offset"] for row in rows
        }
    except (KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"it is no offsets file: {error!r}") from None
    for queue, offset in offsets.items():
        kinds = (type(queue.topic), type(queue.broker_name), type(queue.queue_id), type(offset))
        if kinds != (str, str, int, int) or offset < 0:
            raise ValueError(f"{queue} can't be at {offset!r}")
    return offsets


class OffsetCommits:
    """The commits of one pull consumer; an offset that the broker already has isn't sent again.

    Attributes:
        committed: the last offset that this consumer committed, by queue.
        given_up: offsets to commit automatically of queues that are no longer read.
    """

    def __init__(self, offsets: Offsets, reader: QueueReader[Any], group: str) -> None:
        self._offsets = offsets
        self._reader = reader
        self._group = group
        self.committed: dict[MessageQueue, int] = {}
        self.given_up: dict[MessageQueue, int] = {}
        self._automatic = asyncio.Lock()

    def forget(self, queue: MessageQueue) -> None:
        """Forget the committed offset of a queue: another member or a kill may change it."""
        self.committed.pop(queue, None)

    async def handed_out(self) -> None:
        """Commit the positions after all messages returned. Raises as ``commit``."""
        await self.commit(self._new(self._reader.positions()))

    async def settled(self) -> None:
        """Commit the messages that the application is done with. Raises as ``commit``."""
        given_up = self.given_up.copy()
        await self.commit(self._new(given_up | self._reader.settled()))
        for queue, offset in given_up.items():
            if self.given_up.get(queue) == offset:
                del self.given_up[queue]

    async def settled_last(self) -> None:
        """Make the last ``settled`` commit, after any automatic commit in progress.

        Automatic commits stay locked out afterwards.
        """
        await self._automatic.acquire()
        await self.settled()

    async def commit(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Store offsets; the brokers have stored them when this returns.

        Raises:
            Unavailable, RemoteError: a broker did not store an offset; others may have.
        """
        outcomes = await asyncio.gather(
            *(self._offsets.commit(queue, self._group, at) for queue, at in offsets.items()),
            return_exceptions=True,
        )
        for (queue, offset), outcome in zip(offsets.items(), outcomes, strict=True):
            if not isinstance(outcome, BaseException):
                self.committed[queue] = offset
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    async def by_time(self, period: float) -> None:
        """Make a ``settled`` commit every ``period`` seconds until cancelled."""
        backoff = Backoff()
        while True:
            await asyncio.sleep(period)
            try:
                async with self._automatic:
                    await self.settled()
            except PocketMQError as error:
                _log.warning("automatic commit failed", group=self._group, error=str(error))
                await asyncio.sleep(backoff.next())
            else:
                backoff.reset()

    def _new(self, offsets: dict[MessageQueue, int]) -> dict[MessageQueue, int]:
        return {q: at for q, at in offsets.items() if self.committed.get(q) != at}

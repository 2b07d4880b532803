"""Copying everything but log and queues: the index, the files of ``config/``, other directories.

The index file that is being written is left out unless the store is closed; PocketMQ indexes its
messages again. All other index files are full, and are copied if the copied log has their messages.
The extended queue entries (``consumequeue_ext``) are append-only, so they can be copied at any
time, as can a name server's table. Other directories of Apache's 5.x (timers, batch queues,
compacted topics) are consistent only when the store is closed.

Committed offsets and the progress of delayed messages must not be ahead of the copied queues:
otherwise a consumer would skip new messages that get those queue offsets. These files are read
before the end of the log is determined, and an offset that is still beyond its queue (after a
crash, or with an end in the past) is set back to the queue's end. Topics and groups are read last,
so that every copied message has its topic. A topic that is deleted meanwhile is in the copy if all
its queues had been copied, and otherwise isn't. Apache's brokers remove a state file before they
write the new one, so reading a missing file is retried.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from broker.store.checkpoint import EARLIER_NAMES
from broker.store.raw_files import FileRow, StoreChanged, names_in, unreadable
from broker.store.results import StoreError
from broker.storetools.copy.files import (
    DELIVERY_SLACK_MS,
    MAX_STATE_READS,
    STATE_PAUSE_SECONDS,
    LogCopy,
    copy_beginning,
)
from broker.storetools.copy.queues import CopiedQueue, Queues
from broker.storetools.copy.target import CopyPoint, Target, is_clean
from broker.storetools.verify.index_scan import header_of, index_files
from remoting.protocol.bodies import relaxed_json
from remoting.protocol.command import natural
from remoting.protocol.disk import delays, timer
from remoting.protocol.disk.files import ENTRY, ENTRY_BYTES, Checkpoint
from remoting.protocol.errors import BodyError
from remoting.protocol.names import SCHEDULE_TOPIC, TIMER_TOPIC

_COPIED_ALREADY: Final = frozenset({"commitlog", "consumequeue", "config", "index"})
_OF_A_RUN: Final = frozenset(
    {"abort", "abort.bak", "checkpoint", "lock", "pocketmq-checkpoint", *EARLIER_NAMES}
)
_OF_A_BROKER: Final = frozenset({"brokerIdentity", "brokerIdentity-temp"})
"""A controller takes two brokers with one identity for the same."""

_UNFINISHED: Final = ".tmp"
_ANY_TIME: Final = frozenset({"consumequeue_ext", "namesrv"})


def copy_index(moment: CopyPoint, log: LogCopy, target: Target) -> tuple[Checkpoint, int]:
    """Copy index files; return the checkpoint that fits the copy, and the number of files copied.

    Raises:
        StoreError: a file can't be read.
        OSError: the target can't be written.
    """
    root, copied = moment.view.root, 0
    sources = [Path(path) for path in index_files(root / "index")]
    for source in sources:
        try:
            header = header_of(str(source))
        except StoreChanged:
            continue
        is_last = source == sources[-1]
        # Copy only files with entries, all of messages that the copy has or that are deleted.
        if header is None or not (
            header.next_entry > 1 and log.start <= header.end_offset < log.end
        ):
            continue
        if is_last and (moment.is_past or not is_clean(root)):
            continue
        path = target.directory("index") / source.name
        if not _copy_whole(source, path):
            continue
        if is_last and not is_clean(root):
            # A broker has opened the store meanwhile, and may be changing the last file.
            path.unlink()
            continue
        copied += 1
    index_ms = min(moment.checkpoint.index_ms, log.last_ms) if copied else 0
    return Checkpoint(log.last_ms, log.last_ms, index_ms), copied


def copy_others(moment: CopyPoint, target: Target) -> list[str]:
    """Copy the other files and directories; return the names of those left out.

    Raises:
        StoreError: a file can't be read.
        OSError: the target can't be written.
    """
    left_out = []
    root, clean = moment.view.root, is_clean(moment.view.root) and not moment.is_past
    for name in names_in(root):
        path = root / name
        if name in _COPIED_ALREADY | _OF_A_RUN | _OF_A_BROKER or name.endswith(_UNFINISHED):
            continue
        if not (path.is_dir() or path.is_file()):
            continue
        if name not in _ANY_TIME and not clean:
            left_out.append(name)
            continue
        for file in [path] if path.is_file() else _files_in(path):
            _copy_whole(file, target.part / file.relative_to(root))
    return left_out


def _files_in(path: Path) -> Iterator[Path]:
    for name in names_in(path):
        inner = path / name
        if inner.is_symlink():
            # It may point anywhere, even back into the store.
            continue
        if inner.is_dir():
            yield from _files_in(inner)
        elif inner.is_file():
            yield inner


def _copy_whole(source: Path, path: Path) -> bool:
    """Copy a file; return False if it has been removed meanwhile."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        size = source.stat().st_size
        copy_beginning(source, path, end=size, size=size, on_progress=lambda _: None)
    except (FileNotFoundError, StoreChanged):
        path.unlink(missing_ok=True)
        return False
    return True


OFFSETS: Final = "consumerOffset.json"
DELAY_OFFSETS: Final = "delayOffset.json"
SETTINGS: Final = "brokerSettings.json"
TOPICS: Final = "topics.json"
DELETED: Final = "deletedTopics.json"
_LATE: Final = (TOPICS, "subscriptionGroup.json", "consumerFilter.json")
_OLD: Final = ".bak"

_TABLE: Final = "offsetTable"

StateFiles = dict[str, bytes]
"""Name -> content."""


def read_early(root: Path, sleep: Callable[[float], None] = time.sleep) -> StateFiles:
    """Read the state files, most of which must not be ahead of the log. Raises ``StoreError``.

    They lack the role since a switch, which is that of one broker: a slave that starts with a copy
    of its master's store would be a second master.
    """
    files = _read(root / "config", lambda _: True, sleep)
    for name in (SETTINGS, SETTINGS + _OLD):
        with suppress(BodyError):
            content = relaxed_json.loads(files.get(name, b"{}"))
            if isinstance(content, dict) and content.pop("role", None) is not None:
                files[name] = relaxed_json.dumps(content, pretty=True)
    return files


def read_late(root: Path, early: StateFiles, queues: Queues) -> StateFiles:
    """Read the state files that must not be behind the log. Raises ``StoreError``.

    Topics that have been deleted since they were read ``early`` stay if they have copied queues.
    """
    files = _read(root / "config", _is_late, time.sleep)
    topics = _table(early, TOPICS, "topicConfigTable")
    kept = {topic: topics[topic] for topic, _ in queues if topic in topics}

    def keep(table: dict[Any, Any]) -> int:
        before = len(table)
        table.update(kept | table)
        return len(table) - before

    _change(files, TOPICS, keep, "topicConfigTable")
    return files


def read_deleted(root: Path) -> StateFiles:
    """Read the file of deleted topics, just after the queues were copied. Raises ``StoreError``."""
    return _read(root / "config", lambda name: name == DELETED, time.sleep)


def drop_deleted(deleted: StateFiles, end: int, queues: Queues) -> None:
    """Remove the queues of topics deleted since the log had an end: some may not be copied."""
    ends = _table(deleted, DELETED, "logEnds")
    for key in [key for key in queues if ends.get(key[0], -1) >= end]:
        shutil.rmtree(queues.pop(key).directory, ignore_errors=True)


def write(files: StateFiles, target: Target) -> None:
    """Write state files into the copy. Raises ``OSError``."""
    directory = target.directory("config")
    for name, data in files.items():
        target.write(directory / name, data)


def _is_late(name: str) -> bool:
    return name.removesuffix(_OLD) in _LATE


def _read(
    directory: Path, is_needed: Callable[[str], bool], sleep: Callable[[float], None]
) -> StateFiles:
    names = {name for name in names_in(directory) if (directory / name).is_file()}
    # A file that is being replaced at this moment may exist only under its other names.
    names |= {name.removesuffix(_OLD).removesuffix(_UNFINISHED) for name in names}
    contents = {}
    for name in sorted(names):
        if not name.endswith(_UNFINISHED) and is_needed(name):
            data = _read_whole(directory / name, sleep)
            if data is not None:
                contents[name] = data
    return contents


def _read_whole(path: Path, sleep: Callable[[float], None]) -> bytes | None:
    """Return a file's content, retrying while it is missing or incomplete."""
    data: bytes | None = None
    for _ in range(MAX_STATE_READS):
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            data = None
        except OSError as error:
            raise unreadable(str(path), error) from error
        if data is not None and ".json" not in path.name:
            return data
        if data is not None:
            with suppress(BodyError):
                relaxed_json.loads(data)
                return data
        sleep(STATE_PAUSE_SECONDS)
    # Permanently missing or damaged; a broker that opens the copy reads the backup.
    return data


# --- offsets beyond the copied queues


def hold_back(files: StateFiles, queues: Queues, *, past_ms: int | None) -> list[str]:
    """Set back offsets beyond the copied queues; return notes on what was changed.

    Args:
        files: the result of ``read_early``; changed in place.
        queues: of the copy.
        past_ms: if the copy ends in the past, the store time of its last message, ms since the
            epoch; otherwise None.
    """
    # By delay level, up to which offset its messages can be delivered at the end of the copy.
    ends = {}
    for (topic, queue_id), queue in queues.items():
        if topic == SCHEDULE_TOPIC:
            due = queue.end if past_ms is None else _not_due(queue, past_ms - DELIVERY_SLACK_MS)
            ends[queue_id + 1] = due
    offsets = _change(files, OFFSETS, lambda table: _hold_offsets(table, queues))
    _change(files, OFFSETS + _OLD, lambda table: _hold_offsets(table, queues))
    levels = _change(files, DELAY_OFFSETS, lambda table: _hold_delays(table, ends))
    _change(files, DELAY_OFFSETS + _OLD, lambda table: _hold_delays(table, ends))
    if past_ms is not None:
        files.pop(delays.FILE_NAME, None)
        files.pop(timer.PROGRESS_NAME, None)
        waiting = queues.get((TIMER_TOPIC, 0))
        if timer.CHECK_NAME in files and waiting is not None:
            at_ms = past_ms - DELIVERY_SLACK_MS
            check = timer.TimerCheck(
                at_ms // timer.PRECISION_MS * timer.PRECISION_MS, 0, waiting.end
            )
            files[timer.CHECK_NAME] = timer.encode_check(check, at_ms, 1).ljust(
                timer.CHECK_BYTES, b"\0"
            )
    notes = []
    if offsets:
        notes.append(f"{offsets} committed offsets lay behind the copy's messages: set back")
    if levels:
        notes.append(f"{levels} delay levels were further than the copy's messages: set back")
    return notes


def _table(files: StateFiles, name: str, field: str) -> dict[Any, Any]:
    """Return the table in a file; an empty one if there is none."""
    with suppress(BodyError):
        content = relaxed_json.loads(files.get(name, b"{}"))
        if isinstance(content, dict) and isinstance(table := content.get(field), dict):
            return table
    return {}


def _change(
    files: StateFiles, name: str, change: Callable[[dict[Any, Any]], int], field: str = _TABLE
) -> int:
    """Change the table in a file; return the number of changed values."""
    table = _table(files, name, field)
    changed = change(table)
    if changed:
        content = relaxed_json.loads(files[name])
        assert isinstance(content, dict)
        files[name] = relaxed_json.dumps(content | {field: table}, pretty=True)
    return changed


def _hold_offsets(table: dict[Any, Any], queues: Queues) -> int:
    changed = 0
    for key, offsets in table.items():
        topic = str(key).partition("@")[0]
        if not isinstance(offsets, dict):
            continue
        for queue_id, offset in offsets.items():
            queue = queues.get((topic, natural(str(queue_id), -1)))
            if queue is not None and isinstance(offset, int) and offset > queue.number:
                offsets[queue_id] = queue.number
                changed += 1
    return changed


def _hold_delays(table: dict[Any, Any], ends: dict[int, int]) -> int:
    changed = 0
    for level, offset in table.items():
        end = ends.get(natural(str(level), -1))
        if end is not None and isinstance(offset, int) and offset > end:
            table[level] = end
            changed += 1
    return changed


def _not_due(queue: CopiedQueue, at_ms: int) -> int:
    """Return the queue offset of a delay level's first message due at ``at_ms`` or later."""
    row = FileRow([queue.directory], "a copied queue")
    entry = memoryview(bytearray(ENTRY_BYTES))
    low, high = queue.first, queue.end
    while low < high:
        middle = (low + high) // 2
        try:
            row.read_into(middle * ENTRY_BYTES, entry)
        except StoreError:
            return low
        if ENTRY.unpack(entry)[2] >= at_ms:
            high = middle
        else:
            low = middle + 1
    return low

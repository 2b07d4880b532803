"""What a copy is a copy of: the store as it was when the log ended at one offset.

Everything before that offset had been appended, whole, when it was looked up, so whatever was
acknowledged before is part of it. Two other places matter:

``settled``     before it each message has its entry in its queue, in the files as they can be read
                now. A running broker writes an entry after its message, and with SYNC_FLUSH only
                when the disk has the message; so from there on entries are looked for, and made.
``clean``       whether the store is closed properly, and stays so. If not, a broker may be writing
                it, or has died; which one makes no difference here.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from broker.store.config import StoreConfig
from broker.store.copy.limits import MAX_STARTS
from broker.store.errors import StoreError
from broker.store.files import OsFiles
from broker.store.paths import StorePaths
from broker.store.safe_point import Numbers, SafePoint, SafePointFile
from broker.store.view import StoreChanged, StoreView, ViewFile
from remoting.protocol.disk.files import Checkpoint
from remoting.protocol.errors import RecordError

DEFAULT_QUEUE_FILE_BYTES = 6_000_000


@dataclass(frozen=True, slots=True)
class Moment:
    """The moment, and how to look at what was there.

    Attributes:
        view: of the source.
        commit_log: where its log lies, if elsewhere.
        end: physical offset where the copy's log ends; a record ends there, or a file.
        is_past: whether the end was asked for and lies before the log's.
        settled: physical offset before which all entries are there.
        checkpoint: the source's.
        numbers: of each queue the number that the next message had some time before, as far as
            that is known.
    """

    view: StoreView
    commit_log: str | None
    end: int
    is_past: bool
    settled: int
    checkpoint: Checkpoint
    numbers: Numbers

    def log_files(self) -> list[ViewFile]:
        """The files of the log as they are now. Raises ``StoreError``."""
        return StoreView(self.view.root, commit_log=self.commit_log).log.files


def moment_of(root: Path, commit_log: str | None, until: int | None) -> Moment:
    """The end of the log now, or the place at or behind ``until`` where a record begins.

    Raises:
        StoreError: a file can't be read, or the log has no such place.
    """
    starts = 0
    while True:
        try:
            return _look_up(root, commit_log, until)
        except StoreChanged:
            # Retention took a file between its name and its first byte.
            starts += 1
            if starts == MAX_STARTS:
                raise


def _look_up(root: Path, commit_log: str | None, until: int | None) -> Moment:
    view = StoreView(root, commit_log=commit_log)
    log_end = view.log_end().position
    end = log_end if until is None else _place(view, until, log_end)
    checkpoint = read_checkpoint(root)
    point = _safe_point(view) if view.log.files else None
    settled = _settled(view, checkpoint) if point is None else point.end
    numbers = point.numbers if point is not None and point.end <= end else {}
    settled = min(max(settled, view.log.start), end)
    return Moment(view, commit_log, end, end < log_end, settled, checkpoint, numbers)


def is_clean(root: Path) -> bool:
    """Whether no broker has the store open, and the last one closed it properly."""
    return not (root / "abort").exists()


def read_checkpoint(root: Path) -> Checkpoint:
    """What the last flush left; nothing known when it can't be read."""
    try:
        return Checkpoint.decode((root / "checkpoint").read_bytes())
    except (OSError, RecordError):
        return Checkpoint()


def config_of(root: Path, log_file_bytes: int, queue_file_bytes: int) -> StoreConfig:
    """Settings under which a store of such files opens."""
    return StoreConfig(
        root=root,
        mapped_file_size_commit_log=log_file_bytes,
        mapped_file_size_consume_queue=queue_file_bytes,
    )


def _place(view: StoreView, until: int, log_end: int) -> int:
    if not view.log.start < until <= log_end:
        raise StoreError(
            f"the log in {view.root} goes from {view.log.start} to {log_end}, so it can't be copied"
            f" up to {until}: give an offset in between"
        )
    return view.log.first_start(until, log_end)


def _settled(view: StoreView, checkpoint: Checkpoint) -> int:
    """See ``Moment``; at any rate not too late."""
    if is_clean(view.root):
        # Entries are made in the order of the log.
        return _last_with_entry(view)
    for file in reversed(view.log.files):
        record = None
        if file.size:
            record = view.log.record_at(file.start)
        if record is not None and 0 < record.store_timestamp_ms <= checkpoint.recover_from_ms:
            return file.start
    return view.log.start


def _safe_point(view: StoreView) -> SafePoint | None:
    """What our broker left or leaves, if it is about this log (cf. ``Recovery``)."""
    queue_bytes = next(
        (
            path.stat().st_size
            for path in (view.root / "consumequeue").glob("*/*/*")
            if path.is_file()
        ),
        DEFAULT_QUEUE_FILE_BYTES,
    )
    config = config_of(view.root, view.log.files[0].size, queue_bytes)
    try:
        point = SafePointFile(OsFiles(), StorePaths.of(config), config).read()
    except OSError:
        return None
    if point is None or not view.log.start <= point.tail <= point.end:
        return None
    head = memoryview(bytearray(len(point.head) // 2))
    try:
        if point.head:
            view.log.read_into(point.tail, head)
    except StoreError:
        return None
    return point if head.hex() == point.head else None


def _last_with_entry(view: StoreView) -> int:
    last = 0
    for topic in view.topics():
        for queue_id in view.queues(topic):
            queue = view.queue(topic, queue_id)
            last = max(last, queue.last_position(queue.range().max_offset))
    return last

"""Helpers to make copies and compare every byte of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from broker.store.log_view import Damage
from broker.storetools.copy.copying import CopyReport, copy_store
from broker.storetools.view import StoreView
from remoting.protocol.disk.files import ENTRY, FILLER
from remoting.protocol.message.view import RecordView

Look = Callable[[str, int], None]


def quiet(_what: str, _done: int) -> None:
    """Ignore the progress."""


def copied(source: Path, target: Path, look: Look = quiet, **more: Any) -> CopyReport:
    """Copy a store; ``look`` is called before each part, and whenever some of it is done."""

    @contextmanager
    def show(what: str, total: int) -> Iterator[Any]:
        class Bar:
            done = 0

            def advance(self, count: int) -> None:
                self.done += count
                look(what, self.done)
                assert self.done <= total or what == "copying queues"

        look(what, 0)
        yield Bar().advance

    return copy_store(source, target, show=show, **more)


def records_of(root: Path) -> list[RecordView]:
    """Every record of a store's log."""
    view = StoreView(root)
    found = []
    for part in view.log.walk(view.log.start, view.log_end().position):
        assert not isinstance(part, Damage), part
        found += [RecordView(part.data, start) for start in part.starts]
    assert all(record.check_crc() for record in found)
    return found


def check(root: Path, report: CopyReport) -> list[RecordView]:
    """Check a copy: each message has an entry, each entry a message, all else is zeros."""
    view = StoreView(root)
    records = records_of(root)
    assert len(records) == report.records
    assert view.log.start == report.begin
    assert view.log_end() == (report.end, None)
    wanted: dict[tuple[str, int], dict[int, tuple[int, int]]] = {}
    for record in records:
        queue = wanted.setdefault((record.topic, record.queue_id), {})
        queue[record.queue_offset] = (record.physical_offset, record.size)
    for topic in view.topics():
        for queue_id in view.queues(topic):
            entries = wanted.pop((topic, queue_id), {})
            found = {}
            for path in sorted((root / "consumequeue" / topic / str(queue_id)).iterdir()):
                data = path.read_bytes()
                for number, (position, size, _) in enumerate(ENTRY.iter_unpack(data)):
                    is_filler = ENTRY.pack(position, size, 0) == FILLER
                    if size and position >= report.begin and not is_filler:
                        found[int(path.name) // 20 + number] = (position, size)
            assert found == entries
    assert not wanted
    last = sorted((root / "commitlog").iterdir())[-1]
    assert not any(last.read_bytes()[report.end - int(last.name) :])
    assert not (root / "abort").exists()
    assert not (root / "lock").exists()
    assert not list(root.parent.glob("*.part"))
    return records

"""The index files of a store: which can be read, and what of the log they claim to know."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from broker.store.errors import StoreError
from broker.store.index.file import Shape
from broker.store.verify.findings import Findings
from broker.store.verify.index_match import Claims
from broker.store.verify.index_scan import IndexPart, header_of, index_files, is_made, shape_of
from broker.store.verify.side_files import check_index_note
from broker.store.view import StoreView
from remoting.protocol.disk.index_file import ENTRY


class IndexFiles:
    """Those of one store.

    Attributes:
        parts: the files that have entries, oldest first.
        shape: of most of them; None when none tells.
        paths: of all files.
    """

    def __init__(self, parts: list[IndexPart], paths: list[str]) -> None:
        shapes = Counter(part.shape for part in parts).most_common(1)
        self.parts = parts
        self.paths = paths
        self.shape: Shape | None = shapes[0][0] if shapes else None

    @property
    def claims(self) -> Claims:
        """What of the log they know."""
        if not self.parts:
            return Claims(1, 0)
        return Claims(self.parts[0].header.begin_offset, self.parts[-1].header.end_offset)

    def check_headers(self, view: StoreView, log_end: int, findings: Findings) -> None:
        """Whether headers go with the entries and the log. Raises ``StoreError``."""
        kept = []
        for part in self.parts:
            header = part.header
            file = part.open()
            first = ENTRY.unpack(part.read(file, 1, 1))[1]
            last = ENTRY.unpack(part.read(file, header.next_entry - 1, 1))[1]
            wrong = None
            if header.end_offset >= log_end:
                wrong = f"the log ends at {log_end}"
            elif (header.begin_offset, header.end_offset) != (first, last):
                wrong = f"the entries are of messages at {first} to {last}"
            elif not 0 <= header.used_slots < header.next_entry:
                wrong = f"{header.used_slots} slots cannot be in use"
            elif (stored := _stored(view, header.end_offset)) not in {None, header.end_ms}:
                wrong = f"the last message was stored at {stored}, not {header.end_ms}"
            elif (stored := _stored(view, header.begin_offset)) not in {None, header.begin_ms}:
                wrong = f"the first message was stored at {stored}, not {header.begin_ms}"
                header = header._replace(begin_ms=stored or 0)
            if wrong is None:
                kept.append(part)
                continue
            sentence = (
                f"the header speaks of messages at {header.begin_offset} to {header.end_offset} of"
                f" the log, but {wrong}"
            )
            findings.derived("index-header", part.path, 0, sentence)
            if 0 <= first <= last < log_end:
                header = header._replace(begin_offset=first, end_offset=last)
                kept.append(part._replace(header=header))
        self.parts = kept

    def judge(
        self,
        root: Path,
        keys: int,
        unindexed: tuple[int, int],
        findings: Findings,
        *,
        clean: bool,
    ) -> None:
        """What the index does not claim to know.

        Args:
            root: the store's directory.
            keys: that the log has.
            unindexed: how many of them lie before and behind what the index knows.
            findings: what is found.
            clean: the store was closed properly.
        """
        told = check_index_note(root, self.parts, findings)
        path = str(root / "index")
        earlier, later = unindexed
        if not self.parts:
            if keys:
                sentence = f"there is no index, so {keys} keys find no message"
                findings.note("no-index", path, None, sentence)
            return
        if earlier:
            begin = self.claims.begin
            sentence = f"the index lacks {earlier} keys of messages before {begin} of the log"
            findings.derived("index-missing", path, None, sentence)
        if later and clean and not told:
            end = self.claims.end
            sentence = f"the index lacks {later} keys of messages behind {end} of the log"
            findings.derived("index-missing", path, None, sentence)


def _stored(view: StoreView, position: int) -> int | None:
    try:
        record = view.log.record_at(position)
    except StoreError:
        return None
    return None if record is None else record.store_timestamp_ms


def load_index(directory: Path, findings: Findings) -> IndexFiles:
    """Look at the files of a directory. Raises ``StoreError``."""
    found: list[IndexPart] = []
    paths = [path for path in index_files(directory) if is_made(path)]
    before_ms = 0
    for path in paths:
        header = header_of(path)
        shape = None if header is None else shape_of(path, header)
        if header is not None and header.next_entry <= 1 and not header.used_slots:
            continue
        if header is None or shape is None or not 1 <= header.next_entry <= shape.entries:
            sentence = "its slots and entries do not go together, so it is no index file"
            findings.derived("index-file", path, None, sentence)
            continue
        found.append(IndexPart(path, shape, header, before_ms))
        before_ms = header.end_ms
    return IndexFiles(_of_one_shape(found, findings), paths)


def _of_one_shape(parts: list[IndexPart], findings: Findings) -> list[IndexPart]:
    """Those that go with the newest: a broker that was set otherwise has begun the index anew."""
    kept = [part for part in parts if part.shape.bytes == parts[-1].shape.bytes]
    for part in parts:
        if part not in kept:
            sentence = (
                f"it has {part.shape.bytes} bytes, the newest index file {kept[-1].shape.bytes}: a"
                " broker that is set so does not look at it"
            )
            findings.note("index-other", part.path, None, sentence)
    return kept

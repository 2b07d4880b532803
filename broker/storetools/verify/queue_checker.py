"""Checking the queues, after the whole log has been read.

Some entries may differ from the log: those of messages that retention has deleted, fillers, and
entries that point to damaged records. Any other entry without a message in the log is wrong, and so
is a message without an entry. A crash leaves messages without entries, or entries without messages,
at the end of a queue; the next start of a broker repairs that, so it is only a note. What a running
broker adds after the check began is ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from broker.store.checkpoint import SafePoint
from broker.store.consume_queue import FILLER_SIZE
from broker.store.log_walk import QueueKey
from broker.store.record_validator import LIGHT_PREFIX
from broker.store.results import StoreError
from broker.storetools.verify.findings import Findings, Ranges
from broker.storetools.verify.queue_walk import Kind, StoredQueues, WalkedQueue, Wrong
from broker.storetools.view import StoreView
from remoting.protocol.disk.files import ENTRY, ENTRY_BYTES, name_of

_AT_ONCE: Final = 16_384
_MAX_WAIT_TRIES: Final = 60

_SENTENCES: Final = {
    Kind.MISSING: "{which} of queue {queue} of topic {topic} {is_are} missing, of {messages} from"
    " {position} of the log on",
    Kind.PLACE: "{which} of queue {queue} of topic {topic} {point} elsewhere, not to {position} of"
    " the log",
    Kind.SIZE: "{which} of queue {queue} of topic {topic} {have} another size than the record at"
    " {position} of the log",
    Kind.TAGS: "{which} of queue {queue} of topic {topic} {have} another tags code than the record"
    " at {position} of the log",
}


class Evidence(NamedTuple):
    """The state of the store that the queues are checked against.

    Attributes:
        log_start: physical offset where the log begins now.
        log_end: physical offset where it ended when the check began.
        running: a broker has the store open.
        clean: the store was closed properly.
        topics: names of the topics that exist; None when unknown.
        safe: PocketMQ's safe point; None without one.
        deleted: see ``DeletedTopics.ends``.
    """

    log_start: int
    log_end: int
    running: bool
    clean: bool
    topics: frozenset[str] | None
    safe: SafePoint | None
    deleted: Mapping[str, int]

    @property
    def settled(self) -> int:
        """Physical offset up to which every message must have its entry."""
        return self.log_end if self.clean or self.running else self.safe_end

    @property
    def safe_end(self) -> int:
        """Physical offset of the safe point; 0 without one."""
        return 0 if self.safe is None else self.safe.end

    def number_of(self, key: QueueKey) -> int | None:
        """Return a queue's next queue offset at the safe point; None when unknown."""
        return None if self.safe is None else self.safe.numbers.get(key[0], {}).get(key[1])


class QueueChecker:
    """Checks all queues; see ``run``.

    Attributes:
        bad: queues that have to be rebuilt.
        queues: number of queues on the disk.
    """

    def __init__(
        self,
        view: StoreView,
        directory: Path,
        evidence: Evidence,
        damaged: Ranges,
        findings: Findings,
        wait: Callable[[], None],
    ) -> None:
        """``wait`` sleeps, to let a running broker write entries."""
        self._view = view
        self._directory = directory
        self._reader = StoredQueues(directory)
        self._evidence = evidence
        self._damaged = damaged
        self._findings = findings
        self._wait = wait
        self._tries = 0
        self._misfiled: set[int] = set()
        self.bad: set[QueueKey] = set()
        self.queues = 0

    def run(self, states: Mapping[QueueKey, WalkedQueue]) -> None:
        """Check all queues. Raises ``StoreError``."""
        on_disk = set(self._view.all_queues())
        for key in sorted(on_disk | states.keys()):
            state = states.get(key)
            if key in on_disk:
                self.queues += 1
                self._files(key)
                self._present(key, state)
        for key in sorted(states.keys() - on_disk):
            self._absent(key, states[key])

    # --- queues without files

    def _absent(self, key: QueueKey, state: WalkedQueue) -> None:
        topic, queue_id = key
        evidence = self._evidence
        if state.last_position < max(evidence.log_start, evidence.deleted.get(topic, 0)):
            return
        if evidence.topics is not None and topic not in evidence.topics:
            # Its topic was deleted; the messages stay in the log until retention deletes them.
            return
        existed = evidence.safe is None or evidence.number_of(key) is not None
        if not existed and state.last_position < evidence.safe_end:
            # The queue had been deleted before the safe point was made.
            return
        if state.messages == 1 and state.first_position in self._misfiled:
            return
        if state.first_position >= evidence.settled:
            self._late(key, state.messages, state.first_position)
            return
        self.bad.add(key)
        self._findings.derived(
            "queue-missing",
            str(self._directory / topic / str(queue_id)),
            None,
            f"queue {queue_id} of topic {topic} has no files, but {state.messages} messages from"
            f" {state.first_position} of the log on",
        )

    # --- files

    def _files(self, key: QueueKey) -> None:
        row = self._reader.row(key)
        sizes = {file.size for file in row.files}
        if not row.files:
            return
        usual = row.files[0].size
        for file in row.files:
            if file.size % ENTRY_BYTES or file.start % usual or len(sizes) > 1:
                self.bad.add(key)
                self._findings.derived(
                    "queue-file",
                    file.path,
                    None,
                    f"a file of queue {key[1]} of topic {key[0]} has {file.size} bytes, or a name,"
                    " that do not go with the others",
                )
                return

    # --- entries

    def _present(self, key: QueueKey, state: WalkedQueue | None) -> None:
        bounds = self._view.queue_range(*key)
        written = bounds.max_offset + bounds.torn
        row = self._reader.row(key)
        begin = row.start // ENTRY_BYTES
        if state is None:
            self._strangers(key, begin, written)
            self._numbers(key, written)
            return
        tail = self._tail(key, state, written)
        for wrong in state.wrong:
            if self._is_half(wrong, written):
                self._late(key, state.end - wrong.begin, wrong.position)
            elif wrong is not tail:
                self._entry(key, wrong)
        self._strangers(key, begin, min(state.first, written))
        for gap_begin, gap_end in state.gaps:
            self._strangers(key, max(gap_begin, begin), min(gap_end, written))
        self._strangers(key, max(state.end, begin), written)
        if tail is None:
            self._numbers(key, written)

    def _tail(self, key: QueueKey, state: WalkedQueue, written: int) -> Wrong | None:
        """Return the messages at the queue's end whose entries are missing legitimately, if any."""
        last = state.wrong[-1] if state.wrong else None
        if last is None or last.kind is not Kind.MISSING or last.end != state.end:
            return None
        if last.begin < written and not self._evidence.running:
            return None
        if self._evidence.running and self._comes(key, state, last):
            return last
        if last.position < self._evidence.settled or self._evidence.running:
            return None
        self._late(key, last.end - last.begin, last.position)
        return last

    def _is_half(self, wrong: Wrong, written: int) -> bool:
        """Return whether a killed broker copied a queue's last entry up to its tags code only."""
        is_last = wrong.kind is Kind.TAGS and wrong.begin == written - 1
        running = self._evidence.running
        return is_last and wrong.position >= self._evidence.settled and not running

    def _comes(self, key: QueueKey, state: WalkedQueue, last: Wrong) -> bool:
        """Return whether the missing entries appear: a running broker writes them after messages.

        In SYNC mode it writes them after the sync.
        """
        while self._tries < _MAX_WAIT_TRIES:
            entries = self._reader.read(key, last.begin, state.end - last.begin)
            if all(size > 0 for _, size, _ in ENTRY.iter_unpack(entries)):
                return True
            self._tries += 1
            self._wait()
        return False

    def _late(self, key: QueueKey, messages: int, position: int) -> None:
        self._findings.note(
            "entries-to-come",
            str(self._directory / key[0] / str(key[1])),
            None,
            f"queue {key[1]} of topic {key[0]} lacks the entries of its last {messages} messages,"
            f" from {position} of the log on: the next start of a broker makes them",
        )

    def _numbers(self, key: QueueKey, written: int) -> None:
        """Report a queue that ends before its next queue offset at the safe point.

        A queue offset must never be used twice.
        """
        number = self._evidence.number_of(key)
        if number is None or number <= written or key in self.bad:
            return
        self.bad.add(key)
        self._findings.derived(
            "queue-short",
            str(self._directory / key[0] / str(key[1])),
            None,
            f"queue {key[1]} of topic {key[0]} ends before message {written}, but had {number}",
        )

    def _entry(self, key: QueueKey, wrong: Wrong) -> None:
        topic, queue = key
        # Retention has deleted the message since the check began.
        if self._evidence.running and wrong.position < self._evidence.log_start:
            return
        if wrong.kind in {Kind.TWICE, Kind.NUMBER}:
            self._findings.damage(
                wrong.kind,
                self._log_path(wrong.position),
                wrong.position,
                f"the record at {wrong.position} has queue offset {wrong.begin} of queue {queue} of"
                f" topic {topic}, which "
                + (
                    "an earlier record has"
                    if wrong.kind is Kind.TWICE
                    else "does not match the neighbouring messages"
                ),
            )
            return
        count = wrong.end - wrong.begin
        is_single = count == 1
        which = f"entry {wrong.begin}" if is_single else f"entries {wrong.begin} to {wrong.end - 1}"
        self.bad.add(key)
        self._findings.derived(
            wrong.kind,
            *self._place(key, wrong.begin),
            _SENTENCES[wrong.kind].format(
                which=which,
                queue=queue,
                topic=topic,
                position=wrong.position,
                messages="the message" if is_single else f"{count} messages",
                is_are="is" if is_single else "are",
                point="points" if is_single else "point",
                have="has" if is_single else "have",
            ),
        )

    def _strangers(self, key: QueueKey, begin: int, end: int) -> None:
        """Report entries whose message is not in the log."""
        evidence = self._evidence
        if key[0].startswith(LIGHT_PREFIX):
            return
        run: tuple[int, int, int] | None = None
        while begin < end:
            count = min(end - begin, _AT_ONCE)
            entries = self._reader.read(key, begin, count)
            for number, (position, size, _) in enumerate(ENTRY.iter_unpack(entries), begin):
                if size == FILLER_SIZE or (
                    position < evidence.log_start and (size or evidence.log_start)
                ):
                    continue
                if position in self._damaged or (
                    position >= evidence.log_end and not evidence.clean
                ):
                    continue
                if self._is_misfiled(key, number, position):
                    continue
                if run is not None and run[1] == number:
                    run = run[0], number + 1, run[2]
                    continue
                self._stranger(key, run)
                run = number, number + 1, position
            begin += count
        self._stranger(key, run)

    def _stranger(self, key: QueueKey, run: tuple[int, int, int] | None) -> None:
        if run is None:
            return
        begin, end, position = run
        self.bad.add(key)
        which = f"entry {begin}" if end == begin + 1 else f"entries {begin} to {end - 1}"
        self._findings.derived(
            "entry-without-message",
            *self._place(key, begin),
            f"{which} of queue {key[1]} of topic {key[0]}: the log has no such message at"
            f" {position}",
        )

    def _is_misfiled(self, key: QueueKey, number: int, position: int) -> bool:
        """Return whether the record there has this queue offset, but names another queue."""
        if not self._evidence.log_start <= position < self._evidence.log_end:
            return False
        try:
            record = self._view.log.record_at(position)
        except StoreError:
            return False
        if record is None or record.queue_offset != number:
            return False
        if (record.topic, record.queue_id) == key:
            return False
        self._misfiled.add(position)
        self._findings.damage(
            "record-queue",
            self._log_path(position),
            position,
            f"the record at {position} names queue {record.queue_id} of topic {record.topic}, but"
            f" entry {number} of queue {key[1]} of topic {key[0]} points to it",
        )
        return True

    # --- paths and positions

    def _place(self, key: QueueKey, number: int) -> tuple[str, int]:
        row = self._reader.row(key)
        at = number * ENTRY_BYTES
        for file in row.files:
            if file.start <= at < file.end:
                return file.path, at - file.start
        size = row.files[0].size if row.files else 0
        directory = self._directory / key[0] / str(key[1])
        name = name_of(at // size * size) if size else ""
        return str(directory / name), at % size if size else at

    def _log_path(self, position: int) -> str:
        try:
            return self._view.log.file_name(position)
        except StoreError:
            return ""

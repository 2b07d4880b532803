"""Checking the small files of a store: the checkpoints, and the broker's tables."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from broker.store.results import StoreError
from broker.storetools.verify.findings import Findings
from broker.storetools.view import OWN_CHECKPOINT, StoreView
from remoting.protocol.bodies import relaxed_json
from remoting.protocol.bodies.body import Body
from remoting.protocol.bodies.group import (
    ConsumerFilterWrapper,
    ConsumerOffsetSerializeWrapper,
    DelayOffsetSerializeWrapper,
    SubscriptionGroupWrapper,
)
from remoting.protocol.bodies.topic import TopicConfigSerializeWrapper
from remoting.protocol.command import natural
from remoting.protocol.disk import delays, timer
from remoting.protocol.disk.files import CHECKPOINT_BYTES, Checkpoint
from remoting.protocol.errors import BodyError, RecordError
from remoting.protocol.names import SCHEDULE_TOPIC, TIMER_TOPIC, is_system_topic

_BATCH_QUEUES: Final = "BatchCQ"
_UNUSED: Final = "it is damaged, and a start doesn't use it"
_PAGE_BYTES: Final = 4096
_PLACES_BYTES: Final = 32
"""Of ``timercheck``, before its version."""


class Tables(NamedTuple):
    """The broker's tables as read when the check began.

    Attributes:
        topics: names of topics with consume queues; None when unknown.
        offsets: committed offsets, by topic, group and queue id.
        delays: queue offset of the next message to deliver, by delay level.
        has_offsets: whether there is a table of offsets.
        broker_name: of the broker that wrote the tables; None when unknown.
    """

    topics: frozenset[str] | None
    offsets: dict[tuple[str, str, int], int]
    delays: dict[int, int]
    has_offsets: bool
    broker_name: str | None

    def topics_with(self, seen: Iterable[str]) -> frozenset[str] | None:
        """Return the topics, with the system topics in ``seen``; None when they are unknown."""
        if self.topics is None:
            return None
        return self.topics | set(filter(is_system_topic, seen))


_TABLES: Final[dict[str, type[Body]]] = {
    "topics.json": TopicConfigSerializeWrapper,
    "subscriptionGroup.json": SubscriptionGroupWrapper,
    "consumerOffset.json": ConsumerOffsetSerializeWrapper,
    "delayOffset.json": DelayOffsetSerializeWrapper,
    "consumerFilter.json": ConsumerFilterWrapper,
}


def read_tables(root: Path, findings: Findings) -> Tables:
    """Read the JSON files and their backups; a file that can't be read is a finding."""
    config = root / "config"
    try:
        names = {path.name.removesuffix(".bak") for path in config.iterdir()}
    except OSError:
        names = set()
    found = {
        name: _load(config / name, findings) for name in sorted(names) if name.endswith(".json")
    }
    named = found.get("brokerName.json")
    broker_name = named.get("brokerName") if isinstance(named, dict) else None
    return Tables(
        _topics(found.get("topics.json")),
        _offsets(found.get("consumerOffset.json")),
        _delays(found.get("delayOffset.json")),
        isinstance(found.get("consumerOffset.json"), dict),
        broker_name if isinstance(broker_name, str) else None,
    )


def _load(path: Path, findings: Findings) -> Any:
    """Return the content of a table as a start reads it, from its backup if needed."""
    backup = path.with_name(path.name + ".bak")
    value, wrong = _parse(path)
    kept, wrong_backup = _parse(backup)
    if wrong is not None:
        restores = "" if kept is None else ", and a start takes its backup, which is older"
        findings.damage("table", str(path), None, f"{wrong}{restores}")
    elif value is None and kept is not None:
        sentence = f"{path} is missing, so its backup {backup.name} was taken"
        findings.note("table-backup", str(path), None, sentence)
    if wrong_backup is not None and value is None:
        findings.damage("table", str(backup), None, wrong_backup)
    elif wrong_backup is not None:
        findings.derived("small-file", str(backup), None, wrong_backup)
    return kept if value is None else value


def _parse(path: Path) -> tuple[Any, str | None]:
    """Return the content of a table and what is wrong with it; None for each that isn't."""
    text = b""
    try:
        text = path.read_bytes()
        value = relaxed_json.loads(text)
        msgspec.convert(value, _TABLES.get(path.name.removesuffix(".bak"), dict), strict=False)
    except FileNotFoundError:
        return None, None
    except OSError as error:
        return None, f"it can't be read ({error.strerror or error})"
    except (BodyError, ValueError) as error:
        return None, f"it is damaged ({error})" if text.strip() else "it is empty"
    return value, None


def check_progress(
    root: Path, view: StoreView, end: int, findings: Findings, *, clean: bool
) -> None:
    """Report damaged files of the delayed messages and of the timers.

    Args:
        root: the store's directory.
        view: of the store.
        end: of the commit log.
        findings: receives what is wrong.
        clean: the store was closed properly, so that the timer files agree.

    Raises:
        StoreError: a file can't be read.
    """
    config = root / "config"
    data = _bytes(config / delays.FILE_NAME)
    log_end = int.from_bytes(data[8:16], "big", signed=True)
    if any(data) and not data.startswith(delays.encode(delays.decode(data, log_end), log_end)):
        findings.derived("small-file", str(config / delays.FILE_NAME), None, _UNUSED)
    data = _bytes(config / timer.PROGRESS_NAME)
    progress = timer.decode_progress(data)
    if progress.store_end > end:
        progress = timer.TimerProgress()
    elif any(data) and progress == timer.TimerProgress():
        findings.derived("small-file", str(config / timer.PROGRESS_NAME), None, _UNUSED)
    data = _bytes(config / timer.CHECK_NAME)
    check = timer.decode_check(data)
    waiting = _end(view, TIMER_TOPIC, 0)
    is_zero = check == timer.TimerCheck()
    if (
        check.read_ms % timer.PRECISION_MS
        or check.queue_offset > waiting
        # In a young store only the version is set.
        or (any(data[:_PLACES_BYTES]) and is_zero)
    ):
        path = str(config / timer.CHECK_NAME)
        findings.derived("small-file", path, None, f"it is damaged: {check}")
    elif clean and (root / timer.WHEEL_NAME).exists():
        log_end = max(check.log_end, progress.log_end)
        wrong = _timers_differ(root, log_end, max(check.read_ms, progress.slot_ms))
        if wrong is not None:
            sentence = f"{wrong}; the next start builds the wheel again from the timer topic"
            findings.derived("timers", str(root / timer.WHEEL_NAME), None, sentence)


def _timers_differ(root: Path, log_end: int, read_ms: int) -> str | None:
    """Return the difference of the timer files as a sentence; None if they agree."""
    wheel, log = _bytes(root / timer.WHEEL_NAME), []
    if len(wheel) != timer.WHEEL_BYTES:
        return f"the wheel has {len(wheel)} bytes, not {timer.WHEEL_BYTES}"
    end = None
    directory = root / timer.LOG_NAME
    for path in sorted(directory.iterdir()) if directory.is_dir() else ():
        start = int(path.name) if path.name.isdecimal() else -1
        if 0 <= start < log_end:
            data = _bytes(path)
            if end not in {None, start}:
                return f"the timer log has nothing from {end} to {start}"
            end = start + len(data)
            log.append((start, memoryview(data)[: log_end - start]))
    if log_end > (end or 0):
        return f"the timer log ends at {end or 0}, not at {log_end}"
    rows = (
        row
        for begin in range(0, len(wheel), _PAGE_BYTES)  # nearly all of its pages are empty
        if wheel.count(0, begin, begin + _PAGE_BYTES) < _PAGE_BYTES
        for row in enumerate(
            timer.SLOT.iter_unpack(wheel[begin : begin + _PAGE_BYTES]), begin // timer.SLOT.size
        )
    )
    return timer.difference(rows, log, read_ms)


def _bytes(path: Path) -> bytes:
    """Return the content of a file, nothing if it doesn't exist. Raises ``StoreError``."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise StoreError(f"{path} can't be read ({error.strerror or error})") from error


def _table(content: object, name: str) -> dict[Any, Any]:
    table = content.get(name) if isinstance(content, dict) else None
    return table if isinstance(table, dict) else {}


def _topics(content: object) -> frozenset[str] | None:
    if not isinstance(content, dict):
        return None
    topics = {
        str(topic)
        for topic, row in _table(content, "topicConfigTable").items()
        if _BATCH_QUEUES not in str(row)
    }
    return frozenset(topics) if topics else None


def _offsets(content: object) -> dict[tuple[str, str, int], int]:
    offsets = {}
    for name, rows in _table(content, "offsetTable").items():
        topic, _, group = str(name).partition("@")
        for queue_id, offset in rows.items() if isinstance(rows, dict) else ():
            number = natural(str(queue_id), -1)
            if number >= 0 and isinstance(offset, int):
                offsets[topic, group, number] = offset
    return offsets


def _delays(content: object) -> dict[int, int]:
    rows = _table(content, "offsetTable").items()
    levels = {natural(str(level), -1): offset for level, offset in rows if isinstance(offset, int)}
    return {level: offset for level, offset in levels.items() if level >= 0}


def check_offsets(
    root: Path, view: StoreView, tables: Tables, findings: Findings, *, last_ms: int
) -> None:
    """Report committed offsets beyond the end of their queues, or that there are none.

    Args:
        root: the store's directory.
        view: of the store.
        tables: what ``read_tables`` has returned.
        findings: where problems are reported.
        last_ms: store time of the last message, 0 without messages.

    Raises:
        StoreError: a file can't be read.
    """
    path = str(root / "config" / "consumerOffset.json")
    if last_ms and not tables.has_offsets:
        findings.note(
            "no-offsets",
            path,
            None,
            "there are messages, but no committed offsets: groups start as if they were new",
        )
    for (topic, group, queue_id), offset in sorted(tables.offsets.items()):
        end = _end(view, topic, queue_id)
        if offset > end:
            findings.note(
                "offset-beyond",
                path,
                None,
                f"group {group} has committed offset {offset} of queue {queue_id} of topic"
                f" {topic}, which ends at {end}",
            )
    path = str(root / "config" / "delayOffset.json")
    for level, offset in sorted(tables.delays.items()):
        end = _end(view, SCHEDULE_TOPIC, level - 1)
        if level > 0 and offset > end:
            findings.note(
                "offset-beyond",
                path,
                None,
                f"delay level {level} is delivered up to {offset}, but its queue ends at {end}",
            )


def _end(view: StoreView, topic: str, queue_id: int) -> int:
    if "/" in topic or not topic or queue_id < 0:
        return 0
    found = view.queue_range(topic, queue_id)
    return found.max_offset + found.torn


def read_checkpoint(root: Path) -> bytes | None:
    """Return the bytes of RocketMQ's checkpoint; None without one. Raises ``StoreError``."""
    path = root / "checkpoint"
    return _bytes(path) if path.exists() else None


def check_checkpoint(
    root: Path, data: bytes | None, last_ms: int, findings: Findings, *, clean: bool
) -> None:
    """Report a missing checkpoint, or one that is ahead of the log.

    Args:
        root: the store's directory.
        data: the result of ``read_checkpoint``.
        last_ms: the greatest store time in the log, ms since the epoch; 0 for none.
        findings: receives what is wrong.
        clean: the store was closed properly.
    """
    path = str(root / "checkpoint")
    if data is None:
        if clean and last_ms:
            findings.derived("checkpoint", path, None, "there is no checkpoint")
        return
    try:
        found = Checkpoint.decode(data)
    except RecordError as error:
        findings.derived("checkpoint", path, None, str(error))
        return
    if len(data) != CHECKPOINT_BYTES:
        sentence = f"the checkpoint has {len(data)} bytes, not {CHECKPOINT_BYTES}"
        findings.derived("checkpoint", path, None, sentence)
    times = {"log": found.physic_ms, "queues": found.logics_ms, "index": found.index_ms}
    for place, (name, time_ms) in enumerate(times.items()):
        if last_ms and (time_ms > last_ms or time_ms < 0):
            sentence = (
                f"according to the checkpoint, the {name} was synced up to {time_ms}, but the log's"
                f" last message is of {last_ms}"
            )
            findings.derived("checkpoint", path, place * 8, sentence)


def read_own(view: StoreView, findings: Findings) -> dict[str, Any]:
    """Return the sections of PocketMQ's checkpoint; empty when it is missing or damaged."""
    try:
        return view.own_checkpoint()
    except ValueError:
        sentence = "it is damaged, and will not be used: the next start takes longer"
        findings.derived("side-file", str(view.root / OWN_CHECKPOINT), None, sentence)
        return {}

"""Checking the small files of a store: the checkpoints, and the broker's tables."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple

from broker import state_file
from broker.store.results import StoreError
from broker.storetools.verify.findings import Findings
from broker.storetools.view import OWN_CHECKPOINT, StoreView
from remoting.protocol.disk.files import CHECKPOINT_BYTES, Checkpoint
from remoting.protocol.errors import RecordError
from remoting.protocol.names import SCHEDULE_TOPIC, is_system_topic

_BATCH_QUEUES: Final = "BatchCQ"


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


def read_tables(root: Path, findings: Findings) -> Tables:
    """Read the JSON files; a file that can't be read is a finding."""
    config = root / "config"
    try:
        names = sorted(path.name for path in config.iterdir() if path.suffix == ".json")
    except OSError:
        names = []
    found = {name: _load(config / name, findings) for name in names}
    for name in ("topics.json", "consumerOffset.json"):
        if name not in found and (config / f"{name}.bak").exists():
            found[name] = _load(config / name, findings)
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
    try:
        state = state_file.load_json(path)
    except StoreError as error:
        findings.damage("table", str(path), None, str(error))
        return None
    if state.warning is not None and state.value is None:
        findings.damage("table", str(path), None, state.warning)
    elif state.warning is not None:
        findings.note("table-backup", str(path), None, state.warning)
    return state.value


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
            if str(queue_id).isdecimal() and isinstance(offset, int):
                offsets[topic, group, int(queue_id)] = offset
    return offsets


def _delays(content: object) -> dict[int, int]:
    rows = _table(content, "offsetTable").items()
    return {int(k): v for k, v in rows if str(k).isdecimal() and isinstance(v, int)}


def check_offsets(root: Path, view: StoreView, tables: Tables, findings: Findings) -> None:
    """Report committed offsets beyond the end of their queues. Raises ``StoreError``."""
    path = str(root / "config" / "consumerOffset.json")
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
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(f"{path} can't be read ({error.strerror or error})") from error


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

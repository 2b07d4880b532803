"""Where things are in a store's directory (cf. StorePathConfigHelper)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from broker.store.config import StoreConfig


@dataclass(frozen=True, slots=True)
class StorePaths:
    """The files and directories of one store."""

    root: Path
    commit_log: Path
    consume_queues: Path
    index: Path
    checkpoint: Path
    abort: Path
    """Exists while the store is open; found at a start, it tells of a crash."""
    lock: Path
    clean_stop: Path
    """What a clean stop left for the next start; see ``clean_stop``. RocketMQ has none."""
    index_note: Path
    """Likewise about the index; see ``index.builder``."""
    safe_point: Path
    """From where on a start after a crash looks; see ``safe_point``. RocketMQ has none."""

    @classmethod
    def of(cls, config: StoreConfig) -> StorePaths:
        """The paths of a configured store."""
        root = config.root
        return cls(
            root=root,
            commit_log=config.commit_log_path or root / "commitlog",
            consume_queues=root / "consumequeue",
            index=root / "index",
            checkpoint=root / "checkpoint",
            abort=root / "abort",
            lock=root / "lock",
            clean_stop=root / "pocketmq-clean-stop",
            index_note=root / "pocketmq-index",
            safe_point=root / "pocketmq-safe-point",
        )

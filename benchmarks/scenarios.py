"""What is measured, and how much better PocketMQ has to be at it.

Every bar reads "more is better for PocketMQ": our rate over Apache's, Apache's latency or CPU time
per message over ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

KIB: Final = 1024
CPU_BAR: Final = 2.0
"""CPU time of the broker per message: at most half of Apache's, where a scenario has no other."""

PREFILL: Final = 200_000
"""Messages of 1 KiB that a topic holds before it is pulled: in the page cache of any machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One kind of load.

    Attributes:
        mode: of the load generator: send, batch, pull, push; java-sync, java-async: the unmodified
            Java producer; java-mixed: it and three groups of Java push consumers.
        options: of the mode.
        bars: figure (rate, p50, p99, cpu) -> the least ratio.
        sync_flush: an acknowledgement waits for the disk.
        headline: the figure that is painted.
    """

    name: str
    text: str
    mode: str
    options: Mapping[str, int]
    bars: Mapping[str, float]
    sync_flush: bool = False
    headline: str = "rate"

    @property
    def by_java_client(self) -> bool:
        """Whether the load comes from Java clients."""
        return self.mode.startswith("java-")

    @property
    def all_bars(self) -> dict[str, float]:
        """With the one on CPU time that all have."""
        return {"cpu": CPU_BAR, **self.bars}


def _send(name: str, conns: int, inflight: int, size: int, **bars: float) -> Scenario:
    body = f"{size // KIB} KiB" if size >= KIB else f"{size} B"
    return Scenario(
        name=name,
        text=f"send {body}, {conns} x {inflight}",
        mode="send",
        options={"conns": conns, "inflight": inflight, "size": size},
        bars=bars,
    )


def _mixed(name: str, text: str, conns: int, inflight: int, topics: int, **bars: float) -> Scenario:
    shape = {"conns": conns, "inflight": inflight, "topics": topics}
    return Scenario(
        name=name,
        text=f"send 256-1,792 B, tags, keys, four clients' headers{text}, {conns} x {inflight}",
        mode="send",
        options={**shape, "size": KIB, "vary": 1, "forms": 1},
        bars=bars,
    )


def _sync(name: str, conns: int, inflight: int, rate: float) -> Scenario:
    return Scenario(
        name=name,
        text=f"send 1 KiB, SYNC_FLUSH, {conns} x {inflight}",
        mode="send",
        options={"conns": conns, "inflight": inflight, "size": KIB},
        bars={"rate": rate},
        sync_flush=True,
    )


def _pull(name: str, conns: int, rate: float) -> Scenario:
    return Scenario(
        name=name,
        text=f"pull 32 x 1 KiB, 4 queues, {conns} connection{'s' if conns > 1 else ''}",
        mode="pull",
        options={"conns": conns, "max": 32, "queues": 4},
        bars={"rate": rate},
    )


SCENARIOS: Final = (
    _mixed("send-mixed", "", 4, 64, 1, rate=3.0, p99=4.0, cpu=4.0),
    _mixed("send-topics", ", 20 topics", 16, 16, 20, rate=2.5, cpu=3.0),
    Scenario(
        name="pull-mixed",
        text="pull 32 of 256-1,792 B, one tag of five, 4 queues, 4 connections",
        mode="pull",
        options={"conns": 4, "max": 32, "queues": 4, "vary": 1},
        bars={"rate": 1.3},
    ),
    Scenario(
        name="mixed-all",
        text="Java clients at once: 64 sends in flight, three groups that pull and commit",
        mode="java-mixed",
        options={"parallel": 64, "size": KIB},
        bars={"rate": 1.5},
    ),
    _send("send-4x64", 4, 64, KIB, rate=3.0, p99=4.0),
    _send("send-1x16", 1, 16, KIB, rate=2.5, p99=2.0),
    _send("send-1x1", 1, 1, KIB, rate=1.6, p50=1.6),
    _send("send-128b-4x64", 4, 64, 128, rate=4.0),
    Scenario(
        name="batch",
        text="batches of 100 x 1 KiB, 1 x 2",
        mode="batch",
        options={"conns": 1, "inflight": 2, "size": KIB, "batch": 100},
        bars={"rate": 1.3, "p50": 0.9, "cpu": 1.8},
    ),
    _sync("sync-1x1", 1, 1, 1.3),
    _sync("sync-4x64", 4, 64, 1.6),
    _sync("sync-16x64", 16, 64, 2.0),
    _pull("pull-1", 1, 1.4),
    _pull("pull-4", 4, 1.4),
    Scenario(
        name="long-poll",
        text="send to delivery by long poll, 500/s",
        mode="push",
        options={"rate": 500, "size": KIB},
        bars={"p50": 6.0},
        headline="p50",
    ),
    Scenario(
        name="java-sync",
        text="the Java producer, 1 KiB, 16 threads sync",
        mode="java-sync",
        options={"parallel": 16, "size": KIB},
        bars={"rate": 1.5},
    ),
    Scenario(
        name="java-async",
        text="the Java producer, 1 KiB, 256 async",
        mode="java-async",
        options={"parallel": 256, "size": KIB},
        bars={"rate": 2.0},
    ),
)

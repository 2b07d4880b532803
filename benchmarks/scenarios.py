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
"""CPU time of the broker per message: at most half of Apache's, in each scenario."""

PREFILL: Final = 200_000
"""Messages of 1 KiB that a topic holds before it is pulled: in the page cache of any machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One kind of load.

    Attributes:
        mode: of the load generator: send, batch, pull, push; java-sync, java-async: the unmodified
            Java producer.
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
        """Whether the load comes from the Java producer."""
        return self.mode.startswith("java-")

    @property
    def all_bars(self) -> dict[str, float]:
        """With the one on CPU time that all have."""
        return {**self.bars, "cpu": CPU_BAR}


def _send(name: str, conns: int, inflight: int, size: int, **bars: float) -> Scenario:
    body = f"{size // KIB} KiB" if size >= KIB else f"{size} B"
    return Scenario(
        name=name,
        text=f"send {body}, {conns} x {inflight}",
        mode="send",
        options={"conns": conns, "inflight": inflight, "size": size},
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
    _send("send-4x64", 4, 64, KIB, rate=1.5, p99=3.0),
    _send("send-1x16", 1, 16, KIB, rate=2.0),
    _send("send-1x1", 1, 1, KIB, rate=1.8, p50=2.0),
    _send("send-128b-4x64", 4, 64, 128, rate=1.5),
    Scenario(
        name="batch",
        text="batches of 100 x 1 KiB, 1 x 2",
        mode="batch",
        options={"conns": 1, "inflight": 2, "size": KIB, "batch": 100},
        bars={"rate": 1.3},
    ),
    _sync("sync-1x1", 1, 1, 1.4),
    _sync("sync-4x64", 4, 64, 1.2),
    _sync("sync-16x64", 16, 64, 1.3),
    _pull("pull-1", 1, 1.5),
    _pull("pull-4", 4, 1.3),
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
        bars={"rate": 1.3},
    ),
)

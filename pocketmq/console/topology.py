"""The cluster as a picture: producer groups, topics and consumer groups, and who uses what."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from pocketmq.console.show import visible
from pocketmq.console.snapshot import ClusterSnapshot

MOST: Final = 40
"""Most topics in the picture: those with the most messages per second, and the most lag."""

ROW: Final = 34
WIDTH: Final = 220
GAP: Final = 180
HEIGHT: Final = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureBox:
    """A box of the picture: ``page`` and ``name`` are where it leads."""

    x: int
    y: int
    text: str
    name: str
    page: str
    late: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureLine:
    """A line between two boxes; the more messages, the wider."""

    path: str
    width: float
    late: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPicture:
    """The picture; ``left_out`` is the number of topics that aren't in it."""

    boxes: tuple[PictureBox, ...]
    lines: tuple[PictureLine, ...]
    width: int
    height: int
    left_out: int


def drawn(snapshot: ClusterSnapshot, producers: Collection[str]) -> ClusterPicture:
    """Draw the topics that are used most, with their consumer groups, and the producer groups.

    Producers don't tell brokers which topics they send to, so no lines lead from them.
    """
    by_use = sorted(
        snapshot.topics.values(), key=lambda topic: (-(topic.per_second or 0), -topic.lag)
    )
    shown = sorted(by_use[:MOST], key=lambda topic: topic.name)
    groups = sorted({group for topic in shown for group in topic.groups})[: 2 * MOST]
    left = _column(sorted(producers)[:MOST], 0, "")
    begin = WIDTH + GAP if left else 0
    late = {name for name in groups if snapshot.groups[name].total > 0}
    middle = _column([topic.name for topic in shown], begin, "topic")
    right = _column(groups, begin + WIDTH + GAP, "group", late)
    lines = []
    for topic in shown:
        for name, lag in topic.groups.items():
            if name in right:
                start, end = middle[topic.name], right[name]
                width = 1 + min(5.0, math.log10(1 + snapshot.groups[name].per_second) * 1.5)
                lines.append(PictureLine(path=_curve(start, end), width=width, late=lag > 0))
    rows = max(len(left), len(middle), len(right), 1)
    return ClusterPicture(
        boxes=(*left.values(), *middle.values(), *right.values()),
        lines=tuple(lines),
        width=begin + 2 * WIDTH + GAP,
        height=rows * ROW,
        left_out=len(by_use) - len(shown),
    )


def _column(
    names: Collection[str], x: int, page: str, late: Collection[str] = ()
) -> Mapping[str, PictureBox]:
    return {
        name: PictureBox(
            x=x, y=row * ROW, text=visible(name, 28), name=name, page=page, late=name in late
        )
        for row, name in enumerate(names)
    }


def _curve(start: PictureBox, end: PictureBox) -> str:
    x1, y1 = start.x + WIDTH, start.y + HEIGHT // 2
    x2, y2 = end.x, end.y + HEIGHT // 2
    middle = (x1 + x2) // 2
    return f"M{x1},{y1} C{middle},{y1} {middle},{y2} {x2},{y2}"

"""Draw the documents' pictures: ``python scripts/pictures.py`` writes docs/pictures/*.svg.

Each picture is a list of shapes with coordinates in pixels. The colours follow the reader's
preference for light or dark; a picture has its own background, so both fit on any page.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from html import escape
from pathlib import Path

HOME = Path(__file__).resolve().parents[1]
TO = HOME / "docs" / "pictures"
WIDTH = 760

STYLE = """
.page { fill: #fff } .box { fill: #f4f5f8; stroke: #8a93a6 } text { fill: #1b1e24 }
.ours { fill: #e3ecff; stroke: #2050c0 } .bad { fill: #fdeedd; stroke: #9a4f00 }
.small { font-size: 11px }
.quiet { fill: #596275 } .line { stroke: #596275; fill: none; stroke-width: 1.5 }
.head { fill: #596275 } .life { stroke: #8a93a6; stroke-dasharray: 4 4 }
@media (prefers-color-scheme: dark) {
.page { fill: #1b1e24 } .box { fill: #272c35; stroke: #7a8496 } text { fill: #e8eaee }
.ours { fill: #20315a; stroke: #7ea4ff } .bad { fill: #45301a; stroke: #f0a050 }
.quiet { fill: #a8b0be } .line { stroke: #a8b0be } .head { fill: #a8b0be } .life { stroke: #7a8496 }
}
"""


def box(x: int, y: int, width: int, words: str, kind: str = "box", height: int = 44) -> str:
    """Return a box; the lines of its text after the first are quieter."""
    lines = words.split("\n")
    first = y + height / 2 + 5 - 8.5 * (len(lines) - 1)
    shown = "".join(
        label(x + width // 2, int(first + 17 * number), line, "quiet" if number else "")
        for number, line in enumerate(lines)
    )
    return (
        f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}" rx="6"/>\n{shown}'
    )


def label(x: int, y: int, words: str, kind: str = "", anchor: str = "middle") -> str:
    """Return a line of text."""
    return f'<text class="{kind}" x="{x}" y="{y}" text-anchor="{anchor}">{escape(words)}</text>\n'


def arrow(path: str, words: str = "", x: int = 0, y: int = 0, anchor: str = "middle") -> str:
    """Return an arrow along points such as ``10,20 30,20``, with a text."""
    shown = f'<polyline class="line" points="{path}" marker-end="url(#head)"/>\n'
    return shown + (label(x, y, words, "quiet", anchor) if words else "")


def across(y: int, start: int, end: int, words: str) -> str:
    """Return a message between two life lines."""
    gap = 4 if start < end else -4
    return arrow(f"{start + gap},{y} {end - gap},{y}", words, (start + end) // 2, y - 7)


def parts() -> Iterator[str]:
    """Draw who connects to whom."""
    yield box(20, 40, 150, "producers\nPython, Java, C++")
    yield box(590, 40, 150, "consumers\npush, pull, groups")
    yield box(290, 40, 180, "name server\nwhich broker has what", "ours")
    yield box(290, 160, 180, "broker\ncommit log\nconsume queues", "ours", 72)
    yield box(20, 280, 150, "slave\na copy of the data")
    yield box(210, 280, 150, "web console\ncommand line")
    yield box(400, 280, 150, "Prometheus\nGrafana")
    yield box(590, 280, 150, "Spark\nbatch and streaming")
    yield arrow("170,56 286,56", "1 where is orders?", 228, 32)
    yield arrow("590,56 474,56", "1 where is orders?", 532, 32)
    yield arrow("380,160 380,88", "2 registers", 388, 128, "start")
    yield arrow("95,84 95,180 286,180", "3 sends", 190, 172)
    yield arrow("665,84 665,180 474,180", "4 pulls", 570, 172)
    yield arrow("95,280 95,214 286,214", "copies the log", 190, 206)
    yield arrow("665,280 665,214 474,214", "reads, writes", 570, 206)
    yield arrow("320,280 320,236", "asks", 312, 262, "end")
    yield arrow("440,280 440,236", "metrics", 448, 262, "start")


def message() -> Iterator[str]:
    """Draw the life of a message."""
    yield label(20, 28, "The life of a message", "quiet", "start")
    yield box(20, 50, 120, "producer\nsend()")
    yield box(220, 50, 150, "commit log\nall topics, in order", "ours")
    yield box(450, 50, 150, "consume queue\nits place in the log", "ours")
    yield arrow("140,72 216,72", "1", 178, 66)
    yield arrow("370,72 446,72", "3", 408, 66)
    yield box(220, 150, 150, "disk\nsynced, or soon", "ours")
    yield arrow("295,94 295,146", "2", 305, 125, "start")
    yield arrow("220,172 80,172 80,98", "acknowledged", 150, 166)
    yield box(450, 150, 150, "consumer\nhandler(message)")
    yield arrow("525,94 525,146", "4 pulled", 535, 125, "start")
    yield box(450, 250, 150, "committed offset\nof the group", "ours")
    yield arrow("525,194 525,246", "5 done", 535, 225, "start")
    yield box(20, 250, 350, "deleted after 72 hours, consumed or not\nwith its file of the log")
    yield arrow("295,194 295,246", "6", 305, 225, "start")
    yield label(615, 70, "other groups read", "quiet", "start")
    yield label(615, 88, "the same message", "quiet", "start")


def rebalance() -> Iterator[str]:
    """Draw how the members of a group share queues."""
    for left, title, members in (
        (20, "A alone", {"A": "0 1 2 3"}),
        (270, "B joins", {"A": "0 1", "B": "2 3"}),
        (520, "A is killed", {"A": "", "B": "0 1 2 3"}),
    ):
        yield label(left + 110, 30, title)
        for number in range(4):
            owner = next(name for name, queues in members.items() if str(number) in queues)
            at = left + 57 * number
            end = left + (55 if owner == "A" else 165)
            yield box(at, 46, 49, f"q{number}", "ours", 30)
            yield arrow(f"{at + 24},76 {end},146")
        for place, (name, queues) in enumerate(members.items()):
            kind = "box" if queues else "bad"
            words = f"member {name}\n{len(queues.split())} queues" if queues else "member A\ngone"
            yield box(left + 110 * place, 150, 110 if len(members) == 1 else 106, words, kind)
    for x in (258, 508):
        yield f'<line class="life" x1="{x}" y1="20" x2="{x}" y2="200"/>\n'
    yield label(
        380, 225, "A queue has one owner at a time, who goes on at the committed offset.", "quiet"
    )


def retry() -> Iterator[str]:
    """Draw retries and dead letters."""
    yield box(20, 20, 120, "orders\nthe topic", "ours")
    yield box(230, 20, 150, "handler\nof billing")
    yield box(480, 20, 150, "committed\nthe next message", "ours")
    yield arrow("140,42 226,42", "pull", 183, 34)
    yield arrow("380,42 476,42", "returns", 428, 34)
    yield box(230, 140, 150, "%RETRY%billing\nwaits at the broker", "bad")
    yield arrow("330,64 330,136", "raises", 338, 106, "start")
    yield arrow("270,140 270,68", "10 s, 30 s, 1 min … 2 h", 262, 106, "end")
    yield box(480, 140, 150, "%DLQ%billing\ndead letters", "bad")
    yield arrow("380,162 476,162", "16 retries", 428, 154)
    yield arrow("370,64 555,136", "raises DeadLetter", 480, 98, "start")
    yield arrow("555,184 555,220 80,220 80,68", "sent back: pocketmq message dlq redrive", 318, 238)


def transaction() -> Iterator[str]:
    """Draw a transaction in time."""
    producer, broker, consumer = 120, 400, 660
    for x, words in ((producer, "producer"), (broker, "broker"), (consumer, "consumer")):
        yield f'<line class="life" x1="{x}" y1="56" x2="{x}" y2="370"/>\n'
        yield box(x - 70, 20, 140, words, "ours" if x == broker else "box", 36)
    yield across(92, producer, broker, "half message, which nobody gets")
    yield across(122, broker, producer, "stored")
    yield box(producer - 90, 138, 180, "your database commits", height=32)
    yield across(202, producer, broker, "commit, or rollback")
    yield across(222, broker, consumer, "only if committed: the message")
    yield box(broker - 130, 244, 260, "no answer for a while?", "bad", 32)
    yield across(308, broker, producer, "how did it end? (up to 15 times)")
    yield across(340, producer, broker, "transaction_checker: commit or rollback")
    yield across(360, broker, consumer, "only if committed: the message")


def spark() -> Iterator[str]:
    """Draw a streaming query."""
    for number in range(3):
        yield box(20, 40 + 50 * number, 130, f"orders queue {number}", "ours", 36)
        yield arrow(f"150,{58 + 50 * number} 236,{90 + 18 * number}")
    yield box(240, 70, 150, "source rocketmq\na task for each range\nof offsets", height=76)
    yield box(460, 70, 130, "your query\na DataFrame", height=76)
    yield box(640, 20, 100, "a topic", "ours", 36)
    yield box(640, 90, 100, "files, tables", height=36)
    yield arrow("390,108 456,108")
    yield arrow("590,100 636,42")
    yield arrow("590,108 636,108")
    yield box(240, 200, 340, "checkpoint\na restart repeats the last micro-batch")
    yield arrow("315,146 315,196", "offsets", 323, 176, "start")
    yield arrow("525,196 525,150", "restart", 533, 176, "start")
    yield box(640, 200, 100, "group lag", "ours", 44)
    yield arrow("580,222 636,222", "commits", 608, 214)


def grafana() -> Iterator[str]:
    """Draw the panels of the dashboard, from its file."""
    panels = json.loads((HOME / "deploy" / "grafana.json").read_text())["panels"]
    column, row, top, skipped = 30, 5, 8, 0
    for panel in panels:
        at = panel["gridPos"]
        y = top + at["y"] * row + skipped
        if panel["type"] == "row":
            skipped += 22
            yield label(20, y + 22, panel["title"], "", "start")
            continue
        kind = "ours" if panel["type"] == "stat" else "box"
        left, width, height = at["x"] * column + 20, at["w"] * column - 8, at["h"] * row - 6
        yield box(left, y, width, "", kind, height)
        yield label(left + width // 2, y + height // 2 + 4, panel["title"], "small")


PICTURES = {
    "parts": (parts, 345),
    "message": (message, 315),
    "rebalance": (rebalance, 245),
    "retry": (retry, 255),
    "transaction": (transaction, 385),
    "spark": (spark, 265),
    "grafana": (grafana, 1006),
}
"""What draws each picture, and its height."""


def svg(name: str) -> str:
    """Return a picture."""
    draw, height = PICTURES[name]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}"'
        f' font-family="system-ui, sans-serif" font-size="13">\n<style>{STYLE}</style>\n'
        '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7"'
        ' orient="auto"><path class="head" d="M0,0 L8,4 L0,8 z"/></marker>\n'
        f'<rect class="page" width="{WIDTH}" height="{height}" rx="8"/>\n{"".join(draw())}</svg>\n'
    )


def main() -> None:
    """Write all pictures."""
    for name in PICTURES:
        (TO / f"{name}.svg").write_text(svg(name))


if __name__ == "__main__":
    main()

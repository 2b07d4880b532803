"""``python -m examples.demo.group``: members join, one is killed, and every flight is handled."""

from __future__ import annotations

import subprocess
import sys

from tests.support.tour import HOME


def test_the_group_demo_prints_what_happens_and_what_it_checked() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "examples.demo.group", "2000"],
        cwd=HOME,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    texts = [text for _, text in rows]
    assert any("is idle, for there are 5 members but only 4 queues" in text for text in texts)
    assert any("is killed" in text for text in texts)
    assert any("as a dead letter" in text for text in texts)
    assert any(text.startswith("queue 0 member") for name, text in rows if name == "billing")
    facts = dict(rows)
    assert facts["billing"].startswith("every flight was handled, ")
    assert facts["boarding"].startswith("order kept for ")
    assert facts["boarding"].endswith("0 flights handled twice, 1 dead letter")

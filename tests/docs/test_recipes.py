"""Each recipe runs as it is shown and prints what its page says.

tests/spark runs the one for Spark in its session, and tests/interop moves a store by that recipe.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from client import blocking
from pocketmq import testing
from tests.support.tour import DEFAULT, HOME, holds_test, only_block, recipes, run, run_tests

INDEX = HOME / "docs" / "recipes" / "index.md"
MOVING = "operating.md#moving-a-store-to-apache-rocketmq-and-back"
PROGRAMS = [
    place for place, text in recipes().items() if "```python" in text and "pyspark" not in text
]
QUICK_CHECKS = {"transactionTimeOut": "500", "transactionCheckInterval": "500"}
"""The broker asks about a transaction without an end at once; by default after 6 to 36 s."""


@pytest.fixture(scope="module")
def server() -> Iterator[testing.StandaloneServer]:
    with testing.broker(settings=QUICK_CHECKS) as running:
        yield running


@pytest.mark.parametrize("place", PROGRAMS)
def test_a_recipe_prints_what_its_page_shows(
    place: str, server: testing.StandaloneServer, tmp_path: Path
) -> None:
    text = recipes()[place]
    program = only_block(text, "python")
    if holds_test(program):
        run_tests([program], server.nameserver, tmp_path)
        return
    file = tmp_path / "recipe.py"
    file.write_text(program.replace(DEFAULT, server.nameserver))
    done = run([sys.executable, str(file)], server.nameserver, tmp_path)
    assert done.stdout == only_block(text, "text"), done.stderr


def test_a_store_is_checked_and_copied_before_it_moves(
    server: testing.StandaloneServer, tmp_path: Path
) -> None:
    with blocking.Producer(server.nameserver, group="shop") as producer:
        producer.send("orders", b"tea")
    typed = only_block(recipes()[MOVING], "console")
    typed = typed.replace("/var/lib/pocketmq", str(server.store)).replace("/backup", str(tmp_path))
    for line in typed.splitlines():
        run([sys.executable, "-m", *shlex.split(line.removeprefix("$ "))], "", tmp_path)
    assert any((tmp_path / "before-the-move" / "commitlog").iterdir())


def test_the_index_names_every_recipe() -> None:
    linked = re.findall(r"\]\(([^)]+\.md#[^)]+)\)", INDEX.read_text())
    assert sorted(linked) == sorted(recipes())

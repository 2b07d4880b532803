"""Each recipe runs as it is shown and prints what its page says."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pocketmq import testing
from tests.support.tour import DEFAULT, HOME, holds_test, run, run_tests

RECIPES = HOME / "docs" / "recipes"
INDEX = RECIPES / "index.md"
QUICK_CHECKS = {"transactionTimeOut": "500", "transactionCheckInterval": "500"}
"""The broker asks about a transaction without an end at once; by default after 6 to 36 s."""


def recipes() -> dict[str, str]:
    """Return the text of each recipe by its page and anchor."""
    found = {}
    for page in sorted(RECIPES.glob("*.md")):
        for title, text in re.findall(
            r"^## (.+?)\n(.*?)(?=^## |\Z)", page.read_text(), re.MULTILINE | re.DOTALL
        ):
            anchor = re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")
            found[f"{page.name}#{anchor}"] = text
    return found


def only_block(text: str, language: str) -> str:
    """Return the one block of a language."""
    (block,) = re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return str(block)


@pytest.fixture(scope="module")
def server() -> Iterator[testing.StandaloneServer]:
    with testing.broker(settings=QUICK_CHECKS) as running:
        yield running


@pytest.mark.parametrize("place", recipes())
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


def test_the_index_names_every_recipe() -> None:
    linked = re.findall(r"\]\(([^)]+\.md#[^)]+)\)", INDEX.read_text())
    assert sorted(linked) == sorted(recipes())

"""The page on consumer groups matches the code: sections, log lines, doctor lines."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from broker.groups.health import ANCHORS
from tests.support.tour import HOME, blocks

PAGE = HOME / "docs" / "consumer-groups.md"
LESSONS = [
    "one-group-one-subscription",
    "all-else-must-match",
    "one-owner-per-queue",
    "clean-close-and-vanished-hosts",
    "order-within-a-queue",
    "a-failing-ordered-message-stops-its-queue",
    "from-last-is-not-always-the-end",
    "no-stored-offset-is-a-fact",
    "more-objects-are-not-speed",
    "groups-are-independent",
]


def anchors() -> list[str]:
    return re.findall(r'<a id="([a-z-]+)"></a>', PAGE.read_text())


@cache
def texts(*packages: str) -> frozenset[str]:
    """Return every string in the code of these packages."""
    found: set[str] = set()
    for package in packages:
        for file in (HOME / package).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.add(node.value)
    return frozenset(found)


def sections_named_in_code() -> set[str]:
    named = set(ANCHORS.values())
    for text in texts("broker", "client", "pocketmq", "remoting"):
        named.update(re.findall(r"consumer-groups\.md#([a-z-]+)", text))
        if re.fullmatch(r"#[a-z]+(-[a-z]+)+", text):
            named.add(text[1:])
    return named


def test_each_lesson_has_a_diagram_log_lines_doctor_lines_and_a_fix() -> None:
    text = PAGE.read_text()
    assert [anchor for anchor in anchors() if anchor in LESSONS] == LESSONS
    lessons = re.findall(r"^## \d+\. .*?(?=^## )", text, re.MULTILINE | re.DOTALL)
    assert len(lessons) == len(LESSONS)
    for lesson in lessons:
        assert all(part in lesson for part in ("\n```\n", "```log", "```doctor", "**Fix.**"))


def test_anchors_are_unique() -> None:
    assert len(anchors()) == len(set(anchors()))


@pytest.mark.parametrize("name", sorted(sections_named_in_code()))
def test_every_section_that_the_code_links_to_exists(name: str) -> None:
    assert name in anchors()


@pytest.mark.parametrize(
    "line", [line for block in blocks(PAGE, "log") for line in block.splitlines()]
)
def test_every_log_line_exists_in_the_code(line: str) -> None:
    where, _, rest = line.partition(" ")
    level, event = rest.split("  ")[:2] if rest.count("  ") else (rest, "")
    assert where in {"broker", "client"}
    assert level in {"info", "warning"}
    assert event in texts(where), event


@pytest.mark.parametrize(
    "line", [line for block in blocks(PAGE, "doctor") for line in block.splitlines()]
)
def test_every_doctor_line_belongs_to_an_existing_check(line: str) -> None:
    verdict, check, _ = re.split(r"\s{2,}", line, maxsplit=2)
    assert verdict in {"ok", "warning", "failed"}
    assert check in texts("pocketmq/doctor"), check


@pytest.mark.parametrize(
    "document", sorted((HOME / "docs").glob("*.md")), ids=lambda file: file.name
)
def test_links_within_a_document_resolve(document: Path) -> None:
    text = document.read_text()
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    slugs = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}
    known = slugs | set(re.findall(r'<a id="([a-z-]+)">', text))
    for target in re.findall(r"\]\(#([^)]+)\)", text):
        assert target in known, target

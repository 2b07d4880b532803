"""What the documents show works: every Python block, the README's tour, every link."""

from __future__ import annotations

import ast
import os
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker import fast_path
from pocketmq import testing
from remoting.runtime import DOCS
from tests.support.tour import DOCUMENTS, HOME, README, blocks, take

MADE_BY_THE_SITE = {"about.md"}
"""scripts/site.py makes it from the README; ``make docs`` checks the links to it."""


@pytest.fixture(scope="module")
def server() -> Iterator[testing.StandaloneServer]:
    with testing.broker() as running:
        yield running


def test_the_tour_of_the_readme_works_as_it_is_shown(
    server: testing.StandaloneServer, tmp_path: Path
) -> None:
    take(server.nameserver, tmp_path)


def test_the_first_start_prints_the_line_that_the_readme_shows(tmp_path: Path) -> None:
    block = next(text for text in blocks(README, "console") if "standalone" in text)
    typed, expected = block.splitlines()[-2:]
    ports = ["--nameserver-port", "0", "--broker-port", "0"]
    words = [*shlex.split(typed.removeprefix("$ pocketmq ")), *ports]
    small = ["--set", "mappedFileSizeCommitLog=1048576"]
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "pocketmq", *words, *small],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(HOME)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        process.terminate()
    expected = expected.replace("core compiled", f"core {fast_path.KIND}")
    assert re.sub(r":\d+", ":", line.strip()) == re.sub(r":\d+", ":", expected)
    assert process.returncode == 0


def test_the_first_screen_of_the_readme_says_how_many_copies_there_are() -> None:
    assert "[copy of the data]" in README.read_text().partition("```")[0]


@pytest.mark.parametrize(
    "document", DOCUMENTS, ids=lambda document: str(document.relative_to(HOME))
)
def test_every_link_to_a_file_resolves(document: Path) -> None:
    for target in re.findall(r"\]\(([^)# ]+)(?:[# ][^)]*)?\)", document.read_text()):
        if "://" not in target and target not in MADE_BY_THE_SITE:
            assert (document.parent / target).exists(), target


def test_every_yes_of_the_compatibility_page_is_a_test() -> None:
    page = (HOME / "docs" / "compatibility.md").read_text()
    cells = re.findall(r'\[yes\]\(\.\./([^ )]+) "([^"]+)"\)', page)
    collected = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "tests/interop"],
        cwd=HOME,
        env={**os.environ, "CI": "true", "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    tests = set(collected.stdout.splitlines())
    assert page.count("yes](") == len(cells)
    assert [f"{file}::{name}" for file, name in cells if f"{file}::{name}" not in tests] == []


def test_the_drawn_pictures_are_as_their_script_draws_them() -> None:
    """Run scripts/pictures.py when this fails."""
    script = runpy.run_path(str(HOME / "scripts" / "pictures.py"))
    drawn = {f"{name}.svg": script["svg"](name) for name in script["PICTURES"]}
    folder = HOME / "docs" / "pictures"
    assert {file.name: file.read_text() for file in folder.glob("*.svg")} == drawn


def test_every_picture_is_shown() -> None:
    shown = " ".join(document.read_text() for document in DOCUMENTS)
    for file in (HOME / "docs" / "pictures").iterdir():
        assert f"pictures/{file.name})" in shown, file.name


def printed_texts() -> Iterator[str]:
    """Return every string in the packages that isn't a docstring."""
    for package in ("remoting", "nameserver", "broker", "client", "spark_connector", "pocketmq"):
        for file in (HOME / package).rglob("*.py"):
            tree = ast.parse(file.read_text())
            prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
            for node in ast.walk(tree):
                if isinstance(node, ast.Constant) and id(node) not in prose:
                    yield str(node.value)


def test_the_index_of_errors_has_texts_that_are_printed_in_their_order() -> None:
    page = (HOME / "docs" / "errors-index.md").read_text()
    indexed = re.findall(r"^\| `(.*?)` \|", page, re.MULTILINE)
    printed = "\n".join(printed_texts())
    parts = [part for text in indexed for part in text.split("…")]
    assert [part for part in parts if part not in printed] == []
    assert len(indexed) > 10
    assert indexed == sorted(indexed, key=str.lower)


def test_a_page_is_named_by_its_address_which_is_the_projects() -> None:
    project = tomllib.loads((HOME / "pyproject.toml").read_text())["project"]
    assert project["urls"]["Documentation"] + "/" == DOCS
    assert DOCS.startswith(project["urls"]["Source"])
    assert DOCS.endswith("/docs/")
    pages = [page for text in printed_texts() for page in re.findall(r"[\w./-]*\w\.md", text)]
    assert {page for page in pages if (HOME / "docs" / page).exists()} == set(pages)
    assert "consumer-groups.md" in pages


def test_make_demo_says_what_it_is_busy_with_and_what_comes_next() -> None:
    told = subprocess.run(
        ["make", "--no-print-directory", "-nB", "demo", f"PYTHON={sys.executable}"],
        cwd=HOME,
        env={name: value for name, value in os.environ.items() if name != "CI"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout
    order = ["Installing the packages", "pip install", "Compiling the core", "Spark runs next"]
    places = [told.index(text) for text in order]
    assert places == sorted(places)
    (install,) = [line for line in told.splitlines() if "--require-hashes" in line]
    assert "--quiet" not in install

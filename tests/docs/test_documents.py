"""What the documents show works: every Python block, every command of the tour, every link."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from pocketmq import testing
from pocketmq.cli import root
from tests.tour import HOME, README, blocks, run_python, take

DOCUMENTS = [README, HOME / "CONTRIBUTING.md", *sorted((HOME / "docs").glob("*.md"))]


def commands(document: Path) -> list[str]:
    """The lines of the console blocks that somebody types, continuations joined."""
    text = "\n".join(blocks(document, "console")).replace("\\\n", " ")
    return [line[2:] for line in text.splitlines() if line.startswith("$ ")]


@pytest.fixture(scope="module")
def server() -> Iterator[testing.StandaloneServer]:
    with testing.broker() as running:
        yield running


def test_the_tour_of_the_readme_works_as_it_is_shown(
    server: testing.StandaloneServer, tmp_path: Path
) -> None:
    take(server.nameserver, tmp_path)


def test_every_python_block_of_the_other_documents_runs(
    server: testing.StandaloneServer, tmp_path: Path
) -> None:
    for document in DOCUMENTS[1:]:
        for block in blocks(document, "python"):
            run_python(block, server.nameserver, tmp_path)


def test_the_first_start_prints_the_line_that_the_readme_shows(tmp_path: Path) -> None:
    block = next(text for text in blocks(README, "console") if "standalone" in text)
    typed, told = block.splitlines()[-2:]
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
    assert re.sub(r":\d+", ":", line.strip()) == re.sub(r":\d+", ":", told)
    assert process.returncode == 0


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(line, id=f"{document.name}-{number}")
        for document in DOCUMENTS
        for number, line in enumerate(commands(document), 1)
    ],
)
def test_every_command_that_is_shown_exists_with_its_options(line: str) -> None:
    for part in re.split(r"\s[|&;]+\s", line):
        words = shlex.split(part.partition(" > ")[0], comments=True)
        if words and words[0] == "pocketmq":
            check_command(root, words[1:])


def check_command(command: click.Command, words: list[str]) -> None:
    context = click.Context(command, info_name="pocketmq")
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        found = command.get_command(context, words[0])
        assert found is not None, f"there is no command {words[0]}"
        command, words = found, words[1:]
    known = {name for option in command.get_params(context) for name in option.opts}
    for word in words:
        if word.startswith("--"):
            assert word.partition("=")[0] in known, word


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.name)
def test_every_link_to_a_file_leads_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", document.read_text()):
        if "://" not in target:
            assert (document.parent / target).exists(), target

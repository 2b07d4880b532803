"""The tutorial, from its first command to its last, prints what it shows.

``POCKETMQ_RECORD=1`` writes what was printed into the page.
"""

from __future__ import annotations

import os
import re
import select
import shlex
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import pytest

from broker import fast_path
from tests.support.tour import DEFAULT, HOME, environment

PAGE = HOME / "docs" / "tutorial.md"
BLOCK = re.compile(r"^```(console|python)\n(.*?)^```", re.MULTILINE | re.DOTALL)
QUICK = "messageDelayLevel=1s 1s 1s"
"""The first retry comes after a second; the page says 10, which are the default."""

PATIENCE = 30.0
"""Seconds without a new line after which a program is interrupted."""

DIFFERS = (
    (r"\b[0-9A-F]{32}\b", "ID"),
    (r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d+)?", "TIME"),
    (r":\d{4,5}\b", ":PORT"),
    (r"\d+\.\d+ ?s\b", "SECONDS"),
    (r"core \w+", "core"),
    (r"[ ]+", " "),
)
"""What is not the same each time, and the columns of tables that depend on it."""


def same(text: str) -> str:
    for pattern, name in DIFFERS:
        text = re.sub(pattern, name, text)
    lines = [line.rstrip() for line in text.splitlines()]
    # The log and the handler's output are written by two threads.
    return "\n".join(sorted(lines) if text.endswith("^C\n") else lines)


def without_frames(told: bytes) -> str:
    """Return what was printed without the frames of tracebacks, which name our lines."""
    text = told.decode(errors="replace").replace("\r\n", "\n")
    return re.sub(r"(?<=last\):\n)(  .*\n)+", "  …\n", text)


class Terminal:
    """A shell in a new directory, beside the broker that the tutorial starts."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.nameserver = DEFAULT
        self.console = ""

    @contextmanager
    def typed(self, line: str) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
        """Run a line at a terminal of 80 columns; yield what is printed, and the process."""
        ours, theirs = os.openpty()
        width = {
            "COLUMNS": "80",
            "LINES": "24",
            "TERM": "dumb",
            "PYTHONUNBUFFERED": "1",
            "PYTHONWARNINGS": "ignore",
        }
        with subprocess.Popen(
            # If the suite runs in the background, it ignores SIGINT, which its children inherit.
            ["env", "--default-signal=INT", "bash", "-c", f"exec {line}"],
            cwd=self.directory,
            env={**environment(self.nameserver), **width},
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        ) as process:
            os.close(theirs)
            try:
                yield ours, process
            finally:
                os.close(ours)
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)

    def run(self, line: str, lines: int | None) -> str:
        """Return what a line prints; if ``lines`` is given, press Ctrl-C after so many."""
        told = b""
        with self.typed(line) as (terminal, process):
            while True:
                if not select.select([terminal], [], [], PATIENCE)[0]:
                    process.send_signal(signal.SIGINT)
                    continue
                try:
                    read = os.read(terminal, 4096)
                except OSError:  # how Linux tells that the other end is closed
                    break
                if not read:
                    break
                told += read
                if lines is not None and without_frames(told).count("\n") >= lines:
                    lines = None
                    process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0, told.decode()
        return without_frames(told)

    @contextmanager
    def broker(self, line: str) -> Iterator[str]:
        """Run the broker, on free ports and with a small store; yield its first line."""
        options = f"--nameserver-port 0 --broker-port 0 --console-port 0 --set {shlex.quote(QUICK)}"
        small = "--set mappedFileSizeCommitLog=1048576"
        with self.typed(f"{line} {options} {small} 2>log") as (terminal, process):
            told = b""
            while not told.endswith(b"\n"):
                told += os.read(terminal, 4096)
            address = re.findall(r"127\.0\.0\.1:\d+", told.decode())
            self.nameserver, self.console = address[0], address[2]
            yield told.decode()
            process.terminate()
            process.wait(60)


def printed(terminal: Terminal, block: str) -> str:
    """Return a block of commands with what they print now."""
    now = ""
    for command, shown in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE):
        lines = shown.count("\n") - 1 if shown.endswith("^C\n") else None
        told = terminal.run(command, lines) + ("" if lines is None else "^C\n")
        now += f"$ {command}\n" + (shown if same(told) == same(shown) else told)
    return now


@pytest.mark.timeout(300)
def test_the_tutorial_prints_what_it_shows(tmp_path: Path) -> None:
    page = PAGE.read_text()
    start = next(text for kind, text in BLOCK.findall(page) if "pocketmq standalone" in text)
    typed, shown = start.splitlines()
    terminal = Terminal(tmp_path)
    with terminal.broker(typed.removeprefix("$ ")) as ready:
        assert same(ready) == same(shown)
        now = BLOCK.sub(lambda block: done(terminal, page, block), page)
    if os.environ.get("POCKETMQ_RECORD"):
        PAGE.write_text(now)
    assert now == page
    assert f"core {fast_path.KIND}" in ready


def done(terminal: Terminal, page: str, block: re.Match[str]) -> str:
    """Do what a block says; return it as it is now."""
    kind, text = block.groups()
    before = page[: block.start()].rstrip().rpartition("\n")[2]
    if kind == "console":
        if re.match(r"\$ (pip|pocketmq standalone) ", text):
            return block[0]
        if "dlq list" in text:
            with urlopen(f"http://{terminal.console}/dead?group=billing", timeout=60) as answer:
                assert "invalid literal for int()" in answer.read().decode()
        return f"```console\n{printed(terminal, text)}```"
    text = text.replace(DEFAULT, terminal.nameserver)
    saved = re.search(r"[Ss]ave this as `(\w+\.py)`:", before)
    if saved:
        (terminal.directory / saved[1]).write_text(text)
    else:
        file = terminal.directory / "billing.py"
        old = re.search(r"def bill.*?(?=\n\n\n)", file.read_text(), re.DOTALL)
        assert "replace the function `bill`" in before
        assert old is not None
        file.write_text(file.read_text().replace(old[0], text))
    return block[0]

"""The README's tour, run as a reader would run it, against any name server."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

HOME = Path(__file__).resolve().parents[2]
README = HOME / "README.md"
DOCUMENTS = [README, HOME / "CONTRIBUTING.md", *sorted((HOME / "docs").rglob("*.md"))]
DEFAULT = "127.0.0.1:9876"


def blocks(document: Path, language: str) -> list[str]:
    """Return a document's fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", document.read_text(), re.MULTILINE | re.DOTALL)


def recipes() -> dict[str, str]:
    """Return the text of each recipe by its page and anchor."""
    found = {}
    for page in sorted((HOME / "docs" / "recipes").glob("*.md")):
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


def environment(nameserver: str) -> dict[str, str]:
    """Return the variables of a shell with this environment's commands on its PATH."""
    scripts = str(Path(sys.executable).parent)
    # A page's own pytest prints what the page shows.
    ours = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
    return {
        **ours,
        "NAMESRV_ADDR": nameserver,
        "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(HOME),
        "PYTHONWARNINGS": "error",
    }


def run(arguments: list[str], nameserver: str, directory: Path) -> subprocess.CompletedProcess[str]:
    """Run a command that has to succeed."""
    done = subprocess.run(
        arguments,
        cwd=directory,
        env=environment(nameserver),
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def empty(directory: Path) -> Path:
    """Create an empty directory."""
    return Path(tempfile.mkdtemp(dir=directory))


def holds_test(block: str) -> bool:
    """Return whether a block of Python is for pytest."""
    return re.search(r"^(async )?def test_", block, re.MULTILINE) is not None


def run_tests(blocks: Iterable[str], nameserver: str, directory: Path) -> None:
    """Run blocks that hold tests, from an empty directory, in one run of pytest."""
    home = empty(directory)
    for number, block in enumerate(blocks):
        (home / f"test_block_{number:02}.py").write_text(block.replace(DEFAULT, nameserver))
    settings = ["asyncio_mode=auto", "asyncio_default_fixture_loop_scope=function"]
    options = ["-p", "no:cacheprovider", "-q", *(f"--override-ini={each}" for each in settings)]
    run([sys.executable, "-m", "pytest", *options, str(home)], nameserver, empty(directory))


def run_python(block: str, nameserver: str, directory: Path) -> None:
    """Run a block of Python from an empty directory, with pytest if it holds a test."""
    if holds_test(block):
        run_tests([block], nameserver, directory)
    else:
        file = empty(directory) / "block.py"
        file.write_text(block.replace(DEFAULT, nameserver))
        run([sys.executable, str(file)], nameserver, empty(directory))


def take(nameserver: str, directory: Path) -> None:
    """Run the commands of "Five minutes", then every Python block of the README."""
    tour = README.read_text().partition("## Five minutes")[2].partition("```python")[0]
    lines = [line[2:] for line in tour.splitlines() if line.startswith("$ ")]
    assert len(lines) >= 5
    cwd = empty(directory)
    shown = [run(["bash", "-euo", "pipefail", "-c", line], nameserver, cwd) for line in lines]
    assert shown[2].stdout == "one cup of tea\n"
    for block in blocks(README, "python"):
        run_python(block, nameserver, directory)

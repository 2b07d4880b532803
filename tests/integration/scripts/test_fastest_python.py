"""``make`` selects the fastest usable interpreter, and prints its choice."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[3] / "scripts" / "fastest-python"


def run(*directories: Path) -> subprocess.CompletedProcess[str]:
    """Run the script with these directories before the system's."""
    path = os.pathsep.join([*map(str, directories), "/usr/bin", "/bin"])
    return subprocess.run(
        [str(SCRIPT)], env={"PATH": path}, capture_output=True, text=True, check=False, timeout=60
    )


def interpreter(directory: Path, text: str) -> None:
    directory.mkdir()
    file = directory / "python3.12"
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)


def test_it_prints_an_interpreter_and_says_which_ones_it_tried() -> None:
    base = Path(sys.base_prefix) / "bin"
    done = run(base)
    assert done.returncode == 0, done.stderr
    chosen = done.stdout.strip()
    assert f"Using {chosen}" in done.stderr
    assert str((base / "python3").resolve()) in done.stderr
    subprocess.run([chosen, "-c", "import venv, ensurepip"], check=True)


def test_the_fastest_one_wins(tmp_path: Path) -> None:
    interpreter(tmp_path / "fast", "echo 0 1 3.12.9 /somewhere/quick/python3.12")
    interpreter(tmp_path / "slow", "echo 0 999999 3.12.9 /somewhere/slow/python3.12")
    done = run(tmp_path / "slow", tmp_path / "fast")
    assert done.stdout == "/somewhere/quick/python3.12\n"


def test_an_interpreter_that_can_compile_the_core_is_preferred_to_faster_ones(
    tmp_path: Path,
) -> None:
    interpreter(tmp_path / "bare", "echo 1 1 3.12.9 /somewhere/bare/python3.12")
    interpreter(tmp_path / "slow", "echo 0 999999 3.12.9 /somewhere/slow/python3.12")
    done = run(tmp_path / "bare", tmp_path / "slow")
    assert "bare" not in done.stdout
    assert "/somewhere/bare/python3.12  (without Python.h)" in done.stderr


def test_a_path_with_one_directory_is_searched_too(tmp_path: Path) -> None:
    interpreter(tmp_path / "only", "echo 0 1 3.12.9 /somewhere/only/python3.12")
    for tool in ("awk", "head", "sort"):
        found = shutil.which(tool)
        assert found is not None
        (tmp_path / "only" / tool).symlink_to(found)
    done = subprocess.run(
        [str(SCRIPT)],
        env={"PATH": str(tmp_path / "only")},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stdout == "/somewhere/only/python3.12\n", done.stderr


def test_an_interpreter_that_does_not_work_is_skipped(tmp_path: Path) -> None:
    interpreter(tmp_path / "broken", "exit 127")
    done = run(tmp_path / "broken", Path(sys.base_prefix) / "bin")
    assert done.returncode == 0, done.stderr
    assert str(tmp_path) not in done.stderr

"""The search for planted secrets finds them: in output, in logs, and in the process list."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.support.tour import HOME

TESTS = """
import logging, subprocess, sys

started = []

def test_prints():
    print("secret-of-print")

def test_logs():
    logging.getLogger("any").warning("planted-token-of-log")

def test_starts_a_process():
    command = [sys.executable, "-c", "input()", "pocketmq", "secret-of-process"]
    started.append(subprocess.Popen(command, stdin=subprocess.PIPE))  # ends with the session

def test_leaves_a_log(tmp_path):
    (tmp_path / "audit.log.1").write_text("planted-secret-of-file")

def test_is_innocent(tmp_path):
    (tmp_path / "keys.yml").write_text("secret-of-nobody")
"""


@pytest.mark.timeout(330)
def test_a_planted_secret_fails_its_test_or_the_run(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TESTS)
    ours = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    # This session searches the files below its own base directory too.
    with tempfile.TemporaryDirectory() as base:
        run = subprocess.run(
            [
                *(sys.executable, "-m", "pytest", "-p", "tests.support.planted"),
                *("-p", "no:cacheprovider", f"--basetemp={base}/pytest", f"--rootdir={tmp_path}"),
                *("-rA", str(tmp_path / "test_it.py")),
            ],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            start_new_session=True,
            env={**ours, "PYTHONPATH": str(HOME)},
            timeout=300,  # waits for the machine, not for the test
            check=False,
        )
    assert run.returncode == 1
    for where in (
        "'Captured stdout call' has the planted secret secret-of-print",
        "'Captured log call' has the planted secret planted-token-of-log",
        "the process list had secret-of-process",
        "audit.log.1 has planted-secret-of-file",
    ):
        assert where in run.stdout
    assert "secret-of-nobody" not in run.stdout
    assert "PASSED test_it.py::test_is_innocent" in run.stdout

"""Virtual environments with the wheel of a source tree and its runtime dependencies, as for users.

One is created for each content of a tree and each interpreter, in ``build/bench-environments``.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.tools import BenchmarkError
from tests.support.ports import free_ports

ROOT: Final = Path(__file__).resolve().parents[1]
HOME: Final = ROOT / "build" / "bench-environments"
READY_WITHIN: Final = 20.0
PURE: Final = {"POCKETMQ_PURE": "1"}
"""The environment variable that makes a broker take the Python path."""


@dataclass(frozen=True, slots=True)
class Environment:
    """An environment in which PocketMQ is installed.

    Attributes:
        python: its interpreter.
        packages: name and version of each package.
        core: the core that its broker reports: compiled or python.
    """

    python: Path
    packages: tuple[str, ...]
    core: str

    def text(self) -> str:
        """Return a line for the heading of the report."""
        return f"PocketMQ's environment: {', '.join(self.packages)}; core: {self.core}"


def run(words: Sequence[str | Path], cwd: Path | None = None) -> str:
    """Run a command without Python's environment variables and return its output.

    Raises:
        BenchmarkError: it failed; with the end of its output.
    """
    done = subprocess.run(
        [str(word) for word in words],
        cwd=cwd,
        env=plain(),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        told = (done.stderr.strip() or done.stdout.strip()).splitlines()[-5:]
        raise BenchmarkError(f"{' '.join(map(str, words))}: {' '.join(told)}")
    return done.stdout.strip()


def plain() -> dict[str, str]:
    """Return this process's environment without variables for Python, such as PYTHONPATH."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


def content(tree: Path) -> str:
    """Return a short hash of a tree (commit and uncommitted changes) and of the interpreter."""
    git: tuple[str | Path, ...] = ("git", "-C", tree)
    digest = hashlib.sha256(run([*git, "rev-parse", "HEAD"]).encode())
    digest.update(run([*git, "diff", "--binary", "HEAD"]).encode())
    for name in run([*git, "ls-files", "--others", "--exclude-standard"]).splitlines():
        digest.update(name.encode() + (tree / name).read_bytes())
    digest.update(f"{sys.version} {Path(sys.executable).resolve()}".encode())
    return digest.hexdigest()[:16]


def of(tree: Path = ROOT) -> Environment:
    """Return the environment of a tree, which is created unless one for its content exists.

    Raises:
        BenchmarkError: the wheel can't be built, installed or started.
    """
    home = HOME / content(tree)
    if not home.exists():
        HOME.mkdir(parents=True, exist_ok=True)
        # Created in its final location, because an environment's scripts contain its path.
        try:
            _make(tree, home)
        except BaseException:
            shutil.rmtree(home, ignore_errors=True)
            raise
    python = home / "bin" / "python"
    listed = json.loads(run([python, "-m", "pip", "list", "--format=json"], home))
    packages = tuple(
        f"{package['name']} {package['version']}"
        for package in listed
        if package["name"] not in {"pip", "setuptools"}
    )
    return Environment(python, packages, core_of(python))


def _make(tree: Path, home: Path) -> None:
    run([sys.executable, "-m", "venv", home])
    with tempfile.TemporaryDirectory() as made:
        # Build from a copy: setuptools leaves build/ and *.so files in the tree, and would include
        # existing ones in the wheel.
        source = Path(made) / "source"
        names = run(["git", "-C", tree, "ls-files", "--cached", "--others", "--exclude-standard"])
        for name in names.splitlines():
            if (tree / name).is_file():
                (source / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(tree / name, source / name)
        run([sys.executable, "-m", "build", "--wheel", "--outdir", made, source])
        wheel = next(Path(made).glob("*.whl"))
        install: list[str | Path] = [
            home / "bin" / "python",
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-deps",
        ]
        run(
            [*install, "--require-hashes", "--no-deps", "-r", tree / "requirements-runtime.lock"],
            home,
        )
        run([*install, wheel], home)


def core_of(python: Path) -> str:
    """Start the broker of an environment and return the core that its ready line reports.

    Raises:
        BenchmarkError: the broker does not become ready.
    """
    with tempfile.TemporaryDirectory() as home:
        log = Path(home) / "log"
        command = [str(python), "-P", "-m", "pocketmq", "broker", "--json"]
        with log.open("wb") as output:
            running = subprocess.Popen(
                [*command, f"--port={free_ports(3)}", f"--store={home}/store"],
                cwd=home,
                env=plain(),
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        try:
            return _core_said(running, log)
        finally:
            running.kill()
            running.wait()


def _core_said(running: subprocess.Popen[bytes], log: Path) -> str:
    deadline = time.monotonic() + READY_WITHIN
    while time.monotonic() < deadline and running.poll() is None:
        ready = re.search(r'^.*"event": ?"ready".*$', log.read_text(), re.MULTILINE)
        if ready:
            said = re.search(r'"core": ?"(\w+)"', ready[0])
            return said[1] if said else "python"
        time.sleep(0.02)
    raise BenchmarkError(f"PocketMQ's broker does not get ready: {log.read_text()[-500:]}")

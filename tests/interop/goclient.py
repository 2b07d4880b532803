"""The unmodified Go client of Apache RocketMQ; its modules come from Go's proxy."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from remoting.protocol.signing import Credentials
from tests.interop.apache import HERE, TOOLS

BUILD_TIMEOUT = 300.0
RUN_TIMEOUT = 120.0


class GoClient:
    """The program in ``go``, built once; the test is skipped where there is no Go.

    Args:
        credentials: what it signs its requests with; None: it does not.
        tls: whether it connects with TLS, which takes another version of the client.
    """

    def __init__(self, credentials: Credentials | None = None, *, tls: bool = False) -> None:
        self._environment = dict(os.environ)
        if credentials is not None:
            self._environment["ACCESS_KEY"] = credentials.access_key
            self._environment["SECRET_KEY"] = credentials.secret_key
        if shutil.which("go") is None:
            pytest.skip("needs Go")
        source = HERE / "go"
        self._program = TOOLS / "go-client"
        options = []
        if tls:
            self._environment["TLS"] = "true"
            self._program = TOOLS / "go-client-tls"
            options = ["-modfile=tls.mod", "-tags=tls"]
        newest = max(file.stat().st_mtime for file in source.iterdir())
        if not self._program.exists() or self._program.stat().st_mtime < newest:
            # By another name at first: another process of the suite may be building it too.
            built = self._program.with_name(f"{self._program.name}-{os.getpid()}")
            command = ["go", "build", *options, "-o", str(built), "."]
            subprocess.run(command, cwd=source, check=True, timeout=BUILD_TIMEOUT)
            built.rename(self._program)

    def command(self, *arguments: str) -> list[str]:
        """Return the command line of the program."""
        return [str(self._program), *arguments]

    def run(self, *arguments: str) -> list[list[str]]:
        """Run to the end; the facts that it printed among its log lines.

        Raises:
            AssertionError: it failed; the text is what it said.
        """
        done = subprocess.run(
            self.command(*arguments),
            capture_output=True,
            text=True,
            timeout=RUN_TIMEOUT,
            check=False,
            env=self._environment,
        )
        lines = done.stdout.splitlines()
        facts = [line.split("\t") for line in lines if "\t" in line]
        assert done.returncode == 0, done.stdout + done.stderr
        assert "done" in lines, done.stdout + done.stderr
        return facts

    @contextmanager
    def running(self, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        """Run during the block; killed at its end."""
        process = subprocess.Popen(
            self.command(*arguments),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=self._environment,
        )
        try:
            yield process
        finally:
            process.kill()
            process.communicate()

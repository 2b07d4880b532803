"""The secrets of the suite's accounts are in no output or log of a test, and in no process list.

Secrets in tests begin with ``secret-of-``, ``planted-secret`` or ``planted-token``. What a test
prints or logs is searched after it. At the end of the session, so are the logs below pytest's base
directory, those of server processes included, and what was seen in the process list.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Final

import pytest

PLANTED: Final = re.compile(rb"secret-of-[\w-]+|planted-(?:secret|token)[\w-]*")

LOOK_EVERY: Final = 0.5
"""Seconds between two looks at the process list."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
    call: pytest.CallInfo[None],
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fail a test that prints or logs a planted secret."""
    report = yield
    for name, text in report.sections if call.when == "teardown" else ():
        if found := PLANTED.search(text.encode(errors="replace")):
            report.outcome = "failed"
            report.longrepr = f"{name!r} has the planted secret {found[0].decode()}"
    return report


@pytest.fixture(scope="session", autouse=True)
def planted_secrets_stay_hidden(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the logs of server processes, and search all logs for planted secrets at the end."""
    os.environ["POCKETMQ_TEST_LOGS"] = str(tmp_path_factory.mktemp("servers"))
    shown: list[str] = []
    ended = threading.Event()
    watch = threading.Thread(target=_watch_processes, args=(ended, shown), daemon=True)
    # One worker sees the processes of all.
    if os.environ.get("PYTEST_XDIST_WORKER", "gw0") == "gw0":
        watch.start()
    yield
    ended.set()
    if watch.is_alive():
        watch.join()
    # Names without a letter are those of RocksDB, in which RocketMQ 5.3 keeps its users.
    for file in tmp_path_factory.getbasetemp().rglob("*[a-z]*.log*"):
        if file.is_file() and (found := PLANTED.search(file.read_bytes())):
            shown.append(f"{file} has {found[0].decode()}")
    assert not shown, shown


def _watch_processes(ended: threading.Event, shown: list[str]) -> None:
    last = False
    while not last:
        last = ended.wait(LOOK_EVERY)
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if os.getsid(int(process.name)) != os.getsid(0):
                    continue  # of another run
                line = (process / "cmdline").read_bytes()
            except OSError:
                continue  # it has ended
            # mqadmin and Java's programs take secrets as arguments; PocketMQ's don't.
            if b"pocketmq" in line and (found := PLANTED.search(line)):
                shown.append(f"the process list had {found[0].decode()}")

"""A broker stopped during recovery stops soon, and does no harm.

These brokers' disk is so slow that a full recovery would take far longer than the test waits.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from broker.store.engine import MessageStore, PendingMessage, PutStatus, StoreConfig
from tests.unit.broker.store.stores import bodies

MESSAGES = 2500
LOG_FILE = 64 * 1024
QUEUE_FILE = 20 * 500
ENDS_WITHIN = 15.0
"""Seconds, a third of what the recovery would take; without load it is half a second."""

SLOW_BROKER = """
import os, sys, time
from broker.store import log_walk
from pocketmq.cli import main

examine, told = log_walk.examine, []

def slowly(*arguments, **options):
    if not told:
        told.append(os.write(2, b'{"event": "walking"}\\n'))
    time.sleep(0.02)
    return examine(*arguments, **options)

log_walk.examine = slowly
main()
"""


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store as a kill leaves it, without a safe point."""
    root = tmp_path / "store"
    one = MessageStore(config(root))
    one.open()
    for number in range(MESSAGES):
        result = one.put(PendingMessage("TopicTest", 0, b"%04d" % number * 200))
        assert result.status is PutStatus.OK
    one.close()
    for name in ("checkpoint", "pocketmq-checkpoint"):
        (root / name).unlink()
    (root / "abort").touch()
    return root


def config(root: Path) -> StoreConfig:
    return StoreConfig(
        root=root,
        mapped_file_size_commit_log=LOG_FILE,
        mapped_file_size_consume_queue=QUEUE_FILE,
    )


@contextmanager
def slow_broker(command: str, store: Path) -> Iterator[subprocess.Popen[str]]:
    """A broker that has begun its recovery."""
    ports = ["--port=0"] if command == "broker" else ["--nameserver-port=0", "--broker-port=0"]
    settings = {
        "mappedFileSizeCommitLog": LOG_FILE,
        "mappedFileSizeConsumeQueue": QUEUE_FILE,
        "maxMessageSize": 16 * 1024,
    }
    process = subprocess.Popen(
        [
            *(sys.executable, "-c", SLOW_BROKER, command, *ports, f"--store={store}", "--json"),
            *(f"--set={key}={value}" for key, value in settings.items()),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if json.loads(line)["event"] == "walking":
                break
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("command", "number"), [("broker", signal.SIGTERM), ("standalone", signal.SIGINT)]
)
def test_a_signal_ends_a_recovery_and_the_next_start_repeats_it(
    store: Path, command: str, number: signal.Signals
) -> None:
    before = {path.name for path in (store / "commitlog").iterdir()}
    with slow_broker(command, store) as process:
        process.send_signal(number)
        ready, log = process.communicate(timeout=ENDS_WITHIN)
    assert process.returncode == 0
    assert ready == ""
    events = [json.loads(line)["event"] for line in log.splitlines()]
    assert "stopped while the store was being opened" in events
    assert "store open" not in events
    assert (store / "abort").exists()
    assert {path.name for path in (store / "commitlog").iterdir()} == before

    found = MessageStore(config(store))
    report = found.open()
    assert not report.clean
    assert report.scanned_records == MESSAGES
    assert bodies(found) == [b"%04d" % number * 200 for number in range(MESSAGES)]
    found.close()

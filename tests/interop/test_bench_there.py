"""``pocketmq bench`` measures Apache's brokers, too."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.interop.apache import Apache

pytestmark = [pytest.mark.interop, pytest.mark.timeout(240)]


def test_each_kind_of_load_runs_against_apache(shared_apache: Callable[[str], Apache]) -> None:
    cluster = shared_apache("4.9.7")
    for kind, results in (("produce", 1), ("consume", 1), ("latency", 2)):
        command = [sys.executable, "-P", "-m", "pocketmq", "bench", kind]
        options = ["--duration", "1", "--nameserver", cluster.nameserver, "--json"]
        done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        rows = json.loads(done.stdout)
        assert len(rows) == results
        assert all(row["messages"] > 0 and row["failed"] == 0 for row in rows)

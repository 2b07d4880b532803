"""A server reports the core that it runs, and works on either."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest

from client import BEGIN, blocking
from pocketmq.testing import ServerProcess
from tests.support.core import LACKING


@pytest.fixture(params=["compiled", "python"])
def kind(request: pytest.FixtureRequest) -> str:
    if request.param == "compiled" and LACKING:
        pytest.skip(LACKING)
    return str(request.param)


@pytest.fixture
def server(kind: str, tmp_path: Path) -> Iterator[ServerProcess]:
    command = ["standalone", "--store", str(tmp_path), "--metrics-port", "0"]
    command += ["--nameserver-port", "0", "--broker-port", "0"]
    environment = {"POCKETMQ_PURE": "1" if kind == "python" else "0"}
    process = ServerProcess(command, environment=environment)
    process.start()
    yield process
    process.stop()


def test_the_ready_line_the_log_the_metrics_and_the_doctor_say_it(
    server: ServerProcess, kind: str
) -> None:
    assert server.addresses["core"] == kind
    with urlopen(f"http://{server.addresses['metrics']}/metrics") as page:
        assert f'core="{kind}"' in page.read().decode()
    assert ("the compiled core is not used" in server.log) is (kind == "python")
    command = ["doctor", "--nameserver", server.addresses["nameserver"]]
    output = subprocess.run(
        [sys.executable, "-m", "pocketmq", *command], capture_output=True, text=True, check=False
    ).stdout
    shown = "Python code, which is slower: POCKETMQ_PURE is set" if kind == "python" else ""
    assert " ".join(output.split()).count("broker-a runs on " + (shown or "the compiled core")) == 1


def test_messages_are_sent_and_read(server: ServerProcess) -> None:
    nameserver = server.addresses["nameserver"]
    with blocking.Admin(nameserver) as admin:
        admin.create_topic("orders", queues=1)
    with blocking.Producer(nameserver, group="g") as producer:
        queue = producer.send("orders", b"tea").queue
        for _ in range(99):
            producer.send("orders", b"tea", queue=queue)
    with blocking.PullConsumer(nameserver, group="h") as consumer:
        consumer.assign([queue])
        consumer.seek(queue, BEGIN)
        found = 0
        while found < 100:
            found += len(consumer.get_many(100, timeout=10.0))

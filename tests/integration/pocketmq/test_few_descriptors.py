"""More connections than file descriptors: the store keeps the descriptors it needs."""

from __future__ import annotations

import json
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from remoting.protocol.codes import RequestCode
from remoting.protocol.command import Command
from remoting.protocol.headers.pull import UpdateConsumerOffsetRequestHeader
from remoting.runtime import process_limits as descriptors
from remoting.runtime.process_limits import ConnectionRoom
from tests.integration.bad_input.peer import PATIENCE, Peer
from tests.support.sizes import size
from tests.support.waiting import wait_until
from tests.unit.broker.harness import send_command

LIMIT = size(ci=600, soak=1024)
IDLE = size(ci=350, soak=1100)
WITH_A_LIMIT = ["sh", "-c", f'ulimit -Sn {LIMIT // 2}; ulimit -Hn {LIMIT}; exec "$@"', "sh"]
POCKETMQ = [sys.executable, "-P", "-m", "pocketmq"]


@pytest.mark.parametrize("attacked", ["broker", "nameserver"])
def test_idle_connections_leave_descriptors_to_the_store(tmp_path: Path, attacked: str) -> None:
    descriptors.raise_limit()
    log = tmp_path / "log"
    command = [*WITH_A_LIMIT, *POCKETMQ, "standalone", "--nameserver-port", "0", "--broker-port"]
    command += ["0", "--store", str(tmp_path / "store"), "--json", "--until-stdin-closes"]
    with ExitStack() as stack:
        server = stack.enter_context(
            subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stack.enter_context(log.open("wb")),
            )
        )
        assert server.stdout is not None
        ready = json.loads(server.stdout.readline())
        with Peer(ready["broker"]) as peer:
            assert peer.ask(send_command("Existing")).code == 0
            host, _, port = ready[attacked].rpartition(":")
            for _ in range(IDLE):
                idle = stack.enter_context(socket.socket())
                idle.settimeout(PATIENCE)
                idle.connect((host, int(port)))
            wait_until(lambda: "ulimit -n" in log.read_text())
            assert peer.ask(send_command("Existing")).code == 0
            assert [peer.ask(send_command(f"New-{n}")).code for n in range(50)] == [0] * 50
            assert peer.ask(committed("Existing", 7)).code == 0
        server.terminate()
        assert server.wait(PATIENCE) == 0
    output = log.read_text()
    assert f'"now": {LIMIT}' in output
    assert "fewer connections than set" in output
    assert "can't be written" not in output
    assert "out of system resource" not in output
    offsets = tmp_path / "store" / "config" / "consumerOffset.json"
    assert '"Existing@g":{0:7' in offsets.read_text()


def committed(topic: str, offset: int) -> Command:
    header = UpdateConsumerOffsetRequestHeader(
        consumer_group="g", topic=topic, queue_id=0, commit_offset=offset
    )
    return Command.request(RequestCode.UPDATE_CONSUMER_OFFSET, header)


@pytest.fixture
def _limit_of_1024() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.usefixtures("_limit_of_1024")
def test_connections_get_the_descriptors_that_the_store_and_a_reserve_leave() -> None:
    room = ConnectionRoom(lambda: 512)
    assert room.allowed == 1024 - 512 - descriptors.RESERVED
    room.taken = room.allowed - 1
    assert room.reason_to_refuse() == ""
    room.taken += 1
    assert "ulimit -n, now 1024" in room.reason_to_refuse()
    assert ConnectionRoom(lambda: 1000).allowed == descriptors.MIN_CONNECTIONS

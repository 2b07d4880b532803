"""The unmodified C++ client, through its Python binding, sends to our broker and reads from it.

It has no SQL92 filters and no requests; its transactions are not in the interface for C.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pocketmq import testing
from tests.interop.apache import TOOLS

pytestmark = [
    pytest.mark.interop,
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        (sys.platform, platform.machine()) != ("linux", "x86_64"),
        reason="the C++ client is built for Linux on x86-64",
    ),
]

CPP = Path(__file__).parent / "cpp"
COUNT = 8
WAYS = ("sync", "oneway", "orderly")
BODIES = sorted(f"{way} {number} 中" for way in WAYS for number in range(COUNT))
FAILED = "sync 0 中"
"""The body whose first call in a push consumer fails."""
QUEUES = 4
RUN_TIMEOUT = 120.0

Fact = dict[str, Any]


@pytest.fixture(scope="module")
def library() -> Path:
    """Return the library's path, fetched once."""
    target = TOOLS / "rocketmq-cpp-0.4.4"
    if not target.exists():
        # By another name at first: another process of the suite may be fetching it too.
        fetched = target.with_name(f"{target.name}-{os.getpid()}")
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
        command += ["--disable-pip-version-check", "--require-hashes", "--only-binary=:all:"]
        command += ["--target", str(fetched), "-r", str(CPP / "requirements.lock")]
        subprocess.run(command, check=True, timeout=RUN_TIMEOUT)
        try:
            fetched.rename(target)
        except OSError:  # the other was first
            shutil.rmtree(fetched)
    return target


@pytest.fixture(scope="module")
def server() -> Iterator[testing.StandaloneServer]:
    # Delayed messages take the first level, the first retry the third.
    with testing.broker(settings={"messageDelayLevel": "1s 5m 1s"}) as running:
        yield running


@dataclass(frozen=True)
class CppClient:
    """``program.py``, which writes its logs into the home directory.

    Attributes:
        library: the C++ client and its binding.
        home: its home directory.
        server: where it sends to and reads from.
        account: whose keys sign its requests; None: it does not sign.
    """

    library: Path
    home: Path
    server: testing.StandaloneServer
    account: str | None = None

    def attempt(
        self, what: str, topic: str, count: int = COUNT
    ) -> subprocess.CompletedProcess[str]:
        """Run to the end."""
        env = {**os.environ, "PYTHONPATH": str(self.library), "HOME": str(self.home)}
        if self.account is not None:
            keys = self.server.credentials[self.account]
            env |= {"ACCESS_KEY": keys.access_key, "SECRET_KEY": keys.secret_key}
        program = [str(CPP / "program.py"), what, self.server.nameserver, topic, str(count)]
        return subprocess.run(
            [sys.executable, *program],
            capture_output=True,
            text=True,
            timeout=RUN_TIMEOUT,
            check=False,
            env=env,
        )

    def __call__(self, what: str, topic: str, count: int = COUNT) -> list[Fact]:
        """Run to the end without a failure; return the JSON that it printed."""
        done = self.attempt(what, topic, count)
        assert done.returncode == 0, done.stdout + done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture
def run(library: Path, server: testing.StandaloneServer, tmp_path: Path) -> CppClient:
    return CppClient(library, tmp_path, server)


def bodies(messages: list[Fact]) -> list[str]:
    return sorted(message["body"] for message in messages)


def test_sends_with_every_method_and_pulls_what_it_sent(run: CppClient) -> None:
    receipts = run("send", "cpp-pull", COUNT)
    assert [(one["way"], one["status"]) for one in receipts] == [
        (way, "OK") for way in ("sync", "orderly") for _ in range(COUNT)
    ]

    messages = run("pull", "cpp-pull", COUNT)
    assert bodies(messages) == BODIES
    by_id = {message["id"]: message for message in messages}
    assert all(by_id[one["id"]]["offset"] == one["offset"] for one in receipts)
    for message in messages:
        way, number, _ = message["body"].split()
        assert (message["topic"], message["tags"]) == ("cpp-pull", way)
        assert (message["keys"], message["color"]) == (f"key-{number}", "blå")
        if way == "orderly":
            assert message["queue"] == int(number) % QUEUES


def test_a_push_consumer_gets_everything_and_failed_messages_again(run: CppClient) -> None:
    run("send", "cpp-push", COUNT)

    messages = run("push", "cpp-push", len(BODIES))

    assert bodies(messages) == sorted([*BODIES, FAILED])
    # The library sends back the rest of a batch with the message that failed.
    assert FAILED in {one["body"] for one in messages if one["attempts"] == 1}
    assert {one["topic"] for one in messages} == {"cpp-push"}


def test_an_orderly_push_consumer_gets_each_queue_in_order(run: CppClient) -> None:
    run("send", "cpp-orderly", COUNT)

    messages = run("push-orderly", "cpp-orderly", len(BODIES))

    assert bodies(messages) == sorted([*BODIES, FAILED])
    for queue in range(QUEUES):
        offsets = [one["offset"] for one in messages if one["queue"] == queue]
        assert offsets == sorted(offsets)


def test_delayed_messages_arrive_when_due(run: CppClient) -> None:
    receipts = run("send-delayed", "cpp-delayed", 2)
    assert [one["status"] for one in receipts] == ["OK"] * 4

    messages = run("push", "cpp-delayed", 4)

    assert set(bodies(messages)) == {
        f"{way} {n} 中" for way in ("delayed", "timed") for n in (0, 1)
    }
    assert all(one["waited_ms"] >= 1000 for one in messages)


def test_a_signed_client_sends_pulls_and_consumes_and_others_are_refused(
    library: Path, tmp_path: Path
) -> None:
    accounts = {
        "cpp-client": {"defaultTopicPerm": "PUB|SUB", "defaultGroupPerm": "SUB"},
        "cpp-reader": {"defaultTopicPerm": "SUB", "defaultGroupPerm": "SUB"},
    }
    with testing.broker(accounts=accounts) as server:
        run = CppClient(library, tmp_path, server, "cpp-client")
        run("send", "cpp-signed")
        assert bodies(run("pull", "cpp-signed")) == BODIES
        run("push-orderly", "cpp-signed", len(BODIES))
        for account in (None, "cpp-reader"):
            refused = CppClient(library, tmp_path, server, account).attempt("send", "cpp-signed")
            assert refused.returncode != 0
        assert len(run("pull", "cpp-signed")) == len(BODIES)
        assert "No accessKey is configured" in server.log
        assert "cpp-reader needs PUB on this topic" in server.log

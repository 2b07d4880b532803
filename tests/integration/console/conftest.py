"""The console as a process beside a broker, and a browser without scripts."""

from __future__ import annotations

import http.client
import re
from collections.abc import Iterator
from contextlib import contextmanager
from html import unescape
from urllib.parse import urlencode, urlsplit

import pytest

from client import DeadLetter, ReceivedMessage, blocking
from client.positions import FIRST
from pocketmq import testing
from pocketmq.testing import ServerProcess, StandaloneServer
from remoting.protocol.names import TOOLS_CONSUMER_GROUP
from tests.support.waiting import wait_until

HOSTILE = b"<script>alert(1)</script>\x00\xe2\x80\xae</td>"
BIG = b"\xff\x00" * (2 * 1024 * 1024 - 1024)


class Answer:
    """What the console answered: status, headers and text."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status = response.status
        self.headers = response.headers
        self.body = response.read()
        self.text = self.body.decode()

    @property
    def location(self) -> str | None:
        return self.headers["Location"]

    def words(self) -> str:
        """The text that a person sees."""
        return " ".join(unescape(re.sub("<[^>]*>", " ", self.text)).split())


class Surfer:
    """Follows links and sends forms as a browser without scripts does; keeps one cookie."""

    def __init__(self, url: str, process: ServerProcess | None = None) -> None:
        self.url = url
        self.process = process
        self.cookie = ""

    def get(self, page: str, **headers: str) -> Answer:
        return self._ask("GET", page, None, headers)

    def post(self, page: str, fields: list[tuple[str, str]], **headers: str) -> Answer:
        headers = {"Origin": self.url.rstrip("/"), **headers}
        headers["Content-Type"] = "application/x-www-form-urlencoded"
        return self._ask("POST", page, urlencode(fields), headers)

    def token(self) -> str:
        found = re.search('name="token" value="([0-9a-f]{64})"', self.get("sign-in").text)
        assert found is not None
        return found[1]

    def act(self, action: str, **fields: str) -> Answer:
        """Send a form of a page."""
        given = {"action": action, "token": self.token(), **fields}
        return self.post("act", list(given.items()))

    def _ask(self, method: str, page: str, body: str | None, headers: dict[str, str]) -> Answer:
        parts = urlsplit(self.url)
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
        try:
            connection.request(method, f"/{page}", body, {**headers, "Cookie": self.cookie})
            answer = Answer(connection.getresponse())
        finally:
            connection.close()
        if cookie := answer.headers["Set-Cookie"]:
            self.cookie = cookie.partition(";")[0]
        return answer


@contextmanager
def console(nameserver: str, *options: str) -> Iterator[Surfer]:
    """Run the console; return when it has seen the cluster, or knows that it may not."""
    server = ServerProcess(["console", "--nameserver", nameserver, "--port", "0", *options])
    server.start()
    try:
        surfer = Surfer(server.addresses["console"], server)
        wait_until(
            lambda: (answer := surfer.get("")).status == 303 or "as of" in answer.text,
            "the console never looks at the cluster",
        )
        yield surfer
        server.stop()
    finally:
        server.kill()


@pytest.fixture(scope="session")
def shop() -> Iterator[StandaloneServer]:
    """A broker with messages of all kinds, a group that lags, and three dead letters."""
    with testing.broker(settings={"defaultTopicQueueNums": "2"}) as server:
        server.admin.create_topic("orders", queues=2)
        server.admin.create_topic("stock", queues=1)
        server.admin.create_topic("scrap", queues=1)
        with blocking.Producer(server.nameserver, group="shop") as producer:
            for number in range(3):
                body = b'{"order": %d, "customer": "Ada"}' % number
                producer.send("orders", body, tag="paid", keys=[f"o-{number}"])
            producer.send(
                "stock", HOSTILE, tag="<b>", keys=["<i>k</i>"], properties={"p": "\u202ex"}
            )
            producer.send("stock", BIG)

        def reject(message: ReceivedMessage[bytes]) -> None:
            raise DeadLetter(f"no price in <b>{message.keys[0]}</b>")

        with blocking.PushConsumer(
            server.nameserver,
            group="billing",
            subscribe={"orders": "*"},
            handler=reject,
            start_from=FIRST,
        ):
            wait_until(lambda: len(server.dead_letters("billing")) == 3, "no dead letters")
        server.wait_until_consumed("billing", "orders")
        with blocking.Producer(server.nameserver, group="shop") as producer:
            producer.send("orders", b"late", tag="open")
        yield server


@pytest.fixture(scope="session")
def surfer(shop: StandaloneServer) -> Iterator[Surfer]:
    """A browser at a console that may write."""
    with console(shop.nameserver, "--writable") as surfer:
        yield surfer


@pytest.fixture(scope="session")
def bank() -> Iterator[StandaloneServer]:
    """A broker with an administrator, and an account that may read one topic."""
    accounts = {
        "operator": {"admin": True},
        "auditor": {"topicPerms": ["payments=SUB"], "groupPerms": [f"{TOOLS_CONSUMER_GROUP}=SUB"]},
    }
    with testing.broker(accounts=accounts) as server:
        server.admin.create_topic("payments", queues=1)
        server.admin.create_topic("salaries", queues=1)
        yield server


@pytest.fixture(scope="session")
def door(bank: StandaloneServer) -> Iterator[Surfer]:
    """A browser at the bank's console, where nobody has signed in."""
    with console(bank.nameserver, "--writable", "--host", "0.0.0.0") as surfer:
        yield surfer

"""A name server and a broker in one child process, and what a test asks of them."""

from __future__ import annotations

import asyncio
import secrets
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from client.blocking import Admin
from pocketmq import certificates
from pocketmq.testing.processes import SMALL_STORE, ServerProcess
from remoting.access.accounts import dump
from remoting.protocol.names import dlq_topic, retry_topic
from remoting.protocol.signing import Credentials

if TYPE_CHECKING:
    from client.admin.messages import DeadMessage
    from client.consumer.received import ReceivedMessage

_OWN_ACCOUNT: Final = "pocketmq-broker"
"""The account with which a broker registers at its name server, and a test kit asks."""

_KEYS: Final = "keys.yml"
"""The file with this account's keys."""

_PAGE: Final = 1000
"""Messages that ``messages`` reads at once."""

_POLL_SECONDS: Final = 0.005

_MS: Final = timedelta(milliseconds=1)


class StandaloneServer(ServerProcess):
    """A name server and a broker in one child process; see ``broker()``.

    A restart uses the same addresses and the same store. The methods that ask the broker block: in
    a test on an event loop use those of ``aio``.

    Attributes:
        store: its directory.
        clock: sets the broker's clock forward.
        credentials: the keys of the accounts by access key; also of ``pocketmq-broker``, an
            administrator with whose keys the broker registers at its name server.
        tls: the option ``tls`` for clients; None without TLS.
    """

    def __init__(
        self,
        store: Path,
        settings: Mapping[str, str],
        credentials: Mapping[str, Credentials] | None = None,
        tls: str | None = None,
    ) -> None:
        self.store = store
        self.tls = tls
        self.credentials = credentials or {}
        self._settings = {**SMALL_STORE, **settings}
        self._lock = threading.Lock()
        self._admin: Admin | None = None
        self.clock = BrokerClock(self.ask)
        super().__init__(self._arguments("0", "0"), program=self.clock.program)

    @property
    def nameserver(self) -> str:
        """``HOST:PORT`` for clients."""
        return self.addresses["nameserver"]

    @property
    def broker(self) -> str:
        """``HOST:PORT`` of the broker itself."""
        return self.addresses["broker"]

    def restart(self) -> None:
        """Start again at the same addresses, after ``stop()`` or ``kill()``."""
        ports = [address.rpartition(":")[2] for address in (self.nameserver, self.broker)]
        self.command = self._arguments(*ports)
        # A store's clock doesn't go back.
        self.program = self.clock.program
        self.start()

    def stop(self) -> None:
        """Stop cleanly; see ``ServerProcess.stop``."""
        self._hang_up()
        super().stop()

    def kill(self) -> None:
        """Kill the process (SIGKILL) and wait until it has ended."""
        self._hang_up()
        super().kill()

    # what a test asks

    @property
    def aio(self) -> AsyncServer:
        """The methods that ask the broker, as coroutines."""
        return AsyncServer(self)

    @property
    def admin(self) -> Admin:
        """An admin that stays connected; with accounts it has all rights."""
        with self._lock:
            if self._admin is None:
                keys = self.credentials.get(_OWN_ACCOUNT)
                admin = Admin(self.nameserver, credentials=keys, tls=self.tls or False)
                admin.start()
                self._admin = admin
            return self._admin

    def messages(self, topic: str) -> list[ReceivedMessage[bytes]]:
        """Return all messages of a topic, in the order in which they were stored.

        Nothing is consumed. It is an empty list if the topic doesn't exist.
        """
        found: list[ReceivedMessage[bytes]] = []
        page = self.admin.browse(topic, limit=_PAGE) if self._has(topic) else None
        while page is not None:
            found += page.messages
            page = None if page.complete else self.admin.browse(topic, page.cursor, limit=_PAGE)
        # Within a millisecond the pages are in the order of the queues.
        return sorted(found, key=lambda each: (each.store_timestamp_ms, each.physical_offset))

    def dead_letters(self, group: str) -> list[DeadMessage]:
        """Return the dead letters of a group, the oldest first; also those sent back since."""
        if not self._has(dlq_topic(group)):
            return []
        letters = self.admin.dead_letters(group, redriven=True)
        return sorted(letters, key=lambda letter: (letter.died_at is not None, letter.died_at))

    def wait_until_consumed(self, group: str, topic: str, *, timeout: float = 10.0) -> None:
        """Wait until a group has consumed what a topic and the group's retry topic have.

        A consumer commits with its next pull, and every ``commit_period``. A message whose retry
        is due later is in neither topic yet.

        Raises:
            TimeoutError: messages were left after ``timeout`` seconds.
        """
        deadline = time.monotonic() + timeout
        while left := self._left(group, topic) or self._left(group, retry_topic(group)):
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"group {group} has not consumed topic {topic} after {timeout:g} s: "
                    + "; ".join(left)
                )
            time.sleep(_POLL_SECONDS)

    # faults

    def refuse(
        self,
        request: str,
        *,
        code: str = "SYSTEM_BUSY",
        remark: str = "the test refuses this",
        times: int | None = None,
    ) -> None:
        """Refuse requests, without serving them, until ``clear_faults``.

        Args:
            request: ``send``, ``pull``, ``offset``, ``client``, or a name of RocketMQ's RequestCode
                such as ``CONSUMER_SEND_MSG_BACK``.
            code: a name of RocketMQ's ResponseCode.
            remark: the text of the answer.
            times: the next so many only.
        """
        self._fail([request], times, refusal=(code, remark))

    def delay(self, request: str, seconds: float, *, times: int | None = None) -> None:
        """Serve requests so many seconds later; see ``refuse``."""
        self._fail([request], times, seconds=seconds)

    def lose_ack(self, request: str = "send", *, times: int = 1) -> None:
        """Serve the next requests, and end their connections without the answer; see ``refuse``.

        A message that is sent is stored, and its producer does not know it.
        """
        self._fail([request], times, silent=True)

    def drop_connections(self) -> None:
        """End all connections to the broker; clients may connect again."""
        self.ask({"do": "drop_connections"})

    def fill_disk(self, *, full: bool = True) -> None:
        """Let the broker find its disk full, or no longer: a full one takes no messages."""
        self.ask({"do": "fill_disk", "full": full})

    def clear_faults(self) -> None:
        """End all faults."""
        self.ask({"do": "clear"})

    def _fail(self, requests: list[str], times: int | None, **what: object) -> None:
        self.ask({"do": "fail", "requests": requests, "times": times, **what})

    def _left(self, group: str, topic: str) -> list[str]:
        """Return a text for each queue of a topic with messages that are not consumed."""
        if not self._has(topic):
            return []
        return [
            f"queue {queue.queue_id} of {topic} is consumed up to {at.committed} of {at.end}"
            for queue, at in self.admin.lag(group, topic=topic).queues.items()
            if at.messages
        ]

    def _has(self, topic: str) -> bool:
        # Unlike the search for a route, which waits for a topic that may be about to exist.
        return topic in self.admin.topic_configs(self.broker)

    def _hang_up(self) -> None:
        with self._lock:
            admin, self._admin = self._admin, None
        if admin is not None:
            admin.close()

    def _arguments(self, nameserver_port: str, broker_port: str) -> list[str]:
        settings = [f"--set={key}={value}" for key, value in self._settings.items()]
        return [
            "standalone",
            f"--store={self.store}",
            f"--nameserver-port={nameserver_port}",
            f"--broker-port={broker_port}",
            *settings,
        ]


class BrokerClock:
    """The clock by which a test's broker delivers, retries, checks and deletes.

    Args:
        ask: asks the broker's process.
    """

    def __init__(self, ask: Callable[[Mapping[str, object]], None]) -> None:
        self._ask = ask
        self.ahead = timedelta()

    @property
    def program(self) -> tuple[str, str]:
        """The module that runs a broker with this clock, and its argument."""
        return "pocketmq.server.door", str(self.ahead // _MS)

    def now(self) -> datetime:
        """Return the broker's time, for ``deliver_at`` of a message."""
        return datetime.now(UTC) + self.ahead

    def advance(
        self, *, days: float = 0, hours: float = 0, minutes: float = 0, seconds: float = 0
    ) -> None:
        """Set the clock forward, and wait until the broker has delivered what is due by then.

        Transactions that are late by then are checked, locks of queues expire, and files that are
        too old are deleted soon. Connections and requests in progress keep their time.

        Raises:
            ValueError: a clock can't go back.
            ServerError: the broker doesn't run.
        """
        step = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
        if step < timedelta():
            raise ValueError(f"the broker's clock can't go back by {-step}")
        self._ask({"do": "advance", "milliseconds": step // _MS})
        self.ahead += step


class AsyncServer:
    """The methods of a server that ask the broker, for tests on an event loop."""

    def __init__(self, server: StandaloneServer) -> None:
        self._server = server

    async def messages(self, topic: str) -> list[ReceivedMessage[bytes]]:
        """See ``StandaloneServer.messages``."""
        return await asyncio.to_thread(self._server.messages, topic)

    async def dead_letters(self, group: str) -> list[DeadMessage]:
        """See ``StandaloneServer.dead_letters``."""
        return await asyncio.to_thread(self._server.dead_letters, group)

    async def wait_until_consumed(self, group: str, topic: str, *, timeout: float = 10.0) -> None:
        """See ``StandaloneServer.wait_until_consumed``."""
        wait = self._server.wait_until_consumed
        await asyncio.to_thread(wait, group, topic, timeout=timeout)

    async def advance(self, **step: float) -> None:
        """See ``BrokerClock.advance``."""
        await asyncio.to_thread(self._server.clock.advance, **step)


@contextmanager
def broker(
    *,
    store: Path | None = None,
    settings: Mapping[str, str] | None = None,
    accounts: Mapping[str, Mapping[str, object]] | None = None,
    tls: bool = False,
) -> Iterator[StandaloneServer]:
    """Run a name server and a broker during the ``with`` block.

    Args:
        store: the store's directory; by default a temporary directory that is deleted.
        settings: RocketMQ's broker configuration, such as ``{"flushDiskType": "SYNC_FLUSH"}``.
        accounts: who may send requests, and what each may do: ``{"billing": {"topicPerms":
            ["orders=SUB"]}, "operator": {"admin": True}}``. The keys of an account are those of
            RocketMQ's ``plain_acl.yml``; without a ``secretKey`` it gets a random one. The server's
            ``credentials["billing"]`` is for the client. By default nobody needs an account.
        tls: make a certificate, and refuse connections without TLS unless ``settings`` has another
            ``tls.server.mode``. The server's ``tls`` is for the client. The program openssl must be
            installed.

    Raises:
        ServerError: the server did not start, or did not stop cleanly.
        CertificateError: no certificate could be made.
    """
    with ExitStack() as stack:

        def temporary(prefix: str) -> Path:
            folder = tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True)
            return Path(stack.enter_context(folder))

        directory = store or temporary("pocketmq-")
        settings, credentials, ca = dict(settings or {}), {}, None
        if accounts is not None:
            credentials = _write_accounts(directory / "config", accounts)
            settings |= {
                "aclEnable": "true",
                "pocketmqCredentials": str(directory / "config" / _KEYS),
            }
        if tls:
            files = certificates.make(temporary("pocketmq-tls-"))
            ca = str(files.ca)
            secure = {"tls.server.mode": "enforcing", "useTLS": "true"}
            settings = {**files.settings, **secure, "tls.client.trustCertPath": ca, **settings}
        server = StandaloneServer(directory, settings, credentials, ca)
        stack.callback(server.kill)
        server.start()
        yield server
        server.stop()


def _write_accounts(
    directory: Path, accounts: Mapping[str, Mapping[str, object]]
) -> dict[str, Credentials]:
    """Write the accounts, and the keys of the broker's own one; return the keys of all."""
    entries = [
        {"accessKey": name, "secretKey": secrets.token_hex(), **rules}
        for name, rules in {**accounts, _OWN_ACCOUNT: {"admin": True}}.items()
    ]
    directory.mkdir(parents=True, exist_ok=True)
    for file, content in (("plain_acl.yml", {"accounts": entries}), (_KEYS, entries[-1])):
        path = directory / file
        path.touch(0o600)
        path.write_bytes(dump(content))
    return {
        str(entry["accessKey"]): Credentials(str(entry["accessKey"]), str(entry["secretKey"]))
        for entry in entries
    }

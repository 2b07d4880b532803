"""A real broker inside a test.

    from pocketmq import testing

    with testing.broker() as server:
        producer = client.Producer(server.nameserver)

The broker is a separate process (``pocketmq standalone``) on free ports, with a store that is
deleted afterwards. It ends with the process that started it, however that ends. The pytest fixture
``pocketmq_broker`` offers the same.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Final

import pocketmq.server.own_client  # noqa: F401 - first: it imports ours if a module hides it
from pocketmq import certificates
from remoting.access.accounts import dump
from remoting.protocol.signing import Credentials

START_TIMEOUT: Final = 30.0
"""Seconds until a server must be ready; a busy CI machine needs a few."""

STOP_TIMEOUT: Final = 20.0
"""Seconds for a clean stop, after which the process is killed."""

LOGS_VARIABLE: Final = "POCKETMQ_TEST_LOGS"
"""Environment variable of a directory that keeps the whole logs of the servers."""

SMALL_STORE: Final = {
    "mappedFileSizeCommitLog": str(64 * 1024 * 1024),
    "diskSpaceCleanForciblyRatio": "100",
    "diskSpaceWarningLevelRatio": "100",
}
"""A test's store uses log files of 64 MiB instead of RocketMQ's 1 GiB, and works on a nearly full
disk."""

_OWN_ACCOUNT: Final = "pocketmq-broker"
"""The account with which a broker registers at its name server."""

_KEYS: Final = "keys.yml"
"""The file with this account's keys."""

_LOG_LINES_KEPT: Final = 1000


class ServerError(RuntimeError):
    """A server process did not start or stop cleanly; the text ends with its last log lines."""


class ServerProcess:
    """One ``pocketmq`` server as a child process.

    Args:
        command: ``standalone``, ``nameserver`` or ``broker`` with its options.
        environment: variables added to this process's.
    """

    def __init__(
        self, command: Sequence[str], *, environment: Mapping[str, str] | None = None
    ) -> None:
        self.command = list(command)
        self.addresses: dict[str, str] = {}
        self._environment = {**os.environ, **(environment or {})}
        self._process: subprocess.Popen[str] | None = None
        self._log: deque[str] = deque(maxlen=_LOG_LINES_KEPT)
        self._reader: threading.Thread | None = None

    @property
    def pid(self) -> int:
        """The process id; the process must be running."""
        return self._running().pid

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> str:
        """The last lines that the server wrote to stderr, across restarts."""
        return "".join(self._log)

    def start(self) -> None:
        """Start the process and wait until it is ready.

        Raises:
            ServerError: it ended, was not ready in time, or is already running.
        """
        if self._process is not None:
            raise ServerError(self._complaint("runs already"))
        process = subprocess.Popen(  # noqa: S603 - our own command line
            [
                sys.executable,
                "-P",
                "-m",
                "pocketmq",
                *self.command,
                "--json",
                "--until-stdin-closes",
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self._environment,
        )
        self._process = process
        assert process.stderr is not None
        assert process.stdout is not None
        # Read stderr continuously: a full pipe would block the server.
        self._reader = threading.Thread(
            target=self._keep_log, args=(process.stderr, process.pid), daemon=True
        )
        self._reader.start()
        line = _read_line(process.stdout, START_TIMEOUT)
        try:
            ready = json.loads(line)
        except ValueError:
            self.kill()
            raise ServerError(self._complaint("did not get ready")) from None
        self.addresses = {
            name: address for name, address in ready.items() if name not in {"event", "pid"}
        }

    def stop(self) -> None:
        """Stop cleanly (SIGTERM) and wait.

        Raises:
            ServerError: it did not end in time, or its exit code was not 0.
        """
        if self._process is None:
            return
        process, code = self._process, None
        process.terminate()
        try:
            code = process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._forget()
        if code != 0:
            raise ServerError(self._complaint(f"ended with {code} instead of a clean stop"))

    def kill(self) -> None:
        """Kill the process (SIGKILL) and wait until it has ended."""
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        self._forget()

    def pause(self) -> None:
        """Suspend the process (SIGSTOP)."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Resume the process (SIGCONT)."""
        os.kill(self.pid, signal.SIGCONT)

    def _keep_log(self, lines: IO[str], pid: int) -> None:
        directory = os.environ.get(LOGS_VARIABLE)
        with ExitStack() as stack:
            file = None
            if directory:
                path = Path(directory) / f"{self.command[0]}-{pid}.log"
                path.parent.mkdir(parents=True, exist_ok=True)
                file = stack.enter_context(path.open("a", encoding="utf-8"))
            for line in lines:
                self._log.append(line)
                if file is not None:
                    file.write(line)

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None:
            raise ServerError(self._complaint("is not running"))
        return self._process

    def _forget(self) -> None:
        process, self._process = self._process, None
        assert process is not None
        if self._reader is not None:
            self._reader.join()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()

    def _complaint(self, what: str) -> str:
        tail = "".join(list(self._log)[-20:])
        return f"pocketmq {' '.join(self.command)} {what}:\n{tail}"


class StandaloneServer(ServerProcess):
    """A name server and a broker in one child process; see ``broker()``.

    A restart uses the same addresses and the same store.

    Attributes:
        store: its directory.
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
        super().__init__(self._arguments("0", "0"))

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
        self.start()

    def _arguments(self, nameserver_port: str, broker_port: str) -> list[str]:
        settings = [f"--set={key}={value}" for key, value in self._settings.items()]
        return [
            "standalone",
            f"--store={self.store}",
            f"--nameserver-port={nameserver_port}",
            f"--broker-port={broker_port}",
            *settings,
        ]


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


def _read_line(stream: IO[str], timeout: float) -> str:
    """Return a line of a pipe, or an empty string after the timeout.

    Works without ``select``, which some systems lack for pipes.
    """
    lines: list[str] = []
    reader = threading.Thread(target=lambda: lines.append(stream.readline()), daemon=True)
    reader.start()
    reader.join(timeout)
    return lines[0] if lines else ""

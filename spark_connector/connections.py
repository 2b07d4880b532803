"""A cache of broker connections that are reused between tasks.

Spark keeps its Python workers over many micro-batches, so a task can reuse the connections of the
previous one. A connection with unread answers is never reused: it is closed if its lease ends with
an error, because a generator is closed early, or with unanswered requests. Spark forks its
workers; a connection opened before the fork belongs to the parent and is closed in the child.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import chain
from typing import Final, NamedTuple, TypedDict, Unpack

from remoting.blocking import BlockingConnection
from remoting.security.credentials import CredentialsSource, Signer
from remoting.security.tls import Tls
from spark_connector.limits import CONNECT_TIMEOUT, MAX_KEPT_CONNECTIONS

CONNECTION_IDLE: Final = 300.0
"""Seconds without use after which a connection is closed (option ``connectionIdleMs``)."""


Lease = Callable[[str], AbstractContextManager[BlockingConnection]]
"""Returns a context manager with a connection to an address."""


_Key = tuple[str, CredentialsSource | None, Tls | None]
"""The address of a connection, what its requests are signed with, and its TLS."""


class _Unused(NamedTuple):
    since: float
    connection: BlockingConnection


class ConnectionCache:
    """Unused connections by address.

    Args:
        clock: returns monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._unused: dict[_Key, list[_Unused]] = {}

    @contextmanager
    def lease(
        self,
        address: str,
        *,
        idle_timeout: float = CONNECTION_IDLE,
        connect_timeout: float = CONNECT_TIMEOUT,
        credentials: CredentialsSource | None = None,
        tls: Tls | None = None,
    ) -> Iterator[BlockingConnection]:
        """Lease a connection for a block; it is kept afterwards unless the block raises.

        Args:
            address: ``host:port``.
            idle_timeout: connections to any address that were unused for more seconds than this
                are closed.
            connect_timeout: seconds for opening a new connection.
            credentials: what the requests are signed with; None: unsigned.
            tls: how to connect with TLS; None: without it.

        Raises:
            ConfigError: the file with the credentials can't be used.
            ConnectFailed: no unused connection exists, and a new one can't be opened.
        """
        key = (address, credentials, tls)
        connection = self._take(key, idle_timeout)
        if connection is None:
            connection = BlockingConnection(
                address,
                connect_timeout=connect_timeout,
                signer=None if credentials is None else Signer(credentials),
                tls=tls,
            )
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        self._give_back(key, connection)

    def close(self) -> None:
        """Close all unused connections."""
        with self._lock:
            unused, self._unused = self._unused, {}
        for kept in chain.from_iterable(unused.values()):
            kept.connection.close()

    def unused(self, address: str) -> int:
        """Return the number of unused connections to an address."""
        return sum(len(unused) for key, unused in self._unused.items() if key[0] == address)

    def forked(self) -> None:
        """Close the copies of the parent's connections in a child; the parent keeps its own."""
        # Another thread of the parent may have held the lock; that thread doesn't exist here.
        self._lock = threading.Lock()
        self.close()

    def _take(self, key: _Key, idle_timeout: float) -> BlockingConnection | None:
        with self._lock:
            closing = []
            oldest = self._clock() - idle_timeout
            for other, unused in self._unused.items():
                closing += [kept.connection for kept in unused if kept.since < oldest]
                self._unused[other] = [kept for kept in unused if kept.since >= oldest]
            reusable = self._unused.get(key, [])
            found = None
            while reusable and found is None:
                candidate = reusable.pop().connection
                if candidate.usable:
                    found = candidate
                else:
                    closing.append(candidate)
        for connection in closing:
            connection.close()
        return found

    def _give_back(self, key: _Key, connection: BlockingConnection) -> None:
        if connection.usable:
            with self._lock:
                kept = self._unused.setdefault(key, [])
                if len(kept) < MAX_KEPT_CONNECTIONS:
                    kept.append(_Unused(self._clock(), connection))
                    return
        connection.close()


_CACHE: Final = ConnectionCache()
os.register_at_fork(after_in_child=_CACHE.forked)


class LeaseArguments(TypedDict, total=False):
    """Keyword arguments of ``ConnectionCache.lease``."""

    idle_timeout: float
    connect_timeout: float
    credentials: CredentialsSource | None
    tls: Tls | None


# A function, not a bound method: readers that refer to it are pickled, and the cache can't be.
def lease(
    address: str, **arguments: Unpack[LeaseArguments]
) -> AbstractContextManager[BlockingConnection]:
    """Lease a connection from this process's cache; see ``ConnectionCache.lease``."""
    return _CACHE.lease(address, **arguments)


close_unused: Final = _CACHE.close
"""Close this process's unused connections."""

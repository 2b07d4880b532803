"""Who looks at a page: people who signed in with an account of the brokers, and the rest."""

from __future__ import annotations

import hmac
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import client
from client.errors import AccessDenied
from remoting.protocol.signing import Credentials

COOKIE: Final = "pocketmq-console"

LASTS: Final = 8 * 3600.0
"""Seconds from signing in until one has to sign in again: a working day."""

MAX_SESSIONS: Final = 200
"""Most people who are signed in; the next one ends the oldest session."""

_ID_BYTES: Final = 24


@dataclass(frozen=True, slots=True)
class ConsoleSession:
    """Somebody who has signed in.

    Attributes:
        account: the access key.
        admin: sends requests with this account's keys.
        ends_at: on the monotonic clock.
    """

    account: str
    credentials: Credentials
    admin: client.Admin
    ends_at: float


class ConsoleSessions:
    """The sessions of this process: a cookie has nothing but a random number.

    Args:
        now: returns seconds of a monotonic clock.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._secret = secrets.token_bytes(32)
        self._sessions: dict[str, ConsoleSession] = {}

    def visitor(self, cookie: str | None) -> str:
        """Return a browser's number: the one in its cookie, or a new one."""
        if cookie is not None and len(cookie) == 2 * _ID_BYTES and cookie.isalnum():
            return cookie
        return secrets.token_hex(_ID_BYTES)

    def token(self, visitor: str) -> str:
        """Return what each form of a browser has to send, which no other site can know."""
        return hmac.digest(self._secret, visitor.encode(), "sha256").hex()

    def get(self, visitor: str) -> ConsoleSession | None:
        """Return who is signed in with a browser; None for nobody, or no longer."""
        session = self._sessions.get(visitor)
        return session if session is not None and session.ends_at > self._now() else None

    def living(self) -> list[Credentials]:
        """Return the keys of all who are signed in, of the last one first."""
        now = self._now()
        living = [one.credentials for one in self._sessions.values() if one.ends_at > now]
        return living[::-1]

    async def open(self, nameserver: str, credentials: Credentials) -> str:
        """Sign in and return the new number for the cookie.

        A number from before signing in may be known to others, so it isn't used again.

        Raises:
            AccessDenied: the brokers don't know the account, or the secret is wrong.
            Unavailable: no broker can be asked.
        """
        admin = client.Admin(nameserver, credentials=credentials)
        await admin.start()
        try:
            await _check(admin)
        except BaseException:
            await admin.close()
            raise
        await self.sweep(MAX_SESSIONS - 1)
        visitor = secrets.token_hex(_ID_BYTES)
        ends_at = self._now() + LASTS
        self._sessions[visitor] = ConsoleSession(
            credentials.access_key, credentials, admin, ends_at
        )
        return visitor

    async def close(self, visitor: str) -> None:
        """Sign out."""
        session = self._sessions.pop(visitor, None)
        if session is not None:
            await session.admin.close()

    async def sweep(self, most: int = MAX_SESSIONS) -> None:
        """End the sessions that are over, and the oldest of more than ``most``."""
        oldest = list(self._sessions)[: max(0, len(self._sessions) - most)]
        over = [name for name, one in self._sessions.items() if one.ends_at <= self._now()]
        for visitor in {*oldest, *over}:
            await self.close(visitor)


async def _check(admin: client.Admin) -> None:
    """Ask all brokers, some of which may be down. Raises AccessDenied, Unavailable."""
    for error in (await admin.lags(limit=1)).unreachable.values():
        if isinstance(error, AccessDenied):
            raise error

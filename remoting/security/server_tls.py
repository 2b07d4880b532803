"""TLS of the servers: their settings, and certificates that are replaced while a server runs."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import ClassVar, Final, Self

from remoting.runtime.clock import Clock
from remoting.runtime.log import Log
from remoting.runtime.settings import (
    ConfigError,
    RefusedKey,
    Settings,
    boolean,
    choice,
    path,
    refused,
    setting,
)
from remoting.security.tls import TlsError, load_pair, load_trust

WATCH_SECONDS: Final = 0.5
"""The interval at which files are checked: a change has effect within a second."""

EXPIRY_WARNING_DAYS: Final = 14
"""A certificate's expiry is reported this many days before. Tools renew certificates of 90 days, a
usual lifetime, 30 days before."""

DAY_SECONDS: Final = 86_400

_NO_CHECK_TIME: Final = 0x200000
"""OpenSSL's X509_V_FLAG_NO_CHECK_TIME, which Python's ssl has no name for."""

_log = Log("remoting")

TLS_REFUSED_KEYS: Final[Mapping[str, RefusedKey]] = {
    "tls.test.mode.enable": refused(
        "nobody can verify a certificate that is made at each start; make one with 'pocketmq tls "
        "self-signed', set tls.server.certPath and tls.server.keyPath, and use false"
    ),
}


@dataclass(frozen=True, kw_only=True)
class TlsServerSettings(Settings):
    """RocketMQ's settings for TLS of a server (cf. TlsSystemConfig)."""

    MORE_FILES: ClassVar[Mapping[str, Path]] = {
        "tls.config.file": Path("/etc/rocketmq/tls.properties")
    }

    tls_config_file: Path | None = setting(  # noqa: RUF009 - declares a field
        "tls.config.file", path, None
    )
    tls_server_mode: str = setting(
        "tls.server.mode", choice("permissive", "enforcing", "disabled"), "permissive"
    )
    tls_server_cert: Path | None = setting(  # noqa: RUF009 - declares a field
        "tls.server.certPath", path, None
    )
    tls_server_key: Path | None = setting(  # noqa: RUF009 - declares a field
        "tls.server.keyPath", path, None
    )
    tls_server_key_password: str | None = setting("tls.server.keyPassword", str, None, secret=True)
    tls_server_need_client_auth: str = setting(
        "tls.server.need.client.auth", choice("none", "optional", "require"), "none"
    )
    tls_server_auth_client: bool = setting("tls.server.authClient", boolean, False)
    """Whether certificates of clients are verified; without it none are asked for."""
    tls_server_trust: Path | None = setting(  # noqa: RUF009 - declares a field
        "tls.server.trustCertPath", path, None
    )

    def check(self) -> None:
        """Check that the settings fit together.

        Raises:
            ConfigError: settings contradict each other.
        """
        super().check()
        if self.tls_server_cert is None:
            if self.tls_server_key is not None:
                raise ConfigError("tls.server.keyPath needs tls.server.certPath")
            if self.tls_server_mode == "enforcing":
                raise ConfigError(
                    "tls.server.mode=enforcing needs a certificate: set tls.server.certPath and "
                    "tls.server.keyPath; 'pocketmq tls self-signed' makes a pair for tests"
                )
        if self.tls_server_need_client_auth == "require" and not self.tls_server_auth_client:
            raise ConfigError(
                "tls.server.need.client.auth=require would accept any certificate: set "
                "tls.server.authClient=true too"
            )
        if self.tls_server_auth_client and self.tls_server_trust is None:
            raise ConfigError(
                "tls.server.authClient needs tls.server.trustCertPath: the certificates of the "
                "authorities of clients"
            )


class ServerTls:
    """The certificate of a server, and what it requires of clients.

    ``open`` and ``refresh`` read the disk: call them in a thread.

    Args:
        settings: with a certificate.
        clock: the time, for expiry.

    Attributes:
        context: for new connections.
        enforcing: whether connections without TLS are refused.
        expires_at: when the certificate expires, in seconds since 1970.
        problem: why the current files can't be used; empty if they are in use.
    """

    def __init__(self, settings: TlsServerSettings, clock: Clock) -> None:
        assert settings.tls_server_cert is not None
        self._settings = settings
        self._cert = settings.tls_server_cert
        self._clock = clock
        self._stamp: list[object] = []
        self._reported = ""
        self._warn_at = -inf
        self.context: ssl.SSLContext
        self.enforcing = settings.tls_server_mode == "enforcing"
        self.expires_at = inf
        self.problem = ""

    @classmethod
    def of(cls, settings: TlsServerSettings, clock: Clock) -> Self | None:
        """Return the TLS of a server, None if it is disabled or there is no certificate."""
        if settings.tls_server_cert is None or settings.tls_server_mode == "disabled":
            return None
        return cls(settings, clock)

    @property
    def days_left(self) -> int:
        """Whole days until the certificate expires; negative if it has expired."""
        return int((self.expires_at - self._clock.now_ms() / 1000) // DAY_SECONDS)

    def open(self) -> None:
        """Read the files for the first time.

        Raises:
            TlsError: a file can't be read or used.
        """
        self._stamp = self._stamps()
        self.context, self.expires_at = self._load()
        mode = self._settings.tls_server_mode
        _log.info("TLS is on", mode=mode, file=str(self._cert), days_left=self.days_left)

    def refresh(self) -> bool:
        """Read the files if they have changed; return whether a new context is in use.

        Files that can't be used change nothing, and are reported once.
        """
        stamp = self._stamps()
        if stamp == self._stamp:
            # Not at once: while a pair is being replaced, its files don't belong together.
            if self.problem != self._reported:
                self._reported = self.problem
                _log.error(
                    "the TLS files can't be used; the ones before stay in use",
                    reason=self.problem,
                )
            return False
        self._stamp = stamp
        try:
            self.context, self.expires_at = self._load()
        except TlsError as error:
            self.problem = str(error)
            return False
        self.problem = self._reported = ""
        self._warn_at = -inf
        _log.info("TLS certificate replaced", file=str(self._cert), days_left=self.days_left)
        return True

    async def watch(self) -> None:
        """Use changed files, and report once a day that the certificate expires soon."""
        loop = asyncio.get_running_loop()
        while True:
            self.warn()
            await asyncio.sleep(WATCH_SECONDS)
            await loop.run_in_executor(None, self.refresh)

    def warn(self) -> None:
        """Report that the certificate expires soon, unless that was reported within a day."""
        now = self._clock.monotonic()
        if self.days_left >= EXPIRY_WARNING_DAYS or now < self._warn_at:
            return
        self._warn_at = now + DAY_SECONDS
        what = "has expired" if self.days_left < 0 else "expires soon"
        _log.warning(
            f"the TLS certificate {what}; replace its files, the server then uses them by itself",
            file=str(self._cert),
            days_left=self.days_left,
        )

    def _stamps(self) -> list[object]:
        """Return what changes when a file does."""
        stamps: list[object] = []
        for file in (self._cert, self._settings.tls_server_key, self._settings.tls_server_trust):
            stamp = None
            if file is not None:
                # A missing file is found when it is read.
                with suppress(OSError):
                    status = file.stat()
                    stamp = (status.st_ino, status.st_size, status.st_mtime_ns)
            stamps.append(stamp)
        return stamps

    def _load(self) -> tuple[ssl.SSLContext, float]:
        settings = self._settings
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION
        load_pair(context, self._cert, settings.tls_server_key, settings.tls_server_key_password)
        expires_at = _expiry(context, self._cert)
        if settings.tls_server_auth_client and settings.tls_server_trust is not None:
            load_trust(context, settings.tls_server_trust)
            context.verify_mode = {
                "none": ssl.CERT_NONE,
                "optional": ssl.CERT_OPTIONAL,
                "require": ssl.CERT_REQUIRED,
            }[settings.tls_server_need_client_auth]
        return context, expires_at


def _expiry(context: ssl.SSLContext, cert: Path) -> float:
    """Return when a server's certificate expires, in seconds since 1970.

    Python's ssl shows the fields of a verified peer's certificate only. So do a handshake in
    memory, which also proves that the pair works.
    """
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | _NO_CHECK_TIME
    load_trust(client, cert)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = context.wrap_bio(to_server, to_client, server_side=True)
    theirs = client.wrap_bio(to_client, to_server)
    try:
        # TLS 1.3 takes one round trip, 1.2 two.
        for side in (theirs, ours, theirs, ours, theirs):
            with suppress(ssl.SSLWantReadError):
                side.do_handshake()
        fields = theirs.getpeercert() or {}
        return float(ssl.cert_time_to_seconds(str(fields["notAfter"])))
    except (ssl.SSLError, ValueError, KeyError) as failure:
        raise TlsError(f"a server can't use the certificate {cert}: {failure}") from None

"""TLS with the standard library's ssl: contexts, and what a failed handshake means.

TLS 1.2 and newer. A client verifies the server's certificate and, unlike RocketMQ's client, the
host name in it.
"""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final, TypeAlias

CLIENT_PREFIX: Final = "POCKETMQ_CLIENT_TLS"
"""The environment variable with a client's ``tls`` option; ``<it>_CA`` and so on set its parts."""

TRUTHS: Final[Mapping[str, bool]] = {
    **dict.fromkeys(("true", "yes", "on", "1"), True),
    **dict.fromkeys(("false", "no", "off", "0"), False),
}
"""The words for true and false in files and in the environment."""


class TlsError(ValueError):
    """A certificate, key or CA file can't be used; the text has the file and the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """A client's TLS settings. Files are PEM; changed files are used by the next connection.

    Attributes:
        ca: file with the certificates of the authorities to trust, or with the server's own one;
            None for the operating system's.
        cert: file with the client's certificate and its chain, for servers that require one.
        key: file with its private key; None if it is in ``cert``.
        key_password: of an encrypted key.
        check_hostname: whether the server's certificate must name the host or IP address that is
            connected to. RocketMQ's client doesn't check it.
    """

    ca: str | Path | None = None
    cert: str | Path | None = None
    key: str | Path | None = None
    key_password: str | None = field(default=None, repr=False)
    check_hostname: bool = True

    def context(self) -> ssl.SSLContext:
        """Read the files and return a new context.

        Raises:
            TlsError: a file can't be read or used.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.check_hostname = self.check_hostname
        if self.ca is None:
            context.load_default_certs(ssl.Purpose.SERVER_AUTH)
        else:
            load_trust(context, self.ca)
        if self.cert is not None:
            load_pair(context, self.cert, self.key, self.key_password)
        elif self.key is not None:
            raise TlsError(f"there is a key, {self.key}, without a certificate; give cert too")
        return context


ClientTls: TypeAlias = Tls | ssl.SSLContext
TlsOption: TypeAlias = bool | str | Path | Mapping[str, Any] | ClientTls | None
"""True for the defaults of ``Tls``, the path of a CA file, the attributes of ``Tls``, a ``Tls`` or
a context; None or False for none."""


def client_tls(option: TlsOption) -> ClientTls | None:
    """Return the settings in an option, whose files are read once to check them.

    Raises:
        TlsError: an attribute is unknown or of the wrong type, or a file can't be used.
    """
    if isinstance(option, str) and option.lower() in TRUTHS:
        option = TRUTHS[option.lower()]
    if option is None or option is False or option == "":
        return None
    if isinstance(option, ssl.SSLContext):
        return option
    if option is True:
        option = Tls()
    elif isinstance(option, str | Path):
        option = Tls(ca=option)
    elif isinstance(option, Mapping):
        option = _from_mapping(option)
    if not isinstance(option, Tls):
        raise TlsError(
            f"tls can't be {option!r}; give True, the path of a CA file, a client.Tls or an "
            "ssl.SSLContext"
        )
    option.context()
    return option


def tls_from_environment(env: Mapping[str, str] | None = None) -> TlsOption:
    """Return the ``tls`` option in the environment, None if there is none.

    ``POCKETMQ_CLIENT_TLS`` is true, false or the path of a CA file. ``POCKETMQ_CLIENT_TLS_CA`` and
    the other attributes of ``Tls`` turn TLS on too, unless ``POCKETMQ_CLIENT_TLS`` is false.
    """
    env = os.environ if env is None else env
    switch = env.get(CLIENT_PREFIX, "")
    parts = {
        name.removeprefix(f"{CLIENT_PREFIX}_").lower(): value
        for name, value in env.items()
        if name.startswith(f"{CLIENT_PREFIX}_") and value
    }
    if not parts or TRUTHS.get(switch.lower()) is False:
        return switch or None
    return parts if switch.lower() in TRUTHS or not switch else {"ca": switch, **parts}


def load_trust(context: ssl.SSLContext, ca: str | Path) -> None:
    """Load the certificates of authorities into a context.

    Raises:
        TlsError: the file can't be read, or has no certificates.
    """
    try:
        context.load_verify_locations(ca)
    except OSError as failure:
        raise TlsError(
            f"the CA file {ca} can't be used: {_reason(failure)}; give a PEM file with certificates"
        ) from None


def load_pair(
    context: ssl.SSLContext,
    cert: str | Path,
    key: str | Path | None,
    password: str | None,
) -> None:
    """Load a certificate and its private key into a context.

    Raises:
        TlsError: a file can't be read, the password is wrong, or the two don't belong together.
    """
    try:
        # Without a password OpenSSL would ask for it at the terminal.
        context.load_cert_chain(cert, key, password=password or "")
    except OSError as failure:
        files = f"the certificate {cert} and the key {key}" if key else f"the certificate {cert}"
        raise TlsError(f"{files} can't be used: {_reason(failure)}") from None


def connect_failure(failure: OSError | TlsError, *, tls: bool, timeout: float) -> tuple[str, str]:
    """Return why a connection could not be made and, for TLS, what to do.

    Args:
        tls: whether the connection was to be one with TLS.
        timeout: seconds for the attempt.
    """
    if isinstance(failure, TlsError):
        return "its TLS settings can't be used", str(failure)
    if isinstance(failure, TimeoutError):
        return f"no answer within {timeout:g} s", ""
    if isinstance(failure, socket.gaierror):
        return "the host name is not known", ""
    if isinstance(failure, ssl.SSLError):
        return _handshake_failure(failure)
    if tls and isinstance(failure, ConnectionResetError | ConnectionAbortedError | BrokenPipeError):
        return _NO_TLS
    return os.strerror(failure.errno) if failure.errno else str(failure), ""


def loss_reason(failure: BaseException | None, *, silent: bool, tls: bool) -> str:
    """Return why a client's connection ended.

    Args:
        failure: of the socket; None if the peer closed it.
        silent: whether the peer has sent nothing.
        tls: whether it is a connection with TLS.
    """
    if isinstance(failure, ssl.SSLError):
        reason, hint = _handshake_failure(failure)
        return f"{reason}; {hint}"
    text = "closed by the peer" if failure is None else f"connection failed: {failure}"
    if not silent:
        return text
    if tls:
        return f"{text} before its first answer; it may require a certificate: set cert of tls"
    return f"{text} before its first answer; if the port accepts TLS only, set the option tls"


def _handshake_failure(failure: ssl.SSLError) -> tuple[str, str]:
    if isinstance(failure, ssl.SSLCertVerificationError):
        reason = f"its certificate is refused: {failure.verify_message.rstrip('.')}"
        return reason, _VERIFY_HINTS.get(failure.verify_code, _UNTRUSTED)
    reason = failure.reason or ""
    if "ALERT" in reason and ("CERTIFICATE" in reason or "UNKNOWN_CA" in reason):
        return (
            f"it refuses this client's certificate, or there is none ({_words(reason)})",
            "set cert and key of tls to a pair whose authority the server trusts",
        )
    if isinstance(failure, ssl.SSLEOFError | ssl.SSLZeroReturnError) or reason in _NOT_TLS_RECORDS:
        return _NO_TLS
    return (
        f"TLS failed ({_words(reason) or failure})",
        "check the server's log; both sides need TLS 1.2 or newer",
    )


_NOT_TLS_RECORDS: Final = {"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST"}
_NO_TLS: Final = (
    "the TLS handshake ended early",
    "if the port accepts no TLS, connect without the option tls, or turn TLS on at the server; if "
    "it requires a certificate, set cert of tls",
)
_UNTRUSTED: Final = (
    "if you trust the server, set tls to a file with the certificate of its authority, or with "
    "the server's own certificate if that is self-signed"
)
_WRONG_NAME: Final = (
    "connect to a name or address that is in the certificate (a broker's is its brokerIP1), make "
    "one that has it, or switch the check off with check_hostname=False"
)
_CLOCK: Final = "renew the server's certificate, or correct this machine's clock"
_VERIFY_HINTS: Final = {9: _CLOCK, 10: _CLOCK, 62: _WRONG_NAME, 64: _WRONG_NAME}
"""By OpenSSL's X509_V_ERR_*: not yet valid, expired, host name mismatch, IP address mismatch."""


def _from_mapping(parts: Mapping[str, Any]) -> Tls:
    names = {part.name for part in fields(Tls)}
    values = dict(parts)
    for name, value in parts.items():
        if name not in names:
            raise TlsError(f"tls has no part {name!r}; there are {', '.join(sorted(names))}")
        if name == "check_hostname" and isinstance(value, str):
            values[name] = TRUTHS.get(value.lower(), value)
        if not isinstance(values[name], bool if name == "check_hostname" else str | Path):
            raise TlsError(f"tls's {name} has the wrong type: {type(value).__name__}")
    return Tls(**values)


def _reason(failure: OSError) -> str:
    if isinstance(failure, ssl.SSLError):
        return _words(failure.reason or "") or "it is not in PEM format, or the password is wrong"
    return os.strerror(failure.errno) if failure.errno else str(failure)


def _words(reason: str) -> str:
    return reason.lower().replace("_", " ")

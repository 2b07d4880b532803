"""Certificates for tests and first steps, made by the openssl program."""

from __future__ import annotations

import ipaddress
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

LOCAL_NAMES: Final = ("localhost", "127.0.0.1", "::1")
"""Names of this machine for itself; every certificate has them."""

_PRIVATE: Final = 0o600
_COMMAND_SECONDS: Final = 30.0
"""The time for one openssl command, which takes some 10 ms."""

_AUTHORITY: Final = """\
basicConstraints=critical,CA:TRUE
keyUsage=critical,keyCertSign,cRLSign
subjectKeyIdentifier=hash
"""
_SERVER: Final = """\
basicConstraints=critical,CA:FALSE
keyUsage=critical,digitalSignature
extendedKeyUsage=serverAuth
authorityKeyIdentifier=keyid
subjectAltName={}
"""


class CertificateFiles(NamedTuple):
    """A server's certificate with its key, and the certificate of the authority that signed it."""

    ca: Path
    cert: Path
    key: Path

    @property
    def settings(self) -> dict[str, str]:
        """The settings of a server that uses them."""
        return {"tls.server.certPath": str(self.cert), "tls.server.keyPath": str(self.key)}


class CertificateError(Exception):
    """No certificate was made; the text says why."""


def make(directory: Path, names: Sequence[str] = (), *, days: int = 365) -> CertificateFiles:
    """Make a new authority and a certificate of it in ``directory``, which is created.

    The authority's key is deleted: it signs nothing else.

    Args:
        names: host names and IP addresses of the server, besides ``LOCAL_NAMES``.
        days: until both expire.

    Raises:
        CertificateError: a file exists, or the openssl program is missing or failed.
        OSError: a file can't be written.
    """
    files = CertificateFiles(*(directory / name for name in ("ca.pem", "server.pem", "server.key")))
    for file in files:
        if file.exists():
            raise CertificateError(f"{file} exists; remove it, or choose another directory")
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        _sign(work, "ca", _AUTHORITY, days, "-signkey", "ca.key")
        entries = ",".join(map(_entry, dict.fromkeys((*names, *LOCAL_NAMES))))
        serial = str(secrets.randbits(63) + 1)
        authority = ("-CA", "ca.pem", "-CAkey", "ca.key", "-set_serial", serial)
        _sign(work, "server", _SERVER.format(entries), days, *authority)
        for file in files:
            if file == files.key:
                file.touch(_PRIVATE)
            shutil.copyfile(work / file.name, file)
    return files


def _entry(name: str) -> str:
    try:
        return f"IP:{ipaddress.ip_address(name)}"
    except ValueError:
        return f"DNS:{name}"


def _sign(work: Path, name: str, extensions: str, days: int, *signer: str) -> None:
    """Make a key and a certificate with these extensions."""
    (work / f"{name}.ext").write_text(extensions)
    subject = f"/CN=PocketMQ {name} {secrets.token_hex(4)}"
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    _openssl(work, "req", "-new", *key, "-keyout", f"{name}.key", "-out", "csr", "-subj", subject)
    files = ("-in", "csr", "-extfile", f"{name}.ext", "-out", f"{name}.pem")
    _openssl(work, "x509", "-req", "-sha256", "-days", str(days), *files, *signer)


def _openssl(work: Path, *arguments: str) -> None:
    try:
        subprocess.run(  # noqa: S603 - no shell, and the names are in files
            ["openssl", *arguments],  # noqa: S607 - the user's openssl
            cwd=work,
            check=True,
            capture_output=True,
            text=True,
            timeout=_COMMAND_SECONDS,
        )
    except FileNotFoundError:
        raise CertificateError(
            "the openssl program is missing: install it, or make the files elsewhere"
        ) from None
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as failure:
        detail = str(failure.stderr or failure).strip()
        raise CertificateError(f"openssl {arguments[0]} failed: {detail}") from None

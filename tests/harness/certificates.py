"""Certificates for tests, made with the openssl program."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import NamedTuple

NAMES = "IP:127.0.0.1,DNS:localhost"


class Pair(NamedTuple):
    """The files of a certificate and its key."""

    cert: Path
    key: Path


def self_signed(
    folder: Path, name: str = "server", *, names: str = NAMES, days: int = 30, password: str = ""
) -> Pair:
    """Make a certificate that is its own authority; ``days`` may be negative: it has expired."""
    pair = Pair(folder / f"{name}.pem", folder / f"{name}.key")
    plain = ["-noenc"] if not password else ["-passout", f"pass:{password}"]
    request = folder / f"{name}.csr"
    new = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", *plain, "-keyout", pair.key]
    _openssl("req", *new, "-out", request, "-subj", f"/CN={name}")
    extensions = folder / f"{name}.ext"
    extensions.write_text(f"subjectAltName={names}\nbasicConstraints=CA:TRUE\n")
    sign = ["-signkey", pair.key, "-passin", f"pass:{password}", "-extfile", extensions]
    _openssl("x509", "-req", "-in", request, *sign, "-days", days, "-out", pair.cert)
    return pair


def _openssl(*arguments: object) -> None:
    command = ["openssl", *map(str, arguments)]
    subprocess.run(command, check=True, capture_output=True, timeout=30)

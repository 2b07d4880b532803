"""Apache's brokers with access control: 4.9.7 with its ACL, 5.3.3 with its auth module."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import client
from remoting.security.credentials import Signer
from remoting.security.tls import Tls
from tests.interop.apache import Apache, apache

KEYS = client.Credentials("admin-account", "secret-of-the-admin")
RULES = f"""\
accounts:
- accessKey: {KEYS.access_key}
  secretKey: {KEYS.secret_key}
  admin: true
"""
_DEFAULT = "org.apache.rocketmq.auth.{0}.provider.Default{1}Provider"
_LOCAL = "org.apache.rocketmq.auth.{0}.provider.Local{1}MetadataProvider"
AUTH = (
    "authenticationEnabled=true",
    "authorizationEnabled=true",
    f"authenticationProvider={_DEFAULT.format('authentication', 'Authentication')}",
    f"authorizationProvider={_DEFAULT.format('authorization', 'Authorization')}",
    f"authenticationMetadataProvider={_LOCAL.format('authentication', 'Authentication')}",
    f"authorizationMetadataProvider={_LOCAL.format('authorization', 'Authorization')}",
    "initAuthenticationUser="
    + json.dumps({"username": KEYS.access_key, "password": KEYS.secret_key}),
    "innerClientAuthenticationCredentials="
    + json.dumps({"accessKey": KEYS.access_key, "secretKey": KEYS.secret_key}),
)


@contextmanager
def guarded(
    version: str, home: Path, *, properties: Sequence[str] = (), tls: Tls | None = None
) -> Iterator[Apache]:
    """Run a name server and a broker whose only account, an administrator, has ``KEYS``.

    Args:
        version: ``4.9.7`` or ``5.3.3``.
        home: An empty directory.
        properties: Options of both JVMs.
        tls: How to connect until it is registered.
    """
    (home / "conf").mkdir()
    (home / "conf" / "plain_acl.yml").write_text(RULES)
    auth = (*AUTH, f"authConfigPath={home}/auth")
    with apache(
        version,
        home,
        settings=("aclEnable=true",) if version == "4.9.7" else auth,
        properties=properties,
        signer=Signer(KEYS),
        tls=tls,
    ) as running:
        yield running
    # The accounts of 5.3.3, in a file named .log; logs are searched for secrets.
    shutil.rmtree(home / "store" / "config" / "users", ignore_errors=True)


def written_keys(folder: Path) -> Path:
    """Return a file with ``KEYS`` that others can't read."""
    file = folder / "keys.yml"
    file.touch(mode=0o600)
    file.write_text(f"accessKey: {KEYS.access_key}\nsecretKey: {KEYS.secret_key}\n")
    return file

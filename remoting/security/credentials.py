"""The keys that a client signs its requests with, from a file or the environment.

The file has the form of RocketMQ's ``tools.yml``: ``accessKey``, ``secretKey`` and, for temporary
keys, ``securityToken``. It is read again when it changes, so that keys can be replaced without a
restart. The environment has the same keys as ``POCKETMQ_ACCESS_KEY``, ``POCKETMQ_SECRET_KEY`` and
``POCKETMQ_SECURITY_TOKEN``, or the path of a file as ``POCKETMQ_CREDENTIALS``.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final, TypeAlias

import yaml

from remoting.protocol.command import Command
from remoting.protocol.signing import Credentials, signed
from remoting.runtime.log import Log
from remoting.runtime.settings import ConfigError

CredentialsSource: TypeAlias = Credentials | str | os.PathLike[str]
"""The keys themselves, or the path of a file with them."""

FILE_VARIABLE: Final = "POCKETMQ_CREDENTIALS"
ACCESS_KEY_VARIABLE: Final = "POCKETMQ_ACCESS_KEY"
SECRET_KEY_VARIABLE: Final = "POCKETMQ_SECRET_KEY"  # noqa: S105 - the variable's name
TOKEN_VARIABLE: Final = "POCKETMQ_SECURITY_TOKEN"  # noqa: S105 - the variable's name

MAX_FILE_BYTES: Final = 64 * 1024
"""The largest file; one of RocketMQ has some 100 bytes."""

RELOAD_SECONDS: Final = 0.5
"""Time between two looks at a file; a broker's own rules are read again within a second."""

_KEYS: Final = ("accessKey", "secretKey", "securityToken")
_log = Log("remoting")


def from_environment(env: Mapping[str, str] | None = None) -> CredentialsSource | None:
    """Return the source of keys that the environment names; None if it names none.

    Raises:
        ConfigError: there is only a part of the keys.
    """
    env = os.environ if env is None else env
    if path := env.get(FILE_VARIABLE):
        return path
    access_key, secret_key = env.get(ACCESS_KEY_VARIABLE), env.get(SECRET_KEY_VARIABLE)
    if not access_key and not secret_key:
        return None
    if not access_key or not secret_key:
        lacking = SECRET_KEY_VARIABLE if access_key else ACCESS_KEY_VARIABLE
        raise ConfigError(
            f"{lacking} is not set: set {ACCESS_KEY_VARIABLE} and {SECRET_KEY_VARIABLE}, or"
            f" {FILE_VARIABLE} to the path of a file"
        )
    return Credentials(access_key, secret_key, env.get(TOKEN_VARIABLE) or None)


def open_to_others(status: os.stat_result, user: int) -> bool:
    """Return whether others than their owner and this process's user may open a file with secrets.

    The group may read a file of root's, if this isn't root: so Kubernetes mounts a Secret for the
    group of a pod. PostgreSQL has the same rule for keys.
    """
    allowed = stat.S_IRGRP if status.st_uid == 0 and user != 0 else 0
    return bool(status.st_mode & (stat.S_IRWXG | stat.S_IRWXO) & ~allowed)


def read_credentials(file: Path) -> Credentials:
    """Return the keys in a file. Blocks.

    Raises:
        ConfigError: it can't be read, others than its owner may read it, or it lacks a key. The
            text has nothing of the content.
    """
    try:
        with file.open("rb") as stream:
            status = os.fstat(stream.fileno())
            data = stream.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ConfigError(f"the credentials file {file} can't be read: {reason}") from error
    if open_to_others(status, os.geteuid()):
        raise ConfigError(
            f"the credentials file {file} is open to others (mode"
            f" {stat.S_IMODE(status.st_mode):o}): run chmod 600 {file}"
        )
    if len(data) > MAX_FILE_BYTES:
        raise ConfigError(f"the credentials file {file} is larger than {MAX_FILE_BYTES} bytes")
    try:
        # This loader makes texts of all values: a secret such as 0123 is no number.
        content = yaml.BaseLoader(data.decode()).get_single_data()
        access_key, secret_key, token = map(content.get, _KEYS)
        return Credentials(access_key, secret_key, token or None)
    except (ValueError, AttributeError, RecursionError, yaml.YAMLError):
        # Without the cause, whose text may quote a secret.
        raise ConfigError(
            f"the credentials file {file} can't be used: write the lines accessKey: NAME and"
            " secretKey: KEY, as in RocketMQ's tools.yml"
        ) from None


class Signer:
    """Signs the requests of one client.

    Args:
        source: the keys, or the path of the file they are in.

    Raises:
        ConfigError: the file can't be used.
    """

    __slots__ = ("_file", "_keys", "_seen")

    def __init__(self, source: CredentialsSource) -> None:
        self._seen: tuple[int, ...] = ()
        self._file: Path | None = None
        if isinstance(source, Credentials):
            self._keys = source
        else:
            self._file = Path(source)
            self._seen = self._state()
            self._keys = read_credentials(self._file)

    def __call__(self, command: Command) -> Command:
        """Return a signed copy of a request."""
        return signed(command, self._keys)

    @property
    def account(self) -> str:
        """The access key that requests are signed with now."""
        return self._keys.access_key

    @property
    def changes(self) -> bool:
        """Whether the keys come from a file, which may change."""
        return self._file is not None

    def refresh(self) -> None:
        """Read the file again if it has changed; an unusable one is reported and keeps the keys.

        Blocks.
        """
        if self._file is None or (state := self._state()) == self._seen:
            return
        self._seen = state
        try:
            self._keys = read_credentials(self._file)
        except ConfigError as error:
            _log.error("the keys are kept as they were", reason=str(error), account=self.account)

    async def watch(self) -> None:
        """Refresh the keys until cancelled."""
        while True:
            await asyncio.sleep(RELOAD_SECONDS)
            await asyncio.to_thread(self.refresh)

    def _state(self) -> tuple[int, ...]:
        assert self._file is not None
        try:
            status = self._file.stat()
        except OSError:
            return ()
        return status.st_ino, status.st_mtime_ns, status.st_size, status.st_mode


def account_of(source: CredentialsSource | None) -> str | None:
    """Return what names a source in an error: its access key, or its file."""
    if source is None:
        return None
    return source.access_key if isinstance(source, Credentials) else f"in {os.fspath(source)}"


def signer_of(source: CredentialsSource | None) -> Signer | None:
    """Return the signer for a source, else for the environment, else None. Raises ConfigError."""
    if source is None:
        source = from_environment()
    return None if source is None else Signer(source)

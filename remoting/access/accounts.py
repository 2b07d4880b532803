"""The accounts and white lists of ``plain_acl.yml``, parsed (cf. PlainPermissionManager).

The file is read as text only: no YAML tag makes an object, and every scalar is a text, as RocketMQ
reads keys that look like numbers. A file with more than ``MAX_BYTES``, ``MAX_DEPTH`` or
``MAX_ALIASES`` is refused before it is built.
"""

from __future__ import annotations

import hmac
import secrets
from binascii import b2a_base64
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import yaml

from remoting.access.patterns import Pattern, parse
from remoting.protocol.names import DLQ_PREFIX, RETRY_PREFIX, holds_messages_of_others

MAX_BYTES: Final = 1024 * 1024
"""The largest file: some 5,000 accounts."""

MAX_DEPTH: Final = 10
"""Nested lists and maps; the file of RocketMQ has four."""

MAX_ALIASES: Final = 50
"""References to anchors, each of which may repeat a large part (cf. SnakeYAML's LoaderOptions)."""

SHORTEST_KEY: Final = 7
"""Characters of an access key or secret key."""

DENY: Final = 1
PUB: Final = 4
SUB: Final = 8

PERMISSIONS: Final = {"DENY": DENY, "PUB": PUB, "SUB": SUB, "PUB|SUB": PUB | SUB, "SUB|PUB": 12}
"""The permissions' texts (cf. Permission); any other text is DENY."""

_TRUE: Final = frozenset({"true", "yes", "on"})

# The C parser is ten times as fast; a PyYAML built without libyaml has none.
_LOADER: Any = getattr(yaml, "CBaseLoader", yaml.BaseLoader)


class AclError(ValueError):
    """The rules can't be used; the text says which account or entry is wrong, never a secret."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """One account: its key and what it may do. Groups are stored as ``%RETRY%<group>``."""

    access_key: str
    secret_key: bytes = field(repr=False)
    admin: bool = False
    default_topic: int = DENY
    default_group: int = DENY
    permissions: Mapping[str, int] = field(default_factory=dict)
    white: Pattern = field(default=lambda _: False, repr=False)
    _mac: hmac.HMAC = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # A copy of it costs half of what another one made with the key does.
        object.__setattr__(self, "_mac", hmac.new(self.secret_key, digestmod="sha1"))

    def has_signed(
        self, values: bytes | memoryview, body: bytes | memoryview, signature: bytes
    ) -> bool:
        """Return whether a signature is the account's, see ``remoting.protocol.signing``."""
        mac = self._mac.copy()
        mac.update(values)
        mac.update(body)
        return hmac.compare_digest(b2a_base64(mac.digest(), newline=False), signature)

    def may(self, resource: str, needed: int) -> bool:
        """Return whether the account has a permission on a topic or ``%RETRY%<group>``."""
        if self.admin and not self.permissions:
            return True
        owned = self.permissions.get(resource)
        if owned is None and holds_messages_of_others(resource):
            return self.admin
        if owned is None:
            is_group = resource.startswith(RETRY_PREFIX)
            owned = self.default_group if is_group else self.default_topic
            # A group's dead letters are messages of all its topics, as its retries are.
            if resource.startswith(DLQ_PREFIX) and needed == SUB:
                group = resource.removeprefix(DLQ_PREFIX)
                return owned & SUB != 0 and self.may(RETRY_PREFIX + group, SUB)
        return not owned & DENY and owned & needed != 0


_NOBODY: Final = Account(access_key="", secret_key=secrets.token_bytes(32))


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of one version of the file."""

    accounts: Mapping[str, Account] = field(default_factory=dict)
    white: tuple[Pattern, ...] = ()

    def trusts(self, address: str) -> bool:
        """Return whether the global white list has the address."""
        return any(matches(address) for matches in self.white)

    def account(self, access_key: str) -> Account:
        """Return an account; for an unknown name, in the same time, one without a signature."""
        return self.accounts.get(access_key, _NOBODY)


def load(data: bytes) -> dict[str, Any]:
    """Return a file's content; all scalars are texts.

    Raises:
        AclError: it is not YAML, too large or too deep, or not a map.
    """
    if len(data) > MAX_BYTES:
        raise AclError(f"it has more than {MAX_BYTES} bytes")
    depth = aliases = 0
    try:
        for event in yaml.parse(data, Loader=_LOADER):
            if isinstance(event, yaml.CollectionStartEvent):
                depth += 1
            elif isinstance(event, yaml.CollectionEndEvent):
                depth -= 1
            elif isinstance(event, yaml.AliasEvent):
                aliases += 1
            if depth > MAX_DEPTH or aliases > MAX_ALIASES:
                raise AclError(
                    f"it has more than {MAX_DEPTH} levels, or more than {MAX_ALIASES} aliases"
                )
        content = _LOADER(data).get_single_data()  # texts, lists and maps only
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        # Without the text around the error: it may be a secret.
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}" if mark is not None else ""
        raise AclError(f"it is not valid YAML{where}") from None
    if content in (None, ""):
        # Possibly another program is just writing it.
        raise AclError("it is empty")
    if not isinstance(content, dict):
        raise AclError("it must be a map with accounts and globalWhiteRemoteAddresses")
    return content


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]  # PyYAML has no types
    """Writes all texts plain: ``true`` and ``0123`` stay what they are."""

    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {}

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002 - as the base class has it
        return True


def dump(content: Mapping[str, Any]) -> bytes:
    """Return the text of a file; scalars are written as they were read."""
    text: str = yaml.dump(content, Dumper=_Dumper, sort_keys=False, allow_unicode=True)
    return text.encode()


def rules_of(content: Mapping[str, Any]) -> Rules:
    """Return the rules of a file's content.

    Raises:
        AclError: an account or an address is wrong.
    """
    accounts: dict[str, Account] = {}
    for entry in items(content, "accounts"):
        if not isinstance(entry, dict):
            raise AclError("an entry of accounts is not a map")
        account = account_of(entry)
        # Of two accounts with one key the first counts, as in RocketMQ.
        accounts.setdefault(account.access_key, account)
    return Rules(accounts, patterns(items(content, "globalWhiteRemoteAddresses")))


def patterns(texts: Iterable[object]) -> tuple[Pattern, ...]:
    """Return the patterns of a global white list. Raises ``AclError``."""
    try:
        return tuple(parse(_text(text, "globalWhiteRemoteAddresses")) for text in texts)
    except AclError:
        raise
    except ValueError as error:
        raise AclError(f"globalWhiteRemoteAddresses: {error}") from None


def account_of(entry: Mapping[str, Any]) -> Account:
    """Return the account of an entry of the file. Raises ``AclError``."""
    name = _text(entry.get("accessKey"), "accessKey")
    place = f"account {name}"
    secret = _text(entry.get("secretKey"), f"{place}: secretKey")
    if len(name) < SHORTEST_KEY or len(secret) < SHORTEST_KEY:
        raise AclError(f"{place}: accessKey and secretKey must have more than 6 characters")
    owned: dict[str, int] = {}
    for key, prefix in (("topicPerms", ""), ("groupPerms", RETRY_PREFIX)):
        for text in items(entry, key):
            parts = [part for part in _text(text, f"{place}: {key}").split("=") if part]
            if len(parts) != 2:
                raise AclError(f"{place}: {key}: {text!r} must be such as NAME=PUB|SUB")
            resource = parts[0].strip()
            if not resource.startswith(prefix):
                resource = prefix + resource
            owned[resource] = PERMISSIONS.get(parts[1].strip(), DENY)
    try:
        white = parse(_text(entry.get("whiteRemoteAddress"), f"{place}: whiteRemoteAddress"))
    except AclError:
        raise
    except ValueError as error:
        raise AclError(f"{place}: whiteRemoteAddress: {error}") from None
    defaults = [
        PERMISSIONS.get(_text(entry.get(key), f"{place}: {key}").strip(), DENY)
        for key in ("defaultTopicPerm", "defaultGroupPerm")
    ]
    return Account(
        access_key=name,
        secret_key=secret.encode("utf-8", "replace"),
        admin=_text(entry.get("admin"), f"{place}: admin").lower() in _TRUE,
        default_topic=defaults[0],
        default_group=defaults[1],
        permissions=owned,
        white=white,
    )


def items(content: Mapping[str, Any], key: str) -> list[Any]:
    """Return a list of the file, empty if it is absent. Raises ``AclError``."""
    value = content.get(key)
    if value in (None, "", "~", "null"):
        return []
    if not isinstance(value, list):
        raise AclError(f"{key} must be a list")
    return value


def _text(value: object, place: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise AclError(f"{place} must be a text")
    return value

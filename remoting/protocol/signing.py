"""Signatures of requests (cf. AclUtils, AclClientRPCHook).

A signed request has the ext fields ``AccessKey``, ``Signature`` and, for temporary credentials,
``SecurityToken``. The signature is the Base64 text of an HMAC-SHA1, keyed with the account's secret
key, over the content: the values of all other ext fields in the order of their names, then the
body.
"""

from __future__ import annotations

import hmac
from base64 import b64encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from remoting.protocol.codes import V4_9_3, SerializeType
from remoting.protocol.command import Command
from remoting.protocol.headers.query import UNIQUE_KEY_QUERY

ACCESS_KEY: Final = "AccessKey"
SECURITY_TOKEN: Final = "SecurityToken"  # noqa: S105 - the field's name
SIGNATURE: Final = "Signature"


@dataclass(frozen=True, slots=True)
class Credentials:
    """The keys of one account. Its repr has the access key only.

    Attributes:
        access_key: the account's name.
        secret_key: the key of its signatures, which is never sent.
        security_token: sent with each request; None for an account with permanent keys.

    Raises:
        ValueError: a key is not a text, or empty.
    """

    access_key: str
    secret_key: str = field(repr=False)
    security_token: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for name in ("access_key", "secret_key", "security_token"):
            value = getattr(self, name)
            if value is None and name == "security_token":
                continue
            # Without the value: it may be a secret.
            if not isinstance(value, str) or not value:
                raise ValueError(f"{name} must be a text that is not empty")


def signed_content(
    fields: Mapping[str, str], body: bytes | memoryview
) -> tuple[bytes, bytes | memoryview]:
    """Return what is signed, in two pieces: the values of the ext fields, and the body.

    In pieces, so that a large body is not copied. A text without a UTF-8 form is replaced as in
    Java.
    """
    names = sorted(fields)
    if not "".join(names).isascii():
        # Java compares UTF-16 units, Python code points.
        names.sort(key=lambda name: name.encode("utf-16-be", "surrogatepass"))
    values = "".join([fields[name] for name in names if name != SIGNATURE])
    return values.encode("utf-8", "replace"), body


def signature(secret_key: str, content: Iterable[bytes | memoryview]) -> str:
    """Return the signature of a content, given in pieces."""
    digest = hmac.new(secret_key.encode("utf-8", "replace"), digestmod="sha1")
    for piece in content:
        digest.update(piece)
    return b64encode(digest.digest()).decode()


def signed(command: Command, credentials: Credentials) -> Command:
    """Return a signed copy of a request, all other fields of which are set."""
    header, pairs, version = command.header, command.pairs or (), command.version
    if command.serialize is SerializeType.ROCKETMQ:
        # RocketMQ decodes an empty text of a binary header as null, and signs "null" for it.
        header, pairs = None, tuple(pair for pair in command.all_pairs() or () if pair[1])
    pairs = (*pairs, (ACCESS_KEY, credentials.access_key))
    if credentials.security_token is not None:
        pairs = (*pairs, (SECURITY_TOKEN, credentials.security_token))
    fields = dict(pairs) if header is None else dict((*header.pairs(), *pairs))
    # 4.9.7 leaves this field out of the content, 5.3.3 for old releases only (cf.
    # PlainAccessValidator, DefaultAuthenticationContextBuilder).
    if fields.pop(UNIQUE_KEY_QUERY, None) is not None:
        version = V4_9_3
    text = signature(credentials.secret_key, signed_content(fields, command.body))
    return Command(
        command.code,
        command.opaque,
        command.flag,
        command.language,
        version,
        command.remark,
        header,
        (*pairs, (SIGNATURE, text)),
        command.values,
        command.body,
        command.serialize,
    )

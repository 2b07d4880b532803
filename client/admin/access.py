"""The accounts and white lists of brokers (RocketMQ 4.9's ``plain_acl.yml``).

Each broker has a file of its own, so every method is for one broker; its account needs
``admin: true``. Secrets are sent to the broker, and never returned.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, NamedTuple

from client.admin.base import AdminBase, decoded
from client.errors import NotSupported, RemoteError, RequestTimeout, UsageError, remote_error
from client.network.remote import read_header
from client.positions import instant
from remoting.access.accounts import PERMISSIONS, SHORTEST_KEY
from remoting.protocol.bodies.access import AclConfig, PlainAccessConfig
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command, Header
from remoting.protocol.headers.admin import (
    CreateAccessConfigRequestHeader,
    DeleteAccessConfigRequestHeader,
    GetBrokerAclConfigResponseHeader,
    UpdateGlobalWhiteAddrsConfigRequestHeader,
)
from remoting.protocol.names import RETRY_PREFIX

DENY: Final = "DENY"


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountInfo:
    """What an account may do at one broker; a permission is DENY, PUB, SUB or PUB|SUB.

    Attributes:
        access_key: its name.
        admin: whether it may send administrative requests.
        default_topic, default_group: its permission on topics and groups that aren't listed.
        topics, groups: its permissions by name.
        white_address: from which addresses its requests need no signature; empty for none.
    """

    access_key: str
    admin: bool = False
    default_topic: str = DENY
    default_group: str = DENY
    topics: Mapping[str, str] = field(default_factory=dict)
    groups: Mapping[str, str] = field(default_factory=dict)
    white_address: str = ""


class AccessRules(NamedTuple):
    """The rules of a broker.

    Attributes:
        accounts: by access key.
        white_list: the addresses whose requests aren't checked.
    """

    accounts: dict[str, AccountInfo]
    white_list: list[str]


class AccessVersion(NamedTuple):
    """The version of a broker's file of accounts.

    Attributes:
        changes: how often requests have changed it.
        changed_at: when they last did; None if the broker doesn't report it.
    """

    changes: int
    changed_at: datetime | None


class AccessAdmin(AdminBase):
    """The part of ``Admin`` about accounts."""

    async def access_rules(self, address: str) -> AccessRules:
        """Return the accounts and the white list of the broker at an address."""
        config = await self._access_config(address)
        # Of two accounts with one key the first counts, as for the broker.
        configs = reversed(config.plain_access_configs)
        accounts = {account.access_key: _account(account) for account in configs}
        return AccessRules(
            dict(sorted(accounts.items())), [text for text in config.global_white_addrs if text]
        )

    async def put_account(
        self,
        address: str,
        access_key: str,
        *,
        secret_key: str | None = None,
        admin: bool | None = None,
        default_topic: str | None = None,
        default_group: str | None = None,
        topics: Mapping[str, str] | None = None,
        groups: Mapping[str, str] | None = None,
        white_address: str | None = None,
    ) -> None:
        """Create an account at a broker, or change what is given; see ``AccountInfo``.

        A new secret has effect at once: requests signed with the old one are denied.

        Args:
            secret_key: necessary for a new account.
            topics, groups: all its permissions. ``{}`` removes them, which Apache's brokers refuse.
        """
        for name, text in (("access_key", access_key), ("secret_key", secret_key)):
            if text is not None and len(text) < SHORTEST_KEY:
                # Checked here: the answer of Apache's brokers contains the secret.
                raise UsageError(f"{name} must have at least {SHORTEST_KEY} characters")
        given = [default_topic, default_group, *(topics or {}).values(), *(groups or {}).values()]
        for text in given:
            if text is not None and text not in PERMISSIONS:
                raise UsageError(
                    f"{text!r} is no permission", hint=f"use one of {', '.join(PERMISSIONS)}"
                )
        # Apache's brokers need the secret with every change, and take a missing admin as false.
        config = await self._access_config(address)
        before = next((a for a in config.plain_access_configs if a.access_key == access_key), None)
        if before is None and secret_key is None:
            raise UsageError(
                f"there is no account {access_key}", broker=address, hint="a new one needs a secret"
            )
        before = before or PlainAccessConfig()
        header = CreateAccessConfigRequestHeader(
            access_key=access_key,
            secret_key=secret_key or before.secret_key,
            admin=before.admin if admin is None else admin,
            default_topic_perm=default_topic,
            default_group_perm=default_group,
            topic_perms=_resources(topics),
            group_perms=_resources(groups),
            white_remote_address=white_address,
        )
        try:
            await self._ask_access(address, RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, header)
        except RemoteError as error:
            if {} in (topics, groups) and "Resource format error" in (error.remark or ""):
                error.hint = (
                    "Apache's brokers can't remove an account's last permission: set it to DENY"
                )
            raise

    async def delete_account(self, address: str, access_key: str) -> None:
        """Delete an account at a broker."""
        header = DeleteAccessConfigRequestHeader(access_key=access_key)
        await self._ask_access(address, RequestCode.DELETE_ACL_CONFIG, header)

    async def put_white_list(self, address: str, addresses: Iterable[str]) -> None:
        """Replace the white list of a broker.

        Args:
            addresses: patterns such as ``10.1.2.*``; see docs/security/accounts.md.
        """
        texts = list(addresses)
        if wrong := [text for text in texts if "," in text or not text.strip()]:
            raise UsageError(
                f"{wrong[0]!r} can't be an entry of the white list",
                hint="give each address by itself: a comma separates two",
            )
        header = UpdateGlobalWhiteAddrsConfigRequestHeader(
            global_white_addrs=",".join(texts), acl_file_full_path=""
        )
        await self._ask_access(address, RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, header)

    async def access_versions(self, address: str) -> dict[str, AccessVersion]:
        """Return the versions of a broker's files of accounts by path; PocketMQ has one."""
        answer = await self._ask_access(address, RequestCode.GET_BROKER_CLUSTER_ACL_INFO)
        header = read_header(answer, GetBrokerAclConfigResponseHeader, None, address)
        try:
            files = json.loads(header.all_acl_file_version or "{}")
            return {
                path: AccessVersion(version["counter"], instant(version["timestamp"]))
                for path, version in sorted(files.items())
            }
        except (ValueError, LookupError, TypeError, AttributeError):
            raise remote_error(
                ResponseCode.SYSTEM_ERROR,
                "the version can't be read",
                "the version of its accounts",
                broker=address,
            ) from None

    async def _access_config(self, address: str) -> AclConfig:
        """Return the rules of a broker with the secrets."""
        code = RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG
        return decoded(AclConfig, await self._ask_access(address, code), code, address)

    async def _ask_access(self, address: str, code: int, header: Header | None = None) -> Command:
        try:
            return await self._remote.call(address, code, header)
        except NotSupported as error:
            error.hint = (
                "the broker has no accounts of RocketMQ 4.9: at PocketMQ set aclEnable=true; the "
                "users of RocketMQ 5.3 are for its mqadmin (createUser, createAcl)"
            )
            raise
        except RequestTimeout as error:
            error.hint = "brokers of RocketMQ 4.9 without aclEnable=true never answer this request"
            raise


def _account(config: PlainAccessConfig) -> AccountInfo:
    return AccountInfo(
        access_key=config.access_key,
        admin=config.admin,
        default_topic=config.default_topic_perm or DENY,
        default_group=config.default_group_perm or DENY,
        topics=_permissions(config.topic_perms),
        groups=_permissions(config.group_perms),
        white_address=config.white_remote_address or "",
    )


def _permissions(texts: Iterable[str]) -> dict[str, str]:
    pairs = (text.partition("=") for text in texts)
    return {
        name.strip().removeprefix(RETRY_PREFIX): permission.strip() for name, _, permission in pairs
    }


def _resources(permissions: Mapping[str, str] | None) -> str | None:
    if permissions is None:
        return None
    for name in permissions:
        if not name or "," in name or "=" in name:
            raise UsageError(f"{name!r} can't be the name of a topic or group")
    return ",".join(f"{name}={permission}" for name, permission in permissions.items())

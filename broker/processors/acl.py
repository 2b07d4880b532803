"""The accounts: codes 50 to 54, for mqadmin and ``pocketmq acl`` (cf. AdminBrokerProcessor).

A change is answered when the file has been replaced; its keys that we don't know are kept.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from broker.errors import RequestRefused
from remoting.access.accounts import PERMISSIONS, AclError, account_of, items
from remoting.access.file import AclFile
from remoting.protocol.bodies import encode
from remoting.protocol.bodies.access import AclConfig, PlainAccessConfig
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.headers.admin import (
    CreateAccessConfigRequestHeader,
    DeleteAccessConfigRequestHeader,
    GetBrokerAclConfigResponseHeader,
)

if TYPE_CHECKING:
    from broker.config import BrokerConfig
    from broker.processors.offload import Handler
    from remoting.connection import Connection

_LISTS: Final = ("topicPerms", "groupPerms")
_KEYS: Final = ("accessKey", "secretKey")
_DEFAULTS: Final = ("defaultTopicPerm", "defaultGroupPerm")


class AclProcessor:
    """Handles requests for the accounts of a broker.

    Args:
        config: the names in answers.
        file: the accounts.
        address: the broker's, for answers.
    """

    __slots__ = ("_address", "_config", "_file")

    def __init__(self, config: BrokerConfig, file: AclFile, address: str) -> None:
        self._config = config
        self._file = file
        self._address = address

    def table(self) -> dict[int, Handler]:
        """Return the handlers by code."""
        return {
            RequestCode.UPDATE_AND_CREATE_ACL_CONFIG: self.put,
            RequestCode.DELETE_ACL_CONFIG: self.delete,
            RequestCode.GET_BROKER_CLUSTER_ACL_INFO: self.version,
            RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: self.put_white_list,
            RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG: self.accounts,
        }

    async def put(self, command: Command, _: Connection) -> Command:
        """Handle UPDATE_AND_CREATE_ACL_CONFIG: create an account, or change what is given."""
        header = command.read(CreateAccessConfigRequestHeader)
        fields = command.fields
        values = {key: fields[key] for key in _KEYS if fields.get(key)}
        if (white := fields.get("whiteRemoteAddress")) is not None:
            values["whiteRemoteAddress"] = white
        for key in _DEFAULTS:
            if text := fields.get(key):
                if text not in PERMISSIONS:
                    raise RequestRefused(
                        ResponseCode.UPDATE_AND_CREATE_ACL_CONFIG_FAILED,
                        f"{key}={text}: must be one of {', '.join(PERMISSIONS)}",
                    )
                values[key] = text
        # An empty list, which Java's tools never send, removes what is there.
        lists: dict[str, list[str]] = {
            key: [text for text in fields[key].split(",") if text]
            for key in _LISTS
            if key in fields
        }
        if header.admin is not None:
            values["admin"] = str(header.admin).lower()

        def change(content: dict[str, Any]) -> None:
            accounts = items(content, "accounts")
            entry = _find(accounts, header.access_key)
            if entry is None:
                entry = {}
                accounts.append(entry)
            entry.update(values)
            entry.update(lists)
            account_of(entry)
            content["accounts"] = accounts

        return await self._change(command, change, ResponseCode.UPDATE_AND_CREATE_ACL_CONFIG_FAILED)

    async def delete(self, command: Command, _: Connection) -> Command:
        """Handle DELETE_ACL_CONFIG: remove an account."""
        name = command.read(DeleteAccessConfigRequestHeader).access_key

        def change(content: dict[str, Any]) -> None:
            accounts = items(content, "accounts")
            entry = _find(accounts, name)
            if entry is None:
                raise AclError(f"there is no account {name[:128]}")
            accounts.remove(entry)
            content["accounts"] = accounts

        return await self._change(command, change, ResponseCode.DELETE_ACL_CONFIG_FAILED)

    async def put_white_list(self, command: Command, _: Connection) -> Command:
        """Handle UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: replace the global white list."""
        texts = command.fields.get("globalWhiteAddrs", "")
        addresses = [text for text in texts.split(",") if text]

        def change(content: dict[str, Any]) -> None:
            content["globalWhiteRemoteAddresses"] = addresses

        return await self._change(
            command, change, ResponseCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG_FAILED
        )

    def version(self, command: Command, _: Connection) -> Command:
        """Handle GET_BROKER_CLUSTER_ACL_INFO: return the version of the file."""
        versions = items(self._file.content, "dataVersion")
        first = versions[0] if versions and isinstance(versions[0], dict) else {}
        numbers = {key: _number(first.get(key)) for key in ("counter", "timestamp")}
        return command.reply(
            header=GetBrokerAclConfigResponseHeader(
                version=json.dumps(numbers, separators=(",", ":")),
                all_acl_file_version=json.dumps(
                    {str(self._file.path): numbers}, separators=(",", ":")
                ),
                broker_name=self._config.broker_name,
                broker_addr=self._address,
                cluster_name=self._config.cluster_name,
            )
        )

    def accounts(self, command: Command, _: Connection) -> Command:
        """Handle GET_BROKER_CLUSTER_ACL_CONFIG: return the accounts with their keys."""
        content = self._file.content
        shown = [
            PlainAccessConfig(
                access_key=entry["accessKey"],
                secret_key=entry["secretKey"],
                white_remote_address=entry.get("whiteRemoteAddress"),
                admin=self._file.rules.accounts[entry["accessKey"]].admin,
                default_topic_perm=entry.get("defaultTopicPerm"),
                default_group_perm=entry.get("defaultGroupPerm"),
                topic_perms=items(entry, "topicPerms"),
                group_perms=items(entry, "groupPerms"),
            )
            for entry in items(content, "accounts")
        ]
        white = items(content, "globalWhiteRemoteAddresses")
        return command.reply(
            body=encode(AclConfig(global_white_addrs=white, plain_access_configs=shown))
        )

    async def _change(
        self, command: Command, change: Callable[[dict[str, Any]], None], failed: ResponseCode
    ) -> Command:
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(None, self._file.edit, change)
        except AclError as error:
            raise RequestRefused(failed, f"{error}; nothing has been changed") from None
        except OSError as error:
            raise RequestRefused(
                failed, f"the file of accounts can't be written: {error.strerror}"
            ) from None
        return command.reply()


def _find(accounts: list[Any], name: str) -> dict[str, Any] | None:
    return next((entry for entry in accounts if entry.get("accessKey") == name), None)


def _number(text: object) -> int:
    return int(text) if isinstance(text, str) and text.isascii() and text.isdigit() else 0

"""Brokers and name servers: state, settings, write permission, the key-value configuration."""

from __future__ import annotations

from typing import Final

from client.admin.base import AdminBase
from client.errors import remote_error
from client.remote import read_header
from remoting.protocol.bodies import properties_text
from remoting.protocol.bodies.stats import KVTable
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.errors import BodyError
from remoting.protocol.headers.admin import (
    AddWritePermOfBrokerResponseHeader,
    BrokerNameRequestHeader,
    GetKVConfigResponseHeader,
    GetKVListByNamespaceRequestHeader,
    KVKeyRequestHeader,
    PutKVConfigRequestHeader,
    WipeWritePermOfBrokerResponseHeader,
)

_FOUND_OR_NOT: Final = frozenset({ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND})


class BrokerAdmin(AdminBase):
    """The part of ``Admin`` about brokers and name servers."""

    async def broker_runtime(self, address: str) -> dict[str, str]:
        """A broker's figures (cf. mqadmin brokerStatus)."""
        code = RequestCode.GET_BROKER_RUNTIME_INFO
        answer = await self._remote.call(address, code)
        return self._decode(KVTable, answer, code, address).table

    async def broker_config(self, address: str) -> dict[str, str]:
        """A broker's settings by RocketMQ's keys."""
        code = RequestCode.GET_BROKER_CONFIG
        answer = await self._remote.call(address, code)
        try:
            return properties_text.parse(answer.body)
        except BodyError as error:
            raise remote_error(
                ResponseCode.SYSTEM_ERROR, str(error), "its configuration", broker=address
            ) from error

    async def wipe_write_permission(self, broker: str) -> int:
        """Make producers stop using a broker (by name), e.g. before maintenance.

        Returns:
            How many topics it concerned, at the name server where they were most.
        """
        self._life.check()
        answers = await self._context.name_servers.ask_all(
            RequestCode.WIPE_WRITE_PERM_OF_BROKER,
            BrokerNameRequestHeader(broker_name=broker),
        )
        kind = WipeWritePermOfBrokerResponseHeader
        return max(read_header(answer, kind, None, broker).wipe_topic_count for answer in answers)

    async def add_write_permission(self, broker: str) -> int:
        """The reverse of ``wipe_write_permission``."""
        self._life.check()
        answers = await self._context.name_servers.ask_all(
            RequestCode.ADD_WRITE_PERM_OF_BROKER,
            BrokerNameRequestHeader(broker_name=broker),
        )
        kind = AddWritePermOfBrokerResponseHeader
        return max(read_header(answer, kind, None, broker).add_topic_count for answer in answers)

    async def put_kv(self, namespace: str, key: str, value: str) -> None:
        """Set a value of the name servers' configuration, at all of them."""
        self._life.check()
        await self._context.name_servers.ask_all(
            RequestCode.PUT_KV_CONFIG,
            PutKVConfigRequestHeader(namespace=namespace, key=key, value=value),
        )

    async def get_kv(self, namespace: str, key: str) -> str | None:
        """A value of the name servers' configuration; None: there is none."""
        self._life.check()
        answer = await self._context.name_servers.ask(
            RequestCode.GET_KV_CONFIG,
            KVKeyRequestHeader(namespace=namespace, key=key),
            accept=_FOUND_OR_NOT,
        )
        if answer.code != ResponseCode.SUCCESS:
            return None
        return read_header(answer, GetKVConfigResponseHeader, None, None).value

    async def delete_kv(self, namespace: str, key: str) -> None:
        """Delete a value of the name servers' configuration, at all of them."""
        self._life.check()
        await self._context.name_servers.ask_all(
            RequestCode.DELETE_KV_CONFIG,
            KVKeyRequestHeader(namespace=namespace, key=key),
        )

    async def kv(self, namespace: str) -> dict[str, str]:
        """All values of a namespace."""
        self._life.check()
        code = RequestCode.GET_KVLIST_BY_NAMESPACE
        answer = await self._context.name_servers.ask(
            code, GetKVListByNamespaceRequestHeader(namespace=namespace), accept=_FOUND_OR_NOT
        )
        if answer.code != ResponseCode.SUCCESS:
            return {}
        return self._decode(KVTable, answer, code).table

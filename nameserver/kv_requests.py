"""What tools ask about the key-value table and the name server's own settings."""

from __future__ import annotations

from typing import Final

import structlog

from nameserver.kv import KVLimitError
from nameserver.state import Peer, State
from nameserver.state_files import StateFileError
from remoting.protocol.bodies import encode, properties_text
from remoting.protocol.bodies.stats import KVTable
from remoting.protocol.codes import ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.headers.admin import (
    DeleteKVConfigRequestHeader,
    GetKVConfigRequestHeader,
    GetKVConfigResponseHeader,
    GetKVListByNamespaceRequestHeader,
    PutKVConfigRequestHeader,
)
from remoting.settings import ConfigError

_log = structlog.get_logger("nameserver")

BLACK_LIST: Final = frozenset(
    {"configBlackList", "configStorePath", "kvConfigPath", "rocketmqHome"}
)
"""Settings that no request may change: they name files."""


async def put_kv(state: State, request: Command, peer: Peer) -> Command:
    """PUT_KV_CONFIG; answered when the entry is on disk."""
    header = request.read(PutKVConfigRequestHeader)
    return await _change_kv(state, request, peer, (header.namespace, header.key, header.value))


async def delete_kv(state: State, request: Command, peer: Peer) -> Command:
    """DELETE_KV_CONFIG; that it isn't there is a success too."""
    header = request.read(DeleteKVConfigRequestHeader)
    return await _change_kv(state, request, peer, (header.namespace, header.key, None))


def get_kv(state: State, request: Command, _: Peer) -> Command:
    """GET_KV_CONFIG."""
    header = request.read(GetKVConfigRequestHeader)
    value = state.kv.get(header.namespace, header.key)
    if value is None:
        return request.reply(
            ResponseCode.QUERY_NOT_FOUND,
            f"No config item, Namespace: {header.namespace} Key: {header.key}",
        )
    return request.reply(header=GetKVConfigResponseHeader(value=value))


def get_kv_list(state: State, request: Command, _: Peer) -> Command:
    """GET_KVLIST_BY_NAMESPACE."""
    namespace = request.read(GetKVListByNamespaceRequestHeader).namespace
    entries = state.kv.entries(namespace)
    if not entries:
        return request.reply(
            ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {namespace}"
        )
    return request.reply(body=encode(KVTable(table=dict(entries))))


async def update_config(state: State, request: Command, peer: Peer) -> Command:
    """UPDATE_NAMESRV_CONFIG: settings as properties text; unknown ones are skipped."""
    values = properties_text.parse(request.body)
    if forbidden := BLACK_LIST & values.keys():
        return request.reply(
            ResponseCode.NO_PERMISSION,
            f"Can not update config in black list: {', '.join(sorted(forbidden))}",
        )
    try:
        await state.change_config(values)
    except (ConfigError, StateFileError) as error:
        return request.reply(ResponseCode.SYSTEM_ERROR, str(error))
    _log.info("settings changed", keys=sorted(values), peer=peer.remote_text)
    return request.reply()


def get_config(state: State, request: Command, _: Peer) -> Command:
    """GET_NAMESRV_CONFIG: the settings as properties text."""
    return request.reply(body=state.config.as_text())


async def _change_kv(
    state: State, request: Command, peer: Peer, entry: tuple[str, str, str | None]
) -> Command:
    namespace, key, value = entry
    try:
        await state.change_kv(
            lambda kv: (
                kv.without(namespace, key)
                if value is None
                else kv.with_value(namespace, key, value)
            )
        )
    except (KVLimitError, StateFileError) as error:
        return request.reply(ResponseCode.SYSTEM_ERROR, str(error))
    _log.info("key-value entry changed", namespace=namespace, key=key, peer=peer.remote_text)
    return request.reply()

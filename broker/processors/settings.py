"""The broker's settings: codes 25 and 26.

A change applies to all settings of a request or to none. It is answered when it is on disk, in
``config/brokerSettings.json``, and replaces the configuration at each start. RocketMQ writes all
settings to the file ``brokerConfigPath``; ours may be read-only, or that of several workers.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import structlog

from broker.errors import NOT_SAVED, RequestRefused
from broker.state import BrokerState
from remoting.protocol.bodies import encode, properties_text
from remoting.protocol.codes import ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.headers.admin import GetBrokerConfigResponseHeader
from remoting.runtime.settings import ConfigError

if TYPE_CHECKING:
    from broker.config import BrokerConfig
    from remoting.connection import Connection

BLACK_LIST: Final = frozenset({"brokerConfigPath", "rocketmqHome", "configBlackList"})
"""Keys that 5.x refuses (cf. AdminBrokerProcessor.initConfigBlackList)."""

EXPORTED: Final = {
    "filterServerNums": "0",
    "useTLS": "false",
    "clientCallbackExecutorThreads": str(os.cpu_count() or 1),
}
"""What RocketMQ's tools export besides our settings: exportConfigs fails if one is missing, and
exportMetrics takes the number of processors from the last."""

_log = structlog.get_logger("broker")


class SettingsProcessor:
    """Handles requests for the settings."""

    __slots__ = ("_state",)

    def __init__(self, state: BrokerState) -> None:
        self._state = state

    def get(self, command: Command, _: Connection) -> Command:
        """Handle GET_BROKER_CONFIG: return the settings as properties text."""
        version = encode(self._state.config_version).decode()
        return command.reply(
            header=GetBrokerConfigResponseHeader(version=version),
            body=self._shown().as_text() + properties_text.render(EXPORTED),
        )

    async def update(self, command: Command, connection: Connection) -> Command:
        """Handle UPDATE_BROKER_CONFIG: change settings now, and save them."""
        state = self._state
        values = properties_text.parse(command.body)
        if black := BLACK_LIST & values.keys():
            raise RequestRefused(
                ResponseCode.NO_PERMISSION,
                f"Can not update config in black list: {', '.join(sorted(black))}",
            )
        try:
            changes = self._shown().changes(values)
            config = state.config.updated(changes)
        except ConfigError as error:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, str(error)) from None
        if not changes:
            return command.reply()
        registers = state.configure(config)
        _log.info("settings changed", peer=connection.remote_text, **changes)
        saved = await state.changes.settings_changed(changes)
        if registers:
            saved &= await state.changes.topics_changed(None, paced=False)
        return command.reply() if saved else command.reply(ResponseCode.SYSTEM_ERROR, NOT_SAVED)

    def _shown(self) -> BrokerConfig:
        """Return the settings with the address in use, also where it isn't set."""
        return replace(self._state.config, broker_ip1=self._state.host)

"""A controller on a port of this process: the model of the simulation, and the real wire."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from types import TracebackType
from typing import Self

from remoting.connection import Connection
from remoting.errors import RemotingError
from remoting.pool import ConnectionPool
from remoting.protocol.bodies import decode, encode
from remoting.protocol.bodies.controller import ElectMasterResponseBody, SyncStateSet
from remoting.protocol.codes import RequestCode
from remoting.protocol.command import Command, Header
from remoting.protocol.headers.admin import BrokerHeartbeatRequestHeader
from remoting.protocol.headers.controller import (
    AlterSyncStateSetRequestHeader,
    ApplyBrokerIdRequestHeader,
    ElectMasterRequestHeader,
    GetMetaDataResponseHeader,
    GetNextBrokerIdRequestHeader,
    GetReplicaInfoRequestHeader,
    RegisterBrokerToControllerRequestHeader,
)
from remoting.server import Server
from tests.simulation.controller import Controller

HEADERS: dict[int, type[Header]] = {
    RequestCode.CONTROLLER_GET_NEXT_BROKER_ID: GetNextBrokerIdRequestHeader,
    RequestCode.CONTROLLER_APPLY_BROKER_ID: ApplyBrokerIdRequestHeader,
    RequestCode.CONTROLLER_REGISTER_BROKER: RegisterBrokerToControllerRequestHeader,
    RequestCode.CONTROLLER_GET_REPLICA_INFO: GetReplicaInfoRequestHeader,
    RequestCode.CONTROLLER_ELECT_MASTER: ElectMasterRequestHeader,
    RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET: AlterSyncStateSetRequestHeader,
}


class ControllerServer:
    """A controller for brokers on this machine.

    Attributes:
        model: its rules and its state.
        is_silent: whether it answers nothing.
    """

    def __init__(self) -> None:
        self.model = Controller()
        self.is_silent = False
        self._server = Server(self._handle, host="127.0.0.1", port=0, on_close=self._closed)
        self._pool = ConnectionPool(name="notices")
        self._brokers: dict[Connection, int] = {}
        self._notices: set[asyncio.Task[None]] = set()

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"127.0.0.1:{self._server.port}"

    async def __aenter__(self) -> Self:
        await self._server.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await asyncio.gather(*self._notices)
        await self._server.stop()
        await self._pool.close()

    def tell(self) -> None:
        """Send the notices of an election."""
        notices, self.model.notices = self.model.notices, []
        for broker_id in notices:
            task = asyncio.create_task(self._notify(self.model.addresses[broker_id]))
            self._notices.add(task)
            task.add_done_callback(self._notices.discard)

    async def _notify(self, address: str) -> None:
        notice = Command.request(RequestCode.NOTIFY_BROKER_ROLE_CHANGED, oneway=True)
        with suppress(RemotingError):  # a broker that has just stopped
            connection = await self._pool.get(address)
            connection.send_oneway(notice)

    def _closed(self, connection: Connection) -> None:
        broker_id = self._brokers.pop(connection, None)
        if broker_id is not None:
            self.model.closed(broker_id)
            self.tell()

    def _handle(self, command: Command, connection: Connection) -> Command | None:
        if self.is_silent:
            return None
        if command.code == RequestCode.BROKER_HEARTBEAT:
            heartbeat = command.read(BrokerHeartbeatRequestHeader)
            self.model.heartbeat(heartbeat, time.monotonic())
            if heartbeat.broker_id is not None:
                self._brokers[connection] = heartbeat.broker_id
            return None
        if command.code == RequestCode.CONTROLLER_GET_METADATA_INFO:
            return command.reply(
                header=GetMetaDataResponseHeader(controller_leader_address=self.address)
            )
        body = decode(SyncStateSet, command.body) if command.body else None
        answer = self.model.handle(command.code, command.read(HEADERS[command.code]), body)
        self.tell()
        packed = b"" if answer.members is None else encode(answer.members)
        if answer.members is not None and command.code == RequestCode.CONTROLLER_ELECT_MASTER:
            packed = encode(ElectMasterResponseBody(sync_state_set=answer.members.sync_state_set))
        return command.reply(answer.code, header=answer.header, body=packed)

"""Apache's controllers: one that is alone, or three that elect their leader."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

from remoting.blocking import BlockingConnection
from remoting.errors import RemotingError
from remoting.protocol.bodies import decode, encode
from remoting.protocol.bodies.controller import BrokerReplicasInfo, ReplicasInfo
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.headers.controller import (
    ElectMasterRequestHeader,
    GetMetaDataResponseHeader,
)
from tests.chaos.network import Network
from tests.interop.apache import controller_command, start
from tests.support.ports import free_port

VERSION = "5.3.3"

ANSWER_SECONDS = 2.0
"""Seconds for an answer of a controller, which may be cut off."""


class Controllers:
    """The controllers of a group.

    Args:
        root: for their directories.
        count: how many.
        network: where they run, on the hosts ``x``, ``y`` and ``z``; None: on this machine.

    Attributes:
        addresses: where they listen.
    """

    def __init__(self, root: Path, count: int = 1, network: Network | None = None) -> None:
        self._network = network
        self._hosts = "xyz"[:count]
        self._homes = [root / f"controller-{host}" for host in self._hosts]
        self._ports = [free_port() for _ in self._hosts]
        self.addresses = [
            f"{'127.0.0.1' if network is None else network.address(host)}:{port}"
            for host, port in zip(self._hosts, self._ports, strict=True)
        ]
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    @property
    def hosts(self) -> str:
        """The names of their hosts, by number."""
        return self._hosts

    def start(self, number: int) -> None:
        """Start a controller, with what it had on its disk."""
        home = self._homes[number]
        home.mkdir(exist_ok=True)
        group = self.addresses if len(self.addresses) > 1 else ()
        command = controller_command(VERSION, home, self._ports[number], group=group, own=number)
        log = home / "controller.log"
        if self._network is None:
            self._processes[number] = start(command, home, log)
        else:
            host = self._hosts[number]
            self._processes[number] = self._network.run(host, start, command, home, log)

    def start_all(self) -> None:
        """Start all controllers."""
        for number in range(len(self._hosts)):
            self.start(number)

    def kill(self, number: int) -> None:
        """Kill a controller."""
        process = self._processes.pop(number)
        process.kill()
        process.wait()

    def close(self) -> None:
        """Kill all controllers."""
        for number in list(self._processes):
            self.kill(number)

    def leader(self) -> int | None:
        """Return the number of their leader, as most of those that answer say."""
        ask = Command.request(RequestCode.CONTROLLER_GET_METADATA_INFO)
        told = []
        for number in self._processes:
            answer = self._ask(self.addresses[number], ask)
            if answer is not None and answer.code == ResponseCode.SUCCESS:
                header = answer.read(GetMetaDataResponseHeader)
                if header.controller_leader_address in self.addresses:
                    told.append(self.addresses.index(header.controller_leader_address))
        leader = max(told, key=told.count, default=None)
        return leader if told.count(leader) > len(self._hosts) // 2 else None

    def replicas(self, name: str) -> ReplicasInfo:
        """Return what they know of the brokers of a name; empty if none tells."""
        request = Command.request(RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, body=encode([name]))
        answer = self._ask_all(request)
        if answer is None:
            return ReplicasInfo()
        table = decode(BrokerReplicasInfo, answer.body).replicas_info_table
        return table.get(name) or ReplicasInfo()

    def elect(self, name: str, broker_id: int) -> None:
        """Ask them to make a broker the master."""
        header = ElectMasterRequestHeader(
            cluster_name="DefaultCluster",
            broker_name=name,
            broker_id=broker_id,
            designate_elect=True,
            invoke_time=time.time_ns() // 1_000_000,
        )
        self._ask_all(Command.request(RequestCode.CONTROLLER_ELECT_MASTER, header))

    def _ask_all(self, request: Command) -> Command | None:
        """Return the first answer that says yes: the leader's."""
        for address in self.addresses:
            answer = self._ask(address, request)
            if answer is not None and answer.code == ResponseCode.SUCCESS:
                return answer
        return None

    @staticmethod
    def _ask(address: str, request: Command) -> Command | None:
        try:
            with BlockingConnection(address, timeout=ANSWER_SECONDS) as connection:
                return connection.request(request)
        except (OSError, RemotingError):
            return None

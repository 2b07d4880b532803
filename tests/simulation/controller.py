"""A model of RocketMQ's controller for one broker name: its rules, without Raft."""

from __future__ import annotations

from typing import Any

from broker.replication.controller import Answer
from remoting.protocol.bodies.controller import SyncStateSet
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.headers.admin import BrokerHeartbeatRequestHeader
from remoting.protocol.headers.controller import (
    AlterSyncStateSetResponseHeader,
    GetMetaDataResponseHeader,
    GetNextBrokerIdResponseHeader,
    MasterHeader,
)

ADDRESS = "controller:9878"
DEAD_SECONDS = 10.0
SCAN_SECONDS = 5.0


class Controller:
    """What the controllers' log says, and the heartbeats that their leader had.

    Attributes:
        members: the set of replicas in sync.
        notices: brokers that are to be told of a new master; the network empties it.
    """

    def __init__(self) -> None:
        self.codes: dict[int, str] = {}
        self.addresses: dict[int, str] = {}
        self.master: int | None = None
        self.epoch = 0
        self.members: frozenset[int] = frozenset()
        self.members_epoch = 0
        self.alive: dict[int, float] = {}
        self.progress: dict[int, tuple[int, int]] = {}
        self.notices: list[int] = []

    def restart(self) -> None:
        """Lose the heartbeats: the leader has changed."""
        self.alive.clear()

    def heartbeat(self, header: BrokerHeartbeatRequestHeader, now: float) -> None:
        """Take a heartbeat."""
        assert header.broker_id is not None
        if header.broker_id in self.addresses:
            self.alive[header.broker_id] = now
            progress = (header.epoch or 0, header.max_offset or 0)
            self.progress[header.broker_id] = max(
                progress, self.progress.get(header.broker_id, progress)
            )

    def closed(self, broker_id: int) -> None:
        """Take the end of a broker's connection."""
        if self.alive.pop(broker_id, None) is not None and broker_id == self.master:
            self.elect()

    def scan(self, now: float) -> None:
        """Look for brokers without heartbeats, and for a set without a living master."""
        for broker_id, at in list(self.alive.items()):
            if now - at > DEAD_SECONDS:
                self.closed(broker_id)
        if self.members and self.master not in self.alive and self.alive.keys() & self.members:
            self.elect()

    def elect(self, asker: int | None = None, *, designated: bool = False) -> bool:
        """Elect a master; return False if there is none, or it is the old one.

        Without an asker, for a master that is dead: then there is none until somebody is elected.
        """
        candidates = self.members & self.alive.keys()
        if designated:
            candidates &= {asker}
        if self.master in candidates:
            return False
        if candidates:
            self.master = max(candidates, key=lambda one: self.progress.get(one, (0, 0)))
            self._set({self.master})
            self.notices += self.alive
        elif asker is None:
            self.master = None
        self.epoch += bool(candidates) or asker is None
        return bool(candidates)

    def _set(self, members: set[int]) -> None:
        self.members = frozenset(members)
        self.members_epoch += 1

    # --- requests

    def handle(self, code: int, header: Any, body: SyncStateSet | None) -> Answer:
        """Answer a request."""
        match code:
            case RequestCode.CONTROLLER_GET_METADATA_INFO:
                return Answer(0, GetMetaDataResponseHeader(controller_leader_address=ADDRESS))
            case RequestCode.CONTROLLER_GET_NEXT_BROKER_ID:
                return Answer(0, GetNextBrokerIdResponseHeader(next_broker_id=len(self.codes) + 1))
            case RequestCode.CONTROLLER_APPLY_BROKER_ID:
                own = self.codes.get(header.applied_broker_id, header.register_check_code)
                if own != header.register_check_code:
                    return Answer(ResponseCode.CONTROLLER_BROKER_ID_INVALID)
                self.codes[header.applied_broker_id] = own
                return Answer(0)
            case RequestCode.CONTROLLER_REGISTER_BROKER:
                self.addresses[header.broker_id] = header.broker_address
                is_there = self.master in self.alive
                return self._answer() if is_there else Answer(0, MasterHeader(), SyncStateSet())
            case RequestCode.CONTROLLER_GET_REPLICA_INFO:
                return self._answer()
            case RequestCode.CONTROLLER_ELECT_MASTER:
                return self._handle_election(header.broker_id, designated=header.designate_elect)
            case RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET:
                assert body is not None
                return self._alter(header, body)
        raise AssertionError(code)

    def _answer(self, code: int = 0) -> Answer:
        master = self.master
        header = MasterHeader(
            master_broker_id=master,
            master_address=None if master is None else self.addresses[master],
            master_epoch=self.epoch,
            sync_state_set_epoch=self.members_epoch,
        )
        return Answer(code, header, SyncStateSet(sorted(self.members), self.members_epoch))

    def _handle_election(self, broker_id: int, *, designated: bool) -> Answer:
        if not self.epoch:
            self.members = frozenset({broker_id})
        if self.elect(broker_id, designated=designated):
            return self._answer()
        if self.master in self.alive:
            return self._answer(ResponseCode.CONTROLLER_MASTER_STILL_EXIST)
        return Answer(ResponseCode.CONTROLLER_ELECT_MASTER_FAILED)

    def _alter(self, header: Any, body: SyncStateSet) -> Answer:
        wanted = set(body.sync_state_set)
        refusals = (
            (wanted == self.members, ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED),
            (header.master_broker_id != self.master, ResponseCode.CONTROLLER_INVALID_MASTER),
            (header.master_epoch != self.epoch, ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH),
            (
                body.sync_state_set_epoch != self.members_epoch,
                ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH,
            ),
            (not wanted <= self.addresses.keys(), ResponseCode.CONTROLLER_INVALID_REPLICAS),
            (not wanted <= self.alive.keys(), ResponseCode.CONTROLLER_BROKER_NOT_ALIVE),
            (self.master not in wanted, ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED),
        )
        for is_refused, code in refusals:
            if is_refused:
                return Answer(code)
        self._set(wanted)
        return Answer(
            0,
            AlterSyncStateSetResponseHeader(new_sync_state_set_epoch=self.members_epoch),
            SyncStateSet(sorted(wanted), self.members_epoch),
        )

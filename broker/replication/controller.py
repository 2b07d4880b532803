"""A broker's dealings with the controller, which elects the masters of RocketMQ 5's groups.

``ControllerClient`` is told the time and what was answered, and returns what is to be done. One
request at a time is under way; its kind follows from what is known: who leads the controllers
(GET_METADATA_INFO), which id this broker has (GET_NEXT_BROKER_ID, APPLY_BROKER_ID), whether it is
registered, which set of replicas is in sync, and who is master.

Roles come from answers alone. A notice (NOTIFY_BROKER_ROLE_CHANGED) can be late, forged or for
another group, so it only makes the next question due. A role counts if its epoch is higher than the
one before, and never twice.

A broker never leads again in an epoch that its log has when it starts: what it asked the controller
before, and has forgotten, may still arrive there. It keeps silent until it is voted out.

A master that has had no answer for ``LEASE_SECONDS`` refuses sends: another one may be elected. A
broker sends heartbeats only while it could serve as master: its store can be written, and answers
arrive. Without heartbeats it is voted out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec

from broker.replication.in_sync import InSyncSet
from remoting.protocol.bodies import decode
from remoting.protocol.bodies.controller import ElectMasterResponseBody, SyncStateSet
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command, Header
from remoting.protocol.headers.admin import BrokerHeartbeatRequestHeader
from remoting.protocol.headers.controller import (
    AlterSyncStateSetRequestHeader,
    AlterSyncStateSetResponseHeader,
    ApplyBrokerIdRequestHeader,
    ElectMasterRequestHeader,
    GetMetaDataResponseHeader,
    GetNextBrokerIdRequestHeader,
    GetNextBrokerIdResponseHeader,
    GetReplicaInfoRequestHeader,
    MasterHeader,
    RegisterBrokerToControllerRequestHeader,
    RegisterBrokerToControllerResponseHeader,
)

HEARTBEAT_SECONDS: Final = 1.0
"""Time between two heartbeats (cf. brokerHeartbeatInterval)."""

LEASE_SECONDS: Final = 10.0
"""How long an answer counts, from its request on; the controller takes a broker for dead when it
had no heartbeat for as long (cf. controllerHeartBeatTimeoutMills)."""

POLL_SECONDS: Final = 5.0
"""Time between two questions who is master (cf. checkSyncStateSetPeriod)."""

ELECT_SECONDS: Final = 2.0
"""Time between two requests for an election."""

LEADER_SECONDS: Final = 10.0
"""Time between two questions who leads the controllers (cf. syncControllerMetadataPeriod)."""

SILENCE_SECONDS: Final = 20.0
"""How long a broker that must not lead sends no heartbeat: until the controller has noticed."""

RETRY_SECONDS: Final = 1.0
"""Pause after a request that failed or was refused."""


class IdentityError(Exception):
    """The store belongs to another broker."""


class Group(NamedTuple):
    """What a broker tells the controller of itself.

    Attributes:
        cluster: its cluster.
        name: its broker name, which its group shares.
        address: where it listens for requests, ``host:port``.
        controllers: their addresses.
        priority: of two equal candidates the one with the lower number is elected.
    """

    cluster: str
    name: str
    address: str
    controllers: Sequence[str]
    priority: int = 2**31 - 1


class StoreProgress(NamedTuple):
    """What the client needs to know of the store, and of the clock.

    Attributes:
        now_ms: ms since 1970.
        is_writable: whether the disk accepts writes.
        epoch: the newest epoch of the log; -1 without one.
        end: where the log ends: with ``SYNC_FLUSH``, up to where it is on the disk.
        confirmed: the confirm offset.
    """

    now_ms: int
    is_writable: bool
    epoch: int
    end: int
    confirmed: int


class Role(NamedTuple):
    """Who is master; ``master_id`` is None if nobody is."""

    master_id: int | None
    master_address: str
    epoch: int
    members: frozenset[int] = frozenset()
    members_epoch: int = 0


class AskController(NamedTuple):
    """Send a request to a controller, and give the answer to ``answered``."""

    address: str
    code: int
    header: Header | None
    body: msgspec.Struct | None = None


class SendHeartbeat(NamedTuple):
    """Send BROKER_HEARTBEAT, which has no answer, to all controllers."""

    header: BrokerHeartbeatRequestHeader


class SaveIdentity(NamedTuple):
    """Write ``brokerIdentity`` and ``brokerIdentity-temp``, on the disk; None: delete the file."""

    identity: str | None
    temporary: str | None


class ChangeRole(NamedTuple):
    """Take a role."""

    role: Role


Effect = AskController | SendHeartbeat | SaveIdentity | ChangeRole


class Answer(NamedTuple):
    """An answer; ``header`` and ``members`` are None if it has none."""

    code: int
    header: Any = None
    members: SyncStateSet | None = None


_HEADERS: Final[dict[int, type[Header]]] = {
    RequestCode.CONTROLLER_GET_METADATA_INFO: GetMetaDataResponseHeader,
    RequestCode.CONTROLLER_GET_NEXT_BROKER_ID: GetNextBrokerIdResponseHeader,
    RequestCode.CONTROLLER_REGISTER_BROKER: RegisterBrokerToControllerResponseHeader,
    RequestCode.CONTROLLER_ELECT_MASTER: MasterHeader,
    RequestCode.CONTROLLER_GET_REPLICA_INFO: MasterHeader,
    RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET: AlterSyncStateSetResponseHeader,
}


_UNCHANGED: Final = {
    ResponseCode.CONTROLLER_INVALID_REPLICAS,
    ResponseCode.CONTROLLER_BROKER_NOT_ALIVE,
}
"""Refusals of a set that the controller gives after it has compared master and epochs (cf.
ReplicasInfoManager.alterSyncStateSet)."""

_TELLING: Final = {ResponseCode.SUCCESS, ResponseCode.CONTROLLER_MASTER_STILL_EXIST}
"""The codes of answers that are more than a code."""


def read_answer(code: int, command: Command) -> Answer:
    """Read the answer to a request with ``code``.

    Raises:
        ProtocolError: it can't be read.
    """
    header: Any = None
    members = None
    if command.code in _TELLING and code in _HEADERS:
        header = command.read(_HEADERS[code])
        if command.body and code == RequestCode.CONTROLLER_ELECT_MASTER:
            elected = decode(ElectMasterResponseBody, command.body)
            members = SyncStateSet(elected.sync_state_set, header.sync_state_set_epoch or 0)
        elif command.body:
            members = decode(SyncStateSet, command.body)
    return Answer(command.code, header, members)


class ControllerClient:
    """A broker's side of the controller protocol. Times are monotonic, in seconds.

    Attributes:
        broker_id: of this broker; None before it has one.
        role: the role that it has; its epoch is 0 before the first.
        leader: address of the controllers' leader; None while it is unknown.
        problem: why the broker has no role, or what the controller does wrong; None if all is well.
    """

    def __init__(
        self, group: Group, *, identity: str | None, temporary: str | None, epoch: int
    ) -> None:
        """Create the client of a broker that starts.

        Args:
            group: the identity that it registers with.
            identity: text of ``brokerIdentity``; None if there is no such file.
            temporary: text of ``brokerIdentity-temp``.
            epoch: the newest epoch of its log; -1 without one.

        Raises:
            IdentityError: the store belongs to another broker.
        """
        self.broker_id: int | None = None
        self.role = Role(None, "", 0)
        self.leader: str | None = None
        self.problem: str | None = None
        self._group = group
        self._epoch_before = epoch
        self._applied: tuple[int, str] | None = None  # id and check code
        self._is_registered = False
        self._in_sync: InSyncSet | None = None
        self._waiting: int | None = None  # the code of the request under way
        self._asked_at = self._next_at = 0.0
        self._heard_at = float("-inf")
        self._next_heartbeat_at = self._poll_at = 0.0
        self._elect_at = self._leader_at = 0.0
        self._silent_until: float | None = None
        self._turn = 0
        prefix = [group.cluster, group.name]
        if identity is not None:
            *own, broker_id = identity.strip().split("#")
            if own != prefix or not broker_id.isdecimal():
                raise IdentityError(
                    f"this store is that of broker {identity.strip()!r}, not of"
                    f" {'#'.join(prefix)}: use its own store, or set brokerName and"
                    " brokerClusterName"
                )
            self.broker_id = int(broker_id)
        elif temporary is not None:
            # One that can't be used has no effect: another id is applied for.
            parts = temporary.strip().split("#")
            if parts[:-2] == prefix and parts[-2].isdecimal():
                self._applied = (int(parts[-2]), parts[-1])

    # --- what the broker asks

    @property
    def is_master(self) -> bool:
        """Whether this broker is the master."""
        return self.role.master_id is not None and self.role.master_id == self.broker_id

    def has_lease(self, now: float) -> bool:
        """Return whether the controller has answered not too long ago."""
        return now - self._heard_at < LEASE_SECONDS

    def refusal(self, now: float) -> str | None:
        """Return why a send is refused; None if it isn't."""
        if not self.is_master or self._in_sync is None:
            return "this broker is not the master now: ask a name server for the route"
        if not self.has_lease(now):
            return (
                f"no controller has answered this master for {LEASE_SECONDS:.0f} s, another one may"
                f" be elected; controllers: {';'.join(self._group.controllers)}"
            )
        return self._in_sync.refusal()

    def lead(self, in_sync: InSyncSet, epoch: int) -> bool:
        """Begin to serve as the master of an epoch, whose set is ``in_sync``.

        Returns:
            False if the broker has got another role while it took this one.
        """
        if not self.is_master or self.role.epoch != epoch:
            return False
        self._in_sync = in_sync
        return True

    def notified(self) -> None:
        """Take a notice of the controller: ask who is master at once."""
        self._poll_at = 0.0

    # --- steps

    def step(self, now: float, store: StoreProgress) -> list[Effect]:
        """Return what is to be done now; call it often, and after each answer."""
        effects: list[Effect] = []
        if (
            self._is_registered
            and now >= self._next_heartbeat_at
            and store.is_writable
            and self.has_lease(now)
        ):
            self._next_heartbeat_at = now + HEARTBEAT_SECONDS
            effects.append(SendHeartbeat(self._heartbeat(store)))
        if self._waiting is None and now >= self._next_at:
            ask = self._question(now, store, effects)
            if ask is not None:
                self._waiting, self._asked_at = ask.code, now
                effects.append(ask)
        return effects

    def _heartbeat(self, store: StoreProgress) -> BrokerHeartbeatRequestHeader:
        return BrokerHeartbeatRequestHeader(
            cluster_name=self._group.cluster,
            broker_addr=self._group.address,
            broker_name=self._group.name,
            broker_id=self.broker_id,
            epoch=store.epoch,
            max_offset=store.end,
            confirm_offset=store.confirmed,
            heartbeat_timeout_mills=int(LEASE_SECONDS * 1000),
            election_priority=self._group.priority,
        )

    def _question(
        self, now: float, store: StoreProgress, effects: list[Effect]
    ) -> AskController | None:
        cluster, name, address, controllers, _ = self._group
        if self.leader is None or now >= self._leader_at:
            self._leader_at = now + LEADER_SECONDS
            asked = controllers[self._turn % len(controllers)]
            return AskController(asked, RequestCode.CONTROLLER_GET_METADATA_INFO, None)
        if self.broker_id is None:
            if self._applied is None:
                next_id = GetNextBrokerIdRequestHeader(cluster_name=cluster, broker_name=name)
                return AskController(
                    self.leader, RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, next_id
                )
            broker_id, check_code = self._applied
            if not check_code:
                # On the disk first: after a crash the same id is applied for with the same code.
                check_code = f"{address};{store.now_ms}"
                self._applied = (broker_id, check_code)
                effects.append(SaveIdentity(None, f"{cluster}#{name}#{broker_id}#{check_code}"))
            apply = ApplyBrokerIdRequestHeader(
                cluster_name=cluster,
                broker_name=name,
                applied_broker_id=broker_id,
                register_check_code=check_code,
            )
            return AskController(self.leader, RequestCode.CONTROLLER_APPLY_BROKER_ID, apply)
        if not self._is_registered:
            register = RegisterBrokerToControllerRequestHeader(
                cluster_name=cluster,
                broker_name=name,
                broker_id=self.broker_id,
                broker_address=address,
                invoke_time=store.now_ms,
            )
            return AskController(self.leader, RequestCode.CONTROLLER_REGISTER_BROKER, register)
        return self._question_of_member(now, store, self.leader, self.broker_id)

    def _question_of_member(
        self, now: float, store: StoreProgress, leader: str, broker_id: int
    ) -> AskController | None:
        cluster, name, *_ = self._group
        if self._in_sync is not None:
            members = self._in_sync.ask(store.end, now)
            if members is not None:
                alter = AlterSyncStateSetRequestHeader(
                    broker_name=name,
                    master_broker_id=broker_id,
                    master_epoch=self.role.epoch,
                    invoke_time=store.now_ms,
                )
                body = SyncStateSet(sorted(members), self._in_sync.epoch)
                return AskController(
                    leader, RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET, alter, body
                )
        if self.role.master_id is None and store.is_writable and now >= self._elect_at:
            self._elect_at = now + ELECT_SECONDS
            elect = ElectMasterRequestHeader(
                cluster_name=cluster,
                broker_name=name,
                broker_id=broker_id,
                invoke_time=store.now_ms,
            )
            return AskController(leader, RequestCode.CONTROLLER_ELECT_MASTER, elect)
        if now >= self._poll_at:
            self._poll_at = now + POLL_SECONDS
            replicas = GetReplicaInfoRequestHeader(broker_name=name)
            return AskController(leader, RequestCode.CONTROLLER_GET_REPLICA_INFO, replicas)
        return None

    # --- answers

    def answered(self, answer: Answer | None, now: float) -> list[Effect]:
        """Take the answer to the request under way; None if it failed or can't be read."""
        asked, self._waiting = self._waiting, None
        if asked == RequestCode.CONTROLLER_GET_METADATA_INFO:
            self.leader = None
            if answer is not None and answer.code == ResponseCode.SUCCESS and answer.header:
                self.leader = answer.header.controller_leader_address or None
            if self.leader is None:
                self._try_another(now, "no controller knows who leads them")
            return []
        if answer is None or answer.code == ResponseCode.CONTROLLER_NOT_LEADER:
            self.leader = None
            self._try_another(now, "the controllers' leader does not answer")
            return []
        if asked == RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET:
            assert self._in_sync is not None
            if answer.code != ResponseCode.SUCCESS:
                self._in_sync.refused(now, is_unchanged=answer.code in _UNCHANGED)
                self._poll_at = 0.0
            elif answer.members is not None:
                self._heard(now)
                self._learn(answer.members)
            return []
        if answer.code not in _TELLING:
            return self._refused(asked, answer.code, now)
        if asked == RequestCode.CONTROLLER_GET_NEXT_BROKER_ID:
            self._applied = (answer.header.next_broker_id, "")
        elif asked == RequestCode.CONTROLLER_APPLY_BROKER_ID and self._applied is not None:
            self.broker_id = self._applied[0]
            own = f"{self._group.cluster}#{self._group.name}#{self.broker_id}"
            return [SaveIdentity(own, None)]
        elif answer.header is not None:
            self._is_registered = True
            return self._take(answer.header, answer.members, now)
        return []

    def _refused(self, asked: int | None, code: int, now: float) -> list[Effect]:
        self._next_at = now + RETRY_SECONDS
        if asked == RequestCode.CONTROLLER_APPLY_BROKER_ID:
            self._applied = None  # another broker was faster
            return [SaveIdentity(None, None)]
        if code in {
            ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST,
            ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED,
        }:
            self._is_registered = False
        self.problem = f"the controller {self.leader} refuses request {asked} with code {code}"
        return []

    def _try_another(self, now: float, problem: str) -> None:
        self._turn += 1
        self._next_at = now + RETRY_SECONDS
        self.problem = f"{problem}: {';'.join(self._group.controllers)}"

    def _heard(self, now: float) -> None:
        # The lease counts from the request on: the answer may have been on its way for long.
        self._heard_at = max(self._heard_at, min(self._asked_at, now))
        self.problem = None

    def _keep_silent(self, epoch: int, now: float) -> None:
        self.problem = f"this broker led epoch {epoch} before its start, and waits for an election"
        if self._silent_until is None:
            self._silent_until = now + SILENCE_SECONDS
        elif now >= self._silent_until:
            # One heartbeat: a controller that has started since never had one that it could miss.
            self._silent_until = now + HEARTBEAT_SECONDS + SILENCE_SECONDS
            self._heard_at = now + HEARTBEAT_SECONDS - LEASE_SECONDS
            self._next_heartbeat_at = now

    def _learn(self, members: SyncStateSet) -> None:
        in_sync = frozenset(members.sync_state_set)
        if members.sync_state_set_epoch > self.role.members_epoch:
            self.role = self.role._replace(
                members=in_sync, members_epoch=members.sync_state_set_epoch
            )
        if self._in_sync is not None:
            self._in_sync.learn(in_sync, members.sync_state_set_epoch)

    def _take(self, header: Any, members: SyncStateSet | None, now: float) -> list[Effect]:
        epoch = header.master_epoch
        if epoch is None:  # registered, and there is no master
            self._heard(now)
            return []
        address = header.master_address or ""
        master_id = header.master_broker_id if address else None
        if epoch < self.role.epoch:
            self.problem = (
                f"the controller {self.leader} is at epoch {epoch}, and this broker at"
                f" {self.role.epoch}: the controller has lost its state"
            )
            return []
        if epoch == self.role.epoch and address and master_id != self.role.master_id:
            self.problem = (
                f"broker {master_id} is master in epoch {epoch} at the controller {self.leader},"
                f" and {self.role.master_id} at another one"
            )
            return []
        if address and master_id == self.broker_id and epoch <= self._epoch_before:
            self._keep_silent(epoch, now)
            return []
        self._heard(now)
        in_sync = members or SyncStateSet()
        if epoch > self.role.epoch:
            self._in_sync = None
            self.role = Role(
                master_id,
                address,
                epoch,
                frozenset(in_sync.sync_state_set),
                in_sync.sync_state_set_epoch,
            )
            return [ChangeRole(self.role)]
        if address:
            self._learn(in_sync)
        return []

"""A broker's part in a group whose master the controller elects: the I/O of ``controller``.

``GroupMembership`` lives as long as the broker, through all its roles. It asks the controller,
keeps the epochs of the log and the broker's identity on the disk, and says which role the broker
has to take; the broker then ends, and begins anew in that role with ``opened``. Until it has one it
is a slave that follows nobody, and is not registered.

In this order it takes a role: the log is cut where it parts from the next master's, synced; the
epoch file follows; then the log grows. A master puts its epoch into the file before it takes the
first message. Writing the two small files blocks: nothing may happen in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from broker.errors import StartError
from broker.replication.controller import (
    Answer,
    AskController,
    ChangeRole,
    ControllerClient,
    Effect,
    Group,
    IdentityError,
    Role,
    SaveIdentity,
    SendHeartbeat,
    StoreProgress,
    read_answer,
)
from broker.replication.epochs import EpochFileError, EpochList
from broker.replication.in_sync import InSyncRules, InSyncSet, ReplicaLink
from broker.replication.role import REFUSED, Handler, RoleGate
from remoting.errors import RemotingError
from remoting.protocol.bodies import encode
from remoting.protocol.bodies.controller import EpochEntryCache, EpochSpan
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.errors import ProtocolError
from remoting.protocol.own_codes import OwnRequestCode

if TYPE_CHECKING:
    from broker.config import BrokerConfig
    from broker.store.engine import MessageStore
    from remoting.connection import Connection
    from remoting.pool import ConnectionPool
    from remoting.runtime.clock import Clock

ASK_SECONDS: Final = 3.0
"""Time limit of a request to the controller."""

TICK_SECONDS: Final = 0.2
"""How often the client looks at what is due."""

_ENDLESS: Final = 2**63 - 1
_SENDS: Final = tuple(
    code for code, (answer, _) in REFUSED.items() if answer == ResponseCode.SERVICE_NOT_AVAILABLE
)
_BY_HAND: Final[dict[int, tuple[int, str]]] = dict.fromkeys(
    (OwnRequestCode.HAND_OVER, OwnRequestCode.PROMOTE),
    (
        ResponseCode.SYSTEM_ERROR,
        "the controller elects the master of this group: use mqadmin electMaster",
    ),
)

_log = structlog.get_logger("replication")


class GroupMembership:
    """A broker's part in its group.

    Attributes:
        epochs: of the log.
        in_sync: the replicas in sync, at the master that serves; else None.
        cut: physical offset where the log is cut before it is opened again; None: it isn't.
        role: the role that the broker has taken.
        gate: refuses sends for want of replicas, and a switch by hand.
    """

    def __init__(
        self,
        config: BrokerConfig,
        address: str,
        clock: Clock,
        pool: ConnectionPool,
        on_role: Callable[[], None],
    ) -> None:
        """Create the membership of a broker that starts.

        Args:
            config: its settings.
            address: where it listens.
            clock: the time.
            pool: connections to the controllers.
            on_role: called when the broker has to begin anew.
        """
        self.epochs = EpochList()
        self.in_sync: InSyncSet | None = None
        self.cut: int | None = None
        self.role = Role(None, "", 0)
        self.gate = RoleGate(_BY_HAND)
        self._config = config
        self._group = Group(
            config.cluster_name,
            config.broker_name,
            address,
            config.controller_addr,
            config.broker_election_priority,
        )
        self._rules = InSyncRules(
            config.all_in_sync_acknowledge,
            config.least_in_sync,
            config.in_sync_replicas,
            config.ha_max_time_slave_not_catchup_ms / 1000,
        )
        self._clock = clock
        self._pool = pool
        self._on_role = on_role
        self._store: MessageStore
        self._client: ControllerClient | None = None
        self._progress = StoreProgress(0, True, -1, 0, 0)
        self._refusal: str | None = None
        self._problem: str | None = None
        self._trouble: str | None = None
        self._wake = asyncio.Event()

    # --- what the broker asks

    @property
    def broker_id(self) -> int:
        """The broker's id in its group; 0 before it has one."""
        return 0 if self._client is None else self._client.broker_id or 0

    @property
    def is_master(self) -> bool:
        """Whether the role that the broker has taken is the master's."""
        return self.role.master_id is not None and self.role.master_id == self.broker_id

    @property
    def is_settled(self) -> bool:
        """Whether the broker has taken the role that the controller gave it last."""
        is_same = self._client is None or self._client.role[:3] == self.role[:3]
        return is_same and self.cut is None

    @property
    def members(self) -> frozenset[int]:
        """The replicas in sync, as the controller told last."""
        return frozenset() if self._client is None else self._client.role.members

    @property
    def problem(self) -> str | None:
        """Why the broker has no role, or takes no messages; None if all is well."""
        if self._client is None:
            return "the store is not open yet"
        return self._client.problem or self._trouble or (self._refusal if self.is_master else None)

    @property
    def why_no_master(self) -> str:
        """Why there is no master to follow."""
        return self.problem or "the controller has elected no master of this group yet"

    def take_role(self) -> BrokerConfig:
        """Take the role that the controller gave last; return the settings for it."""
        if self._client is not None:
            self.role = self._client.role
        self.in_sync = None
        role, broker_id = ("SYNC_MASTER", 0) if self.is_master else ("SLAVE", self.broker_id)
        return replace(self._config, broker_role=role, broker_id=broker_id, is_role_given=True)

    def opened(self, store: MessageStore) -> None:
        """Fit the epochs to a store that was opened for the role; a master begins its own.

        Raises:
            StartError: the store belongs to another broker, or its epochs are lost.
            OSError: the disk refuses.
        """
        self._store = store
        log, files, paths = store.log, store.files, store.paths
        cut, self.cut = self.cut, None
        if self._client is None:
            self._read()
        epochs = self.epochs.opened(log.end).begin(log.start)
        if cut is not None:
            epochs = epochs.cut(cut)
        if self.is_master:
            # Nothing is accepted before ``serve``.
            store.refuse("this broker is becoming the master: try again in a moment")
            store.syncer.log.sync()
            epochs = epochs.append(self.role.epoch, log.end)
        if epochs != self.epochs:
            self.save_epochs(epochs)
        if self._client is None:
            identity, temporary = (
                None if data is None else data.decode(errors="replace")
                for data in (files.read(paths.identity), files.read(self._temporary))
            )
            try:
                self._client = ControllerClient(
                    self._group,
                    identity=identity,
                    temporary=temporary,
                    epoch=epochs.last(log.end),
                )
            except IdentityError as error:
                raise StartError(str(error)) from None
        self._look()

    def serve(self) -> bool:
        """Begin to serve in the role; return whether the broker is to be registered."""
        role = self.role
        if self.is_master:
            assert role.master_id is not None
            assert self._client is not None
            in_sync = InSyncSet(
                role.master_id,
                role.members,
                role.members_epoch,
                start=self.epochs.entries[-1].start,
                confirmed=self._store.syncer.confirmed,
                rules=self._rules,
            )
            self.in_sync = in_sync
            if not self._client.lead(in_sync, role.epoch):
                return False  # it has another role already
            self._store.syncer.replicated()
            self._guard()
            _log.info("master", epoch=role.epoch, members=sorted(role.members))
        return role.master_id is not None

    def ended(self) -> None:
        """Note that the store is about to be closed."""
        self._look()
        self.in_sync = None

    # --- the log

    def save_epochs(self, epochs: EpochList) -> None:
        """Write the epochs of the log, on the disk. Raises ``OSError``."""
        store = self._store
        # The confirm offset first: with epochs it decides what is visible after a crash.
        store.syncer.queues.write_times()
        store.files.replace(store.paths.epochs, epochs.encode().encode(), backup=True)
        self.epochs = epochs

    def cut_at(self, point: int) -> None:
        """Begin anew with a log that ends at ``point``."""
        _log.warning("the log is cut", offset=point, end=self._store.log.end)
        self.cut = point
        self._on_role()

    # --- the slaves of a master

    def connected(self, broker_id: int, now: float, *, is_learner: bool) -> ReplicaLink:
        """Count a slave's new connection.

        Raises:
            OSError: this broker does not serve as a master.
        """
        if self.in_sync is None:
            raise OSError("this broker is not the master")
        return self.in_sync.connect(broker_id, now, is_learner=is_learner)

    def disconnected(self, replica: ReplicaLink) -> None:
        """Count the end of a slave's connection."""
        if self.in_sync is not None:
            self.in_sync.disconnect(replica)
        self._wake.set()

    def advance(self, end: int) -> int:
        """Return the confirm offset; see ``InSyncSet.advance``."""
        return 0 if self.in_sync is None else self.in_sync.advance(end)

    def acknowledged(self, end: int) -> int:
        """Return up to where sends are acknowledged; see ``InSyncSet.acknowledged``."""
        return 0 if self.in_sync is None else self.in_sync.acknowledged(end)

    # --- requests to the broker

    def table(self) -> dict[int, Handler]:
        """Return the handlers by code."""
        return {
            RequestCode.NOTIFY_BROKER_ROLE_CHANGED: self.notified,
            RequestCode.GET_BROKER_EPOCH_CACHE: self.epoch_cache,
        }

    def notified(self, command: Command, _: Connection) -> Command | None:
        """Handle NOTIFY_BROKER_ROLE_CHANGED: ask the controller, whatever the notice says."""
        if self._client is not None:
            self._client.notified()
            self._wake.set()
        return None if command.is_oneway else command.reply()

    def epoch_cache(self, command: Command, _: Connection) -> Command:
        """Handle GET_BROKER_EPOCH_CACHE (cf. AdminBrokerProcessor.getBrokerEpochCache)."""
        entries = self.epochs.entries
        ends = [*(entry.start for entry in entries[1:]), _ENDLESS]
        body = EpochEntryCache(
            broker_id=self.broker_id,
            broker_name=self._group.name,
            cluster_name=self._group.cluster,
            epoch_list=[
                EpochSpan(end, entry.epoch, entry.start)
                for entry, end in zip(entries, ends, strict=False)
            ],
            max_offset=self._store.log.end,
        )
        return command.reply(body=encode(body))

    # --- the controller

    async def run(self) -> None:
        """Deal with the controller until cancelled."""
        assert self._client is not None
        client = self._client
        asking: asyncio.Task[Answer | None] | None = None
        async with asyncio.TaskGroup() as tasks:
            while True:
                self._look()
                now = self._clock.monotonic()
                if asking is not None and asking.done():
                    effects = client.answered(asking.result(), now)
                    asking = None
                    self._wake.set()
                else:
                    self._wake.clear()
                    effects = client.step(now, self._progress)
                for effect in effects:
                    if isinstance(effect, AskController):
                        asking = tasks.create_task(self._ask(effect))
                        asking.add_done_callback(lambda _: self._wake.set())
                    else:
                        self._do(effect, tasks)
                self._guard()
                with suppress(TimeoutError):
                    async with asyncio.timeout(TICK_SECONDS):
                        await self._wake.wait()

    def _do(self, effect: Effect, tasks: asyncio.TaskGroup) -> None:
        match effect:
            case SendHeartbeat():
                for address in self._group.controllers:
                    tasks.create_task(self._beat(address, effect))
            case SaveIdentity():
                self._save(effect)
            case ChangeRole():
                _log.warning("new role", master=effect.role.master_id, epoch=effect.role.epoch)
                self._on_role()

    async def _ask(self, ask: AskController) -> Answer | None:
        body = b"" if ask.body is None else encode(ask.body)
        command = Command.request(RequestCode(ask.code), ask.header, body=body)
        try:
            reply = await self._pool.request(ask.address, command, timeout=ASK_SECONDS)
            return read_answer(ask.code, reply)
        except (RemotingError, ProtocolError, ValueError):
            return None

    async def _beat(self, address: str, heartbeat: SendHeartbeat) -> None:
        command = Command.request(RequestCode.BROKER_HEARTBEAT, heartbeat.header, oneway=True)
        with suppress(RemotingError, TimeoutError, ValueError):
            async with asyncio.timeout(ASK_SECONDS):
                connection = await self._pool.get(address)
            connection.send_oneway(command)

    def _look(self) -> None:
        """Look at the store; between two roles what was seen last counts."""
        store = self._store
        if store.readable:
            end, syncer = store.log.end, store.syncer
            trouble = store.disk.trouble or syncer.log.hang()
            if (trouble is None) is not (self._trouble is None):
                _log.warning("no heartbeats" if trouble else "heartbeats again", why=trouble)
            self._trouble = trouble
            self._progress = StoreProgress(
                0, trouble is None, self.epochs.last(end), syncer.safe_end, syncer.confirmed
            )
        self._progress = self._progress._replace(now_ms=self._clock.now_ms())

    def _guard(self) -> None:
        """Refuse sends while this broker may not take any."""
        assert self._client is not None
        if self._client.problem != self._problem:
            self._problem = self._client.problem
            if self._problem is not None:
                _log.warning("no role, or the controller does something wrong", why=self._problem)
        if not self.is_master or not self._store.readable:
            return
        refusal = self._client.refusal(self._clock.monotonic())
        if refusal is None and not self.is_settled:
            refusal = "this broker is changing its role: try again in a moment"
        self._store.refuse(refusal)
        if refusal != self._refusal:
            self._refusal = refusal
            _log.warning("no messages are taken" if refusal else "messages are taken", why=refusal)
            refused = _BY_HAND
            if refusal and self.in_sync is not None and refusal == self.in_sync.refusal():
                # RocketMQ's code for this; for the others the store's is right.
                refused = refused | dict.fromkeys(_SENDS, (ResponseCode.SYSTEM_ERROR, refusal))
            self.gate.refused = refused

    # --- files

    @property
    def _temporary(self) -> Path:
        identity = self._store.paths.identity
        return identity.with_name(f"{identity.name}-temp")

    def _read(self) -> None:
        store = self._store
        data = store.files.read(store.paths.epochs)
        try:
            self.epochs = EpochList() if data is None else EpochList.decode(data.decode())
        except (EpochFileError, UnicodeDecodeError) as error:
            raise StartError(
                f"{store.paths.epochs}: {error}; put back a good copy, such as its .bak, or start"
                " with an empty store"
            ) from None

    def _save(self, identity: SaveIdentity) -> None:
        store = self._store
        pairs = (store.paths.identity, identity.identity), (self._temporary, identity.temporary)
        for path, text in pairs:
            if text is not None:
                store.files.replace(path, text.encode(), backup=False)
        for path, text in pairs:
            if text is None:
                store.files.remove(path)
        store.files.sync_directory(store.paths.root)

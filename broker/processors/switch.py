"""A switch: a slave becomes the master, and the master its slave, without loss.

The master does it, when an administrator asks it to (HAND_OVER). It refuses everything that would
change its log, waits until the slave has all of it, and saves whom it hands over to. Then it sends
the slave PROMOTE with the end of its log, the queue locks and what is delivered of the timers. The
slave copies the tables once more, asks the master whether the hand-over is still open (CONFIRM),
saves that it is the master, and answers; both then begin anew in their new roles.

From the moment when PROMOTE may have been sent, only the slave's answer ends the hand-over: until
then the master takes no messages, also after a restart, and asks again. The slave gives one answer
to each attempt, also when it is a slave again: who was refused can't be promoted by a request that
arrives late. Nor can a slave that was paused while an administrator let the master go on, unless it
had asked already. So there are never two masters.

``promote --force`` makes a slave the master without the old one, whose locks it doesn't know: it
gives nobody a lock until the old ones have expired for sure.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgspec
import structlog
from msgspec import structs

from broker.errors import RequestRefused
from broker.groups.queue_locks import SavedLocks
from broker.replication.master import check_port
from broker.replication.role import HANDING_OVER, SEALED, RoleGate
from broker.replication.role import REFUSED as REFUSED_OF_SLAVES
from broker.replication.slave import ASK_SECONDS, LOOK_SECONDS, LogReplica
from broker.replication.tables import TableCopy
from broker.saved_tables import SavedRole
from remoting.errors import BindFailed, RemotingError
from remoting.protocol.bodies import decode, encode
from remoting.protocol.bodies.body import Body
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.disk.timer import PROGRESS_NAME
from remoting.protocol.headers.admin import HandOverRequestHeader, PromoteRequestHeader
from remoting.protocol.own_codes import PROMOTION, REFUSED, SAVED, SERVING, OwnRequestCode
from remoting.runtime.settings import ConfigError

if TYPE_CHECKING:
    from broker.config import BrokerConfig
    from broker.processors.offload import Handler
    from broker.registration import BrokerRegistration
    from broker.saved_tables import SavedTables
    from broker.state import BrokerState
    from remoting.connection import Connection

MAX_GAP_BYTES: Final = 16 * 1024 * 1024
"""A slave that lacks more is refused before the master stops taking messages."""

TAKE_SECONDS: Final = 45.0
"""Time limit of the slave's answer: it copies six tables twice, with 3 s for each."""

RETRY_SECONDS: Final = 0.2
"""Pause before the slave is asked again."""

ANSWER_SECONDS: Final = 20.0
"""When the administrator is told that there is no answer yet."""

SERVING_SECONDS: Final = 10.0
"""How long the old master waits until the new one serves, to find it at the name servers."""

MAX_ATTEMPTS: Final = 100
"""Answers that a slave remembers."""

_FENCED: Final = "this broker is handing over to its slave: send to the next master in a moment"

_log = structlog.get_logger("replication")


class HandedOver(Body):
    """The body of PROMOTE: what only the master has.

    Attributes:
        locks: the queue locks; the times are ms before the request.
        timers: ``timerProgress``, in hex.
    """

    locks: SavedLocks = msgspec.field(default_factory=SavedLocks)
    timers: str = ""


@dataclass(kw_only=True)
class RoleSwitch:
    """Gives the role of the master to a slave, or takes it.

    Args:
        settings: as the operator gave them, without the role since the last switch.
        state: of the broker.
        saved: keeps the role.
        registration: with the name servers.
        spawn: starts a task that the broker owns.
        on_change: begins anew with the saved role.

    Attributes:
        gate: refuses what the broker's role doesn't permit now.
        tables: copies the tables of a slave's master.
    """

    settings: BrokerConfig
    state: BrokerState
    saved: SavedTables
    registration: BrokerRegistration
    spawn: Callable[[Coroutine[Any, Any, str | None], str], asyncio.Task[str | None]]
    on_change: Callable[[], None]
    gate: RoleGate = field(init=False)
    tables: TableCopy = field(init=False)
    _busy: bool = False
    _is_confirmed: bool = False
    _outcome: asyncio.Task[str | None] | None = None
    _attempts: dict[str, asyncio.Task[str | None]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        state, ask = self.state, self.registration.pool.request
        self.tables = TableCopy(state, self.saved, state.store.files, ask)
        self.gate = RoleGate({} if self.state.replica is None else REFUSED_OF_SLAVES)
        if self.saved.role is not None and self.saved.role.attempt:
            self._busy = self._is_confirmed = True
            self._fence(SEALED)

    def table(self) -> dict[int, Handler]:
        """Return the handlers by code."""
        return {OwnRequestCode.HAND_OVER: self.hand_over, OwnRequestCode.PROMOTE: self.promote}

    def resume(self) -> bool:
        """Go on with a hand-over whose outcome was unknown at the start; return if there is one."""
        if self._busy:
            assert self.saved.role is not None
            self._outcome = self.spawn(self._finish(self.saved.role), "hand-over")
        return self._busy

    def stop(self) -> None:
        """Let no request wait for a hand-over; it goes on when the brokers are back."""
        for task in (self._outcome, *self._attempts.values()):
            if task is not None:
                task.cancel()

    # --- at the master

    async def hand_over(self, command: Command, _: Connection) -> Command:
        """Handle HAND_OVER; the answer tells the outcome."""
        header = command.read(HandOverRequestHeader)
        if self.state.replica is not None:
            raise _refusal("this broker is a slave: ask its master")
        if self._busy:
            raise _refusal("this broker is handing over already")
        self._busy, self._is_confirmed = True, False
        try:
            await self._check(header)
            seconds = self.state.config.limits.catch_up_seconds
            # A slave that has just connected reports what it has after 5 s.
            await self._catch_up(2 * seconds, MAX_GAP_BYTES)
            self._fence(HANDING_OVER)
            await self._catch_up(seconds)
            role = await self._note(header)
        except BaseException:
            self._open()
            raise
        self._outcome = outcome = self.spawn(self._finish(role), "hand-over")
        await asyncio.wait([outcome], timeout=ANSWER_SECONDS)
        if not outcome.done() or outcome.cancelled():
            raise _refusal(
                f"the slave {header.slave_address} has not answered: this master takes no messages"
                " until the slave says whether it is the master now. Start the slave; or, if it is"
                f" gone for good, `pocketmq broker promote {self._name} --id 0 --force`; or with"
                " --address for --id, if this master was restarted"
            )
        if (reason := outcome.result()) is not None:
            raise _refusal(reason)
        return command.reply()

    async def _note(self, header: HandOverRequestHeader) -> SavedRole:
        """Save whom the broker hands over to, before the slave may know it."""
        before = self.saved.role or self._role(self.state.config.broker_role, 0)
        attempt, slave = secrets.token_hex(8), header.slave_address
        role = structs.replace(
            before, attempt=attempt, successor=slave, successor_id=header.slave_id
        )
        if not await self.saved.save_role(role):
            self.saved.save_role(before)
            raise _refusal("the hand-over can't be saved: see the broker's log")
        return role

    async def _check(self, header: HandOverRequestHeader) -> None:
        """Raise ``RequestRefused`` if the switch can't succeed, before anything is refused."""
        slave = header.slave_address
        if (obstacle := await self._obstacle("SLAVE", header.slave_id)) is not None:
            raise _refusal(f"this broker can't be a slave: {obstacle}")
        request = self._request(PromoteRequestHeader.CHECK, role=self.state.config.broker_role)
        try:
            reply = await self.registration.pool.request(slave, request, timeout=ASK_SECONDS)
        except RemotingError as error:
            raise _refusal(f"the slave does not answer: {error}") from None
        if reply.code != ResponseCode.SUCCESS:
            raise RequestRefused(reply.code, f"the slave {slave} refuses: {reply.remark}")

    def _fence(self, refused: Mapping[int, tuple[int, str]]) -> None:
        """Take no messages, and refuse these requests."""
        self.gate.refused = refused
        self.state.store.refuse(_FENCED)
        self.state.sealed = refused is SEALED

    def _open(self) -> None:
        """End a hand-over that failed."""
        self._busy = self.state.sealed = False
        self.gate.refused = {}
        self.state.store.refuse(None)

    async def _catch_up(self, seconds: float, may_lack: int = 0) -> None:
        """Wait until a slave has acknowledged all of the log but some bytes."""
        slaves, log = self.state.slaves, self.state.store.log
        assert slaves is not None

        def is_near() -> bool:
            # Until its first report it isn't known what a slave has.
            acked = slaves.replicated
            return bool(slaves.links) and (log.end == 0 or 0 < acked >= log.end - may_lack)

        if not await _happens(is_near, seconds):
            lacks = f"the slave lacks {log.end - slaves.replicated} bytes"
            raise _refusal(
                f"{lacks if slaves.links else 'no slave is connected'} after {seconds:g} s: this"
                " broker stays the master"
            )

    async def _finish(self, role: SavedRole) -> str | None:
        """Hand over; return why the slave refuses, None when it is the master."""
        self._fence(SEALED)
        reason = await self._until_answered(role, REFUSED, SAVED, SERVING)
        if reason is not None:
            self.saved.save_role(structs.replace(role, attempt=""))
            self._open()
            await self.registration.start()
            _log.warning("not handed over", slave=role.successor, reason=reason)
            return reason
        # At once: from here on nobody can let this broker go on as the master.
        saving = self.saved.save_role(mine := self._role("SLAVE", role.successor_id))
        # Not before: clients need a route. Not later: it would be registered as the master again.
        await self.registration.pause()
        while not await saving:
            await asyncio.sleep(RETRY_SECONDS)
            saving = self.saved.save_role(mine)
        try:
            async with asyncio.timeout(SERVING_SECONDS):
                await self._until_answered(role, SERVING)
        except TimeoutError:
            _log.warning("the new master does not serve yet", slave=role.successor)
        self.on_change()
        return None

    async def _until_answered(self, role: SavedRole, *answers: str) -> str | None:
        """Ask the slave until it gives one of the answers; return why it refuses, or None."""
        told = None
        while True:
            try:
                reply = await self.registration.pool.request(
                    role.successor, self._take(role), timeout=TAKE_SECONDS
                )
            except RemotingError as error:
                problem = str(error)
            else:
                if reply.fields.get(PROMOTION) in answers:
                    return None if reply.code == ResponseCode.SUCCESS else str(reply.remark)
                problem = f"{role.successor} answered code {reply.code}: {reply.remark}"
            if problem != told and SAVED in answers:
                told = problem
                _log.error("no messages are taken: it is open who is master", reason=problem)
            await asyncio.sleep(RETRY_SECONDS)

    def _take(self, role: SavedRole) -> Command:
        store = self.state.store
        progress = store.files.read(store.paths.root / "config" / PROGRESS_NAME) or b""
        locks = self.state.locks.saved(-self.state.monotonic_ms, at_stop=True)
        body, step = encode(HandedOver(locks, progress.hex())), PromoteRequestHeader.TAKE
        end = store.log.end
        return self._request(step, body, attempt=role.attempt, end=end, role=role.role)

    def _request(self, step: str, body: bytes = b"", **more: Any) -> Command:
        header = PromoteRequestHeader(broker_name=self._name, step=step, **more)
        return Command.request(OwnRequestCode.PROMOTE, header, body=body)

    # --- at the slave

    async def promote(self, command: Command, _: Connection) -> Command:
        """Handle PROMOTE, from the master or an administrator; see ``PromoteRequestHeader``."""
        header = command.read(PromoteRequestHeader)
        replica, step = self.state.replica, header.step
        if header.broker_name != self._name:
            reason: str | None = f"this broker is {self._name}, not {header.broker_name}"
        elif step == PromoteRequestHeader.CONFIRM:
            reason = self._confirm(header.attempt)
        elif step == PromoteRequestHeader.TAKE and (
            replica is None or self._has_taken(header.attempt)
        ):
            return command.reply(extra=((PROMOTION, SERVING),))
        elif replica is None and self._outcome is not None:
            by_force = step == PromoteRequestHeader.FORCE
            reason = await self._release(self._outcome, by_force=by_force)
        elif replica is None:
            reason = "this broker is the master"
        elif step == PromoteRequestHeader.TAKE:
            given = decode(HandedOver, bytes(command.body))
            reason = await asyncio.shield(self._attempt(header, given, replica))
        elif step == PromoteRequestHeader.CHECK:
            # It may connect before it takes over, but a log that differs stays another one.
            differs = replica.state.problem if replica.state.differs else None
            reason = differs or await self._obstacle(header.role)
        else:
            reason = await self._promote(replica, by_force=step == PromoteRequestHeader.FORCE)
        if reason is None:
            return command.reply(extra=((PROMOTION, SAVED),))
        return command.reply(ResponseCode.SYSTEM_ERROR, reason, extra=((PROMOTION, REFUSED),))

    async def _obstacle(self, role: str, broker_id: int = 0) -> str | None:
        """Return why this broker can't have a role, or None."""
        config = self.state.config
        if config.ha_listen_port is None:
            return "it has no haListenPort, and needs one for slaves of its own"
        try:
            config.as_role(role, broker_id)
        except ConfigError as error:
            return str(error)
        return await self._taken()

    async def _taken(self) -> str | None:
        """Return why a slave can't listen for slaves of its own, or None."""
        config = self.state.config
        if self.state.replica is not None and config.ha_listen_port is not None:
            try:
                await check_port(config.bind_host, config.ha_listen_port)
            except BindFailed as error:
                return str(error)
        return None

    def _attempt(
        self, header: PromoteRequestHeader, given: HandedOver, replica: LogReplica
    ) -> asyncio.Task[str | None]:
        task = self._attempts.get(header.attempt)
        if task is None:
            task = self.spawn(self._take_over(header, given, replica), "promotion")
            self._attempts[header.attempt] = task
            if len(self._attempts) > MAX_ATTEMPTS:
                del self._attempts[next(iter(self._attempts))]
        return task

    async def _take_over(
        self, header: PromoteRequestHeader, given: HandedOver, replica: LogReplica
    ) -> str | None:
        """Become the master; return why that is impossible, or None."""
        state, log, tables = self.state, self.state.store.log, self.tables
        master = replica.state.master
        if (obstacle := await self._obstacle(header.role)) is not None:
            return obstacle
        if master is None:
            return "it follows no master"
        seconds = state.config.limits.catch_up_seconds
        # Only a connection shows that the logs are the same: they were compared before it.
        if not await _happens(lambda: replica.state.connected and log.end >= header.end, seconds):
            if not replica.state.connected:
                return f"it does not follow the master: {replica.state.problem}"
            return f"it lacks {header.end - log.end} bytes of the log"
        # Twice: a topic is deleted when the master lacks it twice.
        await tables.copy(master)
        if failed := await tables.copy(master):
            return f"it can't copy these tables of the master: {', '.join(sorted(failed))}"
        if log.end != header.end:
            return f"its log ends at {log.end}, and the master's at {header.end}"
        try:
            await asyncio.to_thread(tables.save_timers, bytes.fromhex(given.timers))
        except (OSError, ValueError) as error:
            return f"it can't save the progress of timers: {error}"
        now_ms = state.monotonic_ms
        state.locks.restore(given.locks, now_ms, -now_ms)
        if not await self.saved.save_locks():
            return "it can't write the queue locks: see its log"
        request = self._request(PromoteRequestHeader.CONFIRM, attempt=header.attempt)
        try:
            reply = await self.registration.pool.request(
                master.requests, request, timeout=ASK_SECONDS
            )
        except RemotingError as error:
            return f"the master does not confirm: {error}"
        if reply.code != ResponseCode.SUCCESS:
            return f"the master {master.requests} does not confirm: {reply.remark}"
        role = self._role(header.role, 0)
        taken = [*role.taken, header.attempt][-MAX_ATTEMPTS:]
        return await self._save_master(structs.replace(role, taken=taken))

    async def _promote(self, replica: LogReplica, *, by_force: bool) -> str | None:
        """Become the master without the old one; return why not, or None."""
        known = replica.state
        if known.master is not None:
            request = Command.request(RequestCode.GET_BROKER_RUNTIME_INFO)
            address = known.master.requests
            with suppress(RemotingError):
                await self.registration.pool.request(address, request, timeout=ASK_SECONDS)
                return (
                    f"the master {address} answers: use `pocketmq broker switch {self._name}`, or"
                    " stop it first"
                )
        if (taken := await self._taken()) is not None:
            return taken
        if not by_force:
            now = self.state.clock.monotonic()
            since = "never" if known.heard_at is None else f"{now - known.heard_at:.0f} s ago"
            return (
                f"the master was heard {since}; at the last look at its log, at most"
                f" {LOOK_SECONDS:.0f} s before that, it had {replica.lag_bytes} bytes that this"
                " slave lacks: these, and what it has taken since, would be lost. See that it"
                " does not come back as a master, and use --force"
            )
        forced_ms = self.state.clock.now_ms()
        _log.warning("promoted by force", lacks_bytes=replica.lag_bytes)
        return await self._save_master(self._role("ASYNC_MASTER", 0, forced_ms=forced_ms))

    async def _save_master(self, role: SavedRole) -> str | None:
        before = self.saved.role
        if not await self.saved.save_role(role):
            self.saved.save_role(before)
            return "it can't save that it is the master: see its log"
        self.on_change()
        return None

    def _confirm(self, attempt: str) -> str | None:
        """Let the slave become the master; return why it must not any more, or None."""
        if not attempt or self.saved.role is None or self.saved.role.attempt != attempt:
            return "this hand-over has ended"
        self._is_confirmed = True
        return None

    async def _release(self, outcome: asyncio.Task[str | None], *, by_force: bool) -> str | None:
        """End a hand-over without the slave's answer; return why that is impossible, or None."""
        role = self.saved.role
        if role is None or not role.attempt:
            return "this broker is the master"
        if not by_force:
            may = "may be the master now" if self._is_confirmed else "is not the master yet"
            return (
                f"it is handing over to {role.successor}, which {may}, and takes no messages until"
                " that slave answers. If the slave is gone for good, use --force"
            )
        # Before anything is awaited: from here on the slave can't confirm.
        self.saved.save_role(structs.replace(role, attempt=""))
        outcome.cancel()
        await asyncio.wait([outcome])
        self._open()
        await self.registration.start()
        return None

    def _role(self, role: str, broker_id: int, **more: Any) -> SavedRole:
        taken = [] if self.saved.role is None else self.saved.role.taken
        return SavedRole.of(self.settings, role, broker_id, taken=taken, **more)

    def _has_taken(self, attempt: str) -> bool:
        """Return whether this broker became the master by an attempt, and serves since."""
        role = self.saved.role
        return role is not None and attempt in role.taken and attempt not in self._attempts

    @property
    def _name(self) -> str:
        return self.state.config.broker_name


async def _happens(condition: Callable[[], bool], seconds: float) -> bool:
    """Wait until a condition holds; return False if it doesn't in time."""
    try:
        async with asyncio.timeout(seconds):
            while not condition():  # noqa: ASYNC110 - the log has no event for this
                await asyncio.sleep(0.01)
    except TimeoutError:
        return False
    return True


def _refusal(reason: str) -> RequestRefused:
    return RequestRefused(ResponseCode.SYSTEM_ERROR, reason)

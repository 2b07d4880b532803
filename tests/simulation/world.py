"""Three brokers and a controller on one seed: clock, network, disks, faults, and what must hold.

The brokers are made of the machines of ``broker.replication`` over a model of a store, whose tail a
power cut loses. Everything happens in one queue of events in the order of a simulated clock; what
the seed decides is drawn from one ``Random``, so a seed repeats exactly.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from heapq import heappop, heappush
from random import Random
from struct import Struct
from typing import Any, Final

from broker.replication.autoswitch import (
    REPORT,
    SLAVE_HELLO,
    TRANSFER,
    AutoSwitchMaster,
    AutoSwitchSlave,
)
from broker.replication.controller import (
    Answer,
    AskController,
    ChangeRole,
    ControllerClient,
    Effect,
    Group,
    Role,
    SaveIdentity,
    SendHeartbeat,
    StoreProgress,
)
from broker.replication.epochs import EpochList
from broker.replication.in_sync import InSyncRules, InSyncSet, ReplicaLink
from broker.replication.stream import StreamError
from remoting.protocol.codes import RequestCode
from tests.simulation.controller import ADDRESS, SCAN_SECONDS, Controller

RECORD: Final = Struct(">IIQ")
"""A record of the model's log: queue, queue offset, id of the message."""

QUEUES: Final = 2
BROKERS: Final = 3
STRANGER: Final = 9
"""A broker id that nobody has."""

FAULTY_SECONDS: Final = (25.0,) * 7 + (40.0, 60.0, 120.0)
"""How long faults happen, a choice: most seeds are short, and some outlive every timeout."""

HEALING_SECONDS: Final = 90.0
"""Within this time after the last fault, the set is whole and a send is acknowledged."""

ASK_SECONDS: Final = 3.0


class Violation(AssertionError):
    """Something that must hold doesn't."""


class Crashed(Exception):
    """The broker is gone in the middle of a step."""


class Pipe:
    """One direction of a connection: bytes in order; None is its end."""

    __slots__ = ("chunks", "is_moving", "receive", "route")

    def __init__(self, route: tuple[int, int], receive: Callable[[bytes | None], None]) -> None:
        self.route = route
        self.receive = receive
        self.chunks: deque[bytes | None] = deque()
        self.is_moving = False


class MasterLink:
    """A master's end of a connection."""

    def __init__(self, stream: AutoSwitchMaster) -> None:
        self.stream = stream
        self.out: Pipe | None = None
        self.replica: ReplicaLink | None = None
        self.started = False


class Broker:
    """One broker: what a crash leaves, and the machines that run until then."""

    slave_stream: type[AutoSwitchSlave] = AutoSwitchSlave
    in_sync_set: type[InSyncSet] = InSyncSet

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self.address = f"broker{number}:10911"
        # On the disk.
        self.log = bytearray()
        self.synced = 0
        self.epoch_file = EpochList().encode()
        self.identity: str | None = None
        self.temporary: str | None = None
        self.checkpoint = 0
        # In memory.
        self.is_up = False
        self.stopped_until = 0.0
        self.can_write = True
        self.life = 0

    # --- life

    def start(self) -> None:
        """Start, as after a crash."""
        self.is_up = True
        self.life += 1
        end = len(self.log)
        epochs = EpochList.decode(self.epoch_file)
        self.epochs = epochs.opened(end)
        if self.epochs != epochs:
            self.save_epochs()
        self.synced = end
        self.confirmed = min(self.checkpoint, end)
        self.visible = 0
        self.show()
        group = Group("c", "b", self.address, (ADDRESS,))
        self.client = ControllerClient(
            group,
            identity=self.identity,
            temporary=self.temporary,
            epoch=self.epoch_before(),
        )
        self.links: list[MasterLink] = []
        self.in_sync: InSyncSet | None = None
        self.master: AutoSwitchSlave | None = None
        self.to_master: Pipe | None = None
        self.connect_at = self.asked_at = 0.0
        self.is_asking = self.is_syncing = False
        self.waiting: list[int] = []
        self.next_offsets = [0] * QUEUES
        self.tick()

    def epoch_before(self) -> int:
        """Return the newest epoch that the log has at the start."""
        return self.epochs.last(len(self.log))

    def crash(self, *, power: bool) -> None:
        """Stop without warning; a cut of the power loses the end of what is not synced."""
        world = self.world
        self.is_up = False
        if power:
            records = (len(self.log) - self.synced) // RECORD.size
            kept = self.synced + world.random.randint(0, records) * RECORD.size
            del self.log[kept:]
            world.check_set()
        self.drop_connections(tell=not power)
        if not power:
            world.after(0.2, world.connection_lost, self.number)

    def save_epochs(self) -> None:
        """Write the epoch file, on the disk."""
        self.may_crash()
        self.epoch_file = self.epochs.encode()

    def may_crash(self) -> None:
        """Crash now and then between two steps that must be in this order."""
        world = self.world
        if world.is_faulty and world.random.random() < world.crash_rate:
            world.crash(self, power=world.syncs)
            raise Crashed

    @property
    def safe_end(self) -> int:
        """Where the log is as safe as the flush mode promises."""
        return self.synced if self.world.syncs else len(self.log)

    def state(self) -> str:
        """Return the state in short: end, synced, confirmed, epoch and master."""
        if not self.is_up:
            return f"[{self.number} down {len(self.log)}/{self.synced}]"
        ends = f"{len(self.log)}/{self.synced}/{self.confirmed}"
        return f"[{self.number} {ends} e{self.client.role.epoch} m{self.client.role.master_id}]"

    # --- each second, and after each answer

    def tick(self) -> None:
        """Do what is due."""
        world, now = self.world, self.world.now
        if self.is_asking and now - self.asked_at > ASK_SECONDS:
            self.is_asking = False
            self.run(self.client.answered(None, now))
        self.step()
        if world.random.random() < 0.2:
            self.checkpoint = self.confirmed
        for link in list(self.links):
            self.feed(link)
        role = self.client.role
        if self.master is not None:
            self.follow()
        elif (
            role.master_id is not None
            and role.master_id != self.client.broker_id
            and now >= self.connect_at
        ):
            self.connect_at = now + 2.0
            world.connect(self, role.master_address)

    def step(self) -> None:
        """Let the client do what is due."""
        view = StoreProgress(
            int(self.world.now * 1000),
            self.can_write,
            self.epochs.last(len(self.log)),
            self.safe_end,
            self.confirmed,
        )
        self.run(self.client.step(self.world.now, view))

    def run(self, effects: list[Effect]) -> None:
        """Do what the client says."""
        for effect in effects:
            match effect:
                case SendHeartbeat():
                    self.world.heartbeat(self, effect)
                case AskController():
                    self.is_asking, self.asked_at = True, self.world.now
                    self.world.ask(self, effect)
                case SaveIdentity():
                    self.may_crash()
                    self.identity, self.temporary = effect.identity, effect.temporary
                case ChangeRole():
                    self.change_role(effect.role)

    def answer(self, life: int, asked_at: float, answer: Answer) -> None:
        """Take an answer of the controller."""
        if life == self.life and self.is_asking and asked_at == self.asked_at:
            self.is_asking = False
            self.run(self.client.answered(answer, self.world.now))
            self.advance()
            self.step()

    # --- as a master

    def change_role(self, role: Role) -> None:
        """Become master, or a slave of another one."""
        self.drop_connections(tell=True)
        self.in_sync = None
        self.waiting.clear()
        self.connect_at = 0.0
        if role.master_id != self.client.broker_id or role.master_id is None:
            return
        self.world.note_master(role.epoch, self)
        self.synced = len(self.log)
        epochs = self.begin_epoch(role.epoch)
        if epochs != self.epochs:
            self.epochs = epochs
            self.save_epochs()
        self.next_offsets = [0] * QUEUES
        for queue, _, _ in RECORD.iter_unpack(self.log):
            self.next_offsets[queue] += 1
        self.in_sync = self.in_sync_set(
            role.master_id,
            role.members,
            role.members_epoch,
            start=self.epochs.entries[-1].start,
            confirmed=self.confirmed,
            rules=InSyncRules(min_in_sync=self.world.min_in_sync),
        )
        is_leading = self.client.lead(self.in_sync, role.epoch)
        assert is_leading
        self.advance()

    def begin_epoch(self, epoch: int) -> EpochList:
        """Return the epochs of the log of a new master."""
        return self.epochs.append(epoch, len(self.log))

    def send(self) -> bool:
        """Take a message of a client; return False if it is refused."""
        if self.in_sync is None or not self.can_write or self.client.refusal(self.world.now):
            return False
        queue = self.world.random.randrange(QUEUES)
        self.log += RECORD.pack(queue, self.next_offsets[queue], self.world.new_id())
        self.next_offsets[queue] += 1
        self.waiting.append(len(self.log))
        self.grown()
        return True

    def grown(self) -> None:
        """Go on after the log has grown: at once, or once it is synced."""
        if not self.world.syncs:
            self.safer()
        elif not self.is_syncing:
            self.is_syncing = True
            self.world.after(self.world.delay(), self.sync, self.life)

    def sync(self, life: int) -> None:
        """Sync the log."""
        if life == self.life and self.can_write:
            self.is_syncing = False
            self.synced = len(self.log)
            self.safer()

    def safer(self) -> None:
        """Send, report and count what is safer than before."""
        for link in list(self.links):
            self.feed(link)
        self.advance()
        if self.master is not None:
            self.follow()

    def advance(self) -> None:
        """Move the confirm offset, and answer sends."""
        if self.in_sync is None:
            return
        self.confirmed = self.in_sync.advance(self.safe_end)
        acknowledged = self.in_sync.acknowledged(self.safe_end)
        while self.waiting and self.waiting[0] <= acknowledged:
            self.world.acknowledge(self, self.waiting.pop(0))
        self.show()

    def accept(self, link: MasterLink) -> bool:
        """Take a connection; return False if this is no master."""
        if self.in_sync is None:
            return False
        link.stream = AutoSwitchMaster(self.epochs, self.world.now)
        self.links.append(link)
        return True

    def from_slave(self, link: MasterLink, data: bytes | None) -> None:
        """Take bytes of a slave."""
        if link not in self.links:
            return
        world, stream = self.world, link.stream
        if data is None:
            self.forget(link)
            return
        try:
            stream.receive(data, world.now)
        except StreamError:
            self.forget(link)
            return
        assert self.in_sync is not None
        assert link.out is not None
        if link.replica is None and stream.broker_id is not None:
            link.replica = self.in_sync.connect(
                stream.broker_id, world.now, is_learner=stream.is_learner
            )
            world.write(link.out, stream.handshake(len(self.log)))
            for other in list(self.links):
                if other.replica is not None and other.replica.is_void:
                    self.forget(other)
        if link.replica is not None and stream.request is not None:
            if not link.started:
                link.started = True
                stream.start(stream.request)
            self.count(link)
            self.advance()
            self.step()
            self.feed(link)

    def count(self, link: MasterLink) -> None:
        """Count what a slave acknowledged."""
        assert link.replica is not None
        link.replica.count(link.stream.acked, self.safe_end, self.world.now)

    def feed(self, link: MasterLink) -> None:
        """Send a slave what it lacks, or a heartbeat."""
        stream, now, out = link.stream, self.world.now, link.out
        if link not in self.links or out is None:
            return
        try:
            pause = stream.pause(now)
        except StreamError:
            self.forget(link)
            return
        if not link.started:
            return
        while size := stream.size(self.safe_end):
            data = bytes(self.log[stream.sent : stream.sent + size])
            self.world.write(out, stream.frame(size, self.confirmed, now) + data)
            pause = 1.0
        if pause == 0:
            self.world.write(out, stream.frame(0, self.confirmed, now))

    def forget(self, link: MasterLink) -> None:
        """End a slave's connection."""
        self.links.remove(link)
        if link.replica is not None and self.in_sync is not None:
            self.in_sync.disconnect(link.replica)
        if link.out is not None:
            self.world.write(link.out, None)
        if self.is_up:
            self.step()

    # --- as a slave

    def connected(self, pipe: Pipe) -> None:
        """Begin to follow a master."""
        self.to_master = pipe
        own_id = self.client.broker_id
        assert own_id is not None
        self.master = self.slave_stream(
            own_id,
            self.epochs,
            len(self.log),
            self.world.now,
            confirmed=self.confirmed,
            epoch=self.client.role.epoch,
        )
        self.world.write(pipe, self.master.hello)

    def from_master(self, stream_of: Pipe, data: bytes | None) -> None:
        """Take bytes of the master."""
        stream = self.master
        if stream is None or self.to_master is not stream_of:
            return
        if data is None:
            self.leave()
            return
        try:
            stream.receive(data, self.world.now)
        except StreamError:
            self.leave()
            return
        if stream.plan is not None and stream.plan.epochs is not self.epochs:
            self.cut(stream.plan.point)
            self.epochs = stream.plan.epochs
            self.save_epochs()
            stream.accept(self.world.now)
        self.append(stream)

    def append(self, stream: AutoSwitchSlave) -> None:
        """Append what has arrived."""
        size = len(stream.pending) - len(stream.pending) % RECORD.size
        if size and self.can_write:
            self.log += stream.pending[:size]
            stream.appended(size)
            self.grown()
        self.confirmed = max(self.confirmed, min(stream.confirmed, self.safe_end))
        self.show()
        if self.master is stream:
            self.follow()

    def cut(self, point: int) -> None:
        """Cut the log, on the disk."""
        self.may_crash()
        del self.log[point:]
        self.synced = len(self.log)
        self.world.check_set()

    def reported(self, stream: AutoSwitchSlave) -> int:
        """Return the offset that a report acknowledges."""
        return min(self.safe_end, stream.begin)

    def follow(self) -> None:
        """Report to the master; leave a silent one."""
        assert self.master is not None
        assert self.to_master is not None
        now = self.world.now
        try:
            self.master.pause(now)
        except StreamError:
            self.leave()
            return
        if report := self.master.report(self.reported(self.master), now):
            self.world.write(self.to_master, report)
        if self.master.plan is not None:
            stream = self.master
            self.confirmed = max(self.confirmed, min(stream.confirmed, self.reported(stream)))
            self.show()

    def leave(self) -> None:
        """End the connection to the master."""
        if self.to_master is not None:
            self.world.write(self.to_master, None)
        self.master = self.to_master = None

    def drop_connections(self, *, tell: bool) -> None:
        """End all connections; without ``tell`` the other ends don't learn of it."""
        if not tell:
            self.to_master = None
            for link in self.links:
                link.out = None
        self.leave()
        for link in list(self.links):
            self.forget(link)

    # --- what consumers see

    def visible_end(self) -> int:
        """Return the offset up to which consumers may read."""
        return self.confirmed

    def show(self) -> None:
        """Make confirmed messages visible."""
        end = self.visible_end()
        if end > self.visible:
            self.world.read(self, self.visible, end)
            self.visible = end


class World:
    """The group, and what has been seen of it.

    Attributes:
        now: simulated seconds.
        syncs: whether the brokers run ``SYNC_FLUSH``, and crash by power cuts; otherwise they are
            killed, which loses nothing.
        is_faulty: whether faults still happen.
        steps: what happened, with ``traced``.
    """

    def __init__(self, seed: int, broker: type[Broker] = Broker, *, traced: bool = False) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.now = 0.0
        self.is_faulty = True
        self.syncs = self.random.random() < 0.5
        self.min_in_sync = self.random.choice((1, 2, 2))
        self.crash_rate = self.random.choice((0.0, 0.05, 0.3))
        self.loss_rate = self.random.choice((0.0, 0.05, 0.2))
        self.faulty_seconds = self.random.choice(FAULTY_SECONDS)
        self.alter_loss_rate = self.random.choice((self.loss_rate, self.loss_rate, 0.7))
        self.stale_rate = self.random.choice((0.0, 0.3, 0.7))
        self.send_pause = self.random.choice((0.3, 1.0, 2.0))
        self.fault_pause = self.random.choice((2.0, 4.0, 8.0))
        self.steps: list[str] | None = [] if traced else None
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0
        self._ids = 0
        self._cuts: dict[tuple[int, int], float] = {}
        self._pipe_count = 0
        self._records: dict[tuple[int, int], int] = {}
        self._masters: dict[int, int] = {}
        self._confirmed = bytearray()
        self._acknowledged = b""
        self._healed_sends = 0
        self.acknowledged_count = 0
        self.elections = 0
        self.controller = Controller()
        self.brokers = [broker(self, number) for number in range(1, BROKERS + 1)]

    # --- the clock

    def run(self) -> None:
        """Run the seed to its end: faults, then healing.

        Raises:
            Violation: something that must hold doesn't.
        """
        for broker in self.brokers:
            self.after(self.random.random(), self.begin, broker)
        self.after(SCAN_SECONDS, self.scan)
        self.after(1.0, self.client_sends)
        self.after(5.0 + self.random.random() * self.fault_pause, self.fault)
        self.after(self.faulty_seconds, self.heal)
        events = self._events
        while self.is_faulty or not self.is_whole():
            self.now, _, act, arguments = heappop(events)
            if self.steps is not None:
                self.note(act, arguments)
            with suppress(Crashed):
                act(*arguments)
            if self.now > self.faulty_seconds + HEALING_SECONDS:
                raise Violation(
                    f"liveness: the set is {set(self.controller.members)} after"
                    f" {HEALING_SECONDS:.0f} s, master {self.controller.master}"
                )

    def after(self, seconds: float, act: Callable[..., None], *arguments: Any) -> None:
        """Let something happen later."""
        self._count += 1
        heappush(self._events, (self.now + seconds, self._count, act, arguments))

    def delay(self) -> float:
        """Return how long a disk or the network takes."""
        chance = self.random.random()
        return 0.002 + chance * 0.05 if chance < 0.9 or not self.is_faulty else chance * 2.0

    def note(self, act: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        """Trace an event."""
        assert self.steps is not None
        owner = getattr(act, "__self__", None)
        who = f"broker {owner.number} " if isinstance(owner, Broker) else ""
        shown = ", ".join(
            f"{one.route[0]}->{one.route[1]} {list(one.chunks)}"
            if isinstance(one, Pipe)
            else f"broker {one.number}"
            if isinstance(one, Broker)
            else repr(one)
            for one in arguments
        )
        states = " ".join(broker.state() for broker in self.brokers)
        group = self.controller
        self.steps.append(
            f"{self.now:8.3f} {states} set {set(group.members)}:{group.members_epoch}"
            f" e{group.epoch} {who}{act.__name__}({shown})"
        )

    # --- the network

    def is_cut(self, origin: int, target: int) -> bool:
        """Return whether nothing gets from one to the other; 0 is the controller."""
        return self._cuts.get((origin, target), 0.0) > self.now

    def write(self, pipe: Pipe, data: bytes | None) -> None:
        """Send bytes, or the end of a connection."""
        pipe.chunks.append(data)
        if not pipe.is_moving:
            pipe.is_moving = True
            self.after(self.delay(), self.move, pipe)

    def move(self, pipe: Pipe) -> None:
        """Deliver what is on its way, unless the way is cut: then try again, as TCP does."""
        target = self.brokers[pipe.route[1] - 1] if pipe.route[1] != STRANGER else None
        if self.is_cut(*pipe.route):
            self.after(0.5, self.move, pipe)
            return
        if target is not None and target.stopped_until > self.now:
            self.after(target.stopped_until - self.now, self.move, pipe)
            return
        pipe.is_moving = False
        chunks, pipe.chunks = pipe.chunks, deque()
        ended = None in chunks
        data = b"".join([chunk for chunk in chunks if chunk is not None])
        if data and self.random.random() < 0.1:
            at = self.random.randrange(len(data))
            pipe.receive(data[:at])
            data = data[at:]
        if data:
            pipe.receive(data)
        if ended:
            pipe.receive(None)

    def connect(self, slave: Broker, address: str) -> None:
        """Connect a slave to the broker with an address, or to one that was master before."""
        target = next(broker for broker in self.brokers if broker.address == address)
        if self.is_faulty and self.random.random() < self.stale_rate:
            target = self.random.choice(self.brokers)
        if (
            not target.is_up
            or target is slave
            or self.is_cut(slave.number, target.number)
            or self.is_cut(target.number, slave.number)
        ):
            return
        life, own_life = target.life, slave.life
        link = MasterLink(None)  # type: ignore[arg-type]  # accept() sets it
        if not target.accept(link):
            return

        def to_master(data: bytes | None) -> None:
            if target.is_up and target.life == life:
                target.from_slave(link, data)

        def to_slave(data: bytes | None) -> None:
            if slave.is_up and slave.life == own_life:
                slave.from_master(there, data)

        there = Pipe((slave.number, target.number), to_master)
        link.out = Pipe((target.number, slave.number), to_slave)
        slave.connected(there)

    def stranger(self) -> None:
        """Let somebody connect to a master who acknowledges what he does not have."""
        for broker in self.brokers:
            link = MasterLink(None)  # type: ignore[arg-type]  # accept() sets it
            if broker.is_up and broker.accept(link):
                link.out = Pipe((broker.number, STRANGER), lambda _: None)
                end = self.random.choice((len(broker.log), broker.safe_end, 1 << 40))
                broker.from_slave(link, SLAVE_HELLO.pack(1, 0, 0, STRANGER))
                broker.from_slave(link, REPORT.pack(TRANSFER, min(end, len(broker.log))))
                if link in broker.links:
                    self.after(2.0, self.lie, broker, broker.life, link)

    def lie(self, broker: Broker, life: int, link: MasterLink) -> None:
        """Let the stranger acknowledge all that was sent to him, until he leaves."""
        if broker.is_up and broker.life == life and link in broker.links:
            is_tired = self.random.random() < 0.2 or not self.is_faulty
            broker.from_slave(link, None if is_tired else REPORT.pack(TRANSFER, link.stream.sent))
            if not is_tired:
                self.after(0.5, self.lie, broker, life, link)

    # --- the controller

    def heartbeat(self, broker: Broker, effect: SendHeartbeat) -> None:
        """Bring a heartbeat to the controller, or lose it."""
        if not self.is_cut(broker.number, 0) and not self.is_lost():
            self.controller.heartbeat(effect.header, self.now)

    def is_lost(self, code: int = 0) -> bool:
        """Return whether a message is lost, the answer to a request with ``code``."""
        changes_set = code == RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET
        rate = self.alter_loss_rate if changes_set else self.loss_rate
        return self.is_faulty and self.random.random() < rate

    def ask(self, broker: Broker, ask: AskController) -> None:
        """Bring a request to the controller: late, when its sender has given up, or never."""
        if not self.is_lost():
            is_late = self.is_faulty and self.random.random() < self.loss_rate
            delay = self.random.uniform(1.0, 20.0) if is_late else self.delay()
            self.after(delay, self.handle, broker, broker.life, broker.asked_at, ask)

    def handle(self, broker: Broker, life: int, asked_at: float, ask: AskController) -> None:
        """Let the controller handle a request."""
        if self.is_cut(broker.number, 0):
            return
        epoch = self.controller.epoch
        answer = self.controller.handle(ask.code, ask.header, ask.body)  # type: ignore[arg-type]
        self.changed(epoch)
        if not self.is_cut(0, broker.number) and not self.is_lost(ask.code):
            self.after(self.delay(), self.bring, broker, life, asked_at, answer)

    def bring(self, broker: Broker, life: int, asked_at: float, answer: Answer) -> None:
        """Bring an answer to a broker."""
        if broker.is_up and not self.is_cut(0, broker.number):
            if broker.stopped_until > self.now:
                wait = broker.stopped_until - self.now
                self.after(wait, self.bring, broker, life, asked_at, answer)
            else:
                broker.answer(life, asked_at, answer)

    def connection_lost(self, number: int) -> None:
        """Let the controller see that a broker's process is gone."""
        epoch = self.controller.epoch
        self.controller.closed(self.broker_id(number))
        self.changed(epoch)

    def broker_id(self, number: int) -> int:
        """Return the id that a broker has; -1 without one."""
        broker = self.brokers[number - 1]
        return (broker.client.broker_id if broker.life else None) or -1

    def scan(self) -> None:
        """Let the controller look for dead brokers."""
        epoch = self.controller.epoch
        self.controller.scan(self.now)
        self.changed(epoch)
        self.after(SCAN_SECONDS, self.scan)

    def changed(self, epoch: int) -> None:
        """Send notices, some of them twice, late or never, and look at the set."""
        self.elections += self.controller.epoch - epoch
        notices, self.controller.notices = self.controller.notices, []
        for broker in self.brokers:
            if broker.life and (broker.client.broker_id in notices) and not self.is_lost():
                self.after(self.delay(), self.notify, broker)
        self.check_set()

    def notify(self, broker: Broker) -> None:
        """Bring a notice to a broker."""
        if broker.is_up and not self.is_cut(0, broker.number):
            broker.client.notified()
            if broker.stopped_until <= self.now:
                broker.step()

    # --- what happens

    def begin(self, broker: Broker) -> None:
        """Start a broker, and its clock."""
        if not broker.is_up:
            life = broker.life + 1
            try:
                broker.start()
            finally:
                self.after(1.0, self.beat, broker, life)

    def beat(self, broker: Broker, life: int) -> None:
        """Let a broker do each second what is due."""
        if broker.is_up and broker.life == life:
            self.after(max(0.0, broker.stopped_until - self.now) + 1.0, self.beat, broker, life)
            if broker.stopped_until <= self.now:
                broker.tick()

    def client_sends(self) -> None:
        """Let a client send to whoever is master."""
        for broker in self.brokers:
            if broker.is_up and broker.stopped_until <= self.now and broker.send():
                self._healed_sends += not self.is_faulty
        self.after(self.send_pause * self.random.uniform(0.1, 2.0), self.client_sends)

    def crash(self, broker: Broker, *, power: bool) -> None:
        """Crash a broker, and start it again later."""
        if broker.is_up:
            broker.crash(power=power)
            pause = self.random.choice((0.1, 1.0, 5.0, 15.0))
            self.after(pause * self.random.uniform(0.5, 1.5), self.begin, broker)

    def fault(self) -> None:
        """Let something go wrong."""
        if not self.is_faulty:
            return
        broker = self.random.choice(self.brokers)
        other = self.random.choice([0, *(b.number for b in self.brokers if b is not broker)])
        until = self.now + self.random.choice((1.0, 4.0, 12.0, 25.0))
        match self.random.randrange(10):
            case 0 | 1:
                self.crash(broker, power=self.syncs and self.random.random() < 0.7)
            case 2:
                self._cuts[broker.number, other] = until
            case 3:
                self._cuts[other, broker.number] = until
            case 4:
                for number in range(BROKERS + 1):
                    self._cuts[broker.number, number] = until
                    self._cuts[number, broker.number] = until
            case 5:
                broker.stopped_until = until
            case 6:
                broker.can_write = False
                self.after(until - self.now, self.repair, broker)
            case 7:
                self.controller.restart()
            case 8:
                self.stranger()
            case 9:
                epoch = self.controller.epoch
                self.controller.elect(self.broker_id(broker.number), designated=True)
                self.changed(epoch)
        self.after(self.random.uniform(0.1, 2.0) * self.fault_pause, self.fault)

    def repair(self, broker: Broker) -> None:
        """Let a disk work again."""
        broker.can_write = True
        if broker.is_up:
            if broker.master is not None:
                broker.append(broker.master)
            broker.is_syncing = False
            broker.grown()

    def heal(self) -> None:
        """End all faults."""
        self.is_faulty = False
        self._cuts.clear()
        for broker in self.brokers:
            broker.stopped_until = 0.0
            if not broker.can_write:
                self.repair(broker)
            if not broker.is_up:
                self.after(0.0, self.begin, broker)

    def is_whole(self) -> bool:
        """Return whether the group has healed, and has acknowledged a send since."""
        return (
            len(self.controller.members) == BROKERS
            and self._healed_sends > 0
            and all(broker.is_up and not broker.waiting for broker in self.brokers)
        )

    # --- what must hold

    def new_id(self) -> int:
        """Return the id of a new message."""
        self._ids += 1
        return self._ids

    def note_master(self, epoch: int, broker: Broker) -> None:
        """I3: there is one master in an epoch."""
        if self._masters.setdefault(epoch, broker.number) != broker.number:
            raise Violation(f"I3: two masters in epoch {epoch}")

    def acknowledge(self, broker: Broker, end: int) -> None:
        """Count a send as acknowledged, with everything before it."""
        self.acknowledged_count += 1
        known = self._acknowledged
        if broker.log[: min(end, len(known))] != known[:end]:
            raise Violation(f"I2: broker {broker.number} acknowledges {end}, and has other bytes")
        if end > len(known):
            self._acknowledged = bytes(broker.log[:end])
        self.check_set()

    def check_set(self) -> None:
        """I2: every member of the set has every acknowledged message."""
        for member in self.controller.members:
            for broker in self.brokers:
                if broker.life and broker.client.broker_id == member:
                    log = broker.log[: broker.synced] if self.syncs else broker.log
                    if not log.startswith(self._acknowledged):
                        raise Violation(
                            f"I2: broker {broker.number} is in the set, has {len(log)} safe bytes"
                            f" and lacks some of {len(self._acknowledged)} acknowledged ones"
                        )

    def read(self, broker: Broker, start: int, end: int) -> None:
        """I1, I4, I5: what consumers see at a broker is confirmed, and the same everywhere."""
        if end > broker.confirmed or end > len(broker.log):
            raise Violation(
                f"I4: broker {broker.number} shows {end}, and {broker.confirmed} is confirmed"
            )
        seen = broker.log[start:end]
        known = self._confirmed
        overlap = min(len(known), end)
        if known[start:overlap] != seen[: max(0, overlap - start)] or (
            end > len(known) and broker.log[: len(known)] != known
        ):
            raise Violation(f"I1: broker {broker.number} has confirmed other bytes before {end}")
        if end > len(known):
            known += broker.log[len(known) : end]
        for queue, offset, message in RECORD.iter_unpack(seen):
            if self._records.setdefault((queue, offset), message) != message:
                raise Violation(f"I5: queue {queue} has two messages at offset {offset}")


def run(seed: int, broker: type[Broker] = Broker) -> World:
    """Run a seed; a failure has its steps.

    Raises:
        Violation: something that must hold doesn't.
    """
    world = World(seed, broker)
    try:
        world.run()
    except Exception:
        traced = World(seed, broker, traced=True)
        try:
            traced.run()
        except Exception as error:
            steps = "\n".join(traced.steps or ())
            raise Violation(f"seed {seed}: {error!r}\n{steps}") from error
        raise
    return world

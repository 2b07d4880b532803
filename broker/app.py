"""The broker: connects the store, the saved tables, the processors and the servers.

``start`` listens first: a port in use is detected before the store is opened, and the port is known
if the system chooses it. Then it opens the store in a thread, reads the tables, serves requests and
registers with the name servers. Until it serves, requests are answered with SYSTEM_BUSY.

``stop`` does the reverse: it unregisters, answers the parked pulls, finishes the requests in
progress, writes the tables and closes the store. No acknowledged message is lost.

When a switch has saved another role, the broker does both, in the same process and on its port,
without unregistering.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, Self

import structlog

from broker import fast_path
from broker.config import BrokerConfig
from broker.delivery.deliverer import Delays
from broker.delivery.long_poll import TICK_SECONDS
from broker.delivery.timers import Timers
from broker.errors import StartError
from broker.group_monitor import STEP_SECONDS
from broker.groups.offsets import SEPARATOR
from broker.groups.queue_locks import RESTORED_LIVE_MS
from broker.processors.acl import AclProcessor
from broker.processors.permissions import permissions
from broker.processors.switch import RoleSwitch
from broker.processors.table import Processors, RequestDispatcher
from broker.registration import Announcement, BrokerRegistration
from broker.replication.master import ReplicationServer, check_port
from broker.replication.membership import GroupMembership
from broker.replication.slave import LogReplica, Master
from broker.sampler import SAMPLE_SECONDS
from broker.saved_tables import CONFIG_DIRECTORY, SavedRole, SavedTables, load_role
from broker.state import BrokerState
from broker.store.engine import MessageStore
from broker.store.limits import MAX_OPEN_MAPS, open_maps
from broker.store.os_files import Files
from broker.store_start import make_store, numeric, open_store
from broker.topics.spread import ROUTE_TIMEOUT_SECONDS, TopicSpread
from broker.traffic.counts import BrokerCounters
from remoting.access.accounts import AclError
from remoting.access.audit import AuditLog
from remoting.access.file import AclFile
from remoting.access.guard import Guard, Permissions
from remoting.access.patterns import parse as parse_pattern
from remoting.addresses import address_text, parse_address
from remoting.connection import Connection
from remoting.counters import Counters
from remoting.endpoint import Endpoint, Handler
from remoting.errors import BindFailed
from remoting.limits import ServerLimits
from remoting.pool import ConnectionPool
from remoting.protocol.bodies.topic import DataVersion
from remoting.protocol.codes import ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.message.record import host_bytes
from remoting.protocol.names import SCHEDULE_TOPIC, TIMER_TOPIC
from remoting.runtime import DOCS
from remoting.runtime.clock import Clock, SystemClock, monotonic_ms
from remoting.runtime.process_limits import ConnectionRoom
from remoting.runtime.settings import ConfigError
from remoting.runtime.tasks import Supervisor
from remoting.security.credentials import Signer
from remoting.security.server_tls import ServerTls
from remoting.security.tls import Tls, client_tls
from remoting.server import Server

if TYPE_CHECKING:
    from broker.fast_path.read_pass import ReadPass

_log = structlog.get_logger("broker")

VIP_STEP: Final = 2
"""The VIP port is the listen port minus this; clients with vipChannelEnabled send to it."""

SCAN_SECONDS: Final = 10.0
"""How often connections without heartbeats are closed (cf. ClientHousekeepingService)."""

FILTERS_SECONDS: Final = 10.0
"""How often changed filters of consumer groups are written (cf. BrokerController)."""

OnServed = Callable[[int, int, float], None]
Measures = tuple[Callable[[Handler], Handler], OnServed]
"""The arguments of ``Broker.measure``."""


class Broker:
    """A broker in this process's event loop.

    Args:
        config: the settings.
        files: the file system; tests replace it.
        clock: the time.
        room: limits the connections of the process, shared with other servers in it; see
            ``connection_room``.

    Attributes:
        config: the settings; after the start with the broker's name.
        counters: counters of the connections.
        store: the message store; exists after the start.
        state: the tables; exists after the start.
        processors: the request handlers; exists after the start.
        guard: checks requests; None while ``aclEnable`` is false.
        audit: records changes and denials; None while there is no audit log.
        tls: the certificate for connections with TLS; None for no TLS.
    """

    def __init__(
        self,
        config: BrokerConfig,
        *,
        files: Files | None = None,
        clock: Clock | None = None,
        room: ConnectionRoom | None = None,
    ) -> None:
        config.check()
        self.config = self._settings = config
        self.counters = Counters()
        self.store: MessageStore
        self.state: BrokerState
        self._files = files or Files()
        self._room = room or connection_room()
        self._clock = clock or SystemClock()
        self._host = config.advertised_host
        self.tls = ServerTls.of(config, self._clock)
        self._server = self._make_server(config.listen_port)
        self._vip: Server | None = None
        self._tables: SavedTables
        self.processors: Processors
        self.guard: Guard | None = None
        self.audit: AuditLog | None = None
        self._read_pass: ReadPass | None = None
        self._delays: Delays
        self._timers: Timers | None = None
        self._registration: BrokerRegistration | None = None
        self._slaves: ReplicationServer | None = None
        self._group: GroupMembership | None = None
        self._controllers: ConnectionPool | None = None
        self._switch: RoleSwitch
        self._supervisor = self._make_supervisor()
        self._roles = Supervisor("role of the broker")
        self._woken = asyncio.Event()  # by a saved role, or a task that failed
        self._measures: Measures | None = None
        self._store_open = False
        self._serving = False

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    def port(self) -> int:
        """The port that the broker listens on."""
        return self._server.port

    @property
    def address(self) -> str:
        """The address that clients connect to: ``host:port``."""
        return address_text((self._host, self._advertised_port))

    @property
    def _advertised_port(self) -> int:
        return self.config.advertised_port or self.port

    @property
    def failed(self) -> asyncio.Future[None]:
        """A future that fails when one of the broker's tasks fails."""
        return self._roles.failed

    @property
    def serving(self) -> bool:
        """Whether the broker serves requests; not between two roles."""
        return self._serving

    @property
    def registration(self) -> BrokerRegistration | None:
        """The registration with the name servers; None before the start."""
        return self._registration

    def measure(self, around: Callable[[Handler], Handler], served: OnServed) -> None:
        """Measure requests from now on, for metrics. The broker must be started.

        Args:
            around: wraps the handler of requests on the slow path.
            served: called for requests on the fast path; see ``ReadPass.on_served``.
        """
        self._measures = around, served
        if self._read_pass is not None:
            self._read_pass.on_served = served
        for server in (self._server, self._vip):
            if server is not None and server.endpoint.handler is not None:
                server.endpoint.handler = around(server.endpoint.handler)

    @property
    def endpoints(self) -> list[Endpoint]:
        """The endpoints of its ports."""
        return [server.endpoint for server in (self._server, self._vip) if server is not None]

    async def catch_up(self, milliseconds: int) -> None:
        """Do what is due, after the wall clock was set forward by a test.

        Messages are delivered before it returns; transactions are checked, locks of queues expire,
        and old files are deleted soon. The monotonic clock, by which peers are alive, goes on as
        before.

        Raises:
            OSError: the store can't be synced.
        """
        self.state.locks.age(milliseconds)
        await self._delays.catch_up()
        if self._timers is not None:
            await self._timers.catch_up()
        await self.state.transactions.catch_up(self.processors.transactions.ask)
        if len(self.store.log.files) > 1:
            # Only what is synced is deleted; it would have been within that time.
            self.store.flush()
            self.store.retention.ask()

    # start

    async def start(self) -> None:
        """Start the broker and serve requests.

        Raises:
            BindFailed: the port is in use or not permitted.
            StoreError, StartError: the store or a table can't be used.
            ConfigError: the audit log can't be written, or the saved role can't be taken.
            TlsError: the certificate can't be used.
        """
        await self._begin()
        self._roles.spawn(self._change_roles(), "changes")
        if self._group is not None:
            self._roles.spawn(self._group.run(), "controller")

    async def _change_roles(self) -> None:
        """Begin anew in another role whenever one has been saved; raise what a task raises."""
        while True:
            await self._woken.wait()
            self._woken.clear()
            if self._supervisor.failed.done():
                await self._supervisor.failed
            if self._group is not None and self._group.is_settled:
                continue  # it began anew while it was woken
            # Apache's name server unregisters an id, whichever broker has taken it over since.
            await self._end(unregister=False)
            self._server = self._make_server(self.port)
            self._vip = self._read_pass = self._timers = self._slaves = None
            self._supervisor = self._make_supervisor()
            await self._begin()

    async def _begin(self) -> None:
        loop = asyncio.get_running_loop()
        if self.tls is not None:
            await loop.run_in_executor(None, self.tls.open)
        # Listen first: a port in use is detected before a recovery that may take minutes.
        await self._server.start()
        group, role = self._make_group(), None
        if group is not None:
            self.config = group.take_role()
        else:
            self.config, role = await loop.run_in_executor(
                None, load_role, self._settings, self._files
            )
        address = (await numeric(self._host), self._advertised_port)
        self.store = make_store(self.config, address, self._files, self._clock)
        await open_store(self.store, cut=None if group is None else group.cut)
        self._store_open = True
        if group is not None:
            group.opened(self.store)
        # Before the registration, which tells its port.
        await self._open_replication_port()
        await self._load(role)
        path, name = self.config.audit_path, self.config.broker_name
        # Before the guard, which records what it denies.
        self.audit = await AuditLog.open(path, name, self._clock) if path is not None else None
        rights = permissions(self.state)
        self.guard = await self._make_guard(rights) if self.config.acl_enable else None
        self.processors = Processors.of(self.state, guard=self.guard)
        if not self.config.is_slave:
            await self.state.transactions.load()
        self.store.dispatcher.on_arrival = self._arrived
        self.store.dispatcher.watched = self.state.long_polls.queues
        self._serve(rights)
        # From here on requests are served. Register last, when everything works.
        self._serving = True
        await self._start_vip()
        if self._measures is not None:
            self.measure(*self._measures)
        self._tables.save_all()
        self._spawn_tasks()
        assert self._registration is not None
        # A master that was handing over is registered when it is known to be the master still.
        if group.serve() if group is not None else not self._switch.resume():
            await self._registration.start()
        if (replica := self.state.replica) is not None:
            tables = self._switch.tables
            self._supervisor.spawn(replica.run(tables.soon), "replication")
            # A master whose log differs, e.g. because it lost its disk, has other tables, too: they
            # would delete the topics of what may be the last copy.
            self._supervisor.spawn(
                tables.run(lambda: None if replica.state.differs else self._find_master()),
                "copy tables",
            )
        if self.config.ignored_keys:
            _log.info("settings without effect here", keys=" ".join(self.config.ignored_keys))
        if self.config.open_to_network:
            _log.warning(
                "everybody who reaches this address may read, write and delete: set "
                f"aclEnable=true, or listen on 127.0.0.1; see {DOCS}security/index.md",
                address=self.address,
            )
        _log.info("broker ready", name=self.config.broker_name, address=self.address)

    def _serve(self, rights: Permissions) -> None:
        """Let requests reach the processors."""
        assert self._registration is not None
        self._switch = RoleSwitch(
            settings=self._settings,
            state=self.state,
            saved=self._tables,
            registration=self._registration,
            spawn=self._supervisor.spawn,
            on_change=self._woken.set,
        )
        table = self.processors.table() | self._switch.table()
        if self.guard is not None:
            table |= AclProcessor(self.config, self.guard.file, self.address).table()
        if self._group is not None:
            table |= self._group.table()
        handler: Handler = self._switch.gate.wrap(RequestDispatcher(self.state, table))
        if self._group is not None:
            handler = self._group.gate.wrap(handler)
        if self.audit is not None:
            # Audit exactly the codes that need an administrator.
            administrative = table.keys() - rights.needs.keys()
            handler = self.audit.wrap(handler, administrative, self.guard)
        self._server.endpoint.handler = self.guard.wrap(handler) if self.guard else handler
        self._open_fast_path()

    def _make_group(self) -> GroupMembership | None:
        """Return the broker's membership of a group, which outlasts its roles."""
        if self._settings.enable_controller_mode and self._group is None:
            self._controllers = ConnectionPool(name="controller", max_backoff=1.0)
            self._group = GroupMembership(
                self._settings, self.address, self._clock, self._controllers, self._woken.set
            )
        return self._group

    async def _make_guard(self, rights: Permissions) -> Guard:
        file = AclFile(self.config.accounts_file)
        try:
            await asyncio.get_running_loop().run_in_executor(None, file.open)
        except AclError as error:
            raise StartError(
                f"aclEnable is true, and the accounts can't be used: {error}"
            ) from None
        return Guard(file, rights, self._clock, self.audit.denied if self.audit else None)

    async def _load(self, role: SavedRole | None) -> None:
        """Read the saved tables and create the state from them; ``role`` is the one in force."""
        directory = self.store.paths.root / CONFIG_DIRECTORY
        now_ms = self._clock.now_ms()
        self._tables = tables = await asyncio.get_running_loop().run_in_executor(
            None,
            SavedTables,
            *(self.config, directory, self._files, self._clock, self._register_topics),
        )
        # ``tables.config`` includes the broker's name, which may come from the store. The
        # announcement needs it.
        self.config = config = tables.config
        if tables.role != role:
            tables.save_role(role)
        self._close_locks(tables, role)
        if not config.is_slave:
            self._fit_offsets(tables)
        self._report(tables)
        registration = self._registration = self._make_registration(tables)
        spread = None
        if config.namesrv_addr:
            ask = partial(registration.pool.request, timeout=ROUTE_TIMEOUT_SECONDS)
            spread = TopicSpread(config.namesrv_addr, ask, self._clock)
        counters = BrokerCounters()
        self._delays = Delays(
            config.delay_levels_ms, self.store, self._clock, counters, config.limits
        )
        # Before ``store.dispatcher.on_arrival`` is set, because ``_arrived`` needs the schedule.
        self._delays.open(directory, self._files, tables.delay_offsets, tables.save_delay_offsets)
        if config.timer_wheel_enable and not config.is_slave:
            self._timers = Timers(
                self.store,
                self._clock,
                counters,
                window_slots=config.timer_roll_window_slot,
                log_file_bytes=config.mapped_file_size_timer_log,
                limits=config.limits,
            )
            self._timers.open(directory, self._files)
        self.state = BrokerState(
            config=config,
            host=self._host,
            packed_host=host_bytes(*self.store.config.store_host),
            store=self.store,
            clock=self._clock,
            random=random.Random(),  # noqa: S311 - spreads messages over queues
            changes=tables,
            topics=tables.topics,
            groups=tables.groups,
            offsets=tables.offsets,
            locks=tables.locks,
            filters=tables.filters,
            spread=spread,
            counters=counters,
            delay_offsets=self._delays.offsets,
            request_modes=tables.request_modes,
            timers=None if self._timers is None else self._timers.wheel,
            config_version=DataVersion(timestamp=now_ms),
            started_ms=now_ms,
            offsets_lost=tables.lost_offsets and self.store.log.end > 0,
            named_before=tables.named_before,
            why_not_compiled=fast_path.WHY,
            tls=self.tls,
            room=self._room,
            slaves=self._slaves,
            taken_by=lambda: registration.taken_by,
            connections=self._open_connections,
            replica=self._make_replica(registration),
            group=self._group,
        )
        # The store was opened before the settings saved in it were read.
        self.store.retention.configure(config.retention)

    def _open_connections(self) -> list[Connection]:
        servers = (self._server, self._vip)
        return [one for server in servers if server for one in server.endpoint.connections]

    def _close_locks(self, tables: SavedTables, role: SavedRole | None) -> None:
        """Give no queue locks while the old master may have given some that are unknown here."""
        if self._group is not None and not self.config.is_slave and self.store.log.end:
            tables.locks.close(monotonic_ms(self._clock) + RESTORED_LIVE_MS)
        elif role is not None and role.forced_ms:
            since_ms = self._clock.now_ms() - role.forced_ms
            rest_ms = min(RESTORED_LIVE_MS, RESTORED_LIVE_MS - since_ms)
            tables.locks.close(monotonic_ms(self._clock) + rest_ms)

    def _make_registration(self, tables: SavedTables) -> BrokerRegistration:
        config = self.config
        try:
            signer = None if config.credentials is None else Signer(config.credentials)
        except ConfigError as error:
            raise StartError(f"pocketmqCredentials: {error}") from None
        tls = client_tls(
            config.use_tls
            and Tls(
                ca=config.tls_client_trust,
                cert=config.tls_client_cert,
                key=config.tls_client_key,
                key_password=config.tls_client_key_password,
                check_hostname=config.check_name_server_host,
            )
        )
        return BrokerRegistration(
            config.namesrv_addr,
            Announcement.of(
                config,
                self.port,
                self._slaves.port if self._slaves else None,
                None if self._group is None else self._group.role.epoch,
            ),
            tables.topic_wrapper,
            on_order_topics=self._set_order_topics,
            clock=self._clock,
            pool=partial(ConnectionPool, signer=signer, tls=tls),
        )

    def _fit_offsets(self, tables: SavedTables) -> None:
        """Let no group skip the next messages of a log that has lost its end.

        A power failure, or the loss of the master, may take messages that were consumed already.
        """
        ends = {queue.key: queue.next_offset for queue in self.store.queues.all()}
        lowered = 0
        for key, offsets in tables.offsets.table.items():
            topic, _, group = key.partition(SEPARATOR)
            for queue_id, offset in offsets.items():
                end = ends.get((topic, queue_id), 0)
                if offset > end and topic in tables.topics.table:
                    tables.offsets.commit(group, topic, queue_id, end)
                    lowered += 1
        if lowered:
            _log.warning("groups have consumed messages that the log has lost", queues=lowered)

    def _report(self, tables: SavedTables) -> None:
        """Log problems of the saved tables."""
        if tables.lost_offsets and self.store.log.end > 0:
            _log.error(
                "the store has messages but no consumer offsets: config/consumerOffset.json is "
                "missing, so every group starts over by the rule for new groups; if that is not "
                "intended, stop this broker and put the file back",
                store=str(self.config.store_path_root_dir),
            )
        if tables.named_before is not None:
            _log.warning(
                "the store was written under another broker name: clients take its queues for new "
                "ones, so Spark jobs, broadcasting consumers and queue locks begin anew; if that "
                "is not intended, stop this broker and start it with --name and the old name",
                name=self.config.broker_name,
                named_before=tables.named_before,
                store=str(self.config.store_path_root_dir),
            )

    def _make_supervisor(self) -> Supervisor:
        return Supervisor("broker", on_failure=lambda *_: self._woken.set())

    def _make_server(self, port: int) -> Server:
        server = Server(
            _not_ready,
            host=self.config.bind_host,
            port=port,
            limits=ServerLimits(
                room=self._room,
                max_connections=self.config.max_connections,
                max_connections_per_address=self.config.max_connections_per_address,
                max_in_progress_requests=self.config.max_requests_in_flight,
                idle_timeout=self.config.server_channel_max_idle_time_s,
            ),
            on_close=self._connection_closed,
            counters=self.counters,
            tls=self.tls,
            clock=self._clock,
            name="broker",
        )
        # A header in msgpack has no names of fields, so its signature can't be checked.
        server.endpoint.accept_msgpack = not self.config.acl_enable
        return server

    def _open_fast_path(self) -> None:
        """Use the fast path for new connections; existing ones stay on the slow path."""
        if fast_path.WHY:
            _log.warning("the compiled core is not used: the broker is slower", why=fast_path.WHY)
            return
        # Imported here because the compiled module exists only if ``WHY`` is empty.
        from broker.fast_path.host import FastPathFeed, Host  # noqa: PLC0415
        from broker.fast_path.read_pass import ReadPass  # noqa: PLC0415

        endpoint = self._server.endpoint
        self._read_pass = ReadPass(
            Host(self.state, self.processors, self.guard),
            max_frame_bytes=endpoint.limits.max_frame_bytes,
        )
        endpoint.feed_factory = partial(FastPathFeed, self._read_pass)

    async def _start_vip(self) -> None:
        if self.config.listen_port <= VIP_STEP:
            return
        vip = self._vip = self._make_server(self.config.listen_port - VIP_STEP)
        vip.endpoint.handler = self._server.endpoint.handler
        vip.endpoint.feed_factory = self._server.endpoint.feed_factory
        try:
            await vip.start()
        except BindFailed as error:
            _log.warning("clients with vipChannelEnabled can't send here", reason=str(error))
            self._vip = None
            await vip.stop()

    def _spawn_tasks(self) -> None:
        spawn = self._supervisor.spawn
        offsets_seconds = self.config.flush_consumer_offset_interval_ms / 1000
        if not self.config.is_slave:
            # They store messages on their own: a broker that only copies another runs none.
            save_seconds = self.config.flush_delay_offset_interval_ms / 1000
            spawn(self._delays.run(), "delayed messages")
            spawn(_each(save_seconds, self._delays.save), "save delays")
            if self._timers is not None:
                spawn(self._timers.run(), "timers")
                spawn(self._timers.wheel.run_saves(), "save timers")
            spawn(self.state.transactions.run(self.processors.transactions.ask), "transactions")

        def save_filters() -> None:
            keep_ms = self.state.config.filter_data_clean_time_span_ms
            self._tables.save_filters(self._clock.now_ms(), keep_ms)

        # The first rates are known after one interval.
        self.processors.sampler.sample_rates()
        for name, seconds, action in (
            ("long polls", TICK_SECONDS, self.processors.pull.expire),
            ("save tables", offsets_seconds, self._tables.save_changes),
            ("scan clients", SCAN_SECONDS, self.processors.clients.scan),
            ("sample rates", SAMPLE_SECONDS, self.processors.sampler.sample_rates),
            ("check groups", STEP_SECONDS, self.processors.monitor.step),
            ("save filters", FILTERS_SECONDS, save_filters),
        ):
            spawn(_each(seconds, action), name)
        spawn(self.processors.sampler.run(), "sample traffic")
        if self.guard is not None:
            spawn(self.guard.file.watch(self.processors.pull.rights_changed), "accounts")
        if self.tls is not None:
            spawn(self.tls.watch(), "certificate")
        if self.state.spread is not None:
            spawn(self.state.spread.run(), "routes of topics")
        assert self._registration is not None
        spawn(self._registration.join(), "registration")

    async def _open_replication_port(self) -> None:
        host, port = self.config.bind_host, self.config.ha_listen_port
        if port is not None and self.config.is_slave and self._registration is None:
            # Found at the start, not when it has become the master. Between two roles another
            # connection may have the port for a moment: no reason for a slave to end.
            await check_port(host, port)
        if port is None or self.config.is_slave:
            return
        allowed = self.config.slave_addresses
        # With accounts and no addresses, a slave needs a token.
        anywhere = "*" if allowed is None and not self.config.acl_enable else allowed
        self._slaves = ReplicationServer(
            self.store,
            self._clock,
            host=host,
            port=port,
            is_allowed=(lambda _: False) if anywhere is None else parse_pattern(anywhere),
            rate=lambda: (self.state if self._serving else self).config.slave_rate,
            group=self._group,
        )
        await self._slaves.start()

    def _make_replica(self, registration: BrokerRegistration) -> LogReplica | None:
        if not self.config.is_slave:
            return None
        ask = registration.pool.request
        return LogReplica(self.store, self._clock, ask, self._ask_for_master, self._group)

    async def _ask_for_master(self) -> Master | None:
        """Register one topic: the answer has the master's address, which may be new."""
        assert self._registration is not None
        await self._registration.changed([self.config.broker_name])
        return self._find_master()

    def _find_master(self) -> Master | None:
        """Return the addresses of a slave's master: as configured, or as name servers say."""
        assert self._registration is not None
        answer, stream = self._registration.master, self.config.ha_master_address
        if self._group is not None:
            role = self._group.role
            if role.master_id is None:
                return None
            if answer.master_addr == role.master_address and answer.ha_server_addr:
                return Master(role.master_address, answer.ha_server_addr)
            # Not registered yet: the port after the other one is RocketMQ's.
            host, port = parse_address(role.master_address)
            return Master(role.master_address, address_text((host, port + 1)))
        if stream is None:
            stream = answer.ha_server_addr
        if not stream:
            return None
        if answer.master_addr:
            return Master(answer.master_addr, stream)
        host, port = parse_address(stream)
        return Master(address_text((host, port - 1)), stream)

    # events while serving

    def _arrived(self, topic: str, queue_id: int, max_offset: int, tags_code: int) -> None:
        if topic == SCHEDULE_TOPIC:
            self._delays.arrived(queue_id, tags_code)
        elif topic == TIMER_TOPIC and self._timers is not None:
            self._timers.arrived()
        woken = self.state.long_polls.arrived(topic, queue_id, max_offset, tags_code)
        if woken:
            # Wake them after all messages of this read are stored: a pull returns up to as many
            # as it asks for.
            self.processors.pull.wake_soon(woken)

    def _connection_closed(self, connection: Connection) -> None:
        if self._serving and not self.state.stopping:
            self.processors.clients.closed(connection)

    def _register_topics(
        self, names: Sequence[str] | None, paced: bool
    ) -> asyncio.Future[list[bool]]:
        assert self._registration is not None
        self._registration.permit(self.state.config.broker_permission)
        return self._registration.changed(names, paced=paced)

    def _set_order_topics(self, table: Mapping[str, str]) -> None:
        if self.state.topics.set_order_topics(table, self._clock.now_ms()):
            self._tables.topics_changed(None, paced=True)

    # stop

    async def stop(self) -> None:
        """Stop cleanly, also after a failed start. Calling it again has no effect.

        If it is cancelled, the broker is still open: call it again.
        """
        await self._roles.close()
        await self._end()
        if self._controllers is not None:
            await self._controllers.close()

    async def _end(self, *, unregister: bool = True) -> None:
        if self._registration is not None:
            await self._registration.stop(unregister=unregister)
        if self._group is not None and not self._group.is_settled and self._serving:
            # What is not acknowledged may be cut by the next master.
            if self._slaves is not None:
                await self._slaves.stop()
            self.store.syncer.fail_waiting()
        if self._serving:
            self.state.stopping = True
            self.processors.pull.wake_all()
            self._switch.stop()
        await asyncio.gather(*(server.stop() for server in (self._server, self._vip) if server))
        await self._supervisor.close()
        if self._slaves is not None:
            await self._slaves.stop()
        audit, self.audit = self.audit, None
        if audit is not None:
            await audit.close()
        if self._serving:
            if not self.config.is_slave:
                # Their tasks have ended.
                self._delays.save_all()
                if self._timers is not None:
                    self._timers.wheel.save_all()
            await self._tables.flush()
            # Not before: a stop that is cancelled in between is completed by the next one.
            self._serving = False
        if self._store_open:
            self._store_open = False
            if self._group is not None:
                self._group.ended()
            self.store.close()
            _log.info("broker stopped", name=self.config.broker_name)


def connection_room() -> ConnectionRoom:
    """Return the limit of connections for a process with a broker.

    It reserves the file descriptors that the store may use; see ``open_maps``.
    """
    return ConnectionRoom(partial(open_maps, MAX_OPEN_MAPS))


def _not_ready(command: Command, _: Connection) -> Command:
    return command.reply(
        ResponseCode.SYSTEM_BUSY, "[REJECTREQUEST]the broker is starting, try again in a moment"
    )


async def _each(seconds: float, action: Callable[[], None]) -> None:
    while True:
        await asyncio.sleep(seconds)
        action()

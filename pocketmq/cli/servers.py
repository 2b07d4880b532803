"""``pocketmq standalone``, ``nameserver`` and ``broker``."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, Unpack

import click
from click.core import ParameterSource

from broker.errors import StartError
from broker.store.results import StoreError
from nameserver.state import StateFileError
from pocketmq import logs
from pocketmq.cli import SuggestingGroup
from pocketmq.server.serving import (
    BrokerPart,
    Failed,
    NameServerPart,
    ServerPart,
    ServerRunner,
    standalone_parts,
)
from remoting.access.audit import own_file
from remoting.addresses import parse_address
from remoting.errors import ConnectFailed, RemotingError
from remoting.runtime import process_limits as descriptors
from remoting.runtime.settings import ConfigError
from remoting.security.server_tls import TlsServerSettings
from remoting.security.tls import TlsError

if TYPE_CHECKING:
    from broker.config import BrokerConfig

F = TypeVar("F", bound=Callable[..., Any])

MAX_WORKERS = 64
"""Of ``--workers``: more than there are cores don't increase throughput."""

EXPECTED = (
    ConfigError,
    Failed,
    OSError,
    RemotingError,
    StartError,
    StateFileError,
    StoreError,
    TlsError,
)
"""Errors that are shown without a traceback."""


class ServerOptions(TypedDict):
    """The options common to all server commands; see ``server_options``."""

    host: str | None
    file: Path | None
    assignments: tuple[str, ...]
    metrics_port: int | None
    metrics_host: str
    log_level: str
    as_json: bool
    until_stdin_closes: bool


def server_options(function: F) -> F:
    """Add the options of ``ServerOptions``."""
    options = [
        click.option("--host", help="Where to listen.  [default: 127.0.0.1]"),
        click.option(
            "--config",
            "file",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            help="A configuration file in RocketMQ's format.",
        ),
        click.option(
            "--set",
            "assignments",
            multiple=True,
            metavar="KEY=VALUE",
            help="One of RocketMQ's configuration keys; may be repeated.",
        ),
        click.option(
            "--metrics-port",
            type=click.IntRange(0, 65535),
            help="Serve /metrics for Prometheus, /livez and /readyz here.",
        ),
        click.option(
            "--metrics-host",
            default="127.0.0.1",
            show_default=True,
            help="Where to listen for them; they are not encrypted, and ask for no account.",
        ),
        click.option(
            "--log-level",
            type=click.Choice(["DEBUG", "INFO", "WARNING", "ERROR"], case_sensitive=False),
            default="INFO",
            show_default=True,
        ),
        click.option("--json", "as_json", is_flag=True, help="Ready line and log as JSON."),
        click.option("--until-stdin-closes", is_flag=True, hidden=True),
    ]
    # click lists the options of the outermost decorator first.
    for option in reversed(options):
        function = option(function)
    return function


store_option = click.option(
    "--store",
    type=click.Path(file_okay=False, path_type=Path),
    help="The store's directory.  [default: ~/store]",
)


@click.command(epilog="Example: pocketmq standalone --store ./data --set defaultTopicQueueNums=4")
@click.option("--name", help="The broker's name.  [default: the store's, or broker-a]")
@store_option
@click.option("--nameserver-port", type=click.IntRange(0, 65535), default=9876, show_default=True)
@click.option("--broker-port", type=click.IntRange(0, 65535), help="[default: 10911]")
@click.option(
    "--console-port", type=click.IntRange(0, 65535), help="Serve the web console at this port."
)
@click.option(
    "--console-host", default="127.0.0.1", show_default=True, help="Where the console listens."
)
@click.option("--console-writable", is_flag=True, help="Its pages can send, change and delete.")
@server_options
def standalone(
    name: str | None,
    store: Path | None,
    nameserver_port: int,
    broker_port: int | None,
    console_port: int | None,
    console_host: str,
    *,
    console_writable: bool,
    **options: Unpack[ServerOptions],
) -> None:
    """Run a name server and a broker in one process.

    With --console-port a second process serves the web console.
    """
    settings = _settings(
        options,
        brokerName=name,
        listenPort=broker_port,
        storePathRootDir=store,
        pocketmqBindHost=options["host"],
    )
    from broker.config import BrokerConfig  # noqa: PLC0415 - a name server doesn't load it
    from nameserver.config import NameServerConfig  # noqa: PLC0415 - a broker doesn't load it

    with _errors():
        broker = BrokerConfig.from_sources(options["file"], os.environ, settings)
        if broker.acl_enable and broker.credentials is None:
            raise ConfigError(
                "aclEnable: the name server here lets the broker register with a signature only; "
                "set pocketmqCredentials to a file with the keys of an account that has admin: true"
            )
        kv_file = broker.store_path_root_dir / "namesrv" / "kvConfig.json"
        nameserver = NameServerConfig.from_sources(
            overrides={
                "listenPort": str(nameserver_port),
                "pocketmqBindHost": broker.bind_host,
                "kvConfigPath": str(kv_file),
                "aclEnable": str(broker.acl_enable),
                "pocketmqAclFile": str(broker.accounts_file),
                "pocketmqAuditLog": own_file(broker.audit_log, "nameserver"),
            }
        )
        names = [
            declared.name
            for declared in fields(TlsServerSettings)
            if declared.name.startswith("tls_")
        ]
        nameserver = replace(nameserver, **{name: getattr(broker, name) for name in names})
        if broker.tls_server_mode == "enforcing" and not broker.use_tls:
            raise ConfigError(
                "tls.server.mode=enforcing needs useTLS=true and tls.client.trustCertPath here, "
                "because the broker registers with the name server"
            )
        # The process of a test's broker makes its own parts.
        make = click.get_current_context().obj or standalone_parts
        parts = make(nameserver, broker)
        if console_port is not None:
            from pocketmq.server.console_child import ConsoleChildPart  # noqa: PLC0415 - rarely used

            words = ["--host", console_host, "--port", str(console_port), *_tls_words(broker)]
            words += ["--writable"] if console_writable else []
            asked = next(part for part in parts if isinstance(part, NameServerPart))
            parts = [*parts, ConsoleChildPart(asked, words)]
        _serve(parts, options)


def _tls_words(broker: BrokerConfig) -> list[str]:
    """Return the options with which a command connects as the broker does."""
    if not broker.use_tls:
        return []
    ca = broker.tls_client_trust
    return ["--tls", "--no-tls-check-hostname", *(["--tls-ca", str(ca)] if ca else [])]


@click.command(epilog="Example: pocketmq nameserver --port 9876")
@click.option("--port", type=click.IntRange(0, 65535), help="[default: 9876]")
@server_options
def nameserver(port: int | None, **options: Unpack[ServerOptions]) -> None:
    """Run a name server, where brokers register and clients get routes."""
    settings = _settings(options, listenPort=port, pocketmqBindHost=options["host"])
    from nameserver.config import NameServerConfig  # noqa: PLC0415 - see standalone

    with _errors():
        config = NameServerConfig.from_sources(options["file"], os.environ, settings)
        _serve([NameServerPart(config)], options)


class _BrokerGroup(SuggestingGroup):
    """``broker`` with the commands that are about running brokers, imported when called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return their names."""
        return ["config", "connections", "drain", "pending", "promote", "switch"]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command."""
        # A server doesn't load them.
        from pocketmq.cli import brokers  # noqa: PLC0415

        return getattr(brokers, cmd_name) if cmd_name in self.list_commands(ctx) else None


@click.group(
    cls=_BrokerGroup,
    invoke_without_command=True,
    epilog="Example: pocketmq broker --nameserver 127.0.0.1:9876 --name broker-a --store ./a",
)
@click.option("--nameserver", metavar="HOST:PORT[;…]", help="Where to register.")
@click.option("--name", help="The broker's name.  [default: the store's, or the host's]")
@click.option(
    "--id",
    "broker_id",
    type=int,
    help="The broker id: 0 for a master, more for a slave.  [default: 0]",
)
@click.option("--port", type=click.IntRange(0, 65535), help="[default: 10911]")
@click.option(
    "--advertise",
    metavar="HOST[:PORT]",
    help="Where clients connect to, if that isn't where the broker listens.",
)
@click.option(
    "--workers",
    type=click.IntRange(1, MAX_WORKERS),
    default=1,
    show_default=True,
    help="Broker processes: NAME-0 at the port, NAME-1 ten ports on, ...",
)
@store_option
@server_options
def broker(
    nameserver: str | None,
    name: str | None,
    broker_id: int | None,
    port: int | None,
    advertise: str | None,
    workers: int,
    store: Path | None,
    **options: Unpack[ServerOptions],
) -> None:
    """Run a broker, which stores messages and delivers them.

    With `config` it shows or changes settings of brokers that run.
    """
    context = click.get_current_context()
    if context.invoked_subcommand is not None:
        for parameter in context.params:
            if context.get_parameter_source(parameter) is ParameterSource.COMMANDLINE:
                raise click.UsageError("give the options of `broker config` after its command")
        return
    host, advertised_port = advertise, None
    # An IPv6 address with a port is in brackets.
    if advertise is not None and (advertise.count(":") == 1 or "]:" in advertise):
        try:
            host, advertised_port = parse_address(advertise)
        except ConnectFailed as error:
            raise click.BadParameter(str(error), param_hint="--advertise") from None
    settings = _settings(
        options,
        namesrvAddr=nameserver,
        brokerName=name,
        brokerId=broker_id,
        listenPort=port,
        brokerIP1=host,
        pocketmqAdvertisedPort=advertised_port,
        storePathRootDir=store,
        pocketmqBindHost=options["host"],
    )
    from broker.config import BrokerConfig  # noqa: PLC0415 - see standalone

    with _errors():
        config = BrokerConfig.from_sources(options["file"], os.environ, settings)
        if workers == 1:
            _serve([BrokerPart(config)], options)
        else:
            _serve_workers(config, workers, settings, options)


def _serve_workers(
    config: BrokerConfig, workers: int, settings: Mapping[str, str], options: ServerOptions
) -> None:
    from pocketmq.server.workers import WorkersPart, plans  # noqa: PLC0415 - only for --workers

    words = ["--log-level", options["log_level"], "--metrics-host", options["metrics_host"]]
    if options["host"] is not None:
        words += ["--host", options["host"]]
        settings = {key: value for key, value in settings.items() if key != "pocketmqBindHost"}
    if options["file"] is not None:
        words += ["--config", str(options["file"])]
    if options["as_json"]:
        words.append("--json")
    made = plans(
        config, workers, settings=settings, options=words, metrics_port=options["metrics_port"]
    )
    # Each worker serves its own metrics; the supervisor serves none.
    _serve([WorkersPart(made)], {**options, "metrics_port": None})


def _settings(options: ServerOptions, **by_option: object) -> dict[str, str]:
    """Return RocketMQ's configuration keys as set by the options and by ``--set``.

    Raises:
        click.UsageError: A key is given twice, or a ``--set`` has no ``=``.
    """
    table = {key: str(value) for key, value in by_option.items() if value is not None}
    for assignment in options["assignments"]:
        key, equals, value = assignment.partition("=")
        key = key.strip()
        if not equals or not key:
            msg = f"--set {assignment!r} is not KEY=VALUE"
            raise click.UsageError(msg)
        if key in table:
            msg = f"{key} is given twice"
            raise click.UsageError(msg)
        table[key] = value.strip()
    return table


def _serve(parts: Sequence[ServerPart], options: ServerOptions) -> None:
    logs.configure(as_json=options["as_json"], level=options["log_level"].upper())
    _raise_descriptor_limit()
    port = options["metrics_port"]
    if port is not None:
        from pocketmq.server.metrics import MetricsPart  # noqa: PLC0415 - only for --metrics-port

        parts = [MetricsPart(parts, host=options["metrics_host"], port=port)]
    until_end_of = sys.stdin.fileno() if options["until_stdin_closes"] else None
    ServerRunner(parts=parts, as_json=options["as_json"], until_end_of=until_end_of).run()


def _raise_descriptor_limit() -> None:
    import structlog  # noqa: PLC0415 - after import_structlog, which hides rich from it

    log = structlog.get_logger("pocketmq")
    before, now = descriptors.raise_limit()
    if now > before:
        log.info("file descriptor limit raised to the hard limit", before=before, now=now)
    if now < descriptors.ENOUGH:
        log.warning(
            "few file descriptors: the store's files come first, connections get what is left; "
            "raise the hard limit (ulimit -Hn, LimitNOFILE= of a systemd unit)",
            limit=now,
        )


@contextmanager
def _errors() -> Iterator[None]:
    """Show an expected error as its message instead of a traceback."""
    try:
        yield
    except EXPECTED as problem:
        raise click.ClickException(str(problem)) from problem

"""``pocketmq standalone``, ``nameserver`` and ``broker``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pocketmq import logs
from pocketmq.cli.options import friendly_errors, parse_assignments, server_options
from pocketmq.serving import Serving

if TYPE_CHECKING:
    from pocketmq.metrics import Source

Ending = Callable[[], Awaitable[None]]


def _settings(assignments: tuple[str, ...], **options: object) -> dict[str, str]:
    """The table of RocketMQ's keys that the options and ``--set`` make together.

    A key that is named by an option must not be set once more: it would be unclear which holds.
    """
    table = parse_assignments(assignments)
    for key, value in options.items():
        if value is None:
            continue
        if key in table:
            msg = f"{key} is given by an option and by --set"
            raise click.UsageError(msg)
        table[key] = str(value)
    return table


def _beside(
    port: int | None, host: str | None, source: Callable[[], Source]
) -> list[Callable[[], Awaitable[Ending]]]:
    """What runs beside a server: the metrics endpoint, when it was asked for."""
    if port is None:
        return []

    async def begin() -> Ending:
        from pocketmq import metrics  # noqa: PLC0415 - only who asks for metrics pays for them

        return await metrics.serve(source(), host=host or "127.0.0.1", port=port)

    return [begin]


@click.command(epilog="Example: pocketmq standalone --store ./data --set defaultTopicQueueNums=4")
@click.option(
    "--store", type=click.Path(file_okay=False, path_type=Path), help="Where messages are kept."
)
@click.option("--nameserver-port", type=click.IntRange(0, 65535), default=9876, show_default=True)
@click.option("--broker-port", type=click.IntRange(0, 65535), help="[default: 10911]")
@server_options
def standalone(
    store: Path | None,
    nameserver_port: int,
    broker_port: int | None,
    host: str | None,
    file: Path | None,
    assignments: tuple[str, ...],
    metrics_port: int | None,
    log_level: str,
    as_json: bool,
    until_stdin_closes: bool,
) -> None:
    """Run a name server and a broker in one process."""
    logs.configure(as_json=as_json, level=log_level.upper())
    from pocketmq.metrics_source import of_broker, of_nameserver, together  # noqa: PLC0415
    from pocketmq.standalone import Standalone  # noqa: PLC0415 - imported by those who serve

    settings = _settings(assignments, listenPort=broker_port, storePathRootDir=store)
    with friendly_errors(*_expected()):
        both = Standalone(
            file=file,
            settings=settings,
            host=host or "127.0.0.1",
            nameserver_port=nameserver_port,
        )
        Serving(
            parts=[both],
            ready=both.addresses,
            failed=both.failures,
            after_start=_beside(
                metrics_port,
                host,
                lambda: together(of_nameserver(both.nameserver), of_broker(both.running_broker)),
            ),
            as_json=as_json,
            until_stdin_closes=until_stdin_closes,
        ).run()

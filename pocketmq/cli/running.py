"""Shared by the commands: options, parsing of positions and queues, calls of a cluster, errors."""

from __future__ import annotations

import difflib
import logging
import os
import sys
import time
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import wraps
from typing import Any, Final, TypeVar

import click

import client
from client.errors import GroupNotFound, PocketMQError, TopicNotFound
from client.positions import Position, position_of
from pocketmq import output
from pocketmq.formats import SourceError
from remoting.runtime import tasks as loop
from remoting.runtime.log import ROOT as LOGGERS
from remoting.security.credentials import FILE_VARIABLE

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_NAMESERVER: Final = "127.0.0.1:9876"


def nameserver_option(function: F) -> F:
    """Add ``--nameserver``, ``--credentials`` and the options of TLS."""
    return click.option(
        "--nameserver",
        metavar="HOST:PORT[;…]",
        envvar="NAMESRV_ADDR",
        default=DEFAULT_NAMESERVER,
        show_default=True,
        help="One or more name servers.",
    )(credentials_option(tls_options(function)))


def tls_options(function: F) -> F:
    """Add ``--tls`` and its parts, the defaults of every connection that a command opens."""

    def use(_: click.Context, option: click.Parameter, value: str | bool | None) -> None:
        if value is not None and option.name is not None:
            # These variables come before a configuration file too.
            os.environ[f"POCKETMQ_CLIENT_{option.name.upper()}"] = str(value)

    parts = {
        "--tls/--no-tls": "Connect with TLS.",
        "--tls-ca": "Connect with TLS, and trust the certificates in this PEM file.",
        "--tls-cert": "Present the certificate in this PEM file.",
        "--tls-key": "Its private key; a password is in POCKETMQ_CLIENT_TLS_KEY_PASSWORD.",
        "--tls-check-hostname/--no-tls-check-hostname": "The certificate has to name the host.",
    }
    for name, text in parts.items():
        metavar = None if "/" in name else "FILE"
        function = click.option(
            name, metavar=metavar, default=None, callback=use, expose_value=False, help=text
        )(function)
    return function


def credentials_option(function: F) -> F:
    """Add ``--credentials``, the default of everything that a command sends requests with."""

    def use(_: click.Context, __: click.Parameter, file: str | None) -> None:
        if file is not None:
            # Also the client's own variable, which comes before a configuration file.
            os.environ.update({FILE_VARIABLE: file, "POCKETMQ_CLIENT_CREDENTIALS": file})

    return click.option(
        "--credentials",
        metavar="FILE",
        callback=use,
        expose_value=False,
        help="Sign requests with the accessKey and secretKey in this file.",
    )(function)


def json_option(function: F) -> F:
    """Add ``--json``."""
    return click.option("--json", "as_json", is_flag=True, help="JSON instead of text.")(function)


def yes_option(function: F) -> F:
    """Add ``--yes``, which skips the confirmation."""
    return click.option("--yes", "-y", is_flag=True, help="Don't ask for confirmation.")(function)


def dry_run_option(function: F) -> F:
    """Add ``--dry-run``."""
    return click.option("--dry-run", is_flag=True, help="Only show what would be done.")(function)


def trace_option(function: F) -> F:
    """Add ``--trace``: the producer or consumer gets a ``client.MessageTrace``."""
    return click.option(
        "--trace", is_flag=True, help="Write a message trace; `pocketmq message trace` shows it."
    )(function)


def report_dropped(traces: Sequence[client.MessageTrace]) -> None:
    """Report records that were not sent; a command shows no log."""
    for trace in traces:
        if trace.dropped:
            click.echo(
                f"{output.count(trace.dropped, 'record')} of the message trace not sent: either"
                f" there were too many at once, or no broker has the topic {trace.topic}"
                " (traceTopicEnable=true)",
                err=True,
            )


def queues_option(function: F) -> F:
    """Add ``--queue``: see ``choose_queues``."""
    return click.option(
        "--queue", "queues", multiple=True, metavar="[BROKER/]ID", help="Only this queue."
    )(function)


def filter_options(function: F) -> F:
    """Add ``--tags`` and ``--sql``; see ``wanted_messages``."""
    sql = click.option(
        "--sql",
        metavar="EXPRESSION",
        help='Only messages whose properties match, e.g. "amount > 100".',
    )
    tags = click.option(
        "--tags", default="*", show_default=True, help="Only these tags, e.g. 'A || B'."
    )
    return tags(sql(function))


def wanted_messages(tags: str, sql: str | None) -> str | client.Sql:
    """Return what ``--tags`` or ``--sql`` select. Raises ``click.UsageError`` if both are given."""
    if sql is None:
        return tags
    if tags != "*":
        raise click.UsageError("--tags and --sql: give only one of them; TAGS is a property")
    try:
        return client.Sql(sql)
    except client.UsageError as error:
        raise click.UsageError(str(error)) from None


def confirm(question: str, *, yes: bool, in_pipes: bool = False) -> None:
    """Ask for confirmation at a terminal unless ``yes``; any other answer aborts the command.

    Raises:
        click.UsageError: nobody can be asked, and with ``in_pipes`` that needs ``yes``.
    """
    if yes:
        return
    if sys.stdin.isatty():
        click.confirm(question, abort=True, err=True)
    elif in_pipes:
        raise click.UsageError(f"{question} Without a terminal to ask at, this needs --yes")


T = TypeVar("T")


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a command's coroutine.

    Expected errors are shown without a traceback; exit code 1.
    """
    quiet()
    try:
        return loop.run(main)
    except (TopicNotFound, GroupNotFound) as problem:
        _suggest(problem)
        raise click.ClickException(str(problem)) from problem
    except (PocketMQError, SourceError) as problem:
        raise click.ClickException(str(problem)) from problem
    except OSError as problem:
        if isinstance(problem, BrokenPipeError):
            raise
        raise click.ClickException(output.os_error(problem)) from problem


def _suggest(problem: TopicNotFound | GroupNotFound) -> None:
    """Make the hint of an error name what is there; only a command that sends may create."""
    context = click.get_current_context()
    topics = isinstance(problem, TopicNotFound)
    kind, name = ("topic", problem.topic) if topics else ("group", problem.group)

    async def names() -> list[str]:
        async with client.Admin(context.params["nameserver"]) as admin:
            return await (admin.topics() if topics else admin.groups())

    near: list[str] = []
    with suppress(PocketMQError, OSError):
        near = difflib.get_close_matches(name or "", loop.run(names()))
    if near:
        problem.hint = f"did you mean {' or '.join(near)}?"
    elif context.command.name not in {"send", "import"}:
        problem.hint = f"`pocketmq {kind} list` shows what there is"


def watch_option(function: F) -> F:
    """Add ``--watch``: see ``Call.observe``."""
    return click.option(
        "--watch",
        type=click.FloatRange(min=0.1),
        metavar="SECONDS",
        help="Show it again and again, with rates, until Ctrl-C.",
    )(function)


Rows = list[dict[str, object]]


@dataclass(frozen=True, slots=True)
class Call:
    """How a command was called: its cluster, and whether it prints JSON."""

    nameserver: str
    as_json: bool

    def ask(self, ask: Callable[[client.Admin], Awaitable[T]]) -> T:
        """Return the result of ``ask`` with a connected ``Admin``; show errors as ``run`` does."""

        async def main() -> T:
            async with client.Admin(self.nameserver) as admin:
                return await ask(admin)

        return run(main())

    def show_rows(
        self,
        rows: Sequence[output.Row],
        columns: Sequence[str],
        *,
        spare: Sequence[str] = (),
        colour: Callable[[output.Row], str] | None = None,
    ) -> None:
        """Print rows; see ``output.show_rows``."""
        output.show_rows(rows, columns, as_json=self.as_json, spare=spare, colour=colour)

    def show_facts(self, facts: output.Row) -> None:
        """Print the facts about one object, one per line."""
        output.show_facts(facts, as_json=self.as_json)

    def done(self, text: str, facts: output.Row) -> None:
        """Print what was done, as a sentence or as a JSON object."""
        output.done(text, facts, as_json=self.as_json)

    def observe(
        self,
        ask: Callable[[client.Admin], Awaitable[Rows]],
        show: Callable[[Rows], None],
        *,
        watch: float | None,
        key: Sequence[str],
        rates: Mapping[str, str],
    ) -> None:
        """Show rows once, or with ``--watch`` until a signal, with rates per second.

        Args:
            key: the columns that tell which row of the last time is the same.
            rates: the column for a rate -> the column of its counter.
        """
        if watch is None:
            show(self.ask(ask))
            return

        def show_again(rows: Rows) -> None:
            if not self.as_json:
                click.clear()
            show(rows)

        with end_on_broken_pipe():
            self.ask(lambda admin: _watch(admin, ask, show_again, watch, key, rates))


async def _watch(
    admin: client.Admin,
    ask: Callable[[client.Admin], Awaitable[Rows]],
    show: Callable[[Rows], None],
    every: float,
    key: Sequence[str],
    rates: Mapping[str, str],
) -> None:
    stop = loop.stop_signal()
    before: dict[tuple[object, ...], dict[str, object]] = {}
    asked_at = time.monotonic()
    while not stop.is_set():
        rows = await ask(admin)
        then, asked_at = asked_at, time.monotonic()
        now = {tuple(row[name] for name in key): dict(row) for row in rows}
        seconds = asked_at - then
        for identity, row in zip(now, rows, strict=True):
            for rate, counter in rates.items():
                old, new = before.get(identity, {}).get(counter), row.get(counter)
                row[rate] = None
                if isinstance(old, int) and isinstance(new, int):
                    # A counter starts over with its broker.
                    row[rate] = max(0.0, round((new - old) / seconds, 1))
        before = now
        show(rows)
        sys.stdout.flush()
        await loop.wait_at_most(every, stop)


async def lag_pages(
    admin: client.Admin, *, internal: bool = False
) -> AsyncIterator[client.LagPage]:
    """Yield how far all groups are behind; see ``Admin.lags``."""
    after: str | None = ""
    while after is not None:
        page = await admin.lags(after=after, internal=internal)
        yield page
        after = page.next


def call_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add ``--nameserver`` with its kin and ``--json``; the command gets them as its ``call``."""

    @wraps(function)
    def command(*args: Any, nameserver: str, as_json: bool, **options: Any) -> None:
        function(*args, call=Call(nameserver, as_json), **options)

    return nameserver_option(json_option(command))


@contextmanager
def end_on_broken_pipe() -> Iterator[None]:
    """End the command without an error when the reader of a pipe closes it."""
    try:
        yield
    except BrokenPipeError:
        raise click.exceptions.Exit(0) from None


def quiet() -> None:
    """Suppress the client's warnings: a command reports its errors itself."""
    logging.getLogger(LOGGERS).setLevel(logging.ERROR)


class _PlaceType(click.ParamType):  # type: ignore[type-arg]  # older releases of click have none
    """A position; a time without a zone is in the local time zone."""

    name = "place"

    def convert(
        self, value: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> Position:
        """Parse the text of an option."""
        try:
            return position_of(value)
        except client.UsageError as error:
            self.fail(str(error), param, ctx)


PLACE: Final = _PlaceType()
PLACE_HELP: Final = (
    "begin or earliest, end or latest, an offset, a time (2026-01-31T12:00) or how long ago "
    "(-1h, -30m)."
)


def parse_pairs(
    _: click.Context, parameter: click.Parameter, texts: tuple[str, ...]
) -> dict[str, str]:
    """Parse arguments or options of the form ``NAME=VALUE``; of equal names the last one counts."""
    table: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            form = (parameter.metavar or "NAME=VALUE").removesuffix("...")
            raise click.BadParameter(f"{text!r} is not {form}")
        table[name] = value
    return table


def choose_queues(
    queues: Sequence[client.MessageQueue], names: Sequence[str], topic: str
) -> list[client.MessageQueue]:
    """Return the queues named by ``ID`` or ``BROKER/ID``; all queues if none is named.

    Raises:
        UsageError: the topic has no such queue.
    """
    if not names:
        return list(queues)
    chosen = []
    for text in names:
        broker, _, number = text.rpartition("/")
        matching = [
            q for q in queues if str(q.queue_id) == number and broker in {"", q.broker_name}
        ]
        if not matching:
            raise client.UsageError(
                f"there is no queue {text!r}", topic=topic, hint="see `pocketmq topic status`"
            )
        chosen += matching
    return list(dict.fromkeys(chosen))


def parse_queue(_: click.Context, __: click.Parameter, text: str) -> client.MessageQueue:
    """Parse an argument ``TOPIC/BROKER/ID``, the form used in tables and logs."""
    topic, _slash, rest = text.partition("/")
    broker, _slash, number = rest.rpartition("/")
    if not topic or not broker or not number.isdecimal():
        raise click.BadParameter(f"{text!r} is not TOPIC/BROKER/QUEUE, e.g. orders/broker-a/3")
    return client.MessageQueue(topic, broker, int(number))

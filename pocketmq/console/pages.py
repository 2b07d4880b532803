"""The pages that show something; none of them changes anything."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Sequence
from typing import Final, TypeVar

from starlette.responses import JSONResponse, Response

import client
from client.admin.access import AccessRules
from client.errors import NotFound, NotSupported, PocketMQError, UsageError
from client.positions import Position, position_of
from client.producer.columns import RESERVED
from pocketmq.console import show
from pocketmq.console.app import Visit, route
from pocketmq.console.snapshot import BrokerFacts
from pocketmq.console.topology import drawn
from remoting.protocol.message import properties
from remoting.protocol.names import dlq_topic
from remoting.protocol.queue import MessageQueue

T = TypeVar("T")

ROWS: Final = 200
"""Rows of a table on one page."""

MESSAGES: Final = 50
"""Messages on one page."""

SCAN: Final = 5_000
"""Messages that brokers look at for one page; another one goes on where it ended."""

LETTERS: Final = 100
"""Dead letters on one page."""

CONNECTIONS: Final = 200
"""Connections of a broker on one page."""


class TablePage(list[T]):
    """A page of a table's rows, and what is needed for links to the others."""

    def __init__(self, visit: Visit, rows: Sequence[T]) -> None:
        self.total = len(rows)
        self.number = min(visit.integer("page", 0), max(0, self.total - 1) // ROWS)
        super().__init__(rows[self.number * ROWS : (self.number + 1) * ROWS])
        self.last = max(0, self.total - 1) // ROWS


async def overview(visit: Visit) -> Response:
    """Brokers, rates, lag, dead letters, and what the doctor found."""
    history = visit.app.poller.history
    return visit.page(
        "overview.html",
        lines={
            "in": show.polyline(moment.messages_in for moment in history),
            "out": show.polyline(moment.messages_out for moment in history),
            "lag": show.polyline(moment.lag for moment in history),
        },
    )


async def topics(visit: Visit) -> Response:
    """All topics, by name or by what is in the address."""
    word, sort = visit.get("q"), visit.get("sort", "name")
    found = [topic for topic in visit.snapshot.topics.values() if word in topic.name]
    keys = {
        "lag": lambda topic: -topic.lag,
        "rate": lambda topic: -(topic.per_second or 0),
        "queues": lambda topic: -topic.queues,
    }
    if sort in keys:
        found.sort(key=keys[sort])
    return visit.page("topics.html", topics=TablePage(visit, found), word=word, sort=sort)


async def topic(visit: Visit) -> Response:
    """One topic: its queues, rates, groups, route, and where its brokers differ."""
    topic_name = visit.need("name")
    if topic_name not in visit.snapshot.topics:
        raise NotFound(f"there is no topic {show.visible(topic_name, 100)}", code=0)
    facts = visit.snapshot.topics[topic_name]
    stats, rates, route_data = await asyncio.gather(
        visit.admin.topic_stats(facts.name),
        visit.admin.rates(facts.name),
        visit.admin.topic_route(facts.name),
    )
    settings = {
        name: {at: getattr(config, name) for at, config in facts.configs.items()}
        for name in ("read_queue_nums", "write_queue_nums", "perm", "order")
    }
    return visit.page(
        "topic.html",
        topic=facts,
        stats=stats,
        rates=rates,
        route=route_data,
        differ={name: by for name, by in settings.items() if len(set(by.values())) > 1},
        groups=[visit.snapshot.groups[name] for name in sorted(facts.groups)],
    )


def queue_of(text: str, topic_name: str) -> MessageQueue:
    broker, _, number = text.rpartition("/")
    if not broker or not (number.isascii() and number.isdigit() and len(number) < 10):
        raise UsageError(f"a queue is BROKER/NUMBER, not {text[:80]!r}")
    return MessageQueue(topic_name, broker, int(number))


def _start(visit: Visit) -> Position | str:
    if cursor := visit.get("cursor"):
        return cursor
    text = visit.get("from") or f"-{MESSAGES}"
    if text.startswith("-") and text.isascii() and text[1:].isdigit():
        return -min(int(text[1:99]), 100_000)
    return position_of(text)


def _wanted(visit: Visit) -> str | client.Sql:
    tags, sql = visit.get("tags"), visit.get("sql")
    if tags and sql:
        raise UsageError("give tags or an SQL expression, not both")
    return client.Sql(sql) if sql else tags or "*"


async def messages(visit: Visit) -> Response:
    """Messages of a topic: by key or id, or from a place on, with a filter."""
    name, key = visit.need("topic"), visit.get("key")
    page = None
    queue = queue_of(visit.get("queue"), name) if visit.get("queue") else None
    live = visit.get("live") == "1"
    queues = [
        f"{at}/{number}"
        for at, config in getattr(visit.snapshot.topics.get(name), "configs", {}).items()
        for number in range(config.read_queue_nums)
    ]
    if key:
        found = await visit.admin.find_messages(name, key)
    else:
        start, limit = _start(visit), MESSAGES
        if live and type(start) is int and start < 0:
            # A page that begins further back ends before the newest message.
            count = 1 if queue else max(1, len(queues))
            start, limit = max(start, -max(1, MESSAGES // count)), max(MESSAGES, count)
        page = await visit.admin.browse(
            name,
            start,
            limit=limit,
            scan_limit=SCAN,
            tags=_wanted(visit),
            queues=None if queue is None or visit.get("cursor") else [queue],
        )
        found = page.messages
    fields = {name: visit.get(name) for name in ("key", "from", "queue", "tags", "sql")}
    return visit.page(
        "messages.html",
        name=name,
        messages=found,
        page=page,
        fields=fields,
        live=live,
        queues=queues,
    )


async def message(visit: Visit) -> Response:
    """One message: by queue and offset, or by an id."""
    name = visit.get("topic")
    if visit.get("queue"):
        place = visit.integer("offset", 0)
        page = await visit.admin.browse(
            visit.need("topic"), place, limit=1, queues=[queue_of(visit.get("queue"), name)]
        )
        found = [one for one in page.messages if one.offset == place]
        if not found:
            raise NotFound(f"there is no message at offset {place}", code=0, topic=name)
        one = found[0]
    else:
        one = await visit.admin.message(visit.need("id"), topic=name or None)
    try:
        trace = await visit.admin.trace(one.id)
    except PocketMQError:
        trace = []
    handled = [
        (lag.group, lag.queues[one.queue].committed > one.offset)
        for lag in visit.snapshot.groups.values()
        if one.queue in lag.queues
    ]
    return visit.page(
        "message.html",
        message=one,
        views=show.body_views(one.body),
        trace=trace,
        handled=handled,
        template=_template(one) if len(one.body) <= show.MAX_BODY else None,
        live=False,
    )


def _template(message: client.ReceivedMessage[bytes]) -> dict[str, str]:
    """Return the fields of the form that sends a message again."""

    def plain(value: str) -> str:
        # Nobody can check, in a form, what can't be seen.
        return value if value.isprintable() else ""

    values = {
        "topic": message.topic,
        "tag": plain(message.tag or ""),
        "keys": plain(" ".join(message.keys)),
        "sharding_key": plain(message.properties.get(properties.SHARDING_KEY, "")),
        "properties": "\n".join(
            f"{name}={value}"
            for name, value in message.properties.items()
            if name not in RESERVED and plain(name + value)
        ),
    }
    try:
        text = message.body.decode()
    except UnicodeDecodeError:
        text = "\r"
    # A form changes other line ends, and characters that can't be seen can't be edited.
    if show.visible(text, len(text), lines=True) == text:
        return values | {"body": text, "form": "text"}
    return values | {"body": base64.b64encode(message.body).decode(), "form": "base64"}


async def groups(visit: Visit) -> Response:
    """All groups, those that are furthest behind first."""
    word, sort = visit.get("q"), visit.get("sort", "lag")
    found = [group for group in visit.snapshot.groups.values() if word in group.group]
    if sort == "lag":
        found.sort(key=lambda lag: -lag.total)
    elif sort == "rate":
        found.sort(key=lambda lag: -lag.per_second)
    rows = TablePage(visit, found)
    trends = visit.app.poller.trends
    lines = {lag.group: show.polyline(trends.get(lag.group, ()), 120, 20) for lag in rows}
    dead = {one.group: one.letters for one in visit.snapshot.dead}
    return visit.page("groups.html", groups=rows, word=word, sort=sort, lines=lines, dead=dead)


async def group(visit: Visit) -> Response:
    """One group: members, queues, problems, and what can be done about them."""
    name = visit.need("name")
    description = await visit.admin.describe_group(name)
    lag = visit.snapshot.groups.get(name)
    if lag is None and not description.queues and not description.online:
        raise NotFound(f"there is no group {show.visible(name, 100)}", code=0)
    stacks = ""
    if member := visit.get("stacks"):
        stacks = (await visit.admin.running_info(name, member, stacks=True)).jstack or ""
    line = show.polyline(visit.app.poller.trends.get(name, ()))
    return visit.page(
        "group.html",
        name=name,
        group=description,
        lag=lag,
        line=line,
        stacks_of=member,
        stacks=show.visible(stacks, show.MAX_BODY, lines=True),
        topics=sorted({state.queue.topic for state in description.queues}),
        live=not member,
    )


async def dead(visit: Visit) -> Response:
    """Show the groups with dead letters, or the dead letters of one."""
    name = visit.get("group")
    if not name:
        return visit.page("dead.html", group=None, letters=[], redriven=False)
    redriven = visit.get("redriven") == "1"
    letters = await visit.admin.dead_letters(name, limit=LETTERS + 1, redriven=redriven)
    return visit.page(
        "dead.html",
        group=name,
        letters=letters[:LETTERS],
        more=len(letters) > LETTERS,
        redriven=redriven,
        topic=dlq_topic(name),
        live=False,
    )


async def brokers(visit: Visit) -> Response:
    """All brokers, masters and slaves."""
    return visit.page("brokers.html")


def broker_of(visit: Visit) -> BrokerFacts:
    """Return the broker that a request names; only those that the name server knows."""
    address = visit.need("address")
    for broker in visit.snapshot.brokers:
        if broker.info.address == address:
            return broker
    raise NotFound(f"no broker is registered at {show.visible(address, 100)}", code=0)


async def broker(visit: Visit) -> Response:
    """One broker: settings, connections, what it still has to deliver."""
    facts = broker_of(visit)
    settings, pending = await asyncio.gather(
        visit.admin.broker_config(facts.info.address), visit.admin.pending(facts.info.address)
    )
    try:
        connections = await visit.admin.connections(
            facts.info.address, after=visit.get("after"), limit=CONNECTIONS
        )
    except NotSupported:
        connections = None
    return visit.page(
        "broker.html",
        broker=facts,
        settings=dict(sorted(settings.items())),
        pending=pending,
        connections=connections,
        live=False,
    )


async def accounts(visit: Visit) -> Response:
    """Show the accounts of each broker, for those who may see them."""
    rules: dict[client.BrokerInfo, AccessRules | str] = {}
    for facts in visit.snapshot.brokers:
        if facts.info.id == 0 and facts.runtime:
            try:
                rules[facts.info] = await visit.admin.access_rules(facts.info.address)
            except client.NotSupported as error:
                rules[facts.info] = error.hint or str(error)
            except PocketMQError as error:
                rules[facts.info] = str(error)
    return visit.page("accounts.html", rules=rules, live=False)


async def topology(visit: Visit) -> Response:
    """Draw producer groups, topics and consumer groups, as a picture."""
    producers = await visit.admin.producers()
    return visit.page("topology.html", picture=drawn(visit.snapshot, producers), live=False)


async def trend(visit: Visit) -> Response:
    """Return the figures behind a line, for the page's script."""
    poller = visit.app.poller
    if name := visit.get("group"):
        values = list(poller.trends.get(name, ()))
        times = [moment.at for moment in poller.history][-len(values) :] if values else []
        return JSONResponse({"names": ["lag"], "data": [times, values[-len(times) :]]})
    history = list(poller.history)
    return JSONResponse(
        {
            "names": ["in", "out"],
            "data": [
                [moment.at for moment in history],
                [moment.messages_in for moment in history],
                [moment.messages_out for moment in history],
            ],
        }
    )


PAGES: Final = [
    route("/", overview),
    route("/topics", topics),
    route("/topic", topic),
    route("/messages", messages),
    route("/message", message),
    route("/groups", groups),
    route("/group", group),
    route("/dead", dead),
    route("/brokers", brokers),
    route("/broker", broker),
    route("/accounts", accounts),
    route("/topology", topology),
    route("/trend", trend),
]

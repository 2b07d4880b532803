"""The forms that change something. What destroys shows first what it would do."""

from __future__ import annotations

import base64
import hmac
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext, suppress
from datetime import timedelta
from hashlib import sha256
from http import HTTPStatus
from typing import Final, NamedTuple

from markupsafe import Markup
from starlette.exceptions import HTTPException
from starlette.responses import Response

import client
from client.admin.resets import Reset
from client.errors import TopicNotFound, UsageError
from client.positions import position_of
from pocketmq.console import show
from pocketmq.console.app import Visit, route
from pocketmq.console.pages import broker_of, queue_of
from pocketmq.output import count
from remoting.protocol.message.properties import keys_of

PRODUCER_GROUP: Final = "pocketmq-console"
"""The producer group of messages that are sent here."""

MAX_DELAY: Final = 3 * 86_400
"""Seconds; brokers refuse longer ones unless they are set up for them."""


class ActionOutcome(NamedTuple):
    """What an action did or, in a dry run, would do.

    Attributes:
        text: as one sentence.
        back: where to go from here.
        columns, rows: the parts of it.
        plan: what must be the same when it is done as when it was shown; empty if anything goes.
    """

    text: str
    back: Markup
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[object]] = ()
    plan: str = ""


class FormAction(NamedTuple):
    """What a form can do.

    Attributes:
        run: does it, or with True says what it would do.
        typed: the field whose value has to be typed once more; empty if that isn't necessary.
        preview: whether it is shown before it is done; what has to be typed always is.
    """

    run: Callable[[Visit, bool], Awaitable[ActionOutcome]]
    typed: str = ""
    preview: bool = False


async def act(visit: Visit) -> Response:
    """Do what a form says, or ask first."""
    if not visit.may_write:
        raise HTTPException(
            HTTPStatus.FORBIDDEN, "this console shows only; --writable lets it change something"
        )
    action = ACTIONS.get(visit.need("action"))
    if action is None:
        raise UsageError("there is no such action")
    word = visit.need(action.typed) if action.typed else "yes"
    asks = bool(action.typed or action.preview)
    confirmed = hmac.compare_digest(visit.get("confirm").encode(), word.encode())
    seen = visit.get("plan")
    # The second click of a double one finds what the first has changed.
    async with visit.app.changing if asks and confirmed else nullcontext():
        dry = asks and (not confirmed or bool(seen))
        outcome = await action.run(visit, dry)
        if dry and confirmed and seen == outcome.plan:
            dry = False
            outcome = await action.run(visit, dry)
    if dry:
        asked = {"confirm", "token", "plan"}
        kept = {name: values for name, values in visit.form.items() if name not in asked}
        return visit.page(
            "confirm.html",
            outcome=outcome,
            fields=kept,
            word=word if action.typed else "",
            wrong="" if confirmed else visit.get("confirm"),
            changed=confirmed,
            live=False,
        )
    visit.app.poller.hurry()
    return visit.page("done.html", outcome=outcome, live=False)


async def _send(visit: Visit, _: bool) -> ActionOutcome:
    name = visit.need("topic")
    text = visit.form.get("body", [""])[-1].replace("\r\n", "\n")
    form = visit.get("form", "text")
    try:
        if form == "text":
            body = text.encode()
        elif form == "hex":
            body = bytes.fromhex(text)
        else:
            body = base64.b64decode(text, validate=True)
    except ValueError as error:
        raise UsageError(f"the body isn't {form}: {error}") from error
    properties = {}
    for line in visit.get("properties").splitlines():
        key, equals, value = line.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"a property is NAME=VALUE, not {line[:80]!r}")
        properties[key.strip()] = value.strip()
    delay = visit.integer("delay", 0, MAX_DELAY)
    keys = None if visit.session is None else visit.session.credentials
    async with client.Producer(
        visit.app.settings.nameserver, group=PRODUCER_GROUP, credentials=keys
    ) as producer:
        receipt = await producer.send(
            name,
            body,
            tag=visit.get("tag") or None,
            keys=keys_of(visit.get("keys")),
            properties=properties,
            sharding_key=visit.get("sharding_key") or None,
            delay=timedelta(seconds=delay) if delay else None,
        )
    place = (receipt.queue.broker_name, receipt.queue.queue_id, receipt.offset)
    return ActionOutcome(
        f"The message is stored in topic {name}.",
        show.link("messages", topic=name),
        ("id", "status", "broker", "queue", "offset"),
        [(receipt.id, receipt.status.name, *place)],
    )


async def _consume(visit: Visit, _: bool) -> ActionOutcome:
    name, topic, message_id = visit.need("name"), visit.need("topic"), visit.need("id")
    members = await visit.admin.members(name)
    if not members:
        raise UsageError("no member is online", group=name, hint="start one")
    member = members[0].client_id
    done = await visit.admin.consume_directly(name, member, message_id, topic=topic)
    return ActionOutcome(
        f"The member {member} of group {name} has handled the message; nothing is committed.",
        show.link("message", topic=topic, id=message_id),
        ("outcome", "ms", "remark"),
        [(done.consume_result, done.spent_time_mills, done.remark)],
    )


async def _create_topic(visit: Visit, _: bool) -> ActionOutcome:
    name = visit.need("name")
    with suppress(TopicNotFound):
        await visit.admin.topic_route(name)
        raise UsageError("the topic exists already", topic=name, hint="change it on its page")
    await visit.admin.create_topic(
        name, queues=visit.integer("queues", 8), order=visit.get("order") == "1"
    )
    return ActionOutcome(f"The topic {name} is there.", show.link("topics", q=name))


async def _update_topic(visit: Visit, _: bool) -> ActionOutcome:
    name = visit.need("name")
    await visit.admin.update_topic(
        name,
        read_queues=visit.integer("read_queues", 0) or None,
        write_queues=visit.integer("write_queues", 0) or None,
        permission=None if visit.get("permission") == "keep" else visit.get("permission"),
        everywhere=visit.get("everywhere") == "1",
    )
    return ActionOutcome(f"The topic {name} is changed.", show.link("topic", name=name))


async def _delete_topic(visit: Visit, dry: bool) -> ActionOutcome:
    name = visit.need("name")
    stats = await visit.admin.topic_stats(name)
    rows = [
        (queue.broker_name, queue.queue_id, at.max_offset - at.min_offset)
        for queue, at in stats.items()
    ]
    if not dry:
        await visit.admin.delete_topic(name)
    text = f"This deletes the topic {name} and all its messages, at every broker."
    return ActionOutcome(
        text if dry else f"The topic {name} is deleted.",
        show.link("topics"),
        ("broker", "queue", "messages"),
        rows,
    )


async def _delete_group(visit: Visit, dry: bool) -> ActionOutcome:
    name = visit.need("name")
    lag = await visit.admin.lag(name)
    if not dry:
        await visit.admin.delete_group(name, remove_offsets=True)
    text = f"This deletes the group {name} and its offsets, at every broker."
    return ActionOutcome(
        text if dry else f"The group {name} is deleted.",
        show.link("groups"),
        ("queue", "committed", "not consumed"),
        [(queue, at.committed, at.messages) for queue, at in lag.queues.items()],
    )


def _moved(reset: Reset, back: Markup, *, dry: bool) -> ActionOutcome:
    changes = [step for step in reset.steps if step.changes]
    verb = "This moves" if dry else "Moved"
    text = (
        f"{verb} the group {reset.group} in {count(len(changes), 'queue')} of topic {reset.topic}."
    )
    if reset.unaware:
        text += (
            f" These members keep their own places, so stop them first: {', '.join(reset.unaware)}."
        )
    return ActionOutcome(
        text,
        back,
        ("queue", "begin", "end", "committed before", "committed after", "lag after"),
        [
            (step.queue, step.begin, step.end, step.before, step.after, step.lag_after)
            for step in reset.steps
        ],
    )


async def _reset(visit: Visit, dry: bool) -> ActionOutcome:
    name = visit.need("name")
    reset = await visit.admin.reset(
        name, visit.need("topic"), to=position_of(visit.need("to")), dry_run=dry
    )
    return _moved(reset, show.link("group", name=name), dry=dry)


async def _skip(visit: Visit, dry: bool) -> ActionOutcome:
    name, topic = visit.need("name"), visit.need("topic")
    queue = queue_of(visit.need("queue"), topic)
    messages = visit.integer("messages", 1, 1_000_000)
    reset = await visit.admin.skip(name, queue, messages=messages, dry_run=dry)
    plan = str(reset.steps[0].after)
    return _moved(reset, show.link("group", name=name), dry=dry)._replace(plan=plan)


async def _clone(visit: Visit, dry: bool) -> ActionOutcome:
    source, target = visit.need("source"), visit.need("name")
    rows: list[tuple[object, ...]] = []
    for topic in sorted({queue.topic for queue in (await visit.admin.lag(source)).queues}):
        # A group's lag doesn't tell apart what is committed as 0 and what isn't committed.
        before = await visit.admin.committed(target, topic)
        rows += [
            (queue, before.get(queue), at)
            for queue, at in (await visit.admin.committed(source, topic)).items()
            if at is not None
        ]
    if not dry:
        await visit.admin.clone_offsets(source, target)
    verb = "This gives" if dry else "Gave"
    return ActionOutcome(
        f"{verb} the group {target} the offsets of {source}.",
        show.link("group", name=target),
        ("queue", f"of {target} before", f"of {source}"),
        rows,
    )


async def _redrive(visit: Visit, dry: bool) -> ActionOutcome:
    name = visit.need("name")
    ids = visit.form.get("id", [])
    chosen = visit.get("which", "chosen") == "chosen"
    if chosen and not ids:
        raise UsageError("no dead letter is chosen", group=name)
    redrive = await visit.admin.redrive(
        name, ids=ids if chosen else None, limit=None if chosen else 1000, dry_run=dry
    )
    verb = "This sends" if dry else "Sent"
    text = f"{verb} {count(len(redrive.sent), 'dead letter')} of {name} back; {redrive.left} stay."
    return ActionOutcome(
        text,
        show.link("dead", group=name),
        ("id", "to topic", "reason", "now at queue", "offset"),
        [
            (
                *(one.message.id, one.message.topic, one.message.reason or one.message.exception),
                *(one.queue, one.offset),
            )
            for one in redrive.sent
        ],
        sha256(" ".join(one.message.id for one in redrive.sent).encode()).hexdigest(),
    )


async def _configure(visit: Visit, dry: bool) -> ActionOutcome:
    broker, key = broker_of(visit), visit.need("key")
    before = (await visit.admin.broker_config(broker.info.address)).get(key)
    value = visit.get("value")
    if not dry:
        await visit.admin.update_broker_config(broker.info.address, {key: value})
    return ActionOutcome(
        f"{'This sets' if dry else 'Set'} {key} of broker {broker.info.name}.",
        show.link("broker", address=broker.info.address),
        ("setting", "before", "after"),
        [(key, before, value)],
    )


async def _drain(visit: Visit, dry: bool) -> ActionOutcome:
    name, undo = visit.need("name"), visit.get("undo") == "1"
    back = show.link("brokers")
    if undo:
        if not dry:
            await visit.admin.add_write_permission(name)
        return ActionOutcome(f"Producers {'will ' if dry else ''}use broker {name} again.", back)
    if not dry:
        await visit.admin.wipe_write_permission(name)
    will = "will stop" if dry else "stop"
    return ActionOutcome(
        f"Producers {will} sending to broker {name}; consumers go on to read what it has.", back
    )


async def _put_account(visit: Visit, _: bool) -> ActionOutcome:
    broker, key = broker_of(visit), visit.need("access_key")
    permissions = {}
    for kind in ("topics", "groups"):
        lines = [line for line in visit.get(kind).splitlines() if line.strip()]
        pairs = [line.partition("=")[::2] for line in lines]
        permissions[kind] = {name.strip(): what.strip() for name, what in pairs}
    await visit.admin.put_account(
        broker.info.address,
        key,
        secret_key=visit.get("secret_key") or None,
        admin={"yes": True, "no": False}.get(visit.get("admin")),
        default_topic=visit.get("default_topic") or None,
        default_group=visit.get("default_group") or None,
        topics=permissions["topics"] or None,
        groups=permissions["groups"] or None,
    )
    return ActionOutcome(
        f"The account {key} is set at broker {broker.info.name}.", show.link("accounts")
    )


async def _delete_account(visit: Visit, dry: bool) -> ActionOutcome:
    broker, key = broker_of(visit), visit.need("access_key")
    if not dry:
        await visit.admin.delete_account(broker.info.address, key)
    verb = "This deletes" if dry else "Deleted"
    text = f"{verb} the account {key} at broker {broker.info.name}."
    return ActionOutcome(text, show.link("accounts"))


ACTIONS: Final = {
    "send": FormAction(_send),
    "consume": FormAction(_consume),
    "create-topic": FormAction(_create_topic),
    "update-topic": FormAction(_update_topic),
    "delete-topic": FormAction(_delete_topic, typed="name"),
    "delete-group": FormAction(_delete_group, typed="name"),
    "reset": FormAction(_reset, typed="name"),
    "skip": FormAction(_skip, typed="name"),
    "clone": FormAction(_clone, typed="name"),
    "redrive": FormAction(_redrive, preview=True),
    "configure": FormAction(_configure, preview=True),
    "drain": FormAction(_drain, preview=True),
    "put-account": FormAction(_put_account),
    "delete-account": FormAction(_delete_account, typed="access_key"),
}
"""By the name that a form has."""

ROUTES: Final = [route("/act", act, method="POST")]

"""What fails is retried, dead-lettered or done, as the ``AckPolicy`` says, wherever it fails."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from faststream import BaseMiddleware
from faststream.exceptions import AckMessage, NackMessage, RejectMessage

from client.consumer.outcome import OutcomeKind
from pocketmq.faststream import AckPolicy, PocketBroker, TestPocketBroker

DONE, RETRY, DEAD = OutcomeKind.DONE, OutcomeKind.RETRY, OutcomeKind.DEAD_LETTER

POLICIES = [
    (None, RETRY),
    (AckPolicy.NACK_ON_ERROR, RETRY),
    (AckPolicy.REJECT_ON_ERROR, DEAD),
    (AckPolicy.ACK, DONE),
    (AckPolicy.ACK_FIRST, DONE),
]


class Broken(RuntimeError):
    pass


def broken(*_: Any) -> Any:
    raise Broken("milk")


class InReceive(BaseMiddleware):
    async def on_receive(self) -> None:
        broken()


class InConsume(BaseMiddleware):
    async def consume_scope(self, call_next: Any, msg: Any) -> Any:
        broken()


class AfterConsume(BaseMiddleware):
    async def consume_scope(self, call_next: Any, msg: Any) -> Any:
        await call_next(msg)
        broken()


class AfterProcessed(BaseMiddleware):
    async def after_processed(self, *_: Any) -> bool:
        return broken()


class InPublish(BaseMiddleware):
    async def publish_scope(self, call_next: Any, cmd: Any) -> Any:
        # The test's own publish, of "tea", is let through.
        return broken() if cmd.body != "tea" else await call_next(cmd)


async def outcome(
    handler: Any, *, policy: AckPolicy | None = None, batch: bool = False, **options: Any
) -> Any:
    """Return the outcome of a message after its handler was called, or something around it."""
    raw = []

    class Remember(BaseMiddleware):
        async def on_receive(self) -> None:
            messages = self.msg if isinstance(self.msg, list) else [self.msg]
            raw.extend(message for message in messages if message.topic == "orders")

    middlewares = [Remember, *options.pop("middlewares", ())]
    broker = PocketBroker("127.0.0.1:1", logger=None, middlewares=middlewares)
    if policy is not None:
        options["ack_policy"] = policy
    subscriber = broker.subscriber("orders", batch=batch, **options)
    broker.publisher("bills")(subscriber(handler))
    async with TestPocketBroker(broker):
        with suppress(Broken):
            await broker.publish("tea", "orders")
    [message] = raw
    return message.outcome


@pytest.mark.parametrize(("policy", "expected"), POLICIES)
@pytest.mark.parametrize("batch", [False, True], ids=["single", "batch"])
async def test_a_handler_that_raises(
    policy: AckPolicy | None, expected: OutcomeKind, batch: bool
) -> None:
    found = await outcome(broken, policy=policy, batch=batch)
    assert found.verdict is expected
    if expected is not DONE:
        assert found.reason == "Broken('milk')"


@pytest.mark.parametrize(("policy", "expected"), POLICIES)
@pytest.mark.parametrize(
    "middleware", [InReceive, InConsume, AfterConsume, AfterProcessed, InPublish]
)
async def test_a_middleware_that_raises(
    middleware: type[BaseMiddleware], policy: AckPolicy | None, expected: OutcomeKind
) -> None:
    async def bill(body: str) -> str:
        return "bill"

    found = await outcome(bill, policy=policy, middlewares=[middleware])
    assert found.verdict is expected


@pytest.mark.parametrize(("policy", "expected"), POLICIES)
@pytest.mark.parametrize("part", ["parser", "decoder"])
async def test_a_parser_or_decoder_that_raises(
    part: str, policy: AckPolicy | None, expected: OutcomeKind
) -> None:
    async def take(body: str) -> None: ...

    assert (await outcome(take, policy=policy, **{part: broken})).verdict is expected


async def test_a_message_that_is_handled_is_done() -> None:
    async def take(body: str) -> None: ...

    assert (await outcome(take)).verdict is DONE
    assert await outcome(take, policy=AckPolicy.MANUAL) is None


@pytest.mark.parametrize(
    ("raised", "expected", "delay", "reason"),
    [
        (AckMessage(), DONE, None, ""),
        (NackMessage(), RETRY, None, "requested by the application"),
        (NackMessage(delay=30), RETRY, 30.0, "requested by the application"),
        (RejectMessage(reason="no cup"), DEAD, None, "no cup"),
    ],
)
async def test_a_handler_decides_by_raising(
    raised: Exception, expected: OutcomeKind, delay: float | None, reason: str
) -> None:
    async def decide(body: str) -> None:
        raise raised

    found = await outcome(decide, policy=AckPolicy.ACK)
    assert (found.verdict, found.delay, found.reason) == (expected, delay, reason)

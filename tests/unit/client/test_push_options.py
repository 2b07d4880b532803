"""Options of a push consumer, and refused values."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any

import pytest

import client
from client.consumer.options import Orderly, PushOptions, Tags, subscriptions_of
from client.errors import UsageError


async def handle(_: Any) -> None:
    pass


def test_defaults_are_rocketmqs():
    options = PushOptions.gather({}, env={})
    assert (options.concurrency, options.batch_size, options.max_retries) == (20, 1, 16)
    assert (options.prefetch_messages, options.max_span) == (1000, 2000)
    assert (options.start_from, options.strategy, options.model) == (
        client.LAST,
        "AVG",
        "clustering",
    )
    assert options.consume_timeout == 900


def test_push_options_have_their_own_section():
    env = {"POCKETMQ_PUSH_CONSUMER_CONCURRENCY": "7", "POCKETMQ_PUSH_CONSUMER_EXACT": "yes"}
    options = PushOptions.gather({"consume_timeout": timedelta(minutes=1)}, env=env)
    assert (options.concurrency, options.exact, options.consume_timeout) == (7, True, 60.0)


@pytest.mark.parametrize(
    "given",
    [
        {"concurrency": 0},
        {"batch_size": 0},
        {"consume_timeout": 0},
        {"max_retries": -1},
        {"model": "both"},
        {"on_conflict": "shrug"},
        {"order": True},
        {"start_from": "nowhere"},
        {"local_offsets": "file.json"},
        {"max_span": "x"},
    ],
    ids=str,
)
def test_invalid_values_are_refused(given: dict[str, Any]):
    with pytest.raises(UsageError):
        PushOptions.gather(given, env={})


@pytest.mark.parametrize(
    "given", [{"max_retries": -1}, {"suspend": -1}, {"on_exhausted": "cry"}], ids=str
)
def test_an_invalid_order_is_refused(given: dict[str, Any]):
    with pytest.raises(UsageError):
        Orderly(**given)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"handler": "bill"}, "the handler can't be 'bill'"),
        ({"batch_size": 2}, "batch_size needs a handler"),
        ({"order": Orderly(auto_commit=False)}, "returns COMMIT or ROLLBACK"),
        (
            {"handler": handle, "order": Orderly(), "max_retries": 2},
            "the retries are configured there",
        ),
        ({"subscribe": "orders"}, "subscribe has to map topics to tags"),
        ({"subscribe": {"orders": 5}}, "tags can't be 5"),
        ({"subscribe": {"or ders": "*"}}, "illegal|character|can't"),
        ({"concurency": 2}, "no option 'concurency'; did you mean 'concurrency'"),
    ],
    ids=lambda value: "" if isinstance(value, dict) else value,
)
def test_a_consumer_refuses_what_contradicts_itself(given: dict[str, Any], text: str):
    arguments: dict[str, Any] = {"group": "g", "subscribe": {"T": "*"}, **given}
    with pytest.raises(UsageError, match=text):
        client.PushConsumer("127.0.0.1:1", **arguments)


def test_tags_are_an_expression():
    assert Tags("paid", "refunded").text == "paid || refunded"
    assert Tags().text == "*"
    assert subscriptions_of({"T": Tags("a", "b")}, "g")["T"].tags == {"a", "b"}
    for wrong in ("", "a || b", None):
        given: Any = wrong
        with pytest.raises(UsageError, match="is no tag"):
            Tags(given)


class Methods:
    async def one(self, message: Any) -> None: ...

    def none(self) -> None: ...

    def __call__(self, message: Any, *, context: str) -> None: ...


def two(message: Any, context: Any) -> None: ...


def keyword(*, message: Any) -> None: ...


@pytest.mark.parametrize(
    "handler",
    [lambda: None, two, keyword, Methods().none, Methods.one, Methods(), partial(two, 1, 2)],
    ids=["none", "two", "keyword", "method", "unbound", "object", "partial"],
)
@pytest.mark.parametrize("batch_size", [1, 2])
def test_a_handler_that_cannot_be_called_with_a_message_is_refused(handler: Any, batch_size: int):
    what = "a message" if batch_size == 1 else "a list of messages"
    with pytest.raises(
        UsageError, match=rf"the handler .* can't be called with {what}: .*one para"
    ):
        client.PushConsumer(
            "127.0.0.1:1", group="g", subscribe={"T": "*"}, handler=handler, batch_size=batch_size
        )


@pytest.mark.parametrize(
    "handler",
    [
        handle,
        Methods().one,
        partial(two, context=1),
        lambda message, more=1: None,
        print,
        [].append,
    ],
    ids=["function", "method", "partial", "lambda", "builtin", "bound builtin"],
)
def test_any_other_handler_is_accepted(handler: Any):
    client.PushConsumer("127.0.0.1:1", group="g", subscribe={"T": "*"}, handler=handler)


async def test_use_before_the_start_is_an_error():
    made = client.PushConsumer("127.0.0.1:1", group="g", subscribe={"T": "*"}, handler=handle)
    with pytest.raises(UsageError, match="not started"):
        _ = made.assigned
    with pytest.raises(UsageError, match="not started"):
        await made.run()
    with pytest.raises(UsageError, match="has a handler, which gets the messages"):
        await anext(made)
    await made.stop()


async def test_a_start_that_fails_leaves_nothing_behind():
    made = client.PushConsumer("127.0.0.1:1", group="g", subscribe={"T": "*"}, handler=handle)
    with pytest.raises(client.NoNameServer):
        await made.start()
    unknown: Any = "SHUFFLE"
    other = client.PushConsumer(
        "127.0.0.1:1", group="g", subscribe={"T": "*"}, handler=handle, strategy=unknown
    )
    with pytest.raises(UsageError, match="SHUFFLE"):
        await other.start()

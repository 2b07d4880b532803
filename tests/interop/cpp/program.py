"""The C++ client's part of a test: ``program.py WHAT NAMESERVER TOPIC COUNT``.

Each line that it prints is a JSON object: a receipt or a message. The group has the topic's name.
Requests are signed if ``ACCESS_KEY`` and ``SECRET_KEY`` are set.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from threading import Lock, Semaphore
from typing import Any

from rocketmq.client import Message, Producer, PullConsumer, PushConsumer, RecvMessage
from rocketmq.exceptions import ffi_check
from rocketmq.ffi import dll

CONSUME_SUCCESS, RECONSUME_LATER = 0, 1
PATIENCE = 60.0
"""Seconds to wait for the next message."""

SEND_TIMEOUT_MS = 60_000

_printing = Lock()


def tell(**facts: object) -> None:
    # Handlers run in the library's threads.
    with _printing:
        sys.stdout.write(json.dumps(facts) + "\n")
        sys.stdout.flush()


def tell_of(message: RecvMessage) -> None:
    tell(
        topic=message.topic,
        queue=message.queue_id,
        offset=message.queue_offset,
        id=message.id,
        tags=message.tags.decode(),
        keys=message.keys.decode(),
        color=message["color"].decode(),
        body=message.body.decode(),
        attempts=message.reconsume_times,
        waited_ms=message.store_timestamp - message.born_timestamp,
    )


@contextmanager
def started(member: Any, nameserver: str) -> Iterator[Any]:
    member.set_namesrv_addr(nameserver)
    if "ACCESS_KEY" in os.environ:
        keys = os.environ["ACCESS_KEY"], os.environ["SECRET_KEY"]
        member.set_session_credentials(*keys, "channel")
    member.start()
    yield member
    member.shutdown()


def send(nameserver: str, topic: str, count: int, ways: dict[str, Callable[..., Any]]) -> None:
    # With its own 3 s it repeats a message when the machine is so busy that the answer is late.
    with started(Producer(topic, timeout=SEND_TIMEOUT_MS), nameserver) as producer:
        for way, call in ways.items():
            for number in range(count):
                message = Message(topic)
                message.set_tags(way)
                message.set_keys(f"key-{number}")
                message.set_property("color", "blå")
                message.set_body(f"{way} {number} 中")
                receipt = call(producer, message, number)
                if receipt is not None:
                    status, message_id, offset = receipt
                    tell(way=way, status=status.name, id=message_id, offset=offset)


def send_in_every_way(nameserver: str, topic: str, count: int) -> None:
    ways = {
        "sync": lambda producer, message, _: producer.send_sync(message),
        "oneway": lambda producer, message, _: producer.send_oneway(message),
        "orderly": lambda producer, message, number: producer.send_orderly(message, number),
    }
    send(nameserver, topic, count, ways)


def send_delayed(nameserver: str, topic: str, count: int) -> None:
    """Send with a delay level, and with the property of RocketMQ 5's timers."""

    def delayed(producer: Producer, message: Message, _: int) -> Any:
        message.set_delay_time_level(1)
        return producer.send_sync(message)

    def timed(producer: Producer, message: Message, _: int) -> Any:
        message.set_property("TIMER_DELAY_SEC", "1")
        return producer.send_sync(message)

    send(nameserver, topic, count, {"delayed": delayed, "timed": timed})


def pull(nameserver: str, topic: str, count: int) -> None:
    with started(PullConsumer(topic), nameserver) as consumer:
        for message in consumer.pull(topic):
            tell_of(message)


def push(nameserver: str, topic: str, count: int, *, orderly: bool = False) -> None:
    """Handle ``count`` messages; the first call for the first message sent fails."""
    done = Semaphore(0)
    failed = Lock()

    def handle(_: int, pointer: int) -> int:
        message = RecvMessage(pointer)
        tell_of(message)
        if message.body.decode() == "sync 0 中" and failed.acquire(blocking=False):
            return RECONSUME_LATER
        done.release()
        return CONSUME_SUCCESS

    consumer = PushConsumer(topic, orderly=orderly)
    # ``subscribe`` takes handlers that fail by an exception, which the library counts as success.
    ffi_check(dll.Subscribe(consumer._handle, topic.encode(), b"*"))
    consumer._register_callback(handle)
    with started(consumer, nameserver):
        for _ in range(count):
            if not done.acquire(timeout=PATIENCE):
                sys.exit("no message came")


WHAT = {
    "send": send_in_every_way,
    "send-delayed": send_delayed,
    "pull": pull,
    "push": push,
    "push-orderly": partial(push, orderly=True),
}

if __name__ == "__main__":
    what, nameserver, topic, count = sys.argv[1:]
    WHAT[what](nameserver, topic, int(count))

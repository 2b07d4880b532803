"""The lane of confluent-kafka (librdkafka), with the settings its guide recommends for throughput.

Producing: a linger, ``produce_batch``, a delivery report per message (the equivalent of our
receipts), and ``poll`` to serve them. Consuming: ``consume`` of many messages. Deliveries: no
linger, and ``poll`` in a separate thread.

By default a consumer whose queue is full fetches again only after a second, which happens when
Python reads more slowly than librdkafka fetches. The guide recommends to lower
``fetch.queue.backoff.ms`` in this case, which doubles or trebles the rate.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any, TypeAlias

from confluent_kafka import (  # type: ignore[import-not-found]  # in .tools, not in our environment
    OFFSET_BEGINNING,
    OFFSET_END,
    Consumer,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import (  # type: ignore[import-not-found]  # in .tools as well
    AdminClient,
    NewTopic,
)

from benchmarks.clients.lanes.measuring import (
    PATIENCE,
    Deliveries,
    Figures,
    Reading,
    Stopwatch,
    Work,
    main,
)

READ_AT_ONCE = 1_000
OFFER_AT_ONCE = 1_000

Settings: TypeAlias = Mapping[str, object]
PRODUCER: Settings = {"linger.ms": 50}
CONSUMER: Settings = {"fetch.queue.backoff.ms": 10}
PROMPT: Settings = {"linger.ms": 0, "socket.nagle.disable": True}


class Reports:
    """Counts delivery reports."""

    def __init__(self) -> None:
        self.acknowledged = 0

    def __call__(self, error: Any, _: Any) -> None:
        if error is not None:
            raise KafkaException(error)
        self.acknowledged += 1


def prepare(work: Work) -> None:
    """Create the topic."""
    admin = AdminClient({"bootstrap.servers": work.address})
    made = admin.create_topics([NewTopic(work.topic, work.partitions, 1)])
    made[work.topic].result(PATIENCE)


def produce(work: Work) -> Figures:
    """Send all messages as fast as the queue accepts them; wait for all reports."""
    producer = _producer(work, PRODUCER)
    producer.produce(work.topic, work.body, on_delivery=Reports())
    producer.flush(PATIENCE)
    reports, body = Reports(), work.body
    watch = Stopwatch()
    offered = 0
    while offered < work.messages:
        number = min(OFFER_AT_ONCE, work.messages - offered)
        try:
            accepted = producer.produce_batch(
                work.topic, [{"value": body} for _ in range(number)], on_delivery=reports
            )
        except BufferError:
            accepted = 0
        offered += accepted
        producer.poll(0 if accepted == number else 0.01)
    producer.flush(PATIENCE)
    assert reports.acknowledged == work.messages, reports.acknowledged
    return watch.stop(work.messages)


def _producer(work: Work, settings: Settings) -> Any:
    return Producer({"bootstrap.servers": work.address, "acks": 1, **settings})


def _consumer(work: Work, start: int, settings: Settings) -> Any:
    consumer = Consumer({"bootstrap.servers": work.address, "group.id": work.topic, **settings})
    consumer.assign(
        [TopicPartition(work.topic, number, start) for number in range(work.partitions)]
    )
    return consumer


def consume(work: Work) -> Figures:
    """Read all messages from the start."""
    consumer = _consumer(work, OFFSET_BEGINNING, CONSUMER)
    reading, size = Reading(work.messages), 0
    while reading.left > 0:
        # consume() waits for the requested number, so don't request more than will come.
        messages = consumer.consume(min(READ_AT_ONCE, reading.left), PATIENCE)
        reading.took(len(messages))
        for message in messages:
            size += len(message.value()) + len(message.topic()) + (message.offset() >= 0)
    figures = reading.figures()
    consumer.close()
    return figures


def deliver(work: Work) -> Figures:
    """Send at a constant rate to a polling thread."""
    producer = _producer(work, PROMPT)
    consumer = _consumer(work, OFFSET_END, {})
    consumer.poll(1.0)
    deliveries = Deliveries(work)

    def receive() -> None:
        while not deliveries.complete:
            message = consumer.poll(PATIENCE)
            if message is None:
                return
            deliveries.came(message.value())

    receiver = threading.Thread(target=receive)
    receiver.start()
    for pause in deliveries.pauses():
        time.sleep(pause)
        producer.produce(work.topic, work.stamped())
        producer.poll(0)
    receiver.join()
    producer.flush(PATIENCE)
    consumer.close()
    assert deliveries.complete
    return deliveries.figures()


if __name__ == "__main__":
    main(prepare, produce, consume, deliver)

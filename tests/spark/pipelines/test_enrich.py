"""Pipeline 6: every message arrives in one of two topics, invalid ones with a reason."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from client.blocking import Admin, Producer
from examples.spark import send_flights as departures
from pocketmq.testing import StandaloneServer
from tests.spark.pipelines.shared import Received, example, loaded

enriching = example("enrich")


def test_flights_get_their_airline_and_bad_ones_their_reason(
    spark: Any,
    server: StandaloneServer,
    admin: Admin,
    producer: Producer[bytes],
    send: Callable[..., int],
    received: Received,
    new_name: Callable[[str], str],
    all_flights: list[departures.Record],
    tmp_path: Path,
) -> None:
    flights, names, good, bad = map(new_name, ("flights", "airlines", "named", "dead"))
    for topic in (good, bad):
        admin.create_topic(topic, queues=2)
    airlines = departures.airlines()
    assert len(airlines) == 16
    outdated = {"UA": "Boeing Air Transport"} | {
        key: airlines[key] for key in airlines if key != "HA"
    }
    asyncio.run(departures.send_airlines(server.nameserver, names, outdated))
    asyncio.run(departures.send_airlines(server.nameserver, names, {"UA": airlines["UA"]}))
    sent = all_flights[:2000]
    send(flights, sent)
    broken = [b"{not json", b"[1, 2]", b"{}"]
    for body in broken:
        producer.send(flights, body, tag="broken", keys=["b"])

    query = enriching.start(
        spark, server.nameserver, str(tmp_path), flights=flights, names=names, good=good, bad=bad
    )
    assert query.awaitTermination(100)
    assert query.exception() is None

    hawaiian = sum(flight["carrier"] == "HA" for flight in sent)
    assert hawaiian > 0
    named = loaded(received(good, 2000 - hawaiian))
    assert Counter((one["carrier"], one["airline"], one["flight"]) for one in named) == Counter(
        (flight["carrier"], airlines[str(flight["carrier"])], flight["flight"])
        for flight in sent
        if flight["carrier"] != "HA"
    )
    dead = received(bad, len(broken) + hawaiian)
    assert Counter(message.properties["reason"] for message in dead) == {
        "no flight in JSON": 3,
        "no airline HA": hawaiian,
    }
    unread = [message for message in dead if message.tag == "broken"]
    assert sorted(message.body for message in unread) == sorted(broken)
    assert all(message.properties["from"].startswith(f"{flights}/") for message in dead)

"""The lane of confluent-kafka with default settings except ``acks=1``; see ``confluent_lane``."""

from __future__ import annotations

from functools import partial

from benchmarks.clients.lanes.confluent_lane import consume, deliver, prepare, produce
from benchmarks.clients.lanes.measuring import main

if __name__ == "__main__":
    main(
        {
            "prepare": prepare,
            "produce": partial(produce, settings={}),
            "consume": partial(consume, settings={}),
            "deliver": partial(deliver, settings={}),
        }
    )

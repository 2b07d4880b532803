"""Topics created or changed by an administrator."""

from __future__ import annotations

from typing import Any

from remoting.protocol.codes import RequestCode
from remoting.protocol.command import Command
from remoting.protocol.headers import admin
from tests.unit.broker.harness import Bench


def create(bench: Bench, topic: str = "T", **fields: Any) -> Command:
    header = admin.CreateTopicRequestHeader(
        **{
            "topic": topic,
            "default_topic": "TBW102",
            "read_queue_nums": 3,
            "write_queue_nums": 2,
            "perm": 6,
            "topic_filter_type": "SINGLE_TAG",
            **fields,
        }
    )
    return bench.must(Command.request(RequestCode.UPDATE_AND_CREATE_TOPIC, header))

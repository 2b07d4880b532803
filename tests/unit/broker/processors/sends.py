"""Results of sends: the stored messages and the refusals."""

from __future__ import annotations

from remoting.protocol.message.view import RecordView, iter_records
from tests.unit.broker.harness import Bench, fields_of, send_command

ADDED = {"CLUSTER": "DefaultCluster", "MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
"""What the broker adds to the properties of each message."""

ADDED_TEXT = "\x02".join("\x01".join(entry) for entry in ADDED.items())


def stored(bench: Bench, topic: str, queue_id: int = 0) -> list[RecordView]:
    result = bench.store.get(topic, queue_id, 0, 1024)
    return [record for view in result.records for record in iter_records(view)]


def refusal(bench: Bench, **fields) -> tuple[int, str]:
    reply = bench.must(send_command(fields.pop("topic", "T"), fields.pop("body", b"x"), **fields))
    assert fields_of(reply) == {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
    return reply.code, reply.remark

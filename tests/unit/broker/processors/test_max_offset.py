"""GET_MAX_OFFSET."""

from __future__ import annotations

from remoting.protocol.codes import RequestCode
from remoting.protocol.command import Command
from remoting.protocol.headers.pull import GetMaxOffsetRequestHeader
from tests.unit.broker.harness import Bench, fields_of


def test_the_end_of_a_queue_is_the_number_of_its_next_message(bench: Bench) -> None:
    bench.topic("T")
    bench.send("T", b"one")
    bench.send("T", b"two")
    for topic, end in (("T", "2"), ("nowhere", "0")):
        header = GetMaxOffsetRequestHeader(topic=topic, queue_id=0)
        command = Command.request(RequestCode.GET_MAX_OFFSET, header)
        command = Command(command.code, pairs=tuple(command.all_pairs() or ()))
        assert fields_of(bench.must(command)) == {"offset": end}

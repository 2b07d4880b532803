"""Pulls at a test bench, and the next offsets in their answers."""

from __future__ import annotations

from tests.unit.broker.harness import Bench, pull_command

NO_SUBSCRIPTION = {"sys_flag": 0, "subscription": None}


def pull(bench: Bench, topic: str = "T", **fields):
    return bench.ask(pull_command(topic, **fields))


def bounds(reply) -> tuple[int, int, int]:
    header = reply.header
    return header.next_begin_offset, header.min_offset, header.max_offset

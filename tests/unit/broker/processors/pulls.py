"""Pulls at a bench, and where their answers say that a queue goes on."""

from __future__ import annotations

from tests.unit.broker.harness import Bench, pull_command

NO_SUBSCRIPTION = {"sys_flag": 0, "subscription": None}


def pull(bench: Bench, topic: str = "T", **fields):
    return bench.ask(pull_command(topic, **fields))


def bounds(reply) -> tuple[int, int, int]:
    header = reply.header
    return header.next_begin_offset, header.min_offset, header.max_offset

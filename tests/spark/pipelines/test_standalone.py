"""Pipeline 1 on a separate Spark master and worker: the compose file's command lines."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from client.blocking import Admin
from examples.demo.plain_delays import Figures, Place, counted
from examples.spark import delays
from examples.spark import send_flights as departures
from tests.integration.deploy.compose import Service, deployed

WAIT = 200
COUNT = 20_000
"""Flights, instead of all: what takes time is starting the JVMs."""


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_submitted_job_finds_what_plain_python_counts(
    spark: Any, tmp_path: Path, all_flights: list[departures.Record]
) -> None:
    assert len(all_flights) == COUNT
    with deployed(tmp_path, "delays", commands={"flights": [str(COUNT)]}) as deployment:
        job = Service("delays", deployment.document["services"]["delays"])
        nameserver = deployment.environment(job)["NAMESRV_ADDR"]
        assert deployment.running["delays"].wait(WAIT) == 0, deployment.output("delays")
        expected = counted(all_flights)
        rows = delays.in_topic(spark, nameserver, "delays")
        assert {Place(*row[:3]): Figures(*row[3:]) for row in rows} == expected
        assert len(rows) == len(expected)
        with Admin(nameserver) as admin:
            assert admin.lag(delays.GROUP, topic="flights").total == 0
        worker = deployment.output("spark-worker")
    assert "Launch command" in worker
    shown = re.findall(r"^(\w{3}) (\w\w): \d+ flights", deployment.output("delays"), re.MULTILINE)
    assert set(shown) == {
        (place.origin, place.carrier) for place, figures in expected.items() if figures.departed
    }

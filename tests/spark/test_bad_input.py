"""Error messages: what is wrong, where, and what to do."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from client.blocking import Admin, Producer
from pocketmq.testing import StandaloneServer
from remoting.blocking import BlockingConnection
from remoting.protocol.codes import RequestCode
from remoting.protocol.command import Command
from remoting.protocol.headers.send import SendMessageRequestHeaderV2
from remoting.protocol.message.record import COMPRESSED
from tests.harness.processes import processes

QUICK = {"fetchOffset.numRetries": "0", "requestTimeoutMs": "20000", "readTimeoutMs": "1000"}


@pytest.fixture(scope="module")
def topic(new_topic: Any, fill: Any) -> str:
    name: str = new_topic(2, "Wrong")
    fill(name, 20)
    return name


def complaint(action: Callable[[], Any]) -> str:
    """Return the error message of an action."""
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException) as caught:
        action()
    return str(caught.value)


def run_stream(frame: Any, checkpoint: Path) -> None:
    query = (
        frame.writeStream.format("noop")
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(60)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"maxOffsetPerTrigger": "5"}, "no option 'maxoffsetpertrigger'; did you mean 'maxOffsets"),
        ({"startingOffsets": "start"}, "startingOffsets of format rocketmq can't be 'start'"),
        ({"subscribePattern": "a.*"}, "topic and subscribePattern contradict each other"),
        ({"failOnDataLoss": "true", "onDataLoss": "skip"}, "onDataLoss=skip contradict each other"),
        ({"filterSql": "a > 5", "filterTags": "A"}, "filterTags and filterSql are both given"),
        ({"secretKey": "hush"}, "give accessKey and secretKey, or credentialsFile"),
    ],
)
def test_wrong_options_are_errors_before_anything_is_asked(
    read: Any, stream: Any, topic: str, options: dict[str, str], words: str
):
    for make in (read, stream):
        text = complaint(lambda make=make: make(topic, **options))
        assert words in text
        assert "hush" not in text


def test_a_topic_or_a_name_server_has_to_be_named(spark: Any, read: Any):
    assert "the source of format rocketmq needs topics to read" in complaint(read)
    unnamed = spark.read.format("rocketmq").option("topic", "T")
    assert "nameServer of format rocketmq is missing" in complaint(unnamed.load)


def test_an_unknown_topic_is_an_error_with_the_nearest_name(
    read: Any, stream: Any, topic: str, tmp_path: Path
):
    wrong = topic.lower()
    words = f"knows no topic '{wrong}'; did you mean '{topic}'?"
    assert words in complaint(read(wrong).count)
    assert words in complaint(lambda: run_stream(stream(wrong), tmp_path / "unknown"))


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ("boddy binary", "the schema has a column 'boddy'; perhaps 'body' is meant"),
        ("body string", "the schema says that column body is string; read it as binary"),
        ("value binary", "the schema has a column 'value'"),
    ],
)
def test_a_schema_that_is_no_part_of_ours_is_an_error(
    read: Any, stream: Any, topic: str, schema: str, words: str, tmp_path: Path
):
    assert words in complaint(lambda: read(topic, schema=schema).count())
    frame = stream(topic, schema=schema)
    assert words in complaint(lambda: run_stream(frame, tmp_path / "schema"))


def test_an_end_is_no_option_of_a_stream(stream: Any, topic: str, tmp_path: Path):
    frame = stream(topic, endingOffsets="latest")
    text = complaint(lambda: run_stream(frame, tmp_path / "end"))
    assert "endingOffsets can't be given to a streaming query" in text


def test_offsets_beyond_the_end_are_an_error_or_not(read: Any, topic: str):
    beyond = f'{{"{topic}":{{"0":11,"1":0}}}}'
    text = complaint(read(topic, startingOffsets=beyond).count)
    assert f"startingOffsets asks for offset 11 of queue {topic}/" in text
    assert "holds [0, 10)" in text
    assert read(topic, startingOffsets=beyond, onDataLoss="skip").count() == 10


def test_a_checkpoint_of_another_topic_is_an_error(
    stream: Any, topic: str, new_topic: Any, fill: Any, tmp_path: Path
):
    other = new_topic(1, "Other")
    fill(other, 5)
    run_stream(stream(other, startingOffsets="earliest"), tmp_path / "mixed")
    text = complaint(lambda: run_stream(stream(topic), tmp_path / "mixed"))
    assert f"the checkpoint has offsets of queue {other}/" in text


def test_an_unreachable_name_server_is_named(spark: Any, topic: str):
    reader = spark.read.format("rocketmq").option("nameServer", "127.0.0.1:9").options(**QUICK)
    text = complaint(reader.option("topic", topic).load().count)
    assert "no name server answers: 127.0.0.1:9 could not be asked" in text
    assert "Connection refused" in text


@pytest.mark.slow
def test_a_broker_that_dies_is_named_and_its_query_continues_later(spark: Any, tmp_path: Path):
    with processes(tmp_path) as running:
        with Admin(running.address) as admin, Producer(running.address) as producer:
            admin.create_topic("T", queues=1)
            producer.send("T", b"read")
        read = spark.read.format("rocketmq").option("nameServer", running.address).options(**QUICK)
        stream = spark.readStream.format("rocketmq").option("nameServer", running.address)
        stream = stream.options(**QUICK, topic="T", startingOffsets="earliest").load()
        writer = stream.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
        found: list[bytes] = []

        def collect(frame: Any, _: int) -> None:
            found.extend(bytes(row["body"]) for row in frame.collect())

        def kill_and_collect(frame: Any, number: int) -> None:
            running.broker.kill()
            collect(frame, number)

        def run(each: Callable[[Any, int], None]) -> None:
            writer.foreachBatch(each).trigger(availableNow=True).start().awaitTermination(60)

        text = complaint(lambda: run(kill_and_collect))
        unread = r"no messages from offset 0 on for \d+ s: topic T, queue 0 of broker broker-a"
        assert re.search(unread, text)
        assert "check that the broker runs and can be reached from the executors" in text
        text = complaint(read.option("topic", "T").load().count)
        assert "check that its brokers run" in text
        running.broker.start()
        run(collect)
        assert found == [b"read"]


def test_missing_queues_cannot_be_assigned(read: Any, admin: Admin, topic: str):
    broker = admin.queues(topic)[0].broker_name
    assigned = read(None, assign=f'{{"{topic}":{{"{broker}":[1,5]}}}}')
    assert f"assign names queue {topic}/{broker}/5, which isn't there" in complaint(assigned.count)


def test_a_recreated_topic_has_its_own_error(
    stream: Any, admin: Admin, new_topic: Any, fill: Any, tmp_path: Path
):
    topic = new_topic(1, "Anew")
    fill(topic, 10)
    run_stream(stream(topic, startingOffsets="earliest"), tmp_path / "anew")
    admin.delete_topic(topic)
    admin.create_topic(topic, queues=1)
    fill(topic, 3)
    text = complaint(lambda: run_stream(stream(topic), tmp_path / "anew"))
    assert "ends at offset 3, before the 10 that was read already: the topic was deleted" in text
    run_stream(stream(topic, onDataLoss="earliest"), tmp_path / "anew")


def test_a_body_that_cannot_be_inflated_is_an_error_or_null_or_raw(
    read: Any, server: StandaloneServer, new_topic: Any, fill: Any
):
    topic = new_topic(1, "Damaged")
    fill(topic, 1)
    send_damaged(server.broker, topic)
    fill(topic, 1, first=1)
    text = complaint(read(topic).collect)
    assert topic in text
    assert "onDecodeError" in text
    for policy, body in (("null", None), ("raw", b"no zlib")):
        found = read(topic, onDecodeError=policy).orderBy("queueOffset").collect()
        bodies = [None if row["body"] is None else bytes(row["body"]) for row in found]
        assert bodies == [b"0", body, b"1"]


def send_damaged(address: str, topic: str) -> None:
    header = SendMessageRequestHeaderV2(
        producer_group="tests",
        topic=topic,
        default_topic="TBW102",
        default_topic_queue_nums=1,
        queue_id=0,
        sys_flag=COMPRESSED,
        born_timestamp=0,
        flag=0,
        properties="",
        reconsume_times=0,
    )
    with BlockingConnection(address) as connection:
        command = Command.request(RequestCode.SEND_MESSAGE_V2, header, body=b"no zlib")
        assert connection.request(command, timeout=10).code == 0


SCRIPT = """
import sys
from pyspark.sql import SparkSession
builder = SparkSession.builder.master("local[1]")
for setting in sys.argv[2:]:
    builder = builder.config(*setting.split("=", 1))
spark = builder.getOrCreate()
try:
    spark.read.format("rocketmq").option("nameServer", sys.argv[1]).option("topic", "T").load()
except Exception as error:
    print(error)
spark.stop()
"""


@pytest.mark.slow
@pytest.mark.parametrize("module", ["pyarrow", "numpy"])
def test_workers_without_a_needed_module_are_reported(tmp_path: Path, module: str):
    from tests.spark.conftest import SETTINGS

    (tmp_path / f"{module}.py").write_text(f"raise ImportError(\"No module named '{module}'\")")
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\nPYTHONPATH="{tmp_path}:$PYTHONPATH" exec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            SCRIPT,
            "127.0.0.1:9",
            *(f"{name}={value}" for name, value in SETTINGS.items()),
        ],
        env={
            **os.environ,
            "PYSPARK_PYTHON": str(python),
            "PYSPARK_DRIVER_PYTHON": str(python),
        },
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert f"the Python of Spark's workers, {sys.executable}, has no usable {module}" in done.stdout
    assert "set PYSPARK_PYTHON to a Python that has it" in done.stdout

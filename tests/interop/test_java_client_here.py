"""An unmodified Apache Java client sends to our broker and reads from it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from pocketmq import testing
from tests.interop.apache import JavaClient

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

COUNT = 5
KINDS = ("sync", "async", "oneway", "batch")
EVERYTHING = COUNT * len(KINDS) + 1

CLIENTS = [("4.9.7", "JSON"), ("4.9.7", "ROCKETMQ"), ("5.3.3", "JSON")]


@pytest.fixture(scope="module")
def server() -> Iterator[testing.StandaloneServer]:
    # Settings are for all tests: these topics only have a quota.
    topics = (f"quota-{version.replace('.', '_')}-{codec}" for version, codec in CLIENTS)
    rates = ";".join(f"{topic}={COUNT}" for topic in topics)
    with testing.broker(settings={"pocketmqMaxTopicMessagesPerSecond": rates}) as running:
        yield running


@pytest.fixture(params=CLIENTS, ids="-".join)
def java(request: pytest.FixtureRequest, tmp_path: Path) -> JavaClient:
    version, serialize = request.param
    return JavaClient(version, serialize, tmp_path)


def topic_of(java: JavaClient, what: str) -> str:
    return f"{what}-{java.version.replace('.', '_')}-{java.serialize}"


def test_sends_with_every_method_and_reads_what_it_sent(
    java: JavaClient, server: testing.StandaloneServer
) -> None:
    topic = topic_of(java, "all")

    sent = java.run("send", server.nameserver, topic, str(COUNT))
    read = java.run("read", server.nameserver, topic, str(EVERYTHING))

    assert Counter(fact[0] for fact in sent) == {
        "sync": COUNT,
        "async": COUNT,
        "batch": 1,
        "large": 1,
    }
    assert {fact[1] for fact in sent} == {"SEND_OK"}
    assert len(read) == EVERYTHING
    bodies = Counter(fact[9] for fact in read)
    expected = Counter(f"java {kind} {n} 中" for kind in KINDS for n in range(COUNT))
    assert bodies == expected + Counter(["bytes:100000"])
    sent_ids = {offset_id for fact in sent for offset_id in fact[3].split(",")}
    assert sent_ids <= {fact[4] for fact in read}


def test_reads_tags_keys_flags_and_properties_as_they_were_sent(
    java: JavaClient, server: testing.StandaloneServer
) -> None:
    topic = topic_of(java, "fields")
    java.run("send", server.nameserver, topic, str(COUNT))

    read = java.run("read", server.nameserver, topic, str(EVERYTHING))

    for *_, tag, key, flag, number, body in read:
        if tag == "large":
            continue
        assert tag == f"tag-{int(number) % 2}"
        assert key == f"key-{body.split()[1]}-{number}"
        assert flag == number


def test_queue_offsets_of_receipts_are_where_the_messages_are(
    java: JavaClient, server: testing.StandaloneServer
) -> None:
    topic = topic_of(java, "places")
    sent = java.run("send", server.nameserver, topic, str(COUNT))

    read = java.run("read", server.nameserver, topic, str(EVERYTHING))

    place_of = {fact[4]: (fact[1], fact[2]) for fact in read}
    for fact in sent:
        assert place_of[fact[3].split(",")[0]] == (fact[4], fact[5])


def test_unique_ids_of_single_messages_are_read_back(
    java: JavaClient, server: testing.StandaloneServer
) -> None:
    topic = topic_of(java, "ids")
    sent = java.run("send", server.nameserver, topic, str(COUNT))

    read = java.run("read", server.nameserver, topic, str(EVERYTHING))

    # Elements of a batch that a 5.x client sent read back with the batch's id, as they do from
    # Apache's brokers: the batch's properties are appended to each element's.
    assert {fact[2] for fact in sent if fact[0] != "batch"} <= {fact[3] for fact in read}


def test_seeks_to_an_offset(java: JavaClient, server: testing.StandaloneServer) -> None:
    topic = topic_of(java, "seek")
    java.run("send", server.nameserver, topic, str(COUNT))

    read = java.run("seek", server.nameserver, topic, "0", "2")

    assert read[0][1:3] == ["0", "2"]


def test_a_long_poll_is_woken_by_a_message(
    java: JavaClient, server: testing.StandaloneServer
) -> None:
    topic = topic_of(java, "wait")
    java.run("send", server.nameserver, topic, "1")

    with java.running("wait", server.nameserver, topic) as waiting:
        assert waiting.stdout is not None
        ready = next(line for line in waiting.stdout if line.startswith("ready"))
        java.run("send", server.nameserver, topic, "1")
        received = [line for line in waiting.stdout if line.startswith("message")]

    assert ready
    assert received


def test_a_send_above_a_quota_is_an_error_with_the_text_that_names_it(
    java: JavaClient, server: testing.StandaloneServer
) -> None:
    topic = topic_of(java, "quota")
    with java.running("send", server.nameserver, topic, str(10 * COUNT)) as sending:
        assert sending.stderr is not None
        found = next(line for line in sending.stderr if "CODE: 2" in line)

    assert f"topic {topic} has used up its quota of {COUNT} messages a second for sends" in found

"""The options of a write."""

from __future__ import annotations

import pytest

from spark_connector.errors import OptionError
from spark_connector.sink.options import Partitioner, SendMode, UniqKey, sink_options
from spark_connector.sink.writer import SinkPlan

REQUIRED = {"nameServer": "127.0.0.1:9876"}
BODY = ("body", "binary")


def test_a_write_needs_few_options() -> None:
    options = sink_options(REQUIRED)
    assert options.connection.name_servers == ("127.0.0.1:9876",)
    assert (options.send_mode, options.retries, options.max_batch_bytes) == ("sync", 3, 1 << 20)
    assert (options.topic, options.uniq_key, options.partitioner) == (None, None, None)


def test_names_and_values_are_case_insensitive() -> None:
    given = {
        "SENDMODE": "OneWay",
        "maxbatchbytes": "64k",
        "uniqkey": "Random",
        "Partitioner": "hashkeys",
        "sendTimeoutMs": "30s",
        "delaylevel": "4",
    }
    options = sink_options({**REQUIRED, **given})
    assert options.send_mode is SendMode.ONEWAY
    assert options.max_batch_bytes == 65536
    assert options.uniq_key is UniqKey.RANDOM
    assert options.partitioner is Partitioner.HASH_KEYS
    assert (options.send_timeout, options.delay_level) == (30.0, 4)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"maxBatchByte": "1"}, "sink of format rocketmq has no option 'maxBatchByte'"),
        ({"startingOffsets": "latest"}, "has no option 'startingOffsets'"),
        ({"maxBatchBytes": "5m"}, "write 1024 to 4194304 bytes"),
        ({"sendMode": "async"}, "write sync or oneway"),
        ({"topic": "a/b"}, "illegal characters"),
        ({"producerGroup": "a b"}, "illegal characters"),
        ({"sendTimeoutMs": "1000"}, "sendTimeoutMs, 1000, is below requestTimeoutMs"),
        ({"tlsCa": "none.pem"}, "the CA file none.pem can.t be used"),
    ],
)
def test_invalid_options_are_refused_with_a_remedy(given: dict[str, str], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        sink_options({**REQUIRED, **given})


@pytest.mark.parametrize(
    ("given", "fields", "words"),
    [
        ({}, [BODY], "a write needs a topic"),
        ({"topic": "t", "uniqKey": "column"}, [BODY], "needs the column uniqKey"),
        (
            {"topic": "t", "uniqKey": "position"},
            [BODY, ("uniqKey", "string")],
            "uniqKey=position does not use the column uniqKey",
        ),
    ],
)
def test_options_and_frame_have_to_fit(
    given: dict[str, str], fields: list[tuple[str, str]], words: str
) -> None:
    with pytest.raises(OptionError, match=words):
        SinkPlan.of(sink_options({**REQUIRED, **given}), fields)


def test_the_column_gives_the_unique_keys_if_it_is_there() -> None:
    options = sink_options({**REQUIRED, "topic": "t"})
    assert SinkPlan.of(options, [BODY, ("uniqKey", "string")]).uniq_key is UniqKey.COLUMN
    assert SinkPlan.of(options, [BODY]).uniq_key is UniqKey.POSITION

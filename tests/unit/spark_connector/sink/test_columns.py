"""Which frames can be written."""

from __future__ import annotations

import pytest

from spark_connector.errors import OptionError
from spark_connector.sink.columns import choose
from spark_connector.sink.placing import BY_COLUMN, BY_HASH, deciding_columns


def test_kafkas_names_and_any_case_are_understood() -> None:
    fields = [("value", "string"), ("KEY", "binary"), ("Tags", "varchar(20)")]
    assert choose(fields) == {"body": "value", "keys": "KEY", "tags": "Tags"}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ([("keys", "string")], "no column 'body' or 'value', but keys"),
        ([("body", "binary"), ("value", "string")], "'body' and 'value' to write both mean body"),
        ([("body", "int")], "'body' to write is of type int, it has to be binary or string"),
        ([("body", "binary"), ("tag", "string")], "the sink has no column 'tag'.*mean 'tags'"),
        ([("body", "binary"), ("queueOffset", "bigint")], "the sink has no column 'queueOffset'"),
        ([("body", "binary"), ("properties", "string")], "has to be map<string,string>"),
    ],
)
def test_a_frame_that_does_not_fit_is_refused(fields: list[tuple[str, str]], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        choose(fields)


@pytest.mark.parametrize(
    ("partitioner", "names", "expected"),
    [
        (None, ["body"], ()),
        (None, ["body", "keys"], ()),
        (None, ["body", "shardingKey"], BY_HASH),
        (None, ["body", "shardingKey", "queueId"], BY_COLUMN),
        ("hashKeys", ["body", "keys"], BY_HASH),
        ("column", ["body", "queueId", "brokerName"], BY_COLUMN),
    ],
)
def test_the_columns_decide_the_queue_unless_the_option_does(
    partitioner: str | None, names: list[str], expected: tuple[str, ...]
) -> None:
    assert tuple(deciding_columns(partitioner, names)) == expected


@pytest.mark.parametrize(
    ("partitioner", "names", "words"),
    [
        ("column", ["body"], "needs the column queueId"),
        ("hashKeys", ["body"], "needs the column shardingKey or keys"),
        ("hashKeys", ["body", "keys", "queueId"], "hashKeys does not use the column queueId"),
        ("roundRobin", ["body", "shardingKey"], "does not use the column shardingKey"),
        (None, ["body", "brokerName"], "does not use the column brokerName"),
    ],
)
def test_an_option_that_contradicts_the_columns_is_refused(
    partitioner: str | None, names: list[str], words: str
) -> None:
    with pytest.raises(OptionError, match=words):
        deciding_columns(partitioner, names)

"""Keys that sign requests are in no plan, error or log of Spark."""

from __future__ import annotations

from typing import Any

import pytest

KEYS = {
    "accessKey": "planted-account",
    "secretKey": "planted-secret",
    "securityToken": "planted-token",
}


def test_secrets_are_in_no_plan(
    read: Any, stream: Any, new_topic: Any, fill: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    topic = new_topic(2, "Secret")
    fill(topic, 20)
    rows = read(topic, **KEYS)
    rows.explain(extended=True)
    stream(topic, **KEYS).explain(extended=True)
    assert rows.count() == 20
    writing = rows.select("body").write.format("rocketmq").mode("append").options(**KEYS)
    nowhere = {"nameServer": "127.0.0.1:1", "topic": topic, "fetchOffset.numRetries": "0"}
    with pytest.raises(Exception, match=r"127\.0\.0\.1:1") as failed:
        writing.options(**nowhere).save()
    plan = str(rows._jdf.queryExecution().toString())
    output = capfd.readouterr()
    for text in (output.out, output.err, plan, str(failed.value)):
        assert "planted-secret" not in text
        assert "planted-token" not in text

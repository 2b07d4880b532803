"""The blocks of docs/spark.md work, one after the other, and so does the recipe for Spark."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from client import Message
from client.blocking import Admin, Producer
from pocketmq.testing import StandaloneServer
from tests.support.ports import free_port
from tests.support.tour import DEFAULT, HOME, blocks, only_block, recipes

PAGE = HOME / "docs" / "spark.md"


@pytest.fixture
def orders(admin: Admin, producer: Producer[bytes]) -> None:
    """Create the topics of the page, with messages in the one that is read."""
    for topic in ("orders", "big-orders"):
        admin.create_topic(topic, queues=2)
    bodies = [json.dumps({"customer": f"c{number % 3}"}).encode() for number in range(30)]
    messages = [
        Message("orders", body, tag="paid" if number % 2 else "open", keys=[f"o-{number}"])
        for number, body in enumerate(bodies)
    ]
    assert not [one for one in producer.send_many(messages) if isinstance(one, Exception)]


@pytest.mark.usefixtures("orders")
def test_the_blocks_of_the_page_run_as_they_are_shown(
    spark: Any, server: StandaloneServer, admin: Admin, read: Any
) -> None:
    names: dict[str, Any] = {}
    try:
        for block in blocks(PAGE, "py"):
            exec(compile(block.replace(DEFAULT, server.nameserver), str(PAGE), "exec"), names)
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
        spark.sql("DROP TABLE IF EXISTS of_orders")
        if "lag" in names:
            spark.streams.removeListener(names["lag"])
    counts = {row["tags"]: row["count"] for row in spark.table("per_minute").collect()}
    assert sum(counts.values()) > 0
    # The block about tables inserts one message after the stream has ended.
    assert admin.lag("dashboard", topic="orders").total == 1
    assert read("big-orders").filter("tags = 'big' AND keys LIKE 'o-%'").count() == 30


@pytest.fixture
def database() -> Iterator[str]:
    """Start PostgreSQL, and give the URL of an empty database."""
    debian = Path("/usr/lib/postgresql").glob("*/bin")  # not on the PATH
    path = os.pathsep.join([os.environ["PATH"], *map(str, debian)])
    if shutil.which("initdb", path=path) is None:
        pytest.skip("the recipe needs PostgreSQL; Debian: apt install postgresql")
    user = ["runuser", "-u", "postgres", "--"] if os.getuid() == 0 else []  # it refuses root
    port = free_port()
    with TemporaryDirectory() as home:
        if user:
            shutil.chown(home, "postgres")

        def run(*words: str) -> None:
            command = [*user, "env", f"PATH={path}", *words]
            subprocess.run(command, cwd=home, check=True, timeout=60, stdout=subprocess.DEVNULL)

        run("initdb", "--pgdata=data", "--auth=trust", "--username=shop", "--no-sync")
        listen = f"-p {port} -k {home}"
        run("pg_ctl", "--pgdata=data", "--wait", "--log=log", f"--options={listen}", "start")
        try:
            yield f"postgresql://shop@127.0.0.1:{port}/postgres"
        finally:
            run("pg_ctl", "--pgdata=data", "--mode=immediate", "stop")


@pytest.mark.usefixtures("spark")
def test_the_recipe_stores_each_message_once(
    server: StandaloneServer,
    admin: Admin,
    producer: Producer[bytes],
    database: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    admin.create_topic("sold", queues=2)
    sent = producer.send_many(Message("sold", b"%d" % cups) for cups in range(1, 41))
    assert not [one for one in sent if isinstance(one, Exception)]
    recipe = recipes()["operating.md#exactly-once-from-spark-into-postgresql"]
    monkeypatch.chdir(tmp_path)
    program = only_block(recipe, "python").replace(DEFAULT, server.nameserver)
    program = program.replace("postgresql://shop@localhost/shop", database)
    # As the main program, whose functions Spark sends to its workers whole.
    exec(compile(program, "recipe", "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out == only_block(recipe, "text")

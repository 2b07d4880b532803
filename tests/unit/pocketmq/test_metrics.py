"""The metrics port before, while and after a server serves."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Mapping, Sequence
from http.client import HTTPConnection
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from broker.config import BrokerConfig
from nameserver.config import NameServerConfig
from pocketmq.server.metrics import MetricsPart
from pocketmq.server.metrics_page import OF_PAIRS
from pocketmq.server.serving import BrokerPart, NameServerPart
from remoting.runtime.process_limits import HTTP_CONNECTIONS
from tests.support.tour import HOME


class Slow:
    """A part whose start and stop wait until released."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.go = asyncio.Event()

    async def start(self) -> None:
        self.reached.set()
        await self.go.wait()
        self.reached.clear()
        self.go.clear()

    async def stop(self) -> None:
        self.reached.set()
        await self.go.wait()

    def ready(self) -> Mapping[str, str]:
        return {"slow": "here"}

    def failures(self) -> Sequence[asyncio.Future[None]]:
        return []


def ask(part: MetricsPart, path: str, method: str = "GET") -> tuple[int, str, Mapping[str, str]]:
    connection = HTTPConnection(part.address, timeout=10)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        fields = {name: value for name, value in answer.headers.items() if name != "Date"}
        return answer.status, answer.read().decode(), fields
    finally:
        connection.close()


async def get(part: MetricsPart, path: str, method: str = "GET") -> tuple[int, str]:
    status, body, _ = await asyncio.to_thread(ask, part, path, method)
    return status, body


async def until_ready_says(part: MetricsPart, text: str) -> str:
    async with asyncio.timeout(10):
        while text not in (found := await get(part, "/readyz"))[1]:  # noqa: ASYNC110 - it is asked
            await asyncio.sleep(0.01)
    assert found[0] == 503
    return found[1]


def serving(*parts: Any, **options: Any) -> MetricsPart:
    return MetricsPart(parts, host="127.0.0.1", port=0, **options)


def broker_part(root: Path, *name_servers: str, **settings: Any) -> BrokerPart:
    return BrokerPart(
        BrokerConfig(
            broker_name="broker-a",
            listen_port=0,
            store_path_root_dir=root / "store",
            mapped_file_size_commit_log=1 << 20,
            namesrv_addr=name_servers,
            **settings,
        )
    )


async def test_the_port_answers_from_before_the_start_until_after_the_stop(
    tmp_path: Path,
) -> None:
    slow = Slow()
    part = serving(slow, broker_part(tmp_path))
    start = asyncio.ensure_future(part.start())
    await slow.reached.wait()
    assert await get(part, "/livez") == (200, "ok\n")
    assert await get(part, "/readyz") == (503, "the server is starting\n")
    assert (await get(part, "/metrics"))[0] == 200
    slow.go.set()
    await start
    assert part.ready().keys() == {"slow", "broker", "core", "metrics"}
    assert await get(part, "/readyz") == (200, "ok\n")
    stop = asyncio.ensure_future(part.stop())
    await slow.reached.wait()
    assert await get(part, "/readyz") == (503, "the server is stopping\n")
    assert (await get(part, "/metrics"))[0] == 200
    slow.go.set()
    await stop
    with pytest.raises(ConnectionRefusedError):
        await get(part, "/livez")


async def test_other_paths_are_not_found_and_head_gives_no_body(tmp_path: Path) -> None:
    part = serving(broker_part(tmp_path))
    await part.start()
    try:
        for path in ("/", "/metricsx", "/metrics/x", "/favicon.ico"):
            status, text = await get(part, path)
            assert status == 404
            assert "/metrics, /livez, /readyz" in text
        for path in ("/metrics", "/metrics?name[]=pocketmq_topics", "/livez", "/readyz", "/"):
            status, _, fields = await asyncio.to_thread(ask, part, path)
            assert await asyncio.to_thread(ask, part, path, "HEAD") == (status, "", fields)
        assert "pocketmq_topics " in (await get(part, "/metrics"))[1]
    finally:
        await part.stop()


async def test_the_page_shows_when_messages_are_deleted_and_the_use_of_the_process(
    tmp_path: Path,
) -> None:
    part = serving(broker_part(tmp_path, disk_space_warning_level_ratio=88))
    await part.start()
    try:
        page = (await get(part, "/metrics"))[1]
    finally:
        await part.stop()
    for limit, share in (("CleanForcibly", 0.85), ("WarningLevel", 0.88)):
        labels = f'limit="diskSpace{limit}Ratio",path="{tmp_path}/store/commitlog"'
        assert f"pocketmq_disk_limit_ratio{{{labels}}} {share}\n" in page
    assert "pocketmq_retention_seconds 259200.0\n" in page
    assert re.search(r"^process_open_fds [1-9]", page, re.MULTILINE)


async def test_every_metric_of_the_page_is_documented_and_no_other(tmp_path: Path) -> None:
    part = serving(
        NameServerPart(NameServerConfig(listen_port=0, kv_config_path=tmp_path / "kv.json")),
        broker_part(tmp_path),
    )
    await part.start()
    try:
        page = (await get(part, "/metrics"))[1]
    finally:
        await part.stop()
    text = (HOME / "docs" / "operating" / "metrics.md").read_text()
    documented = re.findall(r"`((?:pocketmq|process)_\w+)", text)
    shown = set(re.findall(r"^# TYPE (\w+)", page, re.MULTILINE))
    of_pairs = {row.name for row in OF_PAIRS}
    assert set(documented) - shown == {f"pocketmq_{name}" for name in of_pairs}
    assert shown <= set(documented)


@pytest.mark.parametrize("path", ["/livez", "/metrics"])
async def test_a_loop_that_hangs_is_reported(tmp_path: Path, path: str) -> None:
    part = serving(broker_part(tmp_path), live_seconds=0.01)
    await part.start()
    found: list[tuple[int, str, Mapping[str, str]]] = []
    asker = threading.Thread(target=lambda: found.append(ask(part, path)))
    asker.start()
    asker.join()  # holds the loop until the answer is there
    assert found[0][0] == 503
    assert "the event loop has not run for 0.01 seconds" in found[0][1]
    await part.stop()


async def test_a_scrape_never_fails_while_topics_and_groups_appear(tmp_path: Path) -> None:
    broker = broker_part(tmp_path)
    part = serving(broker)
    await part.start()

    traffic = broker.server.state.traffic

    def add(number: int) -> None:
        traffic.put(f"t{number}", 1, 1)
        traffic.got(f"g{number}", f"t{number}", 1, 1)

    async def grow() -> None:
        for number in count(10_000):
            add(number)
            await asyncio.sleep(0.001)

    for number in range(10_000):
        add(number)
    growth = asyncio.create_task(grow())
    try:
        answers = [await get(part, "/metrics") for _ in range(20)]
    finally:
        growth.cancel()
        await part.stop()
    assert all(status == 200 and "pocketmq_registered" in page for status, page in answers)


async def test_peers_that_send_nothing_are_few_and_keep_nobody_out(tmp_path: Path) -> None:
    part = serving(broker_part(tmp_path))
    await part.start()
    host, _, port = part.address.rpartition(":")
    idle = []
    try:
        before = threading.active_count()
        for _ in range(5 * HTTP_CONNECTIONS):
            idle.append(await asyncio.open_connection(host, int(port)))
        assert (await get(part, "/metrics"))[0] == 200
        assert threading.active_count() <= before + HTTP_CONNECTIONS + 1
        for reader, _ in idle[: 4 * HTTP_CONNECTIONS]:
            assert await asyncio.wait_for(reader.read(), 10) == b""
    finally:
        for _, writer in idle:
            writer.close()
        await part.stop()


async def test_a_request_that_does_not_come_in_time_is_ended(tmp_path: Path) -> None:
    part = serving(broker_part(tmp_path), http_seconds=0.1)
    await part.start()
    host, _, port = part.address.rpartition(":")
    try:
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET /metrics HTTP/1.0\r\nX: ")
        assert await asyncio.wait_for(reader.read(), 10) == b""
        writer.close()
    finally:
        await part.stop()


async def test_a_broker_is_ready_while_a_name_server_knows_it(tmp_path: Path) -> None:
    name_server = NameServerPart(
        NameServerConfig(listen_port=0, kv_config_path=tmp_path / "kv.json")
    )
    await name_server.start()
    address = name_server.server.address
    part = serving(broker_part(tmp_path, address))
    await part.start()
    try:
        assert await get(part, "/readyz") == (200, "ok\n")
        await name_server.stop()
        reason = await until_ready_says(part, "registered with no name server")
        assert address in reason
    finally:
        await part.stop()
        await name_server.stop()


async def test_a_broker_that_takes_no_messages_is_not_ready(tmp_path: Path) -> None:
    part = serving(broker_part(tmp_path, disk_full_free_bytes=2**62))
    await part.start()
    try:
        await until_ready_says(part, "so the store takes no messages: free some space")
        assert await get(part, "/livez") == (200, "ok\n")
    finally:
        await part.stop()

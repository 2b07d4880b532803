"""The audit log's file: its lines, limits and errors."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from logging import Formatter, LogRecord, makeLogRecord
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from remoting.access.audit import AuditFile, AuditLog, audit_path, audit_setting, own_file
from remoting.access.file import AclFile
from remoting.access.guard import Guard, Permissions
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command
from tests.support.clock import ManualClock
from tests.unit.remoting.transcripts import Peer

SECRET = "planted-secret-2c9e"


class Bench:
    """An audit log, and a handler that gives one answer."""

    def __init__(self, path: Path, *, max_waiting: int = 100, **limits: int) -> None:
        self.clock = ManualClock()
        self.path = path
        self.file = AuditFile(path, self.clock, **limits)
        self.log = AuditLog(self.file, "broker-a", self.clock, max_waiting=max_waiting)
        self.peer = Peer().connection
        self.guard = Guard(AclFile(path), Permissions(needs={}), self.clock)

    def change(
        self, answer: Any = None, *, code: int = 17, proven: bool = True, **fields: str
    ) -> Any:
        """Handle a request with an audited code; ``answer`` is a response, None or an exception."""
        body = fields.pop("body", "")
        request = Command.request(
            code, extra={"AccessKey": "operator", **fields}, body=body.encode()
        )

        def handle(*_: object) -> Command | None:
            if isinstance(answer, Exception):
                raise answer
            return answer

        return self.log.wrap(handle, {17, 25}, self.guard if proven else None)(request, self.peer)

    def denied(self, reason: str) -> None:
        self.log.denied(Command.request(10, extra={"AccessKey": "billing"}), self.peer, reason)

    def sizes(self) -> dict[str, int]:
        """Return the sizes of the log's files by name."""
        return {file.name: file.stat().st_size for file in self.path.parent.iterdir()}

    async def lines(self) -> list[dict[str, Any]]:
        """Close the log and return its lines."""
        await self.log.close()
        return [json.loads(line) for line in self.path.read_text().splitlines()]


class SlowFormatter(Formatter):
    """Stands for a disk that takes until an event to write."""

    def __init__(self, disk: Event) -> None:
        super().__init__()
        self.disk = disk

    def format(self, record: LogRecord) -> str:
        self.disk.wait()
        return super().format(record)


OK = Command.request(0).reply()


async def test_a_change_is_recorded_with_who_where_what_and_result(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "logs" / "audit.log")
    assert bench.change(OK, topic="orders") is OK
    refused = Command.request(0).reply(ResponseCode.NO_PERMISSION, "not this one")
    bench.change(refused, code=RequestCode.UPDATE_BROKER_CONFIG, body="brokerPermission=4\n")
    bench.change(None)
    with pytest.raises(ValueError, match="broken"):
        bench.change(ValueError("broken"))
    bench.change(OK, proven=False)
    bench.change(OK, code=RequestCode.PULL_MESSAGE)
    first, second, oneway, failed, unproven = await bench.lines()
    assert first == {
        "time": "2023-11-14T22:13:20.000Z",
        "server": "broker-a",
        "event": "change",
        "who": "operator",
        "from": bench.peer.remote_text,
        "action": "UPDATE_AND_CREATE_TOPIC",
        "code": 17,
        "fields": {"topic": "orders"},
        "result": "ok",
    }
    assert (second["action"], second["body"]) == ("UPDATE_BROKER_CONFIG", "brokerPermission=4\n")
    assert (second["result"], second["text"]) == ("NO_PERMISSION", "not this one")
    assert oneway["result"] == "unknown"
    assert (failed["result"], failed["text"]) == ("failed", "broken")
    assert unproven["who"] == "-"
    assert stat.S_IMODE(bench.path.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "body",
    [
        f"tls.server.keyPassword={SECRET}\nother=1\n",
        f"tls.server.keyPassword = {SECRET[:8]}\\\n{SECRET[8:]}\nother=1\n",
        f'{{"secretKey": "a\\"{SECRET}", "other=1": 1}}',
        f'{{"other=1": 1, "token": "{SECRET}',
    ],
)
async def test_no_secret_is_recorded(tmp_path: Path, body: str) -> None:
    bench = Bench(tmp_path / "audit.log")
    secrets = {"secretKey": SECRET, "SecurityToken": SECRET, "value": SECRET}
    bench.change(OK, **secrets, Signature=SECRET, accessKey="billing", body=body)
    (line,) = await bench.lines()
    assert line["fields"] == {**dict.fromkeys(secrets, "***"), "accessKey": "billing"}
    assert "other=1" in line["body"]
    assert SECRET[8:] not in bench.path.read_text()


async def test_long_and_odd_texts_are_shortened_and_escaped(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "audit.log")
    fields = {f"field{number}": "x" * 100_000 for number in range(100)}
    bench.change(OK, **fields, body="\n" * 100_000)
    bench.denied("line\nbreak \udc80")
    change, denial = await bench.lines()
    assert len(json.dumps(change)) < 20_000
    assert denial["text"] == "line\nbreak \udc80"


async def test_denials_are_limited_and_those_left_out_are_counted(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "audit.log")
    for number in range(50):
        bench.denied(f"reason {number}")
    bench.clock.advance(1)
    bench.denied("later")
    lines = await bench.lines()
    assert [line["text"] for line in lines] == [*(f"reason {n}" for n in range(20)), "later"]
    assert lines[0]["who"] == "billing"
    assert "unreported" not in lines[0]
    assert lines[-1]["unreported"] == 30


async def test_files_are_rotated_and_their_number_is_limited(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "audit.log", max_bytes=1000, old_files=2)
    for _ in range(40):
        bench.change(OK)
    await bench.log.close()
    sizes = bench.sizes()
    assert sorted(sizes) == ["audit.log", "audit.log.1", "audit.log.2"]
    assert max(sizes.values()) <= 1000
    assert bench.log.lost == 0


@pytest.mark.parametrize("moved", ["logs/audit.log", "logs"])
def test_after_another_program_moved_the_file_lines_go_to_a_new_one(
    tmp_path: Path, moved: str
) -> None:
    path = tmp_path / "logs" / "audit.log"
    file = AuditFile(path, ManualClock())
    file.emit(makeLogRecord({"msg": "first"}))
    (tmp_path / moved).rename(tmp_path / "old")
    path.parent.mkdir(exist_ok=True)
    file.emit(makeLogRecord({"msg": "second"}))
    file.close()
    assert path.read_text() == "second\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    old = tmp_path / "old"
    assert (old if old.is_file() else old / "audit.log").read_text() == "first\n"
    assert file.failed == 0


async def test_a_full_disk_costs_lines_but_no_request(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(Path("/dev/full"))
    for _ in range(3):
        assert bench.change(OK) is OK
    await bench.log.close()
    assert bench.log.lost == 3
    (line,) = [one.getMessage() for one in caplog.records if one.name == "pocketmq.access"]
    assert "No space left on device" in line


async def test_when_the_disk_is_too_slow_lines_are_lost_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(tmp_path / "audit.log", max_waiting=2)
    disk = Event()
    bench.file.setFormatter(SlowFormatter(disk))
    for _ in range(10):
        assert bench.change(OK) is OK
    disk.set()
    lines = await bench.lines()
    assert len(lines) + bench.log.lost == 10
    assert 2 <= len(lines) <= 3
    assert "too many lines of the audit log wait" in caplog.text


HANGING = """
import asyncio, os, sys
from pathlib import Path
from remoting.access import audit
from remoting.protocol.command import Command
from tests.unit.remoting.access.test_audit import Bench, OK

async def main() -> None:
    path = Path(sys.argv[1])
    os.mkfifo(path)
    os.open(path, os.O_RDWR)  # nobody reads: a write waits once the pipe is full
    bench = Bench(path, max_bytes=0)
    for _ in range(50):
        bench.change(OK, body="x" * audit.MAX_BODY)
    audit.STOP_SECONDS = 0.2
    await bench.log.close()

asyncio.run(main())
print("closed", flush=True)
"""


def test_a_disk_that_hangs_delays_neither_the_stop_nor_the_exit(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HANGING, str(tmp_path / "audit.log")]
    process = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    assert process.stdout == "closed\n"
    assert "the disk of the audit log doesn't respond" in process.stderr


async def test_after_a_torn_line_the_next_one_begins_a_line(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    path.write_text('{"time": "2026')
    bench = Bench(path)
    bench.change(OK)
    await bench.log.close()
    assert json.loads(path.read_text().splitlines()[1])["result"] == "ok"


@pytest.mark.parametrize(
    ("setting", "acl", "expected"),
    [
        ("auto", True, Path("/store/logs/audit.log")),
        ("auto", False, None),
        ("off", True, None),
        ("/var/log/audit.log", False, Path("/var/log/audit.log")),
    ],
)
def test_the_setting_says_where_it_is(setting: str, acl: bool, expected: Path | None) -> None:
    assert audit_path(audit_setting(setting), Path("/store"), acl_enable=acl) == expected


def test_several_servers_of_one_setting_have_files_of_their_own() -> None:
    assert own_file("/var/log/audit.log", "nameserver") == "/var/log/audit-nameserver.log"
    assert [own_file(setting, "0") for setting in ("auto", "off")] == ["auto", "off"]

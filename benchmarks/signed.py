"""Measure what accounts cost: signed sends at brokers with ACL, ours and Apache's, and unsigned.

    python -m benchmarks.signed [--rounds 5] [--seconds 3]

Each round runs all three, 4 x 64 sends of 256 to 1,792 bytes with tags and keys to eight queues;
the load is in this process, on the same machine. The requests were signed before: a broker accepts
a signed request again and again.
"""

from __future__ import annotations

import argparse
import random
import socket
import statistics
from contextlib import ExitStack
from typing import Final

from benchmarks import machine
from benchmarks.pump import ANSWER_WITHIN, LENGTH_BYTES, address_of, pump, send_each
from benchmarks.servers import directory, ours, theirs
from benchmarks.tools import BenchmarkError, Target
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.frame import cut, decode, encode
from remoting.protocol.headers.send import SendMessageRequestHeaderV2
from remoting.protocol.message import properties
from remoting.protocol.signing import Credentials, signed

QUEUES: Final = 8
REQUESTS: Final = 1_000
TOPIC: Final = "signed"
ACCOUNT: Final = Credentials("bench-sender", "secret-of-the-sender")
RULES: Final = f"""\
accounts:
- accessKey: {ACCOUNT.access_key}
  secretKey: {ACCOUNT.secret_key}
  topicPerms: [{TOPIC}=PUB|SUB]
"""

Rows = dict[str, list[dict[str, float]]]


def sends() -> list[Command]:
    """Return sends whose sizes, tags, keys and queues differ."""
    dice = random.Random(21)
    made = []
    for number in range(REQUESTS):
        names = {
            properties.KEYS: f"order-{dice.randrange(10**6)}",
            properties.UNIQ_KEY: f"{number:032X}",
            properties.TAGS: dice.choice(["created", "paid", "sent", "closed", "returned"]),
            properties.WAIT: "true",
        }
        header = SendMessageRequestHeaderV2(
            producer_group="orders",
            topic=TOPIC,
            default_topic="TBW102",
            default_topic_queue_nums=QUEUES,
            queue_id=number % QUEUES,
            sys_flag=0,
            born_timestamp=1_700_000_000_000 + number,
            flag=0,
            properties=properties.encode(names).decode(),
        )
        body = dice.randbytes(dice.randint(256, 1792))
        made.append(Command.request(RequestCode.SEND_MESSAGE_V2, header, body=body))
    return made


def measure(rounds: int, seconds: float) -> Rows:
    """Run the rounds; return the figures of each kind."""
    runs: Rows = {"unsigned": [], "signed": [], "Apache's, signed": []}
    commands = sends()
    with ExitStack() as stack:
        home = stack.enter_context(directory(None))
        accounts = home / "plain_acl.yml"
        accounts.write_text(RULES)
        accounts.chmod(0o600)
        checked = ("--set=aclEnable=true", f"--set=pocketmqAclFile={accounts}")
        servers = {
            "unsigned": stack.enter_context(ours(home / "open", sync_flush=False)),
            "signed": stack.enter_context(ours(home / "ours", sync_flush=False, options=checked)),
            "Apache's, signed": stack.enter_context(
                theirs(home / "apache", sync_flush=False, accounts=RULES)
            ),
        }
        unsigned = [encode(command) for command in commands]
        with_account = [encode(signed(command, ACCOUNT)) for command in commands]
        for _ in range(rounds):
            for kind, server in servers.items():
                requests = unsigned if kind == "unsigned" else with_account
                runs[kind].append(run(server, requests, seconds))
    return runs


def run(server: Target, requests: list[bytes], seconds: float) -> dict[str, float]:
    """Run a load once; return its figures.

    Raises:
        BenchmarkError: the broker refuses the first request.
    """
    with socket.create_connection(address_of(server.broker), timeout=ANSWER_WITHIN) as connection:
        connection.sendall(requests[0])
        stream = connection.makefile("rb")
        length = stream.read(LENGTH_BYTES)
        whole = cut(length + stream.read(int.from_bytes(length)))
    assert whole is not None
    answer = decode(whole)
    if answer.code != ResponseCode.SUCCESS:
        raise BenchmarkError(f"a send was refused: {answer.remark}")
    send_each(server.broker, requests)
    figures = pump(
        server.broker,
        requests,
        connections=4,
        inflight=64,
        seconds=seconds,
        warm=0.5,
        pid=server.pid,
    )
    return figures.as_json()


def table(runs: Rows) -> str:
    """Return the medians, a line for each kind."""
    lines = []
    for kind, rows in runs.items():
        rate, cpu, p50, p99 = (
            statistics.median(row[name] for row in rows)
            for name in ("per_s", "cpu_us_per", "p50_ms", "p99_ms")
        )
        lines.append(
            f"{kind:16} {rate:9,.0f}/s  CPU {cpu:6.2f} us a send  p50 {p50:.2f}  p99 {p99:.2f} ms"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each run")
    options = parser.parse_args()
    print(machine.facts()["cpu"])
    print(table(measure(options.rounds, options.seconds)))


if __name__ == "__main__":
    main()

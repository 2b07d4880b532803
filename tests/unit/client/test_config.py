"""Options: keyword arguments over environment over file over defaults."""

from __future__ import annotations

from dataclasses import fields
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from client.config import (
    ClientArguments,
    ClientOptions,
    ConsumerArguments,
    ConsumerOptions,
    ProducerArguments,
    ProducerOptions,
    check_arguments,
    name_servers,
)
from client.errors import UsageError
from client.positions import BEGIN, END
from remoting.security.tls import Tls
from tests.harness.certificates import self_signed


def test_defaults_are_rocketmqs_if_it_has_them():
    options = ProducerOptions.gather({}, env={})
    assert (options.timeout, options.retries, options.compress_over_bytes) == (3.0, 2, 4096)
    assert options.default_queues == 4


def test_arguments_beat_the_environment_which_beats_the_file(tmp_path: Path):
    file = tmp_path / "client.toml"
    file.write_text(
        "[producer]\nlinger = 0.5\nretries = 7\ntimeout = 9\n[client]\ncodec='msgpack'\n"
    )
    env = {
        "POCKETMQ_CLIENT_CONFIG": str(file),
        "POCKETMQ_PRODUCER_RETRIES": "5",
        "POCKETMQ_PRODUCER_TIMEOUT": "4",
        "POCKETMQ_LISTEN_PORT": "10911",
    }
    options = ProducerOptions.gather({"timeout": timedelta(seconds=2)}, env=env)
    assert (options.linger, options.retries, options.timeout) == (0.5, 5, 2.0)
    assert ClientOptions.gather({}, env=env).codec == "msgpack"


def test_a_file_can_be_named_by_argument(tmp_path: Path):
    file = tmp_path / "c.toml"
    # With a byte order mark, as editors on Windows write it.
    file.write_text("\ufeff[consumer]\nauto_commit = true\nstart_from = 'last'\n")
    options = ConsumerOptions.gather({"config": file}, env={})
    assert options.auto_commit
    assert options.start_from is END


def test_environment_values_are_converted_to_the_options_type():
    env = {
        "POCKETMQ_PRODUCER_LINGER": "0.25",
        "POCKETMQ_PRODUCER_REQUIRE_DURABLE": "yes",
        "POCKETMQ_PRODUCER_COMPRESS": "none",
        "POCKETMQ_PRODUCER_MAX_IN_FLIGHT": "10",
    }
    options = ProducerOptions.gather({}, env=env)
    assert options.linger == 0.25
    assert options.require_durable is True
    assert options.compress is None
    assert options.max_in_flight == 10


@pytest.mark.parametrize(
    ("kind", "given", "env", "words"),
    [
        (ProducerOptions, {}, {"POCKETMQ_PRODUCER_LINGR": "1"}, "did you mean 'linger'"),
        (ProducerOptions, {}, {"POCKETMQ_PRODUCER_RETRIES": "many"}, "retries can't be 'many'"),
        (ProducerOptions, {"retries": 1.5}, {}, "retries"),
        (ProducerOptions, {"retries": -1}, {}, "retries"),
        (ProducerOptions, {"linger": -0.1}, {}, "linger"),
        (ProducerOptions, {"linger": "soon"}, {}, "linger"),
        (ProducerOptions, {"max_in_flight": 0}, {}, "more than zero"),
        (ProducerOptions, {"compress": "gzip"}, {}, "zlib, lz4 or zstd"),
        (ClientOptions, {"codec": "xml"}, {}, "json, rocketmq or msgpack"),
        (ClientOptions, {"instance_name": "a@b"}, {}, "instance_name can't be 'a@b'"),
        (ClientOptions, {"instance_name": 7}, {}, "instance_name can't be 7"),
        (ClientOptions, {"unit_name": "x" * 201}, {}, "up to 200 printable characters without @"),
        (ClientOptions, {}, {"POCKETMQ_CLIENT_UNIT_NAME": "a\n"}, "unit_name can't be"),
        (ConsumerOptions, {"start_from": None}, {}, "client.FIRST"),
        (ConsumerOptions, {"auto_commit": "perhaps"}, {}, "auto_commit"),
        (ClientOptions, {"config": "/nowhere/at/all"}, {}, "can't be read"),
    ],
)
def test_bad_options_are_named(
    kind: Any, given: dict[str, Any], env: dict[str, str], words: str
) -> None:
    with pytest.raises(UsageError) as caught:
        kind.gather(given, env=env)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "text", ["[producer]\nlingr=1\n", "[produce]\nlinger=1\n", "producer = 5\n", "[producer"]
)
def test_a_bad_file_is_refused(tmp_path: Path, text: str):
    file = tmp_path / "client.toml"
    file.write_text(text)
    with pytest.raises(UsageError):
        ProducerOptions.gather({"config": file}, env={})


def test_every_option_is_an_argument_and_every_argument_an_option():
    def options(kind: type) -> set[str]:
        return {field.name for field in fields(kind)}

    client = set(ClientArguments.__annotations__)
    assert client == options(ClientOptions) - {"nameservers"} | {"config"}
    assert set(ProducerArguments.__annotations__) - client == options(ProducerOptions)
    assert set(ConsumerArguments.__annotations__) - client == options(ConsumerOptions)


def test_an_unknown_argument_is_refused_with_the_nearest():
    with pytest.raises(UsageError, match="did you mean 'linger'"):
        check_arguments("Producer", {"lingr": 1}, ProducerArguments)


def test_name_servers_come_from_argument_options_or_environment(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("NAMESRV_ADDR", "env:1")
    options = ClientOptions(nameservers="file:1")
    assert name_servers("a:1; b:2;a:1", options) == ["a:1", "b:2"]
    assert name_servers(["a:1", "b:2"], options) == ["a:1", "b:2"]
    assert name_servers(None, options) == ["file:1"]
    assert name_servers(None, ClientOptions()) == ["env:1"]
    monkeypatch.delenv("NAMESRV_ADDR")
    with pytest.raises(UsageError, match="NAMESRV_ADDR"):
        name_servers(None, ClientOptions())


@pytest.mark.parametrize("address", ["localhost", "host:", ":9876", "h:0", "h:70000", "h:x"])
def test_an_address_is_host_and_port(address: str):
    with pytest.raises(UsageError, match="host:port"):
        name_servers(address, ClientOptions())


def test_a_start_may_be_an_instant():
    at = datetime(2026, 1, 1, tzinfo=UTC)
    assert ConsumerOptions.gather({"start_from": at}, env={}).start_from == at
    assert ConsumerOptions.gather({}, env={}).start_from is BEGIN


def test_tls_is_a_switch_a_ca_file_or_its_parts(tmp_path: Path):
    pair = self_signed(tmp_path)
    ca = str(pair.cert)
    assert ClientOptions.gather({}, env={}).tls is None
    assert ClientOptions.gather({"tls": False}, env={"POCKETMQ_CLIENT_TLS": ca}).tls is None
    assert ClientOptions.gather({"tls": pair.cert}, env={}).tls == Tls(ca=pair.cert)
    assert ClientOptions.gather({}, env={"POCKETMQ_CLIENT_TLS": "true"}).tls == Tls()
    parts = {"POCKETMQ_CLIENT_TLS_CA": ca, "POCKETMQ_CLIENT_TLS_CHECK_HOSTNAME": "no"}
    expected = Tls(ca=ca, check_hostname=False)
    assert ClientOptions.gather({}, env=parts).tls == expected
    assert ClientOptions.gather({}, env={**parts, "POCKETMQ_CLIENT_TLS": "off"}).tls is None
    file = tmp_path / "client.toml"
    file.write_text(f"[client]\ntls = {{ca = {ca!r}, check_hostname = false}}\n")
    assert ClientOptions.gather({"config": file}, env={}).tls == expected


def test_an_unusable_tls_option_is_refused_at_once(tmp_path: Path):
    for tls, text in (
        (tmp_path / "none.pem", "No such file"),
        (7, "tls can't be 7"),
        ({"certificate": "x"}, "no part 'certificate'"),
        ({"key_password": 7}, "key_password has the wrong type: int"),
    ):
        with pytest.raises(UsageError, match=text):
            ClientOptions.gather({"tls": tls}, env={})

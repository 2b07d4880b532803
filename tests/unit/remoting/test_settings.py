"""Configuration from files, the environment and overrides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest

from remoting.runtime.settings import (
    MAX_FILE_BYTES,
    ConfigError,
    RefusedKey,
    Settings,
    addresses,
    boolean,
    choice,
    environment_name,
    host,
    integer,
    multiple_of,
    name,
    path,
    refused,
    setting,
    word,
)


@dataclass(frozen=True, kw_only=True)
class Sample(Settings):
    KEYS_WITHOUT_EFFECT: ClassVar[frozenset[str]] = frozenset({"deleteWhen", "fileReservedTime"})
    REFUSED_KEYS: ClassVar[Mapping[str, RefusedKey]] = {
        "useTLS": refused("there is no TLS; take the key out"),
        "brokerRole": refused("there is no replication", "async_master"),
    }
    OTHER_ENVIRONMENT: ClassVar[Mapping[str, str]] = {"namesrvAddr": "NAMESRV_ADDR"}

    listen_port: int = setting("listenPort", integer(0, 65535), 10911)
    namesrv_addr: tuple[str, ...] = setting("namesrvAddr", addresses, ())
    trace_on: bool = setting("traceOn", boolean, True)
    label: str | None = setting("label", word, None)
    max_topics: int = setting("pocketmqMaxTopics", integer(1, 100), 10)

    def check(self) -> None:
        if self.listen_port == self.max_topics:
            raise ConfigError("listenPort and pocketmqMaxTopics must differ")


def conf(tmp_path: Path, text: str | bytes) -> Path:
    file = tmp_path / "broker.conf"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


class TestSources:
    def test_defaults_when_nothing_is_given(self) -> None:
        assert Sample.from_sources() == Sample()

    def test_overrides_beat_environment_beats_file_beats_default(self, tmp_path: Path) -> None:
        file = conf(tmp_path, "listenPort=1\ntraceOn=false\npocketmqMaxTopics=3\nlabel=file\n")
        env = {"POCKETMQ_LISTEN_PORT": "2", "POCKETMQ_MAX_TOPICS": "4"}
        config = Sample.from_sources(file, env, {"listenPort": "3"})
        assert (config.listen_port, config.max_topics) == (3, 4)
        assert (config.trace_on, config.label) == (False, "file")

    def test_name_server_address_is_taken_from_rocketmqs_variable(self) -> None:
        config = Sample.from_sources(None, {"NAMESRV_ADDR": "a:1;b:2"})
        assert config.namesrv_addr == ("a:1", "b:2")

    def test_our_variable_beats_rocketmqs(self) -> None:
        env = {"NAMESRV_ADDR": "a:1", "POCKETMQ_NAMESRV_ADDR": "b:2"}
        assert Sample.from_sources(None, env).namesrv_addr == ("b:2",)

    def test_variables_of_other_components_are_ignored(self) -> None:
        assert Sample.from_sources(None, {"POCKETMQ_CLIENT_THING": "1"}) == Sample()

    def test_keys_without_effect_are_collected(self, tmp_path: Path) -> None:
        file = conf(tmp_path, "fileReservedTime=48\n")
        config = Sample.from_sources(file, {"POCKETMQ_DELETE_WHEN": "04"})
        assert config.ignored_keys == ("deleteWhen", "fileReservedTime")

    @pytest.mark.parametrize(
        ("key", "variable"),
        [
            ("listenPort", "POCKETMQ_LISTEN_PORT"),
            ("brokerIP1", "POCKETMQ_BROKER_IP1"),
            ("useTLS", "POCKETMQ_USE_TLS"),
            ("checkCRCOnRecover", "POCKETMQ_CHECK_CRC_ON_RECOVER"),
            ("pocketmqMaxTopics", "POCKETMQ_MAX_TOPICS"),
        ],
    )
    def test_variable_is_the_key_in_upper_snake_case(self, key: str, variable: str) -> None:
        assert environment_name(key) == variable


class TestErrors:
    def test_unknown_key_names_place_and_nearest_key_but_no_value(self, tmp_path: Path) -> None:
        file = conf(tmp_path, "lisenPort=secret\n")
        with pytest.raises(ConfigError, match=r"^lisenPort in .*\.conf: .*'listenPort'\?") as error:
            Sample.from_sources(file)
        assert "secret" not in str(error.value)

    def test_unknown_key_without_a_similar_one_is_still_named(self) -> None:
        with pytest.raises(ConfigError, match=r"'zzzz'$"):
            Sample.from_sources(None, None, {"zzzz": "1"})

    def test_bad_value_in_a_file_is_a_clear_error(self, tmp_path: Path) -> None:
        file = conf(tmp_path, "listenPort=abc\n")
        with pytest.raises(ConfigError) as error:
            Sample.from_sources(file)
        assert str(error.value) == (
            f"listenPort=abc in {file}: must be a whole number from 0 to 65535"
        )

    def test_bad_value_in_the_environment_names_the_variable(self) -> None:
        with pytest.raises(ConfigError, match="POCKETMQ_TRACE_ON=maybe in the environment: must"):
            Sample.from_sources(None, {"POCKETMQ_TRACE_ON": "maybe"})

    def test_refused_key_says_why(self) -> None:
        with pytest.raises(ConfigError, match="useTLS=true from --set: there is no TLS"):
            Sample.from_sources(None, None, {"useTLS": "true"})

    def test_refused_key_with_a_harmless_value_passes(self) -> None:
        config = Sample.from_sources(None, None, {"useTLS": "false", "brokerRole": "ASYNC_MASTER"})
        assert config.ignored_keys == ()

    def test_contradicting_settings_are_refused(self) -> None:
        with pytest.raises(ConfigError, match="must differ"):
            Sample.from_sources(None, None, {"listenPort": "10"})

    def test_missing_file_is_a_clear_error(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"absent\.conf can't be read: No such file"):
            Sample.from_sources(tmp_path / "absent.conf")

    def test_file_that_is_not_text_is_a_clear_error(self, tmp_path: Path) -> None:
        (tmp_path / "broker.conf").write_bytes(b"label=\xff\xfe")
        with pytest.raises(
            ConfigError, match=r"broker\.conf can't be used: .* not UTF-8 at byte 6"
        ):
            Sample.from_sources(tmp_path / "broker.conf")

    def test_comments_may_be_in_any_encoding(self, tmp_path: Path) -> None:
        text = "# 名称\n! \xe9\nlabel=b\n".encode("gbk", "replace") + b"#\xff\xfe\\\n!\x85\nlabel=c"
        (tmp_path / "broker.conf").write_bytes(text)
        assert Sample.from_sources(tmp_path / "broker.conf").label == "c"

    def test_huge_file_is_not_read(self, tmp_path: Path) -> None:
        (tmp_path / "broker.conf").write_bytes(b"#" * (MAX_FILE_BYTES + 1))
        with pytest.raises(ConfigError, match="is larger than"):
            Sample.from_sources(tmp_path / "broker.conf")


class TestChange:
    def test_as_text_is_read_back(self, tmp_path: Path) -> None:
        config = Sample(listen_port=5, namesrv_addr=("a:1", "b:2"), trace_on=False, label="x y")
        assert Sample.from_sources(conf(tmp_path, config.as_text())) == config

    def test_absent_values_are_omitted(self) -> None:
        assert "label" not in Sample().as_properties()

    def test_updated_changes_known_keys_and_skips_the_others(self) -> None:
        changed = Sample().updated({"listenPort": "7", "deleteWhen": "1", "nonsense": "1"})
        assert changed == Sample(listen_port=7)

    def test_updated_refuses_bad_values(self) -> None:
        with pytest.raises(ConfigError, match="listenPort=x: must be"):
            Sample().updated({"listenPort": "x"})
        with pytest.raises(ConfigError, match="there is no TLS"):
            Sample().updated({"useTLS": "true"})
        with pytest.raises(ConfigError, match="must differ"):
            Sample().updated({"listenPort": "10"})


class TestValues:
    def test_whole_numbers_have_bounds(self) -> None:
        parse = integer(-1, 10)
        assert [parse("-1"), parse("+10"), parse("007")] == [-1, 10, 7]
        for bad in ("", "11", "-2", "1.0", "1e1", "0x1", "1_0", "٣", "9" * 5000):
            with pytest.raises(ValueError, match="must be a whole number from -1 to 10"):
                parse(bad)

    def test_sizes_are_rounded_up_to_whole_units(self) -> None:
        assert multiple_of(20, 20, 100)("41") == 60

    def test_booleans_are_true_or_false(self) -> None:
        assert (boolean("TRUE"), boolean("false")) == (True, False)
        with pytest.raises(ValueError, match="true or false"):
            boolean("yes")

    def test_choices_are_listed(self) -> None:
        assert choice("A", "B")("b") == "B"
        with pytest.raises(ValueError, match="must be A or B"):
            choice("A", "B")("c")

    def test_a_path_may_start_at_home(self) -> None:
        home = Path.home()
        assert path("~/store") == path("$HOME/store") == path("${HOME}/store") == home / "store"
        assert path("~") == home
        assert path("/a/~b") == Path("/a/~b")

    @pytest.mark.parametrize("bad", ["", "a\0b"])
    def test_a_path_is_text_without_nul(self, bad: str) -> None:
        with pytest.raises(ValueError, match="must be a path"):
            path(bad)

    @pytest.mark.parametrize("good", ["broker-a", "b_1", "host.example", "%RETRY%x"])
    def test_names_are_those_that_rocketmq_allows(self, good: str) -> None:
        assert name(good) == good

    @pytest.mark.parametrize("bad", ["", ".", "..", ".hidden", "a/b", "a b", "é", "x" * 128])
    def test_names_that_could_leave_their_directory_are_refused(self, bad: str) -> None:
        with pytest.raises(ValueError, match="letters, digits"):
            name(bad)

    def test_hosts_are_names_or_addresses(self) -> None:
        hosts = ["127.0.0.1", "::1", "[::1]", "broker.example", "h"]
        assert [host(text) for text in hosts] == ["127.0.0.1", "::1", "::1", "broker.example", "h"]
        for bad in ("", "a b", "-a", "a:1"):
            with pytest.raises(ValueError, match="host name"):
                host(bad)

    def test_addresses_keep_their_order_and_lose_repeats(self) -> None:
        assert addresses("b:2; a:1 ;;b:2") == ("b:2", "a:1")
        assert addresses("") == ()
        assert addresses("[::1]:9876") == ("[::1]:9876",)

    @pytest.mark.parametrize("bad", ["a", "a:", ":1", "a:0", "a:65536", "a:x", "a:1,b:2"])
    def test_an_address_has_host_and_port(self, bad: str) -> None:
        with pytest.raises(ValueError, match="must be HOST:PORT"):
            addresses(bad)

    def test_a_word_is_not_empty(self) -> None:
        with pytest.raises(ValueError, match="must not be empty"):
            word("")

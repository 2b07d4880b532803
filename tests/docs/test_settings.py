"""The settings on their page exist, with the defaults shown."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from broker.config import BrokerConfig
from client.config import ClientOptions, ConsumerOptions, Options, ProducerOptions
from client.consumer.options import PushOptions
from client.errors import UsageError
from tests.support.tour import HOME, blocks

PAGE = (HOME / "docs" / "operating" / "settings.md").read_text()
KINDS: list[type[Options]] = [ClientOptions, ProducerOptions, ConsumerOptions, PushOptions]
IN_WORDS = {
    *("brokerName", "brokerIP1", "pocketmqAdvertisedPort", "namesrvAddr"),
    *("pocketmqAclFile", "pocketmqCredentials"),
    *("storePathCommitLog", "haListenPort", "haMasterAddress", "pocketmqSlaveAddresses"),
}
"""Settings whose default depends on others, or on the machine."""


def table(heading: str) -> list[list[str]]:
    """Return the cells of the first table after a line."""
    text = PAGE.partition(heading)[2].partition("\n|---")[2].partition("\n\n")[0]
    return [line.strip(" |").split(" | ") for line in text.splitlines()[1:]]


def shown_defaults() -> dict[str, str]:
    found = {}
    for keys, defaults, _ in table("The most important keys of a broker:"):
        names = re.findall(r"`(\w+)`", keys)
        values = defaults.split(", ") if len(names) == defaults.count(",") + 1 else [defaults] * 9
        found.update(zip(names, (value.strip("`") for value in values), strict=False))
    return found


@pytest.mark.parametrize(("key", "shown"), shown_defaults().items())
def test_a_setting_of_the_broker_is_shown_with_its_default(key: str, shown: str) -> None:
    assert key in BrokerConfig.known_keys()
    if key in IN_WORDS:
        return
    size = re.fullmatch(r"(\d+) ([GM])iB", shown)
    if size is not None:
        shown = str(int(size[1]) << {"G": 30, "M": 20}[size[2]])
    shown = shown.replace("~", str(Path.home()))
    start, cut, end = shown.partition("…")
    default = BrokerConfig().as_properties()[key]
    assert default.startswith(start)
    assert default.endswith(end)
    assert cut or default == shown


@pytest.mark.parametrize(
    "block",
    [
        block
        for page in sorted((HOME / "docs" / "security").glob("*.md"))
        for block in blocks(page, "properties")
    ],
)
def test_the_files_on_the_pages_about_security_are_accepted(block: str, tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text(block)
    found = BrokerConfig.from_sources(file)
    assert not found.ignored_keys
    shown = found.as_properties()
    for line in block.splitlines():
        key, _, value = line.partition("=")
        assert shown[key] == value


def test_every_kind_of_client_option_is_shown_with_an_existing_option() -> None:
    rows = table("Settings of the client come from")
    assert [row[2] for row in rows] == [f"`[{kind.SECTION}]`" for kind in KINDS]
    for kind, (_, prefix, _, example) in zip(KINDS, rows, strict=True):
        assert prefix == f"`POCKETMQ_{kind.SECTION.upper()}_…`"
        variable, _, value = example.strip("`").partition("=")
        kind.gather({}, env={variable: value})
        with pytest.raises(UsageError, match="unknown option"):
            kind.gather({}, env={f"{variable}_X": value})

"""The page on Spark lists every option with its default and aliases, and no others."""

from __future__ import annotations

import re
from typing import Any

import pytest

from spark_connector.options import Option
from spark_connector.schema import COLUMNS, KAFKA_COLUMNS, STORE_COLUMNS
from spark_connector.sink.columns import SINK_TYPES
from spark_connector.sink.options import SINK_OPTIONS
from spark_connector.source.options import SOURCE_OPTIONS
from spark_connector.store.options import STORE_OPTIONS
from tests.support.tour import HOME

PAGE = (HOME / "docs" / "spark.md").read_text()
TABLES: dict[str, tuple[Option[Any], ...]] = {
    "source": SOURCE_OPTIONS,
    "sink": SINK_OPTIONS,
    "store": STORE_OPTIONS,
}
ABSENT = (None, "", (), {})


def rows(table: str) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Return option -> default and aliases, as the page lists them."""
    text = PAGE.partition(f"<!-- options: {table} -->\n")[2].partition("\n\n")[0]
    found = {}
    for line in text.splitlines()[2:]:
        name, default, aliases, _ = re.split(r"(?<!\\)\|", line.strip())[1:5]
        found[name.strip(" `")] = (default.strip(" `"), tuple(re.findall(r"`(.+?)`", aliases)))
    return found


@pytest.mark.parametrize("table", TABLES)
def test_every_option_is_documented_with_its_aliases(table: str) -> None:
    aliases = {name: row[1] for name, row in rows(table).items()}
    assert aliases == {option.name: option.aliases for option in TABLES[table]}


@pytest.mark.parametrize(
    ("table", "option"),
    [pytest.param(name, option) for name, table in TABLES.items() for option in table],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_every_default_is_the_one_that_is_used(table: str, option: Option[Any]) -> None:
    shown = rows(table)[option.name][0]
    if option.name == "nameServer":
        assert shown == "NAMESRV_ADDR"
    elif option.default in ABSENT:
        assert shown == ""
    else:
        assert option.parse(shown) == option.default


def test_every_column_is_documented() -> None:
    columns = PAGE.partition("## Columns")[2].partition("## Options of the source")[0]
    added = PAGE.partition("## Reading a store")[2]
    for name in {*COLUMNS, *KAFKA_COLUMNS, *SINK_TYPES}:
        assert f"`{name}`" in columns, name
    for name in STORE_COLUMNS.keys() - COLUMNS.keys():
        assert f"`{name}`" in added, name


def test_every_example_exists() -> None:
    scripts = {path.name for path in (HOME / "examples" / "spark").glob("*.py")}
    assert set(re.findall(r"\(\.\./examples/spark/(\w+\.py)\)", PAGE)) == scripts - {
        "send_flights.py"
    }

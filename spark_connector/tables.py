"""Tables in SQL: ``CREATE TABLE t USING rocketmq OPTIONS (...)``.

Spark passes the options of a table to a Python data source only when it asks for the schema of the
table that it creates. Later it passes only the schema that the catalog keeps. So the options are
kept in the metadata of the schema's column ``topic``.

A reader gets the schema of its table. A writer gets the schema of the rows, which has the metadata
of the table if an INSERT leaves out columns, because Spark then adds them. But rows with all
columns keep the metadata of the table that they were read from, so the writer refuses rows that
have a topic.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from pyspark.sql.types import StructType

from spark_connector.errors import OptionError
from spark_connector.options import PREFIX, SECRETS, ConnectionOptions, Option, options_of

_KEY: Final = "rocketmq.options"
_KEEPER: Final = "topic"
_COPY: Final = "option."


def table_options(given: Mapping[str, str]) -> dict[str, str] | None:
    """Return the user's options of the table that Spark creates; None if it creates none.

    Spark passes them twice, with and without ``option.``, beside properties such as ``owner``.

    Raises:
        OptionError: an option is secret.
    """
    if "provider" not in given:
        return None
    table = {name[len(_COPY) :]: text for name, text in given.items() if name.startswith(_COPY)}
    secret = [name for name in SECRETS if table.keys() & {name.lower(), (PREFIX + name).lower()}]
    if secret:
        raise OptionError(
            f"the option {secret[0]} can't be given to a table, which keeps its options in clear",
            "give credentialsFile, the path of a file, or create a temporary view instead",
        )
    return table


def table_schema(columns: Iterable[Any], table: Mapping[str, str]) -> StructType:
    """Return the schema of a table, which keeps its options."""
    from pyspark.sql.pandas.types import from_arrow_schema  # noqa: PLC0415 - slow to import

    from spark_connector.schema import arrow_schema  # noqa: PLC0415

    schema: StructType = from_arrow_schema(arrow_schema(columns))
    schema[_KEEPER].metadata = {_KEY: dict(table)}
    return schema


def kept_options(schema: StructType) -> dict[str, str]:
    """Return the options that the schema of a table keeps; none for another schema."""
    kept = (field.metadata[_KEY] for field in schema.fields if _KEY in (field.metadata or {}))
    return dict(next(kept, {}))


def names_target(given: Mapping[str, str]) -> bool:
    """Return whether the options of a write name a topic or a name server.

    If they do, the write is not to a table, even if its rows were read from one.
    """
    names = options_of(ConnectionOptions)["name_servers"].names
    return any(name.lower() in given for name in ("topic", *names))


def without(
    table: Mapping[str, str], others: Iterable[Option[Any]], own: Iterable[Option[Any]]
) -> dict[str, str]:
    """Return the options of a table without those of the other direction, reading or writing."""
    foreign = {name.lower() for other in others for name in other.names}
    foreign -= {name.lower() for option in own for name in option.names}
    return {name: text for name, text in table.items() if name.lower() not in foreign}

"""The data source ``rocketmq.store``: the entry point for ``read``.

Spark imports this module in several processes, one of which imports all data sources to find their
names. So modules that may be missing or are slow to import are imported only when needed.
"""

# ruff: noqa: PLC0415 - see above
from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceWriter,
    InputPartition,
)

from spark_connector.errors import ConnectorError
from spark_connector.spark import Filter, check_interpreter

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from spark_connector.schema import Column
    from spark_connector.source.pushdown import Pushed
    from spark_connector.store.options import StoreOptions
    from spark_connector.store.planning import Piece


@dataclass
class StorePartition(InputPartition):
    """The part of the store that one task reads."""

    piece: Piece


class RocketMQStoreDataSource(DataSource):
    """The messages of a store directory; batch queries only. See ``docs/spark.md``."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "rocketmq.store"

    def schema(self) -> str:
        """Return all columns as a DDL string. Raises ``OptionError`` for wrong options."""
        self._options()
        from spark_connector.schema import STORE_COLUMNS, ddl

        return ddl(STORE_COLUMNS.values())

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a query. Raises ``ConnectorError``."""
        options = self._options()
        from spark_connector.schema import STORE_COLUMNS, fields_of, select
        from spark_connector.source.pushdown import offered

        kind = StorePushDownReader if options.push_down and offered() else StoreScanReader
        return kind(options, select(fields_of(schema), STORE_COLUMNS))

    def streamReader(self, *_: Any, **__: Any) -> DataSourceStreamReader:  # noqa: N802 - Spark's
        """Raise ``ConnectorError``: not supported."""
        raise _batch_only("follow")

    def writer(self, *_: Any) -> DataSourceWriter:
        """Raise ``ConnectorError``: not supported."""
        raise _batch_only("write to")

    def streamWriter(self, *_: Any) -> Any:  # noqa: N802 - Spark's
        """Raise ``ConnectorError``: not supported."""
        raise _batch_only("write to")

    def _options(self) -> StoreOptions:
        check_interpreter()
        from spark_connector.store.options import store_options

        return store_options(self.options)


def _batch_only(what: str) -> ConnectorError:
    return ConnectorError(
        "format rocketmq.store only reads, and only batches",
        f'to {what} topics use format("rocketmq") with the name server of a running broker',
    )


class StoreScanReader(DataSourceReader):
    """Reads a store: ``partitions`` runs on the driver, ``read`` on the executors."""

    def __init__(self, options: StoreOptions, columns: tuple[Column, ...]) -> None:
        self.options = options
        self.columns = columns
        self.pushed: Pushed | None = None

    def partitions(self) -> list[InputPartition]:
        """Return the tasks. Raises ``ConnectorError``."""
        from broker.store.results import StoreError
        from spark_connector.source.pushdown import Pushed
        from spark_connector.store.planning import plan
        from spark_connector.store.reading import connector_error, open_view

        try:
            view = open_view(self.options)
            pieces = plan(view, self.options, self.pushed or Pushed())
        except StoreError as error:
            raise connector_error(error) from error
        return [StorePartition(piece) for piece in pieces]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the Arrow batches of a task. Raises ``ConnectorError``."""
        check_interpreter()
        from spark_connector.store.reading import StoreTask

        # Spark passes an empty partition of its own for a query without tasks.
        if isinstance(partition, StorePartition):
            yield from StoreTask(self.options, self.columns).read(partition.piece)


class StorePushDownReader(StoreScanReader):
    """A reader that takes filters. Spark rejects it while filter push-down is off."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Use filters to narrow what is read; return all of them.

        Spark has to apply them to every row, because rows for damaged records have nulls in columns
        that are otherwise never null.
        """
        from spark_connector.store.options import narrowed

        self.options, self.pushed = narrowed(self.options, filters)
        return filters

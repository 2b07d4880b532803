"""``format("rocketmq.store")`` as Spark sees it.

Spark asks for the name and makes the source in several processes, one of which finds sources by
importing them all: so nothing is imported here at first that may be missing or takes time.
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
    Filter,
    InputPartition,
)

from spark_connector.errors import ConnectorError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from spark_connector.schema import Column
    from spark_connector.source.pushdown import Pushed
    from spark_connector.store.options import StoreOptions
    from spark_connector.store.planning import Piece


@dataclass
class StorePartition(InputPartition):
    """What one task reads."""

    piece: Piece


class RocketMQStoreDataSource(DataSource):
    """Messages of a store's directory, batch only; see ``docs/spark.md``."""

    @classmethod
    def name(cls) -> str:
        """What ``format`` takes."""
        return "rocketmq.store"

    def schema(self) -> str:
        """All columns. Raises ``ConnectorError``: here is where a wrong option is found first."""
        self._options()
        from spark_connector.schema import STORE_COLUMNS, ddl

        return ddl(STORE_COLUMNS.values())

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader of one query. Raises ``ConnectorError``."""
        options = self._options()
        from spark_connector.schema import STORE_COLUMNS, fields_of, select
        from spark_connector.source.pushdown import offered

        kind = StorePushDownReader if offered() else StoreScanReader
        return kind(options, select(fields_of(schema), STORE_COLUMNS))

    def streamReader(self, *_: Any) -> DataSourceStreamReader:  # noqa: N802 - Spark's
        """Not supported. Raises ``ConnectorError``."""
        raise _batch_only("follow")

    def writer(self, *_: Any) -> DataSourceWriter:
        """Not supported. Raises ``ConnectorError``."""
        raise _batch_only("write to")

    def streamWriter(self, *_: Any) -> Any:  # noqa: N802 - Spark's
        """Not supported. Raises ``ConnectorError``."""
        raise _batch_only("write to")

    def _options(self) -> StoreOptions:
        from spark_connector.source.interpreter import check_interpreter

        check_interpreter()
        from spark_connector.store.options import store_options

        return store_options(self.options)


def _batch_only(what: str) -> ConnectorError:
    return ConnectorError(
        "format rocketmq.store only reads, and only batches",
        f'to {what} topics use format("rocketmq") with the name server of a running broker',
    )


class StoreScanReader(DataSourceReader):
    """Plans on the driver, reads on the executors."""

    def __init__(self, options: StoreOptions, columns: tuple[Column, ...]) -> None:
        self.options = options
        self.columns = columns
        self.pushed: Pushed | None = None

    def partitions(self) -> list[InputPartition]:
        """The tasks. Raises ``ConnectorError``."""
        from broker.storetools.view import StoreError
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
        """The batches of a task. Raises ``ConnectorError``."""
        from spark_connector.source.interpreter import check_interpreter

        check_interpreter()
        from spark_connector.store.reading import StoreTask

        # Spark makes one empty partition of none.
        if isinstance(partition, StorePartition):
            yield from StoreTask(self.options, self.columns).read(partition.piece)


class StorePushDownReader(StoreScanReader):
    """The same with filters. Spark refuses it while the push-down of filters is off."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Read no more than filters want.

        All are given back to Spark, which looks at every row: those that stand for damage have
        nulls where others never have any.
        """
        from spark_connector.store.options import narrowed

        self.options, self.pushed = narrowed(self.options, filters)
        return filters

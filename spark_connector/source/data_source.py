"""The data source ``rocketmq``, for ``read``, ``readStream``, ``write`` and ``writeStream``.

Spark creates this object in several Python processes for one query, so it holds nothing but the
options. They are checked in ``schema``, the first method Spark calls, and again whenever a reader
is created.
"""

from __future__ import annotations

from typing import Any, Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from remoting.runtime.log import Log
from spark_connector.errors import OptionError
from spark_connector.sink.options import SINK_OPTIONS
from spark_connector.source.options import SOURCE_OPTIONS, SourceOptions
from spark_connector.spark import check_interpreter
from spark_connector.tables import (
    kept_options,
    names_target,
    table_options,
    table_schema,
    without,
)

_STREAMING_ONLY: Final = (
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "maxBytesPerTrigger",
)
_log = Log("spark")


class RocketMQDataSource(DataSource):
    """Topics as tables: batch and streaming, reading and writing."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "rocketmq"

    def schema(self) -> StructType | str:
        """Return all columns. Raises OptionError for wrong options."""
        check_interpreter()
        from spark_connector.schema import ddl  # noqa: PLC0415 - imports pyarrow, checked above

        table = table_options(self.options)
        if table is None:
            return ddl(_columns(SourceOptions.of(self.options)).values())
        options = SourceOptions.of(without(table, SINK_OPTIONS, SOURCE_OPTIONS))
        return table_schema(_columns(options).values(), table)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch query. Raises OptionError."""
        options, columns = self._prepare(schema)
        from spark_connector.source.batch import (  # noqa: PLC0415 - after the check
            PushDownReader,
            RocketMQBatchReader,
        )
        from spark_connector.source.pushdown import offered  # noqa: PLC0415

        given = {name.lower() for name in self.options}
        without_effect = [name for name in _STREAMING_ONLY if name.lower() in given]
        if without_effect:
            _log.warning("options have no effect in a batch query", options=without_effect)
        kind = PushDownReader if options.push_down and offered() else RocketMQBatchReader
        return kind(options, columns)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's
        """Return the reader of a streaming query. Raises OptionError."""
        options, columns = self._prepare(schema)
        if options.ending is not None:
            raise OptionError(
                f"the option {options.ending.option} can't be given to a streaming query",
                "leave it out; trigger(availableNow=True) ends a query at what there is",
            )
        from spark_connector.source.stream import (  # noqa: PLC0415 - after the check
            RocketMQStreamReader,
            UnlimitedStreamReader,
        )
        from spark_connector.spark import LIMITS, VERSION, require  # noqa: PLC0415

        given = {name.lower() for name in self.options}
        for name in _STREAMING_ONLY:
            if name.lower() in given:
                require(LIMITS, f"the option {name}", "leave it out, or use a newer Spark")
        kind = RocketMQStreamReader if VERSION >= LIMITS else UnlimitedStreamReader
        return kind(options, columns)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer of a batch query. Raises OptionError."""
        check_interpreter()
        from spark_connector.sink.writer import batch_writer  # noqa: PLC0415

        if names_target(self.options):
            return batch_writer(self.options, schema, overwrite)
        table = without(kept_options(schema), SOURCE_OPTIONS, SINK_OPTIONS)
        return batch_writer(table | dict(self.options), schema, overwrite, into_table=bool(table))

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:  # noqa: N802 - Spark's
        """Return the writer of a streaming query. Raises OptionError."""
        check_interpreter()
        from spark_connector.sink.writer import stream_writer  # noqa: PLC0415

        return stream_writer(self.options, schema, overwrite)

    def _prepare(self, schema: StructType) -> tuple[SourceOptions, tuple[Any, ...]]:
        check_interpreter()
        from spark_connector.schema import (  # noqa: PLC0415
            COLUMNS,
            KAFKA_COLUMNS,
            fields_of,
            select,
        )

        table = without(kept_options(schema), SINK_OPTIONS, SOURCE_OPTIONS)
        options = SourceOptions.of(table | dict(self.options))
        return options, select(fields_of(schema), KAFKA_COLUMNS if options.kafka_names else COLUMNS)


def _columns(options: SourceOptions) -> dict[str, Any]:
    from spark_connector.schema import COLUMNS, KAFKA_COLUMNS  # noqa: PLC0415 - see schema()

    columns, left_out = (
        (KAFKA_COLUMNS, "headers") if options.kafka_names else (COLUMNS, "properties")
    )
    return {
        name: column
        for name, column in columns.items()
        if options.include_properties or name != left_out
    }

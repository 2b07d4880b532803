"""How servers log: one line per event, to stderr, as text or as JSON.

Servers use structlog, the parts that also run inside other programs (remoting, client) the standard
library's logging; both are printed in one form.
"""

from __future__ import annotations

import logging
import sys

import structlog

_SHARED: list[structlog.typing.Processor] = [
    structlog.stdlib.add_log_level,
    structlog.stdlib.add_logger_name,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
]


def configure(*, as_json: bool, level: str = "INFO") -> None:
    """Set up logging for a server process.

    Args:
        as_json: A JSON object a line instead of text.
        level: The lowest level to show, by its standard name.
    """
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer()
        if as_json
        else structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
        )
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*_SHARED, _unfold],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.format_exc_info,
                renderer,
            ]
            if as_json
            else [structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    logging.root.handlers = [handler]
    logging.root.setLevel(level)
    structlog.configure(
        processors=[*_SHARED, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelName(level)),
        cache_logger_on_first_use=True,
    )


def _unfold(
    _: object, __: str, event_dict: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """Take event and facts of a line of ``remoting.log`` apart again."""
    record = event_dict["_record"]
    facts = getattr(record, "facts", None)
    if facts is not None:
        event_dict.update(facts, event=record.event)
    return event_dict

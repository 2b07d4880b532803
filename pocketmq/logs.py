"""Logging of servers: one line per event on stderr, as text or JSON.

Server code uses structlog; the parts that also run inside other programs (remoting, client) use the
standard library's logging. Both are written in the same form.
"""

from __future__ import annotations

import logging
import sys

import structlog

from pocketmq.output import plain

_SHARED: list[structlog.typing.Processor] = [
    structlog.stdlib.add_log_level,
    structlog.stdlib.add_logger_name,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
]


def configure(*, as_json: bool, level: str = "INFO") -> None:
    """Set up logging for a server process.

    Args:
        as_json: one JSON object per line instead of text.
        level: name of the lowest level to show.
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
            else [structlog.stdlib.ProcessorFormatter.remove_processors_meta, _escape, renderer],
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
    """Separate event and fields of a record that ``remoting.runtime.log`` made."""
    record = event_dict["_record"]
    facts = getattr(record, "facts", None)
    if facts is not None:
        event_dict.update(facts, event=record.event)
    return event_dict


def _escape(
    _: object, __: str, event_dict: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """Escape what could control the terminal: texts may be a peer's."""
    for key, value in event_dict.items():
        if isinstance(value, str) and not value.isprintable():
            event_dict[key] = plain(value)
    return event_dict

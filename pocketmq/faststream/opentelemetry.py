"""FastStream's OpenTelemetry middleware for PocketMQ; it needs ``faststream[otel]``."""

from __future__ import annotations

from typing import Any

from faststream.message import StreamMessage
from faststream.opentelemetry import TelemetrySettingsProvider
from faststream.opentelemetry.consts import MESSAGING_DESTINATION_PUBLISH_NAME
from faststream.opentelemetry.middleware import TelemetryMiddleware
from opentelemetry.semconv.trace import SpanAttributes as Names

from pocketmq.faststream.message import parts_of, size_of
from pocketmq.faststream.publishing import PocketPublishCommand


class PocketTelemetryProvider(TelemetrySettingsProvider[Any, PocketPublishCommand]):
    """The attributes of spans and measurements."""

    messaging_system = "rocketmq"

    def get_consume_attrs_from_message(self, msg: StreamMessage[Any]) -> dict[str, Any]:
        """Return those of a message or a batch that is handled."""
        count = {Names.MESSAGING_BATCH_MESSAGE_COUNT: len(parts_of(msg))}
        return {
            Names.MESSAGING_SYSTEM: self.messaging_system,
            Names.MESSAGING_MESSAGE_ID: msg.message_id,
            Names.MESSAGING_MESSAGE_CONVERSATION_ID: msg.correlation_id,
            Names.MESSAGING_MESSAGE_PAYLOAD_SIZE_BYTES: size_of(msg),
            MESSAGING_DESTINATION_PUBLISH_NAME: self.get_consume_destination_name(msg),
            **(count if isinstance(msg.raw_message, list) else {}),
        }

    def get_consume_destination_name(self, msg: StreamMessage[Any]) -> str:
        """Return the topic; a reply has none."""
        return getattr(parts_of(msg)[0], "topic", "")

    def get_publish_attrs_from_cmd(self, cmd: PocketPublishCommand) -> dict[str, Any]:
        """Return those of what is published."""
        return {
            Names.MESSAGING_SYSTEM: self.messaging_system,
            Names.MESSAGING_DESTINATION_NAME: cmd.destination,
            Names.MESSAGING_MESSAGE_CONVERSATION_ID: cmd.correlation_id,
        }

    def get_publish_destination_name(self, cmd: PocketPublishCommand) -> str:
        """Return the topic."""
        return cmd.destination


class PocketTelemetryMiddleware(TelemetryMiddleware[PocketPublishCommand]):
    """Makes spans and measurements of what is published and handled.

    Args:
        options: ``tracer_provider``, ``meter_provider``, ``meter``; see FastStream.
    """

    def __init__(self, *, include_messages_counters: bool = True, **options: Any) -> None:
        super().__init__(
            settings_provider_factory=lambda _: PocketTelemetryProvider(),
            include_messages_counters=include_messages_counters,
            **options,
        )

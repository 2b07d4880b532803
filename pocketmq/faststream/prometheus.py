"""FastStream's Prometheus middleware for PocketMQ; it needs ``faststream[prometheus]``."""

from __future__ import annotations

from typing import Any

from faststream.message import StreamMessage
from faststream.prometheus import ConsumeAttrs, MetricsSettingsProvider
from faststream.prometheus.middleware import PrometheusMiddleware

from pocketmq.faststream.message import parts_of, size_of
from pocketmq.faststream.publishing import PocketPublishCommand


class PocketMetricsProvider(MetricsSettingsProvider[Any, PocketPublishCommand]):
    """The labels and values of metrics."""

    messaging_system = "rocketmq"

    def get_consume_attrs_from_message(self, msg: StreamMessage[Any]) -> ConsumeAttrs:
        """Return those of a message or a batch that is handled; a reply has no topic."""
        return {
            "destination_name": getattr(parts_of(msg)[0], "topic", ""),
            "message_size": size_of(msg),
            "messages_count": len(parts_of(msg)),
        }

    def get_publish_destination_name_from_cmd(self, cmd: PocketPublishCommand) -> str:
        """Return the topic."""
        return cmd.destination


class PocketPrometheusMiddleware(PrometheusMiddleware[Any, PocketPublishCommand]):
    """Counts and times what is published and handled.

    Args:
        options: ``registry``, ``app_name``, ``metrics_prefix`` and others; see FastStream.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(settings_provider_factory=lambda _: PocketMetricsProvider(), **options)

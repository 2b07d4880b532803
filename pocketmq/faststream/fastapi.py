"""A FastAPI router whose handlers get messages; it needs FastAPI."""

from __future__ import annotations

from typing import Any, Final

from fastapi.datastructures import Default
from faststream._internal.context import ContextRepo
from faststream._internal.fastapi.router import StreamRouter

from client.config import Addresses
from pocketmq.faststream.broker import PocketBroker
from pocketmq.faststream.endpoints import TopicPublisher

_OF_RESPONSES = ("exclude_unset", "exclude_defaults", "exclude_none")

_DEFAULTS: Final[dict[str, Any]] = {
    **dict.fromkeys(("response_model_include", "response_model_exclude")),
    **{f"response_model_{name}": False for name in _OF_RESPONSES},
    "dependencies": (),
    "response_model": Default(None),
    "response_model_by_alias": True,
}
"""FastAPI's options of a route."""


class FastAPIRouter(StreamRouter[Any]):
    """Starts a ``PocketBroker`` with the application, and passes FastAPI's dependencies.

    Args:
        nameservers: see ``PocketBroker``.
        options: those of ``PocketBroker`` and of FastAPI's ``APIRouter``.
    """

    broker_class = PocketBroker
    broker: PocketBroker

    def __init__(
        self, *nameservers: Addresses, context: ContextRepo | None = None, **options: Any
    ) -> None:
        super().__init__(*nameservers, context=context, **options)

    def subscriber(self, topic: str, **options: Any) -> Any:  # type: ignore[override]
        """Subscribe a handler; see ``PocketBroker.subscriber`` and FastAPI's routes."""
        return super().subscriber(topic, **{**_DEFAULTS, **options})

    def publisher(  # type: ignore[override]
        self, topic: str, **options: Any
    ) -> TopicPublisher:
        """Return a publisher; see ``PocketBroker.publisher``."""
        return self.broker.publisher(topic, **options)

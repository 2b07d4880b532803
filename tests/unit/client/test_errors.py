"""Errors say what happened, to what, and what to do next."""

from __future__ import annotations

import pickle

import pytest

import client
from client.errors import Outcome, PocketMQError, SendError, UsageError, as_send_error, remote_error
from remoting.protocol.queue import MessageQueue


def test_the_text_names_everything_that_is_known():
    error = PocketMQError(
        "it broke",
        queue=MessageQueue("T", "a", 1),
        group="g",
        broker="1.2.3.4:5",
        hint="mend it",
    )
    assert str(error) == "it broke (queue T/a/1, group g, broker 1.2.3.4:5); mend it"
    assert error.topic == "T"
    assert str(PocketMQError("it broke", topic="T")) == "it broke (topic T)"


def test_all_errors_share_one_base_and_kinds_are_distinct():
    assert issubclass(client.NoRoute, client.Unavailable)
    assert issubclass(client.BufferFull, client.Unavailable)
    assert issubclass(client.TopicNotFound, client.RemoteError)
    assert issubclass(client.NotDurable, client.SendError)
    for name in client.__all__:
        value = getattr(client, name)
        if isinstance(value, type) and issubclass(value, Exception):
            assert issubclass(value, PocketMQError)
    assert issubclass(UsageError, ValueError)


@pytest.mark.parametrize(
    "error",
    [
        SendError("x", outcome=Outcome.UNKNOWN, topic="T", hint="h"),
        remote_error(17, "remark", "SEND", topic="T"),
        as_send_error(remote_error(17, "remark", "SEND", topic="T")),
        client.BufferFull("x", topic="T"),
    ],
)
def test_errors_survive_pickling(error: PocketMQError):
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), type(again)) == (str(error), type(error))
    assert again.__dict__ == error.__dict__

"""What brokers know of messages' sizes: the ``Sizes`` of ``planning.byte_shares``.

Our brokers answer for a range of a queue. Others don't know the question and answer without it;
they are not bothered with it again for some minutes, and a few of their messages are looked at.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Final

from client.routes import Route
from remoting.log import Log
from remoting.protocol.byte_range import SIZE, ByteAnswer, ByteQuestion
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.errors import HeaderError
from remoting.protocol.headers.pull import GetMaxOffsetRequestHeader
from remoting.protocol.queue import MessageQueue
from spark_connector.errors import BrokerError
from spark_connector.source.brokers import Brokers, Request, master_of, request
from spark_connector.source.places import Places

ASK_AGAIN: Final = 300.0
"""Seconds after which a broker that could not tell is asked again: it may be a newer one then."""

_ANY_CODE: Final = frozenset(int(code) for code in ResponseCode)
"""A broker that refuses, as a busy one does, can't tell."""

_log = Log("spark")


class StoredSizes:
    """Asks brokers for sizes.

    Args:
        brokers: whom to ask.
        group: named by pulls.
        clock: seconds, monotonic.

    Attributes:
        routes: of the topics.
        strict: raise ``BrokerError`` when a broker can't be asked; else its queues are left out.
    """

    def __init__(
        self, brokers: Brokers, group: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._brokers = brokers
        self._group = group
        self._clock = clock
        self._can_tell_from: dict[str, float] = {}
        self.routes: Mapping[str, Route] = {}
        self.strict = False

    def measure(
        self, questions: Mapping[MessageQueue, ByteQuestion]
    ) -> dict[MessageQueue, ByteAnswer | None]:
        """See ``Sizes``; one request for each queue."""
        by_address: dict[str, dict[MessageQueue, ByteQuestion]] = defaultdict(dict)
        found: dict[MessageQueue, ByteAnswer | None] = {}
        now = self._clock()
        for queue, question in questions.items():
            address = master_of(self.routes, queue)
            if address is None or self._can_tell_from.get(address, now) > now:
                found[queue] = None
            else:
                by_address[address][queue] = question
        for address, here in by_address.items():
            found |= self._ask(address, here)
        return found

    def mean_size(self, queue: MessageQueue, offset: int) -> float | None:
        """See ``Sizes``."""
        try:
            return Places(self._brokers, self.routes, self._group).mean_size(queue, offset)
        except BrokerError as error:
            self._pass_over(error)
            return None

    def _ask(
        self, address: str, questions: Mapping[MessageQueue, ByteQuestion]
    ) -> dict[MessageQueue, ByteAnswer | None]:
        commands = [_request(queue, question) for queue, question in questions.items()]
        try:
            answers = self._brokers.calls.many(
                address,
                commands,
                "the sizes of messages",
                accept=_ANY_CODE,
                retries=None if self.strict else 0,
            )
        except BrokerError as error:
            self._pass_over(error)
            return {}
        if all(one.code == ResponseCode.SUCCESS and SIZE not in one.fields for one in answers):
            self._can_tell_from[address] = self._clock() + ASK_AGAIN
        return {
            queue: _answer(answer, question)
            for (queue, question), answer in zip(questions.items(), answers, strict=True)
        }

    def _pass_over(self, error: BrokerError) -> None:
        if self.strict:
            raise error
        _log.warning("a broker can't be asked for the sizes of its messages", reason=error)


def _request(queue: MessageQueue, question: ByteQuestion) -> Request:
    header = GetMaxOffsetRequestHeader(
        topic=queue.topic, queue_id=queue.queue_id, bname=queue.broker_name
    )
    return request(RequestCode.GET_MAX_OFFSET, header, extra=question.fields())


def _answer(command: Command, question: ByteQuestion) -> ByteAnswer | None:
    """What a broker told; None when it can't tell, or tells what can't be.

    That is so when the queue was made anew a moment ago, for example.
    """
    try:
        answer = ByteAnswer.of(command.fields)
    except HeaderError:
        return None
    if answer is None or not question.begin <= answer.reached <= question.end:
        return None
    leads_on = answer.reached > question.begin or answer.following is not None
    fits = question.limit is None or answer.size <= question.limit
    return answer if leads_on and fits else None

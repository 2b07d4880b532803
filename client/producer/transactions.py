"""Messages that consumers get once their producer commits (cf. TransactionMQProducer).

A transaction begins with a half message, which no consumer gets. The broker stores the message when
the transaction is committed, and drops it when it is rolled back. If neither request arrives, the
broker asks the producers of the group, and one of them decides by its checker; after a crash that
is another process.

The broker's answer confirms a decision. An unconfirmed decision is sent again when the broker asks,
without a call of the checker.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Generic, Self, TypeVar
from weakref import WeakValueDictionary

from client.errors import PocketMQError, UsageError
from client.interceptors import Interceptor
from client.limits import (
    DEFAULT_TOPIC_QUEUES,
    MAX_CHECKS,
    MAX_DECISIONS,
    REQUEST_TIMEOUT,
    ROUTE_RETRY_PERIOD,
    TRANSACTION_CHECK_TIMEOUT,
)
from client.message import (
    Checker,
    Message,
    OpenTransaction,
    Receipt,
    SendStatus,
    TransactionState,
)
from client.network.context import ClientContext, OnCheck
from client.network.routes import address_of
from client.producer.columns import RESERVED
from client.producer.sender import not_durable
from client.serde import Serde
from client.wire.backoff import Backoff
from remoting.connection import Connection
from remoting.errors import RemotingError
from remoting.protocol.codes import RequestCode
from remoting.protocol.command import Command, natural
from remoting.protocol.errors import ProtocolError
from remoting.protocol.headers.send import (
    CheckTransactionStateRequestHeader,
    EndTransactionRequestHeader,
)
from remoting.protocol.message import ids, properties
from remoting.protocol.message.view import RecordView
from remoting.protocol.queue import MessageQueue
from remoting.runtime.log import Log
from remoting.runtime.tasks import Supervisor

T = TypeVar("T")

_log = Log("client")


class Transactions(Generic[T]):
    """The transactions of one producer.

    Args:
        checker: None: the producer can't begin transactions, and leaves requests of brokers to the
            other producers of its group.
        tasks: owns the checks that are under way.
        interceptors: called around the requests that end transactions.
    """

    def __init__(
        self,
        context: ClientContext,
        group: str,
        checker: Checker | None,
        serde: Serde[T],
        tasks: Supervisor,
        interceptors: Sequence[Interceptor],
    ) -> None:
        self.group = group
        self._context = context
        self._checker = checker
        self._serde = serde
        self._tasks = tasks
        self._interceptors = interceptors
        self._checks = 0
        # The unconfirmed decisions by message id, for when the broker asks.
        self._decided: OrderedDict[str, TransactionState] = OrderedDict()
        # By message id. Weak: the application may drop one that it has started, undecided.
        self._open: WeakValueDictionary[str, Transaction[T]] = WeakValueDictionary()

    def check_usable(self) -> None:
        """Raise UsageError without a checker."""
        if self._checker is None:
            raise UsageError(
                "the producer has no transaction_checker",
                group=self.group,
                hint="give it one: after a crash the broker asks it what became of a transaction",
            )

    def now_ms(self) -> int:
        """Return the time by the producer's clock, in milliseconds."""
        return self._context.clock.now_ms()

    def opened(self, transaction: Transaction[T]) -> None:
        """Keep a transaction of this producer from its checker until ``ended``."""
        self._open[transaction.id] = transaction

    def ended(self, transaction: Transaction[T]) -> None:
        """Leave a transaction whose block has ended to the checker, if the broker asks."""
        self._open.pop(transaction.id, None)

    async def end(
        self, transaction: OpenTransaction[T], receipt: Receipt, state: TransactionState
    ) -> bool:
        """Send the decision; return whether the broker confirmed it.

        Only interceptors raise exceptions.
        """
        return await self._intercepted(transaction, state, partial(self._end, receipt, state))

    async def _intercepted(
        self,
        transaction: OpenTransaction[T],
        state: TransactionState,
        proceed: Callable[[], Awaitable[bool]],
    ) -> bool:
        for each in reversed(self._interceptors):
            proceed = partial(each.end_transaction, transaction, state, proceed)
        return await proceed()

    async def _end(self, receipt: Receipt, state: TransactionState) -> bool:
        self._decided[receipt.id] = state
        if len(self._decided) > MAX_DECISIONS:
            self._decided.popitem(last=False)
        queue = receipt.queue
        try:
            physical_offset = ids.parse_offset_id(receipt.offset_id).physical_offset
            address = await self._address(queue)
            header = self._header(
                receipt.id, receipt.offset, physical_offset, state, bname=queue.broker_name
            )
            await self._context.remote.call(
                address,
                RequestCode.END_TRANSACTION,
                header,
                timeout=REQUEST_TIMEOUT,
                queue=queue,
                group=self.group,
            )
        except (PocketMQError, ValueError) as error:
            _log.warning(
                "the broker has not confirmed the end of a transaction; it will ask again",
                message=receipt.id,
                state=state.name,
                group=self.group,
                error=str(error),
            )
            return False
        self._decided.pop(receipt.id, None)
        return True

    async def _address(self, queue: MessageQueue) -> str:
        """Return the address of the half message's broker. Raises PocketMQError."""
        routes = self._context.routes
        route = await routes.to_write(queue.topic, DEFAULT_TOPIC_QUEUES, REQUEST_TIMEOUT)
        return address_of(route, queue)

    def _header(
        self,
        message_id: str,
        offset: int,
        physical_offset: int,
        state: TransactionState,
        **fields: Any,
    ) -> EndTransactionRequestHeader:
        return EndTransactionRequestHeader(
            producer_group=self.group,
            tran_state_table_offset=offset,
            commit_log_offset=physical_offset,
            commit_or_rollback=state,
            msg_id=message_id,
            transaction_id=message_id,
            **fields,
        )

    # What brokers ask

    async def stay_known(self) -> None:
        """Keep all brokers in the heartbeats: any of them may have a transaction of the group."""
        context = self._context
        period = context.heartbeats.period
        retries = Backoff(first=ROUTE_RETRY_PERIOD, most=period)
        while True:
            try:
                if await context.routes.learn_masters():
                    context.heartbeat_soon()
                pause = period
                retries.reset()
            except PocketMQError as error:
                pause = retries.next()
                _log.warning(
                    "brokers whose topics are not in use can't ask about transactions",
                    group=self.group,
                    error=str(error),
                )
            await asyncio.sleep(pause)

    @property
    def on_check(self) -> OnCheck | None:
        """The handler of CHECK_TRANSACTION_STATE; None without a checker."""
        return None if self._checker is None else self._asked

    def _asked(self, record: RecordView, command: Command, connection: Connection) -> None:
        """Check a transaction that a broker asks about, and answer once it is decided."""
        if self._tasks.closed:
            return
        if self._checks >= MAX_CHECKS:
            _log.warning(
                "too many transactions are being checked; the broker will ask again",
                group=self.group,
                checks=self._checks,
            )
            return
        self._checks += 1
        self._tasks.spawn(
            self._check(record, command, connection), "transaction check", on_done=self._checked
        )

    def _checked(self, task: asyncio.Task[None]) -> None:
        self._checks -= 1
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a transaction check failed", group=self.group, error=repr(error))

    async def _check(self, record: RecordView, command: Command, connection: Connection) -> None:
        try:
            asked = command.read(CheckTransactionStateRequestHeader)
        except ProtocolError as error:
            _log.warning("a check of a transaction can't be read", error=str(error))
            return
        message_id = record.unique_id or asked.msg_id or record.offset_id
        state = self._decided.get(message_id)
        if state is None:
            # What an open block will decide, the checker can't know yet.
            still_open = message_id in self._open
            state = (
                TransactionState.UNKNOWN if still_open else await self._decide(record, message_id)
            )
        header = self._header(
            message_id,
            asked.tran_state_table_offset,
            asked.commit_log_offset,
            state,
            from_transaction_check=True,
        )
        request = self._context.remote.request(RequestCode.END_TRANSACTION, header, oneway=True)

        async def answer() -> bool:
            try:
                connection.send_oneway(request)
            except RemotingError as error:
                _log.warning("a transaction check is not answered", error=str(error))
            return False

        if not self._interceptors:
            await answer()
            return
        try:
            transaction = self._open_transaction(record, message_id)
        except Exception:  # noqa: BLE001 - interceptors can't be given an unreadable body
            await answer()
        else:
            await self._intercepted(transaction, state, answer)

    async def _decide(self, record: RecordView, message_id: str) -> TransactionState:
        """Return the checker's decision; UNKNOWN when it fails."""
        checker = self._checker
        assert checker is not None
        try:
            transaction = self._open_transaction(record, message_id)
            async with asyncio.timeout(TRANSACTION_CHECK_TIMEOUT):
                if inspect.iscoroutinefunction(checker):
                    state = await checker(transaction)
                else:
                    state = await asyncio.to_thread(checker, transaction)
                    if inspect.isawaitable(state):
                        state = await state
            return TransactionState(state)
        except Exception as error:  # noqa: BLE001 - the application's code may raise anything
            _log.error(
                "the transaction_checker failed; the broker will ask again",
                message=message_id,
                group=self.group,
                error=repr(error),
            )
            return TransactionState.UNKNOWN

    def _open_transaction(self, record: RecordView, message_id: str) -> OpenTransaction[T]:
        stored = record.properties
        checks = stored.get(properties.TRANSACTION_CHECK_TIMES, "")
        return OpenTransaction(
            id=message_id,
            message=Message(
                record.topic,
                self._serde.loads(record.body),
                record.tags,
                tuple(record.keys),
                {name: value for name, value in stored.items() if name not in RESERVED},
                stored.get(properties.SHARDING_KEY),
                flag=record.flag,
            ),
            checks=natural(checks, 1),
            sent_ms=record.born_timestamp_ms,
            offset_id=record.offset_id,
        )


class Transaction(Generic[T]):
    """One message that consumers get when it is committed.

    ``async with producer.transaction(...)`` sends the half message, commits at the end of the
    block, and rolls back if the block raises. ``commit``, ``rollback`` and ``defer`` decide within.

    Attributes:
        receipt: where the half message is stored; None before that.
        state: the decision; None while the transaction is open.
        confirmed: whether the broker has confirmed the decision.
    """

    def __init__(
        self,
        transactions: Transactions[T],
        message: Message[T],
        send: Callable[[], Awaitable[Receipt]],
    ) -> None:
        """Made by ``Producer.transaction``."""
        self._transactions = transactions
        self._message = message
        self._send = send
        self.receipt: Receipt | None = None
        self.state: TransactionState | None = None
        self.confirmed = False

    @property
    def id(self) -> str:
        """The message's unique id, by which a checker finds what became of the transaction.

        Raises UsageError before the half message is stored.
        """
        return self._begun().id

    def _begun(self) -> Receipt:
        if self.receipt is None:
            raise UsageError(
                "the transaction has not begun", hint="use async with, or await start() first"
            )
        return self.receipt

    async def start(self) -> None:
        """Send the half message.

        Raises:
            UsageError: it has been sent before.
            SendError: it was not stored, or not as safely as the broker is configured.
        """
        if self.receipt is not None:
            raise UsageError("the transaction has begun already", hint="make another one")
        sent_ms = self._transactions.now_ms()
        receipt = self.receipt = await self._send()
        self._opened = OpenTransaction(
            id=receipt.id,
            message=self._message,
            checks=0,
            sent_ms=sent_ms,
            offset_id=receipt.offset_id,
        )
        self._transactions.opened(self)
        if receipt.status is not SendStatus.OK:
            # The local transaction must not run on a message that may be lost.
            await self.rollback()
            raise not_durable(receipt, self._transactions.group)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self.state is None:
            await self._decide(
                TransactionState.COMMIT if exc is None else TransactionState.ROLLBACK
            )

    async def commit(self) -> bool:
        """Let consumers get the message.

        Returns:
            Whether the broker has confirmed it. If not, consumers get the message after the
            broker's next check, if this producer or another one of its group answers it.

        Raises:
            UsageError: the transaction has not begun, or another decision was made.
        """
        return await self._decide(TransactionState.COMMIT)

    async def rollback(self) -> bool:
        """Drop the message. Returns and raises as ``commit`` does."""
        return await self._decide(TransactionState.ROLLBACK)

    async def defer(self) -> None:
        """Leave the decision to the checker, which the broker asks later. Raises as ``commit``."""
        await self._decide(TransactionState.UNKNOWN)

    async def _decide(self, state: TransactionState) -> bool:
        receipt = self._begun()
        if self.state not in {None, TransactionState.UNKNOWN, state}:
            raise UsageError(
                f"the transaction has been decided: {self.state!r}",
                topic=receipt.queue.topic,
                hint="a decision is final",
            )
        self.state = state
        try:
            if state is not TransactionState.UNKNOWN and not self.confirmed:
                self.confirmed = await self._transactions.end(self._opened, receipt, state)
        finally:
            self._transactions.ended(self)
        return self.confirmed

"""Transactions: half messages, their end, and checks."""

from __future__ import annotations

from remoting.protocol.headers.base import Header, Int, Long, header


@header
class EndTransactionRequestHeader(Header):
    """END_TRANSACTION; ``commitOrRollback`` is 0 unknown, 8 commit, 12 rollback."""

    producer_group: str
    tran_state_table_offset: Long
    commit_log_offset: Long
    commit_or_rollback: Int
    from_transaction_check: bool = False
    msg_id: str
    transaction_id: str | None = None
    bname: str | None = None
    topic: str | None = None  # 5.x


@header
class EndTransactionResponseHeader(Header):
    """No fields."""


@header
class CheckTransactionStateRequestHeader(Header):
    """CHECK_TRANSACTION_STATE: the broker asks a producer about a half message."""

    tran_state_table_offset: Long
    commit_log_offset: Long
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None
    bname: str | None = None
    topic: str | None = None  # 5.x


@header
class CheckTransactionStateResponseHeader(Header):
    """What became of a transaction."""

    producer_group: str
    tran_state_table_offset: Long
    commit_log_offset: Long
    commit_or_rollback: Int


@header
class ResumeCheckHalfMessageRequestHeader(Header):
    """RESUME_CHECK_HALF_MESSAGE: check a half message again from the start."""

    msg_id: str | None = None
    topic: str | None = None  # 5.x

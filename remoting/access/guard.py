"""The guard: checks the signature of each request, and what its account may do.

Checks and texts are as in 4.9.7 (cf. PlainPermissionManager.validate); a denial is
answered as there, with code 1 and the name of Java's exception, which clients look for. Only an
unknown account is answered like a wrong signature, and takes as long: a stranger doesn't learn
which accounts exist. The log names the reason.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from typing import TYPE_CHECKING, Final

from remoting.access.accounts import DENY, PUB, SUB, Account, Rules
from remoting.access.file import AclFile
from remoting.protocol.codes import ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.errors import ProtocolError
from remoting.protocol.headers.query import UNIQUE_KEY_QUERY
from remoting.protocol.names import RETRY_PREFIX, TRACE_TOPIC
from remoting.protocol.signing import ACCESS_KEY, SIGNATURE, signed_content
from remoting.runtime.clock import Clock
from remoting.runtime.log import Log, RateLimitedLog

if TYPE_CHECKING:
    from remoting.connection import Connection
    from remoting.endpoint import Handler

EXCEPTION: Final = "org.apache.rocketmq.acl.common.AclException"
"""The name at the beginning of a denial's remark."""

Resource = tuple[str, int]
"""A topic or ``%RETRY%<group>``, and the permission that is needed on it."""

Needs = Callable[[Mapping[str, str], Command], Iterable[Resource]]
"""Returns what a request needs, from its ext fields and its body."""

Lookup = Callable[[Command, "Connection"], Awaitable[Iterable[Resource]]]
"""Like ``Needs``, for requests that name a stored message."""

_SHOWN: Final = 128
"""Characters of a key or name in a remark; a request may have a million."""

MAX_ORDERS: Final = 256
"""Sets of ext fields whose order is kept; the requests of all clients have some 50."""

MAX_ORDER_CHARACTERS: Final = 1024
"""Characters of the names of a set whose order is kept; RocketMQ's requests have up to 300."""

_NAMES: Final = {DENY: "DENY", PUB: "PUB", SUB: "SUB"}
_log = Log("access")


@dataclass(frozen=True, slots=True, kw_only=True)
class Permissions:
    """What the requests of a server need; a code that it lacks needs an administrator.

    Attributes:
        needs: by code; a request that needs only an account returns nothing.
        lookups: needs in addition, by code, which are read from the store.
        open: codes that need no account.
    """

    needs: Mapping[int, Needs]
    lookups: Mapping[int, Lookup] = field(default_factory=dict)
    open: frozenset[int] = frozenset()


class Guard:
    """Checks requests against the rules of a file.

    A request that passes has its account's key in the ext field ``AccessKey``, unless its address
    is in a white list.

    Args:
        file: the rules.
        permissions: what the requests need.
        clock: for the limit of log lines.
        on_denied: called with each request that is denied, and the reason.

    Attributes:
        file: the rules.
        denied: denials since the start.
    """

    def __init__(
        self,
        file: AclFile,
        permissions: Permissions,
        clock: Clock,
        on_denied: Callable[[Command, Connection, str], None] | None = None,
    ) -> None:
        self.file = file
        self.denied = 0
        self._permissions = permissions
        self._signatures = _Signatures()
        self._denials = RateLimitedLog(clock, _log.warning)
        self._on_denied = on_denied

    def rules_for(self, connection: Connection) -> Rules | None:
        """Return the rules; None if the global white list has the address: nothing is checked."""
        rules = self.file.rules
        return None if rules.white and rules.trusts(connection.remote[0]) else rules

    def account_of(self, command: Command, connection: Connection) -> str | None:
        """Return the account of an accepted request; None if it needed no signature."""
        return None if self.rules_for(connection) is None else command.fields.get(ACCESS_KEY)

    def check(self, command: Command, connection: Connection) -> str | None:
        """Return why a request is denied, None if it may be served; without lookups."""
        return self._judge(command, connection)[1]

    def permits(self, command: Command, connection: Connection) -> bool:
        """Return whether a request whose signature was checked may be served; without lookups."""
        rules = self.rules_for(connection)
        if rules is None:
            return True
        fields = command.fields
        account = rules.account(fields.get(ACCESS_KEY, ""))
        return self._lacking(account, command, fields) is None

    def lacking(
        self, account: str | None, connection: Connection, needed: Iterable[Resource]
    ) -> str | None:
        """Return what the account of an earlier request lacks by now; None for nothing.

        Args:
            account: what ``account_of`` returned for the request.
            connection: where it came from.
            needed: what is needed now.
        """
        rules = self.rules_for(connection)
        if rules is None:
            return None
        owner = rules.account(account or "")
        return None if owner.white(connection.remote[0]) else _missing(owner, needed)

    def wrap(self, handler: Handler) -> Handler:
        """Return a handler that passes on what may be served, and denies the rest."""
        lookups = self._permissions.lookups

        def guarded(
            command: Command, connection: Connection
        ) -> Command | Awaitable[Command | None] | None:
            account, denial = self._judge(command, connection)
            if denial is not None:
                return self._deny(command, connection, denial)
            if account is not None and (lookup := lookups.get(command.code)) is not None:
                return self._look_up(command, connection, account, lookup, handler)
            return handler(command, connection)

        return guarded

    async def _look_up(
        self,
        command: Command,
        connection: Connection,
        account: Account,
        lookup: Lookup,
        handler: Handler,
    ) -> Command | None:
        denial = _missing(account, await lookup(command, connection))
        if denial is not None:
            return self._deny(command, connection, denial)
        answer = handler(command, connection)
        return answer if answer is None or isinstance(answer, Command) else await answer

    def _judge(self, command: Command, connection: Connection) -> tuple[Account | None, str | None]:
        """Return the account, None if the address is trusted or the code open, and a denial."""
        rules = self.rules_for(connection)
        if rules is None or command.code in self._permissions.open:
            return None, None
        fields = command.fields
        name = fields.get(ACCESS_KEY)
        if not name:
            return None, "No accessKey is configured"
        account = rules.account(name)
        if account.white(connection.remote[0]):
            return None, None
        if not self._signatures.is_valid(command, fields, account):
            return None, f"Check signature failed for accessKey={name[:_SHOWN]}"
        return account, self._lacking(account, command, fields)

    def _lacking(self, account: Account, command: Command, fields: Mapping[str, str]) -> str | None:
        """Return what an account lacks for a request, None if it may do it."""
        needs = self._permissions.needs.get(command.code)
        if needs is None:
            if account.admin:
                return None
            text = "Need admin permission for request code={}, but accessKey={} is not"
            return text.format(command.code, account.access_key[:_SHOWN])
        try:
            return _missing(account, needs(fields, command))
        except ProtocolError as error:
            return str(error)

    def _deny(self, command: Command, connection: Connection, denial: str) -> Command | None:
        self.denied += 1
        reason, name = denial, command.fields.get(ACCESS_KEY)
        if name and name not in self.file.rules.accounts:
            reason = f"No acl config for {name[:_SHOWN]}"
        self._denials.write(
            "request denied", remote=connection.remote_text, code=command.code, reason=reason
        )
        if self._on_denied is not None:
            self._on_denied(command, connection, reason)
        if command.is_oneway:
            return None
        return command.reply(ResponseCode.SYSTEM_ERROR, f"{EXCEPTION}: {denial}")


class _Signatures:
    """Checks signatures. It keeps the order of the fields' names for requests that were signed."""

    __slots__ = ("_orders",)

    def __init__(self) -> None:
        self._orders: dict[tuple[str, ...], Callable[[dict[str, str]], Iterable[str]]] = {}

    def is_valid(self, command: Command, fields: dict[str, str], account: Account) -> bool:
        # A header in msgpack has fields without names; a server with a guard doesn't agree to it.
        if command.values is not None:
            return False
        signature, body = fields.get(SIGNATURE, "").encode("utf-8", "replace"), command.body
        names = tuple(fields)
        order = self._orders.get(names)
        if order is not None:
            values = "".join(order(fields)).encode("utf-8", "replace")
            return account.has_signed(values, body, signature)
        others = {name: text for name, text in fields.items() if name != UNIQUE_KEY_QUERY}
        if account.has_signed(*signed_content(others, body), signature):
            used = sorted(name for name in others if name != SIGNATURE)
            joined = "".join(used)
            is_simple = len(others) == len(fields) and len(used) > 1 and joined.isascii()
            is_small = len(joined) <= MAX_ORDER_CHARACTERS and len(self._orders) < MAX_ORDERS
            if is_simple and is_small:
                self._orders[names] = itemgetter(*used)
            return True
        if len(others) == len(fields):
            return False
        # Java's client signs this field, too; 4.9.7 then refuses it.
        return account.has_signed(*signed_content(fields, body), signature)


def _missing(account: Account, needed: Iterable[Resource]) -> str | None:
    """Return what an account lacks, None if it may do everything that is needed."""
    for resource, permission in needed:
        # Every account may send its traces.
        if account.may(resource, permission) or (resource == TRACE_TOPIC and permission == PUB):
            continue
        kind, name = "topic", resource
        if resource.startswith(RETRY_PREFIX):
            kind, name = "group", resource[len(RETRY_PREFIX) :]
        return (
            f"No default permission for {kind}:{name[:_SHOWN]}, accessKey="
            f"{account.access_key[:_SHOWN]} needs {_NAMES[permission]} on this {kind}"
        )
    return None

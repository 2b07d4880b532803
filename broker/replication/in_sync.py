"""The replicas in sync, at their master: who has every message, and what is therefore confirmed.

The controller keeps the set of those that may become master: every acknowledged message must be in
each of them. The master asks the controller to change it. While it doesn't know whether it has, the
acknowledgements of both sets are needed, the old and the requested one: the controller may elect
from either. A request without an answer may still arrive; it is over when the set has another
epoch, or when a later one was refused because of what it asks for, and the older ones are too old
to arrive (``LOST_SECONDS``).

The confirm offset is where the log is in all of them. It never goes back, and stays where it is
while one of them has no connection: nobody knows what that one has.
"""

from __future__ import annotations

from itertools import combinations
from typing import Final, NamedTuple

LAG_SECONDS: Final = 15.0
"""A replica that was behind for so long leaves (cf. haMaxTimeSlaveNotCatchup)."""

ASK_SECONDS: Final = 1.0
"""Pause between two requests for a change."""

LOST_SECONDS: Final = 30.0
"""A request that is older doesn't arrive any more: its connection has been closed long before."""


class InSyncRules(NamedTuple):
    """When a send is acknowledged: by default when all replicas in sync have it, two at least.

    Attributes:
        all_ack: wait for all replicas in sync (cf. allAckInSyncStateSet). Without it an
            acknowledged message can be lost, and a message that was read, too.
        min_in_sync: refuse sends while fewer are in sync, the master counted (cf.
            minInSyncReplicas).
        in_sync: replicas that have an acknowledged message, the master counted, without
            ``all_ack`` (cf. inSyncReplicas).
        lag_seconds: see ``LAG_SECONDS``.
    """

    all_ack: bool = True
    min_in_sync: int = 2
    in_sync: int = 1
    lag_seconds: float = LAG_SECONDS


class ReplicaLink:
    """One connection of a slave. Times are monotonic, in seconds.

    Attributes:
        broker_id: of the slave.
        acked: physical offset up to which it has the log; -1 if unknown.
        caught_up_at: when it last had what the master had.
        is_void: whether the slave has another connection since: close this one. Whichever was
            opened last, the slave connects again if it was wrong.
    """

    __slots__ = ("_mark", "_mark_at", "acked", "broker_id", "caught_up_at", "is_learner", "is_void")

    def __init__(self, broker_id: int, now: float, *, is_learner: bool) -> None:
        self.broker_id = broker_id
        self.is_learner = is_learner
        self.is_void = False
        self.acked = -1
        self.caught_up_at = self._mark_at = now
        self._mark = -1

    def count(self, offset: int, end: int, now: float) -> None:
        """Count an acknowledgement, at a time when the master's log ends at ``end``."""
        self.acked = max(self.acked, offset)
        if self.acked >= self._mark:
            self.caught_up_at = now if self.acked >= end else self._mark_at
            self._mark, self._mark_at = end, now


class InSyncSet:
    """The replicas in sync, as their master knows them, for one epoch of it.

    Attributes:
        members: the set as the controller last told it.
        epoch: of the set.
        confirmed: the confirm offset.
    """

    def __init__(
        self,
        own_id: int,
        members: frozenset[int],
        epoch: int,
        *,
        start: int,
        confirmed: int,
        rules: InSyncRules,
    ) -> None:
        """Create the set of a new master.

        Args:
            own_id: the master's broker id.
            members: the set.
            epoch: of the set.
            start: physical offset where the master's epoch begins.
            confirmed: what the master knows to be confirmed.
            rules: when a send is acknowledged.
        """
        self.own_id = own_id
        self.members = members
        self.epoch = epoch
        self.confirmed = confirmed
        self._start = start
        self._rules = rules
        self._links: dict[int, ReplicaLink] = {}
        self._asked: frozenset[int] | None = None
        self._asked_at: list[float] = []  # of requests without an answer
        self._refusals = 0  # since the set has this epoch
        self._next_at = 0.0

    # --- the slaves

    def connect(self, broker_id: int, now: float, *, is_learner: bool = False) -> ReplicaLink:
        """Count a new connection of a slave, instead of the one it had."""
        if broker_id in self._links:
            self._links[broker_id].is_void = True
        link = ReplicaLink(broker_id, now, is_learner=is_learner)
        self._links[broker_id] = link
        return link

    def disconnect(self, link: ReplicaLink) -> None:
        """Forget a connection, and what was acknowledged on it."""
        if self._links.get(link.broker_id) is link:
            del self._links[link.broker_id]

    def needed(self) -> frozenset[int]:
        """Return the replicas that must have a message before it is confirmed."""
        return self.members | (self._asked or frozenset())

    def advance(self, end: int) -> int:
        """Return the confirm offset of a log that ends, or is flushed, at ``end``."""
        offset = end
        if self._rules.all_ack:
            for member in self.needed():
                if member != self.own_id:
                    link = self._links.get(member)
                    offset = min(offset, -1 if link is None else link.acked)
        self.confirmed = max(self.confirmed, offset)
        return self.confirmed

    def acknowledged(self, end: int) -> int:
        """Return the offset up to which sends are acknowledged; ``end`` as in ``advance``."""
        confirmed = self.advance(end)
        needed = self._rules.in_sync - 1
        if self._rules.all_ack or needed < 1:
            return confirmed
        acked = sorted((link.acked for link in self._links.values()), reverse=True)
        return min(end, acked[needed - 1]) if len(acked) >= needed else 0

    def refusal(self) -> str | None:
        """Return why a send is refused; None if it isn't."""
        size = min(len(self.members), len(self._asked or self.members))
        if size >= self._rules.min_in_sync:
            return None
        return (
            f"in-sync replicas not enough: {size} of at least {self._rules.min_in_sync}; start a"
            " slave, or lower minInSyncReplicas"
        )

    # --- the controller

    def ask(self, end: int, now: float) -> frozenset[int] | None:
        """Return the set to request now, based on ``epoch``; None if nothing is to be changed.

        From now on the acknowledgements of both sets are needed.

        Args:
            end: as in ``advance``.
            now: the time.
        """
        if now < self._next_at:
            return None
        if self._asked is None:
            wanted = self._wanted(end, now)
            if wanted == self.members:
                return None
            self._asked = wanted
        self._asked_at.append(now)
        self._next_at = now + ASK_SECONDS
        return self._asked

    def refused(self, now: float, *, is_unchanged: bool) -> None:
        """Count that the controller has refused the last request.

        Args:
            now: the time.
            is_unchanged: whether the refusal tells that the controller still has this epoch of the
                set, and this master: then it has had no other request.
        """
        if self._asked is not None:
            del self._asked_at[-1:]
            if is_unchanged:
                self._refusals += 1
                self._asked_at = [at for at in self._asked_at if now - at < LOST_SECONDS]
            if not self._asked_at:
                self._asked = None

    def learn(self, members: frozenset[int], epoch: int) -> None:
        """Take what the controller tells about the set, in answer to whatever request."""
        if epoch > self.epoch:
            self.members, self.epoch = members, epoch
            self._asked = None
            self._asked_at.clear()
            self._refusals = 0
            self._next_at = 0.0

    def _wanted(self, end: int, now: float) -> frozenset[int]:
        confirmed = self.advance(end)
        wanted = {self.own_id}
        for broker_id, link in self._links.items():
            if broker_id in self.members:
                if link.acked >= end:
                    link.caught_up_at = now
                if now - link.caught_up_at <= self._rules.lag_seconds:
                    wanted.add(broker_id)
            elif link.acked >= max(confirmed, self._start) and not link.is_learner:
                wanted.add(broker_id)
        # The controller refuses a set with one that it takes for dead, and does not tell which one
        # that is. So after a refusal one of them is left out, or two, in turn: first of those that
        # would join; of the members only if there are others that leave.
        may_wait = wanted - ({self.own_id} if self.members - wanted else self.members)
        in_turn = sorted(may_wait, key=lambda one: (one in self.members, one))
        sets = [wanted.difference(out) for n in range(3) for out in combinations(in_turn, n)]
        sets = [one for one in sets if one != self.members] or [wanted]
        return frozenset(sets[self._refusals % len(sets)])

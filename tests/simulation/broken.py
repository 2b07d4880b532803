"""Brokers with one fault each: the simulation has to find every one."""

from __future__ import annotations

from broker.replication.autoswitch import AutoSwitchSlave
from broker.replication.epochs import EpochList
from broker.replication.in_sync import InSyncSet
from tests.simulation.world import Broker, MasterLink


class OldSetOnly(InSyncSet):
    """Needs no acknowledgement of those that it has asked for."""

    def needed(self) -> frozenset[int]:
        return self.members


class WithoutUnion(Broker):
    """Its master has only the set that the controller last told."""

    in_sync_set = OldSetOnly


class TrustsRefusals(InSyncSet):
    """Takes every refusal for one of all requests that are old."""

    def refused(self, now: float, *, is_unchanged: bool) -> None:
        super().refused(now, is_unchanged=True)


class WithRefusals(Broker):
    """Its master forgets a request that was accepted when another one is refused."""

    in_sync_set = TrustsRefusals


class WithoutTruncation(Broker):
    """Keeps what its new master does not have."""

    def cut(self, point: int) -> None:
        pass


class AcknowledgesReceived(Broker):
    """Acknowledges what it has received, and not appended yet."""

    def reported(self, stream: AutoSwitchSlave) -> int:
        return stream.end


class AcknowledgesUnsynced(Broker):
    """Acknowledges what it would lose in a power cut."""

    def reported(self, stream: AutoSwitchSlave) -> int:
        return stream.begin


class CountsForeign(Broker):
    """Counts an acknowledgement for every connection."""

    def count(self, link: MasterLink) -> None:
        for one in self.links:
            if one.replica is not None:
                one.replica.count(link.stream.acked, self.safe_end, self.world.now)


class ShowsUnconfirmed(Broker):
    """Shows consumers what it has."""

    def visible_end(self) -> int:
        return len(self.log)


class ConfirmsAllAtStart(Broker):
    """Takes its whole log for confirmed when it starts."""

    def start(self) -> None:
        self.checkpoint = len(self.log)
        super().start()


class KeepsEmptyEpoch(Broker):
    """Begins no epoch where another one begins, as RocketMQ."""

    def begin_epoch(self, epoch: int) -> EpochList:
        newest = self.epochs.entries[-1:]
        if newest and newest[0].start == len(self.log):
            return self.epochs
        return super().begin_epoch(epoch)


class LeadsAgain(Broker):
    """Goes on as the master of an epoch after a restart, as RocketMQ."""

    def epoch_before(self) -> int:
        return -1

    def begin_epoch(self, epoch: int) -> EpochList:
        if self.epochs.last(len(self.log)) == epoch:
            return self.epochs
        return super().begin_epoch(epoch)


class SavesEpochsLate(Broker):
    """Writes the epochs of its master after it has accepted some of the log."""

    def save_epochs(self) -> None:
        if self.world.random.random() < 0.5:
            super().save_epochs()


class ForgetsRequests(Broker):
    """Takes a request without an answer for refused."""

    def tick(self) -> None:
        if self.is_asking and self.in_sync is not None and self.world.now - self.asked_at > 2.0:
            self.in_sync.refused(self.world.now, is_unchanged=True)
        super().tick()

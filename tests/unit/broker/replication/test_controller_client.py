"""A broker's dealings with the controller, against a captured start and failover of 5.3.3."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from broker.replication.controller import (
    HEARTBEAT_SECONDS,
    LEASE_SECONDS,
    POLL_SECONDS,
    RETRY_SECONDS,
    SILENCE_SECONDS,
    Answer,
    AskController,
    ChangeRole,
    ControllerClient,
    Effect,
    Group,
    IdentityError,
    Role,
    SaveIdentity,
    SendHeartbeat,
    StoreProgress,
    read_answer,
)
from broker.replication.in_sync import InSyncRules, InSyncSet
from remoting.protocol.bodies import encode
from remoting.protocol.bodies.controller import SyncStateSet
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.errors import ProtocolError
from remoting.protocol.frame import cut, decode
from remoting.protocol.headers.controller import (
    GetMetaDataResponseHeader,
    GetNextBrokerIdResponseHeader,
    MasterHeader,
)

GROUP = Group("DefaultCluster", "broker-a", "127.0.0.1:44100", ("127.0.0.1:44011",))
VIEW = StoreProgress(now_ms=1795727572402, is_writable=True, epoch=-1, end=0, confirmed=0)
OWN = "DefaultCluster#broker-a#1"

LEADER = Answer(0, GetMetaDataResponseHeader(controller_leader_address="leader:1"))


def master(number: int | None, epoch: int | None, members: list[int], set_epoch: int = 1) -> Answer:
    address = None if number is None else f"broker{number}:1"
    header = MasterHeader(
        master_broker_id=number,
        master_address=address,
        master_epoch=epoch,
        sync_state_set_epoch=set_epoch,
    )
    return Answer(0, header, SyncStateSet(members, set_epoch))


NOBODY = master(None, None, [], 0)


class Talk:
    """A client, and what it was told and says."""

    def __init__(
        self, identity: str | None = OWN, temporary: str | None = None, epoch: int = -1
    ) -> None:
        self.client = ControllerClient(GROUP, identity=identity, temporary=temporary, epoch=epoch)
        self.now = 100.0
        self.view = VIEW
        self.roles: list[Role] = []
        self.saved: list[SaveIdentity] = []
        self.heartbeats = 0
        self.asked: AskController | None = None

    def run(self, effects: list[Effect]) -> AskController | None:
        ask = None
        for effect in effects:
            match effect:
                case AskController():
                    ask = self.asked = effect
                case SendHeartbeat():
                    self.heartbeats += 1
                case ChangeRole():
                    self.roles.append(effect.role)
                case SaveIdentity():
                    self.saved.append(effect)
        return ask

    def step(self, seconds: float = 0.0) -> AskController | None:
        self.now += seconds
        return self.run(self.client.step(self.now, self.view))

    def answer(self, answer: Answer | None, *, code: int | None = None) -> AskController | None:
        """Answer what is asked; return what is asked next."""
        self.asked = None
        self.run(self.client.answered(answer, self.now))
        ask = self.step()
        assert code is None or (ask is not None and ask.code == code), ask
        return ask

    def go_on(self, seconds: float, answer: Answer | None) -> None:
        """Let time pass, while every question about roles gets this answer."""
        end = self.now + seconds
        while True:
            while self.asked is not None:
                is_leader = self.asked.code == RequestCode.CONTROLLER_GET_METADATA_INFO
                self.answer(LEADER if is_leader else answer)
            if self.now >= end:
                return
            self.step(0.5)

    def lead(self, *members: int, min_in_sync: int = 1) -> InSyncSet:
        """Serve as the master of the last role."""
        role = self.roles[-1]
        in_sync = InSyncSet(
            1,
            frozenset(members),
            role.members_epoch,
            start=0,
            confirmed=0,
            rules=InSyncRules(min_in_sync=min_in_sync),
        )
        assert self.client.lead(in_sync, role.epoch)
        return in_sync


def registered(answer: Answer = NOBODY, epoch: int = -1) -> Talk:
    """A broker that has just registered."""
    talk = Talk(epoch=epoch)
    ask = talk.step()
    assert ask is not None
    assert ask.code == RequestCode.CONTROLLER_GET_METADATA_INFO
    ask = talk.answer(LEADER, code=RequestCode.CONTROLLER_REGISTER_BROKER)
    assert ask is not None
    assert ask.address == "leader:1"
    talk.answer(answer)
    return talk


def elected() -> Talk:
    """A broker that was elected at once, and serves alone in its set."""
    talk = registered()
    talk.answer(master(1, 3, [1]), code=RequestCode.CONTROLLER_GET_REPLICA_INFO)
    talk.lead(1)
    talk.answer(master(1, 3, [1]))
    return talk


# --- captured


@pytest.fixture
def captured(golden: Path) -> list[dict[str, Any]]:
    lines = (golden / "ha" / "controller.jsonl").read_text().splitlines()
    return [line for line in map(json.loads, lines) if "code" in line]


def command_of(line: dict[str, Any]) -> Command:
    frame = cut(bytes.fromhex(line["frame_hex"]))
    assert frame is not None
    return decode(frame)


def test_a_new_broker_asks_what_apaches_asked_and_becomes_master(
    captured: list[dict[str, Any]],
) -> None:
    talk = Talk(identity=None)
    lines = [line for line in captured if line["conn"] == 1][:12]
    answers = [line for line in lines if line["type"] == "response"]
    requests = [line for line in lines if line["type"] == "request"]
    ask = talk.step()
    for request, answer in zip(requests, answers, strict=True):
        assert ask is not None
        assert ask.code == request["code"]
        own = dict(ask.header.pairs()) if ask.header else {}
        assert own.keys() == request["header"].keys()
        assert own | {"invokeTime": ""} == request["header"] | {"invokeTime": ""}
        ask = talk.answer(read_answer(ask.code, command_of(answer)))
    temporary = f"{OWN}#127.0.0.1:44100;1795727572402"
    assert talk.saved == [SaveIdentity(None, temporary), SaveIdentity(OWN, None)]
    assert talk.roles == [Role(1, "127.0.0.1:44100", 1, frozenset({1}), 1)]
    assert talk.client.is_master
    assert talk.heartbeats == 1


def test_the_first_heartbeat_is_that_of_apaches_broker(captured: list[dict[str, Any]]) -> None:
    heartbeat = next(line for line in captured if line["code"] == RequestCode.BROKER_HEARTBEAT)
    client = ControllerClient(GROUP, identity=OWN, temporary=None, epoch=-1)
    client.step(0.0, VIEW)
    client.answered(LEADER, 0.0)
    client.step(0.0, VIEW)
    client.answered(NOBODY, 0.0)
    [sent] = [effect for effect in client.step(0.0, VIEW) if isinstance(effect, SendHeartbeat)]
    assert dict(sent.header.pairs()) == heartbeat["header"]


def test_a_request_for_another_set_is_that_of_apaches_master(
    captured: list[dict[str, Any]],
) -> None:
    line = next(line for line in captured if line["code"] == 1001)
    answer = next(line for line in captured if line.get("reply_to") == 1001)
    talk = registered()
    talk.answer(master(1, 1, [1]))
    in_sync = talk.lead(1)
    in_sync.connect(2, talk.now).count(0, 0, talk.now)
    ask = talk.answer(master(1, 1, [1]), code=RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET)
    assert ask is not None
    assert ask.header is not None
    assert dict(ask.header.pairs()) | {"invokeTime": ""} == line["header"] | {"invokeTime": ""}
    assert ask.body is not None
    assert encode(ask.body) == command_of(line).body
    talk.answer(read_answer(ask.code, command_of(answer)))
    assert (in_sync.members, in_sync.epoch) == ({1, 2}, 2)


def test_every_captured_answer_is_read(captured: list[dict[str, Any]]) -> None:
    for line in captured:
        if line["type"] == "response" and line["reply_to"] not in {1006, 1007, 907}:
            answer = read_answer(line["reply_to"], command_of(line))
            assert answer.code == line["code"]
            assert answer.code == 0 or answer.header is None


@pytest.mark.parametrize(
    "answer",
    [
        Command(0, pairs=(("masterEpoch", "x"),)),
        Command(0, pairs=(("masterEpoch", "99999999999"),)),
        Command(0, pairs=(("masterEpoch", "1"),), body=b"{"),
        Command(0, pairs=(), body=b'{"syncStateSet":"x"}'),
    ],
)
def test_garbage_is_not_an_answer(answer: Command) -> None:
    with pytest.raises(ProtocolError):
        read_answer(RequestCode.CONTROLLER_GET_REPLICA_INFO, answer)


# --- identity


def test_an_id_that_was_applied_for_before_a_crash_is_applied_for_again() -> None:
    talk = Talk(identity=None, temporary=f"{OWN}#127.0.0.1:44100;77")
    talk.step()
    ask = talk.answer(LEADER, code=RequestCode.CONTROLLER_APPLY_BROKER_ID)
    assert ask is not None
    assert ask.header is not None
    assert dict(ask.header.pairs())["registerCheckCode"] == "127.0.0.1:44100;77"
    talk.answer(Answer(0), code=RequestCode.CONTROLLER_REGISTER_BROKER)
    assert talk.saved == [SaveIdentity(OWN, None)]


def test_an_id_that_another_broker_got_is_given_up() -> None:
    talk = Talk(identity=None)
    talk.step()
    talk.answer(LEADER, code=RequestCode.CONTROLLER_GET_NEXT_BROKER_ID)
    first = Answer(0, GetNextBrokerIdResponseHeader(next_broker_id=1))
    talk.answer(first, code=RequestCode.CONTROLLER_APPLY_BROKER_ID)
    assert talk.answer(Answer(ResponseCode.CONTROLLER_BROKER_ID_INVALID)) is None
    assert talk.saved[-1] == SaveIdentity(None, None)
    ask = talk.step(RETRY_SECONDS)
    assert ask is not None
    assert ask.code == RequestCode.CONTROLLER_GET_NEXT_BROKER_ID


@pytest.mark.parametrize("temporary", ["", "x", "#", "a#b#1#c", "DefaultCluster#broker-a#x#c"])
def test_a_temporary_file_of_no_use_is_ignored(temporary: str) -> None:
    talk = Talk(identity=None, temporary=temporary)
    talk.step()
    talk.answer(LEADER, code=RequestCode.CONTROLLER_GET_NEXT_BROKER_ID)


@pytest.mark.parametrize("text", ["", "x", "Other#broker-a#1", "DefaultCluster#b#1", OWN + "x"])
def test_the_store_of_another_broker_is_never_used(text: str) -> None:
    with pytest.raises(IdentityError, match="not of DefaultCluster#broker-a"):
        Talk(identity=text)


# --- roles


def test_a_slave_follows_the_master_that_registration_names() -> None:
    talk = registered(master(2, 4, [2], 6))
    assert talk.roles == [Role(2, "broker2:1", 4, frozenset({2}), 6)]
    assert not talk.client.is_master
    assert talk.client.refusal(talk.now) is not None


def test_a_notice_makes_the_broker_ask_and_changes_nothing_by_itself() -> None:
    talk = registered(master(2, 4, [2]))
    talk.answer(master(2, 4, [2]))
    assert talk.step(1.0) is None
    for _ in range(3):
        talk.client.notified()
    ask = talk.step()
    assert ask is not None
    assert ask.code == RequestCode.CONTROLLER_GET_REPLICA_INFO
    assert talk.answer(master(2, 4, [2])) is None, "one question answers all notices"
    assert len(talk.roles) == 1


def test_who_is_master_is_asked_every_5_seconds() -> None:
    talk = registered(master(2, 4, [2]))
    talk.answer(master(2, 4, [2]))
    assert talk.step(POLL_SECONDS - 0.1) is None
    ask = talk.step(0.1)
    assert ask is not None
    assert ask.code == RequestCode.CONTROLLER_GET_REPLICA_INFO
    talk.answer(master(1, 5, [1], 9))
    assert talk.roles[-1] == Role(1, "broker1:1", 5, frozenset({1}), 9)


def test_a_role_is_taken_once_and_never_for_an_older_epoch() -> None:
    talk = registered(master(2, 4, [2]))
    for epoch, number in ((4, 2), (3, 1), (0, 1)):
        talk.go_on(3 * POLL_SECONDS, master(number, epoch, [number]))
    assert len(talk.roles) == 1
    assert talk.client.problem is not None
    assert "the controller has lost its state" in talk.client.problem


def test_two_masters_in_one_epoch_are_a_problem_and_no_role() -> None:
    talk = registered(master(2, 4, [2]))
    talk.answer(master(3, 4, [3]))
    assert len(talk.roles) == 1
    assert talk.client.problem is not None
    assert "broker 3 is master in epoch 4" in talk.client.problem


def test_without_a_master_the_broker_asks_for_an_election_until_there_is_one() -> None:
    talk = registered()
    ask = talk.answer(Answer(ResponseCode.CONTROLLER_ELECT_MASTER_FAILED))
    assert ask is None
    asked = []
    for _ in range(6):
        ask = talk.step(1.0)
        if ask is not None:
            asked.append(ask.code)
            refused = ask.code == RequestCode.CONTROLLER_ELECT_MASTER
            answer = Answer(ResponseCode.CONTROLLER_ELECT_MASTER_FAILED) if refused else NOBODY
            talk.run(talk.client.answered(answer, talk.now))
    assert asked.count(RequestCode.CONTROLLER_ELECT_MASTER) >= 2
    assert talk.roles == []


def test_a_master_that_is_there_already_is_followed() -> None:
    talk = registered()
    still = master(2, 7, [2])._replace(code=ResponseCode.CONTROLLER_MASTER_STILL_EXIST)
    talk.answer(still)
    assert talk.roles == [Role(2, "broker2:1", 7, frozenset({2}), 1)]


def test_a_master_whose_controller_has_none_any_more_stops() -> None:
    talk = elected()
    assert talk.client.refusal(talk.now) is None
    talk.step(POLL_SECONDS)
    talk.answer(master(None, 4, [1]), code=RequestCode.CONTROLLER_ELECT_MASTER)
    assert talk.roles[-1].master_id is None
    assert talk.client.refusal(talk.now) is not None


def test_a_role_that_was_taken_too_late_is_void() -> None:
    talk = registered()
    talk.answer(master(1, 3, [1]))
    in_sync = talk.lead(1)
    talk.answer(master(2, 4, [2]))
    assert not talk.client.lead(in_sync, 3)
    talk.go_on(2 * POLL_SECONDS, master(1, 5, [1]))
    assert not talk.client.lead(in_sync, 3), "its set is that of epoch 3"
    assert talk.client.refusal(talk.now) is not None
    assert talk.client.lead(in_sync, 5)
    assert talk.client.refusal(talk.now) is None


def test_a_broker_that_the_controller_does_not_know_registers_again() -> None:
    talk = elected()
    talk.step(POLL_SECONDS)
    talk.answer(Answer(ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST))
    ask = talk.step(RETRY_SECONDS)
    assert ask is not None
    assert ask.code == RequestCode.CONTROLLER_REGISTER_BROKER


def test_a_restarted_master_does_not_lead_again_in_its_epoch() -> None:
    talk = registered(master(1, 3, [1, 2]), epoch=3)
    assert (talk.roles, talk.heartbeats) == ([], 0), "so the controller votes it out"
    talk.go_on(SILENCE_SECONDS - POLL_SECONDS, master(1, 3, [1, 2]))
    assert talk.heartbeats == 0
    talk.go_on(3 * POLL_SECONDS, master(1, 3, [1, 2]))
    assert talk.heartbeats == 1, "a controller that has restarted notices an end, too"
    assert talk.roles == []
    talk.go_on(2 * POLL_SECONDS, master(1, 5, [1]))
    assert [role.epoch for role in talk.roles] == [5]


# --- heartbeats and the lease


def test_heartbeats_go_out_each_second() -> None:
    talk = elected()
    before = talk.heartbeats
    for _ in range(4):
        talk.step(HEARTBEAT_SECONDS / 2)
    assert talk.heartbeats == before + 2


def test_heartbeats_stop_while_the_store_cant_be_written() -> None:
    talk = elected()
    talk.view = VIEW._replace(is_writable=False)
    before = talk.heartbeats
    talk.go_on(5.0, master(1, 3, [1]))
    assert talk.heartbeats == before
    talk.view = VIEW
    talk.step(1.0)
    assert talk.heartbeats == before + 1


def test_a_broker_that_cant_write_asks_for_no_election() -> None:
    talk = Talk()
    talk.view = VIEW._replace(is_writable=False)
    talk.step()
    talk.answer(LEADER)
    talk.answer(NOBODY, code=RequestCode.CONTROLLER_GET_REPLICA_INFO)


def test_a_master_without_answers_refuses_sends_and_sends_no_heartbeats() -> None:
    talk = elected()
    talk.go_on(LEASE_SECONDS - 0.5, None)
    assert talk.client.refusal(talk.now) is None
    talk.go_on(0.5, None)
    refusal = talk.client.refusal(talk.now)
    assert refusal is not None
    assert "no controller has answered" in refusal
    assert "127.0.0.1:44011" in refusal
    before = talk.heartbeats
    talk.step(1.0)
    assert talk.heartbeats == before
    assert talk.client.is_master, "it acknowledges what all of its set have"


def test_the_lease_counts_from_the_request_on() -> None:
    talk = elected()
    talk.step(POLL_SECONDS)
    asked_at = talk.now
    talk.now += LEASE_SECONDS - 1.0
    talk.answer(master(1, 3, [1]))
    assert talk.client.has_lease(asked_at + LEASE_SECONDS - 0.1)
    assert not talk.client.has_lease(asked_at + LEASE_SECONDS)


@pytest.mark.parametrize("answer", [master(1, 2, [1]), master(2, 3, [2])])
def test_a_controller_with_another_state_does_not_prolong_the_lease(answer: Answer) -> None:
    talk = elected()
    talk.go_on(LEASE_SECONDS, answer)
    assert not talk.client.has_lease(talk.now)


def test_a_master_with_too_few_in_sync_says_so() -> None:
    talk = registered()
    talk.answer(master(1, 3, [1]))
    talk.lead(1, min_in_sync=2)
    refusal = talk.client.refusal(talk.now)
    assert refusal is not None
    assert "in-sync replicas not enough" in refusal


def test_a_refused_set_is_asked_about() -> None:
    talk = elected()
    in_sync = talk.lead(1)
    in_sync.connect(2, talk.now).count(0, 0, talk.now)
    ask = talk.step(1.0)
    assert ask is not None
    assert ask.code == RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET
    talk.answer(
        Answer(ResponseCode.CONTROLLER_INVALID_MASTER),
        code=RequestCode.CONTROLLER_GET_REPLICA_INFO,
    )
    assert in_sync.needed() == {1}
    talk.answer(master(2, 4, [2]))
    assert not talk.client.is_master


# --- which controller


@pytest.mark.parametrize(
    "lose",
    [
        lambda talk: talk.run(talk.client.answered(None, talk.now)),
        lambda talk: talk.run(
            talk.client.answered(Answer(ResponseCode.CONTROLLER_NOT_LEADER), talk.now)
        ),
    ],
)
def test_after_a_failure_another_controller_is_asked_who_leads(
    lose: Callable[[Talk], None],
) -> None:
    group = GROUP._replace(controllers=("one:1", "two:1", "three:1"))
    talk = Talk()
    talk.client = ControllerClient(group, identity=OWN, temporary=None, epoch=-1)
    asked = []
    for _ in range(4):
        ask = talk.step(RETRY_SECONDS)
        assert ask is not None
        assert ask.code == RequestCode.CONTROLLER_GET_METADATA_INFO
        asked.append(ask.address)
        talk.answer(LEADER, code=RequestCode.CONTROLLER_REGISTER_BROKER)
        lose(talk)
    assert asked == ["one:1", "two:1", "three:1", "one:1"]
    assert talk.client.problem is not None
    assert "one:1;two:1;three:1" in talk.client.problem


def test_controllers_without_a_leader_are_asked_in_turn() -> None:
    talk = Talk()
    talk.step()
    assert talk.answer(Answer(0, GetMetaDataResponseHeader())) is None
    ask = talk.step(RETRY_SECONDS)
    assert ask is not None
    assert ask.code == RequestCode.CONTROLLER_GET_METADATA_INFO

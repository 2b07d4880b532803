"""Run a scenario's steps, and describe the outcome of each.

A step's outcome is what has changed since the previous one: the owners of queues, the number of
messages handled by each member, the members' events, and the brokers' findings about the groups.
With virtual time a step ends after ``settles`` seconds of its clock; in real time it ends when the
expected outcome has happened, or after ``PATIENCE``.
"""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import Any, Final

import client
from remoting.protocol.codes import RequestCode, ResponseCode
from tests.scenarios.actors import Foreign, Member
from tests.scenarios.clusters import BROKERS, InLoop, Place, make_topic
from tests.scenarios.journal import Journal
from tests.scenarios.loops import Actor, SimulatedLoop
from tests.scenarios.script import Script, Step

PATIENCE: Final = 20.0
POLL: Final = 0.02
A_MOMENT: Final = 0.3
"""How long nothing may happen if nothing is expected."""

_POLICIES: Final = {"warns": "warn", "allows": "allow"}


class Stage:
    """One run of one scenario; use it as a context manager."""

    def __init__(self, script: Script, cluster: Place) -> None:
        self._script = script
        self._cluster = cluster
        self._suffix = f"-{script.name}"
        self._journals: dict[str, Journal] = defaultdict(Journal)
        self._members: dict[str, Member] = {}
        self._foreigners: dict[str, Foreign] = {}
        self._names: dict[str, str] = {}
        self._groups: set[str] = set()
        self._brokers_of: dict[str, list[str]] = {}
        self._sent: dict[str, int] = {}
        self._answers: list[str] = []
        self._joining: set[asyncio.Task[None]] = set()
        self._states: dict[tuple[str, str], str] = {}
        self._found: dict[str, set[str]] = {}
        self._wait: float | None = None
        self._lag_asked: str | None = None

    async def __aenter__(self) -> Stage:
        self._instance = client.Instance(self._cluster.nameserver, ip="10.9.9.9")
        await self._instance.start()
        self._admin = self._instance.admin()
        self._producer = self._instance.producer()
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._joining:
            task.cancel()
        await asyncio.gather(*self._joining, return_exceptions=True)
        for member in self._members.values():
            await member.kill()
        for foreign in self._foreigners.values():
            await foreign.close()
        await self._instance.close()

    async def run(self) -> dict[int, list[str]]:
        """Run every step; return the outcomes by the steps' lines."""
        return {step.line: await self._tell(step) for step in self._script.steps}

    async def _tell(self, step: Step) -> list[str]:
        text, _, wait = step.text.rpartition(", wait ")
        text, wait = (text, wait) if text else (step.text, "")
        self._wait = float(wait.removesuffix("s")) if wait else None
        self._lag_asked = None
        for pattern, action in _STEPS:
            match = re.fullmatch(pattern, text)
            if match is not None:
                await action(self, *match.groups())
                return await self._outcome(step.at(self._cluster.kind))
        raise ValueError(f"{self._script.name}, line {step.line + 1}: what is {step.text!r}?")

    async def _outcome(self, expected: list[str]) -> list[str]:
        if self._cluster.settles is not None:
            await asyncio.sleep(self._wait or self._cluster.settles)
        elif not expected:
            await asyncio.sleep(A_MOMENT)
        deadline = asyncio.get_running_loop().time() + (self._wait or 0.0) + PATIENCE
        while True:
            states, found = self._member_states(), await self._findings()
            lines = await self._asked() + self._lines(states, found)
            late = asyncio.get_running_loop().time() >= deadline
            if self._cluster.settles is not None or late or lines == expected:
                break
            await asyncio.sleep(POLL)
        self._turn_over(states, found)
        return lines

    async def _asked(self) -> list[str]:
        if self._lag_asked is None:
            return []
        lag = await self._admin.lag(self._real(self._lag_asked))
        return [f"{self._lag_asked} lags {lag.total} behind"]

    def _lines(self, states: dict[tuple[str, str], str], found: dict[str, set[str]]) -> list[str]:
        lines = list(self._answers)
        lines += [
            f"{name} {verb} {what}"
            for (name, verb), what in states.items()
            if self._states.get((name, verb), "" if verb == "owns" else "nothing") != what
        ]
        for _, journal in sorted(self._journals.items()):
            for (name, topic), count in sorted(journal.fresh.items()):
                again = journal.again[name, topic]
                twice = f", {again} of them again" if again else ""
                lines.append(f"{name} handled {count} of {self._story_name(topic)}{twice}")
        for name, member in sorted(self._members.items()):
            lines += sorted({f"{name} {event}" for event in member.events})
        for group, problems in sorted(found.items()):
            before = self._found.get(group, set())
            lines += [f"brokers find in {group}: {one}" for one in sorted(problems - before)]
            lines += [f"over in {group}: {one}" for one in sorted(before - problems)]
        return lines

    def _turn_over(self, states: dict[tuple[str, str], str], found: dict[str, set[str]]) -> None:
        self._states, self._found = states, found
        self._answers.clear()
        for journal in self._journals.values():
            journal.turn_over()
        for member in self._members.values():
            member.events.clear()

    # what can be seen

    def _member_states(self) -> dict[tuple[str, str], str]:
        return {
            (name, verb): self._queues_text(queues)
            for name, member in sorted(self._members.items())
            if member.joined
            for verb, queues in (("owns", member.assigned), ("waits for", sorted(member.waiting)))
        }

    def _queues_text(self, queues: list[client.MessageQueue]) -> str:
        """Return queues as ``T[0-3]``, or ``T[0-3] of broker-a`` with several brokers."""
        parts: dict[tuple[str, str], list[int]] = {}
        for queue in queues:
            topic = self._story_name(queue.topic)
            broker = f" of {queue.broker_name}" if len(self._brokers_of[topic]) > 1 else ""
            parts.setdefault((topic, broker), []).append(queue.queue_id)
        texts = [
            f"{topic}[{_numbers_text(sorted(numbers))}]{broker}"
            for (topic, broker), numbers in sorted(parts.items())
        ]
        return ", ".join(texts) or "nothing"

    async def _findings(self) -> dict[str, set[str]]:
        found = {}
        for group in self._groups:
            try:
                description = await self._admin.describe_group(self._real(group))
            except client.PocketMQError:
                found[group] = self._found.get(group, set())
                continue
            found[group] = {
                " ".join(
                    [problem.docs.partition("#")[2], *sorted(map(self._name, problem.members))]
                )
                for problem in description.problems
            }
        return found

    def _name(self, client_id: str) -> str:
        return self._names.get(client_id) or client_id.partition("@")[2]

    def _real(self, name: str) -> str:
        return name + self._suffix

    def _story_name(self, name: str) -> str:
        return name.removesuffix(self._suffix)

    def _subscriptions(self, text: str) -> dict[str, str]:
        pairs = (one.split(":") for one in text.split())
        return {self._real(topic): tags for topic, tags in pairs}

    # steps

    async def topic(self, topic: str, queues: str, brokers: str | None) -> None:
        at = list(BROKERS) if brokers == "each broker" else [brokers or BROKERS[0]]
        self._brokers_of[topic] = at
        await make_topic(self._cluster, self._real(topic), int(queues), at)

    async def join(self, name: str, group: str, topics: str, options: str | None) -> None:
        member = await self._new_member(name, Actor(name, _ip(name)))
        self._begin(member, group, topics, options)

    async def join_both(self, one: str, two: str, group: str, topics: str) -> None:
        actor = Actor(f"{one} and {two}", _ip(one))
        members = [await self._new_member(name, actor) for name in (one, two)]
        # The ids differ only in a random part; name the members in the order of their ids.
        members.sort(key=lambda member: member.client_id)
        for name, member in zip((one, two), members, strict=True):
            self._names[member.client_id] = member.name = name
            self._members[name] = member
        differ = len({member.client_id for member in members}) == len(members)
        self._answers.append(f"their client ids {'differ' if differ else 'are the same'}")
        for member in members:
            self._begin(member, group, topics, None)

    async def _new_member(self, name: str, actor: Actor) -> Member:
        member = Member(name, actor, self._cluster.nameserver)
        await member.make()
        self._names[member.client_id] = name
        self._members[name] = member
        return member

    def _begin(self, member: Member, group: str, topics: str, options: str | None) -> None:
        more: dict[str, Any] = {}
        for word in (options or "").split(", "):
            if word == "orderly":
                more["order"] = client.Orderly()
            elif word in _POLICIES:
                more["on_conflict"] = _POLICIES[word]
        self._groups.add(group)
        joining = asyncio.ensure_future(
            member.join(
                self._real(group),
                self._subscriptions(topics),
                self._journals[group],
                name_of=self._name,
                **more,
            )
        )
        self._joining.add(joining)
        joining.add_done_callback(self._joining.discard)

    async def send(self, count: str, topic: str, tag: str | None) -> None:
        queues = sorted(await self._admin.queues(self._real(topic)))
        first = self._sent.get(topic, 0)
        for number in range(first, first + int(count)):
            queue = queues[number % len(queues)]
            await self._producer.send(
                self._real(topic), b"%d" % number, tag=tag, queue=queue, timeout=20
            )
        self._sent[topic] = first + int(count)

    async def wait(self, seconds: str) -> None:
        self._wait = float(seconds)

    async def hold(self, name: str) -> None:
        self._members[name].hold()

    async def release(self, name: str) -> None:
        self._members[name].release()

    async def close(self, name: str) -> None:
        await self._members[name].close()

    async def kill(self, name: str) -> None:
        await self._members[name].kill()

    async def cut_off(self, name: str) -> None:
        self._members[name].actor.cut_off = True

    async def reconnect(self, name: str) -> None:
        self._members[name].actor.cut_off = False
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimulatedLoop)
        loop.end_partition()

    async def stop(self, broker: str) -> None:
        await self._cluster.stop(broker)

    async def start(self, broker: str) -> None:
        await self._cluster.start(broker)

    async def answer(self, broker: str, request: str, code: str | None) -> None:
        assert isinstance(self._cluster, InLoop)
        answer = None if code is None else ResponseCode[code]
        self._cluster.answer(broker, RequestCode[request], answer)

    async def take_locks(self, broker: str) -> None:
        assert isinstance(self._cluster, InLoop)
        self._cluster.forget_locks(broker)

    async def heartbeat(self, name: str, group: str, topics: str) -> None:
        foreign = await self._foreign(name)
        self._groups.add(group)
        word = await foreign.heartbeat(self._real(group), self._subscriptions(topics))
        self._answers.append(f"{name} is answered {word}")

    async def pull(self, name: str, topic: str, queue_id: str, group: str) -> None:
        foreign = await self._foreign(name)
        word = await foreign.pull(self._real(group), self._real(topic), int(queue_id))
        self._answers.append(f"{name} is answered {word}")

    async def ask(self, name: str, group: str) -> None:
        members = await (await self._foreign(name)).members(self._real(group))
        self._answers.append(f"{name} is told {' '.join(map(self._name, members)) or 'nobody'}")

    async def leave(self, name: str, group: str) -> None:
        word = await self._foreigners[name].leave(self._real(group))
        self._answers.append(f"{name} is answered {word}")

    async def _foreign(self, name: str) -> Foreign:
        if name not in self._foreigners:
            actor = Actor(name, _ip(name))
            client_id = f"{actor.ip}@{name}"
            address = next(
                one.address
                for one in await self._admin.brokers()
                if one.name == BROKERS[0] and one.id == 0
            )
            self._names[client_id] = name
            self._foreigners[name] = Foreign(name, actor, address, client_id)
        return self._foreigners[name]

    async def reset(self, group: str, topic: str, to: str) -> None:
        place = client.END if to == "its end" else int(to)
        await self._admin.reset(self._real(group), self._real(topic), to=place)

    async def lag(self, group: str) -> None:
        self._lag_asked = group

    async def count(self, topic: str, group: str) -> None:
        journal = self._journals[group]
        handled, again = journal.count(self._real(topic))
        text = f"{handled} of {self._sent[topic]} handled, {again} again"
        if journal.ordered:
            text += (
                f", {len(journal.disorder)} out of order, {len(journal.overlaps)} beside another"
            )
        self._answers.append(text)


Action = Callable[..., Awaitable[None]]

_STEPS: Final[tuple[tuple[str, Action], ...]] = (
    (r"topic (\w+) has (\d+) queues?(?: at (each broker|broker-\w))?", Stage.topic),
    (r"(\w+) joins (\w+) with ([^,]+)(?:, (.+))?", Stage.join),
    (r"(\w+) and (\w+) join (\w+) in one process with (.+)", Stage.join_both),
    (r"send (\d+) to (\w+)(?: tagged (\w+))?", Stage.send),
    (r"wait (\d+)s", Stage.wait),
    (r"hold (\w+)", Stage.hold),
    (r"release (\w+)", Stage.release),
    (r"close (\w+)", Stage.close),
    (r"kill (\w+)", Stage.kill),
    (r"cut off (\w+)", Stage.cut_off),
    (r"reconnect (\w+)", Stage.reconnect),
    (r"stop (broker-\w)", Stage.stop),
    (r"start (broker-\w)", Stage.start),
    (r"(broker-\w) answers (\w+) (?:with (\w+)|again)", Stage.answer),
    (r"(broker-\w) gives the locks to a stranger", Stage.take_locks),
    (r"(\w+) heartbeats (\w+) with (.+)", Stage.heartbeat),
    (r"(\w+) pulls (\w+)\[(\d+)\] for (\w+)", Stage.pull),
    (r"(\w+) asks who is in (\w+)", Stage.ask),
    (r"(\w+) leaves (\w+)", Stage.leave),
    (r"reset (\w+) in (\w+) to (\d+|its end)", Stage.reset),
    (r"lag of (\w+)", Stage.lag),
    (r"count (\w+) in (\w+)", Stage.count),
)


def _ip(name: str) -> str:
    """Return an address that sorts like the member's name, so that its client id does, too."""
    return f"10.0.0.{100 + ord(name[0]) - ord('a')}"


def _numbers_text(numbers: list[int]) -> str:
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return " ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)

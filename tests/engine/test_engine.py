"""The images and the compose file on a container engine: ``make engine``.

The engine is Docker, or else Podman with podman-compose. Other tests run the same commands as local
processes; here images, users, volumes, networks and published ports are real. The ports are those
of the compose file, so nothing else may listen on them.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from functools import partial

import pytest

import client
from client import blocking
from remoting.protocol.bodies.stats import TopicOffset
from tests.integration.deploy.compose import instruction, load, needed, services
from tests.support.tour import HOME
from tests.support.waiting import until, wait_until

pytestmark = pytest.mark.timeout(1800)

NAMESERVERS = "127.0.0.1:9876;127.0.0.1:9877"
GROUP = {10941: "broker-c-1", 10951: "broker-c-2", 10961: "broker-c-3"}
"""The members of the group of the profile "ha", by port."""


def succeeds(*words: str) -> bool:
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


DOCKER = shutil.which("docker") is not None and succeeds("docker", "info")
ENGINE = "docker" if DOCKER else "podman"
COMPOSE = [*(["docker", "compose"] if DOCKER else ["podman-compose"]), "--profile", "ha"]
NETWORK = () if DOCKER else ("--network", "host")
"""Podman's builds have the network of this machine, with its proxies and certificates."""


def run(*words: str) -> str:
    done = subprocess.run(words, cwd=HOME, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def compose(*words: str) -> str:
    return run(*COMPOSE, *words)


def is_healthy(container: str, check: list[str]) -> bool:
    return succeeds(ENGINE, "exec", container, *check)


def container(service: str) -> str:
    """Return the container of a service."""
    label = f"label=com.docker.compose.service={service}"
    (found,) = run(ENGINE, "ps", "--all", "--quiet", "--filter", label).split()
    return found


def messages(queues: Mapping[client.MessageQueue, TopicOffset]) -> int:
    return sum(queue.max_offset - queue.min_offset for queue in queues.values())


@pytest.fixture(scope="module", autouse=True)
def images() -> None:
    """Build the image of the servers, and that of RocketMQ's controller."""
    run(ENGINE, "build", *NETWORK, "--tag", "pocketmq", ".")
    run(ENGINE, "build", *NETWORK, "--target", "controller", "--tag", "pocketmq-controller", ".")


@pytest.fixture(scope="module")
def cluster(images: None) -> Iterator[None]:
    """Start all services but Spark's."""
    compose("up", "--detach", "--no-build")
    try:
        yield
    finally:
        compose("down", "--volumes")


def test_the_image_serves_clients_of_this_machine() -> None:
    name = "pocketmq-engine-test"
    isolation = ["--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL"]
    isolation += ["--security-opt", "no-new-privileges"]
    ports = ["-p", "127.0.0.1:9876:9876", "-p", "127.0.0.1:10911:10911"]
    volume = ["-v", f"{name}:/var/lib/pocketmq"]
    check = json.loads(instruction("HEALTHCHECK").partition(" CMD ")[2])
    try:
        for sent in (1, 2):  # the second container has the first one's store
            run(ENGINE, "run", "--detach", "--name", name, *isolation, *ports, *volume, "pocketmq")
            wait_until(partial(is_healthy, name, check), f"{name} is not healthy", seconds=120)
            assert run(ENGINE, "exec", name, "id", "-un").strip() == "pocketmq"
            with blocking.Producer("127.0.0.1:9876", group="shop") as producer:
                producer.send("orders", b"tea")
            with blocking.Admin("127.0.0.1:9876") as admin:
                assert messages(admin.topic_stats("orders")) == sent
            run(ENGINE, "stop", "--time", "60", name)
            state = json.loads(run(ENGINE, "inspect", name))[0]["State"]
            assert state["ExitCode"] == 0, run(ENGINE, "logs", name)
            run(ENGINE, "rm", name)
    finally:
        succeeds(ENGINE, "rm", "--force", "--volumes", name)
        succeeds(ENGINE, "volume", "rm", name)


@pytest.mark.usefixtures("cluster")
async def test_every_service_becomes_healthy_and_the_producer_outlives_a_broker() -> None:
    for service in services(load()) + needed(load(), *GROUP.values()):
        if service.health:
            check = partial(is_healthy, container(service.name), service.health)
            wait_until(check, f"{service.name} is not healthy", seconds=180)

    def says(service: str, text: str) -> bool:
        return text in run(ENGINE, "logs", container(service))

    wait_until(partial(says, "consumer", "read "), "the consumer reads nothing")
    async with client.Admin(NAMESERVERS) as admin:

        async def all_have_readings() -> bool:
            # The group answers for its topics by itself.
            return not set(await admin.brokers_without("readings")) - {"broker-c"}

        await until(all_have_readings, 60)
    before = len(run(ENGINE, "logs", container("producer")))
    compose("kill", "broker-a")

    def goes_on() -> bool:
        return (
            "is in queue readings/broker-b" in run(ENGINE, "logs", container("producer"))[before:]
        )

    wait_until(goes_on, "the producer sends no more", seconds=120)
    compose("start", "broker-a")


@pytest.mark.usefixtures("cluster")
async def test_a_client_of_this_machine_goes_on_when_the_master_is_killed() -> None:
    async def master() -> int:
        async with client.Admin(NAMESERVERS) as admin:
            brokers = await admin.brokers()
        (address,) = [one.address for one in brokers if (one.name, one.id) == ("broker-c", 0)]
        return int(address.partition(":")[2])

    acknowledged = 0

    async def is_stored(producer: client.Producer[bytes]) -> bool:
        nonlocal acknowledged
        try:
            await producer.send("ha-orders", b"tea")
        except client.SendError:
            return False
        acknowledged += 1
        return True

    async with client.Admin(NAMESERVERS) as admin:
        await admin.create_topic("ha-orders", queues=4, brokers=["broker-c"])
        async with client.Producer(NAMESERVERS, require_durable=True) as producer:
            await until(partial(is_stored, producer), 60)
            old = await master()
            compose("kill", GROUP[old])
            for _ in range(100):
                await until(partial(is_stored, producer), 120)
        new = await master()
        assert new != old
        stored = messages(await admin.topic_stats("ha-orders"))
    # What was not answered when the master was killed may be stored too.
    assert acknowledged <= stored
    compose("start", GROUP[old])
    (broker,) = [one for one in needed(load(), GROUP[old]) if one.name == GROUP[old]]
    back = partial(is_healthy, container(GROUP[old]), broker.health)
    wait_until(back, f"{GROUP[old]} is not healthy", seconds=180)

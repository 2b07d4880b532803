"""The compose file's command lines, run locally, form a cluster that passes the README's tour."""

from __future__ import annotations

import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import client
from tests.integration.deploy.compose import (
    Deployment,
    Service,
    controller_ports,
    deployed,
    load,
    needed,
    published,
    replication_ports,
    services,
)
from tests.interop.apache import jars
from tests.support.tour import take
from tests.support.waiting import until

pytestmark = pytest.mark.timeout(180)

GROUP = ("broker-c-1", "broker-c-2", "broker-c-3")
CONTROLLERS = ("controller-1", "controller-2", "controller-3")
"""The services of the profile "ha"."""
MASTER = ("broker-c", 0)


def nameservers(deployment: Deployment) -> str:
    consumer = next(s for s in services(deployment.document) if s.name == "consumer")
    return deployment.environment(consumer)["NAMESRV_ADDR"]


def wait_until_said(deployment: Deployment, name: str, text: str, *, after: int = 0) -> None:
    deadline = time.monotonic() + 60
    while text not in deployment.output(name)[after:]:
        assert time.monotonic() < deadline, deployment.output(name)
        assert deployment.running[name].poll() is None, deployment.output(name)
        time.sleep(0.05)


async def all_have_readings(admin: client.Admin) -> bool:
    return await admin.brokers_without("readings") == []


async def brokers_of(address: str) -> dict[str, str]:
    async with client.Admin(address) as admin:
        return {broker.name: broker.address for broker in await admin.brokers()}


@pytest.mark.slow
async def test_the_tour_of_the_readme_works_on_it_and_all_of_it_stops_cleanly(
    tmp_path: Path,
) -> None:
    tour = tmp_path / "tour"
    tour.mkdir()
    with deployed(tmp_path) as deployment:
        both = nameservers(deployment)
        first, second = both.split(";")
        known = await brokers_of(first)
        assert sorted(known) == ["broker-a", "broker-b-0", "broker-b-1"]
        assert known == await brokers_of(second)
        assert {address.partition(":")[0] for address in known.values()} == {"127.0.0.1"}
        ports = [int(address.partition(":")[2]) for address in known.values()]
        moved = [port + deployment.distance for port in (10911, 10921, 10931)]
        assert sorted(ports) == moved
        take(both, tour)
        wait_until_said(deployment, "producer", "reading 0 is in queue")
        wait_until_said(deployment, "consumer", "read ")
        async with client.Admin(both) as admin:
            # The producer brings its topic every hundred readings to brokers that lack it.
            await until(partial(all_have_readings, admin), 60)
        said = len(deployment.output("producer"))
        deployment.running["broker-a"].kill()
        wait_until_said(deployment, "producer", "is in queue readings/broker-b", after=said)
        codes = deployment.stop()
    assert codes.pop("network") == -signal.SIGTERM
    assert codes.pop("broker-a") == -signal.SIGKILL
    assert set(codes.values()) == {0}, codes


@pytest.mark.slow
@pytest.mark.interop
async def test_with_the_profile_ha_another_broker_goes_on_when_the_master_is_dead(
    tmp_path: Path,
) -> None:
    library = {"ROCKETMQ_LIB": jars("5.3.3").removesuffix("/*")}
    with deployed(tmp_path, *GROUP, variables=library) as deployment:
        (broker,) = [one for one in needed(deployment.document, *GROUP) if one.name == GROUP[0]]
        address = deployment.environment(broker)["NAMESRV_ADDR"]

        async def master() -> str | None:
            async with client.Admin(address) as admin:
                brokers = await admin.brokers()
            return next((one.address for one in brokers if (one.name, one.id) == MASTER), None)

        await until(master, 60)
        async with client.Admin(address) as admin:
            await admin.create_topic("orders", queues=4)
        async with client.Producer(address, require_durable=True) as producer:
            await until(partial(acknowledged, producer), 60)
            old = await master()
            assert old is not None
            port = int(old.partition(":")[2]) - deployment.distance
            name = GROUP[[10941, 10951, 10961].index(port)]
            deployment.running[name].kill()
            await until(partial(acknowledged, producer), 60)
        assert await master() != old
        codes = deployment.stop()
    assert codes[name] == -signal.SIGKILL
    assert {codes[other] for other in GROUP if other != name} == {0}


async def acknowledged(producer: client.Producer[bytes]) -> bool:
    """Return whether a message is accepted."""
    try:
        await producer.send("orders", b"0")
    except client.SendError:
        return False
    return True


def test_the_group_runs_only_when_it_is_requested_and_no_other_service_needs_it() -> None:
    document = load()
    own = {name for name, facts in document["services"].items() if facts.get("profiles") == ["ha"]}
    assert own == {*GROUP, *CONTROLLERS}
    needs = {
        other
        for name in document["services"]
        if name not in own
        for other in needs_of(document, name)
    }
    assert not needs & own


def needs_of(document: dict[str, Any], name: str) -> set[str]:
    """The services that one waits for."""
    return set(Service(name, document["services"][name]).waits_for)


def test_every_port_that_a_server_listens_on_is_published_under_its_own_number() -> None:
    document = load()
    ports = set(published({"services": by_default(document)}))
    assert not ports & {*replication_ports(document), *controller_ports(document)}
    for service in [*services(document), *needed(document, *GROUP)]:
        if "--port" in service.argv:
            port = int(service.argv[service.argv.index("--port") + 1])
            workers = 2 if "--workers" in service.argv else 1
            for first in range(port, port + 10 * workers, 10):
                assert first in ports
                assert "nameserver" in service.argv or first - 2 in ports


def by_default(document: dict[str, Any]) -> dict[str, Any]:
    """The services that start without a profile."""
    return {service.name: service.facts for service in services(document)}


def test_what_needs_brokers_shares_the_network_of_one_that_does_nothing_else() -> None:
    document = load()
    for service in [*services(document), *needed(document, "delays", *GROUP)]:
        if service.name == "network":
            assert service.argv == ["sleep", "infinity"]
        elif service.name == "spark-master":
            assert "NAMESRV_ADDR" not in service.facts["environment"]
        else:
            assert service.facts["network_mode"] == "service:network"
            assert "ports" not in service.facts


def test_what_keeps_data_keeps_it_on_a_volume() -> None:
    document = load()
    for service in services(document):
        for volume, target in service.volumes:
            assert volume in document["volumes"]
            assert any(target in word for word in service.argv)
    assert set(document["volumes"]) - {"spark"} == {
        volume
        for service in [*services(document), *needed(document, *GROUP)]
        for volume, _ in service.volumes
    }
    kept = [service.name for service in services(document) if service.volumes]
    assert kept == ["nameserver-a", "nameserver-b", "broker-a", "broker-b"]


def test_what_belongs_to_spark_runs_in_its_image_and_only_when_requested() -> None:
    document = load()
    own = {service.name for service in needed(document, "delays")} - {
        service.name for service in services(document)
    }
    assert own == {"spark-master", "spark-worker", "flights", "delays"}
    for name in own:
        facts = document["services"][name]
        assert facts["profiles"] == ["spark"]
        assert facts["image"] == "pocketmq-spark"


def test_sparks_ports_are_taken_only_when_it_is_requested() -> None:
    document = load()
    master = document["services"]["spark-master"]
    own = published({"services": {"spark-master": master}})
    shown = [
        int(master["command"][master["command"].index(f"--{it}") + 1])
        for it in ("port", "webui-port")
    ]
    assert own == shown
    assert not set(own) & set(published({"services": by_default(document)}))


def test_each_image_is_built_by_one_service_and_never_pulled_from_a_registry() -> None:
    facts = load()["services"].values()
    builds = [(one["image"], one["build"]) for one in facts if "build" in one]
    assert builds == [
        ("pocketmq", "."),
        ("pocketmq-controller", {"context": ".", "target": "controller"}),
        ("pocketmq-spark", {"context": ".", "target": "spark"}),
    ]
    assert {one["image"] for one in facts} == {image for image, _ in builds}
    assert {one.get("pull_policy") for one in facts if "build" not in one} == {"never"}


def test_a_health_check_tests_every_server_of_its_command_and_no_other() -> None:
    document = load()
    for name, facts in document["services"].items():
        service = Service(name, facts)
        if name == "spark-master":
            assert "('spark-master', 7077)" in service.health[-1]
        elif service.argv[0] == "pocketmq":
            kind, first = service.argv[1], int(service.argv[service.argv.index("--port") + 1])
            workers = 2 if "--workers" in service.argv else 1
            asked = ";".join(f"127.0.0.1:{port}" for port in range(first, first + 10 * workers, 10))
            assert service.health == ["pocketmq", "health", f"--{kind}", asked]
        else:
            assert facts["healthcheck"] == {"disable": True}


def test_no_service_has_rights_that_it_does_not_need() -> None:
    for facts in load()["services"].values():
        assert facts["read_only"] is True
        assert facts["cap_drop"] == ["ALL"]
        assert facts["security_opt"] == ["no-new-privileges:true"]
        assert not facts.keys() & {"privileged", "cap_add", "user"}

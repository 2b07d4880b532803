"""The Helm chart, as helm renders it: what the manifests say, and their containers as processes.

``make chart`` renders it; see ``tests/chart.py``.
"""

from __future__ import annotations

import re
import signal
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

import client
from broker.config import BrokerConfig
from client import blocking
from pocketmq import certificates
from tests import chart
from tests.integration.deploy.compose import DOCKERFILE
from tests.integration.deploy.pods import Kubelet, Pod, component, kubelet, pods
from tests.support.tour import HOME
from tests.support.waiting import wait_until

pytestmark = pytest.mark.timeout(180)
RENDERED = pytest.mark.parametrize("name", chart.names())

ACCOUNTS = """\
accounts:
- {accessKey: operator, secretKey: operator-secret, admin: true}
- accessKey: shop-app
  secretKey: app-secret-1
  defaultTopicPerm: PUB|SUB
  defaultGroupPerm: SUB
"""
KEYS = "accessKey: operator\nsecretKey: operator-secret\n"


def of_kind(name: str, kind: str) -> dict[str, dict[str, Any]]:
    """Return a rendering's manifests of a kind, by name."""
    found = (one for one in chart.manifests(name) if one["kind"] == kind)
    return {one["metadata"]["name"]: one for one in found}


def matches(pod: Pod, selector: Mapping[str, Any]) -> bool:
    """Return whether a label selector chooses a pod."""
    return all(
        pod.labels.get(key) == value for key, value in selector.get("matchLabels", {}).items()
    ) and all(
        one["operator"] == "In" and pod.labels.get(one["key"]) in one["values"]
        for one in selector.get("matchExpressions", [])
    )


def words(pod: Pod) -> list[str]:
    args: list[str] = pod.container["args"]
    return args


# What the manifests say


def test_the_renderings_are_of_this_chart() -> None:
    assert chart.DIGEST.read_text().strip() == chart.digest(), "run make chart UPDATE=--update"


def test_the_chart_has_the_projects_version_its_user_and_its_alerts() -> None:
    made = yaml.safe_load((chart.CHART / "Chart.yaml").read_text())
    project = tomllib.loads((HOME / "pyproject.toml").read_text())["project"]
    assert made["version"] == made["appVersion"] == project["version"]
    assert re.findall("--uid ([0-9]+)", DOCKERFILE.read_text())[-1] == "10001"
    for file in ("alerts.yml", "grafana.json"):
        assert (chart.CHART / "files" / file).resolve() == HOME / "deploy" / file


@RENDERED
def test_no_pod_has_rights_that_it_does_not_need(name: str) -> None:
    for pod in pods(chart.manifests(name)):
        assert pod.spec["securityContext"]["runAsNonRoot"] is True
        assert pod.spec["securityContext"]["runAsUser"] == 10001
        assert pod.spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod.container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert pod.spec["automountServiceAccountToken"] is False
        # A Service's variables would be read as settings.
        assert pod.spec["enableServiceLinks"] is False


@RENDERED
def test_services_and_disruption_budgets_and_monitors_choose_pods_that_have_their_ports(
    name: str,
) -> None:
    run = pods(chart.manifests(name))
    for service in of_kind(name, "Service").values():
        selector = dict(service["spec"]["selector"])
        by_name = selector.pop("statefulset.kubernetes.io/pod-name", None)
        chosen = [
            pod
            for pod in run
            if matches(pod, {"matchLabels": selector}) and by_name in {None, pod.name}
        ]
        assert chosen, service["metadata"]["name"]
        for port in service["spec"]["ports"]:
            assert all(port["targetPort"] in pod.ports for pod in chosen)
    servers = [pod for pod in run if component(pod) in {"nameserver", "broker", "slave"}]
    kept = [
        pod
        for budget in of_kind(name, "PodDisruptionBudget").values()
        for pod in servers
        if matches(pod, budget["spec"]["selector"])
    ]
    assert sorted(pod.name for pod in kept) == sorted(pod.name for pod in servers)
    for monitor in of_kind(name, "PodMonitor").values():
        assert [pod for pod in run if matches(pod, monitor["spec"]["selector"])] == servers
        *_, broker = monitor["spec"]["podMetricsEndpoints"][0]["relabelings"]
        shown = [re.fullmatch(broker["regex"], pod.name) for pod in servers]
        replacement = broker["replacement"].replace("$", "\\")
        labels = {found.expand(replacement) for found in shown if found}
        assert labels == {
            pod.expanded(word.partition("=")[2])
            for pod in servers
            for word in words(pod)
            if word.startswith("--name=")
        }


@RENDERED
def test_only_clients_reach_the_servers_and_only_brokers_the_log(name: str) -> None:
    values = yaml.safe_load(chart.values_of(name).read_text())
    given = values.get("networkPolicy", {}).get("clients", [{"podSelector": {}}])
    for policy in of_kind(name, "NetworkPolicy").values():
        assert policy["spec"]["policyTypes"] == ["Ingress"]
        for rule in policy["spec"]["ingress"]:
            ports = {port["port"] for port in rule["ports"]}
            peers = rule["from"]
            if ports == {"metrics"}:
                assert peers == [{"namespaceSelector": {}}]
            elif ports == {"replication"}:
                [peer] = peers
                run = pods(chart.manifests(name))
                who = {component(pod) for pod in run if matches(pod, peer["podSelector"])}
                assert who == {"broker", "slave"}
            else:
                assert ports in ({"remoting", "vip"}, {"http"})
                assert peers[: len(given)] == given


def test_each_broker_has_an_address_of_its_own_for_clients_outside(tmp_path: Path) -> None:
    with kubelet(chart.manifests("outside"), tmp_path) as cluster:
        services = of_kind("outside", "Service")
        for index, pod in enumerate(
            pod for pod in cluster.pods.values() if component(pod) == "broker"
        ):
            [mount] = [one for one in pod.container["volumeMounts"] if "subPathExpr" in one]
            assert f"--config={mount['mountPath']}" in words(pod)
            assert not [word for word in words(pod) if word.startswith("--advertise")]
            text = of_kind("outside", "ConfigMap")["mq-advertised"]["data"][pod.name]
            (tmp_path / "advertised.conf").write_text(text)
            config = BrokerConfig.from_sources(tmp_path / "advertised.conf")
            assert (config.broker_ip1, config.advertised_port) == ("mq.example.com", 31911 + index)
            service = services[pod.name]["spec"]
            assert service["type"] == "NodePort"
            assert [port["nodePort"] for port in service["ports"]] == [31911 + index]
    [port] = services["mq-nameserver-external"]["spec"]["ports"]
    assert (port["port"], port["nodePort"]) == (9876, 30876)


# Their containers, as processes


def test_servers_are_live_from_their_start_ready_when_they_serve_and_survive_a_kill(
    tmp_path: Path,
) -> None:
    with kubelet(chart.manifests("default"), tmp_path) as cluster:
        # Before its name servers a broker is live, and not ready.
        cluster.start("mq-broker-0")
        cluster.wait_until("mq-broker-0", "liveness")
        wait_for_reason(cluster, "mq-broker-0", "registered with no name server")
        assert cluster.completed("mq-doctor")[0] == 1
        cluster.start("mq-nameserver-0", "mq-nameserver-1", "mq-broker-1", "mq-console-0")
        for name in cluster.running:
            cluster.wait_until(name, "readiness")
            assert cluster.probe(name, "liveness")[0] == 200
        code, said = cluster.completed("mq-doctor")
        assert code == 0, said
        assert "mq-broker-0" in said
        assert "mq-broker-1" in said

        with blocking.Admin(cluster.nameservers) as admin:
            admin.create_topic("orders", queues=2)
        assert send(cluster, 8) == {"mq-broker-0", "mq-broker-1"}
        # The kill of a pod, and of its process: the next one has its volume and its address.
        assert cluster.end("mq-broker-0", signal.SIGKILL) == -signal.SIGKILL
        assert cluster.probe("mq-broker-0", "liveness") == (0, "")
        assert send(cluster, 2) == {"mq-broker-1"}
        cluster.start("mq-broker-0")
        cluster.wait_until("mq-broker-0", "readiness")
        assert stored(cluster) == 10

        for name in list(cluster.running):
            if "console" not in name:
                assert cluster.end(name) == 0, cluster.output(name)
                assert cluster.probe(name, "readiness") == (0, "")
        assert cluster.probe("mq-console-0", "liveness")[0] == 200
        assert cluster.written_elsewhere() == []


def test_with_accounts_and_tls_from_secrets_a_slave_has_a_copy(tmp_path: Path) -> None:
    manifests = chart.manifests("secure")
    with kubelet(manifests, tmp_path, {}) as cluster:
        pair = certificates.make(tmp_path / "pair", list(cluster.addresses.values()))
        cluster.secrets = {
            "accounts": {"plain_acl.yml": ACCOUNTS.encode(), "keys.yml": KEYS.encode()},
            "certificate": {
                "tls.crt": pair.cert.read_bytes(),
                "tls.key": pair.key.read_bytes(),
                "ca.crt": pair.ca.read_bytes(),
            },
        }
        servers = [name for name, pod in cluster.pods.items() if "Probe" in str(pod.container)]
        # The console is writable, so it asks a broker for its accounts at its start.
        console = servers.pop()
        cluster.start(*servers)
        for name in servers:
            cluster.wait_until(name, "readiness")
        cluster.start(console)
        cluster.wait_until(console, "readiness")
        code, said = cluster.completed("mq-doctor")
        assert code == 0, said

        keys = client.Credentials("shop-app", "app-secret-1")
        with blocking.Producer(
            cluster.nameservers,
            group="shop",
            tls=str(pair.ca),
            credentials=keys,
            require_durable=True,
        ) as producer:
            # A SYNC_MASTER: the slave has it, as soon as it is connected.
            wait_until(lambda: acknowledged(producer), "the slave acknowledges nothing")
        with (
            pytest.raises(client.PocketMQError),
            blocking.Producer(cluster.nameservers, group="shop", tls=str(pair.ca)) as stranger,
        ):
            stranger.send("orders", b"tea")


def wait_for_reason(cluster: Kubelet, name: str, reason: str) -> None:
    """Wait until a pod says why it is not ready."""

    def said() -> bool:
        status, answer = cluster.probe(name, "readiness")
        assert status == 503
        return reason in answer

    wait_until(said, f"{name} doesn't say {reason!r}")


def send(cluster: Kubelet, messages: int) -> set[str]:
    """Send messages; return the names of the brokers that have them."""
    with blocking.Producer(cluster.nameservers, group="shop") as producer:
        receipts = [producer.send("orders", b"tea") for _ in range(messages)]
    return {receipt.queue.broker_name for receipt in receipts}


def acknowledged(producer: blocking.Producer[bytes]) -> bool:
    """Return whether a message is accepted."""
    try:
        producer.send("orders", b"tea")
    except client.SendError:
        return False
    return True


def stored(cluster: Kubelet) -> int:
    """Return how many messages the topic has."""
    with blocking.Admin(cluster.nameservers) as admin:
        queues = admin.topic_stats("orders").values()
    return sum(queue.max_offset - queue.min_offset for queue in queues)

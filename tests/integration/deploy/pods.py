"""The pods of rendered manifests as local processes.

A container's arguments, variables, files and probes are those of the manifests. Only what
Kubernetes does with them is done here: each pod has an address of its own on the loopback
interface, its DNS name becomes this address, and its volumes become directories.
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.tour import HOME
from tests.support.waiting import wait_until

Manifest = Mapping[str, Any]
INDEX = "apps.kubernetes.io/pod-index"
"""The label that a StatefulSet's controller gives to its pods."""
PROBE_SECONDS = 10
NAMESPACE = "default"


@dataclass(frozen=True)
class Pod:
    """One pod with one container."""

    name: str
    labels: Mapping[str, str]
    spec: Manifest
    index: int = 0

    @property
    def container(self) -> Manifest:
        """Return its container."""
        [container] = self.spec["containers"]
        assert isinstance(container, dict)
        return container

    @property
    def ports(self) -> dict[str, int]:
        """Return its ports: name -> number."""
        return {port["name"]: port["containerPort"] for port in self.container.get("ports", [])}

    @property
    def environment(self) -> dict[str, str]:
        """Return its variables, some of which are fields of the pod."""
        fields = {"metadata.name": self.name, f"metadata.labels['{INDEX}']": str(self.index)}
        return {
            one["name"]: fields[one["valueFrom"]["fieldRef"]["fieldPath"]]
            for one in self.container.get("env", [])
        }

    def expanded(self, text: str) -> str:
        """Return a text with its variables replaced, as Kubernetes does in arguments and paths."""
        return re.sub(r"\$\(([A-Z_]+)\)", lambda found: self.environment[found[1]], text)


def pods(manifests: Sequence[Manifest]) -> list[Pod]:
    """Return the pods that the manifests ask for, name servers first, tests last."""
    found = []
    for one in manifests:
        name = one["metadata"]["name"]
        if one["kind"] == "Pod":
            found.append(Pod(name, one["metadata"]["labels"], one["spec"]))
        elif one["kind"] in {"StatefulSet", "Deployment"}:
            template = one["spec"]["template"]
            found += [
                Pod(f"{name}-{index}", template["metadata"]["labels"], template["spec"], index)
                for index in range(one["spec"]["replicas"])
            ]
    order = ["nameserver", "broker", "slave", "console", "doctor"]
    return sorted(found, key=lambda pod: order.index(component(pod)))


def component(pod: Pod) -> str:
    """Return what a pod runs."""
    return pod.labels["app.kubernetes.io/component"]


@dataclass
class Kubelet:
    """Runs pods; each pod's output is in a file.

    Attributes:
        secrets: Secret -> its files.
    """

    manifests: Sequence[Manifest]
    home: Path
    secrets: Mapping[str, Mapping[str, bytes]] = field(default_factory=dict)
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.pods = {pod.name: pod for pod in pods(self.manifests)}
        net = f"127.{random.randrange(1, 255)}.{random.randrange(1, 255)}"
        self.addresses = {name: f"{net}.{step}" for step, name in enumerate(self.pods, 1)}
        self._maps = {
            one["metadata"]["name"]: one["data"]
            for one in self.manifests
            if one["kind"] == "ConfigMap"
        }

    @property
    def nameservers(self) -> str:
        """Return the addresses of the name servers, as clients take them."""
        [*found] = (name for name, pod in self.pods.items() if component(pod) == "nameserver")
        return ";".join(f"{self.addresses[name]}:9876" for name in found)

    def here(self, text: str, pod: Pod) -> str:
        """Translate an argument of a pod to this machine."""
        text = pod.expanded(text)
        for mount in pod.container.get("volumeMounts", []):
            text = text.replace(mount["mountPath"], str(self._mounted(pod, mount)))
        text = re.sub(
            rf"\b([a-z0-9-]+)\.[a-z0-9-]+\.{NAMESPACE}\.svc\.[a-z0-9.-]*[a-z]",
            lambda found: self.addresses[found[1]],
            text,
        )
        return text.replace("0.0.0.0", self.addresses[pod.name])

    def start(self, *names: str) -> None:
        """Start pods, whose processes may not be ready yet."""
        for name in names:
            pod = self.pods[name]
            for mount in pod.container.get("volumeMounts", []):
                self._fill(pod, mount)
            self._cwd(name).mkdir(exist_ok=True)
            with self._log(name).open("ab") as log:
                self.running[name] = subprocess.Popen(
                    self._argv(pod),
                    env=self._environment(pod),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    cwd=self._cwd(name),
                )

    def end(self, name: str, number: int = signal.SIGTERM) -> int:
        """Send a signal to a pod's process, and return its exit code."""
        process = self.running.pop(name)
        process.send_signal(number)
        return process.wait(self.pods[name].spec["terminationGracePeriodSeconds"])

    def completed(self, name: str) -> tuple[int, str]:
        """Run a pod to its end; return its exit code and what it printed."""
        self.start(name)
        return self.running.pop(name).wait(60), self.output(name)

    def probe(self, name: str, kind: str) -> tuple[int, str]:
        """Make a probe's request; return the status, 0 if nobody answers, and the answer."""
        pod = self.pods[name]
        get = pod.container[f"{kind}Probe"]["httpGet"]
        url = f"http://{self.addresses[name]}:{pod.ports[get['port']]}{get['path']}"
        try:
            with urllib.request.urlopen(url, timeout=PROBE_SECONDS) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as refusal:
            with refusal:
                return refusal.code, refusal.read().decode()
        except OSError:
            return 0, ""

    def wait_until(self, name: str, kind: str, status: int = 200) -> str:
        """Wait until a probe's answer has this status; return the answer."""
        seen = (0, "")

        def met() -> bool:
            nonlocal seen
            assert self.running[name].poll() is None, self.output(name)
            seen = self.probe(name, kind)
            return seen[0] == status

        wait_until(met, f"{name} {kind}: never {status}")
        return seen[1]

    def output(self, name: str) -> str:
        """Return what a pod has printed so far."""
        return self._log(name).read_text()

    def written_elsewhere(self) -> list[Path]:
        """Return what was written where a container's root file system is."""
        return [file for name in self.pods for file in self._cwd(name).rglob("*")]

    def _argv(self, pod: Pod) -> list[str]:
        words = (self.here(word, pod) for word in pod.container["args"])
        return [sys.executable, "-P", "-m", "pocketmq", *words]

    def _environment(self, pod: Pod) -> dict[str, str]:
        image = {"PYTHONPATH": str(HOME), "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self._cwd(pod.name)),
            **image,
            **pod.environment,
        }

    def _mounted(self, pod: Pod, mount: Manifest) -> Path:
        base = self.home / pod.name / mount["name"]
        return base / pod.expanded(mount["subPathExpr"]) if "subPathExpr" in mount else base

    def _fill(self, pod: Pod, mount: Manifest) -> None:
        base = self.home / pod.name / mount["name"]
        base.mkdir(parents=True, exist_ok=True)
        volumes = {one["name"]: one for one in pod.spec.get("volumes", [])}
        volume = volumes.get(mount["name"], {})
        if "secret" in volume:
            secret = volume["secret"]
            files = self.secrets[secret["secretName"]]
            for key in [item["key"] for item in secret.get("items", [])] or files:
                (base / key).unlink(missing_ok=True)
                (base / key).write_bytes(files[key])
                (base / key).chmod(0o400)
        elif "configMap" in volume:
            for key, text in self._maps[volume["configMap"]["name"]].items():
                (base / key).write_text(text)
        else:
            # A claim of a StatefulSet: what is in it stays.
            assert mount["name"] == "data"

    def _cwd(self, name: str) -> Path:
        return self.home / f"{name}.root"

    def _log(self, name: str) -> Path:
        return self.home / f"{name}.log"


@contextmanager
def kubelet(
    manifests: Sequence[Manifest],
    home: Path,
    secrets: Mapping[str, Mapping[str, bytes]] | None = None,
) -> Iterator[Kubelet]:
    """Run pods of these manifests, and kill what still runs at the end."""
    running = Kubelet(manifests, home, secrets or {})
    try:
        yield running
    finally:
        for process in running.running.values():
            process.kill()
            process.wait()

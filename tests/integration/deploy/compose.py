"""The services of a compose file as local processes.

A service's command, arguments and variables are those of the file. Only what a container isolates
is replaced: ports are shifted by one distance to free ones, container names become 127.0.0.1,
volumes become temporary directories, and programs are those of this environment.
"""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.support.ports import are_free
from tests.support.tour import HOME

COMPOSE = HOME / "docker-compose.yml"
DOCKERFILE = HOME / "Dockerfile"
SCRIPTS = Path(sys.executable).parent
HEALTHY_WITHIN = 60.0
COMPLETED_WITHIN = 60.0
STOPPED_WITHIN = 30.0
PROGRAMS = {
    "pocketmq": [sys.executable, "-P", "-m", "pocketmq"],
    "python": [sys.executable],
    "sh": ["sh"],
    "sleep": ["sleep"],
    "spark-class": [str(SCRIPTS / "spark-class")],
    "spark-submit": [str(SCRIPTS / "spark-submit")],
}


def load() -> dict[str, Any]:
    """The compose file."""
    found = yaml.safe_load(COMPOSE.read_text())
    assert isinstance(found, dict)
    return found


def instruction(name: str) -> str:
    """Return the Dockerfile's last instruction of this name, without the name."""
    text = DOCKERFILE.read_text().replace("\\\n", " ")
    return re.findall(rf"^{name} +(.*)$", text, re.MULTILINE)[-1].strip()


@dataclass(frozen=True)
class Service:
    """One service of the file."""

    name: str
    facts: Mapping[str, Any]

    @property
    def argv(self) -> list[str]:
        """Return the entry point, of the file or else of the image, and the command."""
        entry = self.facts.get("entrypoint") or json.loads(instruction("ENTRYPOINT"))
        return [*entry, *self.facts.get("command", [])]

    @property
    def health(self) -> list[str]:
        """Return the command of its health check; empty if it has none."""
        check = self.facts.get("healthcheck", {})
        if check.get("disable"):
            return []
        kind, *argv = check["test"]
        assert kind == "CMD"
        return list(argv)

    @property
    def waits_for(self) -> dict[str, str]:
        """Its dependencies: service -> required condition."""
        return {name: on["condition"] for name, on in self.facts.get("depends_on", {}).items()}

    @property
    def volumes(self) -> list[tuple[str, str]]:
        """Return its volumes: name -> mount point."""
        pairs = (mount.partition(":") for mount in self.facts.get("volumes", []))
        return [(volume, target) for volume, _, target in pairs]


def services(document: Mapping[str, Any]) -> list[Service]:
    """Return the services of the default profile, each after those it depends on."""
    return ordered(
        Service(name, facts)
        for name, facts in document["services"].items()
        if "profiles" not in facts
    )


def needed(document: Mapping[str, Any], *wanted: str) -> list[Service]:
    """Return services after all their direct and indirect dependencies."""
    found: dict[str, Service] = {}
    names = list(wanted)
    while names:
        service = Service(names[0], document["services"][names.pop(0)])
        found[service.name] = service
        names += service.waits_for.keys() - found.keys()
    return ordered(found.values())


def ordered(found: Iterable[Service]) -> list[Service]:
    """Return services in an order in which each follows its dependencies."""
    waiting = list(found)
    done: list[Service] = []
    while waiting:
        names = {service.name for service in done}
        ready = [service for service in waiting if service.waits_for.keys() <= names]
        assert ready, "services wait for one another"
        done += ready
        waiting = [service for service in waiting if service not in ready]
    return done


def replication_ports(document: Mapping[str, Any]) -> list[int]:
    """Return the ports that masters listen on for their slaves."""
    words = [
        str(word) for facts in document["services"].values() for word in facts.get("command", [])
    ]
    return [int(word.partition("=")[2]) for word in words if word.startswith("haListenPort=")]


def controller_ports(document: Mapping[str, Any]) -> list[int]:
    """Return the ports of the controllers."""
    words = {
        str(word) for facts in document["services"].values() for word in facts.get("command", [])
    }
    (addresses,) = {word.partition("=")[2] for word in words if "controllerAddr=" in word}
    return [int(address.partition(":")[2]) for address in addresses.split(";")]


def published(document: Mapping[str, Any]) -> list[int]:
    """Return the host ports that the file publishes; each equals the container's port."""
    ports = []
    for service in document["services"].values():
        for entry in service.get("ports", []):
            address, outside, inside = entry.split(":")
            assert address == "127.0.0.1"
            assert outside == inside
            ports.append(int(outside))
    return ports


@dataclass
class Deployment:
    """The services as processes, each with its output in a file."""

    document: Mapping[str, Any]
    home: Path
    variables: Mapping[str, str] = field(default_factory=dict)
    distance: int = field(default_factory=lambda: random.randrange(10_000, 20_000))
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        inside = [*replication_ports(self.document), *controller_ports(self.document)]
        self._ports = [*published(self.document), *inside]
        self._hosts = [
            name for name, facts in self.document["services"].items() if "network_mode" not in facts
        ]
        while not are_free(port + self.distance for port in self._ports):
            self.distance += 97

    def here(self, text: str, service: Service) -> str:
        """Translate a word of the file to this machine."""
        for volume, target in service.volumes:
            text = text.replace(target, str(self.home / volume))
        text = text.replace("/opt/pocketmq/examples", str(HOME / "examples"))
        text = text.replace("/opt/rocketmq", str(HOME / "deploy" / "controller"))
        text = re.sub(rf"\b({'|'.join(self._hosts)})\b", "127.0.0.1", text)
        numbers = "|".join(str(port) for port in self._ports)
        return re.sub(
            rf"(?<!\d)({numbers})(?!\d)", lambda found: str(int(found[1]) + self.distance), text
        )

    def argv(self, words: list[str], service: Service) -> list[str]:
        """Translate a command line of the file to this machine."""
        program, *rest = words
        return [*PROGRAMS[program], *(self.here(word, service) for word in rest)]

    def environment(self, service: Service) -> dict[str, str]:
        """Return the variables of a service, and those that this environment needs."""
        own = {
            name: self.here(str(value), service)
            for name, value in service.facts.get("environment", {}).items()
        }
        kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        image = {
            "PATH": f"{SCRIPTS}{os.pathsep}{kept.get('PATH', os.defpath)}",
            "PYTHONPATH": str(HOME),
            "PYTHONUNBUFFERED": "1",
            "PYSPARK_PYTHON": sys.executable,
            # These JVMs run for seconds: better code would not pay.
            "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        }
        return {**kept, **image, **self.variables, **own}

    def start(self, service: Service) -> None:
        """Start a service whose dependencies have been started."""
        assert service.waits_for.keys() <= self.running.keys()
        for name, condition in service.waits_for.items():
            if condition == "service_completed_successfully":
                assert self.running[name].wait(COMPLETED_WITHIN) == 0, self.output(name)
        for volume, _ in service.volumes:
            (self.home / volume).mkdir(exist_ok=True)
        with self.log(service.name).open("wb") as log:
            self.running[service.name] = subprocess.Popen(
                self.argv(service.argv, service),
                env=self.environment(service),
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.home,
            )
        if service.health:
            self._wait_until_healthy(service)

    def log(self, name: str) -> Path:
        """Return the file with the service's output."""
        return self.home / f"{name}.log"

    def output(self, name: str) -> str:
        """Return the service's output so far."""
        return self.log(name).read_text()

    def stop(self) -> dict[str, int]:
        """Stop all in reverse order, as ``docker compose stop`` does; return their exit codes."""
        codes = {}
        for name, process in reversed(self.running.items()):
            process.terminate()
            codes[name] = process.wait(STOPPED_WITHIN)
        return codes

    def kill(self) -> None:
        """Kill the processes that still run."""
        for process in self.running.values():
            process.kill()
            process.wait()

    def _wait_until_healthy(self, service: Service) -> None:
        deadline = time.monotonic() + HEALTHY_WITHIN
        while time.monotonic() < deadline and self.running[service.name].poll() is None:
            check = subprocess.run(
                self.argv(service.health, service),
                env=self.environment(service),
                capture_output=True,
                check=False,
            )
            if check.returncode == 0:
                return
            time.sleep(0.05)
        raise AssertionError(f"{service.name} is not healthy: {self.output(service.name)}")


@contextmanager
def deployed(
    home: Path,
    *only: str,
    commands: Mapping[str, list[str]] | None = None,
    variables: Mapping[str, str] | None = None,
) -> Iterator[Deployment]:
    """Run the file's default services, or some services with their dependencies.

    Args:
        only: these services.
        commands: other arguments for some services, to make less work.
        variables: further ones of all services.
    """
    deployment = Deployment(load(), home, variables or {})
    for name, command in (commands or {}).items():
        deployment.document["services"][name]["command"] = command
    document = deployment.document
    wanted = needed(document, *only) if only else services(document)
    try:
        for service in wanted:
            deployment.start(service)
        yield deployment
    finally:
        deployment.kill()

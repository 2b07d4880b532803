"""``make chart``: lint the Helm chart, render it, compare and validate what comes out.

``tests/golden/helm`` has some values and what helm renders from them, which the other tests read:
so they need no helm. ``make chart UPDATE=--update`` writes it again. ``kubernetes-validate`` checks
each manifest against Kubernetes' own schema, where a misspelt field is an error.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

HOME = Path(__file__).resolve().parents[1]
CHART = HOME / "deploy" / "helm" / "pocketmq"
RENDERED = HOME / "tests" / "golden" / "helm"
DIGEST = RENDERED / "chart.sha256"
KUBERNETES = "1.32"
RENDER = ("template", "mq", str(CHART), "--kube-version", KUBERNETES)

LARGEST = (
    *("metrics.podMonitor=true", "metrics.rules=true", "metrics.dashboard=true"),
    *("broker.slaves=true", "external.type=LoadBalancer", "external.addresses={a:1,b:2,c:3,d:4}"),
)
"""Values that are rendered too, but not kept: they bring in the alerts and the dashboard."""
REFUSED = {
    "brokr.replicas=1": "'brokr' not allowed",
    "console.writable=true": "console.writable needs acl.secret",
    "external.type=NodePort": "external.addresses has 0 addresses for 2 brokers",
}
"""A value that can't be used -> what helm says."""


def names() -> list[str]:
    """Return the names of the renderings."""
    return sorted(path.name.partition(".")[0] for path in RENDERED.glob("*.values.yaml"))


def values_of(name: str) -> Path:
    """Return the file with the values of a rendering."""
    return RENDERED / f"{name}.values.yaml"


def manifests(name: str) -> list[dict[str, Any]]:
    """Return a rendering's manifests."""
    return list(yaml.safe_load_all((RENDERED / f"{name}.yaml").read_text()))


def digest() -> str:
    """Return a digest of what the renderings are made of."""
    # The alerts and the dashboard, links in files/, are in no rendering.
    files = [*CHART.glob("*.yaml"), *CHART.glob("*.json"), *CHART.glob("templates/**/*.*")]
    files += [values_of(name) for name in names()]
    parts = [
        f"{file.relative_to(HOME)} {hashlib.sha256(file.read_bytes()).hexdigest()}"
        for file in sorted(files)
    ]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def helm(*words: str) -> str:
    """Return what a helm command prints; an error ends this program."""
    done = tried(*words)
    if done.returncode != 0:
        sys.exit(f"helm {' '.join(words)}: {done.stdout}{done.stderr}")
    return done.stdout


def tried(*words: str) -> subprocess.CompletedProcess[str]:
    """Run a helm command."""
    return subprocess.run(["helm", *words], capture_output=True, text=True, check=False)


def problems() -> Iterator[str]:
    """Yield what is wrong with the renderings, and with what they leave out."""
    for name in names():
        if template(name) != (RENDERED / f"{name}.yaml").read_text():
            yield f"{name}: the rendering has changed; make chart UPDATE=--update, and review it"
        yield from invalid(manifests(name))
    if DIGEST.read_text().strip() != digest():
        yield f"{DIGEST.name} is of another chart; make chart UPDATE=--update"
    for value, said in REFUSED.items():
        if said not in tried(*RENDER, "--set", value).stderr:
            yield f"{value} is not refused with {said!r}"
    given = [word for value in LARGEST for word in ("--set", value)]
    shown = list(yaml.safe_load_all(helm(*RENDER, *given)))
    yield from invalid(shown)
    by_name = {one["metadata"]["name"]: one for one in shown}
    rules = yaml.safe_load((HOME / "deploy" / "alerts.yml").read_text())
    if by_name["mq-alerts"]["spec"] != rules:
        yield "the PrometheusRule differs from deploy/alerts.yml"
    board = by_name["mq-dashboard"]["data"]["pocketmq.json"]
    if board.strip() != (HOME / "deploy" / "grafana.json").read_text().strip():
        yield "the ConfigMap differs from deploy/grafana.json"


def template(name: str) -> str:
    """Render the chart with some values."""
    return helm(*RENDER, "--values", str(values_of(name)))


def invalid(documents: list[dict[str, Any]]) -> Iterator[str]:
    """Yield what Kubernetes would refuse; the Prometheus operator's kinds have no schema here."""
    import kubernetes_validate  # 108 MB, which only this needs

    for document in documents:
        if document["apiVersion"].startswith("monitoring.coreos.com/"):
            continue
        try:
            kubernetes_validate.validate(document, KUBERNETES, strict=True)
        except kubernetes_validate.ValidationError as error:
            yield f"{document['kind']} {document['metadata']['name']}: {error.message}"


def main() -> None:
    """Check, or write the renderings first."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--update", action="store_true")
    if parser.parse_args().update:
        for name in names():
            (RENDERED / f"{name}.yaml").write_text(template(name))
        DIGEST.write_text(f"{digest()}\n")
    helm("lint", "--strict", str(CHART))
    found = list(problems())
    print(*(found or [f"{len(names())} renderings are valid, and as they were"]), sep="\n")  # noqa: T201
    sys.exit(bool(found))


if __name__ == "__main__":
    main()

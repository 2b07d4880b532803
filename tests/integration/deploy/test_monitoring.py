"""The alert rules and the dashboard, evaluated by Prometheus for a group that it scrapes."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from remoting.runtime import DOCS
from tests.integration.deploy.scraped import ALERTS, SCRAPING, Scraped, scrape
from tests.support.tour import HOME

BOARD = json.loads((HOME / "deploy" / "grafana.json").read_text())
PANELS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
RULES = {
    rule["alert"]: rule
    for group in yaml.safe_load(ALERTS.read_text())["groups"]
    for rule in group["rules"]
}
SELECTOR = re.compile(r"\b(?:(?:pocketmq|process)_\w+|up)\b(?:\{[^}]*\})?")

MINUTES = 30
"""Twice as long as the longest time for which a condition must hold."""
RISING = f"0+60x{MINUTES}"
"""A counter that rises by one per second."""


def flat(value: float) -> str:
    return f"{value}x{MINUTES}"


ROOM = {"pocketmq_disk_used_ratio": flat(0.5)}
"""The disk of the machine that runs the tests may be full."""

FIRES: list[tuple[set[str], dict[str, str]]] = [
    ({"Down"}, {"up": flat(0)}),
    ({"Restarts"}, {"process_start_time_seconds": RISING}),
    ({"NotRegistered", "RegisteredNowhere"}, {"pocketmq_registered": flat(0)}),
    ({"CoreBusy"}, {"process_cpu_seconds_total": RISING}),
    ({"LoopStalls"}, {'pocketmq_loop_stall_seconds_bucket{le="+Inf"}': RISING}),
    ({"OpenFiles"}, {"process_open_fds": flat(10**9)}),
    ({"ConnectionsRefused"}, {"pocketmq_connections_refused_total": RISING}),
    ({"PeersDropped"}, {'pocketmq_peers_dropped_total{reason="slow_reader"}': RISING}),
    (set(), {'pocketmq_peers_dropped_total{reason="idle"}': RISING}),
    ({"Busy"}, {"pocketmq_requests_refused_busy_total": RISING}),
    ({"RequestsFail"}, {"pocketmq_requests_failed_total": RISING}),
    ({"OpenToNetwork"}, {"pocketmq_open_to_network": flat(1)}),
    ({"RequestsDenied"}, {"pocketmq_requests_denied_total": RISING}),
    (set(), {"pocketmq_requests_denied_total": f"0+6x{MINUTES}"}),
    ({"AccountsBroken"}, {"pocketmq_accounts_broken": flat(1)}),
    # The test's time is that since 1970.
    (
        {"CertificateExpires"},
        {"pocketmq_tls_certificate_expiry_timestamp_seconds": flat(14 * 86400)},
    ),
    ({"TlsFilesBroken"}, {"pocketmq_tls_files_broken": flat(1)}),
    ({"QuotaRefusals"}, {'pocketmq_quota_refusals_total{subject="topic"}': RISING}),
    ({"AuditLinesLost"}, {"pocketmq_audit_lines_lost_total": RISING}),
    ({"StoreNotWritable"}, {"pocketmq_store_writable": flat(0)}),
    ({"DiskFilling"}, {"pocketmq_disk_used_ratio": flat(0.96)}),
    (set(), {"pocketmq_disk_used_ratio": flat(0.94)}),
    (
        {"DiskFilling"},
        {
            "pocketmq_disk_used_ratio": flat(0.81),
            'pocketmq_disk_limit_ratio{limit="diskSpaceCleanForciblyRatio"}': flat(0.85),
        },
    ),
    ({"MessagesDeletedEarly"}, {'pocketmq_log_files_deleted_total{reason="full_disk"}': RISING}),
    (set(), {'pocketmq_log_files_deleted_total{reason="age"}': RISING}),
    ({"DeletionsFail"}, {"pocketmq_deletions_failed_total": RISING}),
    ({"SlowSync"}, {'pocketmq_fsync_seconds_bucket{le="+Inf"}': RISING}),
    ({"SyncTimeouts"}, {"pocketmq_fsync_timeouts_total": RISING}),
    ({"DamagedMessages"}, {"pocketmq_damaged_messages_total": RISING}),
    ({"RestoredEntries"}, {"pocketmq_restored_entries_total": RISING}),
    ({"RecoveredDamage"}, {"pocketmq_recovery_stepped_over": flat(1)}),
    ({"OffsetsLost"}, {"pocketmq_offsets_lost": flat(1)}),
    ({"IndexBroken"}, {"pocketmq_index_broken": flat(1)}),
    ({"SlaveStopped"}, {"pocketmq_replication_connected": flat(0)}),
    (
        {"StoresDiffer"},
        {"pocketmq_replication_connected": flat(0), "pocketmq_replication_differs": flat(1)},
    ),
    ({"NoSlave", "SyncMasterAlone"}, {"pocketmq_slaves": flat(0)}),
    ({"SlaveBehind"}, {"pocketmq_replication_lag_seconds": flat(61)}),
    ({"SlaveBehind"}, {"pocketmq_slave_lag_bytes": flat(2**30)}),
    (set(), {"pocketmq_slave_lag_bytes": flat(2**20), "pocketmq_replication_lag_seconds": flat(1)}),
    ({"ReplicasLost"}, {"pocketmq_replicas_in_sync": f"2x{MINUTES - 10} 1x10"}),
    (set(), {"pocketmq_replicas_in_sync": f"1x{MINUTES - 10} 2x10"}),
    # An election takes less than a minute.
    (set(), {"pocketmq_elected": f"_x{MINUTES} 0"}),
    ({"NoMaster"}, {"pocketmq_elected": flat(0)}),
    ({"TwoMasters"}, {"pocketmq_elected": flat(1)}),
    ({"SendsFail"}, {"pocketmq_sends_failed_total": RISING}),
    (
        set(),
        {"pocketmq_sends_failed_total": RISING, "pocketmq_messages_in_total": f"0+12000x{MINUTES}"},
    ),
    ({"LagGrows"}, {'pocketmq_group_lag_messages{group="billing"}': f"2000+60x{MINUTES}"}),
    (set(), {'pocketmq_group_lag_messages{group="billing"}': f"9000-60x{MINUTES}"}),
    ({"LagOld"}, {"pocketmq_group_lag_seconds": flat(1000)}),
    ({"LagOld", "LagNearsRetention"}, {"pocketmq_group_lag_seconds": flat(250_000)}),
    ({"GroupProblem"}, {"pocketmq_group_finding_seconds": flat(600)}),
    ({"HandlersFail"}, {"pocketmq_messages_sent_back_total": RISING}),
    ({"DeadLetters"}, {"pocketmq_group_dead_letters_total": RISING}),
    # The first dead letter of a group, which comes with a new series.
    ({"DeadLetters"}, {"pocketmq_group_dead_letters_total": f"_x{MINUTES - 5} 1x5"}),
    ({"TransactionsOpen"}, {"pocketmq_transaction_oldest_seconds": flat(400)}),
    (
        {"TransactionsWithoutProducer"},
        {"pocketmq_transaction_checks_without_producer_total": RISING},
    ),
    ({"TransactionsDiscarded"}, {'pocketmq_transactions_total{outcome="discarded"}': RISING}),
    ({"TimersLate"}, {"pocketmq_timers_late_seconds": flat(10)}),
    # The scraped broker itself, without a change.
    (set(), {}),
]
"""The alerts that fire, and the series that differ from those of a healthy broker."""


def filled(expression: str) -> str:
    """The expression as Grafana sends it when everything is selected."""
    for name, value in (("__rate_interval", "1m"), ("__range", "1h")):
        expression = expression.replace(f"${name}", value)
    return re.sub(r"\$[a-z]+", ".*", expression)


def panel_queries() -> list[str]:
    return [filled(target["expr"]) for panel in PANELS for target in panel["targets"]]


def variable_queries() -> dict[str, str]:
    """Label -> a query for the values of the variable that is called like it."""
    found = {}
    for variable in BOARD["templating"]["list"]:
        if variable["type"] == "query":
            label = variable["name"]
            end = f", {label})"
            query = variable["query"]["query"]
            assert query.startswith("label_values(")
            assert query.endswith(end)
            selector = query.removeprefix("label_values(").removesuffix(end)
            found[label] = f"group by ({label}) ({filled(selector)})"
    return found


def selectors() -> list[str]:
    return sorted({found for rule in RULES.values() for found in SELECTOR.findall(rule["expr"])})


def all_series() -> list[str]:
    """The names of the metrics of all rules."""
    return sorted({selector.partition("{")[0] for selector in selectors()})


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Scraped:
    home = tmp_path_factory.mktemp("scraped")
    shown = {*panel_queries(), *variable_queries().values()}
    return asyncio.run(scrape(home, {*shown, *selectors(), *all_series()}))


@pytest.mark.monitoring
def test_every_panel_shows_something(scraped: Scraped) -> None:
    assert [query for query in panel_queries() if query not in scraped.samples] == []


@pytest.mark.monitoring
def test_every_variable_has_values(scraped: Scraped) -> None:
    for label, query in variable_queries().items():
        values = [one["metric"].get(label) for one in scraped.samples.get(query, [])]
        assert values, query
        assert None not in values, query


@pytest.mark.monitoring
def test_every_alert_looks_at_series_that_exist(scraped: Scraped) -> None:
    assert [selector for selector in selectors() if selector not in scraped.samples] == []
    assert {rule["name"]: rule["health"] for rule in scraped.rules} == dict.fromkeys(RULES, "ok")


@pytest.mark.monitoring
def test_each_alert_fires_when_its_condition_holds_and_at_no_other_time(
    scraped: Scraped, tmp_path: Path
) -> None:
    assert set().union(*(alerts for alerts, _ in FIRES)) == {
        name.removeprefix("PocketMQ") for name in RULES
    }
    script = tmp_path / "alerts.test.yml"
    tests = [
        {
            "interval": "1m",
            "input_series": series_with(scraped, {**ROOM, **changes}),
            "promql_expr_test": [*fired(alerts), *(labelled(name) for name in alerts)],
        }
        for alerts, changes in FIRES
    ]
    script.write_text(json.dumps({"rule_files": [str(ALERTS)], "tests": tests}))
    done = subprocess.run(
        ["promtool", "test", "rules", str(script)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def series_with(scraped: Scraped, changes: dict[str, str]) -> list[dict[str, str]]:
    """The series that the rules select, constant but for changes by selector."""
    made = []
    left = set(changes)
    for sample in (one for selector in all_series() for one in scraped.samples[selector]):
        labels = dict(sample["metric"])
        name = labels.pop("__name__")
        values = flat(sample["value"][1])
        for selector in {name, *(f'{name}{{{key}="{one}"}}' for key, one in labels.items())}:
            values = changes.get(selector, values)
            left.discard(selector)
        text = ", ".join(f"{key}={json.dumps(value)}" for key, value in labels.items())
        made.append({"series": f"{name}{{{text}}}", "values": values})
    assert left == set()
    return made


def fired(alerts: set[str]) -> list[dict[str, Any]]:
    """Expect that these alerts and no others fire at the end."""
    samples = [{"labels": f'{{alertname="PocketMQ{name}"}}', "value": 1} for name in sorted(alerts)]
    expression = 'group by (alertname) (ALERTS{alertstate="firing"})'
    return [{"expr": expression, "eval_time": f"{MINUTES}m", "exp_samples": samples}]


def labelled(name: str) -> dict[str, Any]:
    """Expect that a firing alert has every label that its annotations print."""
    printed = re.findall(r"\$labels\.(\w+)", str(RULES[f"PocketMQ{name}"]["annotations"]))
    matchers = "".join(f', {label}!=""' for label in sorted(set(printed)))
    return {
        "expr": f'group (ALERTS{{alertname="PocketMQ{name}"{matchers}}})',
        "eval_time": f"{MINUTES}m",
        "exp_samples": [{"labels": "{}", "value": 1}],
    }


@pytest.mark.monitoring
def test_the_files_are_valid_as_they_are() -> None:
    subprocess.run(["promtool", "check", "config", str(SCRAPING)], check=True, capture_output=True)


def slugs(page: str) -> set[str]:
    """The anchors of a page's headings."""
    headings = re.findall(r"^#+ (.+)$", (HOME / "docs" / page).read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("name", RULES)
def test_an_alert_leads_to_a_section_of_the_documents(name: str) -> None:
    rule = RULES[name]
    assert rule["labels"]["severity"] in {"critical", "warning"}
    page, _, anchor = rule["annotations"]["runbook_url"].removeprefix(DOCS).partition("#")
    assert not anchor or anchor in slugs(page)
    assert {"summary", "description"} < rule["annotations"].keys()
    assert f"`{name}`" in (HOME / "docs" / "operating" / "alerts.md").read_text()


def test_the_panels_of_the_dashboard_neither_overlap_nor_share_an_id() -> None:
    ids = [panel["id"] for panel in BOARD["panels"]]
    assert len(set(ids)) == len(ids)
    cells = [
        (x, y)
        for at in (panel["gridPos"] for panel in BOARD["panels"])
        for x in range(at["x"], at["x"] + at["w"])
        for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24


def test_the_dashboard_uses_the_variables_that_it_defines_and_no_others() -> None:
    own = {variable["name"] for variable in BOARD["templating"]["list"]}
    assert own == {"datasource", "cluster", "broker", "topic", "group"}
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(BOARD["panels"])))
    assert used - {"__rate_interval", "__range"} == own
    assert {panel["datasource"]["uid"] for panel in PANELS} == {"${datasource}"}

"""What `deploy/` holds is valid, and agrees with the program."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import promql_parser
import pytest
import yaml

from bascule.cli import exit_codes
from bascule.config import Config
from bascule.config.layers import layer_from_environment, layer_from_toml, merge

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
UNIT = (DEPLOY / "systemd" / "bascule.service").read_text()
CONTAINER = (DEPLOY / "container" / "Containerfile").read_text()
MANIFEST = [*yaml.safe_load_all((DEPLOY / "kubernetes" / "bascule.yaml").read_text())]
ALERTS = yaml.safe_load((DEPLOY / "prometheus-alerts.yml").read_text())
DASHBOARD = json.loads((DEPLOY / "grafana" / "bascule.json").read_text())
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
GRAFANA = {"$__rate_interval": "5m", "$job": "bascule", "$stream": "flights"}
KUBERNETES = "1.31"


DURATION = re.compile(r"(?=\d)(\d+d)?(\d+h)?(\d+m)?(\d+s)?(\d+ms)?")
"""Of Prometheus, whose `for:` takes no number without a unit."""


def rules() -> list[dict[str, Any]]:
    return [rule for group in ALERTS["groups"] for rule in group["rules"]]


def pod() -> dict[str, Any]:
    (found,) = (each for each in MANIFEST if each["kind"] == "StatefulSet")
    return dict(found["spec"]["template"]["spec"])


def configured(environment: dict[str, str]) -> Config:
    """What a node would do with it. Raises: ConfigError."""
    apart = {"BASCULE_CONFIG", "BASCULE_SERVER"}
    return merge(layer_from_environment({k: v for k, v in environment.items() if k not in apart}))


def environment_of(lines: str) -> dict[str, str]:
    return dict(re.findall(r"\b(BASCULE_\w+)=(\S+)", lines))


def test_the_unit_configures_a_node_and_stays_down_where_a_restart_cannot_help() -> None:
    environment = environment_of(UNIT)
    assert configured(environment).data == "/var/lib/bascule"
    found = re.search(r"^RestartPreventExitStatus=(.*)$", UNIT, re.MULTILINE)
    assert found is not None
    assert [*map(int, found[1].split())] == [exit_codes.USAGE, exit_codes.CORRUPT]


def verified(text: str, place: Path) -> str:
    """What `systemd-analyze verify` finds wrong in a unit. `make setup` sees that it is there."""
    unit = place / "bascule.service"
    unit.write_text(text.replace("/opt/bascule/bin/bascule", sys.executable))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", "--recursive-errors=yes", str(unit)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert bool(done.returncode) == bool(done.stderr), done
    return done.stderr


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    assert verified(UNIT, tmp_path) == ""
    found = verified(UNIT.replace("TimeoutStopSec", "TimeoutStopSecs"), tmp_path)
    assert "Unknown key 'TimeoutStopSecs' in section [Service]" in found


def test_the_container_configures_a_node() -> None:
    config = configured(environment_of(CONTAINER))
    volume, exposed = (
        re.search(rf"^{key} (.*)$", CONTAINER, re.MULTILINE) for key in ("VOLUME", "EXPOSE")
    )
    assert volume is not None
    assert exposed is not None
    assert config.data == volume[1]
    ports = [config.nats.port, config.client.port, config.http.port, config.peer.port]
    assert sorted(ports) == sorted(map(int, exposed[1].split()))


@pytest.mark.parametrize("part", MANIFEST, ids=lambda part: part["kind"])
def test_the_manifest_is_valid(part: dict[str, Any]) -> None:
    kubernetes_validate.validate(part, KUBERNETES, strict=True)


def test_the_pods_are_nodes_that_find_each_other() -> None:
    (container,) = pod()["containers"]
    said = {each["name"]: each for each in container["env"]}
    plain = {
        name: each["value"].replace("$(POD_NAME)", "bascule-1")
        for name, each in said.items()
        if name.startswith("BASCULE_") and "value" in each
    }
    config = configured(plain | {"BASCULE_NODE_ID": "1"})
    assert config.cluster.bootstrap_expect == 3
    assert config.peer.advertised == "bascule-1.bascule-nodes:9093"
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert ports == {
        "kafka": config.client.port,
        "peer": config.peer.port,
        "http": config.http.port,
    }
    probed = {container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "liveness")}
    assert probed == {"/healthz"}
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert config.data.startswith(container["volumeMounts"][0]["mountPath"])


def test_a_pod_has_more_time_to_stop_than_it_waits_for_the_others() -> None:
    (container,) = pod()["containers"]
    command = container["lifecycle"]["preStop"]["exec"]["command"]
    assert command[:3] == ["bascule", "cluster", "wait"]
    waits = int(command[command.index("--timeout") + 1])
    assert pod()["terminationGracePeriodSeconds"] >= waits + 60


def test_alerts_fire_when_they_should_and_say_what_they_are_for() -> None:
    promtool = shutil.which("promtool", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian package prometheus)")
    cases = Path(__file__).with_name("prometheus_alerts.yml")
    done = subprocess.run(
        [promtool, "test", "rules", cases], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    tests = yaml.safe_load(cases.read_text())["tests"]
    tried = [case for test in tests for case in test["alert_rule_test"]]
    for fires in (True, False):
        assert {each["alertname"] for each in tried if ("exp_alerts" in each) is fires} == {
            rule["alert"] for rule in rules()
        }


def test_the_groups_of_alerts_are_those_of_prometheus() -> None:
    assert ALERTS.keys() == {"groups"}
    for group in ALERTS["groups"]:
        assert group.keys() == {"name", "rules"}
    names = [rule["alert"] for rule in rules()]
    assert len({*names}) == len(names)


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_an_alert_parses_and_the_page_says_what_to_do(rule: dict[str, Any]) -> None:
    promql_parser.parse(rule["expr"])
    assert rule.keys() - {"for"} == {"alert", "expr", "labels", "annotations"}
    assert DURATION.fullmatch(rule.get("for", "0s")), "an alert waits for 1m, 1h30m and the like"
    assert all(isinstance(text, str) for text in rule["annotations"].values())
    assert rule["labels"]["severity"] in ("page", "ticket")
    assert rule["annotations"]["summary"]
    assert f"`{rule['alert']}`" in (ROOT / "docs" / "operations.md").read_text()


@pytest.mark.parametrize(
    "panel", [each for each in PANELS if each["type"] != "row"], ids=lambda panel: panel["title"]
)
def test_a_panel_asks_what_prometheus_understands(panel: dict[str, Any]) -> None:
    for target in panel["targets"]:
        query = target["expr"]
        for variable, value in GRAFANA.items():
            query = query.replace(variable, value)
        assert "$" not in query, "a variable that Grafana does not know"
        promql_parser.parse(query)


def test_panels_have_a_place_of_their_own() -> None:
    assert len({each["id"] for each in PANELS}) == len(PANELS)
    taken = set[tuple[int, int]]()
    for panel in PANELS:
        at = panel["gridPos"]
        cells = {*itertools.product(range(at["x"], at["x"] + at["w"]),
                                    range(at["y"], at["y"] + at["h"]))}  # fmt: skip
        assert max(x for x, _ in cells) < 24
        assert not taken & cells, panel["title"]
        taken |= cells


def test_the_settings_on_the_page_make_a_founder() -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    config = merge(layer_from_toml(page.partition("```toml\n")[2].partition("```")[0], "page"))
    assert config.cluster.bootstrap_expect == config.streams.replicas == 3

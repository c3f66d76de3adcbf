"""The files in deploy/: what they name exists, and what they promise is in them."""

from __future__ import annotations

import configparser
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from tests.deploy import compose
from tests.deploy.compose import DEPLOY

from belljar.engines.seccomp import load_profile
from belljar.metrics import Metrics
from belljar.settings import SETTINGS

FILES = sorted(path for path in DEPLOY.rglob("*") if path.is_file())
COMPOSE = ["docker-compose.yml", "docker-compose.with-docker-sock.yml"]
MAKING_A_JAR = {"clone3", "mount", "mount_setattr", "pivot_root", "sethostname", "umount2", "unshare"}
BREAKS_JARS = {
    "PrivateUsers",
    "ProcSubset",
    "ProtectControlGroups",
    "ProtectHostname",
    "ProtectKernelLogs",
    "ProtectKernelTunables",
    "ProtectProc",
    "RestrictNamespaces",
}


def metric_names() -> set[str]:
    """As they are asked for: a counter ends in _total, a histogram has three."""
    endings = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",)}
    return {
        family.name + ending for family in Metrics().registry.collect() for ending in endings[family.type]
    }


def metrics_in(text: str) -> set[str]:
    return set(re.findall(r"\bsandbox_\w+", text))


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(DEPLOY)))
def test_a_variable_that_is_set_is_a_setting(file: Path) -> None:
    named = set(re.findall(r"\bBELLJAR_[A-Z_]+\b", file.read_text()))
    assert named <= {setting.env for setting in SETTINGS}


@pytest.mark.parametrize("name", COMPOSE)
def test_a_composed_service_is_confined(name: str) -> None:
    service = compose.load(name, {"DOCKER_GID": "999"})["services"]["belljar"]
    assert service["user"] == "10001:10001"
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in service["security_opt"]
    assert not {"privileged", "cap_add", "devices", "network_mode"} & service.keys()
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])
    assert {"mem_limit", "memswap_limit", "pids_limit"} <= service.keys()


def test_the_safe_service_has_no_folder_of_the_host() -> None:
    service = compose.load("docker-compose.yml")["services"]["belljar"]
    assert not [volume for volume in service["volumes"] if volume.startswith(("/", ".", "~"))]
    assert not {"pid", "cgroup", "ipc", "group_add"} & service.keys()


def test_the_socket_comes_with_a_warning() -> None:
    text = (DEPLOY / "docker-compose.with-docker-sock.yml").read_text()
    assert "whoever holds docker.sock is root on this machine" in text
    with pytest.raises(KeyError, match="DOCKER_GID"):
        compose.load("docker-compose.with-docker-sock.yml")


def test_postgres_is_added_to_the_same_service() -> None:
    found = compose.load("docker-compose.postgres.yml", {"POSTGRES_PASSWORD": "secret"})["services"]
    assert found["belljar"]["environment"] == {
        "BELLJAR_DATABASE_URL": "postgresql://belljar:secret@postgres/belljar"
    }
    assert set(found["belljar"]["depends_on"]) < set(found)
    with pytest.raises(KeyError, match="POSTGRES_PASSWORD"):
        compose.load("docker-compose.postgres.yml")


def test_the_containers_filter_is_that_of_a_jar_and_what_makes_one() -> None:
    profile = json.loads((DEPLOY / "seccomp.json").read_text())
    rules: Any = load_profile()["syscalls"]
    of_a_jar = {name for rule in rules if rule["action"] == "SCMP_ACT_ALLOW" for name in rule["names"]}
    allowed = [set(rule["names"]) for rule in profile["syscalls"]]
    assert {rule["action"] for rule in profile["syscalls"]} == {"SCMP_ACT_ALLOW"}
    assert profile["defaultAction"] == "SCMP_ACT_ERRNO"
    assert allowed == [of_a_jar, MAKING_A_JAR]


def manifests() -> list[dict[str, Any]]:
    files = sorted(DEPLOY.glob("kubernetes/*.yaml"))
    return [manifest for file in files for manifest in yaml.safe_load_all(file.read_text())]


@pytest.mark.parametrize("manifest", manifests(), ids=lambda manifest: manifest["kind"])
def test_a_manifest_has_the_fields_of_its_kind(manifest: dict[str, Any]) -> None:
    schema = json.loads(Path(__file__).with_name("kubernetes.schema.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(manifest)


def test_the_pod_is_confined() -> None:
    [deployment] = [manifest for manifest in manifests() if manifest["kind"] == "Deployment"]
    pod = deployment["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert pod["enableServiceLinks"] is False
    assert pod["automountServiceAccountToken"] is False
    assert pod["hostUsers"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert {"cpu", "memory"} == container["resources"]["limits"].keys()
    assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()


def test_manifests_fit_together() -> None:
    by_kind = {manifest["kind"]: manifest for manifest in manifests()}
    deployment = by_kind["Deployment"]["spec"]
    labels = deployment["template"]["metadata"]["labels"]
    pod = deployment["template"]["spec"]
    assert deployment["selector"]["matchLabels"] == labels
    assert by_kind["Service"]["spec"]["selector"] == labels
    assert by_kind["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"] == labels
    assert pod["serviceAccountName"] == by_kind["ServiceAccount"]["metadata"]["name"]
    claims = [one["persistentVolumeClaim"]["claimName"] for one in pod["volumes"] if "emptyDir" not in one]
    assert claims == [by_kind["PersistentVolumeClaim"]["metadata"]["name"]]
    mounted = [mount["name"] for mount in pod["containers"][0]["volumeMounts"]]
    assert mounted == [volume["name"] for volume in pod["volumes"]]
    ports = {port["name"] for port in pod["containers"][0]["ports"]}
    assert {port["targetPort"] for port in by_kind["Service"]["spec"]["ports"]} <= ports


def unit() -> configparser.SectionProxy:
    parser = configparser.ConfigParser(strict=True, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read(DEPLOY / "belljar.service")
    return parser["Service"]


def test_the_unit_hands_over_a_cgroup_and_leaves_what_jars_need() -> None:
    service = unit()
    assert set(service["Delegate"].split()) == {"cpu", "memory", "pids"}
    assert service["User"] not in ("", "root")
    assert service["CapabilityBoundingSet"] == ""
    assert not BREAKS_JARS & service.keys()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not here")
def test_systemd_reads_the_unit(tmp_path: Path) -> None:
    text = (DEPLOY / "belljar.service").read_text().replace("/opt/belljar/bin/belljar", sys.executable)
    (tmp_path / "belljar.service").write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", tmp_path / "belljar.service"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_every_metric_is_on_the_dashboard_and_no_other() -> None:
    dashboard = json.loads((DEPLOY / "monitoring/grafana-dashboard.json").read_text())
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    shown = metrics_in(" ".join(asked))
    assert shown <= metric_names()
    families = {family.name for family in Metrics().registry.collect()}
    assert {name for name in families if not any(one.startswith(name) for one in shown)} == set()


def test_panels_do_not_overlap() -> None:
    dashboard = json.loads((DEPLOY / "monitoring/grafana-dashboard.json").read_text())
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in dashboard["panels"]]
    assert len(set(places)) == len(places)


def test_alerts_are_of_metrics_that_exist() -> None:
    rules = yaml.safe_load((DEPLOY / "monitoring/alerts.yml").read_text())["groups"][0]["rules"]
    asked = metrics_in(" ".join(rule["expr"] for rule in rules))
    assert asked
    assert asked <= metric_names()


def test_the_scrape_asks_where_metrics_are_with_a_token() -> None:
    found = yaml.safe_load((DEPLOY / "monitoring/prometheus.yml").read_text())
    [job] = found["scrape_configs"]
    assert (job["metrics_path"], job["authorization"]["type"]) == ("/metrics", "Bearer")
    assert all((DEPLOY / "monitoring" / name).is_file() for name in found["rule_files"])

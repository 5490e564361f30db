"""What is in deploy/: every file is read by the program that reads it in earnest, or by our own code that does."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import tomli
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from commonscale import config, probe
from commonscale.cli.examination import load_any
from commonscale.config import CoordinatorConfig, ParticipantConfig
from commonscale.localnet import Worker
from tests.patience import PATIENCE_S

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
PROMETHEUS = DEPLOY / "prometheus"
CHART = DEPLOY / "helm" / "commonscale"


def required(program: str, variable: str, package: str) -> str:
    """A program's path; without it the test is skipped, unless it is required."""
    found = shutil.which(program)
    if found is None:
        if os.environ.get(variable):
            pytest.fail(f"{program} is required here and missing")
        pytest.skip(f"no {program}: install the Debian package {package}")
    return found


def passes(*command: str | Path, **options: Any) -> str:
    """A command's output; it must end well."""
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, check=False, timeout=PATIENCE_S, **options
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


# Configurations


CONFIGURATIONS = sorted([*DEPLOY.glob("compose/*.toml"), *DEPLOY.glob("systemd/*.toml")])


@pytest.mark.parametrize("path", CONFIGURATIONS, ids=lambda p: str(p.relative_to(DEPLOY)))
def test_every_configuration_is_valid(path: Path) -> None:
    """Parsed by the code that reads a user's."""
    load_any(path)


# The images' packages


def pins(path: Path) -> dict[str, str]:
    """Names and versions; every one must have a hash."""
    found = re.findall(r"^(\S+)==(\S+) \\\n    --hash=sha256:([0-9a-f]{64})$", path.read_text(), re.M)
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    assert len(lines) == 2 * len(found), "a package without exactly one hash"
    return {canonicalize_name(name): version for name, version, _ in found}


def test_the_images_packages_are_those_of_the_lock_file() -> None:
    """Same versions as in development; everything that the project depends on is among them."""
    locked = dict(
        line.split("==") for line in (ROOT / "requirements.lock").read_text().splitlines() if not line.startswith("#")
    )
    versions = {canonicalize_name(name): version for name, version in locked.items()}
    installed = pins(DEPLOY / "requirements.txt")
    assert {name: versions.get(name) for name in installed} == installed
    project = tomli.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = {canonicalize_name(Requirement(text).name) for text in project["dependencies"]}
    # The worker's package is built from this tree, and installed like the project itself.
    assert needed - {"commonscale-worker"} <= installed.keys()
    assert not {"pytest", "mypy", "ruff"} & installed.keys()


def test_what_builds_the_package_is_pinned_too() -> None:
    """By version and hash."""
    build = pins(DEPLOY / "requirements-build.txt")
    wanted = tomli.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    for requirement in map(Requirement, wanted):
        assert requirement.specifier.contains(build[canonicalize_name(requirement.name)])


def test_the_dockerfile_keeps_its_promises() -> None:
    """By hash, a numeric user, health checks, exec form; and needs nothing that only some builders have."""
    text = (DEPLOY / "Dockerfile").read_text()
    assert text.count("--require-hashes") == 2
    assert "USER 10001:10001" in text
    assert "STOPSIGNAL SIGTERM" in text
    targets = re.findall(r"^FROM runtime AS (\w+)$", text, re.M)
    assert targets == ["coordinator", "participant", "worker"]
    assert all(json.loads(form) for form in re.findall(r"^(?:ENTRYPOINT|CMD) (.*)$", text, re.M))
    assert "--mount" not in text


# docker compose


def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    return found


def test_every_service_of_ours_runs_without_rights() -> None:
    """Read-only root, no capability, no new privileges."""
    for name, service in compose()["services"].items():
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service.get("read_only") or name == "grafana", name


def test_hospitals_share_no_network() -> None:
    """Each is on one of its own, internal, which it shares with the coordinator only (and Prometheus)."""
    content = compose()
    for site in ("north", "east", "south", "west"):
        assert content["services"][site]["networks"] == [site]
        assert content["networks"][site] == {"internal": True}
        others = {name for name, service in content["services"].items() if site in service.get("networks", [])}
        assert others == {site, "coordinator", "prometheus"}
    assert content["services"]["prometheus"]["profiles"] == ["monitoring"]


@pytest.mark.parametrize("site", ["north", "east", "south", "west"])
def test_a_worker_shares_one_volume_with_its_participant(site: str) -> None:
    """Read-only and under the same path, with the socket in it; no network, no key, no table."""
    services = compose()["services"]
    worker, (volume,) = services[f"{site}-worker"], services[f"{site}-worker"]["volumes"]
    assert worker["network_mode"] == "none"
    assert not {"networks", "ports", "environment", "user"} & worker.keys()
    assert volume.endswith(":ro")
    assert volume.removesuffix(":ro") in services[site]["volumes"]
    name, path, _ = volume.split(":")
    sharing = {other for other, service in services.items() if any(name in v for v in service.get("volumes", []))}
    assert sharing == {site, f"{site}-worker"}
    settings = config.load(ParticipantConfig, DEPLOY / "compose" / f"{site}.toml")
    assert settings.worker is not None
    assert path == str(settings.state / "scratch")
    assert settings.worker.listen == f"ipc://{path}/worker.sock"
    assert worker["command"][-2:] == ["--socket", f"{path}/worker.sock"]


@pytest.mark.parametrize("site", ["north", "east", "south", "west"])
def test_the_hospitals_pin_the_model_that_their_workers_offer(site: str) -> None:
    """Another release, or another word in that file, is another digest: it goes into deploy/compose/*.toml."""
    settings = config.load(ParticipantConfig, DEPLOY / "compose" / f"{site}.toml")
    _, module, *_ = compose()["services"][f"{site}-worker"]["command"]
    assert settings.policy.train.models == Worker.of(module).models


def test_ports_are_published_on_the_loopback_only() -> None:
    """Whoever wants more has to say so."""
    published = [port for service in compose()["services"].values() for port in service.get("ports", [])]
    assert len(published) == 3
    assert all(port.startswith("127.0.0.1:") for port in published)


def test_volumes_and_files_of_the_compose_file_exist() -> None:
    """Every mount names a declared volume or a file of the repository."""
    content = compose()
    used = set()
    for service in content["services"].values():
        for mount in service.get("volumes", []):
            source = mount.split(":")[0]
            if source.startswith("./"):
                assert (ROOT / source).exists(), source
                assert mount.endswith(":ro")
            else:
                used.add(source)
    assert used == content["volumes"].keys()


def test_a_site_s_key_is_in_its_own_containers_only() -> None:
    """The volume with a member's key is mounted where it was made and where it is used."""
    services = compose()["services"]
    for member in ("coordinator", "north", "east", "south", "west", "analyst"):
        having = {n for n, s in services.items() if any(m.startswith(f"{member}-tls:") for m in s.get("volumes", []))}
        assert having == {member, f"enrol-{member}"}


# The probe


class _Daemon(BaseHTTPRequestHandler):
    """Answers as a daemon that is not in session."""

    def do_GET(self) -> None:
        live = self.path == "/livez"
        body = {} if live else {"status": "failing", "faults": ["not connected yet"]}
        self.send_response(200 if live else 503)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002 - the library's name
        pass


@pytest.fixture
def daemon() -> Iterator[int]:
    with HTTPServer(("127.0.0.1", 0), _Daemon) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


def test_the_probe_tells_the_faults(daemon: int, tmp_path: Path) -> None:
    """/healthz with its faults, /livez only whether the process answers; 0.0.0.0 is asked on the loopback."""
    path = tmp_path / "participant.toml"
    path.write_text(f'coordinator = "x:1"\nhttp_listen = "0.0.0.0:{daemon}"\n')
    assert probe.faults(path) == ["not connected yet"]
    assert probe.faults(path, live=True) == []


def test_the_probe_is_a_command_with_exit_codes(daemon: int, tmp_path: Path) -> None:
    """As HEALTHCHECK runs it."""
    path = tmp_path / "participant.toml"
    path.write_text(f'coordinator = "x:1"\nhttp_listen = "127.0.0.1:{daemon}"\n')
    command = [sys.executable, "-m", "commonscale.probe"]
    failing = subprocess.run([*command, "--config", str(path)], capture_output=True, text=True, check=False)
    assert (failing.returncode, failing.stdout) == (1, "not connected yet\n")
    assert subprocess.run([*command, "--config", str(path), "--live"], check=False).returncode == 0
    environment = {**os.environ, "COMMONSCALE_CONFIG": str(tmp_path / "none.toml")}
    missing = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert missing.returncode == 1
    assert "Cannot read" in missing.stdout


def test_the_probe_says_when_nothing_answers(tmp_path: Path) -> None:
    """A sentence, not a traceback."""
    path = tmp_path / "c.toml"
    path.write_text('http_listen = "127.0.0.1:1"\n')
    (fault,) = probe.faults(path)
    assert "Nothing answers on 127.0.0.1:1" in fault
    path.write_text('http_listen = "127.0.0.1:0"\n')
    (fault,) = probe.faults(path)
    assert "chooses its port" in fault


def test_the_probe_has_the_configurations_defaults() -> None:
    """It does not load the configuration's code, so it repeats them."""
    kinds = {"coordinator": CoordinatorConfig, "participant": ParticipantConfig}
    for name, kind in kinds.items():
        assert probe.DEFAULT_LISTEN[name] == kind.model_fields["http_listen"].default


def test_the_probe_loads_nothing_heavy() -> None:
    """A health check every few seconds must cost next to nothing."""
    heavy = {"pydantic", "grpc", "numpy", "typer", "rich", "cryptography", "sqlalchemy"}
    loaded = passes(sys.executable, "-c", "import commonscale.probe, sys; print(*sys.modules)").split()
    assert "commonscale.probe" in loaded
    assert not heavy & set(loaded)


# Prometheus and Grafana


def test_prometheus_accepts_its_files() -> None:
    """`promtool check` on configurations and rules."""
    promtool = required("promtool", "COMMONSCALE_REQUIRE_PROMTOOL", "prometheus")
    passes(promtool, "check", "config", PROMETHEUS / "prometheus.yml")
    passes(promtool, "check", "config", "--agent", PROMETHEUS / "site.yml")
    passes(promtool, "check", "rules", PROMETHEUS / "rules.yml")


def test_alerts_fire_when_they_should() -> None:
    """`promtool test rules`."""
    promtool = required("promtool", "COMMONSCALE_REQUIRE_PROMTOOL", "prometheus")
    passes(promtool, "test", "rules", PROMETHEUS / "rules_test.yml", cwd=PROMETHEUS)


def alerts() -> list[dict[str, Any]]:
    groups = yaml.safe_load((PROMETHEUS / "rules.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def test_every_alert_says_what_to_do() -> None:
    """A summary, a description, and an entry in the runbook; each one fires in the rules' own tests."""
    headings = re.findall(r"^#+ (\w+)$", (ROOT / "docs" / "operations.md").read_text(), re.M)
    tested = (PROMETHEUS / "rules_test.yml").read_text()
    for rule in alerts():
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"]["summary"].endswith(".")
        assert rule["annotations"]["description"].endswith(".")
        assert rule["annotations"]["runbook"] == f"docs/operations.md#{rule['alert'].lower()}"
        assert rule["alert"] in headings
        assert rule["alert"] in tested


def metric_names(text: str) -> set[str]:
    return set(re.findall(r"\bcommonscale_[a-z_]+", text))


def exposed() -> set[str]:
    """What the daemons expose, with the suffixes of counters and histograms."""
    found = set()
    for kind, name in re.findall(
        r'(Counter|Gauge|Histogram)\(\s*"(\w+)"', (ROOT / "commonscale" / "metrics.py").read_text()
    ):
        suffixes = {"Counter": ["_total"], "Gauge": [""], "Histogram": ["_bucket", "_sum", "_count"]}[kind]
        found |= {name + suffix for suffix in suffixes}
    return found


def test_rules_and_dashboard_ask_for_metrics_that_exist() -> None:
    """A renamed metric would make an alert silent."""
    for path in (PROMETHEUS / "rules.yml", DEPLOY / "grafana" / "dashboards" / "commonscale.json"):
        named = metric_names(path.read_text())
        assert len(named) > 5
        assert named <= exposed(), path.name


def test_the_dashboard_is_whole() -> None:
    """Every panel asks the provisioned data source, has its own place, and a title; what operators need is there."""
    board = json.loads((DEPLOY / "grafana" / "dashboards" / "commonscale.json").read_text())
    source = yaml.safe_load((DEPLOY / "grafana" / "provisioning" / "datasources" / "prometheus.yml").read_text())
    (uid,) = [entry["uid"] for entry in source["datasources"]]
    taken: set[tuple[int, int]] = set()
    asked = ""
    for panel in board["panels"]:
        assert panel["title"]
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells
        for target in panel.get("targets", []):
            assert target["datasource"]["uid"] == uid
            asked += target["expr"]
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    wanted = "sites_online jobs_open jobs_total round_seconds_bucket relayed_bytes_total certificate_expiry build"
    for metric in wanted.split():
        assert f"commonscale_{metric}" in asked


def test_the_dashboards_queries_are_promql(tmp_path: Path) -> None:
    """Each one, as a recording rule, passes `promtool check rules`."""
    promtool = required("promtool", "COMMONSCALE_REQUIRE_PROMTOOL", "prometheus")
    board = json.loads((DEPLOY / "grafana" / "dashboards" / "commonscale.json").read_text())
    queries = [target["expr"] for panel in board["panels"] for target in panel.get("targets", [])]
    filled = [query.replace("$__rate_interval", "1m").replace("$kind", ".*") for query in queries]
    rules = [{"record": f"panel:{number}", "expr": query} for number, query in enumerate(filled)]
    path = tmp_path / "panels.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    assert f"{len(queries)} rules found" in passes(promtool, "check", "rules", path)


# systemd


@pytest.fixture
def units(tmp_path: Path) -> Path:
    """A root directory with the units and what they need to be looked at."""
    shutil.copytree(
        "/lib/systemd/system", tmp_path / "lib/systemd/system", symlinks=True, ignore_dangling_symlinks=True
    )
    (tmp_path / "etc/systemd/system").mkdir(parents=True)
    (tmp_path / "usr/local/bin").mkdir(parents=True)
    (tmp_path / "usr/local/bin/commonscale").write_text("#!/bin/sh\n")
    (tmp_path / "usr/local/bin/commonscale").chmod(0o755)
    for path in (DEPLOY / "systemd").glob("*.service"):
        shutil.copy(path, tmp_path / "etc/systemd/system")
    return tmp_path


@pytest.mark.parametrize("daemon_name", ["coordinator", "participant"])
def test_systemd_accepts_the_units(units: Path, daemon_name: str) -> None:
    """`systemd-analyze verify` finds nothing in them, `security` little to add."""
    analyze = required("systemd-analyze", "COMMONSCALE_REQUIRE_SYSTEMD", "systemd")
    unit = f"commonscale-{daemon_name}.service"
    said = passes(analyze, "verify", "--man=no", f"--root={units}", units / "etc/systemd/system" / unit)
    assert unit not in said
    passes(analyze, "security", "--offline=true", "--threshold=15", "--no-pager", DEPLOY / "systemd" / unit)


@pytest.mark.parametrize("daemon_name", ["coordinator", "participant"])
def test_units_and_their_configurations_agree(daemon_name: str) -> None:
    """Credentials and directories that the configuration names are those that the unit gives."""
    unit = (DEPLOY / "systemd" / f"commonscale-{daemon_name}.service").read_text()
    text = (DEPLOY / "systemd" / f"{daemon_name}.toml").read_text()
    named = re.findall(rf"/run/credentials/commonscale-{daemon_name}\.service/(\S+)\"", text)
    assert sorted(named) == sorted(re.findall(r"^LoadCredential=([^:]+):", unit, re.M))
    assert f"StateDirectory=commonscale-{daemon_name}" in unit
    assert set(re.findall(r"/var/lib/([\w-]+)", text)) == {f"commonscale-{daemon_name}"}
    assert "RestartPreventExitStatus=2" in unit


# Kubernetes


@pytest.fixture(scope="session")
def renderer(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """`helm template` where helm is; else Go's templates with the functions that the chart uses."""
    if helm := shutil.which("helm"):
        return [helm]
    go = required(
        "go", "COMMONSCALE_REQUIRE_GO", "golang-go, golang-github-masterminds-sprig-dev, golang-gopkg-yaml.v3-dev"
    )
    built = tmp_path_factory.mktemp("helm") / "render"
    source = ROOT / "tests" / "docker" / "helm" / "render.go"
    environment = {**os.environ, "GO111MODULE": "off", "GOPATH": "/usr/share/gocode", "GOFLAGS": ""}
    environment["GOCACHE"] = str(built.parent / "cache")
    passes(go, "build", "-o", built, source, env=environment)
    return [str(built)]


def render(renderer: list[str], release: str, *values: Path) -> list[dict[str, Any]]:
    """The chart's objects."""
    if renderer[0].endswith("helm"):
        text = passes(renderer[0], "template", release, CHART, *(f"--values={path}" for path in values))
    else:
        text = passes(renderer[0], CHART, release, *values)
    return [entry for entry in yaml.safe_load_all(text) if entry]


def of_kind(objects: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    (found,) = [entry for entry in objects if entry["kind"] == kind]
    return found


def configuration(kind: type[Any], objects: list[dict[str, Any]], name: str) -> Any:
    """The embedded file, read by the code that reads it in the pod."""
    text = of_kind(objects, "ConfigMap")["data"][name]
    return config.validate(kind, tomli.loads(text), source=name, base=Path("/etc/commonscale"))


def assert_hardened(pod: dict[str, Any]) -> None:
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in pod["containers"]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
        }  # fmt: skip
        assert container["resources"]["limits"]["memory"]
        mounted = {mount["name"] for mount in container["volumeMounts"]}
        assert mounted - {"state"} <= {volume["name"] for volume in pod["volumes"]}
        for probe_name in ("startupProbe", "livenessProbe", "readinessProbe"):
            assert probe_name in container


def projected(pod: dict[str, Any]) -> set[str]:
    """Paths below /etc/commonscale."""
    (volume,) = [volume for volume in pod["volumes"] if volume["name"] == "config"]
    sources = [next(iter(source.values())) for source in volume["projected"]["sources"]]
    return {item["path"] for source in sources for item in source["items"]}


def test_the_chart_gives_a_coordinator_with_two_replicas(renderer: list[str], tmp_path: Path) -> None:
    """On PostgreSQL alone, with probes, a disruption budget, and a Service that passes TLS through."""
    values = tmp_path / "values.yaml"
    values.write_text("coordinator: {serviceMonitor: {enabled: true}, revocationsConfigMap: crl}\n")
    objects = render(renderer, "hub", values)
    deployment = of_kind(objects, "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    assert deployment["spec"]["replicas"] == 2
    assert_hardened(pod)
    (container,) = pod["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "http"}
    assert container["livenessProbe"]["httpGet"] == {"path": "/livez", "port": "http"}
    settings = configuration(CoordinatorConfig, objects, "coordinator.toml")
    assert settings.blob_store == "database"
    assert settings.database.startswith("postgresql://")
    assert ports == {
        "grpc": int(settings.listen.rpartition(":")[2]),
        "http": int(settings.http_listen.rpartition(":")[2]),
        "dashboard": int(settings.dashboard.listen.rpartition(":")[2]),
    }
    named = [settings.tls.certificate, settings.tls.key, settings.tls.ca, settings.tls.revocations]
    assert {str(path.relative_to("/etc/commonscale")) for path in named} | {"coordinator.toml"} == projected(pod)
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    selectors = [
        deployment["spec"]["selector"]["matchLabels"],
        of_kind(objects, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
        of_kind(objects, "NetworkPolicy")["spec"]["podSelector"]["matchLabels"],
        *(entry["spec"]["selector"] for entry in objects if entry["kind"] == "Service"),
    ]
    assert all(selector.items() <= labels.items() for selector in selectors)
    for service in [entry for entry in objects if entry["kind"] == "Service"]:
        assert all(port["targetPort"] in ports and port["protocol"] == "TCP" for port in service["spec"]["ports"])
    monitor = of_kind(objects, "ServiceMonitor")
    wanted = monitor["spec"]["selector"]["matchLabels"].items()
    services = [entry for entry in objects if entry["kind"] == "Service"]
    scraped = [entry for entry in services if wanted <= entry["metadata"]["labels"].items()]
    assert len(scraped) == 1
    assert scraped[0]["metadata"]["labels"][monitor["spec"]["jobLabel"]] == "coordinator"
    assert monitor["spec"]["endpoints"][0]["port"] in {port["name"] for port in scraped[0]["spec"]["ports"]}
    allowed = {port["port"] for rule in of_kind(objects, "NetworkPolicy")["spec"]["ingress"] for port in rule["ports"]}
    assert allowed == set(ports)


def test_the_chart_gives_a_participant_that_nothing_can_call(renderer: list[str]) -> None:
    """One replica with a volume, no Service, no way in; it may dial its coordinator only."""
    objects = render(renderer, "north", CHART / "values-participant.yaml")
    assert {entry["kind"] for entry in objects} == {"ConfigMap", "StatefulSet", "NetworkPolicy"}
    stateful = of_kind(objects, "StatefulSet")
    pod = stateful["spec"]["template"]["spec"]
    assert stateful["spec"]["replicas"] == 1
    assert_hardened(pod)
    assert "ports" not in pod["containers"][0]
    assert [claim["metadata"]["name"] for claim in stateful["spec"]["volumeClaimTemplates"]] == ["state"]
    settings = configuration(ParticipantConfig, objects, "participant.toml")
    assert settings.http_listen.startswith("127.0.0.1:")
    assert settings.data["admissions"].missing == ["?", "NA"]
    assert settings.policy.min_rows == 50
    named = [settings.tls.certificate, settings.tls.key, settings.tls.ca, settings.vault.key_file]
    assert {str(path.relative_to("/etc/commonscale")) for path in named} | {"participant.toml"} == projected(pod)
    policy = of_kind(objects, "NetworkPolicy")["spec"]
    assert policy["ingress"] == []
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert policy["egress"][1]["to"] == [{"ipBlock": {"cidr": "192.0.2.7/32"}}]


def test_the_chart_asks_for_what_it_needs(renderer: list[str], tmp_path: Path) -> None:
    """A missing secret's name is a sentence at installation, not a pod that hangs."""
    values = tmp_path / "values.yaml"
    values.write_text('coordinator: {tlsSecret: ""}\n')
    with pytest.raises(AssertionError, match=r"coordinator.tlsSecret is needed"):
        render(renderer, "hub", values)

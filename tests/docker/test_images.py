"""What a container says when it is set up wrongly, and how an older database is brought up to date."""

import json
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docker.engine import Stack, docker, run, until

pytestmark = pytest.mark.docker

HARDENED = ("--rm", "--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL", "--network", "none")


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A directory that the containers' user may read."""
    tmp_path.chmod(0o755)
    return tmp_path


BROKEN = {
    "no configuration": (None, "Cannot read"),
    "not TOML": ("listen = [", "is not valid TOML"),
    "an unknown key": ('[tls]\ncertificate = "a"\nkey = "b"\nca = "c"\n[limits]\nretention = 1\n', "unknown key"),
    "no certificate": ('[tls]\ncertificate = "a"\nkey = "b"\nca = "c"\n', "Cannot read"),
}


@pytest.mark.parametrize("fault", BROKEN)
@pytest.mark.parametrize("target", ["coordinator", "participant"])
def test_a_wrong_set_up_ends_with_a_sentence(images: dict[str, str], written: Path, target: str, fault: str) -> None:
    """Exit code 2, one line, no traceback."""
    text, words = BROKEN[fault]
    mounts: tuple[str, ...] = ()
    if text is not None:
        if target == "participant":
            text = 'coordinator = "x:1"\n' + text.replace("[limits]\nretention", "[policy]\nretention")
            text += '[data.main]\npath = "x.csv"\n' if "tls" in text else ""
        (written / "daemon.toml").write_text(text)
        mounts = ("--volume", f"{written}/daemon.toml:/etc/commonscale/{target}.toml:ro")
    done = run("docker", "run", *HARDENED, *mounts, images[target], check=False)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith("error: ")
    assert words in line


@pytest.mark.parametrize(
    ("target", "code"),
    [
        ("coordinator", "import psycopg, openfhe; assert psycopg.pq.__impl__ == 'binary'"),
        ("participant", "import duckdb, openfhe, pyarrow.parquet; assert duckdb.sql('SELECT 1').fetchall() == [(1,)]"),
        (
            "worker",
            "import bench.normalization_study, commonscale_worker.networks.training, commonscale_worker.attaching",
        ),
    ],
)
def test_each_image_has_what_it_loads(images: dict[str, str], target: str, code: str) -> None:
    """Native libraries too, some of which are loaded only when a job needs them."""
    docker("run", *HARDENED, "--entrypoint", "python", images[target], "-c", code)


def test_another_members_certificate_is_refused(stack: Stack, images: dict[str, str], written: Path) -> None:
    """A coordinator with a hospital's certificate says so and ends."""
    text = (stack.directory / "deploy" / "compose" / "coordinator.toml").read_text()
    text = text.replace("coordinator.crt", "north.crt").replace("coordinator.key", "north.key")
    (written / "coordinator.toml").write_text(text.replace('revocations = "tls/revoked.crl"\n', ""))
    mounts = (
        "--volume", f"{written}/coordinator.toml:/etc/commonscale/coordinator.toml:ro",
        "--volume", f"{stack.volume('north-tls')}:/etc/commonscale/tls:ro",
    )  # fmt: skip
    done = run("docker", "run", *HARDENED, *mounts, images["coordinator"], check=False)
    assert done.returncode == 2
    (line,) = done.stderr.strip().splitlines()
    assert "is the certificate of site north, not" in line


# Brings a database to the first release's schema, with one ended job in it.
OLD = """
import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from commonscale.database import MIGRATIONS
from coordinator.daemon import MIGRATIONS as VERSIONS
engine = sa.create_engine("sqlite:////var/lib/commonscale/coordinator.db")
config = Config()
config.set_main_option("script_location", str(MIGRATIONS))
config.set_main_option("version_locations", str(VERSIONS))
config.set_main_option("path_separator", "os")
with engine.begin() as connection:
    config.attributes["connection"] = connection
    command.upgrade(config, "coordinator_0001")
    from commonscale.pipeline import Pipeline
    content = {"name": "old", "sites": ["a", "b", "c"], "steps": [{"columns": ["age"]}]}
    spec = Pipeline.model_validate(content).to_bytes()
    connection.execute(
        sa.text("INSERT INTO jobs (id, spec, analyst, state, submitted_at_ms, deadline_at_ms, ended_at_ms, error)"
                " VALUES ('old-job', :spec, 'analyst', 'failed', 1000, 2000, 1500, 'as it was')"), {"spec": spec})
"""
VERSION = """
import sqlite3
database = sqlite3.connect("/var/lib/commonscale/coordinator.db")
print(database.execute("SELECT version_num FROM alembic_version").fetchall())
"""


@pytest.fixture
def apart(stack: Stack) -> Iterator[str]:
    """A network and a volume for one more coordinator."""
    name = f"commonscale-test-old-{secrets.token_hex(3)}"
    docker("network", "create", "--internal", name)
    docker("volume", "create", name)
    try:
        yield name
    finally:
        docker("rm", "--force", name, check=False)
        docker("network", "rm", name)
        docker("volume", "rm", name)


def test_an_older_database_is_upgraded_at_the_start(stack: Stack, images: dict[str, str], apart: str) -> None:
    """The schema of the first release is brought up to date; a job of then is still there."""
    state = ("--volume", f"{apart}:/var/lib/commonscale")
    python = ("--entrypoint", "python", images["coordinator"], "-c")
    docker("run", *HARDENED, *state, *python, OLD)
    assert "coordinator_0001" in docker("run", *HARDENED, *state, *python, VERSION)
    configs = stack.directory / "deploy" / "compose"
    docker(
        "run", "--detach", "--name", apart, "--network", apart, "--network-alias", "coordinator", "--read-only",
        "--tmpfs", "/tmp", "--cap-drop", "ALL", *state, "--health-interval", "2s",
        "--volume", f"{configs}/coordinator.toml:/etc/commonscale/coordinator.toml:ro",
        "--volume", f"{stack.volume('coordinator-tls')}:/etc/commonscale/tls:ro", images["coordinator"],
    )  # fmt: skip
    until("healthy", lambda: docker("inspect", "--format", "{{.State.Health.Status}}", apart) == "healthy")
    version = docker("exec", apart, "python", "-c", VERSION)
    assert "coordinator_0001" not in version
    listed = docker(
        "run", "--rm", "--read-only", "--tmpfs", "/tmp", "--network", apart,
        "--volume", f"{stack.volume('analyst-tls')}:/etc/commonscale/tls:ro",
        "--volume", f"{configs}/analyst.toml:/etc/commonscale/analyst.toml:ro", images["participant"],
        "jobs", "list", "--config", "/etc/commonscale/analyst.toml", "--format", "json",
    )  # fmt: skip
    (job,) = json.loads(listed.splitlines()[-1])
    assert (job["job"], job["state"], job["error"]) == ("old-job", "failed", "as it was")

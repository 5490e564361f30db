"""Fixtures that several kinds of tests share."""

import glob
import importlib.util
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.patience import PATIENCE_S

# Examples share one machine with daemons of other tests: no time limit per example, same examples every time.
settings.register_profile(
    "commonscale", deadline=None, derandomize=True, max_examples=30, suppress_health_check=list(HealthCheck)
)
settings.load_profile("commonscale")


@pytest.fixture(scope="session", autouse=True)
def daemons_begin_as_forks() -> None:
    """Hundreds of daemons, each there in a tenth of the time; some suites run where there are none."""
    if importlib.util.find_spec("pydantic"):
        localnet = importlib.import_module("commonscale.localnet")
        localnet.LocalFederation.forks = True


# Two processes share the files of a run: one that takes minutes must not be the last to begin.
BEGIN_FIRST = ("test_session.py", "test_training.py", "test_hostile_workers.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first; otherwise in order."""
    items.sort(
        key=lambda item: BEGIN_FIRST.index(item.path.name) if item.path.name in BEGIN_FIRST else len(BEGIN_FIRST)
    )


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def data_directory() -> Path:
    """Real data sets; tests on them are skipped where they are not."""
    path = Path(os.environ.get("COMMONSCALE_DATA", Path(__file__).parents[2] / "shared" / "data"))
    if not path.is_dir():
        pytest.skip("no data sets: set COMMONSCALE_DATA to their directory")
    return path


def _postgres_programs() -> Path | None:
    found = sorted(glob.glob("/usr/lib/postgresql/*/bin/initdb"))
    if found:
        return Path(found[-1]).parent
    program = shutil.which("initdb")
    return Path(program).parent if program else None


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """A real PostgreSQL server for this test run, on a Unix socket."""
    programs = _postgres_programs()
    if programs is None:
        if os.environ.get("COMMONSCALE_REQUIRE_POSTGRES"):
            pytest.fail("PostgreSQL's server programs are required here and missing")
        pytest.skip("no PostgreSQL server programs: install the Debian package postgresql")
    directory = Path(tempfile.mkdtemp(prefix="commonscale-pg-"))
    # PostgreSQL refuses to run as root.
    user = pwd.getpwnam("postgres") if os.geteuid() == 0 else pwd.getpwuid(os.geteuid())
    os.chown(directory, user.pw_uid, user.pw_gid)
    as_user = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []} if os.geteuid() == 0 else {}
    cluster = directory / "cluster"

    def run(*command: str) -> None:
        subprocess.run(command, check=True, capture_output=True, cwd=directory, timeout=PATIENCE_S, **as_user)

    run(str(programs / "initdb"), "-D", str(cluster), "-U", "postgres", "-A", "trust", "--no-sync", "-E", "UTF8")
    options = f"-k {directory} -c listen_addresses='' -c fsync=on"
    run(str(programs / "pg_ctl"), "-D", str(cluster), "-w", "-o", options, "-l", str(directory / "log"), "start")
    try:
        yield f"postgresql://postgres@/postgres?host={directory}"
    finally:
        run(str(programs / "pg_ctl"), "-D", str(cluster), "-m", "immediate", "stop")
        shutil.rmtree(directory, ignore_errors=True)

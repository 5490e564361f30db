"""What is loaded when: the package and its help load little, gRPC comes from one module, coordinators fit nothing."""

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import commonscale
from commonscale.errors import leaf_errors
from tests.patience import PATIENCE_S

ROOT = Path(__file__).parents[2]
HEAVY = {"duckdb", "google.protobuf", "grpc", "numpy", "openfhe", "pyarrow", "scipy", "sklearn", "sqlalchemy"}
LOADER = "commonscale.grpc_loading"


def after(code: str, *arguments: str) -> dict[str, Any]:
    """Modules of a process that ran this code, and its environment before and after."""
    report = "import atexit, json, os, sys\nbefore = dict(os.environ)\n@atexit.register\ndef _():\n"
    report += "    found = {'modules': sorted(sys.modules), 'before': before, 'after': dict(os.environ)}\n"
    report += "    os.write(2, b'\\n' + json.dumps(found).encode())\n"
    command = [sys.executable, "-c", report + code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE_S)
    found: dict[str, Any] = json.loads(done.stderr.splitlines()[-1])
    return found


def test_importing_the_package_has_no_effect() -> None:
    """It loads nothing heavy and leaves the environment as it is."""
    found = after("import commonscale")
    assert found["after"] == found["before"]
    assert not (HEAVY | {"cryptography", "pydantic"}) & set(found["modules"])
    assert [name for name in found["modules"] if name.startswith("commonscale.")] == [
        "commonscale.errors",
        "commonscale.version",
    ]


def test_all_public_names_are_there() -> None:
    """Each can be had, is listed, and among them are all errors; another name is an AttributeError."""
    assert set(dir(commonscale)) == set(commonscale.__all__)
    for name in commonscale.__all__:
        assert getattr(commonscale, name) is not None
    assert {kind.__name__ for kind in leaf_errors()} <= set(commonscale.__all__)
    with pytest.raises(AttributeError, match="Clinet"):
        _ = commonscale.Clinet  # type: ignore[attr-defined]


@pytest.mark.parametrize("command", [[], ["submit"], ["coordinator"], ["demo"], ["bench"], ["enroll", "request"]])
def test_help_loads_nothing_heavy(command: list[str]) -> None:
    """A command loads what it needs when it runs, not to say what it does (pydantic is typer's own need)."""
    found = after("from commonscale.cli import main; main()", *command, "--help")
    assert "commonscale.cli.app" in found["modules"]
    assert not (HEAVY | {"cryptography"}) & set(found["modules"])


def test_a_coordinator_is_put_together_without_libraries_that_fit() -> None:
    """It adds what it cannot read: nothing of it needs scikit-learn, SciPy or a table."""
    found = after("import coordinator.daemon")
    assert "grpc" in found["modules"]
    assert not {"duckdb", "openfhe", "pandas", "pyarrow", "scipy", "sklearn", "skops"} & set(found["modules"])


def sources() -> Iterator[Path]:
    """Everything that is ours and not generated."""
    for top in (
        "commonscale",
        "coordinator",
        "participant",
        "crypto",
        "bench",
        "worker/commonscale_worker",
        "deploy",
        "tests",
    ):
        for path in sorted((ROOT / top).rglob("*.py")):
            if not path.is_relative_to(ROOT / "commonscale" / "v1"):
                yield path


def imports(tree: ast.AST) -> list[str]:
    """What a module imports, anywhere in it, from its first line to its last: `from a import b` is a.b."""
    found: list[tuple[int, str]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        if isinstance(node, ast.ImportFrom):
            found += [(node.lineno, f"{node.module}.{alias.name}") for alias in node.names]
    return [name for _, name in sorted(found)]


def loads_grpc_unguarded(source: str) -> list[str]:
    """Imports that load grpc with nothing before them that has made sure how."""
    found: list[str] = []
    for name in imports(ast.parse(source)):
        if name.startswith((LOADER, "commonscale.rpc")):
            return found + [late for late in imports(ast.parse(source)) if _is_grpc(late)]
        if _is_grpc(name) or name.startswith("grpc_health.") or "_pb2_grpc" in name:
            found.append(name)
    return found


def _is_grpc(name: str) -> bool:
    return name == "grpc" or name.startswith("grpc.")


def test_grpc_comes_from_one_module() -> None:
    """Nothing of ours imports grpc itself, nor what imports it before the module that sees to TLS 1.3."""
    bare = {path.relative_to(ROOT): loads_grpc_unguarded(path.read_text()) for path in sources()}
    loader = Path(*LOADER.split(".")).with_suffix(".py")
    assert {path: found for path, found in bare.items() if found} == {loader: ["grpc"]}


@pytest.mark.parametrize(
    "source",
    [
        "import grpc",
        "def f():\n    import grpc.aio",
        f"from {LOADER} import grpc\nfrom grpc import aio",
        "from commonscale.v1 import jobs_pb2, jobs_pb2_grpc",
        f"from grpc_health.v1 import health_pb2\nimport {LOADER}",
    ],
)
def test_a_bare_import_of_grpc_would_be_found(source: str) -> None:
    """The test above sees each of these."""
    assert loads_grpc_unguarded(source)

"""Write deploy/requirements.txt and deploy/requirements-build.txt: what the images install, with hashes.

The versions are those of requirements.lock; the hashes are of the wheels for CPython 3.10 on Linux, x86-64 (OpenFHE has
no others). `make lock` runs it. It asks pip, and so the package index that pip is set to.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import tomli

ROOT = Path(__file__).parents[1]
HEADER = "# Made by `make lock` for CPython 3.10 on Linux, x86-64. {what}\n"


def resolve(requirements: list[str], *options: str) -> list[dict[str, Any]]:
    """What pip would install into an empty environment, with the hash of each file."""
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet"]
    command += ["--only-binary", ":all:", "--report", "-", *options, *requirements]
    report = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT).stdout
    found: list[dict[str, Any]] = json.loads(report)["install"]
    return found


def pinned(package: dict[str, Any]) -> str:
    """name==version --hash=sha256:…, as pip reads it."""
    name, version = package["metadata"]["name"].lower().replace("_", "-"), package["metadata"]["version"]
    mark = package["download_info"]["archive_info"]["hashes"]["sha256"]
    return f"{name}=={version} \\\n    --hash=sha256:{mark}\n"


def write(path: Path, what: str, packages: list[dict[str, Any]]) -> None:
    """One package after the other, by name."""
    path.write_text(HEADER.format(what=what) + "".join(sorted(map(pinned, packages))), encoding="utf-8")


def main() -> None:
    """Both files."""
    project = tomli.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    worker = tomli.loads((ROOT / "worker" / "pyproject.toml").read_text(encoding="utf-8"))
    # The worker's package is built from this tree, like the project itself.
    ours = worker["project"]["name"]
    wanted = [*project["project"]["dependencies"], *worker["project"]["dependencies"]]
    needed = resolve([name for name in wanted if name != ours], "--constraint", "requirements.lock")
    write(ROOT / "deploy" / "requirements.txt", "What the daemons need.", needed)
    build = resolve(project["build-system"]["requires"])
    write(ROOT / "deploy" / "requirements-build.txt", "What builds the package.", build)


if __name__ == "__main__":
    main()

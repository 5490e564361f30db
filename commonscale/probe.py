"""Is the daemon of this configuration file well? For health checks: loads nothing heavy, answers within a second.

`python -m commonscale.probe` is what images and units run; `commonscale probe` is the same for people.
"""

import argparse
import http.client
import json
import os
import sys
from pathlib import Path
from typing import Any

# The defaults of commonscale.config, which would take longer to load than the answer; a test compares them.
DEFAULT_LISTEN = {"coordinator": "127.0.0.1:7480", "participant": "127.0.0.1:7481"}
# What a daemon that listens everywhere is asked under.
LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - compared with, not bound to
TIMEOUT_S = 4.0


class NoAnswer(Exception):
    """The daemon cannot be asked; says why."""


def address(path: Path) -> tuple[str, int]:
    """Where the daemon of a configuration file answers HTTP."""
    import tomli

    try:
        content: dict[str, Any] = tomli.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise NoAnswer(f"Cannot read {path}: {error.strerror}.") from None
    except (tomli.TOMLDecodeError, UnicodeDecodeError) as error:
        raise NoAnswer(f"{path} is not valid TOML: {error}.") from None
    kind = "participant" if "coordinator" in content else "coordinator"
    listen = str(content.get("http_listen", DEFAULT_LISTEN[kind]))
    host, _, port = listen.rpartition(":")
    host = host.strip("[]")
    if not host or not port.isdigit():
        raise NoAnswer(f"{path}: http_listen {listen!r} is not an address of the form host:port.")
    if int(port) == 0:
        raise NoAnswer(f"{path}: with port 0 in http_listen the daemon chooses its port; a probe needs a fixed one.")
    return LOOPBACK.get(host, host), int(port)


def faults(path: Path, *, live: bool = False) -> list[str]:
    """What the daemon says is wrong with it, or why it cannot be asked; none means well."""
    try:
        host, port = address(path)
    except NoAnswer as error:
        return [str(error)]
    connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", "/livez" if live else "/healthz")
        response = connection.getresponse()
        body = response.read()
    except (OSError, http.client.HTTPException) as error:
        return [f"Nothing answers on {host}:{port}: {error}."]
    finally:
        connection.close()
    if response.status == 200:
        return []
    try:
        named = json.loads(body)["faults"]
    except (ValueError, KeyError, TypeError):
        named = []
    return [str(fault) for fault in named] or [f"answers with status {response.status}"]


def main() -> int:
    """For health checks: 0 if all is well, else 1 and the faults, one a line."""
    parser = argparse.ArgumentParser(prog="python -m commonscale.probe", description=__doc__)
    default = os.environ.get("COMMONSCALE_CONFIG")
    parser.add_argument("--config", "-c", type=Path, default=default, required=default is None)
    parser.add_argument("--live", action="store_true", help="ask only whether the process answers")
    options = parser.parse_args()
    found = faults(options.config, live=options.live)
    sys.stdout.write("".join(f"{fault}\n" for fault in found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

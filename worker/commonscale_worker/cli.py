"""The `commonscale-worker` command."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from commonscale_worker import registry, running
from commonscale_worker.errors import WorkerError
from commonscale_worker.version import __version__


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point: exits with 0, with 1 if a model is wrong, with 2 if it could not begin, with 3 if rejected."""
    options = _parser().parse_args(arguments)
    try:
        load(options.module)
        if not registry.offers():
            raise WorkerError(f'{options.module} offers no model: mark a class with @cw.model("name")')
        code: int = options.command(options)
    except WorkerError as error:
        sys.stderr.write(f"commonscale-worker: {error}\n")
        code = 2
    except KeyboardInterrupt:
        code = 130
    raise SystemExit(code)


def load(module: str) -> None:
    """Import a module by its name, or a .py file by its path; what it registers is offered."""
    # Flower, if the module imports it, tells its makers that it runs unless it is told not to.
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    try:
        with running.importing():
            if module.endswith(".py"):
                _load_file(Path(module).absolute())
            else:
                sys.path.insert(0, os.getcwd())
                importlib.import_module(module)
    except WorkerError:
        raise
    except ModuleNotFoundError as error:
        raise WorkerError(f"{module} cannot be imported: there is no module {error.name!r} here") from error
    except Exception as error:
        traceback.print_exc()
        raise WorkerError(f"{module} cannot be imported: {type(error).__name__}: {error}") from error


def _load_file(path: Path) -> None:
    if not path.is_file():
        raise WorkerError(f"there is no file {path}")
    if path.stem in sys.modules:
        raise WorkerError(f"there is a module named {path.stem!r} already: give the file another name")
    # Its neighbours can be imported, as when Python runs it.
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    loaded = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)


def _run(options: argparse.Namespace) -> int:
    socket = options.socket or os.environ.get(running.SOCKET)
    return running.serve(socket, options.curve_key, options.curve_server)


def _check(options: argparse.Namespace) -> int:
    from commonscale_worker.checking import check

    offers = [registry.offered(options.model)] if options.model else registry.offers()
    # Every model is checked, also behind one that is wrong.
    right = [check(offer) for offer in offers]
    return 0 if all(right) else 1


def _models(options: argparse.Namespace) -> int:
    offers = registry.offers()
    if options.format == "json":
        found = [{"name": offer.name, "digest": offer.digest} for offer in offers]
        sys.stdout.write(json.dumps(found, indent=2) + "\n")
    else:
        width = max(len(offer.name) for offer in offers)
        sys.stdout.write("".join(f"{offer.name:{width}}  {offer.digest}\n" for offer in offers))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("commonscale-worker", description="Trains models at a site.")
    parser.add_argument("--version", action="version", version=f"commonscale-worker {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, function: object, text: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=text, description=text)
        added.add_argument("module", metavar="MODULE", help="A module's name, or the path of a .py file.")
        added.set_defaults(command=function)
        return added

    run = command("run", _run, "Attach to the site's participant and train what it asks for.")
    run.add_argument("--socket", metavar="ADDRESS", help="The participant's socket: a path, or tcp://host:port.")
    run.add_argument("--curve-key", metavar="FILE", help="The worker's own CURVE key, for tcp://.")
    run.add_argument("--curve-server", metavar="FILE", help="The participant's public CURVE key, for tcp://.")
    check = command("check", _check, "Train one step on made-up data, and say what is wrong.")
    check.add_argument("--model", metavar="NAME", help="This model only.")
    models = command("models", _models, "Show names and digests, for the site's policy.")
    models.add_argument("--format", choices=("text", "json"), default="text")
    return parser


if __name__ == "__main__":
    main()

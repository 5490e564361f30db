"""The daemons' configuration files: TOML, every key known, every path relative to the file it stands in."""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

import tomli
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, model_validator

from commonscale.errors import ConfigError
from commonscale.files import read_file
from commonscale.names import NAME_PATTERN


def _beside_config(path: Path, info: ValidationInfo) -> Path:
    base = (info.context or {}).get("base", Path())
    return path if path.is_absolute() else Path(base) / path


def _check_name(name: str) -> str:
    if not NAME_PATTERN.fullmatch(name):
        raise ValueError("use lower-case letters, digits and hyphens, at most 63")
    return name


def _check_host(name: str) -> str:
    if not HOST_PATTERN.fullmatch(name):
        raise ValueError(f"{name!r} is not a host's name: no pattern, no port")
    return name


def _is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address of this host."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


HOST_PATTERN = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")
ConfigPath = Annotated[Path, AfterValidator(_beside_config)]
Name = Annotated[str, AfterValidator(_check_name)]
HostName = Annotated[str, AfterValidator(_check_host)]


class Section(BaseModel):
    """A table of a configuration file; a key that is not known is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Tls(Section):
    """Certificate, key and the consortium's CA."""

    certificate: ConfigPath
    key: ConfigPath
    ca: ConfigPath
    # The consortium's revocation list, read again whenever it changes.
    revocations: ConfigPath | None = None


class Limits(Section):
    """What the coordinator takes from one site."""

    max_payload_bytes: int = Field(default=2 << 30, gt=0)
    uploads_at_once: int = Field(default=8, gt=0)
    # How long the messages of an ended job are kept.
    retention_s: int = Field(default=24 * 3600, ge=0)


class Dashboard(Section):
    """The coordinator's page for its operators."""

    # Empty: none.
    listen: str = "127.0.0.1:7490"
    # With the coordinator's certificate, and members may show theirs instead of a token. False: behind a proxy only.
    tls: bool = True
    # Further names under which it is reached, beside those in the certificate.
    hosts: list[str] = []


class CoordinatorConfig(Section):
    """`commonscale coordinator --config coordinator.toml`."""

    listen: str = "0.0.0.0:7443"
    # /healthz, /livez and /metrics, without TLS: keep it on an address that only operators reach.
    http_listen: str = "127.0.0.1:7480"
    database: str = "sqlite:///coordinator.db"
    # Where payloads over 64 KiB and collective keys are kept: in the two directories below, or in the database, so that
    # replicas need to share nothing else.
    blob_store: Literal["files", "database"] = "files"
    blobs: ConfigPath = Field(default=Path("blobs"), validate_default=True)
    # Collective public keys that later jobs of the same sites use again.
    keys: ConfigPath = Field(default=Path("keys"), validate_default=True)
    tls: Tls
    limits: Limits = Limits()
    dashboard: Dashboard = Dashboard()


class DataSource(Section):
    """One table of a site."""

    path: ConfigPath
    # Texts that mean "missing", beside the empty one; in a Parquet file also numbers.
    missing: list[str] = []


Method = Literal[
    "masks", "shares", "sac-proportional", "ckks", "oprf", "apsi", "apsi-native", "otmppsi", "ring", "clear"
]  # fmt: skip


class TrainPolicy(Section):
    """What a site lets be trained on its rows."""

    # What its worker may train: names, and the digests that `commonscale-worker models` prints.
    models: dict[Name, Annotated[str, Field(pattern="^[0-9a-f]{64}$")]] = {}
    max_rounds: int = Field(default=1000, ge=1)
    # This site's rows that are trained on; those that are kept apart to evaluate on; those of one batch.
    min_rows: int = Field(default=30, ge=1)
    min_evaluation_rows: int = Field(default=5, ge=1)
    min_batch_rows: int = Field(default=8, ge=1)
    # In every round; never fewer than policy.min_sites.
    min_sites: int = Field(default=3, ge=3)
    # Whether rounds may be sums of different sites (sample, patience_s): the others then learn more of each.
    changing_sites: bool = False
    # Whether coordinator and analyst may see the model of every round.
    release_model: bool = False


class Policy(Section):
    """What a site lets be computed on its rows."""

    approval: Literal["automatic", "manual"] = "manual"
    # Patterns as of a shell: "lab_*".
    columns: list[str] = ["*"]
    # By name; without a list, those that are in the default by their own word (docs/jobs.md says which).
    transforms: list[str] | None = None
    # How numbers may be pooled, and common identifiers of categorical values found; see docs/protocols/README.md.
    # Not among them: ckks, because computing under encryption trusts the coordinator to follow the protocol, which
    # nothing checks yet (SECURITY.md); and sac-proportional, which shows the signs of every site's sums.
    methods: list[Method] = ["masks", "shares", "oprf", "apsi", "apsi-native", "otmppsi", "ring"]
    # What may never be opened, whatever the transform: patterns for the lines of docs/disclosures.md, such as
    # "*minimum and maximum*".
    never_reveal: list[str] = []
    # Encryption parameters that are quick and NOT secure: for trying out.
    test_profile: bool = False
    analysts: list[str] = ["*"]
    min_rows: int = Field(default=10, ge=0)
    min_sites: int = Field(default=3, ge=3)
    train: TrainPolicy = TrainPolicy()


class WorkerConfig(Section):
    """Where the site's ML worker attaches; see docs/training.md."""

    # A file of the site's own user, "ipc:///run/commonscale/worker.sock"; empty: worker.sock in the state directory.
    # Over TCP only with the keys below.
    listen: str = ""
    # Of a socket on TCP: its own key pair (CURVE), and the public keys of workers that may attach.
    key: ConfigPath | None = None
    allowed_keys: list[Annotated[str, Field(min_length=40, max_length=40)]] = []
    # What the process that holds the socket may use: about four times the largest model.
    memory_mb: int = Field(default=4096, ge=256)

    @model_validator(mode="after")
    def _is_guarded(self) -> WorkerConfig:
        if self.listen and not self.listen.startswith(("ipc:///", "tcp://")):
            raise ValueError(f"{self.listen!r} is neither ipc:///PATH nor tcp://HOST:PORT")
        if self.listen.startswith("tcp://") and (self.key is None or not self.allowed_keys):
            raise ValueError("a worker attaches over TCP only with keys: give key and allowed_keys, or use ipc")
        return self


class VaultConfig(Section):
    """What encrypts a site's secrets at rest: a key file (made if it is not there), or a passphrase."""

    key_file: ConfigPath | None = None
    # Or the variable COMMONSCALE_PASSPHRASE.
    passphrase_file: ConfigPath | None = None


class Page(Section):
    """The site's own page: policy, approvals, what left. See docs/site-page.md."""

    # Empty: no page.
    listen: str = "127.0.0.1:7482"
    # Further names under which browsers may ask for it.
    hosts: list[HostName] = []
    # For a container that publishes the port to its host's loopback.
    any_address: bool = False

    @model_validator(mode="after")
    def _is_local(self) -> Page:
        host = self.listen.rpartition(":")[0].strip("[]")
        if self.listen and not host:
            raise ValueError(f"{self.listen!r} is not an address of the form host:port")
        if self.listen and not self.any_address and not _is_loopback(host):
            raise ValueError(
                f"{self.listen!r} can be reached from other machines: use 127.0.0.1, and an SSH tunnel from elsewhere; "
                "any_address = true is for a container that publishes the port to its host's loopback"
            )
        return self


class ParticipantConfig(Section):
    """`commonscale participant --config participant.toml`."""

    coordinator: str
    http_listen: str = "127.0.0.1:7481"
    state: ConfigPath = Field(default=Path("state"), validate_default=True)
    tls: Tls
    data: dict[str, DataSource]
    policy: Policy = Policy()
    vault: VaultConfig = VaultConfig()
    page: Page = Page()
    # Without this table, no ML worker can attach, and the site trains nothing.
    worker: WorkerConfig | None = None
    # fastText models (.bin) by the names that pipelines use.
    models: dict[str, ConfigPath] = {}


class AnalystConfig(Section):
    """`commonscale submit --config analyst.toml`."""

    coordinator: str
    tls: Tls


C = TypeVar("C", bound=Section)


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML file's contents, or ConfigError naming the file and the line."""
    try:
        return tomli.loads(read_file(path).decode())
    except (tomli.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}.") from None


def load(kind: type[C], path: Path) -> C:
    """A configuration file, checked, or ConfigError with one line per fault."""
    return validate(kind, read_toml(path), source=str(path), base=path.parent)


def validate(kind: type[C], content: dict[str, Any], *, source: str, base: Path) -> C:
    """Check contents that came from `source`; relative paths are meant from `base`."""
    try:
        return kind.model_validate(content, context={"base": base})
    except ValidationError as error:
        raise ConfigError("\n".join(_fault(source, kind, fault) for fault in error.errors())) from None


def _fault(source: str, kind: type[BaseModel], fault: Any) -> str:
    where = ".".join(str(part) for part in fault["loc"]) or "the file"
    if fault["type"] == "extra_forbidden":
        return f"{source}: unknown key {where!r}; known keys here: {', '.join(_known_keys(kind, fault['loc'][:-1]))}."
    return f"{source}: {where}: {fault['msg'][0].lower()}{fault['msg'][1:]}."


def _known_keys(kind: type[BaseModel], parents: tuple[str | int, ...]) -> list[str]:
    """The keys of the table in which an unknown one stands; tables may be named by the user (`data.NAME`)."""
    kinds = [kind]
    for part in parents:
        fields = [field for one in kinds if (field := one.model_fields.get(str(part)))]
        # A step is also named by its transform.
        steps = [one for one in kinds if (field := one.model_fields.get("transform")) and field.default == part]
        kinds = [table for field in fields for table in _tables(field.annotation)] or steps or kinds
    return sorted({key for one in kinds for key in one.model_fields})


def _tables(annotation: Any) -> list[type[BaseModel]]:
    """What a key may hold."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [found for inner in get_args(annotation) for found in _tables(inner)]

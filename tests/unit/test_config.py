"""Configuration and pipeline files: every key known, every fault a sentence."""

from pathlib import Path

import pytest

from commonscale import config
from commonscale.cli.examination import load_any
from commonscale.config import CoordinatorConfig, ParticipantConfig
from commonscale.errors import BadMessage, ConfigError
from commonscale.names import JOB_ID_PATTERN
from commonscale.pipeline import Pipeline
from commonscale.v1 import jobs_pb2

SAMPLES = Path(__file__).parents[2] / "deploy" / "config"
TLS = '[tls]\ncertificate = "a.crt"\nkey = "a.key"\nca = "ca.crt"\n'


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


@pytest.mark.parametrize("path", sorted(SAMPLES.glob("*.toml")), ids=lambda p: p.name)
def test_every_sample_is_valid(path: Path) -> None:
    """Samples are parsed by the code that reads the real ones."""
    if path.name.startswith("pipeline"):
        Pipeline.from_toml(path)
    else:
        load_any(path)


def test_there_are_samples() -> None:
    """One for each kind of file."""
    assert {p.name.split(".")[0].split("-")[0] for p in SAMPLES.glob("*.toml")} == {
        "analyst", "coordinator", "participant", "pipeline",
    }  # fmt: skip


def test_an_unknown_key_is_named_with_the_known_ones(tmp_path: Path) -> None:
    """A typing error is not silently ignored."""
    path = write(tmp_path / "c.toml", "listne = 'x'\n" + TLS)
    with pytest.raises(ConfigError, match=r"unknown key 'listne'; known keys here: .*listen"):
        config.load(CoordinatorConfig, path)


def test_an_unknown_key_in_a_table_is_named(tmp_path: Path) -> None:
    """Also further down."""
    text = "coordinator = 'x:1'\n" + TLS + "[data.main]\npath = 'x.csv'\n[policy]\nmin_row = 3\n"
    with pytest.raises(ConfigError, match=r"'policy.min_row'.*min_rows"):
        config.load(ParticipantConfig, write(tmp_path / "p.toml", text))


def test_an_unknown_key_of_a_data_source_is_named(tmp_path: Path) -> None:
    """With the keys of a data source, not of the file."""
    text = "coordinator = 'x:1'\n" + TLS + "[data.main]\npth = 'x.csv'\n"
    with pytest.raises(ConfigError, match=r"unknown key 'data.main.pth'; known keys here: missing, path"):
        config.load(ParticipantConfig, write(tmp_path / "p.toml", text))


@pytest.mark.parametrize("job_id", ["../../etc/x", "a/b", "", "-a", "A", "a" * 101, "a\0"])
def test_a_job_id_is_no_path(job_id: str) -> None:
    """A site keeps its results under it."""
    assert JOB_ID_PATTERN.fullmatch(job_id) is None


def test_paths_are_meant_beside_the_file(tmp_path: Path) -> None:
    """A daemon may be started from anywhere."""
    loaded = config.load(CoordinatorConfig, write(tmp_path / "c.toml", TLS))
    assert loaded.tls.certificate == tmp_path / "a.crt"
    assert loaded.blobs == tmp_path / "blobs"


@pytest.mark.parametrize(("text", "words"), [("a = ", "not valid TOML"), ("", "tls: field required")])
def test_faults_are_sentences(tmp_path: Path, text: str, words: str) -> None:
    """Broken TOML and missing tables say what is wrong."""
    with pytest.raises(ConfigError, match=words):
        config.load(CoordinatorConfig, write(tmp_path / "c.toml", text))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """Not a traceback."""
    with pytest.raises(ConfigError, match=r"nowhere.toml: No such file"):
        config.load(CoordinatorConfig, tmp_path / "nowhere.toml")


def pipeline(**changes: object) -> dict[str, object]:
    return {"sites": ["a", "b", "c"], "steps": [{"columns": ["x"]}], **changes}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sites": ["a", "b"]}, r"2 sites are too few: a sum needs at least 3"),
        ({"sites": ["a", "b", "a"]}, "named twice"),
        ({"sites": ["a", "b", "@coordinator"]}, "lower-case"),
        ({"steps": []}, "at least 1"),
        ({"steps": [{"columns": ["x", "x"]}]}, "named twice: x"),
        ({"steps": [{"columns": ["x"], "method": "plain"}]}, "masks"),
        ({"deadline_s": 0}, "greater than 0"),
    ],
)
def test_a_bad_pipeline_is_refused(changes: dict[str, object], words: str) -> None:
    """Before anything is sent."""
    with pytest.raises(ConfigError, match=words):
        config.validate(Pipeline, pipeline(**changes), source="pipeline", base=Path())


def test_a_pipeline_survives_the_wire() -> None:
    """What a site reads is what the analyst wrote."""
    original = Pipeline.model_validate(
        pipeline(name="n", dataset="d", steps=[{"columns": ["x", "é"], "method": "shares", "rounds": "one"}])
    )
    assert Pipeline.from_bytes(original.to_bytes()) == original


@pytest.mark.parametrize(
    "raw",
    [
        b"\xff\xff",
        b"",
        jobs_pb2.JobSpec(name="a", dataset="d", sites=["a", "b"], deadline_s=1).SerializeToString(),
        jobs_pb2.JobSpec(
            name="a",
            dataset="d",
            sites=["a", "b", "c"],
            deadline_s=1,
            steps=[jobs_pb2.Step(transform="zscore", options='{"columns": []}')],
        ).SerializeToString(),
    ],
)
def test_a_hostile_spec_is_a_bad_message(raw: bytes) -> None:
    """Not an exception of a library."""
    with pytest.raises(BadMessage):
        Pipeline.from_bytes(raw)

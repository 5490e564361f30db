"""Tables that are written with a job's estimators: what goes in, what takes its place, and what is left alone."""

import csv
import datetime as dt
import decimal
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.impute import SimpleImputer
from typer.testing import CliRunner

from commonscale.categories import Dictionary
from commonscale.cli.app import app
from commonscale.errors import ConfigError, MissingColumn, UnknownCategory, UnreadableData, WrongType
from commonscale.estimators import storage
from commonscale.estimators.assembly import FittedStep, assemble, table_and_outputs
from commonscale.estimators.encoders import FederatedOneHotEncoder, FederatedOrdinalEncoder
from commonscale.estimators.text_encoders import RollingHashEncoder
from commonscale.sources.duckdb import DuckDbSource
from commonscale.sources.written import WrittenRows
from commonscale.statistics.moments import Moments
from commonscale.transforms.base import named
from commonscale.transforms.scaling import standard_scaler
from participant import transform
from participant.results import save_pipeline
from participant.transform import write_transformed

SEX = Dictionary(("f", "m", None), (0, 1, 2), 3)
NUMBERS = Dictionary(("1", "2", "3"), (0, 1, 2), 3)
# What a reader that guesses types would change, or what a careless writer would break.
ODD = [
    "01/02/2020", "2020-01-02 03:04:05+02:00", "yes", "TRUE", "007", "12345678901234567890", "1.50", "1e5", "NaN",
    "inf", "-Infinity", "NULL", "?", " padded ", "naïve ☃ 日本", 'say "hi", ok', "two\nlines", "O'Brien", "back\\slash",
    "1,5",
]  # fmt: skip


def standard(*columns: str) -> Any:
    """Mean 1, standard deviation 2."""
    count = len(columns)
    return standard_scaler(Moments(columns, (9,) * count, (1.0,) * count, (4.0,) * count))


def mixed() -> list[FittedStep]:
    """Scaled age, one-hot sex, and grades as categories."""
    return [
        FittedStep("scaled", standard("age"), False),
        FittedStep("sexes", FederatedOneHotEncoder.fitted(["sex"], [SEX], sparse_output=True), True),
        FittedStep("codes", FederatedOrdinalEncoder.fitted(["grade"], [NUMBERS]), True),
    ]


def in_parquet(path: Path, columns: dict[str, Any]) -> DuckDbSource:
    pq.write_table(pa.table(columns), path)
    return DuckDbSource("here", "main", path)


def in_csv(path: Path, rows: Sequence[Sequence[str]], missing: Sequence[str] = ()) -> DuckDbSource:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)
    return DuckDbSource("here", "main", path, list(missing))


def read_cells(path: Path) -> list[list[str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.reader(file))


def written(table: DuckDbSource, estimator: Any, path: Path, **how: Any) -> dict[str, list[Any]]:
    rows = sum(write_transformed(table, estimator, path, **how))
    found = pq.read_table(path) if path.suffix == ".parquet" else pyarrow.csv.read_csv(path)
    assert found.num_rows == rows
    return {name: found.column(name).to_pylist() for name in found.column_names}


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_an_encoding_replaces_its_columns_at_the_end_of_the_table(tmp_path: Path, suffix: str) -> None:
    """Other columns keep their order and their cells."""
    table = in_parquet(tmp_path / "in.parquet", {"id": [1, 2, 3], "sex": ["f", "x", None], "note": ["a", "b", "c"]})
    found = written(table, FederatedOneHotEncoder.fitted(["sex"], [SEX]), tmp_path / f"out{suffix}")
    assert found == {
        "id": [1, 2, 3],
        "note": ["a", "b", "c"],
        "sex_f": [1, 0, 0],
        "sex_m": [0, 0, 0],
        "sex_missing": [0, 0, 1],
    }
    assert list(found) == ["id", "note", "sex_f", "sex_m", "sex_missing"]


def test_an_output_with_an_inputs_name_takes_its_place(tmp_path: Path) -> None:
    """Numbers and ordinals; a missing number stays missing."""
    columns = {"age": [3, None, 1], "id": [1, 2, 3], "sex": ["f", "m", "x"]}
    table = in_parquet(tmp_path / "in.parquet", columns)
    found = written(table, standard("age"), tmp_path / "a.parquet")
    assert list(found) == ["age", "id", "sex"]
    assert found["age"] == [1.0, None, 0.0]
    found = written(table, FederatedOrdinalEncoder.fitted(["sex"], [SEX]), tmp_path / "b.parquet")
    assert list(found) == ["age", "id", "sex"]
    assert found["sex"] == [0, 1, -1]


def test_columns_are_read_as_the_steps_of_a_pipeline_read_them(tmp_path: Path) -> None:
    """A number must be one; a category may be written as one."""
    columns = {"age": [3, None, 1], "grade": [3, None, 1], "sex": ["f", "m", None], "id": [1, 2, 3]}
    found = written(in_parquet(tmp_path / "in.parquet", columns), assemble(mixed()), tmp_path / "a.parquet")
    assert list(found) == ["age", "grade", "id", "sex_f", "sex_m", "sex_missing"]
    assert found["age"] == [1.0, None, 0.0]
    assert found["grade"] == [2, -1, 0]
    words = in_parquet(tmp_path / "words.parquet", {"age": ["SECRET"], "grade": [1], "sex": ["f"]})
    with pytest.raises(WrongType, match="'age'") as caught:
        written(words, assemble(mixed()), tmp_path / "b.parquet")
    assert "SECRET" not in str(caught.value)


def test_an_output_that_would_hide_another_column_is_refused(tmp_path: Path) -> None:
    """The table's own column stays as it is, or nothing is written."""
    table = in_parquet(tmp_path / "in.parquet", {"sex": ["f"], "sex_f": [7]})
    with pytest.raises(ConfigError, match="sex_f"):
        written(table, FederatedOneHotEncoder.fitted(["sex"], [SEX]), tmp_path / "a.parquet")
    assert [path.name for path in tmp_path.iterdir()] == ["in.parquet"]


def test_what_cannot_be_written_leaves_no_file(tmp_path: Path) -> None:
    """A missing column, an unknown value, an empty table, a type that CSV lacks, a kind of file that is not known."""
    strict = FederatedOneHotEncoder.fitted(["sex"], [SEX], handle_unknown="error")
    good: dict[str, Any] = {"sex": ["f"], "list": [[1]]}
    for columns, name, error in (
        ({"age": [1]}, "a.csv", MissingColumn),
        ({"sex": ["SECRET"]}, "a.csv", UnknownCategory),
        ({"sex": pa.array([], pa.string())}, "a.csv", ConfigError),
        (good, "a.csv", ConfigError),
        (good, "a.xlsx", ConfigError),
    ):
        with pytest.raises(error) as caught:
            written(in_parquet(tmp_path / "in.parquet", columns), strict, tmp_path / name)
        assert "SECRET" not in str(caught.value)
        assert [path.name for path in tmp_path.iterdir()] == ["in.parquet"]
    assert written(in_parquet(tmp_path / "in.parquet", good), strict, tmp_path / "a.parquet")["list"] == [[1]]


def test_wide_encodings_are_written_in_small_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that memory is bounded whatever the width is."""
    monkeypatch.setattr(transform, "_CELLS_AT_ONCE", 100)
    table = in_parquet(tmp_path / "in.parquet", {"sex": ["f", "m", "x", None, "f"]})
    encoder = RollingHashEncoder.fitted(["sex"], buckets=90)
    assert list(write_transformed(table, encoder, tmp_path / "a.parquet")) == [1] * 5
    rows = pq.read_table(tmp_path / "a.parquet")
    found = np.column_stack([column.to_numpy() for column in rows.columns])
    np.testing.assert_array_equal(found, encoder.transform([["f"], ["m"], ["x"], [None], ["f"]]))


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_other_columns_of_a_csv_file_come_out_as_they_were_written(tmp_path: Path, suffix: str) -> None:
    """Each odd text in a column of its own, so that its type could be guessed, and all of them in one."""
    header = ["age", *(f"c{number}" for number in range(len(ODD))), "all"]
    rows = [["3", *ODD, text] for text in ODD]
    table = in_csv(tmp_path / "in.csv", [header, *rows], ["?"])
    output = tmp_path / f"out{suffix}"
    assert sum(write_transformed(table, standard("age"), output)) == len(rows)
    if suffix == ".parquet":
        found = pq.read_table(output)
        assert {str(kind) for kind in found.schema.types[1:]} == {"string"}
        assert [list(row.values()) for row in found.to_pylist()] == [[1.0, *row[1:]] for row in rows]
    else:
        assert read_cells(output) == [header, *(["1", *row[1:]] for row in rows)]


def test_an_empty_cell_and_a_quoted_empty_one_stay_two_things(tmp_path: Path) -> None:
    """As far as the files can tell them apart; both count as missing where they are read."""
    path = tmp_path / "in.csv"
    path.write_text('age,note,sex\n3,"",""\n1,,\n', encoding="utf-8")
    table = DuckDbSource("here", "main", path)
    encoder = FederatedOrdinalEncoder.fitted(["sex"], [SEX])
    assert written(table, encoder, tmp_path / "a.parquet") == {"age": ["3", "1"], "note": ["", None], "sex": [2, 2]}
    assert sum(write_transformed(table, encoder, tmp_path / "b.csv")) == 2
    assert (tmp_path / "b.csv").read_text().splitlines()[1:] == ['3,"",2', "1,,2"]


# DuckDB takes a line that holds only an empty cell for an empty line; so there is always another column.
texts = st.text(st.characters(codec="utf-8", exclude_characters="\0\r"), max_size=6)


@settings(max_examples=30)
@given(notes=st.lists(texts, min_size=1, max_size=8))
def test_any_text_passes_through_a_csv_file(tmp_path_factory: pytest.TempPathFactory, notes: list[str]) -> None:
    """Quotes, commas, line ends and white space included; every cell is quoted, so that there is one way to read it."""
    directory = tmp_path_factory.mktemp("any")
    with (directory / "in.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n", quoting=csv.QUOTE_ALL)
        writer.writerows([["age", "note"], *(["3", note] for note in notes)])
    table = DuckDbSource("here", "main", directory / "in.csv")
    sum(write_transformed(table, standard("age"), directory / "out.csv"))
    assert read_cells(directory / "out.csv") == [["age", "note"], *(["1", note] for note in notes)]


def test_cells_are_quoted_only_where_they_must_be(tmp_path: Path) -> None:
    """Numbers of a column that is left alone are still numbers to every reader; a row of one empty cell is a row."""
    rows = [["age", "a,b", "n"], ["3", 'x "y"', "007"], ["", "plain", "2.50"]]
    sum(write_transformed(in_csv(tmp_path / "in.csv", rows), standard("age"), tmp_path / "out.csv"))
    lines = ['age,"a,b",n', '1,"x ""y""",007', ",plain,2.50"]
    assert (tmp_path / "out.csv").read_text() == "\n".join([*lines, ""])
    alone = in_parquet(tmp_path / "alone.parquet", {"age": [3.0, None]})
    sum(write_transformed(alone, standard("age"), tmp_path / "alone.csv"))
    assert read_cells(tmp_path / "alone.csv") == [["age"], ["1"], [""]]


def test_typed_columns_are_written_as_csv(tmp_path: Path) -> None:
    """Of a Parquet file: each value as one text, which Python reads as the same value."""
    when = dt.datetime(2020, 1, 2, 3, 4, 5)
    columns = {
        "age": [3.0, 1.0],
        "d": pa.array([when.date(), None]),
        "t": pa.array([when, None], pa.timestamp("ms")),
        "m": pa.array([decimal.Decimal("1.10"), None]),
        "c": pa.array(["x, y", None]).dictionary_encode(),
        "b": [True, None],
        "u": pa.array([2**64 - 1, None], pa.uint64()),
        "f": [0.1, math.inf],
    }
    sum(write_transformed(in_parquet(tmp_path / "in.parquet", columns), standard("age"), tmp_path / "out.csv"))
    full = ["1", "2020-01-02", "2020-01-02 03:04:05.000", "1.10", "x, y", "true", str(2**64 - 1), "0.1"]
    assert read_cells(tmp_path / "out.csv")[1:] == [full, ["0", *[""] * 6, "inf"]]


def test_other_columns_of_a_parquet_file_keep_their_types(tmp_path: Path) -> None:
    """Those that DuckDB has no type for included; over several files and row groups."""
    when = dt.datetime(2020, 1, 2, 3, 4, 5)
    columns = {
        "age": [3.0, 1.0, None],
        "a.b": pa.array([1, None, 3], pa.int8()),
        "category": pa.array(["x", "y", "x"]).dictionary_encode(),
        "large": pa.array(["x", None, ""], pa.large_string()),
        "decimal": pa.array([decimal.Decimal("1.10")] * 3, pa.decimal128(30, 2)),
        "unsigned": pa.array([2**64 - 1, 0, 1], pa.uint64()),
        "half": pa.array([1.5, math.inf, -0.0], pa.float32()),
        "zone": pa.array([when] * 3, pa.timestamp("us", "Europe/Berlin")),
        "duration": pa.array([dt.timedelta(days=400)] * 3, pa.duration("us")),
        "day": pa.array([when.date()] * 3),
        "raw": pa.array([b"\xff\x00"] * 3),
        "lists": [[1], [], None],
        "struct": [{"a": 1, "b": "x"}] * 3,
        "truth": [True, None, False],
    }
    table = pa.table(columns)
    for number in range(3):
        pq.write_table(table.slice(number, 1) if number else table, tmp_path / f"in{number}.parquet", row_group_size=2)
    duck = DuckDbSource("here", "main", tmp_path / "in*.parquet")
    assert sum(write_transformed(duck, standard("age"), tmp_path / "out.parquet")) == 5
    expected = pa.concat_tables([table, table.slice(1, 1), table.slice(2, 1)])
    found = pq.read_table(tmp_path / "out.parquet")
    assert found.column("age").to_pylist() == [1.0, 0.0, None, 0.0, None]
    assert found.drop_columns("age").equals(expected.drop_columns("age"))
    assert found.schema.types == table.schema.types


def test_rows_that_are_not_there_are_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that grew shorter between two readers is an error, not a shifted column."""
    table = in_parquet(tmp_path / "in.parquet", {"age": [1.0, 2.0], "id": [1, 2]})
    pq.write_table(pa.table({"age": [1.0], "id": [1]}), tmp_path / "short.parquet")
    monkeypatch.setattr(
        "commonscale.sources.duckdb_files.WrittenRows",
        lambda _, names: WrittenRows([tmp_path / "short.parquet"], names),
    )
    with pytest.raises(UnreadableData, match="changed"):
        written(table, standard("age"), tmp_path / "out.csv")


def test_texts_come_out_of_a_pipeline(tmp_path: Path) -> None:
    """A filled text as text, beside a number, for what pipeline.json says of them."""
    imputer = SimpleImputer(strategy="constant", missing_values=None, fill_value="none", keep_empty_features=True)
    imputer = named(imputer.fit(np.array([["x"], [None]], dtype=object)), ("word",))
    steps = [FittedStep("fill", imputer, True), FittedStep("scale", standard("age"), False)]
    rows = [["word", "age", "id"], ["w", "3.50", "1"], ["?", "?", "2"], ["007", "1", "?"]]
    table = in_csv(tmp_path / "in.csv", rows, ["?"])
    output = tmp_path / "out.csv"
    assert sum(write_transformed(table, assemble(steps), output, table_and_outputs(steps)[1])) == 3
    assert read_cells(output) == [rows[0], ["w", "1.25", "1"], ["none", "", "2"], ["007", "0", "?"]]
    with pytest.raises(ConfigError, match=r"'word' is not a number") as caught:
        written(table, assemble(steps), output)
    assert "none" not in str(caught.value)


def command(*arguments: str | Path) -> str:
    """What the command says, on both streams."""
    done = CliRunner().invoke(app, ["transform", *map(str, arguments)])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.output


ROWS = [["sex", "age", "grade"], ["f", "3", "3"], ["?", "1", ""], ["n/a", "", "1"], ["", "-", "2"]]


def test_the_sites_markers_of_missing_cells_are_known_to_the_command(tmp_path: Path) -> None:
    """From beside the estimator, all steps and one alone; further ones from the command line."""
    in_csv(tmp_path / "in.csv", ROWS[:4])
    save_pipeline(tmp_path, mixed(), "main", ["?"])
    storage.save(FederatedOrdinalEncoder.fitted(["sex"], [SEX]), tmp_path / "2-ordinal.skops")
    arguments = ("-i", tmp_path / "in.csv", "-o", tmp_path / "out.csv")
    said = command("-e", tmp_path / "pipeline.skops", *arguments)
    assert "3 rows written" in said
    assert "only empty cells" not in said
    header, *rows = read_cells(tmp_path / "out.csv")
    place = header.index("sex_missing")
    assert [row[place] for row in rows] == ["0", "1", "0"]
    command("-e", tmp_path / "pipeline.skops", *arguments, "--missing", "n/a")
    assert [row[place] for row in read_cells(tmp_path / "out.csv")[1:]] == ["0", "1", "1"]
    command("-e", tmp_path / "2-ordinal.skops", *arguments)
    assert read_cells(tmp_path / "out.csv") == [ROWS[0], ["0", *ROWS[1][1:]], ["2", *ROWS[2][1:]], ["-1", *ROWS[3][1:]]]


def test_the_markers_of_a_configuration_count_too(tmp_path: Path) -> None:
    """Of the data set that is named, else of the job's."""
    in_csv(tmp_path / "in.csv", ROWS)
    save_pipeline(tmp_path, mixed(), "wards", ["?"])
    tls = '[tls]\ncertificate = "c"\nkey = "k"\nca = "a"\n'
    sources = '[data.main]\npath = "x"\nmissing = ["-"]\n[data.wards]\npath = "x"\nmissing = ["-", "n/a"]\n'
    (tmp_path / "participant.toml").write_text(f'coordinator = "x:1"\n{tls}{sources}', encoding="utf-8")
    arguments = ("-e", tmp_path / "pipeline.skops", "-i", tmp_path / "in.csv", "-o", tmp_path / "out.csv")
    expected = {"wards": ["0", "1", "1", "1"], "main": ["0", "1", "0", "1"]}
    for dataset, missing in (((), expected["wards"]), (("--dataset", "main"), expected["main"])):
        command(*arguments, "--config", tmp_path / "participant.toml", *dataset)
        header, *rows = read_cells(tmp_path / "out.csv")
        assert [row[header.index("sex_missing")] for row in rows] == missing
    with pytest.raises(ConfigError, match="no data set 'other'"):
        command(*arguments, "--config", tmp_path / "participant.toml", "--dataset", "other")


def test_a_file_without_its_record_is_taken_with_a_word(tmp_path: Path) -> None:
    """So that nobody is surprised by a category that is all zeros; a damaged record is an error."""
    in_csv(tmp_path / "in.csv", ROWS[:3])
    storage.save(assemble(mixed()), tmp_path / "alone.skops")
    arguments = ("-e", tmp_path / "alone.skops", "-i", tmp_path / "in.csv", "-o", tmp_path / "out.csv")
    assert "only empty cells count as missing" in command(*arguments)
    assert "only empty cells" not in command(*arguments, "--missing", "?")
    (tmp_path / "pipeline.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"pipeline\.json"):
        command(*arguments)

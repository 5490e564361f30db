"""Encoders: what scikit-learn gives on the pooled column, and the same number for the same value at every site."""

import datetime as dt
import hashlib
import math
import unicodedata
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, TargetEncoder

from commonscale.categories import Dictionary, canonical, text_integer
from commonscale.errors import ConfigError
from commonscale.estimators import storage
from commonscale.estimators.encoder import unique
from commonscale.estimators.encoders import (
    FederatedOneHotEncoder,
    FederatedOrdinalEncoder,
    FederatedTargetEncoder,
)
from commonscale.estimators.text_encoders import (
    BytesNormEncoder,
    FastTextEncoder,
    ModNormEncoder,
    RollingHashEncoder,
    rolling_hash,
    zscore,
)
from tests.unit.test_fasttext import model_bytes, write

LONG = "é" * 5000
WARDS = Dictionary(values=("icu", None, "er", "zz"), identifiers=(0, 3, 4, 5), size=6, infrequent=(1, 5))
SEXES = Dictionary(values=("f", "m"), identifiers=(1, 0), size=2)
ROWS = [["icu", "f"], [None, "m"], ["er", "f"], ["zz", "m"], ["never seen", "x"]]

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
cells = st.one_of(texts, st.none(), st.integers(-20, 20), st.sampled_from(["1.0", "1", " a", "A", "#1", "missing"]))
columns_of_cells = st.lists(cells, min_size=1, max_size=30)


def one(values: list[Any]) -> np.ndarray:
    """A table of one column."""
    found = np.empty((len(values), 1), dtype=object)
    found[:, 0] = values
    return found


def canonical_table(values: list[Any]) -> np.ndarray:
    """What a pooled table would hold; scikit-learn takes a missing value as a category too."""
    return one([canonical(value) for value in values])


def pooled_dictionary(values: list[Any], infrequent: tuple[int, ...] = ()) -> Dictionary:
    """Of all values, in scikit-learn's order: texts sorted, then missing."""
    known = sorted({canonical(value) for value in values}, key=lambda text: (text is None, text or ""))
    return Dictionary(tuple(known), tuple(range(len(known))), len(known), infrequent)


def all_encoders(tmp_path: Path) -> list[Any]:
    """One of each class, fitted for two columns."""
    data = model_bytes(["flu", "</s>"])
    path = write(tmp_path / "m.bin", data)
    columns = ["ward", "sex"]
    return [
        FederatedOneHotEncoder.fitted(columns, [WARDS, SEXES]),
        FederatedOneHotEncoder.fitted(columns, [WARDS, SEXES], sparse_output=True, dtype=np.int8, casefold=True),
        FederatedOrdinalEncoder.fitted(columns, [WARDS, SEXES], unknown_value=math.nan),
        FederatedTargetEncoder.fitted(columns, [{"icu": 0.25, None: 0.1}, {"f": 1.0}], 0.5),
        BytesNormEncoder.fitted(columns, [(text_integer(LONG), 3), (-7, 2)], [(text_integer(LONG) ** 2, 5), (0, 1)]),
        ModNormEncoder.fitted(columns, [3, 2**52]),
        RollingHashEncoder.fitted(columns, buckets=20),
        FastTextEncoder.fitted(columns, str(path), 2, hashlib.sha256(data).hexdigest()),
    ]


def dense(found: Any) -> np.ndarray:
    return found.toarray() if hasattr(found, "toarray") else found


@pytest.mark.parametrize(
    "rows", [np.array([[0.1], [2.5]], dtype=np.float32), pd.DataFrame({"x": np.float32([0.1, 2.5])})]
)
def test_numbers_of_32_bits_are_what_a_person_wrote(rows: Any) -> None:
    """0.1 is the category 0.1, not the 64-bit number beside it."""
    encoder = FederatedOrdinalEncoder.fitted(["x"], [Dictionary(("0.1", "2.5"), (1, 0), 2)])
    np.testing.assert_array_equal(encoder.transform(rows), [[1], [0]])


@given(values=columns_of_cells)
def test_one_hot_is_that_of_the_pooled_column(values: list[Any]) -> None:
    """With all values known, in scikit-learn's order, its matrix; and back again."""
    ours = FederatedOneHotEncoder.fitted(["c"], [pooled_dictionary(values)])
    theirs = OneHotEncoder(sparse_output=False).fit(canonical_table(values))
    np.testing.assert_array_equal(ours.transform(one(values)), theirs.transform(canonical_table(values)))
    np.testing.assert_array_equal(ours.inverse_transform(ours.transform(one(values))), canonical_table(values))


@given(values=columns_of_cells)
def test_ordinals_are_those_of_the_pooled_column(values: list[Any]) -> None:
    """A missing value is a number too, unlike in scikit-learn, where it is the last."""
    dictionary = pooled_dictionary(values)
    ours = FederatedOrdinalEncoder.fitted(["c"], [dictionary])
    theirs = OrdinalEncoder(encoded_missing_value=-5).fit(canonical_table(values))
    expected = theirs.transform(canonical_table(values))
    expected[expected == -5] = dictionary.size - 1
    np.testing.assert_array_equal(ours.transform(one(values)), expected)
    np.testing.assert_array_equal(ours.inverse_transform(expected), canonical_table(values))


@given(values=st.lists(st.sampled_from("abcdef"), min_size=5, max_size=40), least=st.integers(1, 8))
def test_infrequent_values_share_the_last_column(values: list[str], least: int) -> None:
    """As scikit-learn's min_frequency does it."""
    rare = tuple(index for index, value in enumerate(sorted(set(values))) if values.count(value) < least)
    dictionary = pooled_dictionary(values, rare)
    table = one(values)
    theirs = OneHotEncoder(sparse_output=False, min_frequency=least).fit(table)
    ours = FederatedOneHotEncoder.fitted(["c"], [dictionary])
    np.testing.assert_array_equal(ours.transform(table), theirs.transform(table))
    ordinal = OrdinalEncoder(min_frequency=least).fit_transform(table)
    np.testing.assert_array_equal(FederatedOrdinalEncoder.fitted(["c"], [dictionary]).transform(table), ordinal)


@given(values=st.lists(st.sampled_from(["a", "b", "c", ""]), min_size=4, max_size=40), data=st.data())
def test_target_encoding_is_that_of_the_pooled_column(values: list[str], data: st.DataObject) -> None:
    """With scikit-learn's smoothed means as the table, and the target's mean for a value that nobody has."""
    target = np.array(data.draw(st.lists(st.integers(0, 1), min_size=len(values), max_size=len(values))))
    if len(set(target)) < 2:
        target[:2] = [0, 1]
    named = one([value or "empty" for value in values])
    theirs = TargetEncoder(smooth=2.0, target_type="binary").fit(named, target)
    mean = target.mean()
    table = {
        canonical(value): (target[[v == value for v in values]].sum() + 2.0 * mean) / (values.count(value) + 2.0)
        for value in set(values)
    }
    ours = FederatedTargetEncoder.fitted(["c"], [table], mean)
    np.testing.assert_allclose(ours.transform(one(values)), theirs.transform(named), rtol=1e-12)
    assert ours.transform([["never seen"]]).tolist() == [[mean]]


def test_outputs_have_the_same_place_at_every_site() -> None:
    """Two sites hold different values; a shared one has the same column, and both have as many."""
    north = FederatedOneHotEncoder.fitted(["c"], [Dictionary(("flu", "covid"), (0, 1), 4)])
    south = FederatedOneHotEncoder.fitted(["c"], [Dictionary(("mumps", "covid"), (3, 1), 4)])
    assert north.transform([["covid"]]).tolist() == south.transform([["covid"]]).tolist() == [[0, 1, 0, 0]]
    assert list(north.get_feature_names_out()) == ["c_flu", "c_covid", "c_#2", "c_#3"]
    assert list(south.get_feature_names_out()) == ["c_#0", "c_covid", "c_#2", "c_mumps"]


def test_one_hot_of_a_site_with_infrequent_values() -> None:
    """Identifiers 1 and 5 share the last column of the ward; an unknown value has no 1."""
    encoder = FederatedOneHotEncoder.fitted(["ward", "sex"], [WARDS, SEXES])
    assert list(encoder.get_feature_names_out()) == [
        *["ward_icu", "ward_#2", "ward_missing", "ward_er", "ward_infrequent"],
        *["sex_m", "sex_f"],
    ]
    found = encoder.transform(ROWS)
    assert found.tolist() == [
        [1, 0, 0, 0, 0, 0, 1],
        [0, 0, 1, 0, 0, 1, 0],
        [0, 0, 0, 1, 0, 0, 1],
        [0, 0, 0, 0, 1, 1, 0],
        [0, 0, 0, 0, 0, 0, 0],
    ]
    back = encoder.inverse_transform(found).tolist()
    assert back == [["icu", "f"], [None, "m"], ["er", "f"], [None, "m"], [None, None]]


def test_ordinals_of_a_site_with_infrequent_values() -> None:
    """The infrequent share the last number; unknown values have their own."""
    encoder = FederatedOrdinalEncoder.fitted(["ward", "sex"], [WARDS, SEXES])
    assert encoder.transform(ROWS).tolist() == [[0, 1], [2, 0], [3, 1], [4, 0], [-1, -1]]
    odd = [[0, 1], [1, 5], [4, -1], [math.nan, 0.5], [1e300, -math.inf]]
    assert encoder.inverse_transform(odd).tolist() == [["icu", "f"], *[[None, None]] * 4]


def test_unknown_values_may_count_as_infrequent() -> None:
    """Where there are infrequent ones; else they have no 1."""
    encoder = FederatedOneHotEncoder.fitted(["w", "s"], [WARDS, SEXES], handle_unknown="infrequent_if_exist")
    assert encoder.transform([["new", "new"]]).tolist() == [[0, 0, 0, 0, 1, 0, 0]]


@pytest.mark.parametrize("kind", [FederatedOneHotEncoder, FederatedOrdinalEncoder])
def test_an_unknown_value_may_be_an_error_that_does_not_show_it(kind: Any) -> None:
    """The sentence names the column."""
    encoder = kind.fitted(["ward", "sex"], [WARDS, SEXES], handle_unknown="error")
    assert len(encoder.transform(ROWS[:4])) == 4
    with pytest.raises(ValueError, match="'sex'") as caught:
        encoder.transform([["icu", "secret"]])
    assert "secret" not in str(caught.value)


@given(values=st.lists(cells, min_size=1, max_size=20), more=st.lists(cells, min_size=1, max_size=20))
def test_names_are_unique_whatever_the_values_are(values: list[Any], more: list[Any]) -> None:
    """Values that look like our own labels, or like another column's name with its value."""
    special = ["#0", "#1", "=#1", "==#1", "missing", "=missing", "infrequent", "b_#1", "b_c", "b_c=2", None]
    first, second = pooled_dictionary([*values, *special]), pooled_dictionary([*more, "c", "c=2"])
    gaps = Dictionary(first.values, tuple(2 * i for i in first.identifiers), 2 * first.size, (1,))
    names = FederatedOneHotEncoder.fitted(["a", "a_b"], [gaps, second]).get_feature_names_out()
    assert len(set(names)) == len(names) == 2 * first.size + second.size


def test_a_value_that_looks_like_a_label_is_marked() -> None:
    """By a sign of equality before it."""
    dictionary = Dictionary(("#1", "missing", "=x", None, "infrequent"), (0, 2, 3, 4, 5), 7, (6,))
    names = FederatedOneHotEncoder.fitted(["c"], [dictionary]).get_feature_names_out()
    assert list(names) == ["c_=#1", "c_#1", "c_=missing", "c_==x", "c_missing", "c_=infrequent", "c_infrequent"]
    assert unique(["a", "a", "a=2", "b"]) == ["a", "a=3", "a=2", "b"]


SAME = [
    ("NFC and NFD", unicodedata.normalize("NFC", "Ärzte"), unicodedata.normalize("NFD", "Ärzte")),
    ("white space", "flu", "\t flu\u00a0"),
    ("numbers", "1", 1.0),
    ("numbers of numpy", "1", np.int32(1)),
    ("decimal places", "2.50", 2.5),
    ("truth", "true", np.True_),
    ("empty and missing", "", None),
    ("empty and not-a-number", "  ", math.nan),
    ("days", "2024-05-01", dt.date(2024, 5, 1)),
    ("long texts", LONG, unicodedata.normalize("NFD", LONG)),
]


@pytest.mark.parametrize(("left", "right"), [pair[1:] for pair in SAME], ids=[pair[0] for pair in SAME])
def test_the_same_value_has_the_same_code_however_it_is_written(tmp_path: Path, left: Any, right: Any) -> None:
    """In every encoder."""
    dictionary = Dictionary((canonical(left),), (1,), 3)
    ordinal = FederatedOrdinalEncoder.fitted(["c", "d"], [dictionary, dictionary])
    assert ordinal.transform(np.array([[left, right]], dtype=object)).tolist() == [[1, 1]]
    for encoder in all_encoders(tmp_path):
        found = dense(encoder.transform(np.array([[left, left], [right, right]], dtype=object)))
        np.testing.assert_array_equal(found[0], found[1])


def test_case_counts_unless_it_is_folded() -> None:
    """As the step says."""
    plain = FederatedOrdinalEncoder.fitted(["c"], [Dictionary(("flu",), (0,), 1)])
    folded = FederatedOrdinalEncoder.fitted(["c"], [Dictionary(("flu",), (0,), 1)], casefold=True)
    assert plain.transform([["FLU"]]).tolist() == [[-1]]
    assert folded.transform([["FLU"]]).tolist() == [[0]]


def test_equal_cells_of_different_types_stay_apart() -> None:
    """1 and True are one key of a dict, but not one category."""
    encoder = FederatedOrdinalEncoder.fitted(["c"], [Dictionary(("1", "true"), (0, 1), 2)])
    assert encoder.transform(one([1, True, 1.0, "1", "true", np.int64(1)])).ravel().tolist() == [0, 1, 0, 0, 1, 0]


def test_every_encoder_takes_frames_by_name(tmp_path: Path) -> None:
    """In any order of the columns; a name that is missing, unknown or there twice is named. Without names, by place."""
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(ROWS, columns=["ward", "sex"])
    for encoder in all_encoders(tmp_path):
        expected = dense(encoder.transform(ROWS))
        for table in (frame, frame[["sex", "ward"]], pa.table({"sex": frame["sex"], "ward": frame["ward"]})):
            np.testing.assert_array_equal(dense(encoder.transform(table)), expected)
        np.testing.assert_array_equal(dense(encoder.transform(pandas.DataFrame(ROWS))), expected)
        for bad, name in (
            (frame[["ward"]], "missing: 'sex'"),
            (frame.rename(columns={"sex": "Sex"}), "missing: 'sex'"),
            (frame.assign(age=1), "fitted: 'age'"),
            (frame[["ward", "sex", "sex"]], "once: 'sex'"),
        ):
            with pytest.raises(ValueError, match=name):
                encoder.transform(bad)


@given(order=st.permutations(["a", "b", "c"]), rows=st.lists(st.tuples(cells, cells, cells), min_size=1, max_size=8))
def test_the_order_of_a_frames_columns_never_matters(order: list[str], rows: list[tuple[Any, ...]]) -> None:
    """Values of one column are never taken for those of another."""
    pandas = pytest.importorskip("pandas")
    table = {name: [row[place] for row in rows] for place, name in enumerate("abc")}
    encoder = FederatedOneHotEncoder.fitted(list("abc"), [pooled_dictionary(table[name]) for name in "abc"])
    frame = pandas.DataFrame(table, dtype=object)
    np.testing.assert_array_equal(encoder.transform(frame[order]), encoder.transform(np.array(rows, dtype=object)))


def test_cells_of_pandas_are_what_they_mean() -> None:
    """Its own missing values are missing, its times are times, categories and nullable types are their values."""
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(
        {
            "truth": pandas.array([True, None], dtype="boolean"),
            "number": pandas.array([7, None], dtype="Int64"),
            "time": pandas.to_datetime(["2020-01-02 03:04:05", None]),
            "zone": pandas.to_datetime(["2020-01-02 05:04:05+02:00", None]),
            "category": pandas.Categorical(["x", None]),
        }
    )
    when = "2020-01-02 03:04:05"
    known = [Dictionary((value, None), (0, 1), 2) for value in ("true", "7", when, when, "x")]
    encoder = FederatedOrdinalEncoder.fitted(list(frame.columns), known)
    assert encoder.transform(frame).tolist() == [[0] * 5, [1] * 5]
    times = encoder.fitted(["time"], [known[2]])
    assert times.transform(frame[["time"]].to_numpy()).tolist() == [[0], [1]]


def test_arrays_of_texts_and_lists_are_taken() -> None:
    """Whatever numpy makes a table of objects of; nothing else."""
    encoder = FederatedOrdinalEncoder.fitted(["ward", "sex"], [WARDS, SEXES])
    assert encoder.transform(np.array([["icu", "f"]])).tolist() == [[0, 1]]
    assert encoder.transform([("icu", "f")]).tolist() == [[0, 1]]
    assert encoder.transform(np.empty((0, 2), dtype=object)).shape == (0, 2)
    for bad in (["icu", "f"], [["icu"]], "icu"):
        with pytest.raises(ValueError, match="2 columns"):
            encoder.transform(bad)


@given(text=texts.filter(canonical), numbers=st.lists(st.text("ab1é", min_size=1, max_size=12), min_size=2, max_size=9))
def test_bytes_norm_is_the_exact_zscore_rounded_once(text: str, numbers: list[str]) -> None:
    """Of integers that no float holds; compared with fractions of 300 more bits."""
    x = [Fraction(text_integer(number)) for number in numbers]
    mean = sum(x) / len(x)
    variance = sum((value - mean) ** 2 for value in x) / len(x)
    encoder = BytesNormEncoder.fitted(
        ["c"], [(mean.numerator, mean.denominator)], [(variance.numerator, variance.denominator)]
    )
    known = canonical(text)
    assert known is not None
    root = Fraction(math.isqrt(int(variance * 4**300)), 2**300) if variance else Fraction(1)
    expected = float((text_integer(known) - mean) / root)
    assert encoder.transform([[text]])[0, 0] == pytest.approx(expected, rel=2e-16, abs=0)


def test_bytes_norm_of_ten_kilobytes_keeps_all_digits() -> None:
    """Two texts of 10 kB have mean 0 and variance 1, though their last byte alone differs."""
    low, high = text_integer(LONG + "a"), text_integer(LONG + "c")
    encoder = BytesNormEncoder.fitted(["c"], [(low + high, 2)], [((high - low) ** 2, 4)])
    assert encoder.transform([[LONG + "a"], [LONG + "b"], [LONG + "c"], [None]])[:3, 0].tolist() == [-1, 0, 1]
    assert math.isnan(encoder.transform([[""]])[0, 0])


def test_bytes_norm_at_the_edges_of_floats() -> None:
    """No spread counts as 1; beyond float64 is infinite; the nearest float is chosen on both sides of a half."""
    assert zscore(5, (3, 1), (0, 1)) == 2.0
    assert zscore(text_integer(LONG), (0, 1), (0, 1)) == math.inf
    assert zscore(0, (text_integer(LONG), 1), (1, 1)) == -math.inf
    assert zscore(1, (0, 1), (text_integer(LONG), 1)) == 0.0
    assert zscore(2**53 + 1, (0, 1), (1, 1)) == 2.0**53
    assert zscore(2**53 + 1, (-1, 10**40), (1, 1)) == 2.0**53 + 2
    assert zscore(1, (0, 1), (2, 1)) == math.sqrt(0.5)


def test_mod_norm_is_the_remainder_by_twice_the_sum() -> None:
    """Texts as big-endian integers: "ab" is 97 · 256 + 98."""
    encoder = ModNormEncoder.fitted(["c", "d"], [1, 500])
    found = encoder.transform([["ab", "ab"], [None, LONG]])
    assert found[0].tolist() == [0.0, (97 * 256 + 98) % 1000]
    assert math.isnan(found[1, 0])
    assert found[1, 1] == text_integer(LONG) % 1000


def test_the_rolling_hash_of_a_word_by_hand() -> None:
    """H("flu") = 6 · 31 + 12 · 31² + 21 · 31³ = 637,329; mod 5000 that is 2329."""
    assert 6 * 31 + 12 * 961 + 21 * 29_791 == 637_329
    assert rolling_hash("Flu", 31, 5000) == 2329
    found = RollingHashEncoder.fitted(["c"]).transform([["FLU"], [None]])
    assert found.shape == (2, 5000)
    assert np.flatnonzero(found[0]).tolist() == [2329]
    assert not found[1].any()


def test_other_characters_are_spelt_below_the_prime() -> None:
    """A "7" is code point 55 = 2 · 26 + 3: the symbols 27, 1, 1, 1, 3, 4."""
    expected = sum(symbol * 31**i for i, symbol in enumerate([27, 1, 1, 1, 3, 4], start=1))
    assert rolling_hash("7", 31, 10**12) == expected
    codes = [f"{chapter}{number:02}" for chapter in "ABC" for number in range(100)]
    exact = {rolling_hash(code, 31, 2**200) for code in [*codes, *map(str, range(1000)), "é", "発熱", "a b", "ab"]}
    assert len(exact) == 1304


def test_all_columns_share_one_hashed_vector() -> None:
    """A position that two columns hit is 1, dense or sparse."""
    encoder = RollingHashEncoder.fitted(["c", "d"], buckets=50)
    rows = [["a", "a"], ["a", "b"], ["", ""]]
    assert encoder.transform(rows).sum(axis=1).tolist() == [1, 2, 0]
    np.testing.assert_array_equal(
        RollingHashEncoder.fitted(["c", "d"], buckets=50, sparse_output=True).transform(rows).toarray(),
        encoder.transform(rows),
    )


def test_fasttext_vectors_stand_side_by_side(tmp_path: Path) -> None:
    """A missing cell is zeros; a file that is another or gone is an error, and a moved one may be named anew."""
    data = model_bytes(["flu", "</s>"])
    path = write(tmp_path / "m.bin", data)
    encoder = FastTextEncoder.fitted(["c", "d"], str(path), 2, hashlib.sha256(data).hexdigest())
    assert encoder.transform([[None, "</s>"]]).tolist() == [[0, 0, 2, 3]]
    assert list(encoder.get_feature_names_out()) == ["c_0", "c_1", "d_0", "d_1"]
    path.rename(tmp_path / "moved.bin")
    with pytest.raises(ConfigError, match="cannot be read"):
        encoder.transform([["a", "b"]])
    assert encoder.set_params(model=str(tmp_path / "moved.bin")).transform([[None, "</s>"]]).shape == (1, 4)
    write(tmp_path / "moved.bin", data + b"0")
    with pytest.raises(ConfigError, match="agreed"):
        encoder.transform([["a", "b"]])


def test_every_encoder_survives_its_file(tmp_path: Path) -> None:
    """Saved and loaded, it transforms as before and has the same names."""
    rows = [*ROWS, [LONG, 7], [None, math.nan]]
    for number, encoder in enumerate(all_encoders(tmp_path)):
        storage.save(encoder, tmp_path / f"{number}.skops")
        again = storage.load(tmp_path / f"{number}.skops")
        np.testing.assert_array_equal(dense(again.transform(rows)), dense(encoder.transform(rows)))
        assert list(again.get_feature_names_out()) == list(encoder.get_feature_names_out())
        assert repr(again.get_params()) == repr(encoder.get_params())


def test_every_encoder_is_like_one_of_scikit_learn(tmp_path: Path) -> None:
    """Its outputs have names, fit changes nothing, a clone is not fitted and says who fits it."""
    for encoder in all_encoders(tmp_path):
        assert encoder.n_features_in_ == len(encoder.feature_names_in_) == 2
        found = encoder.set_output(transform="default").fit(ROWS).transform(ROWS)
        names = list(encoder.get_feature_names_out(["ward", "sex"]))
        assert found.shape == (5, len(names))
        assert len(set(names)) == len(names)
        with pytest.raises(ValueError, match="feature_names_in_"):
            encoder.get_feature_names_out(["a", "b"])
        for call in (clone(encoder).transform, clone(encoder).fit):
            with pytest.raises(NotFittedError, match="a job between the sites"):
                call(ROWS)


@pytest.mark.parametrize(
    "make",
    [
        lambda: FederatedOneHotEncoder.fitted(["a"], []),
        lambda: FederatedOneHotEncoder.fitted([], []),
        lambda: FederatedOneHotEncoder.fitted(["a", "a"], [SEXES, SEXES]),
        lambda: FederatedOneHotEncoder.fitted(["a"], [SEXES], handle_unknown="no"),
        lambda: FederatedOneHotEncoder.fitted(["a"], [Dictionary(("x",), (2,), 2)]),
        lambda: FederatedOneHotEncoder.fitted(["a"], [Dictionary(("x", "x"), (0, 1), 2)]),
        lambda: FederatedOneHotEncoder.fitted(["a"], [Dictionary(("x", "y"), (0, 0), 2)]),
        lambda: FederatedOneHotEncoder.fitted(["a"], [Dictionary(("x",), (0,), 2, (2,))]),
        lambda: FederatedOrdinalEncoder.fitted(["a"], [SEXES], handle_unknown="ignore"),
        lambda: FederatedOrdinalEncoder.fitted(["a"], [SEXES], unknown_value=1),
        lambda: FederatedOrdinalEncoder.fitted(["a"], [SEXES], unknown_value=math.nan, dtype=np.int64),
        lambda: FederatedTargetEncoder.fitted(["a"], [], 0.5),
        lambda: BytesNormEncoder.fitted(["a"], [(1, 0)], [(1, 1)]),
        lambda: BytesNormEncoder.fitted(["a"], [(1, 1)], [(-1, 1)]),
        lambda: BytesNormEncoder.fitted(["a"], [(1, 1)], []),
        lambda: ModNormEncoder.fitted(["a"], [0]),
        lambda: RollingHashEncoder.fitted(["a"], prime=23),
        lambda: RollingHashEncoder.fitted(["a"], buckets=0),
    ],
)
def test_results_that_do_not_fit_make_no_encoder(make: Any) -> None:
    """A sentence instead."""
    with pytest.raises(ValueError, match=r"\.$"):
        make()


def test_a_column_that_no_site_holds_a_value_of() -> None:
    """Has no outputs, and every value is unknown."""
    encoder = FederatedOneHotEncoder.fitted(["a", "b"], [Dictionary((), (), 0), SEXES])
    assert encoder.transform([["x", "f"]]).tolist() == [[0, 1]]
    assert encoder.inverse_transform([[0, 1]]).tolist() == [[None, "f"]]


def test_a_million_rows_are_encoded_by_their_distinct_values() -> None:
    """One look-up a row, not one normalization."""
    values = np.array(["icu", None, "er", 7, "  icu"], dtype=object)
    rows = values[np.arange(1_000_000) % 5].reshape(-1, 1)
    found = FederatedOrdinalEncoder.fitted(["ward"], [WARDS]).transform(rows)
    assert found[:5, 0].tolist() == [0, 2, 3, -1, 0]
    assert found.sum() == 200_000 * 4

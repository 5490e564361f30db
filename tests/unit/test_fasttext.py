"""The reader of fastText models: the vectors of fastText itself, and a sentence for every bad file."""

import hashlib
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commonscale.errors import ConfigError
from commonscale.estimators.fasttext import Model, verified

VOCABULARY = ["</s>", "flu", "fever", "fièvre", "発熱", "grün"]
# In the vocabulary, outside it, one letter, not ASCII, outside the first Unicode plane, long.
WORDS = [*VOCABULARY, "fevers", "grünlich", "熱", "x", "007", "💊pill", "ab" * 20]
SKIPGRAM, SUPERVISED = 2, 3
NGRAMS = {"usual": (3, 6), "short": (1, 3), "none": (0, 0), "one": (4, 4)}


def model_bytes(vocabulary: list[str], **changes: Any) -> bytes:
    """A file in fastText's layout, with one label and some fields changed."""
    field = {"magic": 793712314, "version": 12, "dim": 2, "model": SKIPGRAM, "bucket": 3, "minn": 1, "maxn": 2}
    field |= {
        "size": len(vocabulary) + 1,
        "words": len(vocabulary),
        "labels": 1,
        "pruned": [],
        "quantized": 0,
    } | changes
    # Negative sampling, or softmax over labels.
    loss = 3 if field["model"] == SUPERVISED else 2
    numbers = (field["dim"], 5, 5, 1, 5, 1, loss, field["model"], field["bucket"], field["minn"], field["maxn"], 100)
    head = struct.pack("<ii12id", field["magic"], field["version"], *numbers, 1e-4)
    sizes = (field["size"], field["words"], field["labels"], 9, field.get("pruned_size", len(field["pruned"]) or -1))
    entries = [(word, 0) for word in vocabulary] + [("__label__a", 1)] * max(0, field["labels"])
    listed = b"".join(word.encode() + b"\0" + struct.pack("<qb", 1, kind) for word, kind in entries)
    pruned = b"".join(struct.pack("<ii", *pair) for pair in field["pruned"])
    rows, columns = field.get("rows", len(vocabulary) + max(0, field["bucket"])), field.get("columns", field["dim"])
    cells = field.get("cells")
    if cells is None:
        cells = np.arange(rows * columns, dtype="<f4") if 0 <= rows * columns < 1e6 else np.zeros(0, dtype="<f4")
    matrix = struct.pack("<bqq", field["quantized"], rows, columns) + cells.tobytes()
    return head + struct.pack("<iiiqq", *sizes) + listed + pruned + matrix


def saved_by_fasttext(directory: Path, **changes: Any) -> tuple[Any, Path]:
    """A model of random numbers that fastText has read and written; not trained, for its training is not repeatable."""
    fasttext = pytest.importorskip("fasttext")
    rows = len(VOCABULARY) + 300
    cells = np.random.default_rng(7).normal(size=(rows, 8)).astype("<f4")
    outputs = 1 if changes.get("model") == SUPERVISED else len(VOCABULARY)
    output = struct.pack("<bqq", 0, outputs, 8) + np.ones((outputs, 8), dtype="<f4").tobytes()
    made = model_bytes(VOCABULARY, dim=8, bucket=300, rows=rows, cells=cells, **changes) + output
    model = fasttext.load_model(str(write(directory / "made.bin", made)))
    model.save_model(str(directory / "saved.bin"))
    return model, directory / "saved.bin"


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """One model for many words."""
    return saved_by_fasttext(tmp_path_factory.mktemp("shared"), minn=2, maxn=4)


@pytest.fixture(scope="session")
def good() -> bytes:
    """A model of two words, a label and three buckets."""
    return model_bytes(["flu", "</s>"])


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("ngrams", NGRAMS.values(), ids=list(NGRAMS))
@pytest.mark.parametrize("model", [SKIPGRAM, SUPERVISED])
def test_vectors_are_those_of_fasttext(tmp_path: Path, model: int, ngrams: tuple[int, int]) -> None:
    """Of words that it knows, of words that it does not, and of words that are not ASCII."""
    theirs, path = saved_by_fasttext(tmp_path, model=model, minn=ngrams[0], maxn=ngrams[1])
    ours = Model(path)
    for word in WORDS:
        np.testing.assert_allclose(ours.vector(word), theirs.get_word_vector(word), atol=1e-6, err_msg=word)


@given(
    word=st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(
        lambda text: len(text.split()) == 1 and text == text.strip()
    )
)
def test_any_word_has_the_vector_of_fasttext(shared: tuple[Any, Path], word: str) -> None:
    """Whatever its characters are."""
    np.testing.assert_allclose(Model(shared[1]).vector(word), shared[0].get_word_vector(word), atol=1e-6)


def test_a_word_of_ten_kilobytes_has_a_vector(shared: tuple[Any, Path]) -> None:
    """The one of fastText, up to its rounding: it adds tens of thousands of rows in single precision."""
    word = "Größe" * 1700
    np.testing.assert_allclose(Model(shared[1]).vector(word), shared[0].get_word_vector(word), atol=1e-3)


def test_several_words_have_the_mean_of_their_vectors(tmp_path: Path) -> None:
    """However many spaces are between them."""
    theirs, path = saved_by_fasttext(tmp_path, minn=2, maxn=5)
    expected = (theirs.get_word_vector("flu") + theirs.get_word_vector("fevers")) / 2
    np.testing.assert_allclose(Model(path).vector("flu  fevers"), expected, atol=1e-6)
    np.testing.assert_array_equal(Model(path).vector(" "), np.zeros(8))


def test_a_quantized_model_is_refused(tmp_path: Path) -> None:
    """Its vectors are not the ones that the sites agreed on."""
    theirs, _ = saved_by_fasttext(tmp_path, model=SUPERVISED)
    theirs.quantize()
    theirs.save_model(str(tmp_path / "model.ftz"))
    with pytest.raises(ValueError, match="quantized"):
        Model(tmp_path / "model.ftz")


def test_the_end_of_sentence_has_no_ngrams(good: bytes, tmp_path: Path) -> None:
    """Its vector is its own row; that of a word is a mean over more rows."""
    model = Model(write(tmp_path / "m.bin", good))
    assert model.vector("</s>").tolist() == [2.0, 3.0]
    assert model.vector("flu").tolist() != [0.0, 1.0]


def test_pruned_ngrams_count_for_nothing(tmp_path: Path) -> None:
    """Only those that were kept have rows."""
    none = Model(write(tmp_path / "m.bin", model_bytes(["flu", "</s>"], pruned_size=0)))
    assert none.vector("flu").tolist() == [0.0, 1.0]
    assert none.vector("covid").tolist() == [0.0, 0.0]
    one = Model(write(tmp_path / "one.bin", model_bytes(["flu", "</s>"], pruned=[(0, 2), (1, 2), (2, 2)])))
    assert one.vector("covid").tolist() == [8.0, 9.0]


def test_an_old_supervised_model_has_no_ngrams(tmp_path: Path) -> None:
    """Version 11 wrote a length for them that it had not used."""
    model = Model(write(tmp_path / "m.bin", model_bytes(["flu", "</s>"], version=11, model=3)))
    assert model.vector("flu").tolist() == [0.0, 1.0]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"magic": 1}, "start"),
        ({"version": 13}, "version is 13"),
        ({"dim": 0}, "arguments"),
        ({"dim": -1}, "arguments"),
        ({"bucket": -5}, "arguments"),
        ({"bucket": 0}, "arguments"),
        ({"maxn": 2**31 - 1}, "arguments"),
        ({"size": 2**31 - 1, "words": 2**31 - 2}, "dictionary"),
        ({"size": -1}, "dictionary"),
        ({"words": 1}, "dictionary"),
        ({"words": 1, "labels": 2}, "words, then labels"),
        ({"pruned_size": 2**62}, "cut off"),
        ({"pruned": [(0, -7)]}, "fit"),
        ({"pruned": [(0, 2**31 - 1)]}, "fit"),
        ({"rows": 2**62}, "matrix"),
        ({"rows": -1}, "matrix"),
        ({"rows": 4}, "fit"),
        ({"columns": 3}, "matrix"),
        ({"bucket": 2**31 - 1, "rows": 5}, "fit"),
        ({"quantized": 1}, "quantized"),
    ],
)
def test_absurd_fields_are_refused_with_a_sentence(tmp_path: Path, changes: dict[str, Any], why: str) -> None:
    """Before anything of their size is made."""
    with pytest.raises(ValueError, match=why):
        Model(write(tmp_path / "m.bin", model_bytes(["flu", "</s>"], **changes)))


def test_a_file_cut_off_anywhere_is_refused(good: bytes, tmp_path: Path) -> None:
    """Even in its last byte."""
    for length in range(len(good)):
        with pytest.raises(ValueError, match="not a fastText model"):
            Model(write(tmp_path / f"{length}.bin", good[:length]))


@settings(max_examples=200)
@given(data=st.binary(max_size=200), at=st.integers(0, 250), keep=st.booleans())
def test_random_bytes_are_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, good: bytes, data: bytes, at: int, keep: bool
) -> None:
    """In place of the file or somewhere in it: never another error."""
    made = good[:at] + data[:8] + good[at + len(data[:8]) :] if keep else data
    path = write(tmp_path_factory.getbasetemp() / "random.bin", made)
    outcome = ""
    try:
        model = Model(path)
    except ValueError as error:
        outcome = str(error)
    # The numbers in the matrix may be anything.
    with np.errstate(all="ignore"):
        assert "not a fastText model" in outcome or model.vector("flu covid").shape == (model.dimension,)


def test_a_model_is_opened_only_with_its_hash(good: bytes, tmp_path: Path) -> None:
    """Another file, or none, is a sentence for the site's administrator."""
    path = write(tmp_path / "m.bin", good)
    assert verified(path, hashlib.sha256(good).hexdigest()).dimension == 2
    with pytest.raises(ConfigError, match="agreed"):
        verified(path, "00" * 32)
    with pytest.raises(ConfigError, match="No such file"):
        verified(tmp_path / "none.bin", "00" * 32)

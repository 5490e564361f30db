"""Word vectors from a fastText model file (`.bin`), which is mapped, not loaded: the usual ones have 7 GB.

The file (fastText 0.9.2, `FastText::saveModel`), all little-endian: magic and version, training arguments, dictionary
(words, then labels), one byte for "quantized", the input matrix, and an output matrix that is of no use here.
A file is not trusted: whatever its bytes are, it is read or it is a ValueError.
"""

import functools
import hashlib
import mmap
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from commonscale.errors import ConfigError

_MAGIC = 793712314
# 11 has the same layout.
_VERSIONS = (11, 12)
_SUPERVISED = 3
_END_OF_SENTENCE = b"</s>"
# Far above what fastText is trained with, and low enough to bound the work on a word.
_MAX_NGRAM = 64
_MAX_WORD_BYTES = 1 << 20


class Model:
    """The input side of a fastText model: vectors of words and of their character n-grams."""

    def __init__(self, path: Path) -> None:
        if path.stat().st_size == 0:
            raise _bad("it is empty")
        with path.open("rb") as file:
            read = _Reader(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        self.dimension, self._buckets, self._shortest, self._longest = _arguments(read)
        self._words, self._pruned = _dictionary(read)
        ngrams = self._buckets if self._pruned is None else max(self._pruned.values(), default=-1) + 1
        self._matrix = _matrix(read, self.dimension, len(self._words) + (ngrams if self._longest else 0))

    def vector(self, text: str) -> npt.NDArray[np.float64]:
        """Of one word as fastText's get_word_vector; of several, the mean of theirs; zeros of none."""
        words = [self._word_vector(word.encode()) for word in text.split()]
        return np.mean(words, axis=0) if words else np.zeros(self.dimension)

    def _word_vector(self, word: bytes) -> npt.NDArray[np.float64]:
        rows = list(self._rows(word))
        return self._matrix[rows].mean(axis=0, dtype=np.float64) if rows else np.zeros(self.dimension)

    def _rows(self, word: bytes) -> Iterator[int]:
        """The word's own row, if it has one, and those of its n-grams."""
        known = self._words.get(word)
        if known is not None:
            yield known
        if word == _END_OF_SENTENCE or self._longest == 0:
            return
        for ngram in _ngram_hashes(b"<" + word + b">", self._shortest, self._longest):
            bucket = ngram % self._buckets
            row = bucket if self._pruned is None else self._pruned.get(bucket)
            if row is not None:
                yield len(self._words) + row


def sha256_of(path: Path) -> str:
    """Once a state of the file: to hash gigabytes takes a while."""
    status = path.stat()
    return _sha256(path, status.st_size, status.st_mtime_ns)


@functools.lru_cache(maxsize=16)
def _sha256(path: Path, _size: int, _changed_ns: int) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


@functools.lru_cache(maxsize=2)
def _opened(path: Path, _sha256: str) -> Model:
    return Model(path)


def verified(path: Path, sha256: str) -> Model:
    """The model in a file, if the file has this hash."""
    try:
        if sha256_of(path) == sha256:
            return _opened(path, sha256)
    except OSError as error:
        raise ConfigError(
            f"The fastText model {path} cannot be read: {error.strerror}.", "Set `model` to where the file is."
        ) from None
    raise ConfigError(
        f"The fastText model {path} is not the one that the sites agreed on.",
        "Put the file with the agreed SHA-256 there.",
    )


def _ngram_hashes(word: bytes, shortest: int, longest: int) -> Iterator[int]:
    """FNV-1a of every n-gram of whole characters, as `Dictionary::computeSubwords`."""
    starts = [at for at, byte in enumerate(word) if byte & 0xC0 != 0x80]
    starts.append(len(word))
    last = len(starts) - 1
    for first in range(last):
        found = 2166136261
        for end in range(first + 1, min(first + longest, last) + 1):
            for byte in word[starts[end - 1] : starts[end]]:
                # fastText takes bytes as signed: those of a non-ASCII character set all upper bits.
                found = ((found ^ (byte if byte < 128 else byte | 0xFFFFFF00)) * 16777619) & 0xFFFFFFFF
            alone = end - first == 1 and (first == 0 or end == last)
            if end - first >= shortest and not alone:
                yield found


class _Reader:
    """Values from a mapped file, one after another."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.at = 0

    @property
    def left(self) -> int:
        return len(self.data) - self.at

    def values(self, layout: str) -> tuple[Any, ...]:
        size = struct.calcsize("<" + layout)
        if self.left < size:
            raise _bad("it is cut off")
        self.at += size
        return struct.unpack_from("<" + layout, self.data, self.at - size)

    def word(self) -> bytes:
        end = self.data.find(b"\0", self.at, self.at + _MAX_WORD_BYTES)
        if end < 0:
            raise _bad("a word in its dictionary has no end")
        start, self.at = self.at, end + 1
        return self.data[start:end]


def _arguments(read: _Reader) -> tuple[int, int, int, int]:
    """Of the training, as far as vectors depend on them: dimension, buckets, shortest and longest n-gram."""
    magic, version = read.values("ii")
    if magic != _MAGIC:
        raise _bad("it does not start as one")
    if version not in _VERSIONS:
        raise _bad(f"its version is {version}, not 12")
    dimension, *_, model, buckets, shortest, longest, _, _ = read.values("12id")
    if version == 11 and model == _SUPERVISED:
        # Such models were trained without n-grams, whatever they say.
        longest = 0
    if dimension < 1 or buckets < 0 or not 0 <= longest <= _MAX_NGRAM or (longest and not buckets):
        raise _bad("its arguments make no sense")
    return dimension, buckets, shortest, longest


def _dictionary(read: _Reader) -> tuple[dict[bytes, int], dict[int, int] | None]:
    """Rows of words, and rows of the n-grams that were kept; None if all were."""
    size, words, labels, _, pruned = read.values("iiiqq")
    # An entry has at least the word's end, a count and a kind.
    if min(size, words, labels) < 0 or words + labels != size or size * 10 > read.left:
        raise _bad("the size of its dictionary makes no sense")
    rows: dict[bytes, int] = {}
    for row in range(size):
        word = read.word()
        _, kind = read.values("qb")
        if kind != (row >= words):
            raise _bad("its dictionary is not words, then labels")
        if row < words:
            rows[word] = row
    if len(rows) != words:
        raise _bad("a word is twice in its dictionary")
    if pruned < 0:
        return rows, None
    kept = dict(read.values("ii") for _ in range(pruned))
    if min(kept.values(), default=0) < 0:
        raise _bad("an n-gram in its dictionary does not fit any row")
    return rows, kept


def _matrix(read: _Reader, dimension: int, needed: int) -> npt.NDArray[np.float32]:
    """A view of the file; only rows that are used are read."""
    if read.values("b") != (0,):
        raise _bad("it is quantized, and only full models can be used")
    rows, columns = read.values("qq")
    if columns != dimension or rows < 1 or rows * columns * 4 > read.left:
        raise _bad("its matrix is cut off, or its size makes no sense")
    if rows < needed:
        raise _bad("its matrix does not fit its dictionary")
    return np.ndarray((rows, columns), dtype="<f4", buffer=read.data, offset=read.at)


def _bad(why: str) -> ValueError:
    return ValueError(f"This is not a fastText model that can be used: {why}.")

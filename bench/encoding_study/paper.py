"""What the paper prints: F1 of Tables 1 and 3 for the three data sets, and the costs of Table 5."""

from collections.abc import Callable
from dataclasses import dataclass

# By data set, in the order of the columns.
TABLE_1_COLUMNS = ("local", "uniform-encoding", "uniform-scaling", "server")
TABLE_1 = {
    "adult": (0.60, 0.66, 0.65, 0.69),
    "german": (0.30, 0.77, 0.56, 0.79),
    "law-school": (0.69, 0.69, 0.70, 0.71),
}
TABLE_3_COLUMNS = (
    "server", "psi", "local", "ring", "bytes-norm", "mod-norm", "fasttext", "rolling-hash", "target-local",
    "target-federated",
)  # fmt: skip
# Federated target encoding is named there, and not measured.
TABLE_3 = {
    "adult": (0.69, 0.69, 0.60, 0.50, 0.0, 0.30, 0.62, 0.65, 0.69, None),
    "german": (0.79, 0.79, 0.30, 0.55, 0.0, 0.53, 0.75, 0.31, 0.55, None),
    "law-school": (0.71, 0.71, 0.69, 0.46, 0.53, 0.56, 0.66, 0.69, 0.67, None),
}


def f1(dataset: str, method: str) -> float | None:
    """The F1 of a method, from either table; None where there is none."""
    for columns, table in ((TABLE_3_COLUMNS, TABLE_3), (TABLE_1_COLUMNS, TABLE_1)):
        if dataset in table and method in columns:
            return table[dataset][columns.index(method)]
    return None


@dataclass(frozen=True)
class Cost:
    """A line of Table 5: messages of n sites, what they are in numbers, and what becomes known.

    The table's loss is the mean over five data sets of the server's F1 minus the method's.
    """

    messages: str
    count: Callable[[int], int] | None
    dimension: str
    loss: float
    shared: str


UNIQUE = "about the number of distinct values of a column"
TABLE_5 = {
    "local": Cost("O(1)", None, "|N| + one-hot", 0.154, "widths"),
    # Without exponents in our copy of the text: "4n - 2n - 1"; a ring and n(n - 1) executions of 4 messages.
    "psi (apsi)": Cost(
        "4n² - 2n - 1", lambda n: 4 * n * n - 2 * n - 1, "|N| + one-hot", 0.0, f"{UNIQUE}; intersections"
    ),
    "psi (ot-mp-psi)": Cost(
        "8n - 7 + sum of (n - i)",
        lambda n: 8 * n - 7 + n * (n - 1) // 2,
        "|N| + one-hot",
        0.0,
        f"{UNIQUE}; intersections",
    ),
    "ring": Cost("2n - 1", lambda n: 2 * n - 1, "|N| + one-hot", 0.182, UNIQUE),
    "bytes-norm": Cost("2n - 2", lambda n: 2 * n - 2, "|V|", 0.526, "z-score statistics"),
    "mod-norm": Cost("4n - 4", lambda n: 4 * n - 4, "|V|", 0.194, UNIQUE),
    "fasttext": Cost("O(1)", None, "|N| + embedding", 0.038, "nothing"),
    "rolling-hash": Cost("O(1)", None, "|N| + 5000", 0.11, "nothing"),
    "target-local": Cost("O(1)", None, "|V|", 0.076, "nothing"),
}

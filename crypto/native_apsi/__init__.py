"""Labeled PSI by Microsoft's APSI, through the PyPI package `apsi`: an optional backend, in a child process.

The package dies of SIGILL on a CPU without AVX-512, crashes or hangs on damaged bytes, prints to the standard output
and keeps its keys to itself. So it is never loaded here: a child process a peer and role has it, and is killed at the
first thing that is wrong.

gate     whether this machine can run it
child    the program of the child process, and its frames
process  the child from outside: Holder, Querier

1. querier  blinds its items                          Querier.request
2. holder   puts its items with labels into a fresh
            database; multiplies the blinded ones     Holder.open, Holder.oprf
3. querier  unblinds; encrypts powers of its items    Querier.query
4. holder   evaluates its polynomials                 Holder.query
5. querier  decrypts: labels of the common items      Querier.extract

Both sets are filled up to a public bound with random items: neither the number of blinded points nor that of bundles in
an answer shows how many are real.
"""

from crypto.native_apsi.gate import EXTRA, UnavailableError, available
from crypto.native_apsi.process import (
    LARGEST_LABEL,
    LARGEST_SET,
    BadOutputError,
    ChildError,
    CrashError,
    Holder,
    Querier,
    RejectedError,
    TimeLimitError,
)

__all__ = [
    "EXTRA",
    "LARGEST_LABEL",
    "LARGEST_SET",
    "BadOutputError",
    "ChildError",
    "CrashError",
    "Holder",
    "Querier",
    "RejectedError",
    "TimeLimitError",
    "UnavailableError",
    "available",
]

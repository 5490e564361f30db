"""What can go wrong at a worker, as a code that may leave the site and a sentence that stays there."""

from __future__ import annotations

import traceback


class WorkerError(Exception):
    """Something that a person can put right; its text is a sentence for them."""

    code = "other"


class ModelError(WorkerError):
    """The model cannot do what the job asks."""

    code = "model"


class Unsuitable(ModelError):
    """The model is not made for this kind of target; for another kind it may be right."""


class BatchnormUnset(ModelError):
    """The network has BatchNorm layers, and the job does not say what becomes of their statistics."""


class DataError(WorkerError):
    """The job's data cannot be used."""

    code = "data"


class Diverged(WorkerError):
    """Weights or losses are no longer finite numbers."""

    code = "diverged"


class Cancelled(Exception):
    """The participant no longer wants the result; raised in the model's code by its own progress report."""


class Rejected(WorkerError):
    """The participant does not take this worker."""


def code_of(error: BaseException) -> str:
    """The word of a failure that may leave the site."""
    if isinstance(error, WorkerError):
        return error.code
    # torch raises its own types when memory runs out.
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return "memory"
    if isinstance(error, RuntimeError) and "can't allocate memory" in str(error):
        return "memory"
    return "model"


def text_of(error: BaseException) -> str:
    """The last line of the traceback, or the sentence of an error of ours."""
    if isinstance(error, WorkerError):
        return str(error)
    return traceback.format_exception_only(type(error), error)[-1].strip()

"""What a site keeps of a training: the model as a safetensors file, and a card that says where it comes from.

A safetensors file is the length of a JSON header as eight bytes, the header (name, type, shape and place of each
tensor), and the tensors' bytes side by side: nothing in it can be run.
"""

import hashlib
import json
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from commonscale.hidden import known
from commonscale.statistics.training.model_state import Model
from commonscale.statistics.training.worker import Ready
from commonscale.version import __version__

if TYPE_CHECKING:
    from commonscale.statistics.training.rounds import Trained
    from commonscale.transforms.training import Train

MODEL_FILE, CARD_FILE = "model.safetensors", "model-card.json"
# Of a model that goes to the analyst with the job's result.
MAX_PUBLISHED_PARAMETERS = 4_000_000
_TYPES = {"float32": "F32", "float64": "F64"}


def _tensors(precision: str, ready: Ready, model: Model) -> dict[str, NDArray[Any]]:
    """The trained tensors by name, in the workers' precision; running statistics of BatchNorm layers in double."""
    found: dict[str, NDArray[Any]] = {}
    start = 0
    for name, shape in ready.tensors:
        size = int(np.prod(shape, dtype=np.int64))
        found[name] = model.weights[start : start + size].astype(precision).reshape(shape)
        start += size
    start = 0
    for layer in ready.layers:
        here = slice(start, start + layer.channels)
        found[f"{layer.name}.running_mean"] = model.statistics.mean[here]
        found[f"{layer.name}.running_var"] = model.statistics.variance[here]
        start += layer.channels
    return found


def safetensors(options: "Train", ready: Ready, model: Model) -> bytes:
    """As that format's library writes them; the same bytes at every site."""
    tensors = _tensors(options.precision, ready, model)
    header: dict[str, Any] = {"__metadata__": {"model": options.model}}
    start = 0
    for name, tensor in tensors.items():
        place = [start, start + tensor.nbytes]
        header[name] = {"dtype": _TYPES[tensor.dtype.name], "shape": list(tensor.shape), "data_offsets": place}
        start += tensor.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    raw = [np.ascontiguousarray(tensor.astype(tensor.dtype.newbyteorder("<"))).tobytes() for tensor in tensors.values()]
    return b"".join([len(text).to_bytes(8, "little"), text, *raw])


def model_files(options: "Train", fitted: "Trained", job_id: str) -> dict[str, bytes]:
    """Both files."""
    content = safetensors(options, known(fitted.ready), known(fitted.model))
    card = {
        "job": job_id,
        "model": options.model,
        # Of the code that was trained, as the site has pinned it; of the file beside this one.
        "model_digest": known(fitted.ready).digest,
        "sha256": hashlib.sha256(content).hexdigest(),
        "target": options.target,
        "classes": options.classes,
        "columns": options.columns,
        "rows": fitted.sizes.rows,
        "evaluation_rows": fitted.sizes.evaluation_rows,
        "parameters": fitted.sizes.parameters,
        "sites": list(fitted.sites),
        "lost": list(fitted.history.lost),
        "batchnorm_statistics": _where_statistics_are(options),
        "after": options.after or None,
        "rounds": fitted.history.rounds,
        "stopped_early": fitted.history.stopped,
        "training": options.model_dump(
            mode="json", exclude={"columns", "target", "classes", "model", "transform", "after"}
        ),
        "metrics": [one.plain() for one in fitted.history.metrics],
        "software": f"commonscale {__version__}",
    }
    return {MODEL_FILE: content, CARD_FILE: json.dumps(card, indent=2).encode()}


def _where_statistics_are(options: "Train") -> str:
    words = {"": "none", "local": "not in the file: each site's own, in its worker's memory only"}
    return words.get(options.batchnorm, "in the file")

"""The process with torch: descriptions of runs come in as lines of JSON, one at a time, and results go out likewise.

python -m bench.batchnorm_study.runs DATA SIDE

Needs numpy, torch, the worker's package, and of commonscale only what needs no more than numpy.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TextIO

import torch

from bench.batchnorm_study import data, example, federated
from bench.batchnorm_study.plan import Example, Run


def main(directory: Path, side: int, lines: TextIO, results: TextIO) -> None:
    """Until there are no more lines; images are read when the first run needs them."""
    # As many processes as the machine has cores do more than threads that wait for each other.
    torch.set_num_threads(1)
    images: data.Images | None = None
    for line in lines:
        wanted = json.loads(line)
        if "gamma" in wanted:
            found = example.errors(Example(**wanted))
        else:
            images = images or data.load(directory, side)
            found = federated.train(Run.from_plain(wanted), images)
        print(json.dumps(found), file=results, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.stdin, sys.stdout)

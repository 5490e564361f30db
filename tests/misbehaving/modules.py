"""A daemon that writes down, when it ends, which modules it has loaded.

python -m tests.misbehaving.modules coordinator --config …
"""

import atexit
import json
import os
import sys
from pathlib import Path

from commonscale.cli import main


@atexit.register
def _note() -> None:
    Path(os.environ["MODULES_FILE"]).write_text(json.dumps(sorted(sys.modules)))


main()

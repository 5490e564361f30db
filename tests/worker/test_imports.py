"""Every module of the package loads on the Python that it is said to be for."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys

import commonscale_worker
import pytest

NEED_TORCH = {"commonscale_worker.torch_model", "commonscale_worker.batchnorm"}
MODULES = [
    found.name
    for found in pkgutil.walk_packages(commonscale_worker.__path__, "commonscale_worker.")
    if not found.name.endswith("__main__")
]


@pytest.mark.parametrize("name", MODULES)
def test_a_module_loads(name: str) -> None:
    """Annotations of newer Pythons and all."""
    if name in NEED_TORCH:
        pytest.importorskip("torch")
    assert importlib.import_module(name).__doc__ or name.endswith((".v1", "_pb2"))


def test_the_codec_needs_no_framework() -> None:
    """The participant has neither torch nor scikit-learn in mind."""
    code = "import sys, commonscale_worker.wire; sys.exit(bool({'torch', 'sklearn'} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

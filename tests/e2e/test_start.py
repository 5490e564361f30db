"""What a real daemon has loaded once it serves."""

from pathlib import Path

import psutil
import pytest

from commonscale.localnet import LocalFederation


def test_a_started_coordinator_holds_no_library_that_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither scikit-learn nor SciPy nor pyarrow nor OpenFHE is in its memory; gRPC is, so one would be seen."""
    monkeypatch.setattr(LocalFederation, "forks", False)
    federation = LocalFederation(tmp_path, {})
    federation.start_coordinator()
    try:
        assert federation.coordinator.process is not None
        mapped = {Path(found.path) for found in psutil.Process(federation.coordinator.process.pid).memory_maps()}
    finally:
        federation.stop()
    packages = {part for path in mapped for part in path.parts}
    assert "grpc" in packages
    assert not {"duckdb", "openfhe", "pandas", "pyarrow", "scipy", "sklearn"} & packages

"""What the tests of misbehaving roles share."""

from pathlib import Path

import pytest

from tests.categories import SITES
from tests.federation import Federation


@pytest.fixture
def federation(tmp_path: Path) -> Federation:
    """Of the sites that encode categorical columns."""
    return Federation(tmp_path, SITES)

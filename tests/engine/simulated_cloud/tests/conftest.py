"""An empty account for each test."""

import sys
from pathlib import Path

import pytest

# The package is not installed in the house's environment, and --import-mode=importlib puts no
# folder on the path.
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]

from account import Account  # noqa: E402
from standing import Standing  # noqa: E402


@pytest.fixture
def account(tmp_path: Path) -> Account:
    return Account(tmp_path / "cloud")


@pytest.fixture
def standing(account: Account) -> Standing:
    """An account in which a network, roles, a key, a cluster and more stand already."""
    return Standing(account)

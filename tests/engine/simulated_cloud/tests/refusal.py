"""What a table of refusals is made of."""

from collections.abc import Callable
from typing import Any

import pytest
from account import Refused
from standing import Standing

Make = Callable[[Standing], dict[str, Any]]
Case = tuple[str, Make, Make, str]
"""Type, inputs that are taken, inputs that are not, words of the refusal."""
MISSING_ROLE = "arn:aws:iam::123456789012:role/nobody"
MISSING_KEY = "arn:aws:kms:us-east-1:123456789012:key/11111111-2222-3333-4444-555555555555"


def name_of(value: object) -> str:
    """For the ids of the cases."""
    return value if isinstance(value, str) else ""


def refused_then_made(standing: Standing, case: Case) -> None:
    """The bad inputs are refused with the words and leave nothing; the good ones make one."""
    type, good, bad, words = case
    before = len(standing.account.inventory.items(type=type))
    with pytest.raises(Refused) as refusal:
        standing.account.create(type, bad(standing), "bad")
    assert words in str(refusal.value)
    assert len(standing.account.inventory.items(type=type)) == before
    standing.account.create(type, good(standing), "good")
    assert len(standing.account.inventory.items(type=type)) > before

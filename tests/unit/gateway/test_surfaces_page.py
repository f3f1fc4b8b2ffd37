"""The table of fields in docs/gateway/surfaces.md is what the code takes and refuses."""

import re
from pathlib import Path

from terrace_gateway.surfaces import (
    chat_body,
    completions_body,
    converse_body,
    embeddings,
    messages_body,
    responses_body,
)

PAGE = Path(__file__).resolve().parents[3] / "docs" / "gateway" / "surfaces.md"
MODULES = {
    "chat": chat_body,
    "completions": completions_body,
    "responses": responses_body,
    "embeddings": embeddings,
    "messages": messages_body,
    "converse": converse_body,
}


def test_the_table_of_fields_is_the_codes() -> None:
    text = PAGE.read_text("utf-8").partition("| surface | taken | refused |")[2]
    rows = [row.split("|")[1:4] for row in text.split("\n\n")[0].splitlines()[2:]]
    shown = {name.strip(): (names(taken), names(refused)) for name, taken, refused in rows}
    assert shown == {
        name: (set(module.FIELD_NAMES), set(module.REFUSED)) for name, module in MODULES.items()
    }


def names(cell: str) -> set[str]:
    return set(re.findall(r"`([^`]+)`", cell))

"""No body makes a surface work more than in proportion to its size, and the limits say their names.

Work is counted, not timed (``work_meter.py``); ``tests/bench/bodies.py`` has the milliseconds.
"""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from terrace_gateway.edge.errors import ApiError
from terrace_gateway.settings import Settings
from terrace_gateway.surfaces.json_body import MAX_ITEMS, MAX_TOOLS, parse_json_object
from terrace_gateway.surfaces.request import FIELDS_OF
from terrace_gateway.surfaces.schema_size import MAX_REFERENCES, expanded_bytes

from .heavy_bodies import EVERY, MAX_BYTES, MAX_DEPTH, Heavy, run
from .work_meter import WorkMeter

LIMIT: int = Settings.model_fields["max_json_values"].default
SOME = 8_000
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(alphabet='ab",:[{\\\u2200\u2c22\U0001f600'),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=20,
)


def work(heavy: Heavy, body: bytes) -> WorkMeter:
    meter = WorkMeter()
    meter.run(lambda: run(heavy, body, max_values=LIMIT))
    return meter


def test_the_bodies_are_of_every_surface() -> None:
    assert len({heavy.path for heavy in EVERY}) == len(FIELDS_OF) - 1  # counting is messages too


@pytest.mark.parametrize("heavy", EVERY, ids=lambda heavy: heavy.id)
def test_work_grows_as_the_body_grows(heavy: Heavy) -> None:
    small, large = heavy.taken(SOME, 0.5), heavy.taken(SOME)
    half, whole = work(heavy, small), work(heavy, large)
    assert whole.steps <= 2.3 * half.steps
    assert whole.encoded <= 2.3 * half.encoded
    assert whole.steps <= 20 * SOME
    assert whole.encoded <= 20 * len(large) + 1000


@pytest.mark.parametrize("heavy", EVERY[:16], ids=lambda heavy: heavy.name)
def test_of_four_megabytes_no_more_than_the_limit_is_parsed(heavy: Heavy) -> None:
    body = heavy.body()
    assert MAX_BYTES / 4 < len(body) <= MAX_BYTES
    if not heavy.separator or heavy.name == "large integers":
        assert parse_json_object(body, max_depth=MAX_DEPTH, max_values=LIMIT)
        return
    with pytest.raises(ApiError, match=f"more than {LIMIT} JSON values and keys"):
        parse_json_object(body, max_depth=MAX_DEPTH, max_values=LIMIT)


@given(JSON, st.sampled_from(["utf-8", "utf-16", "utf-16-le", "utf-32-be"]), st.booleans())
def test_values_are_counted_as_they_are(value: Any, encoding: str, ascii: bool) -> None:
    source = {"value": value, "": [[], {}]}
    body = json.dumps(source, ensure_ascii=ascii, separators=(",", ":")).encode(encoding)
    assert parse_json_object(body, max_depth=MAX_DEPTH, max_values=parts(source)) == source
    with pytest.raises(ApiError, match=f"more than {parts(source) - 1} JSON values and keys"):
        parse_json_object(body, max_depth=MAX_DEPTH, max_values=parts(source) - 1)


def parts(value: object) -> int:
    """Values and keys; an empty list or object counts twice."""
    if isinstance(value, dict):
        return 1 + (sum(1 + parts(item) for item in value.values()) or 1)
    if isinstance(value, list):
        return 1 + (sum(map(parts, value)) or 1)
    return 1


LISTS = [heavy for heavy in EVERY if heavy.most in {MAX_ITEMS, MAX_TOOLS, 2048}]


@pytest.mark.parametrize("heavy", LISTS, ids=lambda heavy: heavy.id)
def test_a_list_that_is_too_long_is_refused_by_its_name(heavy: Heavy) -> None:
    run(heavy, heavy.body(most=heavy.most), max_values=MAX_BYTES)
    with pytest.raises(ApiError, match=str(heavy.most)) as caught:
        run(heavy, heavy.body(most=heavy.most + 1), max_values=MAX_BYTES)
    assert caught.value.status == 400
    assert caught.value.param is not None
    assert caught.value.param in caught.value.message


def test_references_of_all_tools_are_counted_together() -> None:
    schema = {"a": [{"$ref": "b"}] * (MAX_REFERENCES // 2)}
    assert expanded_bytes([(schema, "tools[0]"), (schema, "tools[1]")]) > 0
    with pytest.raises(ApiError, match=rf"tools\[2\]: more than {MAX_REFERENCES} \$ref"):
        expanded_bytes([(schema, f"tools[{n}]") for n in range(3)])


def test_depth_is_bounded_where_the_brackets_are_few() -> None:
    def nested(levels: int) -> bytes:
        return b'{"a":' + b"[" * levels + b"1" + b"]" * levels + b"}"

    assert parse_json_object(nested(6), max_depth=8, max_values=99)
    for levels in (7, 8):
        with pytest.raises(ApiError, match="nested deeper than 8"):
            parse_json_object(nested(levels), max_depth=8, max_values=99)

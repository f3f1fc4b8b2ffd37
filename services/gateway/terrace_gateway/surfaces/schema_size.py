"""How large a JSON schema becomes when its references are written out.

LiteLLM (1.108) does that for Bedrock, copy by copy: a few hundred bytes of ``$ref`` can become any
number of input tokens. This walk makes at least the copies that LiteLLM makes, and counts.
"""

from collections.abc import Iterable, Iterator
from typing import cast

from terrace_gateway.surfaces.json_body import Json, encode_json, unsupported
from terrace_gateway.surfaces.text_size import normalised_growth

MAX_COPIED_BYTES = 128 * 1024
MAX_CHAIN = 64
MAX_REFERENCES = 10_000
_DEFINITIONS = ("$defs", "definitions")
_REFERENCE = b'"$ref"'


def expanded_bytes(schemas: Iterable[tuple[object, str]]) -> int:
    """Upper bound of the schemas' compact JSON with all references written out; what is copied, as
    a tokenizer may normalise it.

    Each schema comes with the name of its place. Raises ``ApiError`` for a reference that cannot be
    followed, for more than ``MAX_REFERENCES`` and for copies above ``MAX_COPIED_BYTES``, in all.
    """
    size = copied = references = 0
    for schema, param in schemas:
        encoded = encode_json(schema)
        size += len(encoded)
        found = encoded.count(_REFERENCE)
        references += found
        if references > MAX_REFERENCES:
            raise unsupported(f"{param}: more than {MAX_REFERENCES} $ref in all", param)
        if found:
            copied = _copied_bytes(schema, param, copied)
    return size + copied


def _copied_bytes(schema: object, param: str, copied: int) -> int:
    """``copied`` and what is copied in this schema. A definition is measured when it is first
    copied, so that those which hold each other are not measured once per level."""
    declared = _definitions(schema, param)
    measured: dict[str, tuple[int, list[str]]] = {}
    empty: frozenset[str] = frozenset()
    pending = [(name, empty) for name in _references(schema, param)]
    while pending:
        name, chain = pending.pop()
        if name in chain or name not in declared:
            continue  # a circle, or nothing to copy: it stays as it is
        if name not in measured:
            target = declared[name]
            encoded = encode_json(target)
            size = len(encoded) + normalised_growth(encoded)
            measured[name] = (size, _references(target, param))
        length, inner = measured[name]
        copied += length
        if copied > MAX_COPIED_BYTES or len(chain) >= MAX_CHAIN:
            raise unsupported(f"{param}: its $ref references grow too large to bound", param)
        deeper = chain | {name}
        pending.extend((reference, deeper) for reference in inner)
    return copied


def _definitions(schema: object, param: str) -> dict[str, Json]:
    """Every named definition, wherever it is declared."""
    found: dict[str, Json] = {}
    for node in _objects(schema):
        for field in _DEFINITIONS:
            group = node.get(field)
            if group is None:
                continue
            if not isinstance(group, dict):
                raise unsupported(f"{param}: {field} must be an object", param)
            for name, target in cast("Json", group).items():
                if name in found or not isinstance(target, dict):
                    raise unsupported(f"{param}: definitions must be objects named once", param)
                found[name] = cast("Json", target)
    return found


def _references(schema: object, param: str) -> list[str]:
    names: list[str] = []
    for node in _objects(schema):
        if "$ref" in node:
            reference = node["$ref"]
            if not isinstance(reference, str):
                raise unsupported(f"{param}: $ref must be a string on this model", param)
            names.append(reference.rsplit("/", 1)[-1])
    return names


def _objects(value: object) -> Iterator[Json]:
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, dict):
            node = cast("Json", item)
            yield node
            pending.extend(node.values())
        elif isinstance(item, list):
            pending.extend(cast("list[object]", item))

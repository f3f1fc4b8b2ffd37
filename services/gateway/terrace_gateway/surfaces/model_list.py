"""The list of models, in the shape of the client that asks: OpenAI's or Anthropic's."""

import json
from collections.abc import Sequence

from terrace_gateway.edge.errors import ErrorShape

_CREATED = "1970-01-01T00:00:00Z"


def models_body(names: Sequence[str], shape: ErrorShape) -> bytes:
    """All models that the caller may use, in one page."""
    data = [_model(name, shape) for name in names]
    if shape != "anthropic":
        return json.dumps({"object": "list", "data": data}).encode()
    first, last = (names[0], names[-1]) if names else (None, None)
    page = {"data": data, "has_more": False, "first_id": first, "last_id": last}
    return json.dumps(page).encode()


def model_body(name: str, shape: ErrorShape) -> bytes:
    """One model."""
    return json.dumps(_model(name, shape)).encode()


def _model(name: str, shape: ErrorShape) -> dict[str, object]:
    if shape == "anthropic":
        return {"type": "model", "id": name, "display_name": name, "created_at": _CREATED}
    return {"id": name, "object": "model", "created": 0, "owned_by": "terrace"}

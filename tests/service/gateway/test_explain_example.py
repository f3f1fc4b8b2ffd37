"""The request of the examples, explained and then made: both name the same model."""

import json
from pathlib import Path
from typing import Any

from gateway_rig.guard import InProcessGuard

REQUEST = Path(__file__).parents[3] / "examples" / "governance" / "request.json"


async def test_the_example_is_explained_as_it_is_served(guard: InProcessGuard) -> None:
    body: dict[str, Any] = json.loads(REQUEST.read_text("utf-8"))
    new = await guard.new_key()
    asked = {
        "model": body["model"],
        "input_bytes": len(REQUEST.read_bytes()),
        "max_output_tokens": body["max_tokens"],
        "features": ["tools"],
        "key_id": new["key_id"],
    }
    told = await guard.admin("POST", "/models/explain", json=asked)
    assert told["chosen"] == "sim-small"  # the cheapest that has room and takes tools
    response = await guard.chat(new["key"], **body)
    assert response.status_code == 200, response.text
    assert response.headers["x-terrace-model"] == told["chosen"]

"""What the tests of surfaces share: the local catalogue, a request on its way, a filter."""

import json
from importlib.resources import files
from typing import Any

from terrace_common.governance import Governance, Model, load_governance
from terrace_common.prices import Price
from terrace_gateway.edge.routes import match_route
from terrace_gateway.surfaces.request import SurfaceRequest, read_request
from terrace_gateway.surfaces.surface import Identity
from terrace_gateway.surfaces.upstream_request import UpstreamRequest

TEXT = (files("terrace_common") / "examples" / "governance.local.yaml").read_text("utf-8")
GOVERNANCE: Governance = load_governance(TEXT, "governance.yaml")
MODELS: dict[str, Model] = {model.name: model for model in GOVERNANCE.models}
IDENTITY = Identity("req_1", "asked-name")
HEADERS = {"x-terrace-attempt-id": "att_1", "traceparent": "00-tp"}
PNG = "iVBORw0KGgo="


def read(path: str, body: dict[str, Any]) -> SurfaceRequest:
    """The checked request of a path."""
    match = match_route("POST", path)
    assert match is not None
    return read_request(match, body)


def upstream(
    request: SurfaceRequest, model: str = "sim-small", *, relay: bool = False, **price: int
) -> UpstreamRequest:
    """The request for one of the local models; ``price`` adds rates to its own."""
    found = MODELS[model]
    if price:
        rates = found.price.model_dump() | price
        found = found.model_copy(update={"price": Price.model_validate(rates)})
    return request.upstream(
        governance=GOVERNANCE,
        model=found,
        attempt_id="att_1",
        traceparent="00-tp",
        max_output_tokens=GOVERNANCE.output_limit(found, request.needs.output_tokens),
        relay=relay,
    )


def sent(path: str, body: dict[str, Any], model: str = "sim-small", **more: Any) -> dict[str, Any]:
    """The body that goes upstream."""
    return json.loads(upstream(read(path, body), model, **more).body)


class HoldBack:
    """A text filter that holds the last characters back and masks a word."""

    def __init__(self, word: str = "secret") -> None:
        self._word = word
        self._rest = ""
        self.seen: list[str] = []

    def feed(self, text: str, part: object = None) -> str:
        self._rest = (self._rest + text).replace(self._word, "*" * len(self._word))
        keep = len(self._word) - 1
        shown, self._rest = self._rest[:-keep], self._rest[-keep:]
        return shown

    def flush(self) -> str:
        left, self._rest = self._rest, ""
        self.seen.append(left)
        return left


def events(data: bytes) -> list[dict[str, Any]]:
    """The JSON of server-sent events."""
    lines = [line[6:] for line in data.split(b"\n") if line.startswith(b"data: {")]
    return [json.loads(line) for line in lines]

"""What the provider shows of itself: its bill, its switches, its metrics. No credentials needed."""

from typing import Any

from pydantic import TypeAdapter, ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from terrace_model_simulator.bill import Entry, Totals
from terrace_model_simulator.exchange import Desk
from terrace_model_simulator.faults import MAX_FAULTS, Fault, FaultBoard
from terrace_model_simulator.incoming import property_path

DEFAULT_PAGE = 1000
MAX_PAGE = 10_000
_MAX_FAULTS_BYTES = 1024 * 1024
_FAULTS = TypeAdapter(list[Fault])


class BooksFace:
    """Routes of the bill, the switches and the metrics."""

    def __init__(self, desk: Desk, faults: FaultBoard) -> None:
        self._desk = desk
        self._faults = faults

    def routes(self) -> list[BaseRoute]:
        """What to mount at the root."""
        return [
            Route("/bill", self.bill, methods=["GET"]),
            Route("/bill/total", self.total, methods=["GET"]),
            Route("/control/faults", self.get_faults, methods=["GET"]),
            Route("/control/faults", self.put_faults, methods=["PUT"]),
            Route("/control/faults", self.delete_faults, methods=["DELETE"]),
            Route("/metrics", self.metrics, methods=["GET"]),
            Route("/healthz", self.healthz, methods=["GET"]),
        ]

    async def bill(self, request: Request) -> Response:
        """Entries after ``after``, oldest first, at most ``limit``; ``attempt_id`` filters.

        Totals are over the whole book, or the whole attempt, whatever the page. ``next`` is the
        cursor of the next page, null on the last. An entry in flight is shown with its cost so far
        and changes later: read it again by its attempt id.
        """
        try:
            after = _number(request, "after", default=0, highest=2**62)
            limit = _number(request, "limit", default=DEFAULT_PAGE, highest=MAX_PAGE)
        except ValueError as error:
            return JSONResponse({"error": str(error)}, 400)
        attempt_id = request.query_params.get("attempt_id")
        found = self._desk.book.entries(after=after, limit=limit + 1, attempt_id=attempt_id)
        page = found[:limit]
        totals = self._desk.book.totals(attempt_id)
        return JSONResponse(
            {
                "entries": [_entry_object(entry) for entry in page],
                "total_micro_usd": totals.micro_usd,
                "in_flight": totals.in_flight,
                "next": page[-1].seq if len(found) > limit else None,
            }
        )

    async def total(self, request: Request) -> Response:
        """Sums over the whole book; tokens and money of final entries only."""
        return JSONResponse(_totals_object(self._desk.book.totals()))

    async def get_faults(self, request: Request) -> Response:
        """The switches now set, with what remains of them."""
        current = [fault.model_dump(exclude_none=True) for fault in self._faults.current()]
        return JSONResponse(current)

    async def put_faults(self, request: Request) -> Response:
        """Set exactly the switches in the body."""
        body = await request.body()
        try:
            faults = _FAULTS.validate_json(body[:_MAX_FAULTS_BYTES])
        except ValidationError as error:
            path, _, message = property_path(error)
            return JSONResponse({"error": f"{path or 'the list of switches'}: {message}"}, 400)
        if len(faults) > MAX_FAULTS:
            return JSONResponse({"error": f"at most {MAX_FAULTS} switches"}, 400)
        self._faults.replace(faults)
        return await self.get_faults(request)

    async def delete_faults(self, request: Request) -> Response:
        """Set no switches."""
        self._faults.replace([])
        return Response(status_code=204)

    async def metrics(self, request: Request) -> Response:
        """Prometheus' text format."""
        return Response(
            self._desk.metrics.render(),
            media_type="text/plain; version=0.0.4; charset=utf-8",
        )

    async def healthz(self, request: Request) -> Response:
        """The process is alive. A book that cannot be written shows as 503 on calls, not here."""
        return JSONResponse({"status": "ok"})


def _number(request: Request, name: str, *, default: int, highest: int) -> int:
    text = request.query_params.get(name, "")
    if not text:
        return default
    if not text.isascii() or not text.isdecimal() or len(text) > 19 or int(text) > highest:
        raise ValueError(f"{name} must be a whole number from 0 to {highest}")
    return int(text)


def _entry_object(entry: Entry) -> dict[str, Any]:
    return {
        "seq": entry.seq,
        "attempt_id": entry.attempt_id,
        "model": entry.model,
        "surface": entry.surface,
        "input_tokens": entry.input_tokens,
        "output_tokens": entry.output_tokens,
        "cost_micro_usd": entry.cost_micro_usd,
        "status": "final" if entry.final else "in_flight",
        "outcome": entry.outcome if entry.final else None,
        "started_at": entry.started_at,
        "ended_at": entry.ended_at if entry.final else None,
        "request_metadata": dict(entry.request_metadata),
    }


def _totals_object(totals: Totals) -> dict[str, int]:
    return {
        "calls": totals.calls,
        "in_flight": totals.in_flight,
        "input_tokens": totals.input_tokens,
        "output_tokens": totals.output_tokens,
        "total_micro_usd": totals.micro_usd,
    }

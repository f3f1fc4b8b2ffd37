"""The application: faces over one desk, the book owned by the lifespan."""

import asyncio
import contextlib
import platform
from collections.abc import AsyncGenerator

import structlog
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from terrace_model_simulator.bedrock_face import BedrockFace
from terrace_model_simulator.bill import Book
from terrace_model_simulator.books_face import BooksFace
from terrace_model_simulator.connection import OpenConnections
from terrace_model_simulator.credentials import load_credentials
from terrace_model_simulator.exchange import Desk
from terrace_model_simulator.faults import FaultBoard
from terrace_model_simulator.metrics import SimulatorMetrics
from terrace_model_simulator.openai_face import OpenAIFace
from terrace_model_simulator.openai_format import openai_error
from terrace_model_simulator.prices import load_price_table
from terrace_model_simulator.responses_face import ResponsesFace
from terrace_model_simulator.settings import SimulatorSettings
from terrace_model_simulator.tracing import start_tracing

OVERDUE_RETRY_SECONDS = 1.0

_log = structlog.get_logger("terrace_model_simulator")


def create_app(
    settings: SimulatorSettings, connections: OpenConnections | None = None
) -> Starlette:
    """The simulator as an ASGI application.

    ``connections`` must be those of the server's protocol class, else ``disconnect`` switches
    fail. Reads credentials and prices and opens the book now. Raises CredentialsError,
    PriceTableError, LogLockedError, LogCorruptError or OSError, each saying what is wrong where.
    """
    credentials = load_credentials(settings.credentials_dir)
    prices = load_price_table(settings.prices_file)
    book = Book(settings.bill_path, reserve_bytes=settings.bill_reserve_bytes)
    desk = Desk(
        settings=settings,
        book=book,
        metrics=SimulatorMetrics(),
        tracing=start_tracing(platform.node()),
        connections=connections or OpenConnections(),
    )
    faults = FaultBoard()

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None]:
        left_open = await book.start()
        _log.info("book opened", closed_after_crash=left_open, torn_bytes=book.torn_bytes)
        retry = asyncio.create_task(_retry_overdue(book))
        try:
            yield
        finally:
            retry.cancel()
            await asyncio.to_thread(book.stop)
            desk.tracing.shutdown()

    return Starlette(
        routes=[
            *OpenAIFace(desk, credentials, prices, faults).routes(),
            *ResponsesFace(desk, credentials, prices, faults).routes(),
            *BedrockFace(desk, credentials, prices, faults).routes(),
            *BooksFace(desk, faults).routes(),
        ],
        exception_handlers={HTTPException: _http_error, ClientDisconnect: _caller_left},
        lifespan=lifespan,
    )


async def _retry_overdue(book: Book) -> None:
    while True:
        await asyncio.sleep(OVERDUE_RETRY_SECONDS)
        await book.write_overdue()


async def _http_error(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    if request.url.path.startswith("/v1/"):
        path = request.url.path[:200]
        return openai_error(status, f"Invalid URL ({request.method} {path})", code="unknown_url")
    return JSONResponse({"message": "Not Found" if status == 404 else "Not Allowed"}, status)


async def _caller_left(request: Request, error: Exception) -> Response:
    """The caller left while sending its body: nobody reads this, and nothing is billed."""
    del request, error
    return Response(status_code=400)

"""Attribute and span names, in one place because gen_ai.* is still in development.

Source: open-telemetry/semantic-conventions-genai v0.1.0. ``terrace.*`` are our own, for what the
conventions do not have. Message content is never an attribute.
"""

VERSION = "genai-0.1.0"

OPERATION_NAME = "gen_ai.operation.name"
PROVIDER_NAME = "gen_ai.provider.name"
REQUEST_MODEL = "gen_ai.request.model"
REQUEST_MAX_TOKENS = "gen_ai.request.max_tokens"
RESPONSE_MODEL = "gen_ai.response.model"
RESPONSE_FINISH_REASONS = "gen_ai.response.finish_reasons"
RESPONSE_ID = "gen_ai.response.id"
USAGE_INPUT_TOKENS = "gen_ai.usage.input_tokens"
USAGE_OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
USAGE_CACHE_READ_TOKENS = "gen_ai.usage.cache_read.input_tokens"
USAGE_CACHE_WRITE_TOKENS = "gen_ai.usage.cache_creation.input_tokens"
TOKEN_TYPE = "gen_ai.token.type"  # noqa: S105  an attribute's name
OPERATION_CHAT = "chat"
OPERATION_EMBEDDINGS = "embeddings"
OPERATION_TEXT_COMPLETION = "text_completion"

METRIC_TOKEN_USAGE = "gen_ai.client.token.usage"  # noqa: S105  a metric's name
METRIC_OPERATION_DURATION = "gen_ai.client.operation.duration"
METRIC_TIME_TO_FIRST_CHUNK = "gen_ai.client.operation.time_to_first_chunk"
# The conventions' own buckets: powers of four, and of two from 10 ms.
TOKEN_BUCKETS = tuple(4**power for power in range(14))
SECONDS_BUCKETS = tuple(round(0.01 * 2**power, 2) for power in range(14))

HTTP_REQUEST_METHOD = "http.request.method"
HTTP_ROUTE = "http.route"
HTTP_RESPONSE_STATUS_CODE = "http.response.status_code"
ERROR_TYPE = "error.type"

TERRACE_REQUEST_ID = "terrace.request.id"
TERRACE_ATTEMPT_ID = "terrace.attempt.id"
TERRACE_KEY_ID = "terrace.key.id"
TERRACE_TEAM = "terrace.team"
TERRACE_SURFACE = "terrace.surface"
TERRACE_OUTCOME = "terrace.outcome"
TERRACE_RESERVED = "terrace.reserved_micro_usd"
TERRACE_AMOUNT = "terrace.amount_micro_usd"
TERRACE_REFUSAL = "terrace.refusal"

SPAN_RESERVE = "terrace.reserve"
SPAN_SETTLE = "terrace.settle"


def chat_span_name(model: str) -> str:
    """Span name of a model call: ``{operation} {model}``."""
    return f"{OPERATION_CHAT} {model}"


def prometheus_name(name: str, *, unit: str = "") -> str:
    """A name as Prometheus spells it: ``gen_ai.x.y`` is ``gen_ai_x_y``, with the unit behind it."""
    return "_".join(filter(None, (name.replace(".", "_"), unit)))

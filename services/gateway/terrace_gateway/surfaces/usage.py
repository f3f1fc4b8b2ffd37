"""Token usage as providers report it in their answers, in one form: cache tokens apart."""

from typing import cast

from terrace_gateway.calls.ports import Usage

_MAX_TOKENS = 2**40
_EMBEDDINGS_COUNTS = ("prompt_tokens", "total_tokens")


def chat_usage(answer: object) -> Usage | None:
    """Usage of a chat completion (or chunk); ``None`` if there is none that can be believed.

    ``prompt_tokens`` includes cache reads and writes. Where the provider reports nothing, LiteLLM
    (1.108) makes usage up: zeros in a plain answer, an estimate of its own tokeniser in a stream,
    which has ``text_tokens`` but no ``prompt_tokens_details``. Neither is a fact.

    Some providers (Gemini's and xAI's chat) leave reasoning out of ``completion_tokens``, though
    they bill it as output and have it in ``total_tokens``: what the total has more is output.
    """
    source = _usage_of(answer)
    total, output = _count(source, "prompt_tokens"), _count(source, "completion_tokens")
    if not total or output is None:
        return None
    details = source.get("prompt_tokens_details")
    completion = source.get("completion_tokens_details")
    if not details and isinstance(completion, dict) and "text_tokens" in completion:
        return None
    cache = cast("dict[str, object]", details) if isinstance(details, dict) else {}
    read = _count(cache, "cached_tokens") or 0
    written = _count(source, "cache_creation_input_tokens") or 0
    written = written or _count(cache, "cache_creation_tokens") or 0
    return _without_cache(total, output, read, written, _count(source, "total_tokens"))


def responses_usage(answer: object) -> Usage | None:
    """Usage of a response; ``input_tokens`` includes cache reads. The total is read as in
    ``chat_usage``."""
    source = _usage_of(answer)
    total, output = _count(source, "input_tokens"), _count(source, "output_tokens")
    if not total or output is None:
        return None
    details = source.get("input_tokens_details")
    produced = source.get("output_tokens_details")
    if not details and isinstance(produced, dict) and "text_tokens" in produced:
        return None  # LiteLLM's estimate, as in chat_usage
    cache = cast("dict[str, object]", details) if isinstance(details, dict) else {}
    read = _count(cache, "cached_tokens") or 0
    written = _count(cache, "cache_creation_tokens") or _count(cache, "cache_write_tokens") or 0
    return _without_cache(total, output, read, written, _count(source, "total_tokens"))


def messages_usage(answer: object, *, hour_asked: bool = False) -> Usage | None:
    """Usage of an Anthropic message or ``message_delta``; ``input_tokens`` excludes the cache.

    Cache writes that the answer does not call long or short are long if the request asked for
    such (``hour_asked``): the dearer price.
    """
    source = _usage_of(answer)
    lifetimes = source.get("cache_creation")
    detail = cast("dict[str, object]", lifetimes) if isinstance(lifetimes, dict) else {}
    return _apart(
        _count(source, "input_tokens"),
        _count(source, "output_tokens"),
        _count(source, "cache_read_input_tokens"),
        _count(source, "cache_creation_input_tokens"),
        long=_count(detail, "ephemeral_1h_input_tokens") or 0,
        short=_count(detail, "ephemeral_5m_input_tokens") or 0,
        hour_asked=hour_asked,
    )


def converse_usage(answer: object, *, hour_asked: bool = False) -> Usage | None:
    """Usage of a converse answer or ``metadata`` frame; ``inputTokens`` excludes the cache.
    ``hour_asked`` as in ``messages_usage``."""
    source = _usage_of(answer)
    details = source.get("cacheDetails")
    written = {"1h": 0, "5m": 0}
    for item in cast("list[object]", details) if isinstance(details, list) else []:
        detail = cast("dict[str, object]", item) if isinstance(item, dict) else {}
        lifetime = detail.get("ttl")
        if isinstance(lifetime, str) and lifetime in written:
            written[lifetime] += _count(detail, "inputTokens") or 0
    return _apart(
        _count(source, "inputTokens"),
        _count(source, "outputTokens"),
        _count(source, "cacheReadInputTokens"),
        _count(source, "cacheWriteInputTokens"),
        long=written["1h"],
        short=written["5m"],
        hour_asked=hour_asked,
    )


def embeddings_usage(answer: object) -> Usage | None:
    """Usage of embeddings: input only."""
    total = _count(_usage_of(answer), "prompt_tokens")
    return Usage(total, 0) if total else None


def with_embeddings_usage(answer: object, usage: Usage | None) -> object:
    """The answer with ``usage`` in place of what it says; ``None``: it says nothing."""
    if not isinstance(answer, dict):
        return answer
    told = {} if usage is None else dict.fromkeys(_EMBEDDINGS_COUNTS, usage.input_tokens)
    return {**cast("dict[str, object]", answer), "usage": told}


def _without_cache(prompt: int, output: int, read: int, written: int, total: int | None) -> Usage:
    cached = read + written
    if cached > prompt:  # then it was without the cache, which the total may have or not
        output = max(output, (total or 0) - prompt - cached)
        return Usage(prompt, output, read, written)
    return Usage(prompt - cached, max(output, (total or 0) - prompt), read, written)


def _apart(
    fresh: int | None,
    output: int | None,
    read: int | None,
    written: int | None,
    *,
    long: int,
    short: int,
    hour_asked: bool,
) -> Usage | None:
    if fresh is None or output is None:
        return None
    written = written or 0
    if hour_asked:
        long = max(long, written - short)
    usage = Usage(fresh, output, read or 0, written, min(long, written))
    return usage if usage.all_input_tokens else None


def _usage_of(answer: object) -> dict[str, object]:
    source = cast("dict[str, object]", answer).get("usage") if isinstance(answer, dict) else None
    return cast("dict[str, object]", source) if isinstance(source, dict) else {}


def _count(source: dict[str, object], field: str) -> int | None:
    value = source.get(field)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _MAX_TOKENS:
        return None
    return value

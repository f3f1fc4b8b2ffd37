"""The checks of `terrace smoke` that a model answers: every surface, plain and streamed."""

from terrace_cli.smoke import anthropic_client, bedrock_client, openai_client
from terrace_cli.smoke.answers import Answer
from terrace_cli.smoke.bench import (
    BEDROCK_MODEL,
    BEDROCK_MODEL_ID,
    CHAT_MODEL,
    EMBEDDINGS_MODEL,
    MAX_TOKENS,
    PROMPT,
    Bench,
    Check,
    CheckFailedError,
)


def _models_listed(bench: Bench) -> str:
    listed = openai_client.model_names(bench.gateway, bench.key)
    if listed != sorted([CHAT_MODEL, BEDROCK_MODEL, EMBEDDINGS_MODEL]):
        raise CheckFailedError(f"listed {', '.join(listed) or 'nothing'}")
    return ", ".join(listed)


def _chat(bench: Bench) -> str:
    answer = openai_client.chat(bench.gateway, bench.key, CHAT_MODEL, PROMPT, max_tokens=MAX_TOKENS)
    return _described(answer)


def _stream(bench: Bench) -> str:
    answer = openai_client.chat_stream(
        bench.gateway, bench.key, CHAT_MODEL, PROMPT, max_tokens=MAX_TOKENS
    )
    return _described(answer, streamed=True)


def _completion(bench: Bench) -> str:
    answer = openai_client.completion(
        bench.gateway, bench.key, CHAT_MODEL, PROMPT, max_tokens=MAX_TOKENS
    )
    return _described(answer)


def _response(bench: Bench) -> str:
    answer = openai_client.response(
        bench.gateway, bench.key, CHAT_MODEL, PROMPT, max_tokens=MAX_TOKENS
    )
    return _described(answer)


def _response_stream(bench: Bench) -> str:
    answer = openai_client.response_stream(
        bench.gateway, bench.key, CHAT_MODEL, PROMPT, max_tokens=MAX_TOKENS
    )
    return _described(answer, streamed=True)


def _embedding(bench: Bench) -> str:
    length, tokens = openai_client.embedding(bench.gateway, bench.key, EMBEDDINGS_MODEL, PROMPT)
    seen = f"{length} numbers, {tokens} tokens"
    if not length or not tokens:
        raise CheckFailedError(seen)
    return seen


def _message(bench: Bench) -> str:
    answer = anthropic_client.message(
        bench.gateway, bench.key, CHAT_MODEL, PROMPT, max_tokens=MAX_TOKENS
    )
    return _described(answer)


def _message_stream(bench: Bench) -> str:
    answer = anthropic_client.message_stream(
        bench.gateway, bench.key, CHAT_MODEL, PROMPT, max_tokens=MAX_TOKENS
    )
    return _described(answer, streamed=True)


def _count_tokens(bench: Bench) -> str:
    """Costs nothing: were it billed, the books would not agree at the end."""
    counted = anthropic_client.count_tokens(bench.gateway, bench.key, CHAT_MODEL, PROMPT)
    if counted <= 0:
        raise CheckFailedError(f"{counted} tokens")
    return f"{counted} tokens"


def _bedrock_by_chat(bench: Bench) -> str:
    answer = openai_client.chat(
        bench.gateway, bench.key, BEDROCK_MODEL, PROMPT, max_tokens=MAX_TOKENS
    )
    return _described(answer)


def _converse(bench: Bench) -> str:
    answer = bedrock_client.converse(
        bench.gateway, bench.key, BEDROCK_MODEL_ID, PROMPT, max_tokens=MAX_TOKENS
    )
    return _described(answer)


def _converse_stream(bench: Bench) -> str:
    answer = bedrock_client.converse_stream(
        bench.gateway, bench.key, BEDROCK_MODEL_ID, PROMPT, max_tokens=MAX_TOKENS
    )
    return _described(answer, streamed=True)


_ANSWER = "an answer with usage"
_STREAM = "several chunks, then usage"
SURFACE_CHECKS = (
    Check(name="models", expected="exactly the key's models", run=_models_listed),
    Check(name="chat", expected=_ANSWER, run=_chat),
    Check(name="stream", expected=_STREAM, run=_stream),
    Check(name="completions", expected=_ANSWER, run=_completion),
    Check(name="responses", expected=_ANSWER, run=_response),
    Check(name="responses stream", expected=_STREAM, run=_response_stream),
    Check(name="embeddings", expected="a vector with usage", run=_embedding),
    Check(name="messages", expected=_ANSWER, run=_message),
    Check(name="messages stream", expected=_STREAM, run=_message_stream),
    Check(name="count_tokens", expected="a number, for nothing", run=_count_tokens),
    Check(name="bedrock by chat", expected=_ANSWER, run=_bedrock_by_chat),
    Check(name="boto3 converse", expected=_ANSWER, run=_converse),
    Check(name="boto3 converse_stream", expected=_STREAM, run=_converse_stream),
)


def _described(answer: Answer, *, streamed: bool = False) -> str:
    seen = f"{len(answer.text)} characters, {answer.input_tokens} + {answer.output_tokens} tokens"
    if streamed:
        seen += f" in {answer.chunks} chunks"
    if not answer.text or not answer.input_tokens or not answer.output_tokens:
        raise CheckFailedError(seen)
    if streamed and answer.chunks < 2:
        raise CheckFailedError(f"{seen}: not streamed")
    return seen

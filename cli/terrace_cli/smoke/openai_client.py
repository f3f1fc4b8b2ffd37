"""Calls through the gateway with the openai client; imported late: it is heavy."""

from collections.abc import Callable
from typing import Any

from terrace_cli.connecting import again_while_refused
from terrace_cli.smoke.answers import TIMEOUT_SECONDS, Answer, Refusal


def openai_client(gateway: str, key: str) -> Any:
    """The openai client on the gateway: no retries, no proxy."""
    import openai  # noqa: PLC0415  a second to import; most commands never need it

    return openai.OpenAI(
        base_url=f"{gateway}/v1",
        api_key=key,
        max_retries=0,
        timeout=TIMEOUT_SECONDS,
        http_client=openai.DefaultHttpxClient(trust_env=False),
    )


def sent(create: Callable[..., Any], **parameters: Any) -> Any:
    """What ``create`` returns; a refused connection is made again."""
    return again_while_refused(lambda: create(**parameters))


def model_names(gateway: str, key: str) -> list[str]:
    """The models that the key may call, sorted."""
    with openai_client(gateway, key) as client:
        return sorted(model.id for model in again_while_refused(client.models.list))


def chat(gateway: str, key: str, model: str, prompt: str, **options: Any) -> Answer:
    """One chat completion."""
    with openai_client(gateway, key) as client:
        answer = sent(
            client.chat.completions.create,
            model=model, messages=[{"role": "user", "content": prompt}], **options,
        )  # fmt: skip
    return Answer(
        text=answer.choices[0].message.content or "",
        input_tokens=answer.usage.prompt_tokens,
        output_tokens=answer.usage.completion_tokens,
    )


def chat_stream(gateway: str, key: str, model: str, prompt: str, **options: Any) -> Answer:
    """One streamed chat completion, with the usage that the last chunk tells."""
    pieces: list[str] = []
    usage = None
    with openai_client(gateway, key) as client:
        for chunk in sent(
            client.chat.completions.create,
            model=model,
            messages=[{"role": "user", "content": prompt}],
            stream=True,
            stream_options={"include_usage": True},
            **options,
        ):
            usage = chunk.usage or usage
            pieces += [choice.delta.content for choice in chunk.choices if choice.delta.content]
    return Answer(
        text="".join(pieces),
        input_tokens=usage.prompt_tokens if usage else 0,
        output_tokens=usage.completion_tokens if usage else 0,
        chunks=len(pieces),
    )


def completion(gateway: str, key: str, model: str, prompt: str, *, max_tokens: int) -> Answer:
    """One text completion, of the old kind."""
    with openai_client(gateway, key) as client:
        answer = sent(client.completions.create, model=model, prompt=prompt, max_tokens=max_tokens)
    return Answer(
        text=answer.choices[0].text,
        input_tokens=answer.usage.prompt_tokens,
        output_tokens=answer.usage.completion_tokens,
    )


def response(gateway: str, key: str, model: str, prompt: str, *, max_tokens: int) -> Answer:
    """One response of the Responses API, which the provider does not keep."""
    with openai_client(gateway, key) as client:
        answer = sent(
            client.responses.create,
            model=model, input=prompt, max_output_tokens=max_tokens, store=False,
        )  # fmt: skip
    return Answer(
        text=answer.output_text,
        input_tokens=answer.usage.input_tokens,
        output_tokens=answer.usage.output_tokens,
    )


def response_stream(gateway: str, key: str, model: str, prompt: str, *, max_tokens: int) -> Answer:
    """One streamed response, with the usage that its last event tells."""
    pieces: list[str] = []
    usage = None
    with openai_client(gateway, key) as client:
        for event in sent(
            client.responses.create,
            model=model, input=prompt, max_output_tokens=max_tokens, store=False, stream=True,
        ):  # fmt: skip
            if event.type == "response.output_text.delta":
                pieces.append(event.delta)
            if event.type in ("response.completed", "response.incomplete"):
                usage = event.response.usage
    return Answer(
        text="".join(pieces),
        input_tokens=usage.input_tokens if usage else 0,
        output_tokens=usage.output_tokens if usage else 0,
        chunks=len(pieces),
    )


def embedding(gateway: str, key: str, model: str, text: str) -> tuple[int, int]:
    """One embedding: the vector's length and the tokens it took."""
    with openai_client(gateway, key) as client:
        answer = sent(client.embeddings.create, model=model, input=text)
    return len(answer.data[0].embedding), answer.usage.prompt_tokens


def refusal_of(call: Callable[[], object]) -> Refusal | object:
    """The Refusal that a call through openai met, or what it returned if it was let through."""
    import openai  # noqa: PLC0415

    try:
        return call()
    except openai.APIStatusError as error:
        return Refusal(
            status=error.status_code,
            code=str(error.code or "without a code"),
            retry_after=error.response.headers.get("retry-after"),
        )

"""What a call says and hears, for guardrails and for capture where a policy asks for it."""

from terrace_gateway.calls.ports import TextFilter
from terrace_gateway.surfaces.request import SurfaceRequest

MAX_HEARD_CHARACTERS = 1_000_000


class Conversation:
    """The request as it is sent, the model that answers, and what it says if that is kept."""

    def __init__(self, request: SurfaceRequest, *, session: str | None, capture: bool) -> None:
        self.request = request
        self.session = session
        self.model: str | None = None
        self._capture = capture
        self._heard: list[str] = []
        self._size = 0

    @property
    def captures(self) -> bool:
        """Whether a policy asks for what is said."""
        return self._capture

    @property
    def shows_usage(self) -> bool:
        """Whether the client asked for usage in a stream."""
        return self.request.include_usage

    @property
    def heard(self) -> tuple[str, ...]:
        """What the model said, in parts; empty without capture."""
        return tuple(self._heard)

    def hear(self, text: str) -> None:
        """Keep what the model said, if that is asked for and there is room."""
        if self._capture and text and self._size < MAX_HEARD_CHARACTERS:
            part = text[: MAX_HEARD_CHARACTERS - self._size]
            self._heard.append(part)
            self._size += len(part)

    def listening(self, text_filter: TextFilter | None) -> TextFilter | None:
        """``text_filter`` with ears: what it lets pass is heard."""
        return _Listening(self, text_filter) if self._capture else text_filter


class _Listening:
    def __init__(self, conversation: Conversation, inner: TextFilter | None) -> None:
        self._conversation = conversation
        self._inner = inner

    def feed(self, text: str, part: object = None) -> str:
        passed = text if self._inner is None else self._inner.feed(text, part)
        self._conversation.hear(passed)
        return passed

    def flush(self) -> str:
        passed = "" if self._inner is None else self._inner.flush()
        self._conversation.hear(passed)
        return passed

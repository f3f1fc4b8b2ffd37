"""A text filter that ends an answer without ending its reading."""

from collections.abc import Callable

from terrace_gateway.calls.ports import TextFilter
from terrace_gateway.edge.errors import ApiError


class Muzzle:
    """``inner`` until it blocks; from then on nothing passes, and ``blocked`` says why.

    The stream can be read on, so that its usage is known.
    """

    def __init__(self, inner: TextFilter) -> None:
        self._inner = inner
        self.blocked: ApiError | None = None

    def feed(self, text: str, part: object = None) -> str:
        """What ``inner`` lets pass; nothing once it has blocked."""
        return self._asked(lambda: self._inner.feed(text, part))

    def flush(self) -> str:
        """As ``feed``."""
        return self._asked(self._inner.flush)

    def _asked(self, ask: Callable[[], str]) -> str:
        if self.blocked is not None:
            return ""
        try:
            return ask()
        except ApiError as error:
            self.blocked = error
            return ""

"""Which model a conversation is with, so that it stays there: at most so many, oldest out."""

from collections import OrderedDict

MOST_SESSIONS = 50_000
MOST_SESSION_CHARACTERS = 256


class Sessions:
    """A bounded memory of conversations. Losing one costs a prompt cache, nothing else."""

    def __init__(self, most: int = MOST_SESSIONS) -> None:
        self._most = most
        self._models: OrderedDict[str, str] = OrderedDict()

    def model_of(self, session: str) -> str | None:
        """The model that served this conversation last."""
        session = session[:MOST_SESSION_CHARACTERS]
        model = self._models.get(session)
        if model is not None:
            self._models.move_to_end(session)
        return model

    def remember(self, session: str, model: str) -> None:
        """``model`` serves this conversation."""
        session = session[:MOST_SESSION_CHARACTERS]
        self._models[session] = model
        self._models.move_to_end(session)
        if len(self._models) > self._most:
            self._models.popitem(last=False)

    def __len__(self) -> int:
        return len(self._models)

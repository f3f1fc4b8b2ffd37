"""By what an error is, or is not, the provider's own refusal of a call."""

LOST_4XX = frozenset({408, 424, 499})
"""Of something on the way that waited no longer: the call may go on behind it, and be billed."""
OWN_WORD_5XX = frozenset({500, 501, 503, 529})
"""A model's own; any other, such as a gateway's 502 and 504, may hide a call that goes on."""


def is_own_word(status: int, *, json: bool) -> bool:
    """Whether an error with this status, as it came off the wire, is the provider's own refusal.

    ``json``: its body says that it is JSON. An API says its errors so; a proxy on the way answers
    in text or HTML, under whatever id, and may hide a call that goes on.
    """
    if 400 <= status < 500:
        return status not in LOST_4XX
    return status in OWN_WORD_5XX and json


def is_json(content_type: str) -> bool:
    """Whether a ``content-type`` is JSON's."""
    return content_type.partition(";")[0].strip().lower() == "application/json"

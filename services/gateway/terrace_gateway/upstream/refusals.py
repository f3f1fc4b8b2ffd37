"""Statuses by which an error is, or is not, the provider's own refusal of a call."""

LOST_4XX = frozenset({408, 424, 499})
"""Of something on the way that waited no longer: the call may go on behind it, and be billed."""
OWN_WORD_5XX = frozenset({500, 501, 503, 529})
"""A model's own; any other, such as a gateway's 502 and 504, may hide a call that goes on."""

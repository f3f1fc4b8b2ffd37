"""Texts that LiteLLM (1.108) gives to Bedrock's embedding models as something else.

Nova reads ``s3://...`` as the address of an object, with the gateway's own role, and a data URL as
an image, a video or a sound; Cohere and Titan's multimodal model read a data URL as an image. What
that costs has no bound in a text's bytes, and no guardrail sees it.
"""

import re
from collections.abc import Sequence

from terrace_gateway.edge.errors import ApiError
from terrace_gateway.surfaces.json_body import unsupported

_TEXT_ONLY = frozenset({
    "amazon.titan-embed-g1-text-02", "amazon.titan-embed-text-v1", "amazon.titan-embed-text-v2:0",
})  # fmt: skip
"""Whose texts LiteLLM sends as they are, by these names and no others."""

# Addresses behind blanks, in capitals or without a comma are texts to it, and refused all the same:
# the next release may read them.
_ADDRESS = r"(?i:\s*(?:s3://|data:\s*[a-z]+/|data:[^,]*;\s*base64))"
_DATA_URL = re.compile(
    rf"{_ADDRESS}|data:[^,]*,(?:[A-Za-z0-9+/]{{4}})*+(?:[A-Za-z0-9+/]{{2,3}}={{1,2}})?(?:,|\Z)"
)
"""Cohere and Titan multimodal: what is base64 behind the first comma, without a type as well."""
_NOVA = re.compile(rf"{_ADDRESS}|data:(?![^,]*,)")
"""It knows media by their type, and breaks at ``data:`` without a comma."""
_ANY = re.compile(rf"{_ADDRESS}|data:")


def media_refused(texts: Sequence[str], upstream_model: str) -> ApiError | None:
    """Why this model of Bedrock is not asked for vectors of these texts: the first of them that
    would not reach it as a text. ``None``: all would."""
    if upstream_model in _TEXT_ONLY:
        return None
    match = _pattern_of(upstream_model).match
    for index, text in enumerate(texts):
        if match(text) is not None:
            begin = text.lstrip()[:5]
            return unsupported(
                f"input[{index}] begins with {begin!r}: the model would read it as media or as an"
                " object in S3, not as a text; put a word before it",
                "input",
            )
    return None


def _pattern_of(upstream_model: str) -> re.Pattern[str]:
    if "nova" in upstream_model.lower():  # asked before all others, as LiteLLM does
        return _NOVA
    if "cohere." in upstream_model or upstream_model == "amazon.titan-embed-image-v1":
        return _DATA_URL
    return _ANY

"""Texts that LiteLLM (1.108) gives to Bedrock's embedding models as something else.

Nova reads ``s3://...`` as the address of an object, with the gateway's own role, and a data URL as
an image, a video or a sound; Cohere and Titan's multimodal model read a data URL as an image. What
that costs has no bound in a text's bytes, and no guardrail sees it.
"""

import re
from collections.abc import Sequence

from terrace_gateway.edge.errors import ApiError
from terrace_gateway.surfaces.json_body import unsupported

# It reads "data:" and "s3://" as they stand here, before prose as well. Addresses behind blanks or
# in capitals are texts to it, and refused all the same: the next release may read them.
_MEDIA = re.compile(r"(?:data:|(?i:\s*(?:s3://|data:\s*[a-z]+/)))")


def media_refused(texts: Sequence[str]) -> ApiError | None:
    """Why Bedrock is not asked for vectors of these texts: the first of them that would not reach
    it as a text. ``None``: all would."""
    match = _MEDIA.match
    for index, text in enumerate(texts):
        if (found := match(text)) is not None:
            begin = found.group().strip()
            return unsupported(
                f"input[{index}] begins with {begin!r}: the model would read it as media or as an"
                " object in S3, not as a text; put a word before it",
                "input",
            )
    return None

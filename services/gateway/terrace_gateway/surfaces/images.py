"""Images in prompts: base64 of a known format. The price book bounds what each may cost."""

import binascii
import re
from base64 import b64decode

from terrace_gateway.surfaces.json_body import as_text, invalid, unsupported

MEDIA_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp")
_DATA_URL = re.compile(r"data:(image/[a-z]+);base64,(.*)", re.DOTALL)


def check_data_url(value: object, where: str) -> str:
    """A ``data:`` URL of an image. Raises ``ApiError`` for any other URL: what is fetched from
    elsewhere cannot be bounded."""
    url = as_text(value, where)
    found = _DATA_URL.fullmatch(url)
    if found is None:
        raise unsupported(
            f"{where}: only data:image/...;base64 URLs; others are not fetched", where
        )
    check_media_type(found[1], where)
    check_base64(found[2], where)
    return url


def check_media_type(value: object, where: str) -> str:
    """One of ``MEDIA_TYPES``."""
    if value not in MEDIA_TYPES:
        raise invalid(f"{where} must be one of {', '.join(MEDIA_TYPES)}", where)
    return str(value)


def check_base64(value: object, where: str) -> str:
    """Base64 of something."""
    text = as_text(value, where)
    try:
        decoded = b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        decoded = b""
    if not decoded:
        raise invalid(f"{where} must be base64", where)
    return text

"""Where a model may process a prompt: read from how its provider is called, or declared."""

from collections.abc import Iterable

from terrace_common.bedrock import parse_model

# Destinations of the profiles of a geography, as far as its name says them. Of the others, and of
# global profiles, the regions are not known: a residency rule refuses those models unless the spec
# declares their regions.
_GEOGRAPHY_REGIONS = {
    "us": ("us-*",),
    "us-gov": ("us-gov-*",),
    "eu": ("eu-*",),
    "apac": ("ap-*",),
    "jp": ("ap-northeast-*",),
}


def bedrock_regions(upstream_model: str, region: str) -> tuple[str, ...]:
    """Regions, or beginnings such as ``eu-*``, that a call of a Bedrock model may be processed in;
    empty: not known. ``region`` is the one that is called."""
    try:
        model = parse_model(upstream_model)
    except ValueError:
        return ()
    if model.kind == "application-inference-profile" or model.region == "":
        return ()  # only AWS knows where it leads
    if model.geography is not None:
        return _GEOGRAPHY_REGIONS.get(model.geography, ())
    return (region,)


def region_allowed(region: str, allowed: Iterable[str]) -> bool:
    """Whether every region that ``region`` may stand for (a name, or ``eu-*``) is covered by one
    of the ``allowed`` names and beginnings."""
    beginning = region[:-1] if region.endswith("*") else None
    for pattern in allowed:
        if pattern.endswith("*"):
            if (region if beginning is None else beginning).startswith(pattern[:-1]):
                return True
        elif beginning is None and region == pattern:
            return True
    return False

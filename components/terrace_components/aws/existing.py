"""A part that exists already is given instead of the settings that would make it."""

from typing import Any

from pydantic import ValidationInfo


def made_here(value: Any, info: ValidationInfo) -> Any:
    """Field validator of a setting that only a part made by the component has. ``existing`` must
    be the first field of the model."""
    if info.data.get("existing") is not None:
        raise ValueError(
            "cannot be set together with existing: what exists already keeps its own settings"
        )
    return value


def needed_to_make(value: Any, info: ValidationInfo) -> Any:
    """Field validator (with ``validate_default``) of what is needed to make the part, and of no
    use when it exists."""
    exists = info.data.get("existing") is not None
    if exists and value is not None:
        raise ValueError("cannot be set together with existing: nothing is made there")
    if not exists and value is None:
        raise ValueError("is required unless existing is given")
    return value

"""Values that the type checker keeps frozen and that cost little to make."""

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(cls: type[T]) -> type[T]:
    """``@dataclass(frozen=True, slots=True)`` for what every call makes.

    Assigning to a field is an error of the type checker's, as with a frozen dataclass, and none at
    run time: there a frozen one sets its fields through ``object.__setattr__``, which takes eight
    times as long.
    """
    return dataclass(slots=True, unsafe_hash=True)(cls)

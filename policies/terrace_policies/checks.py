"""How rules walk over lists and stacks so that one unknown value hides nothing else."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from terrace_policies.model import Finding, Says, Unchecked
from terrace_policies.resources import Node, Resource, UnknownValue


def guarded(check: Callable[[], Iterable[Says]]) -> Iterator[Says]:
    """What ``check`` says; where it meets an unknown value, that it is unchecked; where it fails
    on a value that it did not expect, that nothing was judged."""
    try:
        yield from check()
    except UnknownValue as unknown:
        yield Unchecked(unknown.path, unknown.reason)
    except Exception as error:  # any input, and it must not pass
        yield Finding("", f"cannot be judged, a value has a wrong type: {type(error).__name__}")


def each(nodes: Iterable[Node], check: Callable[[Node], Iterable[Says]]) -> Iterator[Says]:
    """``check`` for every node of one resource."""
    for node in nodes:
        yield from guarded(lambda node=node: check(node))


def each_resource(
    resources: Iterable[Resource], check: Callable[[Resource], Iterable[Says]]
) -> Iterator[Says]:
    """``check`` for every resource of a stack; what it says is about that resource."""
    for resource in resources:
        for says in guarded(lambda resource=resource: check(resource)):
            yield says if says.urn else replace(says, urn=resource.urn)

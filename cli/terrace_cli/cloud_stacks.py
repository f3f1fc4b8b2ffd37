"""`up`, `preview` and `down` of stacks on aws and existing: two stacks as if they were one.

Everything runs in the user's own Pulumi. Settings are checked before anything is run; the first
failure ends the command and says what to do next.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click

from terrace_cli.deletion_protection import describe_protected, find_protected
from terrace_cli.errors import (
    CliError,
    HeldByAnotherError,
    NotRunningError,
    NotUpInTimeError,
    UsageError,
)
from terrace_cli.interruption import end_as_ctrl_c
from terrace_cli.local_backend import refuse_machines_backend
from terrace_cli.places import repository
from terrace_cli.stack_pair import CloudStack, check_stacks, read_stacks
from terrace_cli.stack_settings import configuration
from terrace_cli.stages import check_stage
from terrace_cli.users_pulumi import UsersPulumi

SUBSTRATE_OUTPUT = "substrate"
IMAGES_FIRST = (
    "The platform's pods start once its images are in the substrate's registry: docs/aws.md, "
    '"Images into ECR".'
)


@end_as_ctrl_c()
def bring_up(name: str, *, stage: int | None, yes: bool, packs: Sequence[str] = ()) -> int:
    """Bring the stacks up, the substrate first. Returns the stage.

    Raises UsageError (settings, checked for all stacks before anything runs; the local cluster's
    backend), HeldByAnotherError (locked), NotUpInTimeError (`pulumi up` failed; later stacks were
    not started).
    """
    if stage is not None:
        check_stage(stage)
    clone = repository()
    stacks = read_stacks(clone, name)
    refuse_machines_backend(clone, name)
    result = check_stacks(clone, stacks, stage)
    _needs_consent("up", yes=yes)
    pulumi = UsersPulumi(clone)
    _make_missing(pulumi, stacks)
    options = [*_consent(yes=yes), *_policies(packs)]
    with _unchanged_if_locked(stacks):
        if stage is not None:
            for stack in stacks:
                if str(configuration(clone, stack.name).get("terrace:stage")) != str(stage):
                    pulumi.set_stage(stack.name, stage)
        _up(pulumi, stacks[0], stacks, options)
    for stack in stacks[1:]:
        if not pulumi.outputs(stack.name):
            click.echo(IMAGES_FIRST, err=True)
        with _what_was_done_before(stacks[: stacks.index(stack)], "brought up"):
            _up(pulumi, stack, stacks, options)
    return result


@end_as_ctrl_c()
def preview(name: str, *, packs: Sequence[str] = ()) -> list[CloudStack]:
    """Show what `up` would do. Returns the stacks that could not be previewed yet.

    The platform's program reads the substrate's outputs, so before the substrate stands there is
    nothing to preview it against. A stack that is previewed is made in the backend, empty, if it is
    not there: Pulumi cannot preview without one. Raises UsageError, CliError (a preview failed).
    """
    clone = repository()
    stacks = read_stacks(clone, name)
    refuse_machines_backend(clone, name)
    check_stacks(clone, stacks, None)
    pulumi = UsersPulumi(clone)
    known = pulumi.stack_names()
    for stack in stacks:
        if stack.part == "platform" and SUBSTRATE_OUTPUT not in pulumi.outputs(stacks[0].name):
            return [stack]
        if stack.name not in known:
            _make(pulumi, stack, stacks)
        _say(stack, stacks, "pulumi preview")
        if code := pulumi.show("preview", *_policies(packs), stack=stack.name):
            raise CliError(
                f"`pulumi preview` of {stack.name} failed (code {code}); nothing was changed. "
                "Put right what it says above, and use the same command again."
            )
    return []


@end_as_ctrl_c()
def take_down(name: str, *, yes: bool) -> list[CloudStack]:
    """Destroy the stacks' resources, the platform first. Returns the stacks that there were.

    The empty stacks stay in the backend with their history. Raises NotRunningError when there are
    no such stacks, CliError when something is protected against deletion (then nothing is
    destroyed at all) or `pulumi destroy` failed; stacks below were not touched then.
    """
    clone = repository()
    stacks = read_stacks(clone, name)
    _needs_consent("down", yes=yes)
    pulumi = UsersPulumi(clone)
    known = pulumi.stack_names()
    there = [stack for stack in reversed(stacks) if stack.name in known]
    if not there:
        raise NotRunningError(
            f"There is no stack {' or '.join(stack.name for stack in stacks)} in Pulumi's backend; "
            f"it has: {', '.join(sorted(known)) or 'none'}. `pulumi whoami -v` says which it is."
        )
    for stack in reversed(there):
        if protected := find_protected(stack.name, pulumi.state(stack.name)):
            raise CliError(describe_protected(name, stack.name, protected))
    for stack in there:
        _say(stack, there, "pulumi destroy")
        with _what_was_done_before(there[: there.index(stack)], "destroyed"):
            code = pulumi.show("destroy", *_consent(yes=yes), stack=stack.name)
        if code:
            rest = [other.name for other in there[there.index(stack) + 1 :]]
            untouched = f" {rest[0]} was not touched." if rest else ""
            raise CliError(
                f"`pulumi destroy` of {stack.name} failed (code {code}).{untouched} Put right what "
                f"it says above, and run `terrace down --stack {name}` again: it goes on from "
                "there. After a run that was cut off: docs/runbooks/aws.md."
            )
    return there


def _up(
    pulumi: UsersPulumi,
    stack: CloudStack,
    stacks: Sequence[CloudStack],
    options: Sequence[str],
) -> None:
    _say(stack, stacks, "pulumi up")
    if code := pulumi.show("up", *options, stack=stack.name):
        rest = [other.name for other in stacks[stacks.index(stack) + 1 :]]
        not_started = f" {rest[0]} was not started." if rest else ""
        raise NotUpInTimeError(
            f"`pulumi up` of {stack.name} failed (code {code}).{not_started} What was made is in "
            "the stack's state. Put right what it says above, and run "
            f"`terrace up --stack {stacks[0].name}` again: it goes on from there. After a run that "
            "was cut off: docs/runbooks/aws.md."
        )


def _make_missing(pulumi: UsersPulumi, stacks: Sequence[CloudStack]) -> None:
    known = pulumi.stack_names()
    for stack in stacks:
        if stack.name not in known:
            _make(pulumi, stack, stacks)


def _make(pulumi: UsersPulumi, stack: CloudStack, stacks: Sequence[CloudStack]) -> None:
    _say(stack, stacks, "pulumi stack init")
    pulumi.make_stack(stack.name)


@contextmanager
def _unchanged_if_locked(stacks: Sequence[CloudStack]) -> Iterator[None]:
    """A locked stack means that nothing happened, so the settings files must say so too."""
    before: dict[Path, bytes] = {stack.file: stack.file.read_bytes() for stack in stacks}
    try:
        yield
    except HeldByAnotherError:
        for file, content in before.items():
            if file.read_bytes() != content:
                file.write_bytes(content)
        raise


@contextmanager
def _what_was_done_before(stacks: Sequence[CloudStack], done: str) -> Iterator[None]:
    """A refusal of one stack says that of itself only; the stacks before it are different now."""
    try:
        yield
    except CliError as error:
        if stacks:
            raise type(error)(f"{error}\n{_names(stacks)} {done} before that.") from None
        raise


def _names(stacks: Sequence[CloudStack]) -> str:
    names = " and ".join(stack.name for stack in stacks)
    return f"{names} {'was' if len(stacks) == 1 else 'were'}"


def _needs_consent(command: str, *, yes: bool) -> None:
    if not yes and (sys.stdin is None or not sys.stdin.isatty()):
        raise UsageError(f"not a terminal: add --yes to `terrace {command}`. Nothing was changed.")


def _consent(*, yes: bool) -> list[str]:
    return ["--yes"] if yes else []


def _policies(packs: Sequence[str]) -> list[str]:
    return [word for pack in packs for word in ("--policy-pack", pack)]


def _say(stack: CloudStack, stacks: Sequence[CloudStack], what: str) -> None:
    place = f"{stacks.index(stack) + 1} of {len(stacks)}"
    part = "" if stack.part == "all" else f", {stack.part}"
    click.echo(click.style(f"{what} {stack.name} ({place}{part})", bold=True), err=True)

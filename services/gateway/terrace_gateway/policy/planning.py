"""Working out what a governance text would change: one text at a time in a process.

A large text takes seconds of a thread and of the interpreter, and who may only look may plan. What
is worked out has read what it needs and holds no connection, so that calls, versions that come into
force and kill switches find theirs.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Literal, TypeVar, cast

from terrace_common.governance import GovernanceError
from terrace_common.governance.compile import CompiledGovernance
from terrace_common.governance.effects import PreparedChange
from terrace_common.governance.kill_effects import lost_kills
from terrace_common.governance.plan import Code, Facts, Finding, Plan
from terrace_gateway.database import Connection, Database
from terrace_gateway.policy.deployed import Deployed
from terrace_gateway.policy.facts import read_facts
from terrace_gateway.policy.texts import Texts

MODEL_NOT_DEPLOYED = "model-not-deployed"
MAX_WAITING_OF_ONE = 8
"""Texts that wait for their turn, of one actor."""
MAX_WAITING = 16
"""Of all, per kind."""

Kind = Literal["look", "plan", "apply"]
"""``look``: a plan for somebody who may not apply."""

_HEAD = "SELECT version, text, digest FROM governance_version ORDER BY version DESC LIMIT 1"

_WORDS: dict[Kind, str] = {"look": "plan", "plan": "plan", "apply": "apply"}

T = TypeVar("T")


class TooManyWaitingError(Exception):
    """So many texts wait already."""

    def __init__(self, kind: Kind, whose: str, most: int) -> None:
        super().__init__(f"{most} others{whose} wait for their {_WORDS[kind]} already; try again")


@dataclass(frozen=True, slots=True)
class Base:
    """The version in force that a text would follow."""

    version: int
    text: str
    digest: str


@dataclass(frozen=True, slots=True)
class PreparedText:
    """A text, ready for plans. ``base``: what it would follow; ``None``: there is no version."""

    base: Base | None
    compiled: CompiledGovernance
    change: PreparedChange
    undeployed: tuple[Finding, ...]
    unreadable: Finding | None = None
    """``base`` cannot be read: the change is that of a first version."""

    @property
    def base_version(self) -> int | None:
        """The number of ``base``."""
        return None if self.base is None else self.base.version

    def plan(self, facts: Facts) -> Plan:
        """What the text would change now."""
        plan = self.change.plan(facts)
        findings = (*plan.findings, *self.undeployed)
        if self.unreadable is not None:
            lost = lost_kills(self.compiled.spec, facts.kills)
            findings = (self.unreadable, *lost, *findings)
        return replace(plan, findings=findings)


class Planning:
    """The turns, and the work that is done in one."""

    def __init__(self, database: Database, deployed: Deployed, texts: Texts) -> None:
        self._database = database
        self._deployed = deployed
        self._texts = texts
        self._turn = asyncio.Lock()
        self._next_plan = asyncio.Lock()
        self._next_look = asyncio.Lock()
        self._there: dict[Kind, Counter[str]] = {kind: Counter() for kind in _WORDS}

    @asynccontextmanager
    async def turn(self, kind: Kind, actor: str) -> AsyncGenerator[None]:
        """The process's only one. Of plans one at most is before an apply, and of looks one before
        a plan that has its turn next.

        Raises ``TooManyWaitingError``.
        """
        with self._place(kind, actor):
            if kind == "apply":
                async with self._turn:
                    yield
                return
            if kind == "plan":
                async with self._next_plan, self._turn:
                    yield
                return
            async with self._next_look, self._next_plan, self._turn:
                yield

    async def prepare(
        self, text: str, check: Callable[[int | None], None] = lambda _: None
    ) -> tuple[PreparedText, Plan]:
        """``text`` and its plan on what the database has now. In a turn only.

        ``check`` is called with the version in force, before the work. Raises what it raises, and
        ``GovernanceError``.
        """
        async with self._database.connection() as connection, connection.transaction():
            base = await read_base(connection)
            check(None if base is None else base.version)
            facts = await read_facts(connection)
        return await in_thread(lambda: self._prepared(base, text, facts))

    def _prepared(self, base: Base | None, text: str, facts: Facts) -> tuple[PreparedText, Plan]:
        compiled = self._texts.compile(text)
        old, unreadable = self._read(base)
        undeployed = tuple(
            Finding(
                code=cast("Code", MODEL_NOT_DEPLOYED),
                message=f"model {name!r} needs a rollout first: {why}",
                line=None,
                blocking=True,
            )
            for name, why in self._deployed.missing(compiled.spec).items()
        )
        change = PreparedChange(old, compiled, new_text=text)
        prepared = PreparedText(base, compiled, change, undeployed, unreadable)
        return prepared, prepared.plan(facts)

    def _read(self, base: Base | None) -> tuple[CompiledGovernance | None, Finding | None]:
        """A base that another release wrote, say, must not keep a good text out."""
        if base is None:
            return None, None
        try:
            return self._texts.was_in_force(base.text), None
        except GovernanceError as error:
            message = (
                f"this release cannot read version {base.version}, which is in force: {error}. What"
                " the text takes from live keys, and changes of prices, addresses and caps, cannot"
                " be compared: it is judged like a first version"
            )
            return None, Finding("base-unreadable", message, line=None, blocking=True)

    @contextmanager
    def _place(self, kind: Kind, actor: str) -> Generator[None]:
        there = self._there[kind]
        if there[actor] > MAX_WAITING_OF_ONE:
            raise TooManyWaitingError(kind, " of this actor", MAX_WAITING_OF_ONE)
        if there.total() > MAX_WAITING:
            raise TooManyWaitingError(kind, "", MAX_WAITING)
        there[actor] += 1
        try:
            yield
        finally:
            there[actor] -= 1
            if not there[actor]:
                del there[actor]


async def read_base(connection: Connection) -> Base | None:
    """The version in force."""
    cursor = await connection.execute(_HEAD)
    row = await cursor.fetchone()
    return None if row is None else Base(*row)


async def in_thread(work: Callable[[], T]) -> T:
    """Do ``work`` in a thread. Who is cancelled waits for it: a thread cannot be stopped, and a
    turn that was given away early would have two."""
    task = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            with suppress(asyncio.CancelledError):  # again
                await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # seen: nobody asks for it any more
        raise

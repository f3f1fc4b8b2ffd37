"""The chain: who is asked when, what holds when they disagree, fail, or are slow."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from terrace_common.governance.guardrails import Action, Phase
from terrace_gateway.calls.ports import EffectivePolicy, Verdict
from terrace_gateway.edge.errors import CONTENT_BLOCKED, GUARDRAIL_UNAVAILABLE, ApiError
from terrace_gateway.guardrails.chain import GuardrailRun, Guardrails
from terrace_gateway.guardrails.port import GuardrailFailedError, Meter, PartFilter

from .guardrail_samples import PERSONAL, SECRETS
from .guardrail_world import guardrails_of, start

pytestmark = pytest.mark.unit

SPEC = """
  - {name: secrets, kind: secrets, action: mask}
  - {name: pii, kind: personal_data, action: mask}
  - {name: words, kind: content, action: block, words: [project zeus]}
  - {name: open-words, kind: content, action: flag, words: [project zeus]}
  - {name: mask-words, kind: content, action: mask, words: [project zeus]}
  - {name: before-only, kind: content, action: block, words: [zeus], phases: [before]}
  - {name: after-only, kind: content, action: mask, words: [zeus], phases: [after]}
"""


@dataclass
class Scripted:
    """A remote guardrail that does as told."""

    name: str = "remote"
    action: Action = "block"
    phases: frozenset[Phase] = frozenset({"before", "after"})
    fails_open: bool = False
    timeout_seconds: float = 0.05
    local: bool = False
    verdict: Verdict | Exception | None = None
    slow: bool = False
    asked: list[tuple[str, ...]] = field(default_factory=list)

    async def before(self, texts: Sequence[str], meter: Meter | None) -> Verdict:
        self.asked.append(tuple(texts))
        if self.slow:
            await asyncio.sleep(30)
        if isinstance(self.verdict, Exception):
            raise self.verdict
        return self.verdict or Verdict("allow", self.name)

    async def after(self, texts: Sequence[str], meter: Meter | None) -> Verdict:
        return await self.before(texts, meter)

    def stream(self) -> PartFilter | None:
        return None


def told(run: GuardrailRun) -> list[tuple[str, str, object]]:
    """Decisions, without ids."""
    found = run.decisions(request_id="r", trace_id="t", caller=None)
    return [(one.decision, one.reason, one.detail["rules"]) for one in found]


async def blocked(run: GuardrailRun, *texts: str) -> ApiError:
    with pytest.raises(ApiError) as caught:
        await run.before(texts)
    return caught.value


async def test_masks_compose_and_nothing_of_the_text_is_in_the_decisions() -> None:
    secret, person = SECRETS["github-token"], PERSONAL["email"]
    run = start(guardrails_of(SPEC), "secrets", "pii")
    passed = await run.before([f"{secret[0]} {person[0]}", "fine", ""])
    assert passed == (
        "[masked:github-token] write to [masked:email]!", "fine", "",
    )  # fmt: skip
    decisions = run.decisions(request_id="r", trace_id="t", caller=None)
    assert [one.decision for one in decisions] == ["mask", "mask"]
    assert secret[1] not in repr(decisions)
    assert person[1] not in repr(decisions)
    assert run.decisions(request_id="r", trace_id="t", caller=None) == []


async def test_a_block_wins_and_the_remote_one_is_not_asked_any_more() -> None:
    remote = Scripted()
    guardrails = Guardrails([remote, *guardrails_of(SPEC)._by_name.values()])
    run = start(guardrails, "remote", "secrets", "words")
    error = await blocked(run, "on Project Zeus")
    assert (error.code, error.status) == (CONTENT_BLOCKED, 400)
    assert "words" in error.message
    assert "Zeus" not in error.message
    assert remote.asked == []
    assert told(run) == [("deny", "guardrail:words", ["words"])]


async def test_the_remote_one_sees_what_the_local_ones_left() -> None:
    remote = Scripted()
    guardrails = Guardrails([remote, *guardrails_of(SPEC)._by_name.values()])
    await start(guardrails, "remote", "mask-words").before(["project zeus"])
    assert remote.asked == [("[masked:words]",)]


async def test_a_flag_changes_nothing_and_is_told() -> None:
    run = start(guardrails_of(SPEC), "open-words")
    assert await run.before(["project zeus"]) == ("project zeus",)
    assert told(run) == [("flag", "guardrail:open-words", ["words"])]


async def test_an_audit_policy_only_tells_what_it_would_do() -> None:
    run = start(guardrails_of(SPEC), audit=("words", "mask-words"))
    assert await run.before(["project zeus"]) == ("project zeus",)
    assert told(run) == [
        ("would_deny", "guardrail:words", ["words"]),
        ("flag", "guardrail:mask-words", ["words"]),
    ]
    stream = run.stream()
    assert stream is not None
    assert stream.feed("project ze") == "project ze"
    assert stream.feed("us") + stream.flush() == "us"
    assert [one[0] for one in told(run)] == ["would_deny", "flag"]


async def test_what_blocks_in_one_policy_and_watches_in_another_blocks() -> None:
    await blocked(start(guardrails_of(SPEC), "words", audit=("words",)), "project zeus")


def test_a_guardrail_that_the_spec_does_not_have_refuses() -> None:
    with pytest.raises(ApiError) as caught:
        guardrails_of(SPEC).start(EffectivePolicy(guardrails=("gone",)), None)
    assert caught.value.code == GUARDRAIL_UNAVAILABLE


@pytest.mark.parametrize("trouble", ["slow", "failing"])
@pytest.mark.parametrize("fails_open", [False, True])
async def test_what_cannot_say_fails_as_it_is_declared(trouble: str, fails_open: bool) -> None:
    remote = Scripted(fails_open=fails_open, slow=trouble == "slow")
    if trouble == "failing":
        remote.verdict = GuardrailFailedError("down")
    run = start(Guardrails([remote]), "remote")
    if fails_open:
        assert await run.before(["x"]) == ("x",)
        assert told(run) == [("alert", "guardrail:remote", [])]
    else:
        error = await blocked(run, "x")
        assert (error.code, error.status) == (GUARDRAIL_UNAVAILABLE, 503)
        assert told(run) == [("deny", "guardrail:remote", [])]


async def test_an_audit_guardrail_that_fails_closed_refuses_nobody() -> None:
    remote = Scripted(verdict=ApiError("budget_exhausted", "no"))
    run = start(Guardrails([remote]), audit=("remote",))
    assert await run.before(["x"]) == ("x",)


@pytest.mark.parametrize(
    ("action", "verdict", "ends"),
    [
        ("block", Verdict("flag", "remote", ("r",)), "flag"),
        ("block", Verdict("mask", "remote", ("r",), texts=("y",)), "deny"),
        ("mask", Verdict("block", "remote", ("r",)), "deny"),
        ("mask", Verdict("mask", "remote", ("r",), texts=("y",)), "mask"),
        ("mask", Verdict("mask", "remote", ("r",), texts=("y", "z")), "deny"),
        ("flag", Verdict("block", "remote", ("r",)), "flag"),
    ],
)
async def test_the_spec_and_the_verdict_together(
    action: Action, verdict: Verdict, ends: str
) -> None:
    run = start(Guardrails([Scripted(action=action, verdict=verdict)]), "remote")
    if ends == "deny":
        await blocked(run, "x")
    else:
        assert await run.before(["x"]) == (("y",) if ends == "mask" else ("x",))
    assert [one[0] for one in told(run)] == [ends]


@pytest.mark.parametrize("form", ["plain", "stream"])
async def test_a_client_cannot_choose_the_form_of_answer_that_is_not_looked_at(form: str) -> None:
    run = start(guardrails_of(SPEC), "after-only", "before-only")
    if form == "plain":
        assert await run.after(["zeus"]) == ("[masked:words]",)
    else:
        stream = run.stream()
        assert stream is not None
        assert stream.feed("ze") + stream.feed("us") + stream.flush() == "[masked:words]"
    assert await run.before(["ze us"]) == ("ze us",)


async def test_a_remote_guardrail_of_answers_holds_the_stream() -> None:
    remote = Scripted(verdict=Verdict("block", "remote", ("r",)))
    run = start(Guardrails([remote]), "remote")
    stream = run.stream()
    assert stream is not None
    assert stream.holds
    assert stream.feed("a") + stream.feed("b") + stream.flush() == "ab"
    with pytest.raises(ApiError):
        await stream.check()
    assert remote.asked == [("ab",)]


async def test_a_remote_mask_in_the_stream_is_a_block_and_a_flag_does_not_hold() -> None:
    masking = Scripted(action="mask", verdict=Verdict("mask", "remote", ("r",), texts=("y",)))
    stream = start(Guardrails([masking]), "remote").stream()
    assert stream is not None
    stream.feed("x")
    with pytest.raises(ApiError):
        await stream.check()
    flagging = start(Guardrails([Scripted(action="flag")]), "remote").stream()
    assert flagging is not None
    assert not flagging.holds


async def test_stages_of_a_stream_pass_on_to_each_other_to_the_end() -> None:
    run = start(guardrails_of(SPEC), "secrets", "pii", "mask-words")
    stream = run.stream()
    assert stream is not None
    text = f"a {SECRETS['jwt'][0]}, {PERSONAL['email'][0]} of project zeus"
    shown = "".join(stream.feed(sign) for sign in text) + stream.flush()
    assert shown == ("a token [masked:jwt] end, write to [masked:email]! of [masked:words]")
    assert sorted(one[2][0] for one in told(run)) == ["email", "jwt", "words"]  # type: ignore[index]


async def test_a_block_in_the_stream_ends_it_before_the_match_is_shown() -> None:
    stream = start(guardrails_of(SPEC), "words").stream()
    assert stream is not None
    shown = stream.feed("all about project ")
    assert "project" not in shown
    with pytest.raises(ApiError):
        stream.feed("zeus and")


@pytest.mark.parametrize("fails_open", [True, False])
async def test_a_stream_whose_guardrail_gives_up_loses_nothing(fails_open: bool) -> None:
    failure = "open" if fails_open else "closed"
    spec = (
        "  - {name: n, kind: content, action: mask, on_failure: " + failure + ","
        " patterns: [{name: n, pattern: '[ab]'}]}\n"
    )
    stream = start(guardrails_of(spec), "n").stream()
    assert stream is not None
    text = "ab" * 8_000 + " the end"
    if not fails_open:
        with pytest.raises(ApiError):
            stream.feed(text)
        return
    shown = stream.feed("x") + stream.feed(text) + stream.feed(" really") + stream.flush()
    assert shown.endswith(" the end really")
    assert shown.startswith("x")


@pytest.mark.parametrize(
    ("action", "audit"), [("flag", False), ("flag", True), ("mask", True), ("block", True)]
)
@pytest.mark.parametrize("size", [1, 3, 5, 1000])
def test_what_only_records_changes_nothing_when_it_gives_up(
    action: str, audit: bool, size: int
) -> None:
    spec = (
        "  - {name: n, kind: content, action: " + action + ", on_failure: open,"
        " patterns: [{name: n, pattern: 'a[ab]{0,9}'}]}\n"
    )
    run = start(guardrails_of(spec), *(() if audit else ("n",)), audit=("n",))
    stream = run.stream()
    assert stream is not None
    text = "abba cd " * 12_000 + " the end abb"
    pieces = [text[place : place + size] for place in range(0, len(text), size)]
    assert "".join(map(stream.feed, pieces)) + stream.flush() == text
    assert "alert" in [one[0] for one in told(run)]


async def test_a_remote_guardrail_gets_what_arguments_in_a_stream_say() -> None:
    remote = Scripted()
    stream = start(Guardrails([remote]), "remote").stream()
    assert stream is not None
    for part, pieces in {"text": ["C:\\new ", "one"], "call": ['{"a": "x\\', 'ny\\"z"}']}.items():
        assert "".join(stream.feed(piece, part) for piece in pieces) + stream.flush()
    await stream.check()
    assert remote.asked == [("C:\\new one", '{"a": "x\ny\\"z"}')]

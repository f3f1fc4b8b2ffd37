"""Prompt injection: phrases that try to take over the model, seen through common disguises.

A list of phrases finds what is written plainly or lightly hidden. It does not find an attack in
other words or in another language; it is one layer, see docs/gateway/guardrails.md.
"""

import asyncio
import base64
import binascii
import unicodedata
from collections.abc import Generator, Sequence

from terrace_common.governance.guardrails import Action
from terrace_gateway.calls.ports import Verdict
from terrace_gateway.guardrails.escapes import depth_of, unescaped
from terrace_gateway.guardrails.local import AskingTurns, Named, scan_slices
from terrace_gateway.guardrails.port import Meter, PartFilter
from terrace_gateway.guardrails.scan import Rule, RuleSet
from terrace_gateway.linear_search import compile_pattern, decode, encode, runs

VERSION = "1"
"""Of the list of rules; it goes up with every change."""

_GAP = r"[^a-z0-9]{1,4}"
_WORDS = r"(?:[a-z0-9']{1,20}[^a-z0-9]{1,4}){0,5}?"
_ORDERS = (
    r"(?:instructions?|prompts?|rules?|guidelines?|directions?|directives?|commands?"
    r"|polic(?:y|ies)|restrictions?|safeguards?)"
)
RULES = (
    Rule(
        "ignore-instructions",
        rf"\b(?:ignore|disregard|forget|override|bypass|skip|neglect){_GAP}{_WORDS}"
        rf"(?:previous|prior|above|earlier|preceding|all|any|your|system|existing|these|those)"
        rf"{_GAP}{_WORDS}{_ORDERS}\b",
    ),
    Rule(
        "reveal-instructions",
        rf"\b(?:reveal|print|show|repeat|output|leak|display|dump|recite|tell me|give me){_GAP}"
        rf"{_WORDS}(?:system|hidden|initial|original|developer|secret){_GAP}"
        r"(?:prompt|message|instructions?|rules)\b",
    ),
    Rule(
        "new-role",
        rf"\b(?:you are now|act as|pretend to be|you will be|become){_GAP}{_WORDS}"
        r"(?:dan|jailbroken|unrestricted|unfiltered|uncensored|developer mode|evil)\b"
        r"|\bdo anything now\b|\bdeveloper mode (?:enabled|on|activated)\b|\bjailbreak mode\b",
    ),
    Rule(
        "no-limits",
        rf"\b(?:without|no|disable|remove|turn off){_GAP}{_WORDS}"
        r"(?:safety|ethical|moral|content)[^a-z0-9]{1,4}"
        r"(?:filters?|guidelines?|restrictions?|limits?|limitations?|checks?|guardrails?)\b",
    ),
    Rule(
        "chat-template",
        r"<\|(?:im_start|im_end|system|user|assistant|endoftext|eot_id|start_header_id)\|>"
        r"|\[/?inst\]|<</?sys>>|<(?:start|end)_of_turn>",
    ),
    Rule(
        "new-instructions",
        r"\b(?:new|updated|real|actual) (?:system )?instructions?[^a-z0-9]{0,2}:"
        r"|#{2,3} ?(?:system|instruction)s? ?(?:prompt|message)? ?:",
    ),
    Rule(
        "send-out",
        rf"\b(?:send|post|upload|exfiltrate|forward|email|transmit){_GAP}{_WORDS}"
        r"(?:api keys?|passwords?|credentials|secrets?|tokens?|conversation|chat history"
        rf"|system prompt){_GAP}{_WORDS}(?:to|at|via)\b"
        r"|!\[[^\]]{0,40}\]\(https?://[^\s)]{1,200}[?&][^\s)=]{1,40}=",
    ),
)
_HIDDEN = "hidden-text"
_ENCODED = r"[A-Za-z0-9+/_-]{24,}={0,2}"
_HEX = r"(?:[0-9a-fA-F]{2}[ :]?){16,}"
_SPACED = r"\b(?:\w[ .*_-]){4,}\w\b"
_SPACES = b" .*_-"
_TAG_FIRST, _TAG_LAST = 0xE0000, 0xE007F
_MIN_TAGS = 8
_LEET = str.maketrans("013457@$!|", "oieastasil")
# Letters of other scripts that look like Latin ones; the rest is folded by NFKC.
_LOOKALIKES = str.maketrans(
    "\u0430\u0435\u043e\u0440\u0441\u0443\u0445\u0456\u0458\u0455\u0501\u051b\u0475\u0261\u03bf\u03b1\u03b9\u03ba\u03bd\u03c1\u03c4\u03c5\u0131",
    "aeopcyxijsdqvgoaikvptui",
)
MAX_DECODED = 64 * 1024
WINDOW = 16 * 1024
OVERLAP = 2 * 1024
"""Characters that are folded and decoded at once; a phrase is shorter than the overlap."""


class InjectionGuard:
    """The rules on what a model might read into the text."""

    local = True

    def __init__(self, named: Named) -> None:
        self.name = named.name
        self.action: Action = named.action
        self.phases = named.phases
        self.fails_open = named.fails_open
        self.timeout_seconds = named.timeout_seconds
        self._rules = RuleSet(RULES)
        self._views = Views()

    async def before(self, texts: Sequence[str], meter: Meter | None) -> Verdict:
        """The verdict; nothing is masked."""
        del meter
        found: dict[str, None] = {}
        asking = AskingTurns()
        for text in texts:
            for start in range(0, len(text), WINDOW):
                part = text[start : start + WINDOW + OVERLAP]
                await self._look(part, found, asking)
                for depth in range(1, depth_of(part) + 1):
                    await self._look(unescaped(part, depth), found, asking)
                await asyncio.sleep(0)
        return Verdict(self.action if found else "allow", self.name, tuple(found))

    async def _look(self, text: str, found: dict[str, None], asking: AskingTurns) -> None:
        for view, prefix in self._views.of(text):
            here: dict[str, None] = {}
            await scan_slices(self._rules, view, here, asking)
            found.update(dict.fromkeys(prefix + name for name in here))
        if hidden_text(text):
            found[_HIDDEN] = None

    async def after(self, texts: Sequence[str], meter: Meter | None) -> Verdict:
        """Answers are not looked at."""
        del texts, meter
        return Verdict("allow", self.name)

    def stream(self) -> PartFilter | None:
        """Answers are not looked at."""
        return None


class Views:
    """A text as a model may read it."""

    def __init__(self) -> None:
        self._spaced = compile_pattern(_SPACED)
        self._encoded = compile_pattern(_ENCODED)
        self._hex = compile_pattern(_HEX)

    def of(self, text: str) -> Generator[tuple[str, str]]:
        """Each view, and what to put before the names of rules found there."""
        plain = folded(text)
        yield plain, ""
        leet = plain.translate(_LEET)
        if leet != plain:
            yield leet, "disguised:"
        closed = self._closed(encode(plain))
        if closed is not None:
            yield closed, "disguised:"
        decoded = " ".join(self._decoded(encode(text)))
        if decoded:
            yield folded(decoded), "encoded:"

    def _closed(self, plain: bytes) -> str | None:
        parts: list[bytes] = []
        place = 0
        for start, stop in runs(self._spaced, plain):
            parts += [plain[place:start], plain[start:stop].translate(None, _SPACES)]
            place = stop
        return decode(b"".join([*parts, plain[place:]])) if parts else None

    def _decoded(self, text: bytes) -> Generator[str]:
        budget = MAX_DECODED
        for pattern, decoded in ((self._encoded, _base64), (self._hex, _hex)):
            for start, stop in runs(pattern, text):
                if budget <= 0:
                    return
                budget -= stop - start
                found = _printable(decoded(text[start:stop]))
                if found:
                    yield found


def folded(text: str) -> str:
    """One spelling of what looks the same: compatibility forms, case, accents and lookalikes of
    Latin letters; characters that are not seen are gone."""
    if text.isascii():
        return text.lower()
    shown = "".join(_seen(sign) for sign in text)
    wide = unicodedata.normalize("NFKD", shown).casefold()
    marks = "".join(sign for sign in wide if unicodedata.category(sign) not in ("Mn", "Cf"))
    return marks.translate(_LOOKALIKES)


def hidden_text(text: str) -> bool:
    """Whether the text has characters of the tag block, which spell ASCII that nobody sees."""
    if text.isascii():
        return False
    return sum(_TAG_FIRST <= ord(sign) <= _TAG_LAST for sign in text) >= _MIN_TAGS


def _seen(sign: str) -> str:
    code = ord(sign)
    return chr(code - _TAG_FIRST) if _TAG_FIRST < code <= _TAG_LAST else sign


def _printable(data: bytes | None) -> str | None:
    try:
        text = (data or b"").decode()
    except UnicodeDecodeError:
        return None
    return text if text.replace("\n", " ").isprintable() else None


def _base64(run: bytes) -> bytes | None:
    plain = run.rstrip(b"=").replace(b"-", b"+").replace(b"_", b"/")
    try:
        return base64.b64decode(plain + b"=" * (-len(plain) % 4), validate=True)
    except (binascii.Error, ValueError):
        return None


def _hex(run: bytes) -> bytes | None:
    try:
        return bytes.fromhex(run.decode().replace(":", " "))
    except ValueError:
        return None

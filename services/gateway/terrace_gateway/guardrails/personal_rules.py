"""The library of personal data: fixed forms with their check digits. No names, no addresses."""

import re
from collections.abc import Callable, Sequence
from datetime import date
from functools import partial

import phonenumbers

from terrace_common.governance.guardrails import PersonalDataRule
from terrace_gateway.guardrails.scan import Rule

# First four digits and lengths: Mastercard, Diners, Amex and JCB, Visa, Maestro, UnionPay, others.
_CARDS: tuple[tuple[int, int, Sequence[int]], ...] = (
    (2221, 2720, (16,)), (3000, 3099, (14, 16)), (3400, 3999, (14, 15, 16)),
    (4000, 4999, (13, 16, 19)), (5000, 5099, range(12, 20)), (5100, 5599, (16,)),
    (5600, 5999, range(12, 20)), (6000, 6999, range(12, 20)),
)  # fmt: skip
_MIN_NATIONAL_DIGITS = 8
_NO_PHONE = re.compile(r"\d{1,3}(\.\d{1,3}){3}(/\d{1,2})?|\d{4}[-/. ]\d{4}|\d{1,3}(/\d{1,3}){2,}")
"""An IPv4 address or network, a span of years, a list of small numbers."""
_DNI_LETTERS = "TRWAGMYFPDXBNJZSQVHLCKE"
_FISCAL_ODD = (
    1, 0, 5, 7, 9, 13, 15, 17, 19, 21, 2, 4, 18, 20, 11, 3, 6, 8, 12, 14, 16, 10, 22, 25, 24, 23,
)  # fmt: skip
_NINO_NEVER = frozenset(["BG", "GB", "KN", "NK", "NT", "TN", "ZZ"])


def is_card(text: str) -> bool:
    """A payment card's number by ISO/IEC 7812: an issuer's first digits and lengths, Luhn."""
    digits = _digits(text)
    first = int("".join(map(str, digits[:4])))
    lengths = next((long for low, high, long in _CARDS if low <= first <= high), ())
    if len(digits) not in lengths or len(set(digits)) == 1:
        return False
    doubled = [d if i % 2 == 0 else d * 2 - 9 * (d > 4) for i, d in enumerate(reversed(digits))]
    return sum(doubled) % 10 == 0


def is_iban(text: str) -> bool:
    """An account number by ISO 13616 (mod 97)."""
    compact = "".join(text.split()).upper()
    if not 15 <= len(compact) <= 34:
        return False
    turned = compact[4:] + compact[:4]
    return int("".join(str(int(sign, 36)) for sign in turned)) % 97 == 1


def is_us_ssn(text: str) -> bool:
    """A number that the US Social Security Administration may have given."""
    area, group, serial = text[:3], text[4:6], text[7:]
    return area not in ("000", "666") and area < "900" and group != "00" and serial != "0000"


def is_uk_nino(text: str) -> bool:
    """A British National Insurance number's prefix."""
    return text[:2].upper() not in _NINO_NEVER


def is_es_dni(text: str) -> bool:
    """A Spanish DNI or NIE: its letter."""
    number = text.upper().replace("-", "")
    first = {"X": "0", "Y": "1", "Z": "2"}.get(number[0], number[0])
    return _DNI_LETTERS[int(first + number[1:-1]) % 23] == number[-1]


def is_fr_nir(text: str) -> bool:
    """A French social security number: 97 minus the rest."""
    compact = text.upper().replace(" ", "")
    number = compact[:13].replace("2A", "19").replace("2B", "18")
    return number.isdigit() and 97 - int(number) % 97 == int(compact[13:])


def is_de_tax_id(text: str) -> bool:
    """A German tax id: one digit comes two or three times, ISO 7064 MOD 11,10."""
    digits = _digits(text)
    counts = [digits[:10].count(digit) for digit in set(digits[:10])]
    if digits[0] == 0 or sorted(counts)[-1] not in (2, 3) or sum(n > 1 for n in counts) != 1:
        return False
    product = 10
    for digit in digits[:10]:
        product = ((digit + product) % 10 or 10) * 2 % 11
    return (11 - product) % 10 == digits[10]


def is_br_cpf(text: str) -> bool:
    """A Brazilian CPF: two check digits."""
    digits = _digits(text)
    if len(set(digits)) == 1:
        return False
    for length in (9, 10):
        total = sum(d * (length + 1 - i) for i, d in enumerate(digits[:length]))
        if total * 10 % 11 % 10 != digits[length]:
            return False
    return True


def is_it_fiscal_code(text: str) -> bool:
    """An Italian fiscal code: its last letter."""
    code = text.upper()
    total = 0
    for index, sign in enumerate(code[:15]):
        value = int(sign) if sign.isdigit() else ord(sign) - ord("A")
        total += _FISCAL_ODD[value] if index % 2 == 0 else value
    return chr(ord("A") + total % 26) == code[15]


def is_ip_address(text: str) -> bool:
    """IPv4 outside of what is never a person's: loopback, private and documentation networks."""
    parts = [int(part) for part in text.split(".")]
    return (
        all(part <= 255 for part in parts)
        and parts[0] not in (0, 10, 127)
        and parts[0] < 224
        and parts[:2] not in ([192, 168], [169, 254])
        and not (parts[0] == 172 and 16 <= parts[1] < 32)
        and parts[:3] not in ([192, 0, 2], [198, 51, 100], [203, 0, 113])
    )


def is_phone(text: str, *, regions: tuple[str, ...]) -> bool:
    """A number that a numbering plan has: with ``+`` of any country, else of ``regions``."""
    compact = text.strip()
    if sum(sign.isdigit() for sign in compact) < 7 or _is_date(compact):
        return False
    international = compact.startswith("+")
    if not international and (
        sum(sign.isdigit() for sign in compact) < _MIN_NATIONAL_DIGITS
        or _NO_PHONE.fullmatch(compact)
    ):
        return False
    tried: tuple[str | None, ...] = (None,) if international else regions
    for region in tried:
        try:
            number = phonenumbers.parse(compact, region)
        except phonenumbers.NumberParseException:
            continue
        if phonenumbers.is_valid_number(number):
            return True
    return False


_NATIONAL_PHONE = r"(?:\(\d{1,5}\)[ .-]?|\b)\d(?:[ ./-]{0,2}\d){7,13}\b"
_NO_PHONE_AFTER = b"-_./=&#"  # the end of an identifier, a path or a fraction
_NOT_AFTER: dict[PersonalDataRule, bytes] = {
    "phone": _NO_PHONE_AFTER, "card": b"-_./", "es-dni": b".-_", "de-tax-id": b".-_",
}  # fmt: skip
_RULES: dict[PersonalDataRule, tuple[str, Callable[[str], bool] | None, bool]] = {
    "email": (
        r"\b[A-Za-z0-9][A-Za-z0-9._%+-]{0,63}@(?:[A-Za-z0-9](?:[A-Za-z0-9-]{0,62})\.){1,6}"
        r"[A-Za-z]{2,24}\b",
        None,
        False,
    ),
    "card": (r"\b\d(?:[ -]?\d){11,18}\b", is_card, False),
    "iban": (r"\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]){11,30}\b", is_iban, False),
    "us-ssn": (r"\b\d{3}-\d{2}-\d{4}\b", is_us_ssn, False),
    "uk-nino": (
        r"\b[A-CEGHJ-PR-TW-Z][A-CEGHJ-NPR-TW-Z] ?\d{2} ?\d{2} ?\d{2} ?[A-D]\b",
        is_uk_nino,
        True,
    ),
    "es-dni": (r"\b(?:[XYZ]-?\d{7}|\d{8})-?[A-HJ-NP-TV-Z]\b", is_es_dni, True),
    "fr-nir": (r"\b[12] ?\d{2} ?[0-9]{2} ?(?:\d{2}|2[AB]) ?\d{3} ?\d{3} ?\d{2}\b", is_fr_nir, True),
    "de-tax-id": (r"\b\d{2} ?\d{3} ?\d{3} ?\d{3}\b", is_de_tax_id, False),
    "br-cpf": (r"\b\d{3}\.\d{3}\.\d{3}-\d{2}\b", is_br_cpf, False),
    "it-fiscal-code": (
        r"\b[A-Z]{6}\d{2}[A-EHLMPRST]\d{2}[A-Z]\d{3}[A-Z]\b",
        is_it_fiscal_code,
        True,
    ),
    "ip-address": (r"\b\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}\b", is_ip_address, False),
    "mac-address": (r"\b[0-9A-F]{2}(?:[:-][0-9A-F]{2}){5}\b", None, True),
}  # fmt: skip


def personal_rules(
    names: tuple[PersonalDataRule, ...], *, phone_regions: tuple[str, ...]
) -> list[Rule]:
    """Rules of the library by name. ``phone_regions``: see ``PersonalDataGuardrail``."""
    rules: list[Rule] = []
    for name in names:
        if name == "phone":
            pattern = r"\+\d(?:[ ()./-]{0,3}\d){6,14}\b"
            if phone_regions:
                pattern = f"{pattern}|{_NATIONAL_PHONE}"
            check = partial(is_phone, regions=phone_regions)
            rules.append(Rule(name, pattern, check, not_after=_NOT_AFTER[name]))
        else:
            pattern, check, ignore_case = _RULES[name]
            after = _NOT_AFTER.get(name, b"")
            rules.append(Rule(name, pattern, check, ignore_case, not_after=after))
    return rules


def personal_rule_names() -> frozenset[str]:
    """Names of the library's rules."""
    return frozenset({*_RULES, "phone"})


def _digits(text: str) -> list[int]:
    return [int(sign) for sign in text if "0" <= sign <= "9"]


def _is_date(text: str) -> bool:
    try:
        date.fromisoformat(text[:10])
    except ValueError:
        return False
    return True

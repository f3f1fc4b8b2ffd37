"""Made-up secrets and personal data, assembled here so that no scanner finds them in this file."""

import base64
import json

A = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"


def mixed(length: int, step: int = 17) -> str:
    """Letters and digits that look random."""
    return "".join(A[(index * step + index * index) % len(A)] for index in range(length))


def jwt() -> str:
    """A token's shape."""
    parts = [{"alg": "RS256", "typ": "JWT"}, {"sub": "jo", "iss": "https://login.acme.example"}]
    texts = [base64.urlsafe_b64encode(json.dumps(p).encode()).decode().rstrip("=") for p in parts]
    return ".".join([*texts, mixed(86)])


PEM = "\n".join(
    [
        "-----BEGIN " + "RSA PRIVATE KEY-----",
        *[mixed(64, step) for step in (3, 5, 7)],
        "-----END RSA",
    ]
)

SECRETS: dict[str, tuple[str, str]] = {
    # rule: text, what must be gone
    "anthropic-key": (f"use {'sk-' + 'ant-'}{mixed(90)} now", "sk-" + "ant-" + mixed(90)),
    "aws-access-key-id": ("id AKIA" + "IOSFODNN7EXAMPLE.", "AKIA" + "IOSFODNN7EXAMPLE"),
    "aws-secret-key": (f"aws_secret_access_key = {mixed(40)}", mixed(40)),
    "azure-storage-key": (f"AccountName=x;AccountKey={mixed(86)}==;", mixed(86)),
    "bearer-token": (f"Authorization: Bearer {mixed(40, 11)}", mixed(40, 11)),
    "connection-password": ("postgres://jo:" + "h4ck-Me-9@db.acme.example/x", "h4ck-Me-9"),
    "generic-assignment": ('{"db_password": "' + 'tR0ub4dor&3"}', "tR0ub4dor&3"),
    "github-token": (f"ghp_{mixed(36)}", mixed(36)),
    "gitlab-token": (f"glpat-{mixed(20)}", mixed(20)),
    "google-api-key": (f"?key=AIza{mixed(35)}", mixed(35)),
    "huggingface-token": (f"hf_{mixed(34)} ", mixed(34)),
    "jwt": (f"token {jwt()} end", jwt()),
    "npm-token": (f"npm_{mixed(36)}", mixed(36)),
    "openai-key": (f"sk-proj-{mixed(48)}", mixed(48)),
    "private-key": (f"here:\n{PEM}", mixed(64, 5)),
    "pypi-token": (f"pypi-AgE{mixed(80)}", mixed(80)),
    "sendgrid-key": (f"SG.{mixed(22)}.{mixed(43)}", mixed(43)),
    "slack-token": (f"xoxb-{mixed(12)}-{mixed(24)}", mixed(24)),
    "slack-webhook": (f"https://hooks.slack.com/services/T{mixed(30)}", mixed(30)),
    "stripe-key": (f"sk_live_{mixed(24)}", mixed(24)),
    "terrace-key": (f"tk-{mixed(43)}", mixed(43)),
    "twilio-key": ("SK" + "0123456789abcdef" * 2, "0123456789abcdef" * 2),
}

PERSONAL: dict[str, tuple[str, str]] = {
    "br-cpf": ("CPF 529.982.247-25", "529.982.247-25"),
    "card": ("card 4111 1111 1111 1111, thanks", "4111 1111 1111 1111"),
    "de-tax-id": ("Steuer-ID 86 095 742 719", "86 095 742 719"),
    "email": ("write to jo.do+x@mail.acme.example!", "jo.do+x@mail.acme.example"),
    "es-dni": ("DNI 12345678Z", "12345678Z"),
    "fr-nir": ("NIR 1 84 12 76 451 089 46", "1 84 12 76 451 089 46"),
    "iban": ("to DE89 3704 0044 0532 0130 00.", "DE89 3704 0044 0532 0130 00"),
    "ip-address": ("from 8.8.4.4 came", "8.8.4.4"),
    "it-fiscal-code": ("codice RSSMRA85T10A562S", "RSSMRA85T10A562S"),
    "mac-address": ("at 00:1A:2B:3C:4D:5E on", "00:1A:2B:3C:4D:5E"),
    "phone": ("call +1 415-555-2671 today", "+1 415-555-2671"),
    "uk-nino": ("NI AB 12 34 56 C", "AB 12 34 56 C"),
    "us-ssn": ("SSN 219-09-9999", "219-09-9999"),
}

INNOCENT = (
    "The order 1234567890123456 has 12 items, see page 4111-1112 and RFC 7519.",
    "password: ********, token: <your token>, secret = ${SECRET}, api_key: changeme123",
    "Set max_tokens: 1024 and tokens_per_second = 200.5; the secret: patience and practice.",
    "uuid 123e4567-e89b-12d3-a456-426614174000, sha256 "
    "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "version 1.2.3.4567, 2026-11-30T21:00:00Z, call 10.0.0.1 or 192.168.1.1",
    "Skeleton keys: sk-learn, task-abcdef, risk-of-overfitting, desk-lamp.",
    "git commit 3f785a3c1b2d4e5f60718293a4b5c6d7e8f90123 by the build",
    "IBAN DE00 0000 0000 0000 0000 00 is no account; 000-12-3456 is no SSN; 12345678A no DNI.",
    "He said: call me at five; we met on 12 03 2024, then 14 05 2025 and 16 07 2026.",
)

"""What callers must present: an API key (OpenAI, or a Bedrock bearer token) or an AWS key pair."""

import hmac
from dataclasses import dataclass, field
from pathlib import Path

FILES = ("simulator-api-key", "aws-access-key-id", "aws-secret-access-key")


class CredentialsError(ValueError):
    """A credentials file is missing or empty; the message names it, never its content."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """Never printed: the fields are left out of the representation."""

    api_key: str = field(repr=False)
    aws_access_key_id: str = field(repr=False)
    aws_secret_access_key: str = field(repr=False)

    def accepts_bearer(self, authorization: str) -> bool:
        """Whether an ``Authorization: Bearer ...`` value carries the API key (constant time)."""
        scheme, _, token = authorization.partition(" ")
        return scheme.lower() == "bearer" and hmac.compare_digest(
            token.strip().encode(), self.api_key.encode()
        )


def load_credentials(directory: Path) -> Credentials:
    """Read the three files (surrounding white space ignored). Raises CredentialsError."""
    values: list[str] = []
    for name in FILES:
        path = directory / name
        try:
            value = path.read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise CredentialsError(f"{path}: cannot be read; expected one credential") from error
        if not value:
            raise CredentialsError(f"{path}: empty; expected one credential")
        values.append(value)
    return Credentials(*values)

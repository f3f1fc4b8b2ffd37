"""Alerts: who is told when a budget passes a threshold of its quota's ``alert_at``."""

from collections.abc import Iterator

from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError

from terrace_common.governance.sections import (
    ENVIRONMENT_PATTERN,
    NAME_PATTERN,
    URL_PATTERN,
    Problem,
    Section,
    duplicates,
    stays_inside,
)

MAX_WEBHOOKS = 8


class Webhook(Section):
    """Where alerts are posted to as JSON. The file is no secret: a URL that is one belongs behind a
    receiver of one's own, which asks for a token."""

    name: str = Field(pattern=NAME_PATTERN)
    url: str = Field(pattern=URL_PATTERN, max_length=2048)
    token_env: str | None = Field(default=None, pattern=ENVIRONMENT_PATTERN)
    """Variable of the guard, or file of its credentials folder, with a bearer token."""

    @field_validator("url")
    @classmethod
    def _is_safe(cls, value: str) -> str:
        if value.startswith("http://") and not stays_inside(value):
            raise PydanticCustomError(
                "governance", "alerts go by https only, but for hosts of the cluster (*.svc)"
            )
        return value


class Alerts(Section):
    """Receivers of budget alerts. Alerts are in the journal and in metrics without them as well."""

    webhooks: tuple[Webhook, ...] = Field(min_length=1, max_length=MAX_WEBHOOKS, strict=False)


def alert_problems(alerts: Alerts | None) -> Iterator[Problem]:
    """What is wrong between webhooks."""
    if alerts is None:
        return
    names = (webhook.name for webhook in alerts.webhooks)
    for path, text in duplicates("webhooks", "webhook", names):
        yield ("alerts", *path), text

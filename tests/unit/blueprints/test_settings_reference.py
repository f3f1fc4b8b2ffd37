"""docs/aws-settings.md says what the code says, of every key."""

import os
import re
from pathlib import Path

from terrace_blueprints import settings, settings_reference
from terrace_blueprints.settings_aws import FIXED
from terrace_blueprints.spelling import argument_names, camel_case
from terrace_components.aws.foundation_args import FoundationAwsArgs

PAGE = Path(__file__).resolve().parents[3] / "docs/aws-settings.md"


def test_the_page_is_fresh() -> None:
    page = settings_reference.page()
    if os.environ.get("RECORD_SNAPSHOTS") == "1":
        PAGE.write_text(page)
    assert PAGE.read_text() == page, (
        "settings changed: python -m terrace_blueprints.settings_reference > docs/aws-settings.md"
    )


def test_every_key_is_on_the_page_with_a_meaning() -> None:
    rows = re.findall(r"^\| `([\w.:]+)` \|(.*)\|$", PAGE.read_text(), re.MULTILINE)
    keys = {key.rpartition(".")[2] for key, _ in rows}
    headings = set(re.findall(r"^### `terrace:aws\.(\w+)`", PAGE.read_text(), re.MULTILINE))
    wanted = {camel_case(name) for name in argument_names(FoundationAwsArgs) - set(FIXED)}
    assert wanted <= keys | headings
    assert not keys & {camel_case(name) for name in FIXED}  # which a stack may not set
    assert {f"terrace:{key}" for key in settings.KEYS} <= {key for key, _ in rows}
    without = [key for key, rest in rows if not rest.rpartition("|")[2].strip()]
    # `cidr` and `port` of an address say all with their names.
    assert {key.rpartition(".")[2] for key in without} <= {"cidr", "port", "host"}

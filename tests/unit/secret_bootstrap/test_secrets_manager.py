"""Values of Secrets Manager, read with the pod's identity. botocore judges each signature."""

import base64
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from botocore.credentials import Credentials as BotocoreCredentials
from hypothesis import given
from hypothesis import strategies as st

from terrace_secret_bootstrap.bootstrap import bootstrap
from terrace_secret_bootstrap.fetch import fetch
from terrace_secret_bootstrap.fetch import parse as parse_fetch
from terrace_secret_bootstrap.pod_identity import IdentityError, credentials_of_pod
from terrace_secret_bootstrap.secrets_manager import SecretsManager, SecretsManagerError
from terrace_secret_bootstrap.sigv4 import Credentials, signed_headers
from terrace_secret_bootstrap.spec import SpecError, parse

from .fake_aws import (
    KEY_ID,
    POD_TOKEN,
    SECRET_KEY,
    SESSION,
    FakeAws,
    arn,
    serving,
    signed_by_botocore,
)

VALUE = "canary-value-of-the-secret"
PACKAGE = Path(__file__).parents[3] / "services" / "secret_bootstrap"
ARN = arn("rds!cluster-0a1b2c3d")  # as RDS names the one that it manages


@pytest.fixture
def aws() -> Iterator[FakeAws]:
    with serving() as fake:
        fake.secrets[ARN] = {"SecretString": json.dumps({"username": "root", "password": VALUE})}
        yield fake


@pytest.fixture
def environment(aws: FakeAws, tmp_path: Path) -> dict[str, str]:
    token = tmp_path / "pod-token"
    token.write_text(f"{POD_TOKEN}\n")
    return {**aws.environment, "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": str(token)}


@pytest.fixture
def pauses() -> list[float]:
    return []


@pytest.fixture
def reader(aws: FakeAws, environment: dict[str, str], pauses: list[float]) -> SecretsManager:
    return SecretsManager(
        lambda: credentials_of_pod(environment, pause=pauses.append),
        endpoint=aws.address, pause=pauses.append,
    )  # fmt: skip


@given(
    body=st.binary(max_size=200),
    target=st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=30),
    host=st.from_regex(r"[a-z]{1,10}(\.[a-z]{2,10}){1,2}(:[1-9][0-9]{3})?", fullmatch=True),
    key=st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=40),
    session=st.one_of(st.none(), st.from_regex(r"[A-Za-z0-9/+=]{1,60}", fullmatch=True)),
    region=st.sampled_from(["us-east-1", "eu-west-1", "cn-north-1", "us-gov-west-1"]),
    moment=st.datetimes(datetime(2020, 1, 1), datetime(2040, 1, 1)),
)
def test_the_signature_is_botocores(
    *,
    body: bytes, target: str, host: str, key: str, session: str | None, region: str,
    moment: datetime,
) -> None:  # fmt: skip
    headers = {"Content-Type": "application/x-amz-json-1.1", "X-Amz-Target": target}
    made = signed_headers(
        Credentials("AKIDEXAMPLE", key, session),
        service="secretsmanager", region=region, host=host, headers=headers, body=body,
        now=moment.replace(tzinfo=UTC),
    )  # fmt: skip
    theirs = signed_by_botocore(
        f"https://{host}/", headers, body, region=region, stamp=made["X-Amz-Date"],
        credentials=BotocoreCredentials("AKIDEXAMPLE", key, session),
    )  # fmt: skip
    assert {name.lower(): value for name, value in made.items()} == theirs


def test_credentials_show_nothing_of_themselves() -> None:
    assert repr(Credentials(KEY_ID, SECRET_KEY, SESSION)) == "Credentials()"


def test_a_value_and_a_member_of_it(reader: SecretsManager, aws: FakeAws) -> None:
    assert reader.value(ARN, "password") == VALUE
    assert reader.value(ARN, "username") == "root"
    assert json.loads(reader.value(ARN))["password"] == VALUE
    # One identity and one read for all three.
    assert aws.calls == ["agent", ARN]


def test_numbers_are_text_and_line_ends_go(reader: SecretsManager, aws: FakeAws) -> None:
    aws.secrets[ARN] = {"SecretString": '{"port": 5432, "key": "from-a-file\\n"}'}
    assert (reader.value(ARN, "port"), reader.value(ARN, "key")) == ("5432", "from-a-file")
    aws.secrets[arn("plain")] = {"SecretString": " spaces stay \r\n"}
    assert reader.value(arn("plain")) == " spaces stay "


def test_the_region_of_the_arn_is_signed_for(reader: SecretsManager, aws: FakeAws) -> None:
    far = arn("far", "ap-southeast-2")
    aws.secrets[far] = {"SecretString": VALUE}
    assert reader.value(far) == VALUE


@pytest.mark.parametrize(
    ("stored", "json_key", "message"),
    [
        (None, None, "there is no such secret"),
        ({"SecretBinary": "AAA="}, None, "binary"),
        ({"SecretString": VALUE}, "password", "no JSON object"),
        ({"SecretString": f'["{VALUE}"]'}, "password", "no JSON object"),
        (
            {"SecretString": json.dumps({VALUE: VALUE})},
            "password",
            "no key 'password' (1 others)",
        ),
        ({"SecretString": json.dumps({"password": {"v": VALUE}})}, "password", "is no text"),
        ({"SecretString": '{"password": true}'}, "password", "is no text"),
    ],
)
def test_what_can_not_be_had_is_named_and_shows_no_value(
    reader: SecretsManager, aws: FakeAws, stored: Any, json_key: str | None, message: str
) -> None:
    aws.secrets = {ARN: stored} if stored else {}
    with pytest.raises(SecretsManagerError) as raised:
        reader.value(ARN, json_key)
    text = str(raised.value)
    assert message in text
    assert ARN in text
    assert "canary" not in text


def test_denied_says_what_to_allow(
    reader: SecretsManager, aws: FakeAws, pauses: list[float]
) -> None:
    aws.denied.add(ARN)
    with pytest.raises(SecretsManagerError, match="allow secretsmanager:GetSecretValue") as raised:
        reader.value(ARN)
    assert "canary" not in str(raised.value)
    assert pauses == []


def test_a_wrong_key_is_a_refused_signature(aws: FakeAws) -> None:
    reader = SecretsManager(
        lambda: Credentials(KEY_ID, "another-key", SESSION),
        endpoint=aws.address, pause=lambda _seconds: None,
    )  # fmt: skip
    with pytest.raises(SecretsManagerError, match="the signature was refused"):
        reader.value(ARN)


def test_waits_with_growing_pauses_while_aws_is_busy(
    reader: SecretsManager, aws: FakeAws, pauses: list[float]
) -> None:
    assert reader.value(ARN, "username") == "root"
    aws.secrets[arn("busy")] = {"SecretString": VALUE}
    aws.faults = [(400, "ThrottlingException"), (500, "x"), (503, "x"), (429, "x")]
    assert reader.value(arn("busy")) == VALUE
    assert pauses == sorted(pauses)
    assert len(pauses) == 4


def test_gives_up_and_says_how_often(
    reader: SecretsManager, aws: FakeAws, pauses: list[float]
) -> None:
    assert reader.value(ARN, "username") == "root"
    aws.faults = [(500, "InternalServiceError")] * 20
    with pytest.raises(SecretsManagerError, match=r"no answer after 8 tries \(HTTP 500\)"):
        reader.value(arn("other"))
    assert len(pauses) == 7


def test_the_agent_is_asked_again_and_a_wrong_token_is_not(
    aws: FakeAws, environment: dict[str, str], pauses: list[float]
) -> None:
    aws.faults = [(500, "x"), (503, "x")]
    assert credentials_of_pod(environment, pause=pauses.append).access_key_id == KEY_ID
    assert len(pauses) == 2
    Path(environment["AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"]).write_text("canary-wrong")
    with pytest.raises(IdentityError, match="Pod Identity agent: HTTP 403") as raised:
        credentials_of_pod(environment, pause=pauses.append)
    assert "canary" not in str(raised.value)


def test_a_pod_without_an_identity_is_told_what_to_do() -> None:
    with pytest.raises(IdentityError, match="associate its service account with a role"):
        credentials_of_pod({})


@pytest.mark.parametrize(
    "address", ["http://169.254.169.254/", "http://evil.example/", "http://10.0.0.1/", "nothing"]
)
def test_the_token_goes_to_nobody_else(address: str, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(POD_TOKEN)
    environment = {
        "AWS_CONTAINER_CREDENTIALS_FULL_URI": address,
        "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": str(tmp_path / "token"),
    }
    with pytest.raises(IdentityError, match="is not the Pod Identity agent's address"):
        credentials_of_pod(environment)


class Store:
    """Secrets of a cluster."""

    def __init__(self) -> None:
        self.data: dict[str, dict[str, str]] = {}

    def read_secret(self, namespace: str, name: str) -> dict[str, str] | None:
        return self.data.get(f"{namespace}/{name}")

    def create_secret(self, namespace: str, name: str, data: dict[str, str]) -> bool:
        self.data[f"{namespace}/{name}"] = data
        return True


SPEC = [
    {
        "namespace": "terrace-foundation",
        "name": "database-admin",
        "data": {
            "username": {"secrets_manager": {"arn": ARN, "json_key": "username"}},
            "password": {"secrets_manager": {"arn": ARN, "json_key": "password"}},
        },
    },
    {
        "namespace": "terrace-gateway",
        "name": "copies",
        "data": {"url": {"template": "pg://{terrace-foundation/database-admin/password}@h"}},
    },
]


def test_secrets_of_the_cluster_are_made_of_them(reader: SecretsManager) -> None:
    store, said = Store(), list[str]()
    bootstrap(parse(json.dumps(SPEC)), store, external=reader, say=said.append)
    made = {
        f"{place}/{key}": base64.b64decode(value).decode()
        for place, data in store.data.items()
        for key, value in data.items()
    }
    assert made == {
        "terrace-foundation/database-admin/username": "root",
        "terrace-foundation/database-admin/password": VALUE,
        "terrace-gateway/copies/url": f"pg://{VALUE}@h",
    }
    assert VALUE not in "".join(said)


def test_what_exists_needs_no_identity_and_no_call(reader: SecretsManager, aws: FakeAws) -> None:
    store = Store()
    bootstrap(parse(json.dumps(SPEC)), store, external=reader, say=lambda _line: None)
    aws.calls.clear()
    again = SecretsManager(lambda: pytest.fail("the identity was asked for"))
    bootstrap(parse(json.dumps(SPEC)), store, external=again, say=lambda _line: None)
    assert aws.calls == []


def test_a_secret_that_is_half_known_is_not_made(reader: SecretsManager, aws: FakeAws) -> None:
    aws.secrets[ARN] = {"SecretString": '{"username": "root"}'}
    store = Store()
    with pytest.raises(SecretsManagerError, match="no key 'password'"):
        bootstrap(parse(json.dumps(SPEC)), store, external=reader, say=lambda _line: None)
    assert store.data == {}


def run(module: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", module],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(PACKAGE), **environment},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_an_init_container_gets_files(
    aws: FakeAws, environment: dict[str, str], tmp_path: Path
) -> None:
    folder = tmp_path / "admin"
    folder.mkdir()
    wanted = {
        "username": {"arn": ARN, "json_key": "username"},
        "password": {"arn": ARN, "json_key": "password"},
    }
    settings = {**environment, "FETCH_SPEC": json.dumps(wanted), "FETCH_DIRECTORY": str(folder)}
    for _ in range(2):  # a restarted container does it again
        done = run("terrace_secret_bootstrap.fetch", settings)
        assert done.returncode == 0, done.stderr
        assert (folder / "password").read_text() == VALUE
        assert (folder / "username").read_text() == "root"
        assert (folder / "password").stat().st_mode & 0o777 == 0o440
        assert VALUE not in done.stdout + done.stderr
    aws.denied.add(ARN)
    refused = run("terrace_secret_bootstrap.fetch", settings)
    assert refused.returncode == 1
    assert "allow secretsmanager:GetSecretValue" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_files_are_written_all_or_none(
    reader: SecretsManager, aws: FakeAws, tmp_path: Path
) -> None:
    wanted = parse_fetch(json.dumps({"a": {"arn": ARN}, "b": {"arn": arn("absent")}}))
    with pytest.raises(SecretsManagerError):
        fetch(wanted, tmp_path, reader)
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("", "not JSON"),
        ("{}", "at least one file"),
        ('{"../up": {"arn": "x"}}', "no file name"),
        ('{"a": {"arn": "x"}}', "file a: arn must be"),
        ('{"a": {"json_key": "x"}}', "file a: secrets_manager takes arn"),
    ],
)
def test_wrong_fetch_specs_are_named(spec: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        parse_fetch(spec)


def test_the_job_says_what_is_missing(environment: dict[str, str]) -> None:
    done = run("terrace_secret_bootstrap", {"SECRETS_SPEC": json.dumps(SPEC)})
    assert done.returncode == 1
    assert "Traceback" not in done.stderr

"""Captured prompts: redacted, encrypted, apart, forgotten in time, never in a call's way."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from gateway_rig.fake_aws import FakeAws
from gateway_rig.postgres import Postgres
from pydantic import SecretStr, ValidationError

from terrace_gateway.calls.ports import Caller
from terrace_gateway.capture import writer as writing
from terrace_gateway.capture.cipher import Sealer, open_cipher
from terrace_gateway.capture.key_wrapping import FileKeyWrapper, KeyWrappingError
from terrace_gateway.capture.record import MAX_CHARACTERS, CapturedCall
from terrace_gateway.capture.store import forget_ended
from terrace_gateway.capture.writer import CaptureWriter
from terrace_gateway.composition import build_runtime
from terrace_gateway.database import Database
from terrace_gateway.settings import Settings, SettingsError

pytestmark = pytest.mark.service

CANARY = "my grandmother's secret recipe needs 7 plums"
SECRET = "AKIA" + "IOSFODNN7EXAMPLE"
CALL = CapturedCall(
    request_id="req_1", caller=Caller("key_1", "search", org="acme", user="jo"), surface="chat",
    model="sim-small", texts=(f"{CANARY} {SECRET}", "mail jo@acme.example"),
    answer_texts=("My card is 4111 ", "1111 1111 ", "1111"), retention_days=1,
)  # fmt: skip


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "kek"
    path.write_text("ab" * 32)
    return path


@pytest.fixture
async def opened(postgres: Postgres, database: str) -> AsyncIterator[Database]:
    made = Database(SecretStr(postgres.url(database)), size=4, wait_seconds=2)
    await made.prepare()
    await made.open()
    assert await made.probe()
    yield made
    await made.close()


@asynccontextmanager
async def running(writer: CaptureWriter) -> AsyncIterator[CaptureWriter]:
    task = asyncio.create_task(writer.run())
    try:
        yield writer
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(what: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not what():
            await asyncio.sleep(0.01)


async def read(database: Database, writer: CaptureWriter, request_id: str = "req_1") -> Any:
    assert writer.store is not None
    async with database.connection() as connection:
        return await writer.store.read(connection, request_id)


async def test_what_is_stored_is_redacted_encrypted_and_opens_again(
    opened: Database, key_file: Path, postgres: Postgres, database: str
) -> None:
    writer = CaptureWriter(opened, open_cipher(key_file))
    async with running(writer):
        assert writer.offer(CALL)
        assert writer.offer(CALL)  # a request is stored once
        await until(lambda: writer.results["stored"] == 2)
    found = await read(opened, writer)
    assert found["prompt"] == [f"{CANARY} [masked:aws-access-key-id]", "mail [masked:email]"]
    assert found["answer"] == ["My card is [masked:card]"]
    assert (found["team"], found["user"], found["truncated"]) == ("search", "jo", False)
    with postgres.superuser(database) as connection:
        rows = connection.execute("SELECT c::text, sealed, wrapped_key FROM capture c").fetchall()
    assert len(rows) == 1
    assert CANARY.encode() not in b"".join(
        part if isinstance(part, bytes) else part.encode() for part in rows[0]
    )


async def test_a_row_that_was_changed_or_moved_does_not_open(
    opened: Database, key_file: Path, postgres: Postgres, database: str
) -> None:
    writer = CaptureWriter(opened, open_cipher(key_file))
    async with running(writer):
        writer.offer(CALL)
        await until(lambda: writer.results["stored"] == 1)
    changes = [
        "UPDATE capture SET request_id = 'req_2'",
        "UPDATE capture SET request_id = 'req_1', key_id = 'key_2'",
        "UPDATE capture SET key_id = 'key_1',"
        " sealed = set_byte(sealed, 3, get_byte(sealed, 3) # 1)",
        "UPDATE capture SET sealed = set_byte(sealed, 3, get_byte(sealed, 3) # 1),"
        " wrapped_key = set_byte(wrapped_key, 20, get_byte(wrapped_key, 20) # 1)",
    ]
    for change in changes:
        with postgres.superuser(database) as connection:
            connection.execute(change)
        with pytest.raises(KeyWrappingError):
            await read(opened, writer, "req_2" if "req_2" in change else "req_1")


async def test_a_rotated_key_opens_what_the_old_one_closed(
    opened: Database, tmp_path: Path
) -> None:
    path = tmp_path / "keks"
    path.write_text(f"one:{'11' * 32}")
    writer = CaptureWriter(opened, open_cipher(path))
    async with running(writer):
        writer.offer(CALL)
        await until(lambda: writer.results["stored"] == 1)
    path.write_text(f"two:{'22' * 32}\none:{'11' * 32}\n")
    newer = CaptureWriter(opened, open_cipher(path))
    assert (await read(opened, newer))["team"] == "search"
    path.write_text(f"two:{'22' * 32}\n")
    with pytest.raises(KeyWrappingError, match="'one' is not in the file"):
        await read(opened, CaptureWriter(opened, open_cipher(path)))


ARN = "arn:aws:kms:us-east-1:123456789012:key/1234abcd-12ab-34cd-56ef-1234567890ab"
OTHER_ARN = ARN[:-1] + "c"


async def test_a_key_of_kms_wraps_what_a_guard_captures(
    aws: FakeAws, make_guard: Any, postgres: Postgres, database: str
) -> None:
    aws.keys |= {ARN: {}, OTHER_ARN: {}}
    guard = await make_guard(capture_kms_key_arn=ARN)
    capture = guard.runtime.capture
    assert capture.offer(CALL)
    await until(lambda: capture.results["stored"] == 1)
    assert len(aws.keys[ARN]) == 1
    with postgres.superuser(database) as connection:
        assert connection.execute("SELECT kek FROM capture").fetchall() == [(ARN,)]
    found = await guard.admin("GET", "/captures/req_1?reason=test")
    assert found["prompt"][0].startswith(CANARY)
    # With another key in use the earlier one still opens what it closed, until it is gone.
    newer = CaptureWriter(guard.runtime.database, open_cipher(None, kms_key_arn=OTHER_ARN))
    assert (await read(guard.runtime.database, newer))["team"] == "search"
    del aws.keys[ARN]
    with pytest.raises(KeyWrappingError, match="KMS decrypt"):
        await read(guard.runtime.database, newer)
    # A key that cannot be used stores nothing and stops no guard.
    lost = CaptureWriter(guard.runtime.database, open_cipher(None, kms_key_arn=ARN))
    async with running(lost):
        assert lost.offer(replace(CALL, request_id="req_2"))
        await until(lambda: lost.results["failed"] == 1)


@pytest.mark.parametrize(
    ("arn", "key", "said"),
    [
        (ARN, "ab" * 32, "TERRACE_CAPTURE_KEY_FILE or TERRACE_CAPTURE_KMS_KEY_ARN, not both"),
        (None, "ab", "TERRACE_CAPTURE_KEY_FILE: .*a key has 32 bytes"),
    ],
)
def test_what_cannot_be_a_key_is_refused_at_the_start(
    arn: str | None, key: str, said: str, key_file: Path, settings_of: Callable[..., dict[str, Any]]
) -> None:
    key_file.write_text(key)
    settings = Settings(**settings_of(capture_key_file=key_file, capture_kms_key_arn=arn))
    with pytest.raises(SettingsError, match=said):
        build_runtime(settings)


@pytest.mark.parametrize("arn", [ARN.replace("key/", "alias/"), "1234abcd", ARN + ":x", ""])
def test_only_the_arn_of_a_key_names_one(arn: str) -> None:
    with pytest.raises(ValidationError, match="capture_kms_key_arn"):
        Settings(capture_kms_key_arn=arn)
    assert Settings(capture_kms_key_arn=ARN.replace("aws", "aws-cn", 1)).capture_key_file is None


@pytest.mark.parametrize("text", ["", "zz", "ab" * 16, "name:", "a:b:" + "ab" * 31])
def test_a_wrong_key_file_is_named_and_not_shown(tmp_path: Path, text: str) -> None:
    path = tmp_path / "kek"
    path.write_text(text)
    with pytest.raises(KeyWrappingError) as caught:
        FileKeyWrapper(path)
    assert str(path) in str(caught.value)
    assert not text or text not in str(caught.value)


async def test_without_a_key_nothing_is_stored(opened: Database) -> None:
    writer = CaptureWriter(opened, open_cipher(None))
    assert not writer.offer(CALL)
    assert writer.results == {"no_key": 1}


async def test_what_cannot_be_redacted_is_not_stored(opened: Database, key_file: Path) -> None:
    writer = CaptureWriter(opened, open_cipher(key_file))
    hostile = replace(CALL, texts=("1111 " * 60_000,))
    async with running(writer):
        writer.offer(hostile)
        writer.offer(replace(CALL, request_id="req_2"))
        await until(lambda: writer.results["stored"] == 1)
    assert writer.results["redaction"] == 1
    assert await read(opened, writer) is None


async def test_a_key_that_cannot_be_used_drops_and_the_next_goes_on(
    opened: Database, key_file: Path
) -> None:
    class Moody(FileKeyWrapper):
        broken = True

        async def wrap(self, data_key: bytes) -> bytes:
            if self.broken:
                raise KeyWrappingError("KMS encrypt: away")
            return await super().wrap(data_key)

    wrapper = Moody(key_file)
    writer = CaptureWriter(opened, Sealer(wrapper))
    async with running(writer):
        writer.offer(CALL)
        await until(lambda: writer.results["failed"] == 1)
        wrapper.broken = False
        writer.offer(CALL)
        await until(lambda: writer.results["stored"] == 1)


async def test_a_database_outage_fills_bounded_memory_and_then_drops(
    opened: Database, key_file: Path, postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "RETRY_SECONDS", 0.05)
    writer = CaptureWriter(opened, open_cipher(key_file))
    opened.up = False
    async with running(writer):
        taken = sum(
            writer.offer(replace(CALL, request_id=f"req_{number}", texts=("x" * 100_000,)))
            for number in range(writing.MAX_WAITING + 50)
        )
        await asyncio.sleep(0.2)
        assert taken * 100_000 <= writing.MAX_WAITING_CHARACTERS
        assert writer.results["full"] == writing.MAX_WAITING + 50 - taken
        assert writer.results["stored"] == 0
        assert await opened.probe()
        await until(lambda: writer.results["stored"] == taken)


async def test_at_the_end_what_waits_is_stored_or_counted(opened: Database, key_file: Path) -> None:
    writer = CaptureWriter(opened, open_cipher(key_file))
    writer.offer(CALL)
    assert await writer.finish() == 0
    assert writer.results == {"stored": 1}
    writer.offer(replace(CALL, request_id="req_2"))
    opened.up = False
    assert await writer.finish(0.5) == 1
    assert writer.results["failed"] == 1


async def test_too_much_text_is_cut_and_that_is_said(opened: Database, key_file: Path) -> None:
    writer = CaptureWriter(opened, open_cipher(key_file))
    async with running(writer):
        writer.offer(replace(CALL, texts=("a " * MAX_CHARACTERS, "never")))
        await until(lambda: writer.results["stored"] == 1)
    found = await read(opened, writer)
    assert found["truncated"] is True
    assert sum(map(len, found["prompt"])) == MAX_CHARACTERS


async def test_what_has_ended_is_dropped_with_its_day(
    opened: Database, key_file: Path, postgres: Postgres, database: str
) -> None:
    writer = CaptureWriter(opened, open_cipher(key_file))
    async with running(writer):
        for number, days in enumerate((0, 0, 30)):
            writer.offer(replace(CALL, request_id=f"req_{number}", retention_days=days))
        await until(lambda: writer.results["stored"] == 3)
    assert await forget_ended(opened) == 0
    with postgres.superuser(database) as connection:
        row = connection.execute(
            "SELECT (clock_timestamp() AT TIME ZONE 'UTC')::date, max(expires_on) FROM capture"
        ).fetchone()
        assert row is not None
        today, latest = row
        assert latest - today in (timedelta(days=30), timedelta(days=31))  # midnight may pass
        # Yesterday's partition, as it would be after its night.
        connection.execute("SET ROLE gateway")
        connection.execute(
            f"CREATE TABLE capture_p{today:%Y%m%d} PARTITION OF capture"
            f" FOR VALUES FROM ('{today}') TO ('{today + timedelta(days=1)}')"
        )
    assert await forget_ended(opened) == 1
    with postgres.superuser(database) as connection:
        left = connection.execute("SELECT count(*) FROM capture").fetchone()
    assert left == (3,)


async def end_all(opened: Database) -> None:
    """Captures of a day whose night has passed."""
    async with opened.connection() as connection:
        await connection.execute("CREATE TABLE ended (LIKE capture)")
        await connection.execute("INSERT INTO ended SELECT * FROM capture")
        await connection.execute("TRUNCATE capture")
        await connection.execute(
            "CREATE TABLE capture_p20260101 PARTITION OF capture"
            " FOR VALUES FROM ('2026-01-01') TO ('2026-01-02')"
        )
        await connection.execute("UPDATE ended SET expires_on = '2026-01-01'")
        await connection.execute("INSERT INTO capture SELECT * FROM ended")


async def test_what_has_ended_and_is_not_dropped_yet_is_not_read(
    opened: Database, key_file: Path
) -> None:
    writer = CaptureWriter(opened, open_cipher(key_file))
    async with running(writer):
        writer.offer(CALL)
        await until(lambda: writer.results["stored"] == 1)
    assert await read(opened, writer)
    await end_all(opened)
    assert await read(opened, writer) is None


async def test_a_guard_without_a_key_forgets_what_others_captured(
    opened: Database, key_file: Path, postgres: Postgres, database: str
) -> None:
    writer = CaptureWriter(opened, open_cipher(key_file))
    async with running(writer):
        writer.offer(CALL)
        await until(lambda: writer.results["stored"] == 1)
    await end_all(opened)

    def left() -> object:
        with postgres.superuser(database) as connection:
            return connection.execute("SELECT count(*) FROM capture").fetchone()

    assert left() == (1,)
    async with running(CaptureWriter(opened, None)):
        await until(lambda: left() == (0,))


async def test_many_guards_make_one_partition(
    opened: Database, postgres: Postgres, database: str
) -> None:
    async def make() -> None:
        async with opened.connection() as connection:
            await connection.execute("SELECT capture_day(7)")

    await asyncio.gather(*(make() for _ in range(12)))
    with postgres.superuser(database) as connection:
        count = connection.execute(
            "SELECT count(*) FROM pg_inherits WHERE inhparent = 'capture'::regclass"
        ).fetchone()
        assert count == (1,)
        with pytest.raises(psycopg.errors.CheckViolation):
            connection.execute("SELECT capture_day(-1)")

"""How the translator starts and ends: what it leaves, what it refuses, what it never calls."""

import asyncio
import json
import signal
import stat
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest

from . import fake_provider
from .conftest import PACKAGE, PYTHON, config, environment, running


async def test_start_bills_nothing_and_keeps_to_itself(tmp_path: Path) -> None:
    async with fake_provider.serving() as provider:
        async with running(tmp_path, provider) as translator:
            assert provider.calls == [], "the warm-up must not reach a real provider"
            assert all(path == "GET /v1/models" for path in provider.other_paths)
            directory = translator.directory
            assert stat.S_IMODE(directory.stat().st_mode) == 0o700
            for name in ("master-key", "ready", "litellm.yaml"):
                assert stat.S_IMODE((directory / name).stat().st_mode) == 0o600, name
            assert len(translator.master_key) >= 64
            for name in ("litellm.yaml",):
                assert "canary" not in (directory / name).read_text().lower()
            process = translator.process
            process.send_signal(signal.SIGTERM)
            assert await process.wait() == 0
        assert not {"ready", "master-key", "engine.sock"} & {
            file.name for file in directory.iterdir()
        }
        assert "canary" not in (tmp_path / "log").read_text().lower()


async def test_a_stream_under_way_survives_sigterm(tmp_path: Path) -> None:
    async with fake_provider.serving() as provider, running(tmp_path, provider) as translator:
        provider.gate = asyncio.Event()
        body = {
            "model": "sim-small",
            "messages": [{"role": "user", "content": "hi"}],
            "stream": True,
        }
        received = b""
        async with translator.client.stream("POST", "/v1/chat/completions", json=body) as answer:
            async for part in answer.aiter_raw():
                if not received:
                    translator.process.send_signal(signal.SIGTERM)
                    provider.gate.set()
                received += part
        assert b"[DONE]" in received
        assert await translator.process.wait() == 0


async def test_kill_9_and_again(tmp_path: Path) -> None:
    async with fake_provider.serving() as provider:
        async with running(tmp_path, provider) as first:
            old_key = first.master_key
            first.process.kill()
            await first.process.wait()
        assert (tmp_path / "engine" / "ready").exists(), "what a kill leaves behind"
        async with running(tmp_path, provider) as second:
            key = second.master_key
            assert key != old_key
            transport = httpx.AsyncHTTPTransport(uds=str(tmp_path / "engine" / "engine.sock"))
            async with httpx.AsyncClient(
                transport=transport, base_url="http://engine", timeout=60
            ) as client:
                answers = [
                    (await client.get("/v1/models", headers={"authorization": f"Bearer {k}"}))
                    for k in (key, old_key)
                ]
            assert answers[0].status_code == 200
            assert answers[1].status_code != 200


def _changed(**changes: Any) -> dict[str, Any]:
    return {**config("http://127.0.0.1:1"), **changes}


@pytest.mark.parametrize(
    ("document", "key"),
    [
        (_changed(router_settings={"num_retries": 2}), "router_settings.num_retries"),
        (_changed(router_settings={"fallbacks": []}), "router_settings.fallbacks"),
        (_changed(router_settings={"disable_cooldowns": False}), "disable_cooldowns"),
        (_changed(litellm_settings={"callbacks": ["x"]}), "litellm_settings.callbacks"),
        (_changed(general_settings={"database_url": "x"}), "general_settings.database_url"),
        (_changed(general_settings={"master_key": "x"}), "general_settings.master_key"),
        ("model_list: [", "can't be read"),
    ],
)
def test_refuses_what_a_translator_may_not_do(tmp_path: Path, document: Any, key: str) -> None:
    file = tmp_path / "translator.yaml"
    file.write_text(document if isinstance(document, str) else json.dumps(document))
    done = subprocess.run(
        [PYTHON, "-m", "terrace_translator"], env=environment(tmp_path / "engine", file),
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=180,
    )  # fmt: skip
    assert done.returncode == 2
    assert key in done.stderr
    assert str(file) in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "engine" / "ready").exists()


def test_missing_config_is_named(tmp_path: Path) -> None:
    done = subprocess.run(
        [PYTHON, "-m", "terrace_translator"],
        env=environment(tmp_path / "engine", tmp_path / "absent.yaml"),
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=180,
    )  # fmt: skip
    assert done.returncode == 2
    assert "absent.yaml does not exist" in done.stderr


def test_missing_credential_is_named(tmp_path: Path) -> None:
    file = tmp_path / "translator.yaml"
    file.write_text(json.dumps(config("http://127.0.0.1:1")))
    variables = environment(tmp_path / "engine", file) | {"TERRACE_SIMULATOR_API_KEY": ""}
    done = subprocess.run(
        [PYTHON, "-m", "terrace_translator"], env=variables, cwd=tmp_path,
        capture_output=True, text=True, check=False, timeout=180,
    )  # fmt: skip
    assert done.returncode == 2
    assert "takes credentials from TERRACE_SIMULATOR_API_KEY (unset)" in done.stderr


ADDRESS = "AWS_CONTAINER_CREDENTIALS_FULL_URI"


@pytest.mark.parametrize("module", ["terrace_translator", "terrace_translator.pod_identity"])
def test_a_pod_without_its_identity_is_refused(tmp_path: Path, module: str) -> None:
    file = tmp_path / "translator.yaml"
    file.write_text(json.dumps(config("http://127.0.0.1:1")))
    variables = environment(tmp_path / "engine", file) | {"TERRACE_POD_IDENTITY": "true"}
    done = subprocess.run(
        [PYTHON, "-m", module], env=variables, cwd=tmp_path,
        capture_output=True, text=True, check=False, timeout=180,
    )  # fmt: skip
    assert done.returncode == 2
    assert f"{ADDRESS} is unset" in done.stderr
    assert "kubectl rollout restart" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "engine" / "ready").exists()


def test_a_pod_with_its_identity_passes_the_check(tmp_path: Path) -> None:
    variables = environment(tmp_path / "engine", tmp_path / "absent.yaml") | {
        "TERRACE_POD_IDENTITY": "true",
        ADDRESS: "http://169.254.170.23/v1/credentials",
    }
    check = [PYTHON, "-m", "terrace_translator.pod_identity"]
    assert subprocess.run(check, env=variables, cwd=tmp_path, check=False).returncode == 0
    # The translator goes on to its next step, the config that is not there.
    done = subprocess.run(
        [PYTHON, "-m", "terrace_translator"], env=variables, cwd=tmp_path,
        capture_output=True, text=True, check=False, timeout=180,
    )  # fmt: skip
    assert "absent.yaml does not exist" in done.stderr


def test_a_package_that_a_surface_needs_is_missed_at_the_start(tmp_path: Path) -> None:
    """LiteLLM imports PyNaCl when it has a response to seal: after the call that was paid for."""
    hidden = tmp_path / "hidden" / "nacl"
    hidden.mkdir(parents=True)
    (hidden / "__init__.py").write_text("raise ModuleNotFoundError(name='nacl')\n")
    file = tmp_path / "translator.yaml"
    file.write_text(json.dumps(config("http://127.0.0.1:1")))
    variables = environment(tmp_path / "engine", file)
    variables["PYTHONPATH"] = f"{hidden.parent}:{variables['PYTHONPATH']}"
    done = subprocess.run(
        [PYTHON, "-m", "terrace_translator"], env=variables, cwd=tmp_path,
        capture_output=True, text=True, check=False, timeout=180,
    )  # fmt: skip
    assert done.returncode == 1
    assert "/v1/responses answered 500" in done.stderr
    assert not (tmp_path / "engine" / "ready").exists()


SHAPES = {
    "aiohttp.ClientSession._request": "del aiohttp.ClientSession._request",
    "httpx.Response.has_redirect_location": "del httpx.Response.has_redirect_location",
    "httpx2.Response.has_redirect_location": "del httpx2.Response.has_redirect_location",
    "httpx.AsyncHTTPTransport.handle_async_request": (
        "del httpx.AsyncHTTPTransport.handle_async_request"
    ),
    "urllib3.connectionpool.HTTPConnectionPool.urlopen": (
        "del urllib3.connectionpool.HTTPConnectionPool.urlopen"
    ),
}


@pytest.mark.parametrize("missing", SHAPES)
def test_a_client_library_of_another_shape_ends_the_start(tmp_path: Path, missing: str) -> None:
    change = f"import aiohttp, httpx, httpx2, urllib3.connectionpool\n{SHAPES[missing]}\n"
    done = _started_with(tmp_path, change)
    assert done.returncode == 1
    assert f"terrace-translator: {missing} is not there any more" in done.stderr
    assert not (tmp_path / "engine" / "ready").exists()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("no_redirects.forbid", "redirects are followed by aiohttp, httpx, httpx, async, httpx2,"),
        ("upstream_status.watch", "answered with 200, and what was seen is none"),
    ],
)
def test_what_is_without_effect_ends_the_start(tmp_path: Path, change: str, said: str) -> None:
    module, _, function = change.partition(".")
    done = _started_with(
        tmp_path,
        f"import terrace_translator.{module} as module\nmodule.{function} = lambda: None\n",
    )
    assert done.returncode == 1
    assert said in done.stderr
    assert not (tmp_path / "engine" / "ready").exists()


def _started_with(folder: Path, change: str) -> "subprocess.CompletedProcess[str]":
    """A translator whose interpreter runs ``change`` before anything of ours."""
    (folder / "hidden").mkdir()
    (folder / "hidden" / "sitecustomize.py").write_text(change)
    file = folder / "translator.yaml"
    file.write_text(json.dumps(config("http://127.0.0.1:1")))
    variables = environment(folder / "engine", file)
    variables["PYTHONPATH"] = f"{folder / 'hidden'}:{variables['PYTHONPATH']}"
    return subprocess.run(
        [PYTHON, "-m", "terrace_translator"], env=variables, cwd=folder,
        capture_output=True, text=True, check=False, timeout=180,
    )  # fmt: skip


def test_enterprise_package_is_absent() -> None:
    code = "import importlib.util as u; print(u.find_spec('litellm_enterprise'))"
    done = subprocess.run([PYTHON, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "None"


def _entry(**parameters: Any) -> dict[str, Any]:
    return {"model_list": [{"model_name": "m", "litellm_params": parameters}]}


OPENAI = {"model": "openai/m", "api_base": "http://127.0.0.1:1"}
REFUSED: list[tuple[Any, str]] = [
    ([], "the config must be a mapping"),
    ({"model_list": []}, "at least one model"),
    ({**_entry(**OPENAI), "environment_variables": {}}, "environment_variables is not allowed"),
    (_changed(router_settings={"num_retries": False}), "num_retries must be 0"),
    (_changed(router_settings={"enable_pre_call_checks": True}), "enable_pre_call_checks"),
    (_changed(litellm_settings={"num_retries": "0"}), "litellm_settings.num_retries must be 0"),
    (_changed(litellm_settings={"cache": True}), "litellm_settings.cache is not allowed"),
    (_changed(litellm_settings={"telemetry": True}), "telemetry must be false"),
    (_entry(**OPENAI, max_retries=1), "max_retries must be 0"),
    (_entry(**OPENAI, fallbacks=["n"]), "litellm_params.fallbacks is not allowed"),
    (_entry(**OPENAI, mock_response="x"), "litellm_params.mock_response is not allowed"),
    (_entry(**OPENAI, api_key="sk-a-real-one"), "api_key must be a reference"),
    (_entry(model="vertex_ai/m"), "must be one of openai/<id>, bedrock/<id>"),
    (_entry(model="openai/"), "must be one of"),
    ({"model_list": [{"model_name": "*", "litellm_params": OPENAI}]}, "wildcard"),
    ({"model_list": 2 * _entry(**OPENAI)["model_list"]}, "is there twice"),
]


def test_config_rules() -> None:
    """All in one process of LiteLLM's environment; the messages hold no secret."""
    code = (
        "import json, sys\n"
        "from terrace_translator.config import ConfigError, check\n"
        "for document in json.load(sys.stdin):\n"
        "    try:\n"
        "        check(document)\n"
        "        print('ACCEPTED')\n"
        "    except ConfigError as refused:\n"
        "        print(refused)\n"
    )
    documents = [document for document, _ in REFUSED] + [config("http://127.0.0.1:1")]
    done = subprocess.run(
        [PYTHON, "-c", code], input=json.dumps(documents), capture_output=True, text=True,
        check=True, env={"PYTHONPATH": str(PACKAGE)},
    )  # fmt: skip
    *refusals, accepted = done.stdout.splitlines()
    assert accepted == "ACCEPTED"
    for (_, expected), message in zip(REFUSED, refusals, strict=True):
        assert expected in message
    assert "sk-a-real-one" not in done.stdout

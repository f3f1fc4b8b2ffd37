"""A guard that cannot have its port says so and ends; its spool is given back."""

import asyncio
import os
import socket
import sys
from collections.abc import Callable
from typing import Any

import pytest
from gateway_rig.postgres import free_port


@pytest.mark.parametrize("name", ["public_port", "admin_port", "metrics_port"])
async def test_a_port_that_is_taken_ends_the_process(
    settings_of: Callable[..., dict[str, Any]], name: str
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        taken_port = taken.getsockname()[1]
        ports = {port: free_port() for port in ("public_port", "admin_port", "metrics_port")}
        values = {**settings_of(), **ports, name: taken_port}
        environment = {f"TERRACE_{key.upper()}": str(value) for key, value in values.items()}
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "terrace_gateway",
            env={"PATH": os.environ["PATH"], **environment},
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        try:
            async with asyncio.timeout(90):
                said, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    assert process.returncode == 1
    assert f"cannot listen on port {taken_port}".encode() in said
    assert b"Traceback" not in said

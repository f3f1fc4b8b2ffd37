"""Prints every route of the translator's app as JSON, [[method, template], ...].

Run with the translator's Python. The app is started, as it is in its pod, because routes are added
then; what LiteLLM would add at a first request is added now, and what it only announces counts too.
"""

import asyncio
import importlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fastapi.routing

from terrace_translator.environment import prepare_process

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS")


def main() -> None:
    config = {
        "model_list": [
            {"model_name": "m", "litellm_params": {"model": "openai/m", "api_base": "http://x"}}
        ],
        "router_settings": {"num_retries": 0, "disable_cooldowns": True},
    }
    file = Path(sys.argv[1])
    file.write_text(json.dumps(config))
    prepare_process(config_file=str(file), master_key=f"sk-{os.urandom(16).hex()}")
    found = sorted(asyncio.run(started_routes()))
    Path(sys.argv[2]).write_text(json.dumps(found))


async def started_routes() -> set[tuple[str, str]]:
    app = importlib.import_module("litellm.proxy.proxy_server").app
    async with app.router.lifespan_context(app):
        found = set(routes_of(app.routes))
        try:
            lazy = importlib.import_module("litellm.proxy._lazy_features")
        except ModuleNotFoundError:  # an older version
            return found
        for feature in lazy.LAZY_FEATURES:
            try:
                module = importlib.import_module(feature.module_path)
                feature.register_fn(app, module)
            except Exception as error:  # a package that we leave out
                print(f"{feature.name}: {type(error).__name__}: {error}", file=sys.stderr)
            found |= {(m, f"{p.rstrip('/')}/x") for p in feature.path_prefixes for m in METHODS}
        snapshot = importlib.import_module("litellm.proxy._lazy_openapi_snapshot").load_snapshot()
        for fragment in (snapshot or {}).values():
            for path, operations in fragment.get("paths", {}).items():
                found |= {(m.upper(), path) for m in operations if m.upper() in METHODS}
        return found | set(routes_of(app.routes))


def routes_of(routes: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    flat = getattr(fastapi.routing, "iter_route_contexts", iter)  # newer FastAPI nests routers
    for route in flat(routes):
        path = prefix + (route.path or "")
        methods = getattr(route, "methods", None)
        inner = getattr(getattr(route, "original_route", route), "routes", None)
        if inner and not methods:
            yield from routes_of(inner, path)
        # A mount, or a websocket: any method, and a path below it.
        for method in methods or METHODS:
            yield method, path or "/"
            if not methods:
                yield method, f"{path}/x"


if __name__ == "__main__":
    main()

"""Prometheus' configuration: which pods are scraped, and how often."""

from collections.abc import Sequence
from importlib.resources import files
from typing import Any, Protocol

import yaml

MAX_TIMEOUT_SECONDS = 10
ALERTS_KEY = "alerts.yml"


class Target(Protocol):
    """Pods to scrape."""

    @property
    def namespace(self) -> str: ...
    @property
    def pod(self) -> str: ...
    @property
    def port(self) -> int: ...


def alert_rules() -> str:
    """The alert rules, as Prometheus reads them."""
    return files("terrace_components.observability").joinpath(ALERTS_KEY).read_text("utf-8")


def metrics_service(pod: str) -> str:
    """Name of the headless Service that lists the pods named ``pod``."""
    return f"{pod}-metrics"


def prometheus_config(targets: Sequence[Target], scrape_interval_seconds: int) -> str:
    """YAML with one job per target; its pods are the addresses of its headless Service."""
    interval = f"{scrape_interval_seconds}s"
    config: dict[str, Any] = {
        "global": {
            "scrape_interval": interval,
            "scrape_timeout": f"{min(scrape_interval_seconds, MAX_TIMEOUT_SECONDS)}s",
        },
        "rule_files": [ALERTS_KEY],
        "scrape_configs": [
            {
                "job_name": f"{target.namespace}/{target.pod}",
                "metrics_path": "/metrics",
                "dns_sd_configs": [
                    {
                        "names": [f"{metrics_service(target.pod)}.{target.namespace}"],
                        "type": "A",
                        "port": target.port,
                        "refresh_interval": interval,
                    }
                ],
                "relabel_configs": [
                    {"target_label": "namespace", "replacement": target.namespace},
                    {"target_label": "app", "replacement": target.pod},
                ],
            }
            for target in targets
        ],
    }
    return yaml.safe_dump(config, sort_keys=True)  # pyright: ignore[reportUnknownMemberType]

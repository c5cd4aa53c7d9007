"""The queries of dashboards and alerts, and a real Prometheus that runs them, where there is one."""

import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.conftest import ROOT
from tests.ports import free_ports

FOLDER = ROOT / "docs" / "observability"
ALERTS = FOLDER / "alerts.yml"
_SECONDS = 120.0


def program(name: str) -> str | None:
    """Where a program of Prometheus is: `scripts/prometheus` puts it next to Python."""
    beside = Path(sys.executable).with_name(name)
    return str(beside) if beside.exists() else shutil.which(name)


def panels() -> list[tuple[str, str]]:
    """Title and query of every graph, with values in place of the dashboards' variables."""
    found = []
    for path in sorted(FOLDER.glob("*.json")):
        for panel in json.loads(path.read_text(encoding="utf-8"))["panels"]:
            for target in panel.get("targets", ()):
                query = target["expr"].replace("$__rate_interval", "1m")
                found.append((panel["title"], re.sub(r"\$(model|instance)", ".+", query)))
    return found


def alerts() -> dict[str, str]:
    """The query of every alert, by its name."""
    (group,) = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]
    return {rule["alert"]: rule["expr"] for rule in group["rules"]}


def metrics_in(query: str) -> set[str]:
    """Names of the series that a query reads."""
    return set(re.findall(r"\b(?:jaxllm:|http_|process_)\w+", query))


class Prometheus:
    """A Prometheus that scrapes one server."""

    def __init__(self, url: str) -> None:
        self.client = httpx.Client(base_url=url, timeout=30)

    def query(self, query: str) -> list[dict[str, Any]]:
        """The series of a query now. Fails if Prometheus rejects it."""
        answer = self.client.post("/api/v1/query", data={"query": query}).json()
        assert answer["status"] == "success", (query, answer)
        found: list[dict[str, Any]] = answer["data"]["result"]
        return found

    def exemplars(self, query: str) -> list[dict[str, Any]]:
        """The exemplars of a query's series that came within the last hour."""
        span: dict[str, str | float] = {"query": query, "start": time.time() - 3600, "end": time.time() + 60}
        answer = self.client.get("/api/v1/query_exemplars", params=span).raise_for_status().json()
        return [exemplar for series in answer["data"] for exemplar in series["exemplars"]]

    def rules(self) -> list[dict[str, Any]]:
        """The state of every alert."""
        groups = self.client.get("/api/v1/rules").raise_for_status().json()["data"]["groups"]
        return [rule for group in groups for rule in group["rules"]]

    def wait(self, is_so: Callable[[], object], what: str) -> None:
        """Wait until something is so, which needs further scrapes."""
        deadline = time.monotonic() + _SECONDS
        while not is_so():
            assert time.monotonic() < deadline, f"never came: {what}"
            time.sleep(0.1)


@contextmanager
def scraping(target: str, folder: Path) -> Iterator[Prometheus]:
    """A Prometheus with our alerts that scrapes `target` (host:port) twice a second."""
    config = {
        "global": {"scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "500ms"},
        "rule_files": [str(ALERTS)],
        "scrape_configs": [{"job_name": "jaxllm", "static_configs": [{"targets": [target]}]}],
    }
    file = folder / "prometheus.yml"
    file.write_text(yaml.safe_dump(config))
    address = f"127.0.0.1:{free_ports()}"
    found = program("prometheus")
    assert found is not None
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            [
                found, f"--config.file={file}", f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address={address}", "--log.level=warn", "--enable-feature=exemplar-storage",
            ],
            stdout=log, stderr=log,
        )  # fmt: skip
    try:
        prometheus = Prometheus(f"http://{address}")
        with prometheus.client:
            prometheus.wait(lambda: _is_up(prometheus), "a scrape")
            yield prometheus
    finally:
        process.terminate()
        process.wait(30)


def _is_up(prometheus: Prometheus) -> bool:
    try:
        return [each["value"][1] for each in prometheus.query("up")] == ["1"]
    except (httpx.TransportError, json.JSONDecodeError):
        return False  # It does not answer yet, or not with an answer.

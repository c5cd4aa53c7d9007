"""Writes Grafana's dashboards of docs/observability, from the tables below.

python -m scripts.dashboards docs/observability            # write
python -m scripts.dashboards --check docs/observability    # fail if a file is not what would be written
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MODEL = '{model_name=~"$model",instance=~"$instance"}'
"""The series of the models and servers that are chosen."""
INSTANCE = '{instance=~"$instance"}'
_WIDTH, _HEIGHT, _COLUMNS = 8, 8, 3


@dataclass(frozen=True)
class Panel:
    """A graph: its queries, each with the legend of its series, and what they mean. `unit` is one of Grafana's."""

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    meaning: str


def _quantiles(metric: str) -> tuple[tuple[str, str], ...]:
    found = []
    for share in (0.5, 0.95, 0.99):
        rate = f"sum by (le) (rate(jaxllm:{metric}_bucket{MODEL}[$__rate_interval]))"
        found.append((f"histogram_quantile({share}, {rate})", f"p{share * 100:g}"))
    return tuple(found)


def _rate(metric: str, legend: str = "{{instance}} {{engine}}", by: str = "instance, engine") -> tuple[str, str]:
    return f"sum by ({by}) (rate(jaxllm:{metric}_total{MODEL}[$__rate_interval]))", legend


def _gauge(metric: str) -> tuple[str, str]:
    return f"jaxllm:{metric}{MODEL}", "{{instance}} {{engine}}"


def _ratio(above: str, below: str) -> str:
    parts = (f"sum by (instance, engine) (rate(jaxllm:{each}{MODEL}[$__rate_interval]))" for each in (above, below))
    return " / ".join(parts)


def _mean(histogram: str) -> str:
    return _ratio(f"{histogram}_sum", f"{histogram}_count")


def _share(counter: str, peak: str) -> str:
    return f"rate(jaxllm:{counter}_total{MODEL}[$__rate_interval]) / jaxllm:{peak}{MODEL}"


_EACH = "{{instance}} {{engine}}"
Rows = dict[str, tuple[Panel, ...]]

SERVING: Rows = {
    "Latency": (
        Panel("Time to first token", "s", _quantiles("time_to_first_token_seconds"), "From arrival to the first one."),
        Panel("Time between tokens", "s", _quantiles("inter_token_latency_seconds"), "What readers of streams feel."),
        Panel("Time of a request", "s", _quantiles("e2e_request_latency_seconds"), "From arrival to the end."),
        Panel("Time in the queue", "s", _quantiles("request_queue_time_seconds"), "From arrival to the first step."),
        Panel("Time of prefill", "s", _quantiles("request_prefill_time_seconds"), "From the first step on."),
        Panel("Time of decode", "s", _quantiles("request_decode_time_seconds"), "From the first token to the last."),
    ),
    "Load": (
        Panel(
            "Tokens per second", "short",
            (_rate("prompt_tokens", "prompt", "model_name"), _rate("generation_tokens", "generated", "model_name")),
            "Prompt tokens count with the first token of their request.",
        ),
        Panel("Running", "short", (_gauge("num_requests_running"),), "Requests in the batch of each engine."),
        Panel(
            "Waiting", "short", (_gauge("num_requests_waiting"),),
            "Above 0 for long: more load than engines. Also those that wait for an engine to be restarted.",
        ),
        Panel("Prompt lengths", "short", _quantiles("request_prompt_tokens"), "Tokens of finished requests."),
        Panel("Output lengths", "short", _quantiles("request_generation_tokens"), "Tokens of finished requests."),
        Panel(
            "Prompt tokens found in the prefix cache", "percentunit",
            ((_ratio("prefix_cache_hits_total", "prefix_cache_queries_total"), _EACH),),
            "Share that did not have to be computed.",
        ),
    ),
    "Answers": (
        Panel(
            "Finished", "reqps", (_rate("request_success", "{{finished_reason}}", "finished_reason"),),
            "abort: the client left. error: the engine ended. timeout: it took too long.",
        ),
        Panel(
            "HTTP requests by status", "reqps",
            ((f"sum by (status) (rate(http_requests_total{INSTANCE}[$__rate_interval]))", "{{status}}"),),
            "4xx are the clients', 5xx the server's.",
        ),
        Panel(
            "Rejected", "reqps", (_rate("admission_rejections", "{{reason}}", "reason"),),
            "Told to come back later, with Retry-After.",
        ),
        Panel(
            "Time is over", "reqps", (_rate("request_timeouts", "{{place}}", "place"),),
            "Requests beyond --request-timeout, or their own timeout, by where they were.",
        ),
    ),
}  # fmt: skip
"""What clients feel."""

ENGINE: Rows = {
    "Steps": (
        Panel("Time of a step", "s", ((_mean("step_seconds"), _EACH),), "Mean over the steps."),
        Panel(
            "Time of a step by shape", "s",
            ((
                "sum by (shape) (rate(jaxllm:step_seconds_by_shape_sum" + MODEL + "[$__rate_interval])) / "
                "sum by (shape) (rate(jaxllm:step_seconds_by_shape_count" + MODEL + "[$__rate_interval]))",
                "{{shape}} tokens",
            ),),
            "By the tokens of the compiled shape.",
        ),
        Panel("Fill of steps", "percentunit", ((_mean("batch_fill"), _EACH),), "The rest is padding."),
        Panel("Tokens per step", "short", ((_mean("iteration_tokens_total"), _EACH),), "Mean over the steps."),
        Panel(
            "Compilations after start-up", "short", (_rate("compilations_after_warmup"),),
            "Expected to be 0: each delays everybody.",
        ),
        Panel(
            "Busy stages", "percentunit",
            ((f"rate(jaxllm:stage_busy_seconds_total{MODEL}[$__rate_interval])", "{{instance}} stage {{stage}}"),),
            "Of pipeline parallel: the one near 1 is what the others wait for.",
        ),
    ),
    "Devices, with --enable-mfu-metrics": (
        Panel(
            "Operations", "short", (_rate("estimated_flops_per_gpu"),), "Of each device, per second; an estimate.",
        ),
        Panel(
            "Memory traffic", "Bps",
            (
                _rate("estimated_read_bytes_per_gpu", "read " + _EACH),
                _rate("estimated_write_bytes_per_gpu", "written " + _EACH),
            ),
            "Of each device; an estimate.",
        ),
        Panel(
            "Share of the peaks", "percentunit",
            (
                (_share("estimated_flops_per_gpu", "peak_flops_per_gpu"), "operations " + _EACH),
                (_share("estimated_read_bytes_per_gpu", "peak_bytes_per_second_per_gpu"), "reads " + _EACH),
            ),
            "MFU, and that of the memory; where the chip is known.",
        ),
    ),
    "KV cache": (
        Panel("Use", "percentunit", (_gauge("kv_cache_usage_perc"),), "Pages that running requests hold."),
        Panel("Preemptions", "short", (_rate("num_preemptions"),), "Requests that lost their pages, per second."),
        Panel(
            "Waiting, by reason", "short",
            ((f"sum by (reason) (jaxllm:num_requests_waiting_by_reason{MODEL})", "{{reason}}"),),
            "capacity: no slot or no pages. deferred: a grammar is compiled. engine_restart: its engine ended.",
        ),
        Panel(
            "Idle before eviction", "s", _quantiles("kv_block_idle_before_evict_seconds"),
            "With --kv-cache-metrics. Prefixes that return later are not found.",
        ),
        Panel(
            "Lifetime of pages", "s", _quantiles("kv_block_lifetime_seconds"),
            "With --kv-cache-metrics: until eviction.",
        ),
        Panel(
            "Time between uses", "s", _quantiles("kv_block_reuse_gap_seconds"),
            "With --kv-cache-metrics: by requests that found them.",
        ),
    ),
    "Copies of KV pages, with --kv-offloading-size and --kv-offloading-path": (
        Panel(
            "Prompt tokens found in host memory", "percentunit",
            ((_ratio("external_prefix_cache_hits_total", "external_prefix_cache_queries_total"), _EACH),),
            "Share of those that had left the device, or were never there.",
        ),
        Panel(
            "Copies in host memory", "Bps",
            (_rate("kv_offload_load_bytes", "loaded " + _EACH), _rate("kv_offload_store_bytes", "stored " + _EACH)),
            "From and to the device.",
        ),
        Panel(
            "Files of KV pages", "Bps",
            (
                _rate("kv_offload_tiering_read_bytes", "read " + _EACH),
                _rate("kv_offload_tiering_write_bytes", "written " + _EACH),
            ),
            "To host memory, and from it.",
        ),
        Panel(
            "Use of host memory and files", "percentunit",
            (
                (f"jaxllm:kv_offload_cpu_cache_usage_perc{MODEL}", "memory " + _EACH),
                (f"jaxllm:kv_offload_disk_usage_perc{MODEL}", "files " + _EACH),
            ),
            "Shares of their limits. Full is usual: the oldest make room.",
        ),
        Panel(
            "Copies that were not made", "short",
            (
                _rate("kv_offload_stores_skipped", "memory " + _EACH),
                _rate("kv_offload_disk_stores_skipped", "files " + _EACH),
            ),
            "Pages and states per second for which copying was too slow, or found no room.",
        ),
        Panel(
            "Copies that failed", "short",
            (
                _rate("kv_offload_load_failures", "memory " + _EACH),
                _rate("kv_offload_tiering_promotion_job_failures", "reads of files " + _EACH),
                _rate("kv_offload_tiering_cascade_job_failures", "writes of files " + _EACH),
            ),
            "Per second. What was not loaded was computed.",
        ),
    ),
    "KV pages of other servers, with --kv-transfer-config": (
        Panel(
            "Pages fetched and sent", "Bps",
            (
                _rate("kv_transfer_received_bytes", "fetched " + _EACH),
                _rate("kv_transfer_sent_bytes", "sent " + _EACH),
            ),
            "By servers that decode, and by those that compute prompts.",
        ),
        Panel(
            "Prompt tokens fetched", "short", (_rate("kv_transfer_tokens"),),
            "Per second: they did not have to be computed here.",
        ),
        Panel(
            "Time in which anything is fetched", "percentunit", (_rate("kv_transfer_receive_time"),),
            "Near 1: the link, or the servers that send, are what requests wait for.",
        ),
        Panel(
            "Failed fetches", "short", (_rate("kv_transfer_failures", "{{reason}}", "reason"),),
            "Per second. Their prompts were computed, or their requests failed (kv_load_failure_policy).",
        ),
        Panel(
            "Leases", "short", (_gauge("kv_transfer_leases"),), "Prompts whose pages are kept for other servers now.",
        ),
        Panel(
            "Leases that ended for nothing", "short",
            (
                _rate("nixl_num_kv_expired_reqs", "expired " + _EACH),
                _rate("kv_transfer_refused_peers", "servers refused " + _EACH),
            ),
            "Per second: nobody came for the pages, or who came has other weights.",
        ),
    ),
    "Speculation": (
        Panel(
            "Accepted drafts", "percentunit",
            ((_ratio("spec_decode_num_accepted_tokens_total", "spec_decode_num_draft_tokens_total"), _EACH),),
            "Share of the draft tokens that were checked.",
        ),
        Panel(
            "Tokens per step and request", "short",
            (("1 + " + _ratio("spec_decode_num_accepted_tokens_total", "spec_decode_num_drafts_total"), _EACH),),
            "1 without drafts.",
        ),
    ),
    "Processes": (
        Panel(
            "Restarts of engines", "short",
            ((f"increase(jaxllm:engine_restarts_total{MODEL}[$__rate_interval])", _EACH),), "Crashes and hangs.",
        ),
        Panel(
            "Restarts of API servers", "short",
            ((f"increase(jaxllm:api_server_restarts_total{MODEL}[$__rate_interval])", _EACH),),
            "Of --api-server-count.",
        ),
        Panel(
            "Memory of processes", "bytes",
            ((f"jaxllm:process_memory_bytes{MODEL}", "{{instance}} {{process}} {{engine}}"),),
            "Of engines on this machine, and of the largest API server; see --max-process-memory.",
        ),
        Panel(
            "Lag of event loops", "s", _quantiles("event_loop_lag_seconds"), "API servers: streams stutter by it.",
        ),
        Panel(
            "Lag of engine loops", "s", ((_mean("engine_loop_lag_seconds"), _EACH),), "Until an engine answers.",
        ),
        Panel(
            "Memory of the server", "bytes", ((f"process_resident_memory_bytes{INSTANCE}", "{{instance}}"),),
            "Without --api-server-count; not that of the engines.",
        ),
        Panel(
            "Processor of the server", "percentunit",
            ((f"rate(process_cpu_seconds_total{INSTANCE}[$__rate_interval])", "{{instance}}"),),
            "Near 1: more API servers (--api-server-count).",
        ),
        Panel(
            "Open files", "short", ((f"process_open_fds{INSTANCE}", "{{instance}}"),), "Connections, mostly.",
        ),
        Panel(
            "Awake", "short", ((f'jaxllm:engine_sleep_state{{sleep_state="awake",{MODEL[1:]}', _EACH),), "0: asleep.",
        ),
    ),
}  # fmt: skip
"""What the engines do."""

DASHBOARDS = {"serving": ("jaxllm: serving", SERVING), "engine": ("jaxllm: engines", ENGINE)}


def dashboard(uid: str, title: str, rows: Rows) -> dict[str, Any]:
    """A dashboard as Grafana imports it."""
    panels: list[dict[str, Any]] = []
    top = 0
    for name, row in rows.items():
        panels.append({"type": "row", "title": name, "gridPos": _place(0, top, 24, 1), "id": len(panels) + 1})
        for number, panel in enumerate(row):
            line, column = divmod(number, _COLUMNS)
            place = _place(column * _WIDTH, top + 1 + line * _HEIGHT, _WIDTH, _HEIGHT)
            panels.append(_panel(panel, place, len(panels) + 1))
        top += 1 + -(-len(row) // _COLUMNS) * _HEIGHT
    return {
        "uid": f"jaxllm-{uid}",
        "title": title,
        "tags": ["jaxllm"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [_source(), _variable("model", "model_name"), _variable("instance", "instance")]},
        "panels": panels,
    }


def _place(x: int, y: int, width: int, height: int) -> dict[str, int]:
    return {"x": x, "y": y, "w": width, "h": height}


_DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}


def _panel(panel: Panel, place: dict[str, int], number: int) -> dict[str, Any]:
    targets: list[dict[str, Any]] = [
        {"refId": chr(ord("A") + index), "expr": query, "legendFormat": legend, "datasource": _DATASOURCE}
        for index, (query, legend) in enumerate(panel.queries)
    ]
    if "_seconds_bucket" in panel.queries[0][0]:
        # Dots that lead to the traces of single requests; all queries of the panel have the same ones.
        targets[0]["exemplar"] = True
    return {
        "id": number,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.meaning,
        "datasource": _DATASOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": targets,
    }


def _source() -> dict[str, Any]:
    return {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}


def _variable(name: str, label: str) -> dict[str, Any]:
    query = f"label_values(jaxllm:num_requests_running, {label})"
    return {
        "name": name,
        "type": "query",
        "datasource": _DATASOURCE,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".+",
        "current": {"text": "All", "value": "$__all"},
    }


def files() -> dict[str, str]:
    """The files, by their names."""
    return {f"{name}.json": json.dumps(dashboard(name, *given), indent=2) + "\n" for name, given in DASHBOARDS.items()}


def main(arguments: Sequence[str]) -> int:
    """Write or check the files; the exit code."""
    folder, check = Path(arguments[-1]), "--check" in arguments
    stale = [name for name, text in files().items() if not _is_there(folder / name, text)]
    if check:
        if stale:
            print(f"not up to date: {', '.join(stale)}; run python -m scripts.dashboards {folder}", file=sys.stderr)
        return int(bool(stale))
    for name in stale:
        (folder / name).write_text(files()[name], encoding="utf-8")
    return 0


def _is_there(path: Path, text: str) -> bool:
    return path.exists() and path.read_text(encoding="utf-8") == text


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

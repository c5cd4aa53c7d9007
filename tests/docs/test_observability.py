"""Alerts have their sections in the runbook, and fire on the series that they are for, and on no healthy ones.

`tests/e2e/serving/test_observability.py` runs them and the dashboards' queries on a server.
"""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from scripts import dashboards
from tests.conftest import ROOT
from tests.e2e.serving.prometheus import ALERTS, FOLDER, alerts, program

E = 'instance="a", engine="0", model_name="m"'
QUIET = {
    'up{job="jaxllm", instance="a"}': "1x60",
    f"jaxllm:engine_restarts_total{{{E}}}": "0x60",
    f"jaxllm:api_server_restarts_total{{{E}}}": "0x60",
    f"jaxllm:num_requests_running{{{E}}}": "3x60",
    f"jaxllm:step_seconds_count{{{E}}}": "0+100x60",
    f'jaxllm:request_success_total{{{E}, finished_reason="stop"}}': "0+60x60",
    f'jaxllm:request_success_total{{{E}, finished_reason="error"}}': "0x60",
    f'jaxllm:request_success_total{{{E}, finished_reason="abort"}}': "0+2x60",
    'http_requests_total{instance="a", status="2xx"}': "0+60x60",
    'http_requests_total{instance="a", status="5xx"}': "0x60",
    f'jaxllm:admission_rejections_total{{{E}, reason="queue_full"}}': "0x60",
    f'jaxllm:request_timeouts_total{{{E}, place="decode"}}': "0x60",
    f"jaxllm:num_requests_waiting{{{E}}}": "0 5 0 2 0+0x60",
    f'jaxllm:time_to_first_token_seconds_bucket{{{E}, le="5"}}': "0+60x60",
    f'jaxllm:time_to_first_token_seconds_bucket{{{E}, le="10"}}': "0+60x60",
    f'jaxllm:time_to_first_token_seconds_bucket{{{E}, le="+Inf"}}': "0+60x60",
    f'jaxllm:inter_token_latency_seconds_bucket{{{E}, le="0.2"}}': "0+60x60",
    f'jaxllm:inter_token_latency_seconds_bucket{{{E}, le="0.5"}}': "0+60x60",
    f'jaxllm:inter_token_latency_seconds_bucket{{{E}, le="+Inf"}}': "0+60x60",
    f"jaxllm:num_preemptions_total{{{E}}}": "0x60",
    f'jaxllm:kv_offload_tiering_cascade_job_failures_total{{{E}, tier="1:fs"}}': "0x60",
    f'jaxllm:kv_offload_tiering_promotion_job_failures_total{{{E}, tier="1:fs"}}': "0x60",
    f"jaxllm:kv_transfer_requests_total{{{E}}}": "0+60x60",
    f'jaxllm:kv_transfer_failures_total{{{E}, reason="gone"}}': "0x60",
    f'jaxllm:kv_transfer_failures_total{{{E}, reason="timeout"}}': "0 0 2x60",
    f"jaxllm:kv_transfer_leases_granted_total{{{E}}}": "0+60x60",
    f"jaxllm:nixl_num_kv_expired_reqs_total{{{E}}}": "0 0 9x60",
    f"jaxllm:compilations_after_warmup_total{{{E}}}": "0x60",
    f'jaxllm:step_seconds_by_shape_sum{{{E}, shape="64"}}': "0+1x60",
    f'jaxllm:step_seconds_by_shape_count{{{E}, shape="64"}}': "0+100x60",
    f'jaxllm:planned_step_seconds{{{E}, shape="64"}}': "0.005x60",
    f'jaxllm:event_loop_lag_seconds_bucket{{{E}, le="0.2"}}': "0+240x60",
    f'jaxllm:event_loop_lag_seconds_bucket{{{E}, le="0.5"}}': "0+240x60",
    f'jaxllm:event_loop_lag_seconds_bucket{{{E}, le="+Inf"}}': "0+240x60",
    f"jaxllm:engine_loop_lag_seconds_sum{{{E}}}": "0+1x60",
    f"jaxllm:engine_loop_lag_seconds_count{{{E}}}": "0+12x60",
    f'jaxllm:engine_sleep_state{{{E}, sleep_state="awake"}}': "1x180",
}
"""Series of a healthy server, one value a minute."""

TROUBLE: dict[str, tuple[dict[str, str], int]] = {
    "JaxllmDown": ({'up{job="jaxllm", instance="a"}': "0x60"}, 2),
    "JaxllmEngineRestarted": ({f"jaxllm:engine_restarts_total{{{E}}}": "0 0 1x60"}, 4),
    "JaxllmEngineCrashLoop": ({f"jaxllm:engine_restarts_total{{{E}}}": "0 1 2 3 4x60"}, 6),
    "JaxllmApiServerRestarted": ({f"jaxllm:api_server_restarts_total{{{E}}}": "0 0 1x60"}, 4),
    "JaxllmEngineStalled": ({f"jaxllm:step_seconds_count{{{E}}}": "0 100 200x60"}, 8),
    "JaxllmRequestsFail": ({f'jaxllm:request_success_total{{{E}, finished_reason="error"}}': "0+2x60"}, 5),
    "JaxllmServerErrors": ({'http_requests_total{instance="a", status="5xx"}': "0+2x60"}, 8),
    "JaxllmRequestsTimeOut": ({f'jaxllm:request_timeouts_total{{{E}, place="decode"}}': "0+2x60"}, 8),
    "JaxllmRejectsRequests": ({f'jaxllm:admission_rejections_total{{{E}, reason="queue_full"}}': "0+1x60"}, 12),
    "JaxllmRequestsWait": ({f"jaxllm:num_requests_waiting{{{E}}}": "1x60"}, 12),
    "JaxllmFirstTokenSlow": ({f'jaxllm:time_to_first_token_seconds_bucket{{{E}, le="5"}}': "0+50x60"}, 12),
    "JaxllmTokensSlow": ({f'jaxllm:inter_token_latency_seconds_bucket{{{E}, le="0.2"}}': "0+50x60"}, 12),
    "JaxllmPreempts": ({f"jaxllm:num_preemptions_total{{{E}}}": "0+6x60"}, 12),
    "JaxllmDiskTierFails": ({f'jaxllm:kv_offload_tiering_cascade_job_failures_total{{{E}, tier="1:fs"}}': "0+1x60"}, 8),
    "JaxllmTransfersFail": ({f'jaxllm:kv_transfer_failures_total{{{E}, reason="gone"}}': "0+4x60"}, 20),
    "JaxllmLeasesExpire": ({f"jaxllm:nixl_num_kv_expired_reqs_total{{{E}}}": "0+4x60"}, 20),
    "JaxllmCompiles": ({f"jaxllm:compilations_after_warmup_total{{{E}}}": "0 0 1x60"}, 4),
    "JaxllmStepsSlow": ({f'jaxllm:step_seconds_by_shape_sum{{{E}, shape="64"}}': "0+2x60"}, 25),
    "JaxllmEventLoopLags": ({f'jaxllm:event_loop_lag_seconds_bucket{{{E}, le="0.2"}}': "0+200x60"}, 12),
    "JaxllmEngineLoopLags": ({f"jaxllm:engine_loop_lag_seconds_sum{{{E}}}": "0+40x60"}, 20),
    "JaxllmClientsLeave": ({f'jaxllm:request_success_total{{{E}, finished_reason="abort"}}': "0+30x60"}, 25),
    "JaxllmAsleep": ({f'jaxllm:engine_sleep_state{{{E}, sleep_state="awake"}}': "0x180"}, 65),
}
"""For each alert the series of a server in trouble, and the minute at which it fires."""


def test_each_alert_has_its_section_and_each_section_its_alert() -> None:
    page = (ROOT / "docs" / "runbook.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (Jaxllm\w+)$", page, re.MULTILINE) == list(alerts()) == list(TROUBLE)


def test_the_dashboards_are_those_of_the_script() -> None:
    assert {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.json")} == dashboards.files()


@pytest.mark.skipif(program("promtool") is None, reason="scripts/prometheus installs it")
def test_alerts_fire_on_trouble_and_on_nothing_else(tmp_path: Path) -> None:
    rules = {"rule_files": [str(ALERTS)], "evaluation_interval": "1m"}
    tests: list[dict[str, Any]] = [_case("quiet", QUIET, 59, dict.fromkeys(alerts(), 0))]
    for name, (series, minute) in TROUBLE.items():
        assert series.keys() <= QUIET.keys()
        tests.append(_case(name, {**QUIET, **series}, minute, {name: 1}))
    file = tmp_path / "tests.yml"
    file.write_text(yaml.safe_dump({**rules, "tests": tests}))
    promtool = program("promtool")
    assert promtool is not None
    done = subprocess.run(
        [promtool, "test", "rules", str(file)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def _case(name: str, series: dict[str, str], minute: int, firing: dict[str, int]) -> dict[str, Any]:
    """A case of promtool: so many alerts of each name fire at a minute."""
    questions = []
    for alert, count in firing.items():
        query = f'count(ALERTS{{alertname="{alert}", alertstate="firing"}})'
        questions.append({
            "expr": query,
            "eval_time": f"{minute}m",
            "exp_samples": [{"labels": "{}", "value": count}] if count else [],
        })  # fmt: skip
    given = [{"series": each, "values": values} for each, values in series.items()]
    return {"name": name, "interval": "1m", "input_series": given, "promql_expr_test": questions}

"""Which process of an engine this is, by options and by what launchers leave in the environment."""

from typing import Any

import pytest

from jaxllm.config import DistributedOptions
from jaxllm.errors import ConfigError
from jaxllm.hosts.placement import Placement, find_placement, first_host

LWS = {"LWS_LEADER_ADDRESS": "group-0.svc", "LWS_GROUP_SIZE": "4", "LWS_WORKER_INDEX": "2"}
TPU = {"TPU_WORKER_HOSTNAMES": "host-a,host-b", "TPU_WORKER_ID": "1"}
SLURM = {"SLURM_PROCID": "3", "SLURM_NTASKS": "8", "SLURM_STEP_NODELIST": "tpu[003-010]"}
JOB = {"JOB_COMPLETION_INDEX": "1"}


def place(environment: dict[str, str], **options: Any) -> Placement | None:
    return find_placement(DistributedOptions(**options), environment)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        (LWS, (4, 2, "group-0.svc")),
        (TPU, (2, 1, "host-a")),
        (SLURM, (8, 3, "tpu003")),
        ({**TPU, **LWS}, (4, 2, "group-0.svc")),
    ],
)
def test_a_launcher_says_where(environment: dict[str, str], expected: tuple[int, int, str]) -> None:
    found = place(environment, distributed_executor_backend="multihost")
    assert found is not None
    assert (found.size, found.rank, found.address) == expected
    assert found.port == 29501


def test_the_environment_of_a_launcher_changes_nothing_unasked() -> None:
    assert place({**LWS, **SLURM, **TPU, **JOB}) is None
    assert place(LWS, distributed_executor_backend="uniproc") is None


def test_options_come_first() -> None:
    found = place(LWS, nnodes=2, node_rank=1, master_addr="fd00::1", master_port=4000)
    assert found == Placement(2, 1, "fd00::1", 4000, "the options")
    assert found.coordinator == "[fd00::1]:4001"
    assert not found.is_leader


def test_a_job_knows_its_number_only() -> None:
    found = place(JOB, nnodes=3, master_addr="job-0")
    assert found == Placement(3, 1, "job-0", 29501, "JOB_COMPLETION_INDEX")


def test_ray_says_where() -> None:
    options = {"distributed_executor_backend": "ray", "nnodes": 2}
    expected = Placement(2, 1, "fd00::1", 4000, "Ray")
    assert place({**LWS, **expected.variables}, **options) == expected
    assert place({}, **options | {"nnodes": 1}) is None
    with pytest.raises(ConfigError, match="this process was not started by Ray"):
        place(LWS, **options)


def test_one_host_is_no_group() -> None:
    one = {"TPU_WORKER_HOSTNAMES": "localhost", "TPU_WORKER_ID": "0"}
    assert place(one, distributed_executor_backend="multihost") is None


@pytest.mark.parametrize(
    ("environment", "options", "named"),
    [
        ({}, {"distributed_executor_backend": "multihost"}, "nnodes"),
        ({}, {"nnodes": 2}, "node_rank"),
        ({}, {"nnodes": 2, "node_rank": 2}, "node_rank=2"),
        ({}, {"node_rank": 1}, "nnodes"),
        ({}, {"nnodes": 2, "node_rank": 0, "distributed_executor_backend": "uniproc"}, "uniproc"),
        ({**TPU, "TPU_WORKER_ID": "one"}, {"distributed_executor_backend": "multihost"}, "TPU_WORKER_ID"),
        ({**LWS, "LWS_WORKER_INDEX": "7"}, {"distributed_executor_backend": "multihost"}, "LWS_GROUP_SIZE"),
    ],
)
def test_what_does_not_fit_is_named(environment: dict[str, str], options: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        place(environment, **options)


@pytest.mark.parametrize(
    ("hosts", "first"),
    [("tpu[003-007,9],gpu1", "tpu003"), ("a,b", "a"), ("a1", "a1"), ("rack[1,3]-tpu", "rack1-tpu"), ("", "")],
)
def test_the_first_host_of_a_list(hosts: str, first: str) -> None:
    assert first_host(hosts) == first

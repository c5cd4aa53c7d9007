"""Processes of an engine find each other, agree, hear every call in order, and end together. Without devices."""

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import numpy as np
import pytest
import zmq

from jaxllm.errors import ConfigError, EngineError
from jaxllm.hosts.follower import FollowerGroup
from jaxllm.hosts.leader import LeaderGroup
from jaxllm.hosts.placement import Placement
from tests.ports import free_ports

MEMBER = """
import logging, sys, time
from jaxllm.hosts.follower import FollowerGroup
from jaxllm.hosts.group import Timing
from jaxllm.hosts.leader import LeaderGroup
from jaxllm.hosts.placement import Placement
logging.basicConfig(format="%(message)s")
rank, port = map(int, sys.argv[1:3])
kind = FollowerGroup if rank else LeaderGroup
group = kind(Placement(2, rank, "127.0.0.1", port, "test"), None, Timing(0.1, 1.0))
group.join(30)
print("joined", flush=True)
time.sleep(30)
"""


def place(rank: int, port: int, size: int = 2) -> Placement:
    return Placement(size, rank, "127.0.0.1", port, "test")


@contextmanager
def groups(size: int, secret: str | None = None) -> Iterator[tuple[LeaderGroup, list[FollowerGroup]]]:
    """The groups of all processes, joined."""
    port = free_ports()
    # Followers may come first.
    followers = [FollowerGroup(place(rank, port, size), secret) for rank in range(1, size)]
    leader = LeaderGroup(place(0, port, size), secret)
    with ThreadPoolExecutor(size) as pool:
        for joined in [pool.submit(leader.join, 20.0), *(pool.submit(follower.join, 20.0) for follower in followers)]:
            joined.result()
        try:
            yield leader, followers
        finally:
            ends = [pool.submit(follower.close) for follower in followers]
            leader.close("the test ends")
            for end in ends:
                end.result()


@pytest.mark.parametrize("secret", [None, "a secret"])
def test_all_hear_every_call_in_order(secret: str | None) -> None:
    packed = np.arange(1000, dtype=np.int32)
    with groups(3, secret) as (leader, followers), ThreadPoolExecutor(2) as pool:

        def collect(follower: FollowerGroup) -> list[tuple[str, int]]:
            found = []
            for call in follower.calls():
                first, count = (each.array() for each in call.arrays)
                np.testing.assert_array_equal(first, packed)
                assert count.shape == ()
                found.append((call.name, int(count)))
            follower.close()
            return found

        heard = [pool.submit(collect, follower) for follower in followers]
        for number in range(200):
            leader.publish(f"step_{number % 3}", (packed, np.int32(number)))
        leader.close()
        for each in heard:
            assert each.result() == [(f"step_{number % 3}", number) for number in range(200)]


def test_all_agree_on_the_smallest() -> None:
    with groups(3) as (leader, followers), ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda group: group.smallest("pages", 100 - group.place.rank), (leader, *followers)))
        assert found == [98, 98, 98]


def test_other_options_are_named_everywhere() -> None:
    with groups(2) as (leader, (follower,)), ThreadPoolExecutor(1) as pool:
        theirs = pool.submit(follower.check_same, "engine", {"dtype": "float16", "tokens": 8})
        with pytest.raises(ConfigError, match=r"process 0 and process 1 .* dtype is float32 and float16"):
            leader.check_same("engine", {"dtype": "float32", "tokens": 8})
        with pytest.raises(ConfigError, match="dtype"):
            theirs.result()


@pytest.mark.parametrize(("ours", "theirs"), [("right", "wrong"), ("right", None), (None, "wrong")])
def test_another_secret_is_told(ours: str | None, theirs: str | None) -> None:
    port = free_ports()
    leader, follower = LeaderGroup(place(0, port), ours), FollowerGroup(place(1, port), theirs)
    try:
        with pytest.raises(ConfigError, match="a different secret"):
            follower.join(20)
        with pytest.raises(EngineError, match=r"process 1 of 2 did not connect within 0.1 s"):
            leader.join(0.1)
    finally:
        follower.close()
        leader.close("the test ends")


def test_two_engines_on_one_port() -> None:
    port = free_ports()
    leader = LeaderGroup(place(0, port), None)
    try:
        with pytest.raises(ConfigError, match=f"127.0.0.1:{port} is in use, by another engine"):
            LeaderGroup(place(0, port), None)
        other = FollowerGroup(place(2, port, size=3), None)
        with pytest.raises(ConfigError, match="it is process 2 of 3, but this engine has 2"):
            other.join(20)
        other.close()
    finally:
        leader.close("the test ends")


def test_nobody_leads() -> None:
    follower = FollowerGroup(place(1, free_ports()), None)
    with pytest.raises(EngineError, match=r"did not start together with process 1 of 2 within 0.2 s"):
        follower.join(0.2)
    follower.close()


def test_the_failure_of_one_is_told_to_who_waits() -> None:
    with groups(2) as (leader, (follower,)):
        threading.Timer(0.1, follower.close, ["ConfigError: no such model"]).start()
        with pytest.raises(EngineError, match=r"process 1 \(.*\): ConfigError: no such model"):
            leader.gather("pages", 1)


def test_strangers_change_nothing() -> None:
    with groups(2) as (leader, (follower,)), zmq.Context() as context, context.socket(zmq.DEALER) as stranger:
        stranger.linger = 0
        stranger.connect(f"tcp://127.0.0.1:{leader.place.port}")
        for garbage in (b"", b"\x93", b"\xc1" * 100, b"\x92\xa5Ended\xc0", b"\x93\xa6Report\xa5pages\x00"):
            stranger.send(garbage)
        with ThreadPoolExecutor(1) as pool:
            theirs = pool.submit(follower.smallest, "pages", 7)
            assert leader.smallest("pages", 8) == theirs.result() == 7


@pytest.mark.parametrize(
    ("ended", "how", "line"),
    [
        (0, signal.SIGKILL, "the connection to the first process"),
        (1, signal.SIGKILL, "the connection to process 1"),
        (0, signal.SIGSTOP, "sent nothing for 1 s"),
        (1, signal.SIGSTOP, "sent nothing for 1 s"),
    ],
)
def test_a_process_that_is_killed_or_falls_silent_ends_the_other(ended: int, how: signal.Signals, line: str) -> None:
    port = str(free_ports())
    with ExitStack() as stack:
        children = []
        for rank in (0, 1):
            command = [sys.executable, "-c", MEMBER, str(rank), port]
            child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            stack.enter_context(child)
            stack.callback(child.kill)
            children.append(child)
        for child in children:
            assert child.stdout is not None
            assert child.stdout.readline() == "joined\n"
        children[ended].send_signal(how)
        _, error = children[1 - ended].communicate(timeout=10)
        assert children[1 - ended].returncode == 1
        assert "ends: " in error
        assert line in error
        assert len(error.splitlines()) == 1, error

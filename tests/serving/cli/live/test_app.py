"""The screen on a real server, driven by Textual's own pilot."""

import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from typing import Any

import httpx
import pytest
from textual.pilot import Pilot
from textual.widgets import DataTable, Sparkline, Static

from jaxllm.errors import ConfigError, EngineError, RequestError
from jaxllm.serving.cli import main as cli
from jaxllm.serving.cli.api_client import ApiClient
from jaxllm.serving.cli.live.app import TopApp, cells, duration
from tests.serving.cli.commands import KEY
from tests.serving.server_process import LONG, ServerProcess


def app_of(server: ServerProcess, key: str = KEY) -> TopApp:
    url = f"http://127.0.0.1:{server.port}"

    def events() -> Generator[dict[str, Any]]:
        with ApiClient(url, key) as client:
            yield from client.live_events()

    return TopApp(url, events)


@pytest.fixture
def load(server: ServerProcess) -> Iterator[None]:
    """A request that runs for as long as a test."""
    over = threading.Event()

    def generate() -> None:
        url, headers = f"http://127.0.0.1:{server.port}/v1/completions", {"Authorization": f"Bearer {KEY}"}
        while not over.is_set():
            with httpx.stream("POST", url, json=LONG, headers=headers, timeout=60) as response:
                for _ in response.iter_raw():
                    if over.is_set():
                        break

    thread = threading.Thread(target=generate)
    thread.start()
    yield
    over.set()
    thread.join()


async def until(pilot: Pilot[None], true: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not true():
        assert time.monotonic() < end, "it did not come"
        await pilot.pause(0.1)


def text(app: TopApp, name: str) -> str:
    return str(app.query_one(f"#{name}", Static).render())


@pytest.mark.usefixtures("load")
@pytest.mark.parametrize(("width", "height", "columns"), [(44, 24, 2), (76, 24, 4), (150, 50, 8)])
async def test_figures_curve_and_rows_move(server: ServerProcess, width: int, height: int, columns: int) -> None:
    app = app_of(server)
    async with app.run_test(size=(width, height)) as pilot:
        await until(pilot, lambda: app.query_one("#rows", DataTable).row_count == 4 and text(app, "speed")[-1] != "0")
        await until(pilot, lambda: max(app.query_one("#curve", Sparkline).data or [0.0]) > 0)
        assert "4 of 4" in text(app, "requests")
        assert app.query_one("#rows", DataTable).get_row_at(0)[0].plain in ("decode", "prefill")
        tops = [app.query_one(f"#{name}").region.y for name in ("speed", "prompts", "requests", "cache", "first")]
        assert (tops[1] > tops[0], tops[2] > tops[0], tops[4] > tops[0]) == (False, columns == 2, columns < 8)
        assert app.query_one("#rows").region.bottom <= height
        for tile in app.query("#tiles Static"):
            assert max(map(len, text(app, str(tile.id)).splitlines())) <= tile.size.width
        await pilot.press("p")
        assert "paused" in text(app, "head")
        await pilot.press("q")
    assert app.error is None


async def test_a_wrong_key_ends_it_with_an_error(server: ServerProcess) -> None:
    app = app_of(server, "another key")
    async with app.run_test() as pilot:
        await until(pilot, lambda: app.error is not None)
    assert isinstance(app.error, ConfigError)
    assert "rejects the API key" in str(app.error)


async def test_a_server_that_is_away_is_asked_again(server: ServerProcess) -> None:
    tries = 0

    def events() -> Generator[dict[str, Any]]:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise EngineError("no server is listening")
        with ApiClient(f"http://127.0.0.1:{server.port}", KEY) as client:
            yield from client.live_events()

    app = TopApp("http://[somewhere]", events)
    async with app.run_test() as pilot:
        await until(pilot, lambda: "no server is listening; trying again" in text(app, "head"))
        assert "[somewhere]" in text(app, "head")
        await until(pilot, lambda: "0 of 4" in text(app, "requests"))
        assert "trying again" not in text(app, "head")


def test_a_server_without_the_view_is_an_error(server: ServerProcess) -> None:
    with (
        ApiClient(f"http://127.0.0.1:{server.port}/elsewhere", KEY) as client,
        pytest.raises(RequestError, match="no live view"),
        closing(client.live_events()) as events,
    ):
        next(events)


def test_without_textual_it_names_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("jaxllm.serving.cli.top.find_spec", lambda name: None)
    assert cli.main(["top"]) == 2
    assert "pip install 'jaxllm[top]'" in capsys.readouterr().err


def test_a_name_is_never_markup() -> None:
    row = {"age_seconds": 2.0, "prompt_tokens": 1200, "cached_tokens": 16, "generated_tokens": 0, "adapter": "[red]a"}
    assert cells(row) == ["prefill", "2.0 s", "1,200", "16", "0", "[red]a"]


@pytest.mark.parametrize(("seconds", "shown"), [(None, "-"), (0.01234, "12.3 ms"), (0.5, "500 ms"), (12.0, "12.0 s")])
def test_durations(seconds: float | None, shown: str) -> None:
    assert duration(seconds) == shown

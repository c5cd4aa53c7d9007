"""A server with a key, and a browser before its page."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.serving.server_process import SMALL, ServerProcess, running

KEY = "a-key-to-the-page"
_BROWSER = os.environ.get("JAXLLM_TEST_BROWSER", "/usr/bin/chromium-headless-shell")
_FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
)


@pytest.fixture(scope="session")
def ui_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    log = tmp_path_factory.mktemp("ui") / "log"
    with running(log, "demo", *SMALL, environment={"JAXLLM_API_KEY": KEY}) as process:
        yield process
    assert "Traceback" not in process.log


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Not for longer: Playwright runs an event loop in this thread, and tests of other modules want theirs."""
    if not Path(_BROWSER).exists():
        # Where all must pass, nothing is left out.
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"no browser at {_BROWSER}: run scripts/browser")
    with sync_playwright() as playwright:
        expect.set_options(timeout=60_000)  # a busy machine is slow
        made = playwright.chromium.launch(executable_path=_BROWSER, args=list(_FLAGS))
        yield made
        made.close()


@pytest.fixture
def strange() -> list[str]:
    """What no page may do: errors, and requests to elsewhere."""
    return []


@pytest.fixture
def page(browser: Browser, ui_server: ServerProcess, strange: list[str]) -> Iterator[Page]:
    """The page with its key, in a browser that keeps nothing of the tests before."""
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    context.add_init_script(f"sessionStorage.setItem('jaxllm.key', '{KEY}')")
    made = context.new_page()
    made.set_default_timeout(60_000)
    watch(made, ui_server.url, strange)
    made.goto(ui_server.url)
    made.get_by_label("Message", exact=True).wait_for()
    yield made
    context.close()
    assert strange == []


def watch(page: Page, url: str, strange: list[str]) -> None:
    """Write down what is wrong with a page."""
    page.on("console", lambda message: strange.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: strange.append(str(error)))
    page.on("request", lambda each: None if each.url.startswith((url, "data:")) else strange.append(each.url))

"""Images on the page, before a server of the model that sees."""

import io
import re
import runpy
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, FilePayload, expect

from tests.conftest import ROOT
from tests.serving.server_process import ServerProcess, running
from tests.serving.ui.conftest import watch
from tests.serving.ui.test_page import answered, say

QUICK = ("--host", "127.0.0.1", "--port", "0", "--optimization-level", "0", "--enforce-eager")
WANTED = "A red circle and a blue square on a white background."


@pytest.fixture(scope="module")
def seeing_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    log = tmp_path_factory.mktemp("seeing") / "log"
    with running(log, "demo-vision", *QUICK, "--max-num-batched-tokens", "8", "--max-num-seqs", "4") as process:
        yield process
    assert "Traceback" not in process.log


def drawing() -> bytes:
    """The picture of the example, as a file."""
    made = io.BytesIO()
    runpy.run_path(str(ROOT / "docs" / "examples" / "vision_language.py"))["draw"]().save(made, "PNG")
    return made.getvalue()


def test_an_image_is_added_sent_described_and_kept(
    browser: Browser, seeing_server: ServerProcess, strange: list[str]
) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.set_default_timeout(60_000)
    watch(page, seeing_server.url, strange)
    sent: list[Any] = []
    page.on("request", lambda each: sent.append(each.post_data_json) if "completions" in each.url else None)
    page.goto(seeing_server.url)
    page.get_by_role("button", name="Exact").click()
    files, picture = page.get_by_label("Images", exact=True), drawing()
    files.set_input_files([FilePayload(name="note.png", mimeType="image/png", buffer=b"no image at all")])
    expect(page.get_by_role("status")).to_contain_text("note.png is no image")
    files.set_input_files([FilePayload(name=f"{each}.png", mimeType="image/png", buffer=picture) for each in range(2)])
    expect(page.get_by_alt_text("Image 2 of this message")).to_be_visible()
    page.get_by_role("button", name="Remove image 2").click()
    expect(page.get_by_alt_text("Image 2 of this message")).to_have_count(0)
    say(page, "What is in this picture?")
    answered(page)
    expect(page.locator(".message.assistant > .text")).to_have_text(WANTED)
    image, text = sent[0]["messages"][0]["content"]
    assert image["image_url"]["url"].startswith("data:image/png;base64,")
    assert text == {"type": "text", "text": "What is in this picture?"}
    expect(page.get_by_alt_text("Image 1 of this message")).to_have_count(0)
    # The next question has the picture with it, also of a page that is loaded again.
    page.reload()
    shown = page.get_by_alt_text("Image 1 of your message")
    expect(shown).to_be_visible()
    assert shown.evaluate("image => image.naturalWidth") > 0
    page.get_by_role("button", name="Exact").click()
    say(page, "What color is the square?")
    # So small a model does not look again for what it has said.
    expect(page.locator(".message.assistant > .text").last).to_have_text(re.compile(r"^The square is \w+\.$"))
    assert sent[1]["messages"][0]["content"][0] == image
    context.close()
    assert strange == []

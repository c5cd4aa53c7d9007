"""The page in a browser, before a real server."""

import json
import re
import time
from typing import Any

import httpx
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, Route, expect

from tests.serving.server_process import LONG, ServerProcess, Stream
from tests.serving.ui.conftest import KEY, watch

HOSTILE = '<img src="/none" onerror="document.title=1"><script>document.title=2</script>[x](javascript:alert(1))'
NUM_TOKENS = re.compile(r"\d+ tokens")


def say(page: Page, text: str) -> None:
    page.get_by_label("Message", exact=True).fill(text)
    page.get_by_role("button", name="Send", exact=True).click()


def answered(page: Page) -> None:
    expect(page.locator(".message.assistant").last.locator(".figures")).to_contain_text(NUM_TOKENS)


def chunks(*deltas: dict[str, object], end: str = "stop") -> str:
    choices = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    events = [{"choices": [choice]} for choice in [*choices, {"index": 0, "delta": {}, "finish_reason": end}]]
    return "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"


def test_the_key_is_asked_for_and_forgotten_with_the_tab(browser: Browser, ui_server: ServerProcess) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.goto(ui_server.url)
    for key, text in (("wrong", "did not accept"), (KEY, "")):
        page.get_by_label("API key").fill(key)
        page.get_by_role("button", name="Continue").click()
        if text:
            expect(page.get_by_role("alert")).to_contain_text(text)
    expect(page.get_by_role("heading", name="Chat with demo")).to_be_visible()
    assert KEY not in page.evaluate("JSON.stringify({...localStorage})")
    assert KEY in page.evaluate("JSON.stringify({...sessionStorage})")
    context.close()


def at_length(route: Route) -> None:
    """Send a chat on as one whose answer lasts until somebody stops it."""
    body = json.loads(route.request.post_data or "{}")
    route.continue_(post_data=json.dumps({**body, "ignore_eos": True, "max_tokens": 450}))


def test_a_chat_streams_stops_and_has_branches(page: Page, ui_server: ServerProcess) -> None:
    page.route("**/v1/chat/completions", at_length)
    say(page, "Tell me a story about a fox.")
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_text("Stopped by you.")).to_be_visible()
    page.unroute("**/v1/chat/completions")
    with httpx.Client(base_url=ui_server.url, headers={"Authorization": f"Bearer {KEY}"}) as client:
        deadline = time.monotonic() + 30
        while client.get("/load").json() != {"server_load": 0}:
            assert time.monotonic() < deadline
    page.get_by_role("button", name="Answer again").click()
    answered(page)
    assert len(page.locator(".message.assistant .text").inner_text()) > 50
    expect(page.locator(".message.assistant .versions")).to_contain_text("2 / 2")
    page.get_by_role("button", name="Edit and send again").click()
    page.get_by_label("Edit the message").fill("What is 17 plus 25?")
    page.locator("form.edit").get_by_role("button", name="Send").click()
    answered(page)
    expect(page.locator(".message.user .versions")).to_contain_text("2 / 2")
    page.reload()
    expect(page.locator(".message.user .text")).to_have_text("What is 17 plus 25?")
    page.locator(".message.user").get_by_role("button", name="Previous version").click()
    expect(page.locator(".message.user .text")).to_have_text("Tell me a story about a fox.")
    page.get_by_role("button", name="Show as code").click()
    for name in ("curl", "Python", "JavaScript"):
        page.get_by_role("button", name=name).click()
        expect(page.locator("dialog pre")).to_contain_text("Tell me a story about a fox.")
        expect(page.locator("dialog pre")).not_to_contain_text(KEY)


def test_another_token_is_taken_and_the_answer_goes_on_from_there(page: Page) -> None:
    page.locator(".switch").click()
    page.get_by_role("button", name="Exact").click()
    say(page, "Tell me a story about a fox.")
    answered(page)
    tokens = page.locator(".tokens .token")
    texts = tokens.all_inner_texts()
    tokens.nth(3).focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    others = page.get_by_role("dialog", name="Alternatives").locator("ol button:not(:disabled)")
    wanted = others.first.locator("code").inner_text()
    others.first.click()
    expect(page.locator(".message.assistant .versions")).to_contain_text("2 / 2")
    answered(page)
    now = tokens.all_inner_texts()
    assert now[:4] == texts[:4]
    assert now[4].strip() == wanted.strip() != texts[4].strip()
    assert len(now) > 8
    plain = page.locator(".message.assistant").get_by_role("button", name="Colours")
    plain.click()
    expect(page.locator(".message.assistant > .text")).not_to_contain_text("<|im_end|>")
    page.get_by_role("button", name="Previous version").last.click()
    assert tokens.all_inner_texts() == texts


def test_a_schema_is_checked_and_holds(page: Page) -> None:
    page.get_by_role("button", name="Schema").click()
    schema = page.get_by_label("JSON schema")
    schema.fill('{"type": ')
    expect(page.locator("#schema-said")).to_contain_text("JSON")
    page.get_by_label("Message", exact=True).fill("Go")
    expect(page.get_by_role("button", name="Send", exact=True)).to_be_disabled()
    schema.fill('{"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}')
    say(page, "Tell me a story about a fox.")
    answered(page)
    expect(page.locator(".badge.good")).to_be_visible()
    assert json.loads(page.locator(".message.assistant .text").inner_text())["a"] in (1, 2)


def test_text_of_a_model_never_becomes_markup(page: Page) -> None:
    call = {"index": 0, "id": "c<b>", "function": {"name": HOSTILE, "arguments": HOSTILE}}
    body = chunks({"reasoning": HOSTILE}, {"content": HOSTILE}, {"tool_calls": [call]})
    page.route("**/v1/chat/completions", lambda route: route.fulfill(content_type="text/event-stream", body=body))
    say(page, HOSTILE)
    expect(page.locator(".message.assistant > .text")).to_have_text(HOSTILE)
    expect(page.locator(".call h3")).to_have_text(HOSTILE)
    assert page.locator(".message img, .message script, .message a, .message b").count() == 0
    assert page.title() == "jaxllm"


def test_reasoning_is_shown_apart_and_can_be_opened(page: Page) -> None:
    body = chunks({"reasoning": "Ten and seven"}, {"reasoning": " make more."}, {"content": "42"})
    page.route("**/v1/chat/completions", lambda route: route.fulfill(content_type="text/event-stream", body=body))
    say(page, "What is 17 plus 25?")
    expect(page.locator(".message.assistant > .text")).to_have_text("42")
    reasoning = page.locator("details.reasoning")
    expect(reasoning.locator(".text")).not_to_be_visible()
    reasoning.get_by_text("Reasoning", exact=True).click()
    expect(reasoning.locator(".text")).to_have_text("Ten and seven make more.")
    page.reload()
    expect(page.locator("details.reasoning .text")).to_have_text("Ten and seven make more.")


def test_the_policy_stops_scripts_in_the_page_and_requests_to_elsewhere(page: Page, strange: list[str]) -> None:
    """Even where markup came into the page: of an element with a script, and of one that loads from elsewhere."""
    stopped: list[str] = page.evaluate("""async () => {
        const stopped = [];
        document.addEventListener("securitypolicyviolation", (event) => stopped.push(event.effectiveDirective));
        const script = document.createElement("script");
        script.textContent = "document.title = 'run'";
        const image = document.createElement("img");
        image.src = "http://127.0.0.1:9/elsewhere.png";
        image.setAttribute("onerror", "document.title = 'run'");
        document.body.append(script, image);
        await fetch("http://127.0.0.1:9/elsewhere").catch(() => {});
        while (stopped.length < 4) await new Promise((again) => setTimeout(again, 20));
        return stopped;
    }""")
    assert sorted(set(stopped)) == ["connect-src", "img-src", "script-src-attr", "script-src-elem"]
    assert page.title() == "jaxllm"
    strange.clear()  # the browser tells of each that it stopped


def test_a_call_of_a_tool_is_answered_by_the_reader(page: Page) -> None:
    call = {"index": 0, "id": "call-1", "function": {"name": "get_weather", "arguments": '{"city": "Bern"}'}}
    bodies = [chunks({"tool_calls": [call]}, end="tool_calls"), chunks({"content": "It snows."})]
    sent: list[Any] = []

    def answer(route: Route) -> None:
        sent.append(route.request.post_data_json)
        route.fulfill(content_type="text/event-stream", body=bodies.pop(0))

    page.route("**/v1/chat/completions", answer)
    page.get_by_text("Tools", exact=True).click()
    page.get_by_role("button", name="Use the example").click()
    say(page, "How is the weather in Bern?")
    page.get_by_label("Result").fill("snow")
    page.get_by_role("button", name="Send result").click()
    expect(page.get_by_text("It snows.")).to_be_visible()
    assert [message["role"] for message in sent[1]["messages"]] == ["user", "assistant", "tool"]
    assert sent[1]["messages"][2] == {"role": "tool", "tool_call_id": "call-1", "content": "snow"}
    assert sent[0]["tools"][0]["function"]["name"] == "get_weather"


def test_two_settings_answer_side_by_side_and_one_goes_on(page: Page) -> None:
    sent: list[Any] = []
    page.on("request", lambda each: sent.append(each.post_data_json) if "completions" in each.url else None)
    page.get_by_role("button", name="Compare two settings").click()
    page.get_by_role("button", name="Exact").click()
    page.get_by_role("group", name="Settings of answer").get_by_role("button", name="B").click()
    page.get_by_role("button", name="Inventive").click()
    page.get_by_label("System prompt").fill("You rhyme.")
    say(page, "Tell me a story about a fox.")
    sides = page.locator(".side")
    expect(sides).to_have_count(2)
    for number, name in enumerate(("Exact", "Inventive")):
        expect(sides.nth(number).locator(".side-head")).to_contain_text(name)
        expect(sides.nth(number).locator(".figures")).to_contain_text(NUM_TOKENS)
    first, second = sent
    assert first["temperature"] == 0
    assert second["temperature"] == 1.1
    assert [each["role"] for each in second["messages"]] == ["system", "user"]
    assert first["messages"] == second["messages"][1:]
    expect(sides.nth(0).get_by_role("button", name="Goes on from here")).to_have_attribute("aria-pressed", "true")
    sides.nth(1).get_by_role("button", name="Go on from here").click()
    chosen = sides.nth(1).locator(".message .text").inner_text()
    page.get_by_role("button", name="Compare two settings").click()
    say(page, "Go on.")
    answered(page)
    assert sent[2]["messages"][1]["content"].strip() == chosen.strip()
    expect(page.locator(".message.assistant")).to_have_count(2)


def test_a_beam_search_shows_its_tree_and_another_text_is_taken(page: Page) -> None:
    page.get_by_text("Beam search", exact=True).click()
    page.get_by_label("Beams").fill("4")
    say(page, "What is 17 plus 25?")
    answered(page)
    found = page.locator(".found button")
    expect(found).to_have_count(4)
    texts = [each.strip() for each in page.locator(".found .content").all_inner_texts()]
    assert len(set(texts)) == 4
    tree = page.get_by_role("region", name="Tree of the search")
    tokens = tree.locator(".tried").count()
    assert tree.locator(".branch").count() < tokens
    on = tree.locator(".tried.on text").all_text_contents()
    assert len(on) > 2
    found.nth(1).click()
    expect(found.nth(1)).to_have_attribute("aria-pressed", "true")
    assert page.locator(".message.assistant > .text").inner_text().strip() == texts[1]
    assert tree.locator(".tried.on text").all_text_contents() != on
    page.get_by_role("button", name="Show as code").click()
    expect(page.locator("dialog pre")).to_contain_text('"use_beam_search": true')
    expect(page.locator("dialog pre")).not_to_contain_text("stream")


def painted(page: Page) -> set[str]:
    """The states whose colours are in the map of pages."""
    found: list[str] = page.evaluate("""() => {
        const canvas = document.querySelector(".page-map canvas");
        const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
        const seen = new Set();
        for (let at = 0; at < data.length; at += 4)
          if (data[at + 3]) seen.add("#" + [0, 1, 2].map((i) => data[at + i].toString(16).padStart(2, "0")).join(""));
        const style = getComputedStyle(document.documentElement);
        return ["blank", "cached", "held", "shared"].filter((name) =>
          seen.has(style.getPropertyValue(`--page-${name}`).trim()));
    }""")
    return set(found)


def test_the_live_view_moves_under_load(page: Page, ui_server: ServerProcess) -> None:
    with httpx.Client(base_url=ui_server.url, headers={"Authorization": f"Bearer {KEY}"}) as client:
        stream = Stream(client, LONG)
        page.get_by_role("link", name="Live").click()
        expect(page.locator(".figures-row div").nth(1).locator("dd")).to_have_text("4 of 4")
        expect(page.locator("tbody tr")).to_have_count(16)
        page.get_by_role("heading", name="Time between tokens").wait_for()
        expect(page.locator(".bars li").first).to_be_visible()
        pages = page.get_by_label("Pages of the KV cache")
        expect(pages.get_by_role("img")).to_have_attribute("aria-label", re.compile(r"[1-9]\d* held by one request"))
        assert "held" in painted(page)
        steps = page.get_by_role("region", name="Steps", exact=True)
        expect(steps.get_by_role("img")).to_have_attribute("aria-label", re.compile(r"[1-9]\d* steps in "))
        # One row of figures for each shape, of the host and of the device.
        row = steps.locator("tbody tr").first.locator("td")
        expect(row).to_have_count(5)
        assert all(re.search(r"\d (ms|s)$", row.nth(column).inner_text()) for column in (3, 4))
        steps.get_by_role("button", name="Hold").click()
        expect(steps.get_by_role("button", name="Go on")).to_have_attribute("aria-pressed", "true")
        page.get_by_role("link", name="Model").click()
        expect(page.get_by_role("heading", name="Steps by shape")).to_be_visible()
        expect(page.get_by_text("512 tokens")).to_be_visible()
        expect(page.get_by_text(re.compile(r"^(compiled|read) [\d.]+ m?s$")).first).to_be_visible()
        memory = page.get_by_role("region", name="Memory of each device")
        expect(memory.locator("dt")).to_contain_text(["KV cache", "Weights"], use_inner_text=True)
        roofline = page.get_by_role("region", name="Roofline", exact=True)
        expect(roofline.locator("circle").first).to_be_visible()
        expect(roofline).to_contain_text("peaks are not known")
        stream.rest()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_serious_fault(
    browser: Browser, ui_server: ServerProcess, strange: list[str], scheme: str
) -> None:
    context = browser.new_context(color_scheme="dark" if scheme == "dark" else "light")
    context.add_init_script(f"sessionStorage.setItem('jaxllm.key', '{KEY}')")
    page = context.new_page()
    watch(page, ui_server.url, strange)
    page.goto(ui_server.url)
    page.locator(".switch").click()
    say(page, "What is 17 plus 25?")
    answered(page)
    page.locator(".more summary").first.click()
    faults = serious(page)
    page.locator(".tokens .token").first.click()
    faults += serious(page)
    page.keyboard.press("Escape")
    page.get_by_text("Beam search", exact=True).click()
    page.get_by_label("Beams").fill("3")
    page.get_by_role("button", name="Compare two settings").click()
    say(page, "What is 17 plus 25?")
    expect(page.locator(".side .tree")).to_have_count(2)
    faults += serious(page)
    for name in ("Live", "Model"):
        page.get_by_role("link", name=name).click()
        page.locator(".card").first.wait_for()
        faults += serious(page)
    page.set_viewport_size({"width": 390, "height": 844})
    page.get_by_role("link", name="Playground").click()
    page.get_by_role("button", name="Conversations").click()
    faults += serious(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    context.close()
    assert faults == []
    assert strange == []


def serious(page: Page) -> list[str]:
    found = Axe().run(page).response["violations"]
    return [
        f"{each['id']}: {node['html']}"
        for each in found
        if each["impact"] in ("serious", "critical")
        for node in each["nodes"]
    ]

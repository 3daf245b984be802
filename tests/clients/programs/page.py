"""The web page in Chromium. Arguments: host:port, folder for pictures. Prints what it found, as JSON."""

import json
import sys
import time
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, sync_playwright

TIMEOUT_S = 60.0


def wait(page: Page, condition: str) -> None:
    """The page's security policy forbids the evaluation that Playwright's own waiting needs."""
    deadline = time.monotonic() + TIMEOUT_S
    while not page.evaluate(condition):
        assert time.monotonic() < deadline, condition
        time.sleep(0.05)


found: dict[str, Any] = {"faults": []}
folder = Path(sys.argv[2])
with sync_playwright() as play:
    arguments = [
        "--no-sandbox",
        "--use-fake-device-for-media-stream",
        "--use-fake-ui-for-media-stream",
        "--autoplay-policy=no-user-gesture-required",
        "--disable-background-networking",
    ]
    browser = play.chromium.launch(executable_path="/usr/bin/chromium", args=arguments)
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.on("pageerror", lambda error: found["faults"].append(str(error)))
    page.goto(f"http://{sys.argv[1]}/")
    wait(page, "document.querySelectorAll('.voice').length > 0")

    page.fill("#text", "  ")
    page.click("#speak")
    found["empty"] = page.inner_text("#message")
    page.fill("#text", "A text that is sent all at once, and played without a gap.")
    found["empty_after"] = page.evaluate("document.getElementById('message').textContent")
    page.check("[value=whole]")
    page.keyboard.press("Control+Enter")
    wait(page, "bistream.state()?.isOver")
    found["whole"] = page.evaluate("bistream.state()")
    found["lit"] = page.evaluate("document.querySelectorAll('#transcript .said').length")

    box = page.locator("#waveform").bounding_box()
    assert box is not None
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    wait(page, "Number(document.getElementById('waveform').getAttribute('aria-valuenow')) > 0.3")
    page.click("#replay")

    page.fill("#text", "One word after another, faster than they can be spoken. " * 3)
    page.check("[value=model]")
    page.evaluate("const rate = document.getElementById('rate'); rate.value = 40; rate.oninput()")
    page.click("#speak")
    wait(page, "bistream.state()?.played > 36000")
    page.screenshot(path=str(folder / "speaking.png"))
    page.keyboard.press("Escape")
    page.wait_for_selector("#heard .unheard")
    found["heard"], found["unheard"] = page.inner_text("#heard"), page.inner_text("#heard .unheard")
    found["history"] = page.evaluate("document.querySelectorAll('#history .again').length")
    page.click("#history .again")
    wait(page, "document.querySelector('#transcript .now') !== null")
    page.click("#replay")

    page.fill("#lexicon", "word = woord, SQL=sequel, , half =")
    page.fill("#text", 'A word. <break time="500ms"/> Another one.')
    page.check("#ssml")
    page.check("[value=whole]")
    page.click("#speak")
    wait(page, "bistream.state()?.isOver")
    found["snippets"] = []
    for tab in page.query_selector_all("#snippet-tabs button"):
        tab.click()
        found["snippets"].append(page.inner_text("#snippet"))

    page.click("#record")
    time.sleep(1.2)
    page.click("#record")
    wait(page, "!document.getElementById('save').disabled")
    page.fill("#voice-name", "mine")
    page.fill("#transcript-said", "What I say.")
    page.click("#save")
    wait(page, "document.getElementById('voice-message').textContent.includes('is saved')")
    found["chosen"] = page.evaluate("document.querySelector('.voice:has(:checked) .name').textContent")
    with page.expect_download() as download:
        page.click("#download")
    found["download"] = download.value.suggested_filename
    page.evaluate("document.querySelector('details').open = true")
    page.screenshot(path=str(folder / "page.png"), full_page=True)
    page.set_viewport_size({"width": 375, "height": 800})
    found["phone_width"] = page.evaluate("document.documentElement.scrollWidth")
    page.screenshot(path=str(folder / "phone.png"), full_page=True)
    page.emulate_media(color_scheme="dark")
    page.set_viewport_size({"width": 1280, "height": 900})
    page.screenshot(path=str(folder / "dark.png"))
    browser.close()
print(json.dumps(found))

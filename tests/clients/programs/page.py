"""The web page in Chromium. Arguments: host:port, file for a picture. Prints what it found, as JSON."""

import json
import sys
import time
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
with sync_playwright() as play:
    arguments = ["--no-sandbox", "--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"]
    browser = play.chromium.launch(executable_path="/usr/bin/chromium", args=arguments)
    page = browser.new_page(viewport={"width": 1280, "height": 820})
    page.on("pageerror", lambda error: found["faults"].append(str(error)))
    page.goto(f"http://{sys.argv[1]}/")
    wait(page, "document.getElementById('voice').options.length > 0")

    page.fill("#text", "A text that is sent all at once, and played without a gap.")
    page.check("[value=whole]")
    page.keyboard.press("Control+Enter")
    wait(page, "bistream.state()?.isOver")
    found["whole"] = page.evaluate("bistream.state()")

    page.fill("#text", "One word after another, faster than they can be spoken. " * 3)
    page.check("[value=model]")
    page.evaluate("const rate = document.getElementById('rate'); rate.value = 40; rate.oninput()")
    page.click("#speak")
    wait(page, "bistream.state()?.played > 36000")
    page.keyboard.press("Escape")
    page.wait_for_selector("#heard .unheard")
    found["heard"], found["unheard"] = page.inner_text("#heard"), page.inner_text("#heard .unheard")
    time.sleep(0.3)
    page.screenshot(path=sys.argv[2])

    page.click("#record")
    time.sleep(1.2)
    page.click("#record")
    wait(page, "!document.getElementById('save').disabled")
    page.fill("#voice-name", "mine")
    page.fill("#transcript", "What I say.")
    page.click("#save")
    wait(page, "document.getElementById('voice-message').textContent.includes('is saved')")
    found["chosen"] = page.evaluate("document.getElementById('voice').selectedOptions[0].textContent")
    with page.expect_download() as download:
        page.click("#download")
    found["download"] = download.value.suggested_filename
    page.set_viewport_size({"width": 375, "height": 800})
    found["phone_width"] = page.evaluate("document.documentElement.scrollWidth")
    browser.close()
print(json.dumps(found))

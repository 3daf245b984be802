"""The web page in Chromium where something is wrong. Arguments: host:port of interfaces with keys, a key. Prints what it says, as JSON."""

import json
import sys
import time
from typing import Any

from playwright.sync_api import Page, sync_playwright

TIMEOUT_S = 60.0
INSECURE_HOST = "speech.example"  # neither https nor localhost
HOSTS = f"--host-resolver-rules=MAP {INSECURE_HOST} 127.0.0.1"
PROBLEM = "document.getElementById('problem').hidden ? '' : document.getElementById('problem-text').textContent"


def problem(page: Page, differs_from: str) -> str:
    deadline = time.monotonic() + TIMEOUT_S
    while (found := str(page.evaluate(PROBLEM))) == differs_from:
        assert time.monotonic() < deadline, f"the page still says {found!r}"
        time.sleep(0.05)
    return found


def voices(page: Page) -> int:
    deadline = time.monotonic() + TIMEOUT_S
    while not (count := int(page.evaluate("document.querySelectorAll('.voice').length"))):
        assert time.monotonic() < deadline, "no voice is shown"
        time.sleep(0.05)
    return count


def message(page: Page) -> str:
    """What it says beside the text once that was spoken, or could not be."""
    page.fill("#text", "Hello.")
    page.click("#speak")
    deadline = time.monotonic() + TIMEOUT_S
    while not page.evaluate("window.bistream.state()?.isOver"):
        assert time.monotonic() < deadline, "the speech does not end"
        time.sleep(0.05)
    return str(page.text_content("#message"))


said: dict[str, Any] = {"faults": []}
with sync_playwright() as play:
    browser = play.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox", "--disable-background-networking", HOSTS])
    page = browser.new_page()
    page.on("pageerror", lambda error: said["faults"].append(str(error)))
    page.goto(f"http://{sys.argv[1]}/")
    said["no_key"] = problem(page, "")
    page.fill("#key", "not-the-key")
    page.press("#key", "Enter")
    said["wrong_key"] = problem(page, said["no_key"])
    page.fill("#key", sys.argv[2])
    page.press("#key", "Enter")
    said["right_key"] = problem(page, said["wrong_key"])
    said["voices"] = voices(page)
    said["spoken"] = message(page)
    page.reload()
    said["voices_after_reload"] = voices(page)
    page.route("**/v1/load", lambda route: route.abort())
    said["gone"] = problem(page, "")
    page.unroute("**/v1/load")
    said["back"] = problem(page, said["gone"])
    page.goto(f"http://{INSECURE_HOST}:{sys.argv[1].rpartition(':')[2]}/")
    page.fill("#key", sys.argv[2])
    page.press("#key", "Enter")
    voices(page)
    said["insecure"] = message(page)
    browser.close()
print(json.dumps(said))

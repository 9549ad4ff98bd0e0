"""The HTML page in a real browser, where there is one: quiet, inert to what stands in it, usable without a mouse."""

from __future__ import annotations

import base64
import http.client
import json
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from report_samples import SHOWN, case, header, hostile_report, lines, real_report, run_of

from islices.conformance.report import read
from islices.conformance.report.html import html_page

KEYS = {
    "Tab": "\ue004", "Enter": "\ue007", "Escape": "\ue00c", "Space": " ", "Left": "\ue012", "Up": "\ue013",
    "Right": "\ue014", "Down": "\ue015", "End": "\ue010", "Home": "\ue011",
}  # fmt: skip
DRIVER = shutil.which("chromedriver")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "google-chrome", "chromium-browser"))), None)
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # the key of an element in the WebDriver protocol


class Browser:
    """A headless Chromium behind its driver: as much of the W3C WebDriver protocol as these tests need."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.driver = subprocess.Popen(
            [str(DRIVER), f"--port={self.port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            self._until_ready()
            flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
                     "--disable-component-update", "--disable-dev-shm-usage", f"--user-data-dir={folder}"]  # fmt: skip
            wanted = {
                "goog:chromeOptions": {"binary": CHROMIUM, "args": flags},
                "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
            }
            answer = self.call("POST", "/session", {"capabilities": {"alwaysMatch": wanted}}, session=False)
            self.session = answer["sessionId"]
            self.call("POST", "/url", {"url": "about:blank"})  # the page of a new tab loads much of its own
        except BaseException:
            self.driver.kill()
            self.driver.wait()
            raise

    def _until_ready(self) -> None:
        for _ in range(200):
            try:
                if self.call("GET", "/status", session=False)["ready"]:
                    return
            except ConnectionError:
                time.sleep(0.1)
        raise TimeoutError("chromedriver does not answer")

    def call(self, method: str, path: str, body: Any = None, *, session: bool = True) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        path = f"/session/{self.session}{path}" if session else path
        connection.request(
            method, path, json.dumps(body) if body is not None else None, {"Content-Type": "application/json"}
        )
        answer = connection.getresponse()
        value = json.loads(answer.read())["value"]
        connection.close()
        if answer.status != 200:
            raise RuntimeError(f"{method} {path}: {value.get('message', value)}")
        return value

    def open(self, path: Path, width: int = 1280, height: int = 900, dark: bool = False, media: str = "") -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.devtools("Emulation.setDeviceMetricsOverride", size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.devtools("Emulation.setEmulatedMedia", {"media": media, "features": [scheme]})
        self.log("browser")
        self.log("performance")  # what came before the page is none of its business
        self.call("POST", "/url", {"url": path.as_uri()})

    def devtools(self, command: str, parameters: dict[str, Any]) -> Any:
        return self.call("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def run(self, script: str, *arguments: Any) -> Any:
        return self.call("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def press(self, *keys: str) -> None:
        steps = [{"type": kind, "value": KEYS.get(key, key)} for key in keys for kind in ("keyDown", "keyUp")]
        self.call("POST", "/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": steps}]})

    def text(self, selector: str) -> str:
        """The text of an element as it is rendered, without a script of ours in the page."""
        found = self.call("POST", "/element", {"using": "css selector", "value": selector})
        return str(self.call("GET", f"/element/{found[ELEMENT]}/text"))

    def log(self, kind: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.call("POST", "/se/log", {"type": kind})
        return found

    def network(self, method: str) -> list[dict[str, Any]]:
        """What a kind of network event said, since the last look."""
        messages = [json.loads(entry["message"])["message"] for entry in self.log("performance")]
        return [message["params"] for message in messages if message["method"] == f"Network.{method}"]

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.call("GET", "/screenshot")))

    def close(self) -> None:
        try:
            self.call("DELETE", "")
        finally:
            self.driver.terminate()
            self.driver.wait()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if not CHROMIUM or not DRIVER:
        pytest.skip(f"not run: no {'chromedriver' if CHROMIUM else 'Chromium'} is installed")
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A page of a real run, and one of everything that wants to be markup."""
    folder = tmp_path_factory.mktemp("pages")
    written = {}
    for name, text in (("real", real_report()), ("hostile", hostile_report())):
        (folder / f"{name}.jsonl").write_text(text)
        written[name] = folder / f"{name}.html"
        written[name].write_text(html_page(read(folder / f"{name}.jsonl")), "utf-8")
    return written


# Short scripts that the tests ask the page.
CELLS = (
    "return [...document.querySelectorAll('.open-able > button')].filter(b => b.offsetParent).map(b => b.textContent)"
)
FOCUSED = "return document.activeElement.getAttribute('aria-label')"
EXPANDED = "return document.activeElement.getAttribute('aria-expanded')"
LISTED = "return [...document.querySelectorAll('.drawer summary code')].map(c => c.textContent)"
OVERFLOW = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
OPEN = "[...document.querySelectorAll('.open-able > button')].find(b => b.ariaLabel.startsWith(arguments[0])).click()"
CHANGED = "document.getElementById('tools').dispatchEvent(new Event('input'))"
FOUND = "return document.getElementById('found').textContent"


@pytest.mark.parametrize("name", ["real", "hostile"])
def test_it_is_quiet(name: str, browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages[name])
    assert browser.run("return document.title") == "islices conformance", "no text of a report became code"
    assert browser.run("return document.querySelectorAll('img').length") == 0
    browser.run(
        "document.querySelectorAll('.open-able > button').forEach(b => b.click())"
    )  # open each, one after the other
    browser.run("document.querySelectorAll('details').forEach(d => d.open = true)")
    browser.run("document.getElementById('search').value = 'a'")
    browser.run(CHANGED)
    assert browser.run("return document.title") == "islices conformance"
    assert browser.log("browser") == [], "no error, no violation of the page's policy"
    asked_for = [event["request"]["url"] for event in browser.network("requestWillBeSent")]
    assert asked_for
    assert [url for url in asked_for if not url.startswith(("data:image/svg+xml", pages[name].as_uri()))] == []


def test_its_policy_holds(browser: Browser, pages: dict[str, Path]) -> None:
    """What would be an attack, had it got in, is stopped once more."""
    browser.open(pages["real"])
    browser.run(
        "const s = document.createElement('script'); s.textContent = 'document.title = 1'; document.body.append(s);"
        "const add = text => document.body.insertAdjacentHTML('beforeend', text);"
        "add('<img src=https://example.org/x onerror=\"document.title = 2\">'); add('<p style=\"color: red\">x</p>')"
    )
    assert browser.run("return document.title") == "islices conformance"
    violations = [entry["message"] for entry in browser.log("browser")]
    for directive in ("script-src", "img-src", "style-src"):
        assert any(directive in message for message in violations), violations
    assert [event["blockedReason"] for event in browser.network("loadingFailed")] == ["csp"]


def test_hostile_text_is_shown_as_text(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["hostile"])
    browser.run(OPEN, "torch @1.0 host, clipping")
    assert SHOWN in browser.run(LISTED)
    browser.run("document.querySelector('.drawer details').open = true")
    texts = wait_for(lambda: browser.run("return [...document.querySelectorAll('.drawer dd')].map(d => d.textContent)"))
    assert texts.count(SHOWN) == 3, "call, expected, got"
    assert f"{SHOWN}\nsecond line" in texts, "the reason"


def wait_for(look: Any) -> Any:
    """What a look sees as soon as it sees something; details tell that they opened a moment later."""
    for _ in range(50):
        seen = look()
        if seen:
            return seen
        time.sleep(0.05)
    raise TimeoutError("nothing came")


def test_a_cell_opens_to_its_cases_by_keyboard_alone(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["hostile"])
    browser.press("Tab")
    # on a busy machine the focus comes a moment after the key
    wait_for(lambda: browser.run("return document.activeElement !== document.body"))
    assert browser.run("return document.activeElement.textContent") == "Skip to the matrix"
    browser.press("Enter")
    browser.press("Tab")
    assert browser.run(FOCUSED) == "torch @1.0 kernels off host, run: the run itself: 1 harness error"
    outline = browser.run("return getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid", "the focus is seen"
    for key, label in (
        ("Right", "torch @1.0 kernels off host, run: the run itself: 1 harness error"),  # the last of its row
        ("Down", "torch @1.0 kernels off host, coalesce: sums (3): 1 pass"),
        ("Down", "torch @1.0 kernels off host, clipping: clip by norm (10): 1 pass"),
        ("Home", "torch @1.0 host, clipping: clip by norm (10): 1 pass, 1 fail, 1 deviation, 1 unsupported"),
        ("End", "jax @1.0 host NumPy 2.3.1, clipping: clip by norm (10): 1 pass"),
        ("Home", "torch @1.0 host, clipping: clip by norm (10): 1 pass, 1 fail, 1 deviation, 1 unsupported"),
    ):  # fmt: skip
        browser.press(key)
        assert browser.run(FOCUSED) == label, key
    assert browser.run(EXPANDED) == "false"
    for opens in ("Enter", "Space"):
        browser.press(opens)
        assert browser.run(EXPANDED) == "true"
        controls = browser.run("return document.activeElement.getAttribute('aria-controls')")
        assert browser.run("return document.getElementById(arguments[0]).getAttribute('role')", controls) == "region"
        assert browser.run(LISTED) == [SHOWN, "clipping/c", "clipping/b", "clipping/a"], "the worst stand first"
        browser.press("Escape")
        assert browser.run(EXPANDED) == "false"
        assert browser.run(LISTED) == []
    browser.press("Enter")
    browser.press("Tab", "Tab", "Enter")  # past Close, to the first case
    texts = wait_for(lambda: browser.run("return [...document.querySelectorAll('.drawer dt')].map(d => d.textContent)"))
    assert texts == ["call", "reason", "expected", "got"]
    browser.press("Escape")
    assert "torch @1.0 host" in browser.run(FOCUSED), "Escape closes from within, and gives the focus back"
    assert browser.run(LISTED) == []


def test_a_case_says_what_came_of_it_elsewhere(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["hostile"])
    browser.run("[...document.querySelectorAll('.open-able > button')].at(-2).click()")
    browser.run(OPEN, "jax")
    browser.run("document.querySelector('.drawer details').open = true")
    texts = wait_for(lambda: browser.run("return [...document.querySelectorAll('.drawer dd')].map(d => d.textContent)"))
    assert "torch @1.0 host, torch @1.0 framework, torch @1.0 kernels off host, jax @1.0 host NumPy 2.3.1" in texts


def test_filters_count_anew(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["hostile"])
    assert browser.run(FOUND) == "12 results"
    assert len(browser.run(CELLS)) == 8
    typed = "const s = document.getElementById('search'); s.focus(); s.value = ''"
    browser.run(typed)
    browser.press(*"clipping")
    assert browser.run(FOUND) == "8 of 12 results"
    browser.press(*" b")
    assert browser.run(FOUND) == "1 of 12 results"
    assert [c for c in browser.run(CELLS) if c != "·"] == ["d1"]
    browser.press(*"zzz")
    assert browser.run(FOUND) == "No case matches."
    assert browser.run(CELLS) == []
    browser.run(typed)
    browser.run(CHANGED)
    browser.run("document.querySelector('input[value=p]').focus()")
    browser.press("Space")
    assert browser.run(FOUND) == "6 of 12 results"
    assert sorted(c for c in browser.run(CELLS) if c != "·") == ["!1", "!1", "✗1", "✗1 d1 u1"]


def test_many_cases_come_by_and_by(browser: Browser, tmp_path: Path) -> None:
    cases = [case(f"clipping/{k}", "pass") for k in range(250)]
    (tmp_path / "r.jsonl").write_text(lines(*run_of(header("torch"), *cases)))
    (tmp_path / "r.html").write_text(html_page(read(tmp_path / "r.jsonl")), "utf-8")
    browser.open(tmp_path / "r.html")
    assert browser.run("return document.querySelectorAll('li').length") == 0, "nothing is made before it is asked for"
    browser.run("document.querySelector('.open-able > button').click()")
    for count, rest in ((100, "Show 100 of 150 more"), (200, "Show 50 of 50 more"), (250, None)):
        assert len(browser.run(LISTED)) == count
        assert browser.run("return document.querySelector('.drawer ul + button')?.textContent ?? null") == rest
        browser.run("document.querySelector('.drawer ul + button')?.click()")
    assert browser.run("return document.activeElement.textContent").endswith("clipping/200"), "the focus goes on"


@pytest.mark.parametrize("name", ["real", "hostile"])
@pytest.mark.parametrize("width", [320, 400, 1280])
def test_the_page_never_scrolls_sideways(name: str, width: int, browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages[name], width, 740)
    assert browser.run(OVERFLOW) <= 0
    browser.run("document.querySelectorAll('details').forEach(d => d.open = true)")
    browser.run("document.querySelector('.open-able > button').click()")
    assert browser.run(OVERFLOW) <= 0
    box = "const b = document.querySelector(arguments[0]).getBoundingClientRect(); return [b.left, b.right]"
    left, right = browser.run(box, ".drawer")
    assert left >= 0
    assert right <= width, "an open cell is as wide as what is seen"
    browser.run("document.getElementById('matrix').scrollLeft = 200")
    assert browser.run(box, "#matrix tbody th")[0] == browser.run(box, "#matrix")[0] + 1, "the clauses stay"


def test_it_is_readable_in_light_and_dark(browser: Browser, pages: dict[str, Path]) -> None:
    """Contrast of text, and of what stands in coloured cells, by WCAG's formula: 4.5 or better."""
    contrast = """
      const rgb = c => c.match(/[0-9.]+/g).map(Number);
      const linear = v => (v /= 255) <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4;
      const light = c => { const [r, g, b] = rgb(c).map(linear); return .2126 * r + .7152 * g + .0722 * b; };
      const ground = e => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor;
                            if ((rgb(c)[3] ?? 1) > 0) return c; } };
      const texts = 'p, .chip > span, th span:not(.again), td span, summary, summary span, code, li';
      return [...document.querySelectorAll(texts)].filter(e => e.offsetParent && e.textContent.trim()).map(e => {
          const [a, b] = [light(getComputedStyle(e).color), light(ground(e))];
          return [(Math.max(a, b) + .05) / (Math.min(a, b) + .05), e.className, e.textContent.slice(0, 30)]; })
        .filter(([ratio]) => ratio < 4.5)"""
    for dark in (False, True):
        browser.open(pages["hostile"], dark=dark)
        ground = browser.run("return getComputedStyle(document.body).backgroundColor")
        assert (sum(int(n) for n in re.findall(r"\d+", ground)) < 200) == dark
        browser.run("document.querySelector('.open-able > button').click()")
        assert browser.run(contrast) == []


def test_tables_are_tables(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["hostile"])
    assert browser.run("return [...document.querySelectorAll('th')].filter(t => !t.scope).length") == 0
    rows = "return [...document.querySelectorAll('.matrix tbody tr')].map(r => r.cells.length)"
    assert set(browser.run(rows)) == {7}, "a run that was skipped has no column"
    widths = "[...r.cells].reduce((n, c) => n + c.colSpan, 0)"
    wide = browser.run(f"return [...document.querySelectorAll('.glance tbody tr')].map(r => {widths})")
    assert set(wide) == {2 + 2 + 1 + 1 + 1}, "torch has a column for each of its modes here"
    assert browser.text(".glance tbody tr").split() == ["clipping", "5", "✗1d1u1", "!1", "·", "✓", "✓"]
    assert browser.run("return document.querySelectorAll('.open-able > button[tabindex=\"0\"]').length") == 1
    assert browser.run("return [...document.querySelectorAll('[id]')].length") == browser.run(
        "return new Set([...document.querySelectorAll('[id]')].map(e => e.id)).size"
    )


def test_print_shows_the_whole_matrix(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["hostile"], media="print")
    assert browser.run("return document.getElementById('tools').offsetParent === null")
    assert browser.run("return getComputedStyle(document.getElementById('matrix')).maxHeight") == "none"


def test_without_javascript_the_matrix_is_there(browser: Browser, pages: dict[str, Path]) -> None:
    browser.devtools("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        browser.open(pages["hostile"])
        cells = browser.text("#matrix")
        assert "1 ✗1 d1 u1" in cells
        assert "skipped" not in cells
        assert "skipped: cuda of torch: no CUDA device" in browser.text("main")
        assert "Does not conform" in browser.text("header")
        assert "Without JavaScript" in browser.text("noscript")
    finally:
        browser.devtools("Emulation.setScriptExecutionDisabled", {"value": False})

"""A real browser. Chromium is found on the machine, or installed where that can be; without one the tests fail and say how to get it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright
from tests.consoles import PASSWORD, http, made
from tests.serving import RunningHttp

__all__ = ["http", "made"]
SCREENSHOTS = Path(__file__).parents[2] / "build" / "screenshots"
_NAMES = ("chromium", "chromium-browser", "google-chrome")


def find_chromium() -> str:
    found = next((path for name in _NAMES if (path := shutil.which(name))), None)
    if found is None and os.geteuid() == 0 and shutil.which("apt-get"):
        install = ["apt-get", "install", "-y", "--no-install-recommends", "chromium"]
        if subprocess.run(install, capture_output=True, check=False, timeout=280).returncode != 0:
            subprocess.run(["apt-get", "update"], capture_output=True, check=False, timeout=120)
            subprocess.run(install, capture_output=True, check=False, timeout=280)
        found = shutil.which("chromium")
    if found is None:
        pytest.fail("the browser tests need Chromium: apt-get install chromium, or put a chromium on PATH", pytrace=False)
    return found


# A page follows a look at the catalog every half second; how long that takes is not what these tests are about.
expect.set_options(timeout=60_000)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        # Chromium has no sandbox for root.
        started = playwright.chromium.launch(executable_path=find_chromium(), args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield started
        started.close()


@dataclass
class Visitor:
    """Somebody in front of a browser. What the browser complained about and whom it asked is kept."""

    page: Page
    address: str
    complaints: list[str] = field(default_factory=list)
    hosts: set[str] = field(default_factory=set)

    def go(self, path: str) -> None:
        self.page.goto(self.address + path)

    def log_in(self, path: str = "/") -> None:
        self.go(path)
        self.page.get_by_label("Password").fill(PASSWORD)
        self.page.keyboard.press("Enter")
        self.page.wait_for_selector("header.top")

    def shot(self, name: str, **more: Any) -> Path:
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        path = SCREENSHOTS / f"{name}.png"
        self.page.screenshot(path=path, full_page=True, **more)
        return path


@pytest.fixture
def visit(browser: Browser, http: RunningHttp) -> Iterator[Callable[..., Visitor]]:
    """Visitors, each with cookies of its own. At the end none of them met an error, a broken policy or another host."""
    made: list[Visitor] = []

    def come(**options: Any) -> Visitor:
        context = browser.new_context(**({"viewport": {"width": 1280, "height": 900}} | options))
        context.set_default_timeout(20_000)
        visitor = Visitor(context.new_page(), f"http://127.0.0.1:{http.port}")
        visitor.page.on("console", lambda one: visitor.complaints.append(one.text) if one.type in ("error", "warning") else None)
        visitor.page.on("pageerror", lambda error: visitor.complaints.append(str(error)))
        context.on("request", lambda request: visitor.hosts.add(urlsplit(request.url).netloc))
        made.append(visitor)
        return visitor

    yield come
    for visitor in made:
        visitor.page.context.close()
        # An answer that is no 200 is a line in the browser's console; those are for the tests themselves.
        assert [one for one in visitor.complaints if "the server responded with a status of" not in one] == []
        assert visitor.hosts <= {f"127.0.0.1:{http.port}"}

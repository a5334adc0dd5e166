"""A headless Chromium for tests of HTML pages, driven by selenium."""

from __future__ import annotations

import json
import pathlib
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

PROGRAMS = "chromium", "chromedriver"
MISSING = [name for name in PROGRAMS if shutil.which(name) is None]
needs_chromium = pytest.mark.skipif(
    bool(MISSING), reason=f"Chromium is missing: {' and '.join(MISSING)} not found"
)
_FLAGS = (
    *("headless", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "disable-sync"),
    *("disable-background-networking", "disable-component-update", "disable-dev-shm-usage"),
)

_LOADING_S = 60
_IS_LOADED = "return location.href === arguments[0] && document.readyState === 'complete'"
_RUN = """
const args = [...arguments], done = args.pop();
(async () => {%s})().then(
  (value) => done({ value }), (error) => done({ error: String(error?.stack ?? error) }));
"""


class Browser:
    """Window of Chromium."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, file: pathlib.Path) -> None:
        """Open a page from disk, and clear the log."""
        self.driver.get("about:blank")
        for kind in ("browser", "performance"):
            self.driver.get_log(kind)
        self.driver.get(file.as_uri())
        # On a busy machine `get` may return while the old page is still shown.
        from selenium.webdriver.support.wait import WebDriverWait

        WebDriverWait(self.driver, _LOADING_S).until(
            lambda driver: driver.execute_script(_IS_LOADED, file.as_uri())
        )

    def run(self, script: str, *arguments: Any) -> Any:
        """Run JavaScript, wait for the promise that it may return, and return the value.

        Raises:
            RuntimeError: the script throws an error, or its promise is rejected.
        """
        found = self.driver.execute_async_script(_RUN % script, *arguments)
        if "error" in found:
            raise RuntimeError(f"error in the page: {found['error']}")
        return found.get("value")

    def messages(self) -> list[str]:
        """Return errors, warnings and other messages of the console since the last call."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self) -> list[str]:
        """Return the addresses that the page has requested since the last call."""
        log = self.driver.get_log("performance")
        events = [json.loads(one["message"])["message"] for one in log]
        sent = [one for one in events if one["method"] == "Network.requestWillBeSent"]
        return [one["params"]["request"]["url"] for one in sent]


@contextmanager
def chromium(folder: pathlib.Path) -> Iterator[Browser]:
    """Start a Chromium whose files are in a new, empty folder."""
    from selenium.webdriver import Chrome, ChromeOptions
    from selenium.webdriver.chrome.service import Service

    program, driver = map(shutil.which, PROGRAMS)
    options = ChromeOptions()
    options.binary_location = program
    for flag in (*_FLAGS, f"user-data-dir={folder}"):
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    started = Chrome(options, Service(driver))
    try:
        started.set_script_timeout(60)
        yield Browser(started)
    finally:
        started.quit()


def assert_quiet(browser: Browser, page: pathlib.Path) -> None:
    """Assert that the console is empty and that the browser read only the file."""
    assert browser.messages() == []
    assert set(browser.requests()) <= {page.as_uri()}

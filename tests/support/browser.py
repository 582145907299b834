"""A real browser for the tests of the page: Debian's chromium through playwright."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

_OPTIONS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
)


@contextmanager
def open_browser() -> Iterator[Any]:
    """Start chromium with an empty profile; skip the test where there is none."""
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None or importlib.util.find_spec("playwright") is None:
        pytest.skip("this test needs chromium and playwright: apt install chromium, pip install playwright")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, headless=True, args=list(_OPTIONS))
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def watched_page(browser: Any, file: Path, **options: Any) -> Iterator[Any]:
    """Open a file as a page, wait until it is ready, and fail if it asks for anything else or prints a message."""
    context = browser.new_context(**options)
    page = context.new_page()
    requests: list[str] = []
    messages: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.on("console", lambda message: messages.append(message.text))
    page.on("pageerror", lambda error: messages.append(str(error)))
    page.goto(file.as_uri())
    if options.get("java_script_enabled", True):
        page.wait_for_selector("html[data-ready]", timeout=60_000)
    try:
        yield page
    finally:
        context.close()
    assert requests == [file.as_uri()]
    assert messages == []

"""A real browser for the tests of the page: Debian's chromium through playwright; and axe-core, fetched from npm."""

from __future__ import annotations

import importlib.util
import io
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

__all__ = ["AXE_VERSION", "axe_source", "open_browser", "watched_page"]

AXE_VERSION = "4.11.1"

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


def axe_source(folder: Path) -> str:
    """Return axe-core's script; skip the test where npm cannot fetch it."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("this test needs npm, which fetches axe-core")
    done = subprocess.run(
        [npm, "pack", "--silent", f"axe-core@{AXE_VERSION}"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    if done.returncode:
        pytest.skip(f"npm cannot fetch axe-core {AXE_VERSION}: {done.stderr.strip()[-200:]}")
    packed = (folder / done.stdout.split()[-1]).read_bytes()
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        member = archive.extractfile("package/axe.min.js")
        assert member is not None
        return member.read().decode("utf-8")

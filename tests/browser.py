"""A real headless browser for tests."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from selenium import webdriver
from selenium.common.exceptions import WebDriverException
from selenium.webdriver.chrome.service import Service

_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
# A container has neither the privileges for Chromium's sandbox nor much in /dev/shm; the pages are our own.
_OPTIONS = ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--window-size=1400,1000")


@contextmanager
def headless_browser() -> Iterator[webdriver.Chrome]:
    """Chromium with its driver; the test is skipped, with the reason, where there is none."""
    browser, driver = next(filter(None, map(shutil.which, _BROWSERS)), None), shutil.which("chromedriver")
    if browser is None or driver is None:
        pytest.skip("needs chromium and chromedriver (Debian: apt install chromium chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for option in _OPTIONS:
        options.add_argument(option)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    try:
        chrome = webdriver.Chrome(options=options, service=Service(driver))
    except WebDriverException as error:
        pytest.skip(f"chromium does not start: {str(error).partition(chr(10))[0]}")
    try:
        yield chrome
    finally:
        chrome.quit()

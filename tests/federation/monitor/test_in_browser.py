"""The coordinator's page in a real browser: it shows what is new, fits a phone, and runs no text of others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from fedhip.federation.monitor.web import page_served
from tests.browser import open_page
from tests.federation.monitor.played import TOKEN, hostile
from tests.waiting import until

EVIL = '"><img src=x onerror="document.title=\'evil\'"><script>document.title="evil"</script>'


def look_again(browser: Any) -> None:
    """As the page does by itself every two seconds."""
    browser.execute_async_script("refresh().then(arguments[0])")


@pytest.fixture
def shown() -> dict[str, Any]:
    return hostile("a very long name of a site or of a step " * 3)


@pytest.fixture
def address(shown: dict[str, Any]) -> Iterator[str]:
    with page_served(0, [], TOKEN, lambda: shown) as port:
        yield f"http://127.0.0.1:{port}/"


def test_it_shows_what_is_new(browser: Any, address: str, shown: dict[str, Any]) -> None:
    open_page(browser, f"{address}?token={TOKEN}")
    assert browser.current_url == address, "the token is no longer in the address"
    shown["sites"][0]["state"] = "connected"
    until(lambda: browser.title.startswith("1 of 1 here"))
    assert browser.find_element("css selector", "#sites .dot.on").is_displayed()
    assert browser.get_log("browser") == []


def test_it_says_so_when_the_server_is_gone(browser: Any, shown: dict[str, Any]) -> None:
    with page_served(0, [], TOKEN, lambda: shown) as port:
        open_page(browser, f"http://127.0.0.1:{port}/?token={TOKEN}")
        assert not browser.find_element("id", "lost").is_displayed()
    look_again(browser)
    assert browser.find_element("id", "lost").is_displayed()
    with page_served(port, [], TOKEN, lambda: shown):
        look_again(browser)
        assert not browser.find_element("id", "lost").is_displayed()


@pytest.mark.parametrize("width", [320, 390, 768, 1280])
def test_it_does_not_scroll_sideways(browser: Any, address: str, width: int) -> None:
    open_page(browser, f"{address}?token={TOKEN}", width=width)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width


def test_text_of_others_is_text(browser: Any, address: str, shown: dict[str, Any]) -> None:
    shown |= hostile(EVIL)
    open_page(browser, f"{address}?token={TOKEN}")
    look_again(browser)  # and once more, put in by script
    assert browser.find_elements("tag name", "img") == []
    assert browser.title != "evil"
    assert EVIL in browser.find_element("tag name", "main").text


def test_a_stranger_sees_nothing(browser: Any, address: str) -> None:
    browser.delete_all_cookies()
    open_page(browser, address)
    assert "takes the token" in browser.find_element("tag name", "body").text
    assert browser.find_elements("tag name", "main") == []

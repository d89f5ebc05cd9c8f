"""The report in a real browser: it sorts, fits a phone, has a dark side, and complains of nothing."""

from __future__ import annotations

import re
from typing import Any

import pytest

from fedhip.runs.report import RunRecord, render_report
from tests.browser import open_page
from tests.runs.report.records import make_record, untrained

pytestmark = pytest.mark.usefixtures("pictures")

CLIENTS = [*map(str, range(48)), "a very long name of a client " * 7, "x" * 200]
TITLES = {"local": "trained alone", "global": "global model", "fedhip": "personalized"}


@pytest.fixture(scope="module")
def record() -> RunRecord:
    classes = [*(f"class {i}" for i in range(99)), "y" * 200]
    made = untrained(make_record(clients=CLIENTS, classes=classes), "7")
    made.results["stale"] = "ledger entry 2: forgot '7'"
    return made


@pytest.fixture(scope="module")
def pages(record: RunRecord, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("pages")
    runs = {"one run": [record], "two runs": [record, make_record("x" * 200, clients=CLIENTS, seed=1)]}
    for name, records in runs.items():
        (folder / f"{name}.html").write_text(render_report(records), encoding="utf-8")
    return {name: (folder / f"{name}.html").as_uri() for name in runs}


def column(browser: Any, number: int) -> list[str | None]:
    rows = "[...document.querySelector('#clients').tBodies[0].rows]"
    script = f"return {rows}.map(row => row.cells[arguments[0]].dataset.value ?? null)"
    values: list[str | None] = browser.execute_script(script, number)
    return values


def heads(browser: Any) -> list[Any]:
    found: list[Any] = browser.find_elements("css selector", "#clients thead th")
    return found


def ordered(values: list[float | None], *, descending: bool) -> list[float | None]:
    known = sorted((v for v in values if v is not None), reverse=descending)
    return [*known, *[None] * (len(values) - len(known))]


def test_table_sorts_by_click_and_holds_the_results(browser: Any, pages: dict[str, str], record: RunRecord) -> None:
    open_page(browser, pages["one run"])
    for method, title in TITLES.items():
        expected = [row["accuracy"] for row in record.results["methods"][method]["per_client"]]
        place = next(i for i, head in enumerate(heads(browser)) if title in head.text)
        assert [float(v or "nan") for v in column(browser, place)] != sorted(expected)
        for descending in (False, True):
            heads(browser)[place].find_element("tag name", "button").click()
            shown = [None if v is None else float(v) for v in column(browser, place)]
            assert shown == ordered(expected, descending=descending)
            assert heads(browser)[place].get_attribute("aria-sort") == ("descending" if descending else "ascending")
        by_name = {row["client"]: row["accuracy"] for row in record.results["methods"][method]["per_client"]}
        names, values = column(browser, 0), column(browser, place)
        assert {n: float(v or "nan") for n, v in zip(names, values, strict=True)} == by_name
    sorted_heads = [head for head in heads(browser) if head.get_attribute("aria-sort") != "none"]
    assert len(sorted_heads) == 1


def test_table_sorts_by_keyboard_with_missing_values_last(
    browser: Any, pages: dict[str, str], record: RunRecord
) -> None:
    open_page(browser, pages["one run"])
    place = next(i for i, head in enumerate(heads(browser)) if "α" in head.text)
    alphas = [row["alpha"] for row in record.results["methods"]["fedhip"]["per_client"]]
    assert None in alphas
    button = heads(browser)[place].find_element("tag name", "button")
    for descending in (False, True):
        browser.execute_script("arguments[0].focus()", button)
        button.send_keys("\ue007" if descending else " ")  # Enter, space
        shown = [None if v is None else float(v) for v in column(browser, place)]
        assert shown == ordered(alphas, descending=descending)


def test_clients_sort_as_people_count(browser: Any, pages: dict[str, str]) -> None:
    open_page(browser, pages["one run"])
    heads(browser)[0].find_element("tag name", "button").click()
    assert column(browser, 0)[:48] == list(map(str, range(48)))


@pytest.mark.parametrize("page", ["one run", "two runs"])
@pytest.mark.parametrize("width", [320, 390, 768, 1000, 1280, 1920])
def test_page_does_not_scroll_sideways(browser: Any, pages: dict[str, str], page: str, width: int) -> None:
    open_page(browser, pages[page], width=width)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("page", ["one run", "two runs"])
def test_no_complaints_in_the_console(browser: Any, pages: dict[str, str], page: str) -> None:
    open_page(browser, pages[page])
    assert browser.execute_script("return [...document.images].every(image => image.naturalWidth > 0)")
    assert browser.get_log("browser") == []


# Every element with letters of its own, in HTML or SVG: its colour, what lies behind it, and the letters.
COLOURS = """
const seen = [];
for (const element of document.querySelectorAll('main *')) {
  const own = [...element.childNodes].filter(n => n.nodeType === 3).map(n => n.data).join('').trim();
  const style = getComputedStyle(element);
  if (!own || !element.getClientRects().length) continue;
  let behind = element;
  while (behind && /, 0\\)$/.test(getComputedStyle(behind).backgroundColor)) behind = behind.parentElement;
  const colour = element instanceof SVGElement ? style.fill : style.color;
  seen.push([colour, getComputedStyle(behind).backgroundColor, own.slice(0, 40)]);
}
return seen;
"""


def luminance(colour: str) -> float:
    """Relative luminance as WCAG defines it, of `rgb(…)`."""
    shares = [int(n) / 255 for n in re.findall(r"\d+", colour)[:3]]
    linear = [s / 12.92 if s <= 0.04045 else ((s + 0.055) / 1.055) ** 2.4 for s in shares]
    return sum(w * s for w, s in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("page", ["one run", "two runs"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_letters_stand_out_from_what_is_behind_them(
    browser: Any, pages: dict[str, str], page: str, scheme: str
) -> None:
    open_page(browser, pages[page], scheme=scheme)
    body = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert luminance(body) > 0.9 if scheme == "light" else luminance(body) < 0.05
    seen = browser.execute_script(COLOURS)
    assert len(seen) > 100
    for colour, behind, letters in seen:
        low, high = sorted((luminance(colour), luminance(behind)))
        assert (high + 0.05) / (low + 0.05) >= 4.5, (letters, colour, behind)


def test_print_is_light_and_shows_every_client(browser: Any, pages: dict[str, str]) -> None:
    open_page(browser, pages["one run"], width=690, scheme="dark")
    features = [{"name": "prefers-color-scheme", "value": "dark"}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print", "features": features})
    assert luminance(browser.execute_script("return getComputedStyle(document.body).backgroundColor")) > 0.9
    box = "const box = document.querySelector('.tall'); return [box.clientHeight, box.scrollHeight]"
    shown, whole = browser.execute_script(box)
    assert shown == whole
    assert browser.execute_script("return document.documentElement.scrollWidth") <= 690

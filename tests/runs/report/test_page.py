"""The page says what results.json says, and nothing that a name could make it say."""

from __future__ import annotations

import copy
import dataclasses
import math
import re
import subprocess
import sys
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest

from fedhip.errors import MissingExtraError
from fedhip.runs.report import RunRecord, curves, figures, regression, render_report
from fedhip.runs.report.comparison import compare
from fedhip.runs.report.findings import read_runs, skew, thirds
from tests.conftest import DRAWN
from tests.runs.report.records import METHODS, make_record, untrained

pytestmark = pytest.mark.usefixtures("pictures")

VOID = {"meta", "img", "br", "link", "input", "hr"}


class Page(HTMLParser):
    """The page as a browser would see it: tags with their attributes, text, tables, and whether tags nest."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.tables: dict[str, list[list[tuple[str | None, str]]]] = {}
        self.text: list[str] = []
        self._open: list[str] = []
        self._table = ""
        self._cell: list[str] | None = None
        self.feed(html)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.tags.append((tag, given))
        if tag not in VOID:
            self._open.append(tag)
        if tag == "table":
            self._table = given.get("id") or f"table {len(self.tables)}"
            self.tables[self._table] = []
        elif tag == "tr":
            self.tables[self._table].append([])
        elif tag in ("td", "th"):
            self._cell = []
            self.tables[self._table][-1].append((given.get("data-value"), ""))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag
        if tag in ("td", "th") and self._cell is not None:
            row = self.tables[self._table][-1]
            row[-1] = row[-1][0], "".join(self._cell).strip()
            self._cell = None

    def handle_data(self, data: str) -> None:
        if self._open[-1:] not in (["style"], ["script"]):
            self.text.append(data)
        if self._cell is not None:
            self._cell.append(data)

    def rows(self, table: str = "clients") -> dict[str, dict[str, tuple[str | None, str]]]:
        """(data-value, text) by first cell's value and column's name."""
        head, *rest = self.tables[table]
        return {str(row[0][0]): {name: cell for (_, name), cell in zip(head, row, strict=True)} for row in rest}

    def prose(self) -> str:
        return " ".join("".join(self.text).split())


def changed(record: RunRecord, **results: Any) -> RunRecord:
    return dataclasses.replace(record, results=copy.deepcopy(record.results) | results)


@pytest.fixture(scope="module")
def record() -> RunRecord:
    return make_record()


@pytest.fixture(scope="module")
def html(record: RunRecord) -> str:
    return render_report([record])


def test_table_holds_every_number_in_full(record: RunRecord, html: str) -> None:
    rows = Page(html).rows()
    titles = {"local": "trained alone", "global": "global model", "fedhip": "personalized"}
    for method, title in titles.items():
        for client in record.results["methods"][method]["per_client"]:
            row = rows[client["client"]]
            assert float(row[title][0] or "nan") == client["accuracy"]
            assert row[title][1] == f"{client['accuracy']:.1%}"
            assert int(row["train rows"][0] or -1) == client["train"]
            assert int(row["test rows"][0] or -1) == client["test"]
    for own, shared in zip(*(record.results["methods"][m]["per_client"] for m in ("fedhip", "global")), strict=True):
        row = rows[own["client"]]
        assert float(row["gain"][0] or "nan") == own["accuracy"] - shared["accuracy"]
        assert float(row["α"][0] or "nan") == own["alpha"]
        counts = record.details["clients"][own["client"]]["train_counts"]
        assert int(row["classes"][0] or -1) == sum(n > 0 for n in counts)
    assert len(rows) == 50


def test_words_at_the_top(record: RunRecord, html: str) -> None:
    means = {m: record.results["methods"][m]["accuracy"]["mean"] for m in METHODS}
    text = Page(html).prose()
    assert (
        f"A client’s own model classifies {means['fedhip']:.1%} of its test rows correctly, on average over 50 clients."
        in text
    )
    more = f"{100 * (means['fedhip'] - means['global']):.1f} points more than the global model ({means['global']:.1%})"
    assert more in text
    assert f"than training alone ({means['local']:.1%})." in text
    assert "every client sent 6.6 MB and received 6.6 MB" in text
    assert "The whole run took 24.8 s." in text
    assert not re.search(r"[a-z][.,;:][A-Z]| [.,;:]", text.partition("dataset =")[0])


def test_equal_input_gives_equal_bytes(record: RunRecord, html: str) -> None:
    assert render_report([copy.deepcopy(record)]) == html


def test_nothing_from_outside(html: str) -> None:
    assert not re.search(r"https?:|//[a-z]+\.|@import|@font-face", html)
    for tag, attributes in Page(html).tags:
        assert tag not in ("link", "iframe", "object", "base", "form")
        assert not any(name.startswith("on") for name in attributes)
        assert (attributes.get("src") or "data:image/").startswith("data:image/")
        assert (attributes.get("href") or "#").startswith(("#", "data:image/"))
    policy = next(a["content"] for t, a in Page(html).tags if t == "meta" and a.get("http-equiv"))
    assert policy is not None
    assert policy.startswith("default-src 'none'; img-src data:;")


def test_every_picture_has_an_alt_text_with_numbers(html: str) -> None:
    tags = Page(html).tags
    labels = [a["aria-label"] or "" for _, a in tags if a.get("role") == "img"]
    assert len(labels) == sum(tag == "figure" for tag, _ in tags) == sum(tag == "figcaption" for tag, _ in tags)
    assert len(labels) == 9
    assert all(re.search(r"\d", label) and len(label) > 30 for label in labels)
    assert all(a.get("alt") for tag, a in tags if tag == "img")


def test_ids_are_unique_and_links_lead_somewhere(html: str) -> None:
    tags = Page(html).tags
    ids = [a["id"] for _, a in tags if "id" in a]
    assert len(ids) == len(set(ids))
    assert {(a["href"] or "")[1:] for tag, a in tags if tag in ("a", "use")} <= set(ids)
    assert set(re.findall(r"url\(#([^)]+)\)", html)) <= set(ids)


def test_pictures_follow_the_colours_of_the_page(html: str) -> None:
    body = html[html.index("<body>") :]
    assert "#fed1" not in body
    assert "var(--ink)" in body
    assert "var(--fedhip)" in body
    # A colour written into a picture would stay what it is in the dark.
    assert not re.findall(r"(?:fill|stroke): #[0-9a-f]{6}", body)


def test_a_report_of_fifty_clients_is_small() -> None:
    page = render_report([make_record(classes=100, examples=24)])
    assert len(page.encode()) < 1_500_000


NASTY = [
    "<script>alert(1)</script>",
    "$x^{$",
    '" onmouseover="alert(1)',
    "עברית‮abc",
    "🦉👩‍🔬",
    "x" * 200,
    "a\nb\x00c\x1b\ufffe",
    b"caf\xe9".decode("utf-8", "surrogateescape"),
    "{{ 7 * 7 }}",
    "</style><b>&amp;",
    '--> #fed101 url(#a) id="b"',
]


def test_names_are_letters_and_not_markup() -> None:
    record = make_record(clients=NASTY, classes=NASTY, examples=11)
    ledger = [
        {"entry": i, "time": NASTY[0], "event": NASTY[0], "client": name, "rows": 1, "hash": NASTY[0]}
        for i, name in enumerate(NASTY)
    ]
    methods = record.results["methods"] | {NASTY[0]: record.results["methods"]["global"]}
    config = {"folder": NASTY[0]}
    record = dataclasses.replace(
        changed(record, title=NASTY[0], methods=methods, config=config, stale=NASTY[0]),
        config="\n".join(NASTY), ledger=ledger, name=NASTY[0],
    )  # fmt: skip
    for runs in ([record], [record, changed(record, config={"folder": NASTY[2]})]):
        html = render_report(runs)
        html.encode()
        page = Page(html)
        assert sum(tag == "script" for tag, _ in page.tags) == 1
        assert not any(tag == "b" or "onmouseover" in a for tag, a in page.tags)
        assert "{{ 7 * 7 }}" in html
        assert "\u202e" not in page.prose()
        values = set(page.rows())
        assert {name for name in NASTY if "caf" not in name and "\x00" not in name} <= values
        assert "caf\\xe9" in values


LACKING = {
    "one client": make_record(clients=1),
    "two classes": make_record(clients=2, classes=2),
    "methods that are equal": make_record(clients=1, classes=2),
    "one class": make_record(classes=1),
    "fedhip alone": make_record(methods=["fedhip"]),
    "global alone": make_record(methods=["global"]),
    "no global": make_record(methods=["fedhip", "local"]),
    "many methods": make_record(methods=[*METHODS, *(f"rival {i}" for i in range(12))]),
    "methods of long names": make_record(methods=["m" * 200, "n" * 200, "o" * 200, "p" * 200]),
    "no test rows": make_record(test=False),
    "no examples": make_record(examples=0),
    "untrained client": untrained(make_record(), "7"),
    "nobody trained": untrained(make_record(clients=1), "0"),
    "no methods": changed(make_record(), methods={}),
    "no leave-one-out": changed(make_record(), leave_one_out=None),
    "no details": dataclasses.replace(make_record(), details={}),
}


@pytest.mark.parametrize("lacking", LACKING)
@pytest.mark.sampled(3)
def test_runs_that_lack_something(lacking: str) -> None:
    for runs in ([LACKING[lacking]], [LACKING[lacking], make_record()]):
        page = Page(render_report(runs))
        assert not re.search(r"\b(nan|none|inf|undefined)\b", page.prose(), re.IGNORECASE)
        for _, attributes in page.tags:
            assert not any(re.search(r"\b(nan|None|inf)\b", value or "") for value in attributes.values())


def test_missing_values_are_dashes() -> None:
    record = changed(make_record(clients=3))
    record.results["methods"]["fedhip"]["per_client"][1] |= {"accuracy": None, "alpha": None}
    record.results["methods"]["fedhip"]["per_client"][2]["accuracy"] = math.nan
    rows = Page(render_report([record])).rows()
    assert rows["1"]["personalized"] == rows["1"]["α"] == rows["1"]["gain"] == (None, "–")
    assert rows["2"]["personalized"] == (None, "–")
    assert rows["0"]["personalized"][0] is not None


def test_a_thousand_clients() -> None:
    html = render_report([make_record(clients=1000, classes=100)])
    page = Page(html)
    assert len(page.rows()) == 1000
    assert len(html.encode()) < 3_000_000
    assert any(tag == "image" for tag, _ in page.tags)  # the partition in shades


def test_worse_is_said_to_be_less() -> None:
    record = changed(make_record())
    record.results["methods"]["fedhip"]["accuracy"]["mean"] = 0.5
    record.results["methods"]["global"]["accuracy"]["mean"] = 0.52
    assert "That is 2.0 points less than the global model (52.0%)" in Page(render_report([record])).prose()


def test_banner_and_ledger() -> None:
    first = {
        "entry": 0,
        "time": "2026-11-15T12:00:00Z",
        "event": "run",
        "client": None,
        "rows": 8000,
        "hash": "ab" * 32,
    }
    second = {
        "entry": 1,
        "time": "2026-11-15T13:00:00Z",
        "event": "forget",
        "client": "7",
        "rows": 160,
        "hash": "cd" * 32,
    }
    record = dataclasses.replace(changed(make_record(), stale="ledger entry 1: forgot '7'"), ledger=[first, second])
    page = Page(render_report([record]))
    assert "The models have changed since these accuracies were measured. ledger entry 1: forgot '7'" in page.prose()
    assert "1 2026-11-15T13:00:00Z forget 7 160 cdcdcdcdcdcd" in re.sub(r"\s+", " ", " ".join(page.text))
    alone = Page(render_report([dataclasses.replace(record, ledger=[first])]))
    assert "Changes since the run" not in alone.prose()


def test_images_that_would_be_fetched_are_left_out() -> None:
    record = make_record(examples=1)
    record.details["examples"][0]["image"] = "https://example.org/a.png"
    assert "example.org" not in render_report([record])


def test_skew_is_the_share_of_rows_of_another_class() -> None:
    counts = np.array([[10, 0], [0, 10], [5, 5], [0, 0]])
    assert skew(counts) == [0.5, 0.5, 0.0, 0.0]
    one_moved = np.array([[3, 1], [1, 3]])  # one of four rows away from half and half
    assert skew(one_moved) == [0.25, 0.25]


def test_thirds() -> None:
    parts = thirds([6, 5, 4, 3, 2, 1], [0.6, 0.5, 0.4, 0.3, 0.2, 0.1])
    assert [(part.low, part.high, part.clients) for part in parts] == [(1, 2, 2), (3, 4, 2), (5, 6, 2)]
    assert [part.gain for part in parts] == pytest.approx([0.15, 0.35, 0.55])
    assert thirds([1] * 9, list(range(9))) == []


def test_worst_classes_are_those_of_lowest_accuracy(record: RunRecord) -> None:
    test, errors = np.zeros(20), np.zeros(20)
    for client in record.details["clients"].values():
        test += client["test_counts"]
        for true, _, count in client["confusions"]:
            errors[true] += count
    worst = read_runs([record])[0].worst_classes
    assert [c.label for c in worst] == np.argsort((test - errors) / test, kind="stable")[:10].tolist()
    assert [c.right for c in worst] == [int(test[c.label] - errors[c.label]) for c in worst]


def test_a_method_has_one_colour_in_all_runs() -> None:
    runs = read_runs([make_record(methods=["fedhip", "fedavg", "ditto"]), make_record(methods=["fedavg"])])
    colours = [{m.key: m.colour for m in run.methods} for run in runs]
    assert colours[0] == {"fedhip": "fedhip", "fedavg": "other-2", "ditto": "other-1"}
    assert colours[1] == {"fedavg": "other-2"}


def test_runs_side_by_side() -> None:
    one, two = make_record("one"), make_record("two", seed=1)
    page = Page(render_report([one, two]))
    rows = page.rows("runs-table")
    for record in (one, two):
        for method, title in (("fedhip", "personalized"), ("global", "global model")):
            mean = record.results["methods"][method]["accuracy"]["mean"]
            assert float(rows[record.name][title][0] or "nan") == mean
    clients = page.rows()
    for a, b in zip(*(r.results["methods"]["fedhip"]["per_client"] for r in (one, two)), strict=True):
        assert float(clients[a["client"]]["difference of two"][0] or "nan") == b["accuracy"] - a["accuracy"]
    assert "50 clients have other rows from run to run" in page.prose()
    assert [[cell[1] for cell in row] for row in page.tables["changed"]] == [
        ["option", "one", "two"],
        ["seed", "0", "1"],
    ]
    means = [record.results["methods"]["fedhip"]["accuracy"]["mean"] for record in (one, two)]
    assert f"Over 2 seeds the personalized model classifies {np.mean(means):.1%} of" in page.prose()
    assert f"over the seeds is {100 * np.std(means, ddof=1):.1f} points" in page.prose()


def test_runs_of_other_clients_are_not_compared_client_by_client() -> None:
    page = Page(render_report([make_record("one"), make_record("two", clients=20)]))
    assert "clients" not in page.tables


def test_runs_of_one_name_are_told_apart() -> None:
    runs = [make_record(name) for name in ("run", "other", "run")]
    assert compare(read_runs(runs)).names == ("run (1)", "other", "run (2)")


def test_no_runs() -> None:
    with pytest.raises(ValueError, match="at least one"):
        render_report([])


def test_all_other_tests_do_without_all_pictures() -> None:
    """One that is forgotten takes longer than the run whose report it is in."""
    drawn = {
        (module.__name__.rpartition(".")[2], function.__qualname__)
        for module in (figures, curves, regression)
        for owner in (module, *(thing for thing in vars(module).values() if isinstance(thing, type)))
        for function in vars(owner).values()
        if getattr(function, "__module__", "") == module.__name__ and is_picture(function)
    }
    assert drawn == {(module, name) for module, names in DRAWN.items() for name in names}


def is_picture(function: object) -> bool:
    code = getattr(function, "__code__", None)
    return code is not None and "inline" in code.co_names and not code.co_name.startswith("_")


@pytest.mark.parametrize("package", ["jinja2", "matplotlib"])
def test_missing_package_names_the_remedy(package: str, record: RunRecord, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=f"pip install {package}"):
        render_report([record])


@pytest.mark.slow
def test_package_needs_neither_to_be_imported() -> None:
    code = "import sys; sys.modules.update(jinja2=None, matplotlib=None); import fedhip.runs.report"
    subprocess.run([sys.executable, "-c", code], check=True)  # noqa: S603

"""Sites that bring tables: the agreed description makes their features, and a sum fills what is missing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import fedhip
from fedhip.cli.main import main
from fedhip.data.tables import Description, FillSums, draft, encode, read_table
from fedhip.errors import StatisticsError
from fedhip.federation.agreement.agreement import Agreement
from fedhip.federation.errors import SetupError
from fedhip.federation.status_codes import SiteRefusalError
from fedhip.federation.sums.table import FILLS, sums_of
from fedhip.runs import Run
from tests.cli.samples import refused
from tests.federation.samples import FOUR, Trial

CLASSES = ("ill", "well")


def people(site: str, rows: int = 25) -> pl.DataFrame:
    """Patients of a site; pressures are missing here and there, and site d writes no age at all."""
    random = np.random.default_rng(list(site.encode()))
    age = random.integers(20, 90, rows)
    ill = age + random.normal(0, 12, rows) > 55
    return pl.DataFrame(
        {
            "age": [None if site == "d" else int(value) for value in age],
            "pressure": [None if i % 5 == 2 else float(v) for i, v in enumerate(random.normal(130, 15, rows).round(1))],
            "sex": random.choice(["f", "m"], rows),
            "smoker": random.choice(["yes", "no"], rows),
            "site": [site] * rows,
            "diagnosis": np.where(ill, "ill", "well"),
        },
        schema_overrides={"age": pl.Int64},
    )  # fmt: skip


def everybody() -> pl.DataFrame:
    return pl.concat([people(site) for site in FOUR])


def described(**fills: float) -> Description:
    return draft(read_table(everybody()), label="diagnosis", client="site").description.with_fills(fills)


def trial(folder: Path, table: Description, **settings: Any) -> Trial:
    """A federation whose sites have tables."""
    made = Trial.make(folder, classes=CLASSES, width=table.width, table=table, **settings)
    for site in FOUR:
        path = folder / f"{site}.csv"
        people(site).write_csv(path)
        made.grid.nodes[made.node(site)].node_config["data"] = str(path)
    return made


@pytest.mark.parametrize("settings", [{}, {"few_rows": False, "prior": "client"}], ids=["ridge", "census and priors"])
@pytest.mark.sampled(2)
def test_tables_at_sites_give_the_models_of_a_run_on_all_rows(tmp_path: Path, settings: dict[str, Any]) -> None:
    table = described()
    made = trial(tmp_path, table, **settings)
    server = made.run()
    everybody().write_csv(tmp_path / "all.csv")
    run = fedhip.run(
        tmp_path / "all.csv", columns=table, out=tmp_path / "run", head="ridge", prior=settings.get("prior", "none")
    )
    assert server.model(None).total == run.model(None).total
    assert server.require_table() == run.require_table()
    new = people("e").drop("diagnosis", "site")
    for site in FOUR:
        at_site = Run.open(made.site_folder(site) / "result")
        assert at_site.require_table() == run.require_table()
        assert [check.what for check in at_site.verify() if check.problem] == []
        np.testing.assert_allclose(at_site.model(site).weights, run.model(site).weights, rtol=1e-9, atol=1e-12)
        np.testing.assert_array_equal(at_site.predict(new, site), run.predict(new, site))
    done = {entry["name"]: entry["done"] for entry in Run.open(made.site_folder("d") / "result").details["table"]}
    assert done["age"].startswith("used as it is; 25 of 25 missing, filled with 5")


def test_means_that_are_agreed_on_need_no_sum(tmp_path: Path) -> None:
    table = described(age=50.0, pressure=130.0, smoker=0.5)
    made = trial(tmp_path, table)
    assert FILLS not in sums_of(made.agreement)
    assert made.run().require_table() == table


def test_the_description_is_in_the_agreement_and_its_order_in_the_digest(tmp_path: Path) -> None:
    table = described(age=50.0)
    made = trial(tmp_path, table)
    agreed = made.agreement
    assert Agreement.from_text(agreed.to_text(), "again").table == table
    other = replace(agreed, table=replace(table, columns=(*table.columns[1:], table.columns[0])))
    assert other.digest() != agreed.digest()
    assert other.open_fills == agreed.open_fills == ("pressure", "smoker")


def test_what_a_site_brings_that_is_not_as_agreed(tmp_path: Path) -> None:
    """Units are told, and a column that is missing is refused; the others go on."""
    made = trial(tmp_path, described(age=50.0, pressure=130.0, smoker=0.5), quorum=3)
    people("a").with_columns(pl.col("pressure") / 7.5).write_csv(made.data("a"))
    people("b").rename({"pressure": "presure"}).write_csv(made.data("b"))
    made.run()
    assert "column 'pressure': half its values are below 15.9867, and 103 to 165 is agreed on" in made.log("a")
    assert "is it in other units? Convert it if so" in made.log("a")
    assert "b.csv has no column 'pressure'; did you mean 'presure'" in made.log("b")
    assert list(made.codes()) == ["b"]


def test_sums_that_no_rows_have_are_refused() -> None:
    table = described()
    encoded = encode(read_table(everybody()), table).matrix
    sums = FillSums.of(encoded, table, ["age", "pressure"])
    sums.require_possible(100)
    again = FillSums.from_vector(sums.to_vector(), table, ["age", "pressure"])
    means = everybody().select("age", "pressure").mean().row(0)
    assert tuple(again.means(table, ["age", "pressure"]).values()) == pytest.approx(means, rel=1e-9)
    with pytest.raises(StatisticsError, match="of 100 rows, and at most 99"):
        sums.require_possible(99)
    for present in (np.array([101, 80]), np.array([75, 79]), np.array([-1, 80])):
        with pytest.raises(StatisticsError, match="more values than there are rows, or fewer than are not 0"):
            FillSums(sums.survey, present).require_possible(100)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"labels": ()}, "table names 0 labels, and a federation sums classes of one"),
        ({"weight": "kg"}, "table has the weight 'kg', and rows of a federation weigh alike"),
    ],
)
def test_descriptions_that_are_not_agreed_on(tmp_path: Path, change: dict[str, Any], line: str) -> None:
    agreed = trial(tmp_path, described(age=50.0)).agreement
    with pytest.raises(SetupError) as told:
        replace(agreed, table=replace(described(), **change))
    assert str(told.value).startswith(line)
    with pytest.raises(SetupError, match="width is 7, and the columns of table make"):
        replace(agreed, width=7)


def test_files_of_another_kind(tmp_path: Path) -> None:
    from fedhip.federation.site.folder import open_site
    from fedhip.federation.site.preflight import require_ready

    (tmp_path / "tables").mkdir()
    (tmp_path / "features").mkdir()
    made = trial(tmp_path / "tables", described())
    with pytest.raises(SiteRefusalError, match=r"a\.npz is no table, and the agreement describes one"):
        require_ready(open_site(made.site_folder("a")), tmp_path / "tables" / "a.npz")
    plain = Trial.make(tmp_path / "features")
    with pytest.raises(SiteRefusalError, match=r"a\.csv is a table, and the agreement describes none"):
        require_ready(open_site(plain.site_folder("a")), tmp_path / "tables" / "a.csv")


def test_init_takes_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    everybody().write_csv("all.csv")
    assert main(["describe", "all.csv", "columns.toml", "--label", "diagnosis", "--client", "site"]) == 0
    sites = [word for site in FOUR for word in ("--site", site)]
    common = ["federation", "init", "fed", "--name", "wards", *sites, "--columns", "columns.toml"]
    told = refused(capsys, *common)
    assert "a federation predicts classes: name those of column 'diagnosis' with --classes; real numbers" in told
    assert "leave them out, and name the classes with --classes" in refused(capsys, *common, "--features", "x.npz")
    assert "--width is 3, and the features of columns.toml are" in refused(
        capsys, *common, "--classes", "ill,well", "--width", "3"
    )
    assert main([*common, "--classes", "ill,well"]) == 0
    agreed = Agreement.read(tmp_path / "fed" / "federation.toml")
    assert agreed.table == Description.from_file("columns.toml")
    assert agreed.width == agreed.table.width

"""Wrong and odd input to every command: the sentence that each gets. A new option or format adds its own lines."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedhip.cli.common.exit_codes import FAILED, USAGE
from fedhip.cli.common.parser import commands_of
from fedhip.cli.main import build_parser, main
from tests.cli.samples import said

ROWS = 24


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files that are right, files that are not, and a run."""
    folder = tmp_path_factory.mktemp("bad")
    rng = np.random.default_rng(0)
    labels = np.array(["x", "y"])[np.arange(ROWS) % 2]
    features = rng.normal(size=(ROWS, 3)) + (labels == "y")[:, None]
    clients = np.array(["north", "south", "west"])[np.arange(ROWS) // 8]
    right = {"features": features, "labels": labels, "clients": clients}
    files = {
        "f": right,
        "new": {"features": features[:8] + 0.1, "labels": labels[:8]},
        "single": {**right, "labels": np.full(ROWS, "x")},
        "empty-label": {**right, "labels": np.where(np.arange(ROWS) == 5, " ", labels)},
        "nan": {**right, "features": np.where(np.arange(ROWS)[:, None] == 4, np.nan, features)},
        "wide": {"features": np.ones((4, 5)), "labels": labels[:4]},
        "strangers": {"features": features[:4], "labels": np.array(["x", "y", "x", "z"])},
        "none": {"features": features[:0], "labels": labels[:0]},
        "no-labels": {"features": features},
        "client": {"features": features, "labels": labels, "client": clients},
        "nobody": {**right, "clients": np.where(np.arange(ROWS) == 5, " ", clients)},
        "no-group": {**right, "groups": np.where(np.arange(ROWS) == 5, "", clients)},
        "texts": {**right, "features": features.astype(np.str_)},
    }
    for name, arrays in files.items():
        np.savez(folder / f"{name}.npz", **arrays)
    np.savez(folder / "huge.npz", features=features, labels=np.where(np.arange(ROWS) == 3, 1e308, 1.0))
    (folder / "torn.npz").write_bytes((folder / "f.npz").read_bytes()[:300])
    (folder / "text.npz").write_text("features\n")
    (folder / "empty.npz").write_bytes(b"")
    ages = [int(age) for age in rng.integers(20, 80, 30)]
    lines = [f"{age},{'ab'[i % 2]},{i % 3 == 0}" for i, age in enumerate(ages)]
    (folder / "t.csv").write_text("\n".join(("age,site,sick", *lines)))
    lines[7] = "33,a,"
    (folder / "holes.csv").write_text("\n".join(("age,site,sick", *lines)))
    (folder / "bytes.csv").write_bytes(b"\xff\xfe\x00age,sick\n1,2\n")
    (folder / "unknown.toml").write_text('featurs = "f.npz"\n')
    (folder / "broken.toml").write_text("features = \n")
    (folder / "wrong.toml").write_text('features = "f.npz"\nseed = [1]\n')
    (folder / "flagged.toml").write_text('features = "f.npz"\nforce = "yes"\n')
    (folder / "flag.toml").write_text('features = "f.npz"\nseed = true\n')
    (folder / "half.toml").write_text('data = "folder"\nwindow = [0]\n')
    (folder / "anew.toml").write_text('features = "f.npz"\nclients = 2\n')
    (folder / "columns.toml").write_text('data = "t.csv"\nlabel = "sick"\nclient_column = "ward"\n')
    (folder / "kept.npz").write_bytes(b"precious")
    (folder / "kept.html").write_text("precious")
    (folder / "kept.csv").write_text("precious")
    (folder / "kept.toml").write_text("precious")
    (folder / "parcel.json").write_text('{"kind": "nothing"}')
    (folder / "folder").mkdir()
    for file in ("partition.json", "clients.csv"):
        (folder / "folder" / file).write_text("precious")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr("fedhip.runs.report.render_report", lambda _: "<html></html>")
        assert main(["run", "--features", "f.npz", "--out", "run", "--quiet"]) == 0
    return folder


INIT = "federation init fed --name demo --site a --site b --site c --classes x,y --width 4"

#: What is typed, and what must be said. Those of the first kind are understood, and refused.
REFUSED = {
    "run": "no data given; choose one of --dataset NAME, --data PATH and --features FILE",
    "run --features nothing.npz": "nothing.npz is not there",
    "run --features torn.npz": "torn.npz",
    "run --features text.npz": "text.npz",
    "run --features nan.npz": "features of row 4 hold NaN or infinity; remove this row",
    "run --features none.npz": "give real numbers of shape (N, m)",
    "run --features no-labels.npz": "has no array 'labels'",
    "run --features texts.npz": "give real numbers of shape (N, m)",
    "run --features single.npz": "all rows are of one class, 'x', so there is nothing to tell apart",
    "run --features empty-label.npz": "row 5 has an empty label; say which class it is, or leave such rows out",
    "run --features huge.npz --task regression --clients 2": "of row 3 is 1e+308; give finite numbers up to 1e+30",
    "run --features f.npz --out f.npz": "f.npz",
    "run --features f.npz --out run": "run",
    "run --features f.npz --methods fedhop": "there is no method 'fedhop'",
    "run --features f.npz --clients 0 --partition iid": "0",
    "run --features f.npz --clients 99 --partition iid": "99",
    "run --features f.npz --label sick": "--label names columns of a table",
    "run --features f.npz --head lda --head-options shrinkage=2": "shrinkage",
    "run --features f.npz --fraction-bits 99": "99",
    "run --features f.npz --seed -1": "-1",
    "run --features f.npz --device toaster": "toaster",
    "run --features f.npz --ray-address auto": "a Ray cluster is named, 'auto', and not used; add --engine ray",
    "run --features f.npz --engine ray --ray-address here": "'here' is no address of a Ray cluster; give HOST:PORT",
    "run --features f.npz --engine ray --ray-address ray://[::1]:9": "'ray://[::1]:9' is no address of a Ray cluster",
    "run --features f.npz --engine ray --ray-address 127.0.0.1:1": "no Ray cluster answers at 127.0.0.1:1 (Connection",
    "run --features f.npz --engine ray --epsilon 1": "noise is drawn here alone: --epsilon is for --engine local",
    "run --features f.npz --lift-width 8": "--lift-width needs a lift",
    "run --features f.npz --budget much": "the budget is 'much'; give bytes, such as 5MB, 500kB or 500000",
    "run --features f.npz --budget 100": "a budget of 100 bytes holds no upload of 3 features and 2 classes",
    "run --features f.npz --budget 5MB --head ridge": "leave out the head 'ridge'",
    "run --features f.npz --budget 5MB --lift relu": "which finds its own upload; leave out --lift",
    "run --features f.npz --budget 5MB --max-rounds 8": "which finds its own upload; leave out --max-rounds",
    "run --features f.npz --max-rounds 0": "max_rounds is 0; give a whole number of at least 1",
    "run --data t.csv --label ill": "ill",
    "run --data holes.csv --label sick": "row 8, column 'sick': the label is missing; fill it in, or remove the row",
    "run --data bytes.csv --label sick": "bytes.csv",
    "run --data nothing.csv --label sick": "nothing.csv",
    "run --features folder": "folder is a folder; give the name of a file",
    "run --features empty.npz": "empty.npz cannot be read as .npz",
    "run --features f.npz --methods ,": "no method given",
    "run --features f.npz --min-rows 99": "fewer than min_rows = 99",
    "run --features f.npz --partition dirichlet --clients 2 --concentration nan": "above 0, not nan",
    "run --features f.npz --concentration 1": "scheme 'natural' has no concentration",
    "run --features f.npz --partition natural --clients 2": "the data has 3 natural clients, not 2",
    "run --features f.npz -k 2": "the data names the client of each row, and 2 clients are asked for",
    "run --features f.npz -k 3": "the data names the client of each row, and 3 clients are asked for",
    "run --features f.npz --batch 0": "--batch has no effect on --features; leave it out",
    "run --features f.npz --batch 8": "--batch has no effect on --features; leave it out",
    "run --features f.npz --precision float32": "--precision has no effect on --features; leave it out",
    "run --features f.npz --rounds 5": "5 rounds are for methods that train by gradients, and none is named",
    "run --features f.npz --rounds 0": "0 rounds are for methods that train by gradients, and none is named",
    "run --features f.npz --methods fedavg --rounds 0": "rounds is 0",
    "run --features f.npz --client site": "--client-column names columns of a table",
    "run --data t.csv --label sick --batch 8": "--batch has no effect on a table; leave it out",
    "run --features f.npz --epsilon 0": "epsilon is 0.0; give a number above 0",
    "run --features f.npz --epsilon 1e300 --clip 1": "epsilon is 1e+300, which protects nobody; give at most 100",
    "run --features f.npz --clip 1": "--clip is of differential privacy; give --epsilon too",
    "run --features f.npz --lift relu --lift-width 99999999999": "GiB of memory",
    "run --features f.npz --lift fourier --lift-width 8 --lift-bandwidth 0": "the lift's bandwidth is 0.0",
    "run --features f.npz --window 0 1": "--window has no effect on --features",
    "run --features f.npz --columns f.npz": "f.npz does not say the units of columns",
    "run --features f.npz --head logistic --head-options =1": "an option of a head is '=1'",
    "run --features f.npz --task regression": "give real numbers",
    "run --features f.npz --out folder --force": "folder is not a run folder, and --force replaces runs only",
    "run --data t.csv --label sick --client site --clients 2": "column 'site' names the client of each row, and 2",
    "run --data t.csv --label sick --client-column site -k 2": "column 'site' names the client of each row, and 2",
    "run --data t.csv --label sick --client sick": "column 'sick' is named twice",
    "run --data t.csv --label sick --drop sick": "column 'sick' of t.csv is dropped and is the label",
    "run --data t.csv --label sick --client site --drop age": "no column is left to predict from",
    "run --data t.csv --label sick --weight site": "is not a number",
    "run folder": "folder is a folder; give the file in it",
    "run f.npz": "f.npz is not a TOML file",
    "run unknown.toml": "there is no option 'featurs'; did you mean 'features'?",
    "run broken.toml": "broken.toml is not a TOML file",
    "run wrong.toml": "'seed' must be a string, a number, true, false or a list of strings",
    "run flagged.toml": "flagged.toml: 'force' must be true or false",
    "run flag.toml": "flag.toml: 'seed' must not be true or false",
    "run half.toml": "half.toml: 'window' has 1 numbers; give 2",
    "run anew.toml": "the data names the client of each row, and 2 clients are asked for",
    "run columns.toml": "t.csv has no column 'ward'",
    "run --features client.npz": "an array 'client', which would not be used; rename it to 'clients'",
    "run --features nobody.npz": "nobody.npz: row 5 names no client; say which it is, or leave such rows out",
    "run --features no-group.npz": "no-group.npz: row 5 names no group",
    "join run --client east --features client.npz": "an array 'client', which would not be used",
    "partition --features nobody.npz": "row 5 names no client",
    "run nothing.toml": "there is no configuration file nothing.toml",
    "show nothing": "there is no run folder nothing",
    "show folder": "folder is not a run folder: it has no results.json",
    "describe nothing.csv": "nothing.csv",
    "describe t.csv kept.toml": "kept.toml is there already; write over it with --force",
    "describe t.csv --label ill": "ill",
    "describe folder": "folder is a folder; give the path of a .csv",
    "describe t.csv c.txt": "a description ends in .toml, not '.txt'",
    "describe t.csv run/config.toml --force": "is a file of the run run, which is lost without it",
    "report nothing": "there is no run folder nothing",
    "report run --html kept.html": "kept.html is there already; write over it with --force",
    "report run --tables folder": "clients.csv is there already; write over it with --force",
    "report run --out kept.html": "kept.html is there already; write over it with --force",
    "report run --html folder": "folder is a folder; give the name of a file",
    "report run --html page.txt": "the page ends in .html, not '.txt'",
    "report run --html run/results.json --force": "is a file of the run run, which is lost without it",
    "report run --tables kept.html": "kept.html is a file, not a folder",
    "predict run --features new.npz --client zzz": "no client 'zzz'; there are 3: north, south, west; for the global "
    "model, give --global",
    "predict run --features new.npz --client North": "near it: 'north'",
    "predict run --features new.npz --client=": "the run has no client ''",
    "predict run --features wide.npz": "5",
    "predict run --features new.npz --coverage 1.5": "1.5",
    "predict run --features new.npz --csv kept.csv": "kept.csv is there already; write over it with --force",
    "predict run --features new.npz --csv answers.txt": "answers are written as .csv",
    "predict run": "no image given",
    "predict run --features new.npz --device toaster": "there is no device 'toaster'; use cpu, cuda or cuda:N",
    "join run --client east --features new.npz --device toaster": "there is no device 'toaster'",
    "personalize run --device toaster": "there is no device 'toaster'",
    "influence run --device toaster": "there is no device 'toaster'",
    "audit --features new.npz --device toaster": "there is no device 'toaster'",
    "partition --features f.npz -k 2": "the data names the client of each row, and 2 clients are asked for",
    "predict nothing --features new.npz": "there is no run folder nothing",
    "predict run t.csv": "run was not made from a table",
    "predict run folder": "no image given",
    "predict run nothing.png": "there is no image nothing.png",
    "predict run --features new.npz t.csv": "--features stands alone",
    "predict run --features new.npz --weights nothing": "--weights is for images, and none are given; leave it out",
    "predict run --features new.npz --coverage nan": "coverage is nan; give a share between 0 and 1",
    "predict run --features new.npz --csv folder": "answers are written as .csv",
    "export run kept.npz": "an ONNX file ends in .onnx",
    "export run model.onnx --client zzz --head-only": "the run has no client 'zzz'",
    "export run model.onnx": "export the head alone (--head-only)",
    "export run model.onnx --from-table": "was not made from a table",
    "export run model.onnx --head-only --weights nothing": "the head alone has no backbone",
    "join run --client= --features new.npz": "the name '' is empty; give the client another",
    "join run --client ../x --features new.npz": "the name '../x' reads as a path; give the client another",
    "join run --client a\nb --features new.npz": "has a line break or another control character in it",
    "join run --client north --features new.npz": "client 'north' is in the run already",
    "join run --client east --features strangers.npz": "has a class 'z', which is none of the run's 2 classes",
    "join run --client east --features wide.npz": "5",
    "join run --features new.npz": "does not say whose rows these are; name the client with --client",
    "join run --client east --features new.npz --skip-corrupt": "--skip-corrupt is for images, and none are given",
    "join run --client east --features new.npz --rows f.npz": "leave --rows out",
    "join run --client east --data t.csv": "run was not made from a table",
    "join run --client .. --features new.npz": "the name '..' reads as a path",
    "update run --client nort --features new.npz": "the run has no client 'nort'; near it: 'north'",
    "forget run --client zzz": "the run has no client 'zzz'",
    "forget run --client north --weights nothing": "--weights is for images, and none are given",
    "personalize run --client zzz": "the run has no client 'zzz'",
    "personalize run --features new.npz": "does not say whose rows these are",
    "personalize run --weights nothing": "--weights is for images, and none are given",
    "influence run --csv kept.csv": "kept.csv is there already; write over it with --force",
    "influence nothing": "there is no run folder nothing",
    "influence run --csv answers.txt": "answers are written as .csv, not '.txt'",
    "influence run --rows new.npz": "it needs 'clients'",
    "influence run --weights nothing": "--weights is for images, and none are given",
    "verify nothing": "there is no run folder nothing",
    "verify run --receipt nothing": "there is no receipt nothing; check the path",
    "verify f.npz": "there is no run folder f.npz",
    "audit --features nothing.npz": "nothing.npz is not there",
    "audit --features new.npz --sites 1": "1",
    "audit --features new.npz --seconds 0": "--seconds 0 is no time to search in",
    "audit --features new.npz kept.html": "kept.html is there already; write over it with --force",
    "audit --data t.csv": "t.csv needs a column that says what is to be predicted; name it with --label",
    "audit --data t.csv --label ill": "t.csv has no column 'ill'",
    "audit --data t.csv --label sick --client-column site": "t.csv holds rows of 2 clients; choose one with --client",
    "audit --data t.csv --label sick --client-column site --client c": "no rows of client 'c'; it has those of a, b",
    "audit --data t.csv --label sick --weight age": "the attacks are on sums of rows that have one class each",
    "audit --data t.csv --label sick --columns f.npz": "what a table's columns hold: a .toml file, with a table",
    "audit --data holes.csv --label sick": "row 8, column 'sick': the label is missing",
    "audit --data t.csv --label sick --skip-corrupt": "--skip-corrupt has no effect on a table",
    "audit --features new.npz --label sick": "--label names columns of a table",
    "audit --features new.npz --client-column sick": "--client-column names columns of a table",
    "audit --features new.npz --columns broken.toml": "what a table's columns hold: a .toml file, with a table",
    "audit --features f.npz": "f.npz holds rows of 3 clients; choose one with --client",
    "audit --features new.npz page.txt": "the page ends in .html, not '.txt'",
    "audit --features new.npz --rows-of-others 0": "--rows-of-others 0 is too few",
    "reproduce table9 --features f.npz": "table9",
    "reproduce table1 --features f.npz --network deep": "there is no network 'deep'",
    "reproduce table1 --features f.npz --jobs 0": "at least 1, not 0",
    "reproduce table1 --features f.npz --styles": "--styles is for fine-tuning alone",
    "reproduce natural --part 2 3": "--part has no effect on natural",
    "reproduce fine-tuning --features f.npz": "networks are trained on images",
    "reproduce fine-tuning --features f.npz --protocol tuned": "--protocol has no effect on fine-tuning",
    "partition --features f.npz --out folder": "partition.json is there already; write over it with --force",
    "partition --features f.npz --out f.npz": "f.npz is a file, not a folder",
    "partition --features f.npz --out run --force": "is a file of the run run, which is lost without it",
    "partition --features f.npz --partition shards --shards 99 --clients 3": "99 shards each need 297 rows",
    "extract fresh.npz --dataset sketchs": "did you mean 'sketches'?",
    "extract kept.npz --dataset sketches": "kept.npz is there already; write over it with --force",
    "extract --dataset sketches --out kept.npz": "kept.npz is there already; write over it with --force",
    "extract new.txt --dataset sketches": "a feature file ends in .npz or .safetensors",
    "extract run/total.safetensors --dataset sketches --force": "is a file of the run run, which is lost without it",
    "extract x.npz --data t.csv": "t.csv is a table, and images are needed",
    "extract x.npz --data f.npz": "f.npz has no array 'images'",
    "pretrain --pool nothing --out new --steps 1": "nothing",
    "cache list --site folder": "folder is no folder of a site",
    "cache clear --site folder": "folder is no folder of a site",
    "cache clear --run nothing": "there is no run folder nothing",
    "cache list --site nothing": "nothing is no folder of a site",
    "federation init fed --name demo --site a --site a --classes x,y --width 4": "'a'",
    "federation init fed --name demo --site a --site b --site c --classes x --width 4": "class",
    f"{INIT} --beta 1e308": "beta is 1e+308",
    "federation init fed --name ../x --site a --site b --site c --classes x,y --width 4": "../x",
    f"{INIT} --port 0": "port is 0; give a whole number from 1 to 65535",
    f"{INIT} --days 0": "days is 0",
    f"{INIT} --quorum 9": "quorum is 9; give a whole number from 1 to 3",
    f"{INIT} --dishonest-sites 3": "give a whole number from 0 to 2",
    f"{INIT} --deadline nan": "deadline is nan",
    f"{INIT} --veto-share 2": "veto_share is 2.0",
    f"{INIT} --max-rows 0": "max_rows is 0",
    f"{INIT} --gradient-rounds 3": "gradient_rounds is 3, and the head is 'auto'",
    f"{INIT} --delta 1e-6": "delta is of differential privacy",
    f"{INIT} --pooling cls": "are of a backbone; name it with --backbone",
    f"{INIT} --columns nothing.toml": "there is no file nothing.toml",
    INIT.replace("x,y", "x,x"): "the class 'x' is there twice",
    INIT.replace("x,y", "none.txt"): "--classes none.txt is one class, and no file",
    INIT.replace(" --classes x,y", ""): "the classes are needed, once",
    INIT.replace(" --width 4", ""): "the width of the features is needed",
    INIT.replace("--site b --site c ", ""): "a federation needs at least two",
    INIT.replace("init fed", "init folder"): "a federation is never replaced",
    "federation accept parcel.json": "parcel.json",
    "federation accept nothing.json": "nothing.json",
    "federation accept folder": "folder is a folder; give the file that was sent",
    "federation enroll folder parcel.json": "folder is no folder of a federation",
    "federation enroll folder parcel.json --replace": "folder is no folder of a federation",
    "federation rotate-key folder": "with a site's key; give the folder that accept made",
    "federation fingerprint folder": "folder is no site's folder, no coordinator's folder and no parcel",
    "federation serve folder": "folder is no folder of a federation",
    "federation serve folder --json": "--json is for --background",
    "federation serve folder --status-port 70000": "--status-port 70000 is no port; give one from 1 to 65535",
    "federation serve folder --status-host x": "--status-host is of the coordinator's page; give --status-port too",
    "federation site folder --features f.npz": "folder",
    "federation run folder": "folder is no folder of a federation",
    "federation status folder": "folder is no folder of a federation",
    "federation stop nothing": "there is no folder nothing",
    "federation revoke folder north": "folder is no folder of a federation",
    "federation export-log folder new.jsonl": "folder is no folder of a federation",
    "federation verify-log nothing.jsonl folder": "there is no file folder/federation.toml",
    "federation stop folder": "folder is no folder of a federation and none of a site",
    "federation renew folder": "folder is no folder of a federation",
    "federation renew folder --authority": "folder is no folder of a federation",
    "federation open-commitment folder opening": "folder",
    "verify-commitment nothing.opening nothing.json --federation folder": "there is no file folder/federation.toml",
}

#: These are not understood.
MISTYPED = {
    "rn": "fedhip: there is no command 'rn'; did you mean 'run'?",
    "-q run": "options stand after the command: fedhip COMMAND -q",
    "federation int": "fedhip federation: there is no command 'int'; did you mean 'init'?",
    "run --feat f.npz": "there is no --feat; did you mean '--features'?",
    "run --features f.npz --alpha 1e308": "'1e308' is neither 'loo' nor a number from 0 to 1e+30",
    "run --features f.npz --alpha nan": "'nan' is neither 'loo' nor a number from 0 to 1e+30",
    "run --features f.npz --beta 1e308": "'1e308' is neither 'auto' nor 'gcv' nor a number from 0 to 1e+30",
    "run --features f.npz --beta -1": "--beta",
    "run --features f.npz --seed x": "--seed",
    "run --features f.npz --partition none": "--partition",
    "run --features": "--features",
    "run --features=": "argument --features: '' is no path",
    "run --features f.npz --out=": "argument -o/--out: '' is no path",
    "run --features f.npz --top 3": "there is no --top",
    "run --features f.npz --seed 1.5": "--seed",
    "run --Features f.npz": "did you mean '--features'?",
    "show": "RUN",
    "show run run": "'run' is one argument more than it takes",
    "show ": "argument RUN: '' is no path",
    "describe": "TABLE",
    "report": "RUN",
    "predict run --features new.npz --top -1": "'-1' is no whole number of at least 1",
    "predict run --features new.npz --top 0": "'0' is no whole number of at least 1",
    "predict run --features new.npz --client a --global": "not allowed with argument",
    "predict run --features new.npz --client=--": "'--' is no value",
    "export run": "FILE",
    "join run": "--data",
    "update run --features new.npz": "--client",
    "forget run": "--client",
    "personalize": "RUN",
    "verify run --recipt x": "did you mean '--receipt'?",
    "audit": "--data",
    "reproduce": "STUDY",
    "reproduce table1 --features f.npz --part 0 3": "argument --part: '0' is no whole number of at least 1",
    "reproduce table1 --features f.npz --alpha x": "there is no --alpha",
    "partition --features f.npz --clients x": "--clients",
    "extract --dataset sketches": "the following arguments are required: FILE",
    "extract a.npz --dataset sketches --out b.npz": "a.npz and --out b.npz are two names for one thing",
    "extract x.npz --styles nothing": "'nothing' is one argument more than it takes",
    "describe t.csv a.toml b.toml": "b.toml",
    "pretrain --pool nothing --out new": "--steps",
    "list everything": "everything",
    "list datasets methods": "'methods' is one argument more than it takes",
    "cache clear --older-than -1": "'-1' is no number of days; give one of at least 0",
    "cache list --older-than 1": "--older-than",
    "doctor now": "now",
    "completion fish": "fish",
    "federation init fed": "--name",
    "federation accept": "PARCEL",
    "federation enroll folder": "FILE",
    "federation rotate-key": "FOLDER",
    "federation fingerprint": "PATH",
    "federation serve folder --print-nginx --print-systemd": "not allowed with argument",
    "federation serve folder --port x": "--port",
    "federation serve folder --status-port x": "--status-port",
    "federation site folder": "--data",
    "federation serve folder --log-format xml": "--log-format",
    "federation site folder --features f.npz --log-format xml": "--log-format",
    "federation run": "DIR",
    "federation status": "DIR",
    "federation stop": "DIR",
    "federation revoke folder": "SITE",
    "federation export-log folder": "FILE",
    "federation verify-log nothing.jsonl": "FOLDER",
    "federation renew folder --days x": "--days",
    "federation open-commitment folder": "FILE",
    "verify-commitment nothing.opening": "COMMITMENT",
}


@pytest.fixture(autouse=True)
def here(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)


def before(place: Path) -> dict[str, bytes]:
    return {str(path.relative_to(place)): path.read_bytes() for path in place.rglob("*") if path.is_file()}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the engine's packages, on import
@pytest.mark.parametrize("words", REFUSED)
def test_what_is_refused_says_why_and_leaves_everything_as_it_was(
    words: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there = before(place)
    assert main(words.split(" ")) == FAILED
    shown = capsys.readouterr()
    assert shown.out == ""
    lines = [line for line in shown.err.splitlines() if "█" not in line]
    assert len(lines) == 1, lines
    assert lines[0].startswith("fedhip: ")
    assert REFUSED[words] in lines[0]
    assert before(place) == there


@pytest.mark.parametrize("words", MISTYPED)
def test_what_is_not_understood_says_where_help_is(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(words.split(" "))
    assert stop.value.code == USAGE
    (line,) = said(capsys)
    assert MISTYPED[words] in line
    assert line.endswith(" --help)")


def test_every_command_is_in_the_tables() -> None:
    for parser in commands_of(build_parser()):
        command = parser.prog.removeprefix("fedhip ")
        assert any(f"{words} ".startswith(f"{command} ") for words in (*REFUSED, *MISTYPED)), command

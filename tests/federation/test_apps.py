"""The two apps as the engine loads them: shells, quick to start, that say nothing they should not."""

from __future__ import annotations

import pickle
import subprocess
import sys
import tomllib
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import cast

import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.supercore.inflatable.inflatable_utils import pull_objects
from flwr.superlink.grid import http_grid

import fedhip.federation
from fedhip import __version__
from fedhip.federation.agreement.roster import Roster
from fedhip.federation.client_app import app
from fedhip.federation.errors import RoundError
from fedhip.federation.server_app import main
from fedhip.federation.status_codes import SiteCode
from fedhip.federation.transport.wire import Envelope, Letter, RoundStep, from_records, to_records
from tests.federation.samples import ONE_SUM, Trial
from tests.federation.table import ThreeSums

APP = Path(fedhip.federation.__file__).parent / "app"


def test_the_app_folder_names_the_apps() -> None:
    content = tomllib.loads((APP / "pyproject.toml").read_text())
    components = content["tool"]["flwr"]["app"]["components"]
    for name, kind in (("serverapp", ServerApp), ("clientapp", ClientApp)):
        module, _, attribute = components[name].partition(":")
        assert isinstance(getattr(import_module(module), attribute), kind)
    assert len(content["project"]["name"]) <= 32
    assert all(isinstance(value, str | int) for value in content["tool"]["flwr"]["app"]["config"].values())


def test_the_app_folder_brings_no_code() -> None:
    """A site runs the fedhip that its own people installed."""
    assert [path.name for path in APP.rglob("*") if path.is_file()] == ["pyproject.toml"]


def test_a_site_starts_without_torch() -> None:
    code = (
        "import fedhip.federation.client_app, sys; sys.exit(int('torch' in sys.modules or 'matplotlib' in sys.modules))"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)  # noqa: S603


_ANSWER = """
import pickle, sys
from pathlib import Path
from typing import cast
from fedhip.federation.site.site import Site
folder, data, place = sys.argv[1:]
question, node = pickle.loads(Path(place).read_bytes())
answer = Site(Path(folder), Path(data)).handle(question, node)
Path(place).write_bytes(pickle.dumps((answer, "torch" in sys.modules)))
"""


class InAProcess:
    """A site that answers each question in a process of its own, as under the engine."""

    def __init__(self, table: ThreeSums, site: str, place: Path) -> None:
        paths = (table.trial.site_folder(site), table.trial.data(site), place)
        self.command = [sys.executable, "-c", _ANSWER, *map(str, paths)]
        self.place, self.heavy = place, list[tuple[str, int, bool]]()

    def handle(self, question: Letter, node: int) -> Letter:
        self.place.write_bytes(pickle.dumps((question, node)))
        subprocess.run(self.command, check=True)  # noqa: S603
        answer, heavy = pickle.loads(self.place.read_bytes())  # noqa: S301
        self.heavy.append((question.envelope.step.value, question.envelope.round, heavy))
        assert isinstance(answer, Letter)
        return answer


@pytest.mark.slow
def test_most_steps_need_no_torch(tmp_path: Path) -> None:
    """All but those in which a sum is computed, each in a process of its own, as the engine runs it."""
    table = ThreeSums(tmp_path)
    site = InAProcess(table, "a", tmp_path / "letter")
    table.sites["a"] = site  # type: ignore[assignment]
    table.until_beta()
    steps = ("keys", "share", "mask", "unmask")
    assert site.heavy == [
        ("hello", 1, False),
        *((step, number, step == "keys") for number in (1, 2) for step in steps),
    ]


def ask(trial: Trial, content: RecordDict, kind: str = "query.hello", **config: str) -> Letter:
    context = trial.grid.nodes[trial.node("a")]
    given = {**context.node_config, **config}
    message = Message(content, 101, kind)
    return from_records(app(message, Context(7, 101, given, RecordDict(), {})).content)


LETTER = Letter(Envelope(bytes(32), "a", "b", RoundStep.HELLO))


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (RecordDict(), SiteCode.MALFORMED),
        (to_records(Letter(Envelope(bytes(32), "a", "b", RoundStep.KEYS))), SiteCode.MALFORMED),
    ],
)
def test_a_message_that_is_none_gets_a_code(tmp_path: Path, content: RecordDict, code: SiteCode) -> None:
    trial = Trial.make(tmp_path)
    answer = ask(trial, content)
    assert (answer.code, answer.body, answer.arrays) == (code, {}, {})
    assert "hello: refused" in trial.log("a")


@pytest.mark.parametrize(("protocol", "older"), [(1, "whoever sent it"), (99, "this machine")])
def test_a_server_of_another_protocol_is_told_so_in_its_own(tmp_path: Path, protocol: int, older: str) -> None:
    trial = Trial.make(tmp_path)
    context = trial.grid.nodes[trial.node("a")]
    answer = app(Message(to_records(LETTER, protocol), 101, "query.hello"), context).content
    told = cast(ConfigRecord, answer["fedhip"])
    assert (told["protocol"], told["code"]) == (protocol, "protocol")
    assert f"hello: refused: the message speaks protocol {protocol}, and this fedhip 2; upgrade {older}" in (
        trial.log("a")
    )


def test_a_site_of_an_older_protocol_is_named(tmp_path: Path) -> None:
    trial = Trial.make(tmp_path, quorum=3, threshold=3, **ONE_SUM)
    trial.fault("changed", "c", "hello", lambda _: to_records(replace(LETTER, code=SiteCode.PROTOCOL), 1))
    trial.run()
    assert trial.codes() == {"c": "protocol"}
    assert any("site 'c' has another version of fedhip; upgrade the older" in line["text"] for line in trial.events())


def test_versions_are_compared_at_hello(tmp_path: Path) -> None:
    trial = Trial.make(tmp_path, quorum=3, threshold=3, **ONE_SUM)

    def older(records: RecordDict) -> RecordDict:
        letter = from_records(records)
        return to_records(letter.reply({**letter.body, "version": "0.0.9"}))

    trial.fault("changed", "c", "hello", older)
    trial.run()
    assert trial.codes() == {"c": "protocol"}
    line = f"the server has fedhip {__version__} and the site 0.0.9: upgrade the site"
    assert any(line in entry["text"] for entry in trial.events())
    letter = replace(LETTER, body={"version": "0.0.9"})
    roster = Roster.read(trial.folder / "roster.json").digest()
    envelope = replace(letter.envelope, agreement=trial.agreement.digest(), roster=roster)
    letter = replace(letter, envelope=envelope)
    assert ask(trial, to_records(letter)).code is SiteCode.PROTOCOL
    assert f"the server has fedhip 0.0.9 and the site {__version__}: upgrade the server" in trial.log("a")


@pytest.mark.parametrize("folder", ["", "/nowhere/at/all"])
def test_a_node_without_a_folder(tmp_path: Path, folder: str) -> None:
    trial = Trial.make(tmp_path)
    for content in (to_records(LETTER), RecordDict()):
        assert ask(trial, content, **{"site-folder": folder}).code is SiteCode.FOLDER


def test_a_run_that_names_no_federation() -> None:
    with pytest.raises(RoundError, match="federation-folder"):
        main(None, Context(7, 1, {}, RecordDict(), {}))  # type: ignore[arg-type]


def test_the_server_app_runs_the_round(tmp_path: Path, sums_only: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)
    for name in ("RuntimeHttpClient", "HttpGrid"):  # what `main` changes of the engine's stays here
        place = f"fedhip.federation.server_app.{name}"
        monkeypatch.setattr(place, type(name, (vars(sys.modules[main.__module__])[name],), {}))
    monkeypatch.setattr(http_grid, "pull_objects", pull_objects)
    trial = Trial.make(tmp_path)
    main(trial.grid, Context(7, 1, {}, RecordDict(), {"federation-folder": str(trial.folder)}))
    assert (trial.result / "total.safetensors").is_file()

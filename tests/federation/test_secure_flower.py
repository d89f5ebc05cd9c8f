"""The secure sum in apps of others: it is that of `fedhip federation`, and a site refuses what it refuses there."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedhip.core.exact.fixedpoint import GridStatistics
from fedhip.errors import FedHiPError
from fedhip.federation.errors import RoundError
from fedhip.federation.site.site import Site
from fedhip.federation.transport.wire import Letter
from fedhip.flower import secure_client_app, secure_round
from fedhip.runs import Run
from tests.federation.samples import FOUR, ONE_SUM, Trial, sum_of, vector_of
from tests.federation.test_flower import InProcess


class OwnApp(InProcess):
    """Nodes of somebody's own Flower; each has a site's folder and rows. What sites send is kept."""

    def __init__(self, trial: Trial, sites: Sequence[str] = FOUR, app: ClientApp | None = None) -> None:
        configs = [trial.grid.nodes[trial.node(site)].node_config for site in sites]
        super().__init__(app or secure_client_app(), (), *configs)
        self.said = ""

    def pull_messages(self, message_ids: Any) -> Any:
        messages = list(super().pull_messages(message_ids))
        for message in messages:
            self.said += repr(message.content)
        return messages


def forget_nodes(trial: Trial) -> None:
    (trial.folder / "state" / "nodes.json").unlink()


def test_the_sum_is_that_of_a_run_and_each_site_has_its_model(tmp_path: Path, sums_only: None) -> None:
    trial = Trial.make(tmp_path, **ONE_SUM)
    forget_nodes(trial)
    result = Run.open(secure_round(OwnApp(trial), trial.folder))
    assert result.total() == sum_of(FOUR, trial.agreement)
    for site in FOUR:
        assert GridStatistics.from_file(trial.site_folder(site) / "result" / "total.safetensors") == result.total()


def test_what_a_site_sends_is_under_its_mask(tmp_path: Path, sums_only: None, monkeypatch: pytest.MonkeyPatch) -> None:
    trial, sent, handle = Trial.make(tmp_path, **ONE_SUM), dict[str, Any](), Site.handle

    def kept(site: Site, question: Letter, node: int) -> Letter:
        answer = handle(site, question, node)
        for vector in answer.arrays.values():
            sent[site.folder.name] = vector.copy()
        return answer

    monkeypatch.setattr(Site, "handle", kept)
    own = {site: vector_of(site, trial.agreement) for site in FOUR}
    secure_round(OwnApp(trial), trial.folder)
    assert len(sent) == 4  # one vector of each, beside keys, shares and signatures
    assert not any(np.isin(vector, plain[plain != 0]).any() for vector in sent.values() for plain in own.values())


def test_a_second_sum_that_differs_by_one_site_is_refused(tmp_path: Path, sums_only: None) -> None:
    """The server asks for a round of three of the sites: less the first sum, it would be the fourth site's own."""
    first = Trial.make(tmp_path / "first", **ONE_SUM)
    secure_round(OwnApp(first), first.folder)
    again = Trial.make(tmp_path / "second", FOUR[:3], fraction_bits=first.bits, **ONE_SUM)
    with pytest.raises(RoundError, match="the quorum is"):
        secure_round(OwnApp(again, FOUR[:3]), again.folder)
    for site in FOUR[:3]:
        assert "differs from it only by d" in again.log(site)


def test_the_same_round_again_is_refused(tmp_path: Path, sums_only: None) -> None:
    """By the server, and where its folder was restored, by the sites."""
    trial = Trial.make(tmp_path, **ONE_SUM)
    before = tmp_path / "before"
    shutil.copytree(trial.folder / "state", before)
    secure_round(OwnApp(trial), trial.folder)
    with pytest.raises(RoundError, match="this round is finished"):
        secure_round(OwnApp(trial), trial.folder)
    shutil.rmtree(trial.folder / "state")
    before.rename(trial.folder / "state")
    with pytest.raises(RoundError, match="the quorum is"):
        secure_round(OwnApp(trial), trial.folder)
    assert "a sum of this agreement was finished" in trial.log("a")


@pytest.mark.parametrize("at", [0, 4])
def test_a_node_that_says_it_is_another_site_is_left_out(tmp_path: Path, sums_only: None, at: int) -> None:
    """It has no key of that site; the site itself takes part, whoever of them says so first."""
    trial = Trial.make(tmp_path, **ONE_SUM)
    liar = tmp_path / "liar"
    shutil.copytree(trial.site_folder("d"), liar)
    (liar / "key").write_bytes((trial.site_folder("c") / "key").read_bytes())
    grid = OwnApp(trial)
    configs = [context.node_config for context in grid.contexts.values()]
    configs.insert(at, {**configs[3], "site-folder": str(liar)})
    result = Run.open(secure_round(InProcess(grid.app, (), *configs), trial.folder))
    assert result.total() == sum_of(FOUR, trial.agreement)


def test_a_node_without_a_folder_is_left_out_and_says_nothing_of_its_machine(tmp_path: Path, sums_only: None) -> None:
    trial = Trial.make(tmp_path, quorum=3, threshold=3, **ONE_SUM)
    grid = OwnApp(trial)
    grid.contexts[13] = Context(7, 13, {}, RecordDict(), {})
    grid.contexts[14] = Context(7, 14, {"site-folder": "/nowhere/at/all"}, RecordDict(), {})
    result = Run.open(secure_round(grid, trial.folder))
    assert result.total() == sum_of(FOUR[:3], trial.agreement)
    assert "nowhere" not in grid.said


def test_the_handlers_stand_beside_those_of_the_app(tmp_path: Path, sums_only: None) -> None:
    own = ClientApp()

    @own.train()
    def train(message: Message, context: Context) -> Message:
        return Message(RecordDict(), reply_to=message)

    trial = Trial.make(tmp_path, **ONE_SUM)
    assert secure_client_app(own) is own
    grid = OwnApp(trial, app=own)
    secure_round(grid, trial.folder)
    assert len(list(grid.push_messages([Message(RecordDict(), 10, "train")]))) == 1


def test_a_folder_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(FedHiPError, match="is no folder of a federation"):
        secure_round(InProcess(secure_client_app()), tmp_path)

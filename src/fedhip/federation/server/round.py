"""The server's side of the round.

    hello → [encoder] → [keys] → share → mask → [agree] → unmask → [… for each sum] → personalize → result

The answer to hello has the keys of the first sum in it, but of a site that lacks the encoder.

Which sums there are, and in which order, the table of sums says (`fedhip.federation.sums.table`). Each is a secure
aggregation: the server learns the sum of the sites' vectors, and no site's own.

A site that errs, is late or sends garbage is left out by name, and the round goes on while the quorum holds. Each
answer is folded into one running sum and let go, so that memory does not grow with the number of sites. Beside the sums
the server learns, of those who tell, an accuracy.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedhip import __version__
from fedhip.errors import FedHiPError
from fedhip.federation.agreement.agreement import FILE as AGREEMENT_FILE
from fedhip.federation.agreement.agreement import Agreement
from fedhip.federation.agreement.credentials import verify
from fedhip.federation.agreement.privacy import public_of
from fedhip.federation.agreement.roster import FILE as ROSTER_FILE
from fedhip.federation.agreement.roster import Roster
from fedhip.federation.errors import MessageError, RoundError
from fedhip.federation.server.aggregation import CheatedError
from fedhip.federation.server.checkpoint import Restart, RoundCheckpoint, RoundProgress, SumState
from fedhip.federation.server.cohort import HAND_OUT, SiteCohort, always
from fedhip.federation.server.event_log import BEGUN
from fedhip.federation.server.logistic import LogisticSums
from fedhip.federation.server.result import accuracies_in, write_result
from fedhip.federation.server.sums import RoundSums
from fedhip.federation.site.encoder import EncoderFile, Presence
from fedhip.federation.status_codes import ServerCode, SiteCode, meaning
from fedhip.federation.sums import choice
from fedhip.federation.sums.head import (
    federation_of_sites,
    fit_choice,
    fit_head,
    head_to_message,
    logistic_model,
    task_of,
)
from fedhip.federation.sums.kind import ModelSums, SumKind
from fedhip.federation.sums.priors import scale_of_sum
from fedhip.federation.sums.private import released
from fedhip.federation.sums.ridge import beta_shape
from fedhip.federation.sums.statistics import encoding_of, lift_of, rows_in
from fedhip.federation.sums.table import (
    CENSUS,
    FILLS,
    MOMENTS,
    PLAIN,
    PRIOR,
    PRODUCTS,
    SCALE,
    TEMPERATURE,
    VETO,
    WIDE,
    sums_before,
    sums_follow,
)
from fedhip.federation.sums.tables import filled_table
from fedhip.federation.sums.traffic import bytes_of, tried_kinds
from fedhip.federation.sums.vector import Vector, from_vector, losses_of
from fedhip.federation.sums.veto import ARRAY as VETOES
from fedhip.federation.sums.veto import is_stopped, verdict_of
from fedhip.federation.sums.wide import has_rows, lift_by, objections, wide_of
from fedhip.federation.transport.exchange import Exchange, SiteReply
from fedhip.federation.transport.wire import (
    SESSION_BYTES,
    Arrays,
    Body,
    Envelope,
    Letter,
    RoundStep,
    by_site,
    hello_statement,
    which_to_upgrade,
)

if TYPE_CHECKING:
    from fedhip.core.exact.fixedpoint import GridStatistics
    from fedhip.features.lifts.lift import Lift
    from fedhip.heads import Head
    from fedhip.heads.model import Model
    from fedhip.simulation.federation import Federation
    from fedhip.simulation.trust.doubt import Verdict

#: Beside federation.toml, for sites that lack it.
ENCODER_FILE = "encoder.safetensors"


class Round:
    """One round of one federation, from its folder."""

    def __init__(self, folder: Path, exchange: Exchange, agreement: Agreement, roster: Roster) -> None:
        self.folder, self.agreement = folder, agreement
        self.state = folder / "state"
        self.out = self.state / "result"
        self.checkpoint = RoundCheckpoint(self.state / "checkpoint")
        self.features = PLAIN
        nobody = Envelope(bytes(SESSION_BYTES), agreement.digest(), roster.digest(), RoundStep.HELLO)
        self.cohort = SiteCohort(agreement, roster, exchange, self.state, nobody)
        self.events = self.cohort.events
        self.verdict: Verdict | None = None

    @property
    def terms(self) -> Agreement:
        """What was agreed on, of the features that sums are of now: with a lift that competes beside them, or alone."""
        return self.agreement if self.features is PLAIN else wide_of(self.agreement)

    @classmethod
    def open(cls, folder: Path, make_exchange: Callable[[float], Exchange]) -> Round:
        """The round of the federation in this folder; `make_exchange` is given the deadline of a step."""
        agreement, roster = Agreement.read(folder / AGREEMENT_FILE), Roster.read(folder / ROSTER_FILE)
        agreement.require_roster(roster)
        return cls(folder, make_exchange(agreement.deadline), agreement, roster)

    def run(self) -> Path:
        """All steps, or those that are left of a round that was broken off; the result's folder."""
        self.events.asking(BEGUN, self.cohort.envelope.round, self.cohort.roster.names)
        try:
            while True:
                try:
                    return self._run()
                except CheatedError as error:
                    self._begin_again(error)
        except FedHiPError as error:
            self.events.write("failed", str(error))
            raise

    def _begin_again(self, error: CheatedError) -> None:
        """A new session without a site that is proven to have cheated; the others are those of the sum it spoilt."""
        cohort = self.cohort
        cohort.drop("unmask", error.site, ServerCode.CHEATED)
        before = self.checkpoint.again()
        proofs = {**({} if before is None else before.proofs), error.site: error.proof.hex()}
        self.checkpoint.begin_again(Restart(error.others, proofs, dict(cohort.dropped)))
        self.events.write("again", f"the round begins again without site {error.site!r}")

    def _run(self) -> Path:
        progress = self.checkpoint.read(*self.cohort.digests)
        if self.out.exists() and progress is None:
            raise RoundError(
                f"this round is finished, and {self.out} holds its result; another sum of the same sites may reveal "
                "one of them: make a new federation for it"
            )
        if progress is None:
            progress = self._new_session()
        elif self.out.exists() and not progress.without_model:  # killed with its work done
            self.checkpoint.clear()
            return self.out
        else:
            self._resume(progress)
        self.sums = RoundSums(self.cohort, self.checkpoint, progress)
        if progress.stage is SumState.MASKED:
            self.sums.unmask()
        for kind in sums_before(self.agreement):
            total = self.sums.get(kind)
            if kind is CENSUS and total is not None:
                rows, sites = sum(map(int, total)), len(self.cohort.nodes)
                width = self.agreement.layout.m
                self.events.write("census", f"{rows} rows, of {sites} sites, and {width} features")
        tried, taken = self._try_lift()
        if not taken:
            self._sum_up(PLAIN)
            self._require_no_veto()
        fitted, notes = self._logistic() if self.agreement.head == "logistic" else (None, [])
        if not taken:
            self._beta = self._choose_beta()
        message = tried if taken else self._message_to_sites(fitted)
        message = message[0], {**tried[1], **message[1]}
        if sums_follow(self.agreement):
            self.cohort.gather(progress.summed, RoundStep.PERSONALIZE, wait=False)  # also who left, if it is back
        self._personalize(progress, fitted, message, notes)
        self.events.write("finished", f"the sum of {len(progress.summed)} sites and the global model are in {self.out}")
        if waiting := progress.without_model:
            self.events.write("finished", f"without a model yet: {', '.join(waiting)}; {HAND_OUT}")
        else:
            self.checkpoint.clear()
        return self.out

    def _new_session(self) -> RoundProgress:
        """Who is here; nothing is summed yet."""
        session, cohort = secrets.token_bytes(SESSION_BYTES), self.cohort
        cohort.envelope = replace(cohort.envelope, session=session, attempt=1, round=1)
        cohort.nodes, cohort.dropped, cohort.greetings = {}, {}, {}
        for warning in self.agreement.warnings:
            self.events.write("hello", warning)
        self._hello()
        return RoundProgress(*cohort.digests, session.hex())

    def _resume(self, progress: RoundProgress) -> None:
        """Go on from the checkpoint, with the sites of its latest sum."""
        cohort = self.cohort
        progress.attempt += 1
        session, number = bytes.fromhex(progress.session), len(progress.sums)
        cohort.envelope = replace(cohort.envelope, session=session, attempt=progress.attempt, round=number)
        cohort.dropped = dict(progress.dropped)
        if self.out.exists():
            self.events.write("resumed", f"handing out the sum again, to {', '.join(progress.without_model)}")
            cohort.gather(progress.without_model, "resumed")
            return
        self.events.write("resumed", f"going on with the {progress.stage} vectors of {len(progress.latest)} sites")
        cohort.gather(progress.latest, "resumed")

    def _hello(self) -> None:
        """Who is here: known by the signature on its answer, and not by what the engine calls it."""
        cohort, again = self.cohort, self.checkpoint.again()
        wanted, body = list(cohort.roster.names), Body(version=__version__, keys=self.agreement.secure_sum)
        if again is not None:
            wanted, cohort.dropped = again.sites, dict(again.dropped)
            body |= by_site("proofs", {site: bytes.fromhex(proof) for site, proof in again.proofs.items()})
        known = {node: site for node, site in cohort.registered().items() if site in wanted}
        self.events.asking("waiting", cohort.envelope.round, known.values())
        with cohort.timed("waiting for sites"):
            here = cohort.exchange.wait_for(known)
        for site in wanted:
            if not any(known[node] == site for node in here):
                cohort.drop(RoundStep.HELLO, site, cohort.why_away(site))
        candidates = [(known[node], node) for node in sorted(here)]
        with cohort.timed(RoundStep.HELLO):
            missing_encoder = self._greet(cohort.ask(RoundStep.HELLO, candidates, always(body, {})))
        cohort.require_quorum(RoundStep.HELLO)
        if missing_encoder:
            self._send_encoder(missing_encoder)

    def _greet(self, replies: Iterable[SiteReply]) -> list[str]:
        """Take in who is here; those that lack the encoder."""
        cohort, missing_encoder = self.cohort, []
        for reply in replies:
            if reply.letter is None:
                if reply.site not in cohort.nodes:
                    cohort.drop(RoundStep.HELLO, reply.site, reply.code)
                continue
            try:
                name, signature = reply.letter.text("site"), reply.letter.data("signature")
                encoder, version = Presence(reply.letter.text("encoder")), reply.letter.text("version")
                statement = hello_statement(reply.letter.envelope, reply.site, reply.node)
                genuine = name == reply.site and verify(cohort.roster.keys[reply.site], signature, statement)
            except (MessageError, ValueError):
                cohort.drop(RoundStep.HELLO, reply.site, ServerCode.GARBAGE)
                continue
            if not genuine:
                cohort.drop(RoundStep.HELLO, reply.site, ServerCode.SIGNATURE)
                continue
            if (upgrade := which_to_upgrade(__version__, version)) is not None:
                cohort.drop(RoundStep.HELLO, reply.site, SiteCode.PROTOCOL)
                self.events.write(RoundStep.HELLO, f"site {reply.site!r}: {upgrade}", reply.site)
                continue
            if reply.site in cohort.nodes:
                self.events.write(RoundStep.HELLO, f"site {reply.site!r} {meaning(ServerCode.TWICE)}", reply.site)
                continue
            cohort.nodes[reply.site] = reply.node
            if "keys" in reply.letter.body:
                cohort.greetings[reply.site] = reply.letter
            cohort.dropped.pop(reply.site, None)
            self.events.write(RoundStep.HELLO, f"site {reply.site!r} is here", reply.site, SiteCode.OK)
            if encoder is Presence.MISSING:
                missing_encoder.append(reply.site)
        return missing_encoder

    def _send_encoder(self, sites: list[str]) -> None:
        file = EncoderFile.of(self.folder / ENCODER_FILE, self.agreement)
        self.events.write(RoundStep.ENCODER, f"sending {file.size / 1e6:.1f} MB to {len(sites)} sites")
        for offset, piece in file.pieces():
            body: Body = {"offset": offset, "size": file.size}
            sites = self.cohort.fold(
                RoundStep.ENCODER, sites, always(body, {"piece": piece}), lambda _, letter: letter.flag("whole")
            )
        self.cohort.require_quorum(RoundStep.ENCODER)

    def _require_no_veto(self) -> None:
        """Stop where more sites than agreed on find the sum worse than their own rows alone, before anything else."""
        if not VETO.count(self.agreement):
            return
        self.verdict = verdict_of(self._sum(VETO, {}, {}))
        self.events.write("veto", f"of the sites: {self.verdict}")
        if is_stopped(self.verdict, self.agreement):
            raise RoundError(
                f"{self.verdict.vetoes} of {self.verdict.clients} sites find the sum worse than their own rows alone, "
                f"and more than the agreed share ({self.agreement.veto_share:g}) stop the round; no model was made. "
                "Somebody's rows or statistics are wrong: ask the sites to look at theirs, or an auditor to"
            )

    # The head, by more sums where it needs them.

    def _logistic(self) -> tuple[Model, list[str]]:
        """The logistic head, and what is to be said of its sums."""
        fitted = LogisticSums(self.sums)
        units = self._encoding.columns.standardization
        return logistic_model(fitted.run(), self.agreement, self._summed().digest(), units), fitted.fit.notes

    def _sum_up(self, features: ModelSums) -> None:
        """The statistics of the features alone, or with the lift beside them."""
        self.features = features
        self._sum(features.statistics, {}, {})
        self._encoding = encoding_of(self.terms, self._sum(MOMENTS, {}, {}) if MOMENTS.count(self.agreement) else None)

    def _try_lift(self) -> tuple[tuple[Body, Arrays], bool]:
        """The sums with the lift that competes, if one does; and whether models are taken that have it."""
        nothing: tuple[Body, Arrays] = ({}, {})
        if self.agreement.wide is None:
            return nothing, False
        wide, moments = self.agreement.wide, self._sum(MOMENTS, {}, {})
        if not has_rows(self.agreement, moments):
            self.events.write("fit", f"the lift {wide.lift_title} does not compete: there are {rows_in(moments)} rows")
            return nothing, False
        if number := objections(self._sum(PRODUCTS, {}, {})):
            self.events.write(
                "fit",
                f"the lift {wide.lift_title} does not compete: {number} sites find that all others together have fewer "
                f"rows than the {wide.layout.m} columns there would be",
            )
            return nothing, False
        self._sum_up(WIDE)
        self._beta = self._choose_beta()
        message = self._choice_message()
        rows = int(wide.layout.counts(self._total()).sum())
        parts = choice.parts_of(message[1][self._array], wide)
        return message, choice.takes_lift(parts, wide, rows)

    @property
    def _array(self) -> str:
        """Where the sums that models are chosen by travel."""
        return choice.prefix(self.terms) + choice.ARRAY

    def _choose_beta(self) -> tuple[float, tuple[float, ...]]:
        """β, and those without each fold: by the sites' sum over the grid, where that is agreed on.

        With a lift that competes those of the features alone are chosen too.
        """
        from fedhip.core.ridge.regularization import choose_betas
        from fedhip.heads.members import kept_federation
        from fedhip.simulation.beta import scoring_betas
        from fedhip.utils.parallel import one_thread

        agreement = self.terms
        if agreement.epsilon is not None:
            return self._federation(0.0).beta, ()
        if not agreement.chooses_beta:
            if agreement.head not in ("ridge", "auto"):
                return 0.0, ()
            with one_thread():  # the same bits for a server app that is started again: sites know them
                federation = self._federation(0.0)
                gcv = agreement.beta == "gcv"
                return (federation.beta_path().minimize_gcv() if gcv else float(agreement.beta)), ()
        summed = self._sum(self.features.beta, {"sites": self.sums.progress.summed}, {})
        scores = losses_of(summed).reshape(-1, *beta_shape())
        with one_thread():
            beta, *without = choose_betas(scoring_betas(self._federation(0.0).total), scores[0])
            if agreement.kept:
                plain = kept_federation(self._federation(0.0), task_of(agreement, ()), 0.0)
                self._plain_betas = choose_betas(scoring_betas(plain.total), scores[1])
        return beta, tuple(without)

    def _message_to_sites(self, fitted: Model | None) -> tuple[Body, Arrays]:
        """What the sites need beside the sum: the head, where it does not follow, and what priors are chosen by.

        With priors, LDA's temperature, at which sites judge whose means they take; the scale of the scores, of heads
        whose scale the sites do not know; and losses and rows right over the grid of priors.
        """
        from fedhip.core.choice.calibration import choose_temperature
        from fedhip.heads.lda import TEMPERATURES

        agreement = self.agreement
        body, arrays = ({}, {}) if fitted is None else head_to_message(fitted)
        if agreement.head == "auto":
            return self._choice_message()
        if agreement.prior == "none":
            return body, arrays
        if agreement.head == "ridge":
            body["beta"] = self._beta[0]
        if agreement.head == "lda":
            losses = losses_of(self._sum(TEMPERATURE, body, arrays))
            body["temperature"] = choose_temperature(losses, TEMPERATURES)
        if agreement.head != "ridge":
            layout = agreement.layout
            rows = int(layout.counts(self._total()).sum())
            body["scale"] = scale_of_sum(self._sum(SCALE, body, arrays), rows, layout.d)
        return body, {**arrays, "priors": self._sum(PRIOR, body, arrays)}

    def _choice_message(self) -> tuple[Body, Arrays]:
        """β, and the sums that models are chosen by: each is asked for with those before it."""
        beta, folds = self._beta
        body: Body = {"beta": beta, **{f"beta-{fold}": value for fold, value in enumerate(folds)}}
        if self.terms.kept:
            body |= choice.plain_betas_body(self._plain_betas)
        arrays: Arrays = {}
        for kind in self.features.choice:
            if kind.count(self.agreement):
                found = self._sum(kind, body, arrays)
                arrays = {self._array: np.concatenate((*arrays.values(), found))}
        return body, arrays

    def _sum(self, kind: SumKind, body: Body, arrays: Arrays) -> Vector:
        found = self.sums.get(kind, dict(body), dict(arrays))
        assert found is not None  # noqa: S101  (it is kept)
        return found

    # The model.

    def _personalize(
        self, progress: RoundProgress, fitted: Model | None, message: tuple[Body, Arrays], notes: list[str]
    ) -> None:
        """The sum or the head to the sites in it that have no model; the result once they have answered or are late."""
        cohort, methods = self.cohort, self.agreement.methods
        with cohort.timed("aggregation"):
            federation, model, chosen = self._aggregate(fitted, message[1])
        rows = federation.grid.num_samples
        beta = f"; β = {federation.beta:.3g}" if self.agreement.head in ("ridge", "auto") else ""
        self.events.write("sum", f"the sum of {len(progress.summed)} sites, {rows} rows{beta}")
        body: Body = {"beta": federation.beta, "sites": progress.summed, **message[0]}
        body |= {f"beta-{fold}": beta for fold, beta in enumerate(federation.fold_betas)}
        arrays: Arrays = dict(message[1])
        if self.verdict is not None:
            arrays[VETOES] = self._sum(VETO, {}, {})
        if sums_follow(self.agreement):
            body["sum"] = str(self.sums.digest(self.features.statistics))
        else:
            arrays["total"] = self._total()

        def answered(site: str, letter: Letter) -> None:
            progress.answers[site] = accuracies_in(letter, methods)
            self.checkpoint.write(progress)

        for site in progress.summed:
            if site not in cohort.nodes:
                cohort.dropped.setdefault(site, str(ServerCode.NEVER_CAME))
        waiting = [site for site in progress.without_model if site in cohort.nodes]
        with cohort.timed("personalization"):
            cohort.fold(RoundStep.PERSONALIZE, waiting, always(body, arrays), answered)
        arrays.clear()
        write_result(
            self.out,
            federation,
            model,
            self.agreement,
            progress,
            dropped=cohort.dropped,
            notes=notes,
            verdict=self.verdict,
            seconds=cohort.seconds,
            chosen=chosen,
        )

    def _aggregate(self, fitted: Model | None, arrays: Arrays) -> tuple[Federation, Model, dict[str, Any] | None]:
        """The sum, the federation's model, and what was chosen, if anything was. Only a ridge has a β."""
        from fedhip.runs.models import global_model

        agreement, lift = self.terms, None
        if self.features is WIDE:
            lift = lift_by(self._sum(MOMENTS, {}, {}), self._sum(PRODUCTS, {}, {}), self.agreement)
        elif agreement.lift != "none":
            lift = lift_of(self._sum(MOMENTS, {}, {}), agreement)
        federation = self._federation(*self._beta)
        described = filled_table(agreement, self._sum(FILLS, {}, {}) if FILLS.count(agreement) else None)
        table = None if described is None else described.to_dict()
        if fitted is not None:
            return federation, replace(fitted, lift=lift, table=table), None
        head, chosen = self._head(federation, arrays, lift)
        model = global_model(federation, agreement.classes, agreement.backbone, head, lift, table=table)
        if agreement.head == "ridge":  # in a wide federation the sum in float64 is 200 MB, and not needed any more
            federation.release()
        return federation, model, chosen

    def _head(self, federation: Federation, arrays: Arrays, lift: Lift | None) -> tuple[Head, dict[str, Any] | None]:
        """The agreed head, and what was chosen by the sums in these arrays, if it is one that chooses."""
        agreement = self.terms
        if agreement.head != "auto":
            return fit_head(federation, agreement), None
        betas = tuple(self._plain_betas) if agreement.kept else ()
        sums = choice.sums_in(choice.parts_of(arrays[self._array], agreement), agreement, betas)
        head = fit_choice(federation, agreement, (), sums)
        return head, choice.to_dict(head, lift=lift if agreement.kept else None, before=self._tried(arrays))

    def _tried(self, arrays: Arrays) -> dict[str, Any]:
        """What is said of candidates with the lift, where those of the features alone are taken."""
        wide, array = self.agreement.wide, choice.WIDE + choice.ARRAY
        if wide is None or self.features is WIDE or array not in arrays:
            return {}
        rows = int(wide.layout.counts(self._sum(WIDE.statistics, {}, {})).sum())
        return choice.tried_first(
            choice.parts_of(arrays[array], wide), wide, rows, *bytes_of(self.agreement, tried_kinds(self.agreement))
        )

    def _total(self) -> Vector:
        """The sum of the statistics as it was kept."""
        return self._sum(self.features.statistics, {}, {})

    def _summed(self) -> GridStatistics:
        return from_vector(self._total(), self.terms.layout, self.terms.fraction_bits)

    def _federation(self, beta: float, fold_betas: tuple[float, ...] = ()) -> Federation:
        if self.agreement.epsilon is not None:  # β follows from the noise
            return released(self.agreement, self._summed(), len(self.sums.progress.summed), public_of(self.agreement))
        return federation_of_sites(self.terms, self._summed(), beta, self._encoding, fold_betas)

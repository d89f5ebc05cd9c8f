"""The server's side of the round.

    hello → [encoder] → keys → share → mask → [agree] → unmask → [more sums] → personalize → result

Before all others there is a census, a sum of the rows of each class, unless it is agreed to do without. The first sum
after it is of what the columns, or the lift, follow from, and that of the statistics the second; where the agreement
says what the columns are, the statistics' is the first.

A site that errs, is late or sends garbage is left out by name, and the round goes on while the quorum holds. Each
answer is folded into one running sum and let go, so that memory does not grow with the number of sites. The server
learns the sum, those that β, the logistic head and priors ask for after it, and, of those who tell, an accuracy.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from fedhip import __version__
from fedhip.core.errors import ColumnError, FedHiPError, GridOverflowError, StatisticsError
from fedhip.federation.agreement.agreement import FILE as AGREEMENT_FILE
from fedhip.federation.agreement.agreement import Agreement
from fedhip.federation.agreement.credentials import verify
from fedhip.federation.agreement.roster import FILE as ROSTER_FILE
from fedhip.federation.agreement.roster import Roster
from fedhip.federation.codes import ServerCode, SiteCode, meaning
from fedhip.federation.errors import MessageError, RoundError
from fedhip.federation.secure_sum import Collector
from fedhip.federation.server.checkpoint import Again, Checkpoint, Data, Progress, Stage
from fedhip.federation.server.cohort import Cohort, always
from fedhip.federation.server.later_rounds import LaterRounds
from fedhip.federation.server.logistic_rounds import LogisticRounds
from fedhip.federation.server.prior_rounds import PriorRounds
from fedhip.federation.server.result import accuracies_in, write_result
from fedhip.federation.server.summing import CheatedError, NotAgreedError, Wanted, masked_sum, plain_sum, unmasked
from fedhip.federation.site.encoder import EncoderFile, Presence
from fedhip.federation.site.personal import federation_of, fit_head
from fedhip.federation.sums.head_letter import head_letter, held_model
from fedhip.federation.sums.later import Ask, losses_of
from fedhip.federation.sums.lifts import encoding_of, lift_of, moments_length, require_possible_moments
from fedhip.federation.sums.priors import beta_shape
from fedhip.federation.sums.vector import (
    Vector,
    as_bytes,
    digest_of,
    from_bytes,
    from_vector,
    require_length,
    require_possible,
    require_room,
)
from fedhip.federation.transport.exchange import Exchange
from fedhip.federation.transport.wire import (
    SESSION_BYTES,
    Arrays,
    Body,
    Envelope,
    Letter,
    Step,
    by_site,
    hello_statement,
    which_to_upgrade,
)

if TYPE_CHECKING:
    from fedhip.core.exact.fixedpoint import GridStatistics
    from fedhip.heads.model import Model
    from fedhip.simulation.encoding import RowEncoding
    from fedhip.simulation.federation import Federation

#: Beside federation.toml, for sites that lack it.
ENCODER_FILE = "encoder.safetensors"


class Round:
    """One round of one federation, from its folder."""

    def __init__(self, folder: Path, exchange: Exchange, agreement: Agreement, roster: Roster) -> None:
        self.folder, self.agreement = folder, agreement
        self.state = folder / "state"
        self.out = self.state / "result"
        self.checkpoint = Checkpoint(self.state / "checkpoint")
        self.layout = agreement.layout
        nobody = Envelope(bytes(SESSION_BYTES), agreement.digest(), roster.digest(), Step.HELLO)
        self.cohort = Cohort(agreement, roster, exchange, self.state, nobody)
        self.diary = self.cohort.diary

    @classmethod
    def open(cls, folder: Path, make_exchange: Callable[[float], Exchange]) -> Round:
        """The round of the federation in this folder; `make_exchange` is given the deadline of a step."""
        agreement, roster = Agreement.read(folder / AGREEMENT_FILE), Roster.read(folder / ROSTER_FILE)
        agreement.require_roster(roster)
        return cls(folder, make_exchange(agreement.deadline), agreement, roster)

    def run(self) -> Path:
        """All steps, or those that are left of a round that was broken off; the result's folder."""
        try:
            while True:
                try:
                    return self._run()
                except CheatedError as error:
                    self._begin_again(error)
        except FedHiPError as error:
            self.diary.write("failed", str(error))
            raise

    def _begin_again(self, error: CheatedError) -> None:
        """A new session without a site that is proven to have cheated; the others are those of the sum it spoilt."""
        cohort = self.cohort
        cohort.drop("unmask", error.site, ServerCode.CHEATED)
        before = self.checkpoint.again()
        proofs = {**({} if before is None else before.proofs), error.site: error.proof.hex()}
        self.checkpoint.begin_again(Again(error.others, proofs, dict(cohort.dropped)))
        self.diary.write("again", f"the round begins again without site {error.site!r}")

    def _run(self) -> Path:
        progress = self.checkpoint.read(*self.cohort.digests)
        if self.out.exists():
            if progress is not None:  # killed with its work done
                self.checkpoint.clear()
                return self.out
            raise RoundError(
                f"this round is finished, and {self.out} holds its result; another sum of the same sites may reveal "
                "one of them: make a new federation for it"
            )
        if progress is None:
            progress = self._sum_of_new_session()
        else:
            self._go_on(progress)
        if progress.stage is Stage.MASKED:
            self._unmask(progress)
        sums = LaterRounds(self.cohort, self.checkpoint, progress, self._unmask)
        if Ask.STATISTICS not in progress.asks:
            self._require_columns()
            sums.statistics(self.layout.require if self.agreement.secure_sum else self._possible)
        held, notes = self._logistic(sums) if self.agreement.head == "logistic" else (None, [])
        self._beta = self._choose_beta(sums)
        told = self._told(sums, held)
        if self.agreement.has_later_sums:
            self.cohort.gather(progress.summed, Step.PERSONALIZE, wait=False)  # also who left, if it is back
        self._personalize(progress, held, told, notes)
        self.checkpoint.clear()
        self.diary.write("finished", f"the sum of {len(progress.summed)} sites and the global model are in {self.out}")
        return self.out

    # Until every vector is in.

    def _sum_of_new_session(self) -> Progress:
        session, cohort = secrets.token_bytes(SESSION_BYTES), self.cohort
        cohort.envelope = replace(cohort.envelope, session=session, attempt=1, round=1)
        cohort.nodes, cohort.dropped = {}, {}
        self.__dict__.pop("_encoding", None)  # of a session before this one
        for warning in self.agreement.warnings:
            self.diary.write("hello", warning)
        self._hello()
        wanted = self._census() if self.agreement.has_census else {}
        before = self.agreement.has_first_sum
        progress = Progress(*cohort.digests, session.hex(), 1, Stage.MASKED, [])
        progress.first = (Ask.MOMENTS if before else Ask.STATISTICS).value
        size = moments_length(self.agreement) if before else self.layout.size
        if self.agreement.secure_sum:
            body: Body = {"ask": progress.first} if wanted else {}
            collector = masked_sum(cohort, Wanted(lambda vector: require_length(vector, size), body, wanted))
            progress.sites, progress.attempt = collector.survivors(), cohort.envelope.attempt
            self._keep(progress, collector=collector.to_bytes())
        else:
            require = self._possible_moments if before else self._possible
            total, progress.sites = plain_sum(cohort, Wanted(require), size)
            progress.stage = Stage.SUMMED
            self._keep(progress, **{progress.kept_as: as_bytes(total)})
        return progress

    def _census(self) -> Arrays:
        """How many rows of each class the sites have together, as it goes along with the next question."""
        cohort, classes = self.cohort, len(self.agreement.classes)
        cohort.envelope = replace(cohort.envelope, round=0)
        total = unmasked(cohort, masked_sum(cohort, Wanted(lambda vector: require_length(vector, classes))))
        rows = sum(map(int, total))
        if not 0 < rows <= self.agreement.max_rows * len(self.agreement.sites):
            raise RoundError(f"a site sent wrong numbers under its mask: {rows} rows in all; nothing was written")
        self.diary.write("census", f"{rows} rows, of {len(cohort.nodes)} sites, and {self.layout.m} features")
        cohort.envelope = replace(cohort.envelope, round=1)
        return {"census": total}

    def _hello(self) -> None:
        """Who is here: known by the signature on its answer, and not by what the engine calls it."""
        cohort, again = self.cohort, self.checkpoint.again()
        wanted, body = list(cohort.roster.names), Body(version=__version__)
        if again is not None:
            wanted, cohort.dropped = again.sites, dict(again.dropped)
            body |= by_site("proofs", {site: bytes.fromhex(proof) for site, proof in again.proofs.items()})
        known = {node: site for node, site in cohort.registered().items() if site in wanted}
        with cohort.timed("waiting for sites"):
            here = cohort.exchange.wait_for(known)
        for site in wanted:
            if not any(known[node] == site for node in here):
                cohort.drop(Step.HELLO, site, ServerCode.NEVER_CAME)
        missing_encoder = []
        candidates = [(known[node], node) for node in sorted(here)]
        for reply in cohort.ask(Step.HELLO, candidates, always(body, {})):
            if reply.letter is None:
                if reply.site not in cohort.nodes:
                    cohort.drop(Step.HELLO, reply.site, reply.code)
                continue
            try:
                name, signature = reply.letter.text("site"), reply.letter.data("signature")
                encoder, version = Presence(reply.letter.text("encoder")), reply.letter.text("version")
                statement = hello_statement(reply.letter.envelope, reply.site, reply.node)
                genuine = name == reply.site and verify(cohort.roster.keys[reply.site], signature, statement)
            except (MessageError, ValueError):
                cohort.drop(Step.HELLO, reply.site, ServerCode.GARBAGE)
                continue
            if not genuine:
                cohort.drop(Step.HELLO, reply.site, ServerCode.SIGNATURE)
                continue
            if (upgrade := which_to_upgrade(__version__, version)) is not None:
                cohort.drop(Step.HELLO, reply.site, SiteCode.PROTOCOL)
                self.diary.write(Step.HELLO, f"site {reply.site!r}: {upgrade}", reply.site)
                continue
            if reply.site in cohort.nodes:
                self.diary.write(Step.HELLO, f"site {reply.site!r} {meaning(ServerCode.TWICE)}", reply.site)
                continue
            cohort.nodes[reply.site] = reply.node
            cohort.dropped.pop(reply.site, None)
            self.diary.write(Step.HELLO, f"site {reply.site!r} is here", reply.site)
            if encoder is Presence.MISSING:
                missing_encoder.append(reply.site)
        cohort.require_quorum(Step.HELLO)
        if missing_encoder:
            self._send_encoder(missing_encoder)

    def _send_encoder(self, sites: list[str]) -> None:
        file = EncoderFile.of(self.folder / ENCODER_FILE, self.agreement)
        self.diary.write(Step.ENCODER, f"sending {file.size / 1e6:.1f} MB to {len(sites)} sites")
        for offset, piece in file.pieces():
            body: Body = {"offset": offset, "size": file.size}
            sites = self.cohort.fold(
                Step.ENCODER, sites, always(body, {"piece": piece}), lambda _, letter: letter.flag("whole")
            )
        self.cohort.require_quorum(Step.ENCODER)

    def _possible(self, vector: Vector) -> Vector:
        """A site's vector without a mask, which can be checked here."""
        agreement = self.agreement
        try:
            require_room(self.layout.require(vector), agreement.sharers, agreement.fraction_bits)
            require_possible(vector, self.layout, agreement.fraction_bits, agreement.max_rows)
        except (GridOverflowError, StatisticsError) as error:
            raise MessageError(str(error)) from error
        return vector

    def _possible_moments(self, vector: Vector) -> Vector:
        """The same of the moments."""
        agreement = self.agreement
        try:
            require_length(vector, moments_length(agreement))
            require_room(vector, len(agreement.sites), agreement.fraction_bits)
            require_possible_moments(vector, agreement, agreement.max_rows)
        except (GridOverflowError, StatisticsError) as error:
            raise MessageError(str(error)) from error
        return vector

    # From the checkpoint.

    def _go_on(self, progress: Progress) -> None:
        cohort = self.cohort
        progress.attempt += 1
        session = bytes.fromhex(progress.session)
        cohort.envelope = replace(cohort.envelope, session=session, attempt=progress.attempt, round=progress.round)
        cohort.dropped = dict(progress.dropped)
        self.diary.write("resumed", f"going on with the {progress.stage} vectors of {len(progress.latest)} sites")
        cohort.gather(progress.latest, "resumed")

    def _unmask(self, progress: Progress) -> None:
        """Take the masks off the latest sum, and keep it; or keep that a later one is to be asked for again."""
        try:
            total = unmasked(self.cohort, Collector.from_bytes(self.checkpoint.data("collector")))
        except NotAgreedError:
            if progress.later:  # nobody has unmasked anything: this sum can be asked for again
                progress.later.pop()
                progress.stage = Stage.SUMMED
                self._keep(progress, collector=None)
            raise
        except CheatedError as error:
            if Ask.STATISTICS not in progress.asks[:-1]:
                raise
            self.cohort.drop("unmask", error.site, ServerCode.CHEATED)
            self.diary.write("again", f"sum {progress.round} is asked for again without site {error.site!r}")
            progress.later.pop()
            progress.stage, progress.again = Stage.SUMMED, error.others
            progress.proofs[error.site] = error.proof.hex()
            self._keep(progress, collector=None)
            return
        self._require_possible(progress.asks[-1], total)
        progress.stage, progress.again, progress.proofs = Stage.SUMMED, [], {}
        self._keep(progress, collector=None, **{progress.kept_as: as_bytes(total)})

    def _keep(self, progress: Progress, **data: Data | None) -> None:
        progress.dropped = dict(self.cohort.dropped)
        self.checkpoint.write(progress, **data)

    def _logistic(self, sums: LaterRounds) -> tuple[Model, list[str]]:
        """The logistic head, and what is to be said of its sums."""
        rounds = LogisticRounds(sums)
        units = self._encoding.columns.standardization
        return held_model(rounds.run(), self.agreement, self._summed().digest(), units), rounds.fit.notes

    def _choose_beta(self, sums: LaterRounds) -> tuple[float, tuple[float, ...]]:
        """β, and those without each fold: by the sites' sum over the grid, where that is agreed on."""
        from fedhip.core.ridge.path import choose_betas
        from fedhip.simulation.beta import scoring_betas
        from fedhip.utils.parallel import one_thread

        agreement = self.agreement
        if not agreement.chooses_beta:
            if agreement.head != "ridge":
                return 0.0, ()
            with one_thread():  # the same bits for a server app that is started again: sites know them
                federation = self._federation(0.0)
                gcv = agreement.beta == "gcv"
                return (federation.beta_path().minimize_gcv() if gcv else float(agreement.beta)), ()
        if sums.found(Ask.BETA) is None:
            sums.add(Ask.BETA, {"sites": sums.progress.summed}, {})
        found = sums.found(Ask.BETA)
        assert found is not None  # noqa: S101  (it was added)
        soft, federation = losses_of(found).reshape(beta_shape()), self._federation(0.0)
        if float(soft.min()) < 0.0 or float(soft.max()) > federation.grid.num_samples:
            raise RoundError(
                "a site sent wrong numbers under its mask: more rows right than there are, or fewer than none. Nobody "
                "can say which; nothing was written"
            )
        with one_thread():
            beta, *without = choose_betas(scoring_betas(federation.total), soft)
        return beta, tuple(without)

    def _told(self, sums: LaterRounds, held: Model | None) -> tuple[Body, Arrays]:
        """What the sites need beside the sum: the head, where it does not follow, and what priors are chosen by."""
        body, arrays = ({}, {}) if held is None else head_letter(held)
        if self.agreement.prior == "none":
            return body, arrays
        if self.agreement.head == "ridge":
            body["beta"] = self._beta[0]
        chosen_by = PriorRounds(sums, body, arrays).run()
        return {**body, **chosen_by[0]}, {**arrays, **chosen_by[1]}

    def _personalize(self, progress: Progress, held: Model | None, told: tuple[Body, Arrays], notes: list[str]) -> None:
        """The sum or the head to every site that is in it; the result once all have answered or are late."""
        cohort, methods = self.cohort, self.agreement.methods
        with cohort.timed("aggregation"):
            federation, model = self._aggregate(held)
        rows = federation.grid.num_samples
        beta = f"; β = {federation.beta:.3g}" if self.agreement.head == "ridge" else ""
        self.diary.write("sum", f"the sum of {len(progress.summed)} sites, {rows} rows{beta}")
        body: Body = {"beta": federation.beta, "sites": progress.summed, **told[0]}
        body |= {f"beta-{fold}": beta for fold, beta in enumerate(federation.fold_betas)}
        arrays: Arrays = dict(told[1])
        if self.agreement.has_later_sums:
            body["sum"] = digest_of(self._total())
        else:
            arrays["total"] = self._total()

        def answered(site: str, letter: Letter) -> None:
            progress.answers[site] = accuracies_in(letter, methods)
            self.checkpoint.write(progress)

        for site in progress.summed:
            if site not in cohort.nodes:
                cohort.dropped.setdefault(site, str(ServerCode.NEVER_CAME))
        waiting = [site for site in progress.summed if site in cohort.nodes and site not in progress.answers]
        with cohort.timed("personalization"):
            cohort.fold(Step.PERSONALIZE, waiting, always(body, arrays), answered)
        arrays.clear()
        write_result(
            self.out,
            federation,
            model,
            self.agreement,
            progress,
            dropped=cohort.dropped,
            notes=notes,
            seconds=cohort.seconds,
        )

    def _aggregate(self, held: Model | None) -> tuple[Federation, Model]:
        """The sum and the federation's model. Only a ridge has a β."""
        from fedhip.runs.models import global_model

        agreement = self.agreement
        lift = None
        if agreement.lift != "none":
            lift = lift_of(from_bytes(self.checkpoint.data("moments")), agreement)
        federation = self._federation(*self._beta)
        if agreement.head != "ridge":
            if held is not None:
                return federation, replace(held, lift=lift)
            head = fit_head(federation, agreement)
            return federation, global_model(federation, agreement.classes, agreement.backbone, head, lift)
        model = global_model(federation, agreement.classes, agreement.backbone, lift=lift)
        federation.release()  # in a wide federation the sum in float64 is 200 MB, and it is not needed any more
        return federation, model

    def _total(self) -> Vector:
        """The sum as it was kept; read when it is needed, for in a wide federation memory is short."""
        return from_bytes(self.checkpoint.data("total"))

    def _summed(self) -> GridStatistics:
        return from_vector(self._total(), self.layout, self.agreement.fraction_bits)

    @cached_property
    def _encoding(self) -> RowEncoding:
        """How rows became part of the sum."""
        has = self.agreement.has_first_sum
        return encoding_of(self.agreement, from_bytes(self.checkpoint.data("moments")) if has else None)

    def _federation(self, beta: float, fold_betas: tuple[float, ...] = ()) -> Federation:
        return federation_of(self.agreement, self._summed(), beta, self._encoding, fold_betas)

    def _require_columns(self) -> None:
        """Stop where a column has no units in which all its values fit: every site would refuse to go on."""
        try:
            _ = self._encoding
        except ColumnError as error:
            raise RoundError(f"{error}; nothing was written. Make a new federation when that is done") from None

    def _require_possible(self, ask: str, total: Vector) -> None:
        """Refuse a sum of statistics or moments that no data set has; other sums are looked at where they are used."""
        most = self.agreement.max_rows * len(self.agreement.sites)
        try:
            if ask == Ask.STATISTICS:
                require_possible(total, self.layout, self.agreement.fraction_bits, most)
            elif ask == Ask.MOMENTS:
                require_possible_moments(total, self.agreement, most)
        except StatisticsError as error:
            raise RoundError(
                f"a site sent wrong numbers under its mask: {error}. Nobody can say which; nothing was written"
            ) from error

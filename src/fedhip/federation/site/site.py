"""A site's side of the round: questions in, answers out, each step once; the same question gets the same answer.

    hello         who this is, signed; do agreement and roster agree, are there rows, is the encoder here? And the keys
                  of the first sum, if the server asks for them and the encoder is here
    encoder       a piece of the encoder, for a site that lacks it
    keys          what is summed is computed and checked; ephemeral keys for the secure aggregation
    share         sealed shares for the other sites
    mask          that under masks (or plain, where agreement and policy both permit it)
    agree         a signature on the list of survivors, where somebody is gone
    unmask        shares that take the masks off the sum, once
    [keys … unmask for each sum of the agreement, as the table of sums says]
    personalize   the sum comes, once; α, model and report stay here

The server is not trusted with anything but the sums. What goes wrong is a code for the server and a sentence for the
site's own log.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedhip import __version__
from fedhip.data.tables import TableRows
from fedhip.errors import FedHiPError, GridOverflowError, StatisticsError
from fedhip.federation.agreement import credentials
from fedhip.federation.agreement.agreement import Agreement
from fedhip.federation.errors import (
    FederationError,
    MessageError,
    PolicyError,
)
from fedhip.federation.secure_sum import Member, Reason, SecureSumError
from fedhip.federation.site.encoder import Presence, presence, receive
from fedhip.federation.site.folder import SiteFolder, open_site
from fedhip.federation.site.inputs import Inputs, make_vector, require_others
from fedhip.federation.site.ledger import Allowance
from fedhip.federation.site.order import begin, require_nobody_left, shared_sum
from fedhip.federation.site.personalization import ALONE, PooledLosses, ReceivedSum
from fedhip.federation.site.session_ledger import SessionLedger
from fedhip.federation.site.state import Session, SiteState
from fedhip.federation.status_codes import SiteCode, SiteRefusalError
from fedhip.federation.sums import choice
from fedhip.federation.sums.head import head_from_message
from fedhip.federation.sums.priors import check_same_head, scale_in, temperature_in
from fedhip.federation.sums.private import check_noisy_sum
from fedhip.federation.sums.ridge import beta_in, fold_betas_in
from fedhip.federation.sums.statistics import plan_of
from fedhip.federation.sums.table import (
    CENSUS,
    FILLS,
    KINDS,
    MOMENTS,
    PRIOR,
    PRODUCTS,
    STATISTICS,
    VETO,
    WIDE,
    first_number,
    sums_follow,
    sums_of,
)
from fedhip.federation.sums.traffic import bytes_of, of_models, tried_kinds
from fedhip.federation.sums.vector import Vector, digest_of, from_vector, require_length
from fedhip.federation.sums.veto import ARRAY as VETOES
from fedhip.federation.sums.veto import verdict_in
from fedhip.federation.transport.wire import (
    Arrays,
    Body,
    Letter,
    ProtocolError,
    RoundStep,
    by_site,
    context_of,
    hello_statement,
    which_to_upgrade,
    without_proofs,
)

if TYPE_CHECKING:
    from fedhip.heads.auto import ChoiceSums

Answer = tuple[Body, Arrays]

#: Sums that come back, beside that of the statistics, for the site's log.
_WHAT = {
    FILLS: "sum of values, for the means that fill missing ones",
    MOMENTS: "first sum",
    PRODUCTS: "sum of products, for a lift",
    WIDE.statistics: "sum of the statistics with a lift",
}
#: The step that must have been answered before. Under masks; without them `mask` follows `hello`.
_AFTER = {
    RoundStep.ENCODER: RoundStep.HELLO,
    RoundStep.KEYS: RoundStep.HELLO,
    RoundStep.SHARE: RoundStep.KEYS,
    RoundStep.MASK: RoundStep.SHARE,
    RoundStep.AGREE: RoundStep.MASK,
    RoundStep.UNMASK: RoundStep.MASK,
    RoundStep.PERSONALIZE: RoundStep.MASK,
}
#: The same question gets the same answer again, also in another attempt, for a server that was started anew. Of other
#: steps the latest does, in the same attempt, for an answer that was lost on its way. Any other question does not.
_AGAIN = (RoundStep.AGREE, RoundStep.UNMASK, RoundStep.PERSONALIZE)


class Site:
    """One site, from its folder and the path of its data. Keeps nothing in memory between two questions."""

    def __init__(
        self,
        folder: Path,
        data: Path,
        *,
        out: Path | None = None,
        weights: Path | None = None,
        device: str | None = None,
        allow: Allowance | None = None,
    ) -> None:
        self.allow = allow
        self.folder, self.data, self.weights, self.device = folder, data, weights, device
        self.out = out or folder / "result"
        self.state = SiteState(folder)
        self._log = self.state.write_log

    def handle(self, question: Letter, node: int) -> Letter:
        """The answer, or a code; never an exception, whose text the engine would send to the server."""
        step = question.envelope.step
        try:
            with self.state.lock():
                try:
                    body, arrays = self._answer(question, node)
                    self._log(logging.INFO, f"{step}{_of_sum(question)}: answered")
                    return question.reply(body, arrays)
                except Exception as error:
                    code = code_of(error)
                    unexpected = error if code is SiteCode.INTERNAL else None
                    self._log(logging.ERROR, f"{step}{_of_sum(question)}: refused ({code}): {error}", unexpected)
                    return question.reply(_accusation(error, code), code=code)
        except Exception:
            # The folder cannot be locked, or the log not be written: nothing was done.
            return question.reply(code=SiteCode.FOLDER)

    def note(self, text: str) -> None:
        """A line in the site's log that belongs to no step."""
        with self.state.lock():
            self._log(logging.ERROR, text)

    def _answer(self, question: Letter, node: int) -> Answer:
        site = open_site(self.folder)
        envelope = question.envelope
        if envelope.agreement != site.agreement.digest():
            raise SiteRefusalError(
                SiteCode.AGREEMENT,
                f"the server's agreement has digest {envelope.agreement[:12]}…, and the one here "
                f"{site.agreement.digest()[:12]}…; compare federation.toml with the coordinator's",
            )
        if envelope.roster != site.roster.digest():
            raise SiteRefusalError(
                SiteCode.ROSTER,
                f"the server's roster is not the one here ({site.fingerprint}); compare it by telephone",
            )
        if envelope.step is RoundStep.HELLO:
            return self._hello(site, question, node)
        session = self.state.session()
        if session is None or session.session != envelope.session or session.agreement != envelope.agreement:
            raise SiteRefusalError(
                SiteCode.SESSION, "the question is of another session than the one that began with hello"
            )
        if envelope.step is RoundStep.ENCODER:
            return self._encoder(site, session, question)
        return self._answer_once(site, session, question)

    def _answer_once(self, site: SiteFolder, session: Session, question: Letter) -> Answer:
        """The answer of a step of a sum, if it is its turn; to the very same question the same answer."""
        envelope = question.envelope
        digest = (without_proofs(question) if envelope.step is RoundStep.KEYS else question).digest()
        if (answer := self._same_answer(session, question, digest)) is not None:
            return answer
        later = envelope.round > first_number(site.agreement)
        later = later or (site.agreement.secure_sum and envelope.attempt > session.attempt)
        is_broken_off = session.answers.get(envelope.step) == (digest, None)
        if later and envelope.step is (RoundStep.KEYS if site.agreement.secure_sum else RoundStep.MASK):
            if not is_broken_off or (session.round, session.attempt) != (envelope.round, envelope.attempt):
                self._begin_sum(site, session, question, digest)
                is_broken_off = True
        elif envelope.round != session.round and envelope.step is not RoundStep.PERSONALIZE:
            raise SiteRefusalError(SiteCode.ORDER, f"{envelope.step} of sum {envelope.round} is not its turn")
        if envelope.step in session.answers and not (is_broken_off and envelope.step in (RoundStep.KEYS, *_AGAIN)):
            raise SiteRefusalError(SiteCode.ANSWERED, f"{envelope.step} was answered already, and is answered once")
        needed = (
            RoundStep.HELLO
            if envelope.step is RoundStep.MASK and not site.agreement.secure_sum
            else _AFTER[envelope.step]
        )
        later = envelope.step is RoundStep.PERSONALIZE and session.round > 1
        if needed not in session.answers and not later:
            raise SiteRefusalError(SiteCode.ORDER, f"{envelope.step} was asked before {needed}")
        handlers: dict[RoundStep, Callable[[SiteFolder, Session, Letter], Answer]] = {
            RoundStep.KEYS: self._keys,
            RoundStep.SHARE: self._share,
            RoundStep.MASK: self._mask,
            RoundStep.AGREE: self._agree,
            RoundStep.UNMASK: self._unmask,
            RoundStep.PERSONALIZE: self._personalize,
        }
        session.answers[envelope.step] = (digest, None)
        body, arrays = handlers[envelope.step](site, session, question)
        session.answers[envelope.step] = (digest, body)
        self.state.keep_sent(arrays.get("vector"))
        self.state.keep(session)  # before the answer leaves: what is not on disk could be done twice
        return body, arrays

    def _same_answer(self, session: Session, question: Letter, digest: str) -> Answer | None:
        """The answer that this very question got, if it may be given again: to the bit, so that nobody learns more.

        Where the network broke, nobody knows whether an answer arrived, and the server asks again.
        """
        step, attempt = question.envelope.step, question.envelope.attempt
        before, body = session.answers.get(step, ("", None))
        last = next(reversed(session.answers), None)
        if step == RoundStep.HELLO and last == RoundStep.KEYS and _asks_for_keys(question):
            last = step
        is_latest = attempt == session.attempt and step == last
        if body is None or before != digest or not (step in _AGAIN or is_latest):
            return None
        if step is not RoundStep.MASK:
            return body, {}
        sent = self.state.sent()
        return None if sent is None else (body, {"vector": sent})

    def _hello(self, site: SiteFolder, question: Letter, node: int) -> Answer:
        """Who this is, and what the first sum's question for keys would be answered: that is always the same."""
        body = self._greeting(site, question, node)
        session = self.state.session()
        if (
            session is not None
            and site.agreement.secure_sum
            and body["encoder"] != Presence.MISSING
            and _asks_for_keys(question)
        ):
            first = replace(question.envelope, step=RoundStep.KEYS, round=first_number(site.agreement))
            body = body | self._answer_once(site, session, Letter(first))[0]
        return body, {}

    def _greeting(self, site: SiteFolder, question: Letter, node: int) -> Body:
        """A session begins, or is asked for again."""
        envelope = question.envelope
        if (upgrade := which_to_upgrade(question.text("version"), __version__)) is not None:
            raise SiteRefusalError(SiteCode.PROTOCOL, upgrade)
        before, digest = self.state.session(), f"{question.digest()} at {node}"  # the answer is signed for a node
        if before is not None and before.session == envelope.session:
            if (answer := self._same_answer(before, question, digest)) is not None:
                return answer[0]
            raise SiteRefusalError(SiteCode.ANSWERED, "this session has begun already")
        session = Session(envelope.session, envelope.agreement, envelope.roster)
        sums = self._sums(site, session)
        if "proofs" in question.body:
            if before is None or before.agreement != envelope.agreement or before.has_total:
                raise SiteRefusalError(SiteCode.SECOND_SUM, "a proof came that is of no sum which was the last here")
            self._take_proofs(site, before, question.mapping("proofs"))
        finished = self.state.finished().get(envelope.agreement)
        once = site.agreement.secure_sum and not site.policy.allow_other_sums
        if once and finished is not None and finished not in sums.spoilt:
            raise SiteRefusalError(
                SiteCode.SECOND_SUM,
                f"a sum of this agreement was finished in session {finished[:12]}…; the difference of two sums "
                "may be one site's statistics, so that a second is refused (allow_other_sums in site.toml)",
            )
        rows = self._inputs(site, session, question).rows
        widest = site.agreement.wide or site.agreement
        if widest.lift != "none":
            plan_of(widest).require_memory(len(rows.labels))
        found = presence(site.agreement, self.weights)
        for warning in site.warnings:
            self._log(logging.WARNING, warning)
        signature = credentials.sign(site.key, hello_statement(envelope, site.name, node))
        for note in rows.notes:
            self._log(logging.WARNING, note)
        if rows.left_out:
            self._log(
                logging.WARNING,
                f"{rows.left_out} training rows are left out: their classes have fewer than "
                f"{site.policy.smallest_class} here (smallest_class in site.toml)",
            )
        session.round, session.ask = first_number(site.agreement), next(iter(sums_of(site.agreement))).name
        body: Body = {"site": site.name, "version": __version__, "encoder": found.value, "signature": signature}
        session.answers[RoundStep.HELLO] = (digest, body)
        sums.begin(rows)
        self.state.begin(session)
        return body

    def _take_proofs(self, site: SiteFolder, session: Session, proofs: Mapping[str, bytes]) -> None:
        """Write down who is proven to have spoilt the latest sum of a session: only then is it made again."""
        sums = self._sums(site, session)
        for dealer in proofs.keys() - sums.cheaters:
            _member(site, session).require_proof(dealer, proofs[dealer])
            sums.cheated(dealer)
            self._log(logging.WARNING, f"{dealer} dealt wrong shares, which is proven; the others go on without it")

    def _encoder(self, site: SiteFolder, session: Session, question: Letter) -> Answer:
        if RoundStep.KEYS in session.answers or site.agreement.encoder_digest is None:
            raise SiteRefusalError(SiteCode.ORDER, "a piece of the encoder came where none was asked for")
        piece = question.array("piece")
        if piece.dtype != np.uint8:
            raise MessageError("a piece of the encoder is not of bytes")
        agreement, digest = site.agreement, site.agreement.encoder_digest
        whole = receive(digest, question.number("offset"), question.number("size"), piece, agreement.encoder_size)
        return {"whole": whole}, {}

    def _keys(self, site: SiteFolder, session: Session, question: Letter) -> Answer:
        # Computed before the cohort is fixed: whoever cannot go on says so while it costs the others nothing.
        self.state.keep_vector(self._vector(site, session, question))
        envelope = question.envelope
        member = Member.begin(
            site=site.name,
            roster=site.roster.keys,
            sign=_signer(site),
            session=envelope.sum_session,
            context=context_of(question, *session.bound_to),
            minimum=site.policy.minimum_cohort,
            threshold=site.agreement.threshold,
        )
        keys = member.keys()
        session.member = member.to_bytes()
        return {"keys": keys}, {}

    def _share(self, site: SiteFolder, session: Session, question: Letter) -> Answer:
        member, keys = _member(site, session), question.mapping("keys")
        require_nobody_left(session, site.policy, keys)
        sealed = member.share(keys)
        self._sums(site, session).require(keys)
        session.member = member.to_bytes()
        return by_site("shares", sealed), {}

    def _mask(self, site: SiteFolder, session: Session, question: Letter) -> Answer:
        secure = question.flag("secure")
        if not secure and (site.agreement.secure_sum or site.policy.require_secure_sum):
            raise SiteRefusalError(
                SiteCode.UNMASKED, "the server asked for the statistics without a mask; nothing was sent"
            )
        if not secure:
            plain = self._vector(site, session, question)
            self._sums(site, session).take_part("plain", site.agreement.sites)
            return {}, {"vector": plain}
        vector = self.state.vector()
        if vector is None:
            raise SiteRefusalError(SiteCode.FOLDER, "what is to be masked in this session is no longer there")
        member, shares = _member(site, session), question.mapping("shares")
        require_nobody_left(session, site.policy, (site.name, *shares))
        masked, signature = member.mask(vector, shares)
        self._sums(site, session).take_part("masked", (site.name, *shares))
        if site.agreement.auditor is not None and member.opening is not None:
            self.state.keep_opening(session, member.opening.to_bytes())
        session.member = member.to_bytes()
        if session.round <= 1:
            session.cohort = [site.name, *shares]
        self.state.drop_vector()
        return {"signature": signature}, {"vector": masked}

    def _agree(self, site: SiteFolder, session: Session, question: Letter) -> Answer:
        member, survivors = _member(site, session), question.names("survivors")
        require_nobody_left(session, site.policy, survivors)
        signature = member.agree(survivors)
        self._sums(site, session).require(survivors)
        session.member = member.to_bytes()
        return {"signature": signature}, {}

    def _unmask(self, site: SiteFolder, session: Session, question: Letter) -> Answer:
        member, survivors = _member(site, session), question.names("survivors")
        require_nobody_left(session, site.policy, survivors)
        shares = member.unmask(survivors, question.mapping("signatures"))
        self._sums(site, session).take_part("unmasked", survivors)
        session.member = member.to_bytes()  # it has forgotten its secrets, and knows which sum this was
        if session.round > 1 and (left := sorted(set(session.cohort) - set(survivors))):
            self._log(logging.WARNING, f"left before sum {session.round}: {', '.join(left)}; it is of the others' rows")
        session.cohort, session.unmasked = survivors, session.answers[RoundStep.KEYS][0]
        # From here on the server may have the sum, whether it ever says so or not.
        if session.ask != CENSUS.name:
            self.state.finish(session)
        return {"shares": shares}, {}

    def _personalize(self, site: SiteFolder, session: Session, question: Letter) -> Answer:
        from fedhip.federation.site.personalization import personalize

        inputs, tried = self._of_features(session, question, self._inputs(site, session, question))
        agreement, later = inputs.agreement, sums_follow(site.agreement)
        total = inputs.total if later else require_length(question.array("total"), STATISTICS.length(agreement))
        beta, folds = beta_in(question, agreement), fold_betas_in(question, agreement)
        sites = question.names("sites")
        if site.name not in sites or not set(sites) <= set(agreement.sites):
            raise SiteRefusalError(SiteCode.TOTAL, "the sum is not one of this site and others of the agreement")
        # What comes of it, even a refusal, tells the server something of the rows here. So there is one total for an
        # agreement: this one, whether it is the sum or not. The very same may come again.
        self.state.finish(session)
        self.state.keep(session)
        if VETO.count(agreement):
            self._take_vetoes(session, inputs, question.array(VETOES))
        client, encoding = inputs.client, inputs.encoding
        sent = ""
        if agreement.epsilon is not None:
            check_noisy_sum(total, agreement)
            own = STATISTICS.vector(inputs)  # as it was sent, to the bit
            sent = from_vector(own, agreement.layout, agreement.fraction_bits).digest()
        elif not later:
            require_others(STATISTICS, total, inputs)
        grid = from_vector(total, agreement.layout, agreement.fraction_bits)
        self._tell_sum(inputs.sums.statistics.name, grid.digest(), sorted(sites))
        held = head_from_message(question, agreement, grid.digest()) if agreement.head == "logistic" else None
        chooses = agreement.head == "auto"
        pooled = _pooled(session, question, agreement) if agreement.prior == "client" and not chooses else None
        chosen = self._choice(session, question, agreement) if chooses else None
        asks = of_models([*session.done, session.ask])
        table, data = inputs.table, inputs.rows.data
        columns = data.report(table) if table is not None and isinstance(data, TableRows) else []
        received = ReceivedSum(
            grid, beta, sites, encoding, folds, held, asks, pooled, chosen, inputs.lift, table, columns,
            choice.is_in(session, agreement), tried=tried,
        )  # fmt: skip
        if agreement.epsilon is not None:
            received = replace(received, public=inputs.public, sent=sent)
        del total, inputs, data
        question.arrays.clear()  # a wide federation's sum is 100 MB, and the model needs the room
        result = personalize(self.out, client, received, site.agreement, self.data)
        if VETO.count(agreement) and result.personal is not None and result.personal.alpha == ALONE:
            self._log(logging.WARNING, "the sum is worse than this site's rows alone: the model is of these alone")
        session.member = None
        self.state.drop_sums()
        # Of what was tested, the agreed methods alone: the majority's accuracy would tell how frequent a class is.
        tested = {name: result.accuracy.get(name) for name in agreement.methods}
        told = {name: value for name, value in tested.items() if value is not None}
        # With differential privacy it would be told without noise.
        if not site.policy.tell_accuracy or not told or agreement.epsilon is not None:
            return {"told": False}, {}
        return {"told": True, "test": result.test, **told}, {}

    def _take_vetoes(self, session: Session, inputs: Inputs, vetoes: Vector) -> None:
        """What all sites find of the sum, this one included if it was in; refused where too many have a veto."""
        verdict = verdict_in(vetoes, inputs.agreement)
        last = RoundStep.UNMASK if inputs.agreement.secure_sum else RoundStep.MASK
        if VETO.name in session.done or (session.ask == VETO.name and last in session.answers):
            require_others(VETO, vetoes, inputs)
        self._log(
            logging.WARNING if verdict.is_suspicious else logging.INFO,
            f"of the sites: {verdict}; compare it with other sites'",
        )

    def _begin_sum(self, site: SiteFolder, session: Session, question: Letter, digest: str) -> None:
        """The next sum, or one again: kept before anything is computed, so that the next question finds it.

        Also the same question, if this process is killed before it has answered.
        """
        sums = self._sums(site, session)
        if "proofs" in question.body:
            if question.envelope.round != session.round or not session.has_total:
                raise SiteRefusalError(SiteCode.ORDER, "a proof came that is not of the sum under way")
            self._take_proofs(site, session, question.mapping("proofs"))
        cheaters = sums.cheaters
        session.cohort = [name for name in session.cohort if name not in cheaters]
        came = begin(session, question, site.agreement, cheaters=cheaters, spoilt=sums.is_spoilt)
        kind = shared_sum(session)
        if came is not None and kind is not None and kind.is_kept:
            self.state.finish(session)  # one total for an agreement: see `_personalize`
            self.state.keep_received(str(kind.shared_as), came)
            if kind in _WHAT:
                of = ", ".join(sorted(session.cohort))
                self._log(logging.INFO, f"the {_WHAT[kind]}, of {of}, has digest {digest_of(came)}")
        if site.agreement.secure_sum:
            session.answers[RoundStep.KEYS] = (digest, None)
        self.state.keep(session)

    def _vector(self, site: SiteFolder, session: Session, question: Letter) -> Vector:
        """What this site gives to the sum under way, once the sum that it is about is found possible."""
        inputs, kind = self._inputs(site, session, question), shared_sum(session)
        if kind is not None and kind.shared_as in question.arrays:
            require_others(kind, question.array(str(kind.shared_as)), inputs)
        return make_vector(KINDS[session.ask], inputs)

    def _of_features(self, session: Session, question: Letter, inputs: Inputs) -> tuple[Inputs, dict[str, Any]]:
        """Of which features the models are: with a lift beside them, if that competed and everybody's candidate has it.

        Else what is said of the candidates with it, if there were any.
        """
        asked = [*session.done, session.ask]
        if WIDE.statistics.name not in asked:
            return inputs, {}
        agreement = inputs.wide.agreement
        choice.check_parts("", question, session, agreement)
        parts = choice.parts_in(question, agreement)
        rows = int(agreement.layout.counts(inputs.received(WIDE.statistics)).sum())
        takes = choice.takes_lift(parts, agreement, rows)
        if takes == (STATISTICS.name in asked):
            wrong = "made sums of the features alone" if takes else "made no sums of the features alone"
            raise SiteRefusalError(SiteCode.ORDER, f"the server {wrong}, and by the shares that it tells it is not so")
        if takes:
            return inputs.wide, {}
        return inputs, choice.tried_first(
            parts, agreement, rows, *bytes_of(inputs.agreement, tried_kinds(inputs.agreement))
        )

    def _choice(self, session: Session, question: Letter, agreement: Agreement) -> ChoiceSums:
        """What models are chosen by; the last of these sums has come with no other question, so it is told."""
        choice.check_choice("", question, session, agreement)
        parts = choice.parts_in(question, agreement)
        digest = digest_of(np.concatenate(list(parts.values())))
        self._log(logging.INFO, f"the sums of the choice have digest {digest}: compare it with other sites'")
        return choice.sums_in(parts, agreement)

    def _tell_sum(self, ask: str, digest: str, sites: Sequence[str]) -> None:
        """Which sum came, and whose it is said to be: everybody must have got the same."""
        self.state.keep_sum(ask, digest, sites)
        of = f" of {', '.join(sites)}"
        self._log(logging.INFO, f"the sum of the {ask}{of} has digest {digest}: compare it with other sites'")

    def _sums(self, site: SiteFolder, session: Session) -> SessionLedger:
        return SessionLedger(site, self.state, session, self.allow)

    def _inputs(self, site: SiteFolder, session: Session, question: Letter) -> Inputs:
        return Inputs(site, self.state, session, question, self.data, self.weights, self.device)


def code_of(error: Exception) -> SiteCode:
    """What the server is told of an error."""
    if isinstance(error, SiteRefusalError):
        return error.code
    if isinstance(error, SecureSumError):
        codes = dict.fromkeys((Reason.TOO_FEW, Reason.MINIMUM), SiteCode.COHORT) | {Reason.NOT_OPENED: SiteCode.SHARES}
        return codes.get(error.reason, SiteCode.SECURE_SUM)
    kinds: tuple[tuple[type[Exception], SiteCode], ...] = (
        (ProtocolError, SiteCode.PROTOCOL),
        (MessageError, SiteCode.MALFORMED),
        (PolicyError, SiteCode.POLICY),
        (FederationError, SiteCode.FOLDER),
        (GridOverflowError, SiteCode.OVERFLOW),
        (StatisticsError, SiteCode.IMPOSSIBLE),
        (FedHiPError, SiteCode.DATA),
    )
    return next((code for kind, code in kinds if isinstance(error, kind)), SiteCode.INTERNAL)


def _accusation(error: Exception, code: SiteCode) -> Body:
    """Who dealt shares that do not open: it may be left out, as nothing is unmasked yet."""
    return {"dealer": error.site or ""} if isinstance(error, SecureSumError) and code is SiteCode.SHARES else {}


def _asks_for_keys(hello: Letter) -> bool:
    """Whether a hello is for the keys of the first sum, too; an older server asks for them afterwards."""
    return "keys" in hello.body and hello.flag("keys")


def _of_sum(question: Letter) -> str:
    """For the log, which sum a step is of; nothing for the first."""
    return f" of sum {question.envelope.round}" if question.envelope.round > 1 else ""


def _pooled(session: Session, question: Letter, agreement: Agreement) -> PooledLosses:
    """What the site's prior is chosen by, beside its own rows; of the head that it gave losses of."""
    check_same_head(question, session, agreement)
    losses = require_length(question.array("priors"), PRIOR.length(agreement))
    return PooledLosses(losses, scale_in(question, agreement), temperature_in(question, agreement))


def _signer(site: SiteFolder) -> Callable[[bytes], bytes]:
    return lambda data: credentials.sign(site.key, data)


def _member(site: SiteFolder, session: Session) -> Member:
    if session.member is None:
        raise SiteRefusalError(SiteCode.ORDER, "this session has no part in a secure sum, or no longer")
    return Member.from_bytes(session.member, _signer(site))

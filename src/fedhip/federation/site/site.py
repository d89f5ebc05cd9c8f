"""A site's side of the round: questions in, answers out, each step once.

    hello         who this is, signed; do agreement and roster agree, are there rows, is the encoder here?
    encoder       a piece of the encoder, for a site that lacks it
    keys          what is summed is computed and checked; ephemeral keys for the secure sum
                  (first a census of rows, unless it is agreed to do without; then what the columns are like, unless
                  that is agreed on; then the statistics)
    share         sealed shares for the other sites
    mask          that under masks (or plain, where agreement and policy both permit it)
    agree         a signature on the list of survivors, where somebody is gone
    unmask        shares that take the masks off the sum, once
    [keys … unmask again for each later sum, of β, of the logistic head and of priors]
    personalize   the sum comes, once; α, model and report stay here

The server is not trusted with anything but the sum. What goes wrong is a code for the server and a sentence for the
site's own log.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedhip import __version__
from fedhip.core.errors import FedHiPError, GridOverflowError, StatisticsError
from fedhip.federation.agreement import credentials
from fedhip.federation.agreement.agreement import Agreement
from fedhip.federation.codes import SiteCode, SiteRefusalError
from fedhip.federation.errors import (
    ClassNameError,
    EncoderError,
    FederationError,
    MessageError,
    PolicyError,
    SiteDataError,
)
from fedhip.federation.secure_sum import Member, Reason, SecureSumError
from fedhip.federation.server.traffic import after_statistics
from fedhip.federation.site.encoder import presence, receive
from fedhip.federation.site.folder import SiteFolder, open_site
from fedhip.federation.site.ledger import Allowance
from fedhip.federation.site.personal import Pooled, Sum
from fedhip.federation.site.rounds import (
    begin,
    beta_in,
    fold_betas_in,
    later_vector,
    require_nobody_left,
    require_same_head,
    require_same_scorers,
    scale_in,
    temperature_in,
)
from fedhip.federation.site.rows import SiteRows, lost_column, require_agreed_units, require_size
from fedhip.federation.site.state import Session, SiteState
from fedhip.federation.site.sums import SiteSums
from fedhip.federation.sums.later import Ask
from fedhip.federation.sums.lifts import (
    encoding_of,
    lift_of,
    moments_vector,
    plan_of,
    require_possible_moments,
    rows_in,
)
from fedhip.federation.sums.priors import later_length
from fedhip.federation.sums.vector import (
    Vector,
    digest_of,
    from_vector,
    require_length,
    require_possible,
    require_possible_rest,
    require_room,
    to_vector,
)
from fedhip.federation.transport.wire import (
    Arrays,
    Body,
    Letter,
    ProtocolError,
    Step,
    by_site,
    context_of,
    hello_statement,
    which_to_upgrade,
    without_proofs,
)
from fedhip.utils.files import append_private

if TYPE_CHECKING:
    from fedhip.core.lifts import Lift
    from fedhip.phases import Client, RowEncoding

Answer = tuple[Body, Arrays]

#: The step that must have been answered before. Under masks; without them `mask` follows `hello`.
_AFTER = {
    Step.ENCODER: Step.HELLO,
    Step.KEYS: Step.HELLO,
    Step.SHARE: Step.KEYS,
    Step.MASK: Step.SHARE,
    Step.AGREE: Step.MASK,
    Step.UNMASK: Step.MASK,
    Step.PERSONALIZE: Step.MASK,
}
#: The same question gets the same answer again, for a server that was started anew; any other question does not.
_AGAIN = (Step.AGREE, Step.UNMASK, Step.PERSONALIZE)


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
        if envelope.step is Step.HELLO:
            return self._hello(site, question, node)
        session = self.state.session()
        if session is None or session.session != envelope.session or session.agreement != envelope.agreement:
            raise SiteRefusalError(
                SiteCode.SESSION, "the question is of another session than the one that began with hello"
            )
        if envelope.step is Step.ENCODER:
            return self._encoder(site, session, question)
        first = 0 if site.agreement.has_census else 1
        later = envelope.round > first or (site.agreement.secure_sum and envelope.attempt > session.attempt)
        if later and envelope.step is (Step.KEYS if site.agreement.secure_sum else Step.MASK):
            self._begin_later(site, session, question)
        elif envelope.round != session.round and envelope.step is not Step.PERSONALIZE:
            raise SiteRefusalError(SiteCode.ORDER, f"{envelope.step} of sum {envelope.round} is not its turn")
        digest = (without_proofs(question) if envelope.step is Step.KEYS else question).digest()
        if envelope.step in session.answers and (body := _same_answer(session, envelope.step, digest)) is not None:
            return body, {}
        needed = Step.HELLO if envelope.step is Step.MASK and not site.agreement.secure_sum else _AFTER[envelope.step]
        later = envelope.step is Step.PERSONALIZE and session.round > 1
        if needed not in session.answers and not later:
            raise SiteRefusalError(SiteCode.ORDER, f"{envelope.step} was asked before {needed}")
        handlers: dict[Step, Callable[[SiteFolder, Session, Letter], Answer]] = {
            Step.KEYS: self._keys,
            Step.SHARE: self._share,
            Step.MASK: self._mask,
            Step.AGREE: self._agree,
            Step.UNMASK: self._unmask,
            Step.PERSONALIZE: self._personalize,
        }
        session.answers[envelope.step] = (digest, None)
        body, arrays = handlers[envelope.step](site, session, question)
        session.answers[envelope.step] = (digest, body if envelope.step in _AGAIN else None)
        self.state.keep(session)  # before the answer leaves: what is not on disk could be done twice
        return body, arrays

    def _hello(self, site: SiteFolder, question: Letter, node: int) -> Answer:
        envelope = question.envelope
        if (upgrade := which_to_upgrade(question.text("version"), __version__)) is not None:
            raise SiteRefusalError(SiteCode.PROTOCOL, upgrade)
        before = self.state.session()
        if before is not None and before.session == envelope.session:
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
        rows = self._rows(site)
        if site.agreement.lift != "none":
            plan_of(site.agreement).require_memory(len(rows.labels))
        found = presence(site.agreement, self.weights)
        for warning in site.warnings:
            self._log(logging.WARNING, warning)
        signature = credentials.sign(site.key, hello_statement(envelope, site.name, node))
        if rows.left_out:
            self._log(
                logging.WARNING,
                f"{rows.left_out} training rows are left out: their classes have fewer than "
                f"{site.policy.smallest_class} here (smallest_class in site.toml)",
            )
        session.round = 0 if site.agreement.has_census else 1
        first = Ask.MOMENTS if site.agreement.has_first_sum else Ask.STATISTICS
        session.ask = (Ask.CENSUS if site.agreement.has_census else first).value
        session.answers[Step.HELLO] = (question.digest(), None)
        sums.begin(rows)
        self.state.begin(session)
        return {"site": site.name, "version": __version__, "encoder": found.value, "signature": signature}, {}

    def _take_proofs(self, site: SiteFolder, session: Session, proofs: Mapping[str, bytes]) -> None:
        """Write down who is proven to have spoilt the latest sum of a session: only then is it made again."""
        sums = self._sums(site, session)
        for dealer in proofs.keys() - sums.cheaters:
            _member(site, session).require_proof(dealer, proofs[dealer])
            sums.cheated(dealer)
            self._log(logging.WARNING, f"{dealer} dealt wrong shares, which is proven; the others go on without it")

    def _encoder(self, site: SiteFolder, session: Session, question: Letter) -> Answer:
        if Step.KEYS in session.answers or site.agreement.encoder_digest is None:
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
            context=context_of(question, session.moments, session.total),
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
        session.cohort, session.unmasked = survivors, session.answers[Step.KEYS][0]
        # From here on the server may have the sum, whether it ever says so or not.
        if session.ask != Ask.CENSUS:
            self.state.finish(session)
        return {"shares": shares}, {}

    def _personalize(self, site: SiteFolder, session: Session, question: Letter) -> Answer:
        from fedhip.federation.site.personal import personalize
        from fedhip.federation.sums.head_letter import head_in

        agreement = site.agreement
        layout = agreement.layout
        later = agreement.has_later_sums
        total = self._kept_total(session, question) if later else layout.require(question.array("total"))
        beta, folds = beta_in(question, agreement), fold_betas_in(question, agreement)
        sites = question.names("sites")
        if site.name not in sites or not set(sites) <= set(agreement.sites):
            raise SiteRefusalError(SiteCode.TOTAL, "the sum is not one of this site and others of the agreement")
        # What comes of it, even a refusal, tells the server something of the rows here. So there is one total for an
        # agreement: this one, whether it is the sum or not. The very same may come again.
        self.state.finish(session)
        self.state.keep(session)
        client, encoding = self._client(site, session), self._encoding(session, agreement)
        if not later:
            self._require_others(site, total, client, encoding)
        grid = from_vector(total, layout, agreement.fraction_bits)
        self._tell_sum(Ask.STATISTICS, grid.digest(), sorted(sites))
        held = head_in(question, agreement, grid.digest()) if agreement.head == "logistic" else None
        pooled = _pooled(session, question, agreement) if agreement.prior == "client" else None
        lift = self._lift(session, agreement) if agreement.lift != "none" else None
        asks = after_statistics([*session.done, session.ask])
        received = Sum(grid, beta, sites, encoding, folds, held, asks, pooled, lift)
        del total
        question.arrays.clear()  # a wide federation's sum is 100 MB, and the model needs the room
        result = personalize(self.out, client, received, agreement, self.data)
        session.member = None
        self.state.drop_sums()
        # Of what was tested, the agreed methods alone: the majority's accuracy would tell how frequent a class is.
        tested = {name: result.accuracy.get(name) for name in agreement.methods}
        told = {name: value for name, value in tested.items() if value is not None}
        if not site.policy.tell_accuracy or not told:
            return {"told": False}, {}
        return {"told": True, "test": result.test, **told}, {}

    def _begin_later(self, site: SiteFolder, session: Session, question: Letter) -> None:
        """A sum after the first, or one again: kept before anything is computed, so that the next question finds it."""
        sums = self._sums(site, session)
        if "proofs" in question.body:
            if question.envelope.round != session.round or Ask.STATISTICS not in session.done:
                raise SiteRefusalError(SiteCode.ORDER, "a proof came that is not of the sum under way")
            self._take_proofs(site, session, question.mapping("proofs"))
        cheaters = sums.cheaters
        session.cohort = [name for name in session.cohort if name not in cheaters]
        told = begin(session, question, site.agreement, spoilt=sums.is_spoilt)
        if session.round == 1 and site.agreement.has_census:
            self._require_census(site, require_length(question.array("census"), len(site.agreement.classes)))
        if told is not None:
            self.state.finish(session)  # one total for an agreement: see `_personalize`
            keep = self.state.keep_moments if session.ask == Ask.STATISTICS else self.state.keep_total
            keep(told)
            if session.ask == Ask.STATISTICS:
                of = ", ".join(sorted(session.cohort))
                self._log(logging.INFO, f"the first sum, of {of}, has digest {digest_of(told)}")
        self.state.keep(session)
        if session.ask == Ask.BETA and site.agreement.secure_sum:
            require_same_scorers(session, question, cheaters)

    def _vector(self, site: SiteFolder, session: Session, question: Letter) -> Vector:
        """What this site gives to the sum under way."""
        if session.ask == Ask.CENSUS:
            return self._rows(site).census(len(site.agreement.classes))
        if session.ask == Ask.MOMENTS:
            return self._moments(site)
        if session.ask == Ask.STATISTICS and session.moments is not None:
            self._require_others_moments(site, session)
        client = self._client(site, session)
        encoding = self._encoding(session, site.agreement)
        if session.ask == Ask.STATISTICS:
            return self._statistics(site, client, encoding)
        total = self._kept_total(session, question)
        if "total" in question.arrays:
            self._require_others(site, total, client, encoding)
        return later_vector(session, question, site.agreement, total, client, encoding)

    def _require_others(self, site: SiteFolder, total: Vector, client: Client, encoding: RowEncoding) -> None:
        """Refuse a sum that, less what this site gave to it, is no sum of the others."""
        agreement = site.agreement
        others, layout = len(agreement.sites) - 1, agreement.layout
        rest = total - to_vector(encoding.statistics(client, layout.d))
        # Of those who are left at least the threshold are in it, each with a row.
        least = agreement.threshold - 1 if agreement.secure_sum else 0
        try:
            require_possible_rest(rest, layout, agreement.fraction_bits, least, others * agreement.max_rows)
        except StatisticsError as error:
            raise SiteRefusalError(
                SiteCode.TOTAL, f"the sum that came does not fit this site's rows: {error}"
            ) from error

    def _require_census(self, site: SiteFolder, census: Vector) -> None:
        """Go on only if the rows of the others are possible, and at least as many as the features."""
        agreement = site.agreement
        rest = (census - self._rows(site).census(len(agreement.classes))).view(np.int64)
        rows, others = sum(map(int, rest)), len(agreement.sites) - 1
        if int(rest.min()) < 0 or not agreement.threshold - 1 <= rows <= others * agreement.max_rows:
            raise SiteRefusalError(
                SiteCode.TOTAL, "the census that came, less this site's own rows, is that of no rows"
            )
        everybody = sum(map(int, census.view(np.int64)))
        self._log(
            logging.INFO,
            f"by the census the others have {rows} training rows, and with this site's all have {everybody}: compare "
            "both with other sites",
        )
        _require_enough(agreement, rows)

    def _require_others_moments(self, site: SiteFolder, session: Session) -> None:
        """The same of the first sum."""
        agreement = site.agreement
        rest = self._kept_moments(session) - moments_vector(self._raw_client(site), agreement)
        if agreement.has_census:  # a site may have left since
            _require_enough(agreement, rows_in(rest))
        try:
            require_possible_moments(rest, agreement, (len(agreement.sites) - 1) * agreement.max_rows)
        except StatisticsError as error:
            raise SiteRefusalError(
                SiteCode.TOTAL, f"the first sum that came, less what this site gave to it, is that of no rows: {error}"
            ) from error

    def _tell_sum(self, ask: str, digest: str, sites: Sequence[str]) -> None:
        """Which sum came, and whose it is said to be: everybody must have got the same."""
        self.state.keep_sum(ask, digest, sites)
        of = f" of {', '.join(sites)}"
        self._log(logging.INFO, f"the sum of the {ask}{of} has digest {digest}: compare it with other sites'")

    def _kept_total(self, session: Session, question: Letter) -> Vector:
        """The sum of the statistics, which came with the first of the later sums."""
        if question.text("sum") != session.total:
            raise SiteRefusalError(
                SiteCode.TOTAL, "the server speaks of another sum than the one that came, or of none"
            )
        total = self.state.total()
        if total is None or digest_of(total) != session.total:
            raise SiteRefusalError(SiteCode.FOLDER, "the sum of the statistics is no longer there, or damaged")
        return total

    def _sums(self, site: SiteFolder, session: Session) -> SiteSums:
        return SiteSums(site, self.state, session, self.allow)

    def _rows(self, site: SiteFolder) -> SiteRows:
        return SiteRows.read(self.data, site.name, site.agreement, site.policy)

    def _raw_client(self, site: SiteFolder) -> Client:
        client = self._rows(site).client(
            site.agreement, cache=self.state.cache, weights=self.weights, device=self.device
        )
        require_size(client.train[0], site.agreement)
        return client

    def _client(self, site: SiteFolder, session: Session) -> Client:
        """The site's rows as features of the agreed width; lifted, where that is agreed on."""
        from fedhip.lifting import lift_clients

        client = self._raw_client(site)
        if site.agreement.lift == "none":
            return client
        return lift_clients(self._lift(session, site.agreement), [client])[0]

    def _lift(self, session: Session, agreement: Agreement) -> Lift:
        """What everybody lifts by."""
        return lift_of(self._kept_moments(session), agreement)

    def _encoding(self, session: Session, agreement: Agreement) -> RowEncoding:
        """How rows become part of the sum of the statistics."""
        return encoding_of(agreement, self._kept_moments(session) if agreement.has_first_sum else None)

    def _kept_moments(self, session: Session) -> Vector:
        """The first sum, which came with the question for the statistics."""
        if session.moments is None:
            raise SiteRefusalError(SiteCode.ORDER, "the sum that says what the columns are has not come")
        moments = self.state.moments()
        if moments is None or digest_of(moments) != session.moments:
            raise SiteRefusalError(
                SiteCode.FOLDER, "the sum that says what the columns are is no longer there, or damaged"
            )
        return moments

    def _moments(self, site: SiteFolder) -> Vector:
        """Before phase 1: this site's part of what everybody knows the columns by."""
        agreement, client = site.agreement, self._raw_client(site)
        vector = moments_vector(client, agreement)
        require_room(vector, len(agreement.sites), agreement.fraction_bits)
        require_possible_moments(vector, agreement, agreement.max_rows)
        return vector

    def _statistics(self, site: SiteFolder, client: Client, encoding: RowEncoding) -> Vector:
        """Phase 1: this site's statistics as a vector, checked as nobody can check them under a mask."""
        agreement = site.agreement
        layout, bits = agreement.layout, agreement.fraction_bits
        if agreement.columns != "sum" and agreement.lift == "none":
            require_agreed_units(encoding, client)
        elif agreement.lift == "none" and (lost := lost_column(encoding, client)) is not None:
            self._log(logging.WARNING, lost)
        vector = to_vector(encoding.statistics(client, layout.d))
        require_room(vector, agreement.sharers, bits)
        require_possible(vector, layout, bits, agreement.max_rows)
        return vector

    def _log(self, level: int, text: str, error: Exception | None = None) -> None:
        """A line in the site's own log; the engine's logs may be read by others."""
        # A few words of it may be the server's: they are to make no lines of their own, and no colours.
        text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
        logger = logging.Logger("fedhip.site")
        with TextIOWrapper(append_private(self.state.log), "utf-8", errors="backslashreplace") as file:
            handler = logging.StreamHandler(file)
            handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
            logger.addHandler(handler)
            logger.log(level, text, exc_info=error)


def _require_enough(agreement: Agreement, rows: int) -> None:
    m = agreement.layout.m
    if rows < m:
        raise SiteRefusalError(
            SiteCode.FEW_ROWS,
            f"the other sites have {rows} training rows together, and there are {m} features: a sum of so few can be "
            "taken apart into rows. Take more rows or fewer features, or agree on few_rows and allow it in site.toml",
        )


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
        (ClassNameError, SiteCode.CLASSES),
        (SiteDataError, SiteCode.DATA),
        (EncoderError, SiteCode.ENCODER),
        (FederationError, SiteCode.FOLDER),
        (GridOverflowError, SiteCode.OVERFLOW),
        (StatisticsError, SiteCode.IMPOSSIBLE),
        (FedHiPError, SiteCode.DATA),
    )
    return next((code for kind, code in kinds if isinstance(error, kind)), SiteCode.INTERNAL)


def _accusation(error: Exception, code: SiteCode) -> Body:
    """Who dealt shares that do not open: it may be left out, as nothing is unmasked yet."""
    return {"dealer": error.site or ""} if isinstance(error, SecureSumError) and code is SiteCode.SHARES else {}


def _of_sum(question: Letter) -> str:
    """For the log, which sum a step is of; nothing for the first."""
    return f" of sum {question.envelope.round}" if question.envelope.round > 1 else ""


def _pooled(session: Session, question: Letter, agreement: Agreement) -> Pooled:
    """What the site's prior is chosen by, beside its own rows; of the head that it gave losses of."""
    require_same_head(session, question, agreement)
    losses = require_length(question.array("priors"), later_length(Ask.PRIOR, agreement))
    return Pooled(losses, scale_in(question, agreement), temperature_in(question, agreement))


def _same_answer(session: Session, step: Step, digest: str) -> Body | None:
    """The answer that was given, if it may be given again and the question is the very same; None if it got none."""
    before, body = session.answers[step]
    if step not in _AGAIN or before != digest:
        raise SiteRefusalError(SiteCode.ANSWERED, f"{step} was answered already, and is answered once")
    return body


def _signer(site: SiteFolder) -> Callable[[bytes], bytes]:
    return lambda data: credentials.sign(site.key, data)


def _member(site: SiteFolder, session: Session) -> Member:
    if session.member is None:
        raise SiteRefusalError(SiteCode.ORDER, "this session has no part in a secure sum, or no longer")
    return Member.from_bytes(session.member, _signer(site))

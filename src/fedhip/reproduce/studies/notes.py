"""What stands below the tables."""

from __future__ import annotations

from collections.abc import Sequence

from fedhip.reproduce import paper
from fedhip.reproduce.bench import Bench
from fedhip.reproduce.settings import QUICK_CLASSES, QUICK_ROWS, Regime, Source
from fedhip.reproduce.studies import tuning


def is_papers_setting(bench: Bench, source: Source, regime: Regime = "paper") -> bool:
    """Whether the setting is the paper's, so that its figures can stand beside ours."""
    s = bench.settings
    return (
        source.is_the_papers
        and regime == "paper"
        and s.rounds == 200
        and s.head == "linear"
        and not s.only_local_classes
        and s.prior == "none"
        and not s.quick
    )


def quick_notes(bench: Bench) -> list[str]:
    """That it is the small version, where it is."""
    if not bench.settings.quick:
        return []
    return [
        f"QUICK: a small version with at most {QUICK_CLASSES} classes of {QUICK_ROWS} rows, few clients and few "
        f"rounds. It shows that everything runs and what the tables look like, and says nothing of how methods compare."
    ]


def backbone_notes(bench: Bench, study: str, regime: Regime = "paper") -> list[str]:
    """Where the paper's figures stand, or why they are not beside ours."""
    notes = []
    for source in bench.sources:
        made_by = source.backbone or "given features, of a backbone that is not recorded"
        if is_papers_setting(bench, source, regime):
            notes.append(
                f"{source.title}: in parentheses the paper's figures, from {paper.WHERE[study]}; one run each, "
                f"features of {paper.BACKBONE}."
            )
        elif source.name not in paper.TITLES:
            notes.append(f"{source.title}: not a data set of the paper; features: {made_by}.")
        elif source.backbone != paper.BACKBONE:
            notes.append(
                f"{source.title}: features: {made_by}. The backbone differs from the paper's ({paper.BACKBONE}): its "
                f"figures are not comparable and are not shown."
            )
        else:
            notes.append(f"{source.title}: the setting is not the paper's, so that its figures are not shown.")
    return notes


def accuracy_notes(bench: Bench, *, marks: str = "column") -> list[str]:
    """What an accuracy is."""
    s = bench.settings
    several = len(s.seeds) > 1
    notes = [
        "Accuracy in percent on the clients' test rows, unweighted mean over clients, models of the last round"
        + (
            f"; mean ± sample deviation over seeds {', '.join(map(str, s.seeds))}."
            if several
            else f"; seed {s.seeds[0]}."
        )
        + f" Bold: the best of a {marks}; underlined: the second."
    ]
    if s.only_local_classes:
        notes.append("No model names a class that the client has no training row of (all methods alike).")
    return notes


def protocol_name(bench: Bench, regime: Regime) -> str:
    """What a table or figure was made under, in a few words."""
    s = bench.settings
    return (
        ("the paper's protocol" if regime == "paper" else "tuned protocol")
        + (", own classes alone" if s.only_local_classes else "")
        + ("" if s.prior == "none" else ", with clients' priors")
    )


def prior_notes(bench: Bench) -> list[str]:
    """That answers weigh the clients' class frequencies, where they do."""
    if bench.settings.prior == "none":
        return []
    return [
        "All methods with the client's prior: calibrated scores plus the log of its smoothed class frequencies over "
        "the federation's; temperature, smoothing and prior-or-none by likelihood on training rows that the model "
        "has not seen (ridges, FedHiP's heads, FedNCM, kNN-Per and APFL: leave-one-out; pFedFDA: its halves; others: a "
        "second fit without a fifth of the rows, counted in seconds and bytes)."
    ]


def protocol_notes(bench: Bench, regime: Regime) -> list[str]:
    """How methods were run."""
    p = bench.settings.protocol(0)
    head = "a linear head" if p.head == "linear" else f"a head with {p.hidden} hidden units"
    rate = f"learning rate {p.learning_rate:g}" if regime == "paper" else "learning rate as chosen"
    notes = [
        f"Methods that train by gradients: {head}, plain SGD, batches of {p.batch}, {rate}, {p.epochs} epochs a round, "
        f"{p.rounds} rounds, all clients in every round."
    ]
    if regime == "tuned":
        notes.append(tuning.describe(bench))
    else:
        notes.append("Features as the backbone gives them; every method with its default options.")
    return notes


def list_notes(*groups: Sequence[str]) -> tuple[str, ...]:
    """All notes in order, each once."""
    return tuple(dict.fromkeys(note for group in groups for note in group))

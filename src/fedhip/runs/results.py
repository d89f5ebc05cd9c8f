"""`results.json` and `details.json`: the outcome of a round as plain values, kept up as clients come and go."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedhip import __version__
from fedhip.core.choice.calibration import common_temperature
from fedhip.heads import Head, Ridge
from fedhip.heads.round import BALANCED
from fedhip.methods import METHODS, MethodRun
from fedhip.privacy.mechanism import Mechanism
from fedhip.runs.folder import PUBLIC, SCHEMA, head_of
from fedhip.runs.measures import (
    gains_of,
    measured,
    metrics_in,
    put_gains,
    refresh_metrics,
    remove_gains,
    title_of_metric,
    written,
)
from fedhip.simulation.alone import MAJORITY
from fedhip.simulation.metrics import summarize
from fedhip.simulation.outcome import ClientResult, Outcome
from fedhip.simulation.private import PRIVATE_ALPHAS
from fedhip.simulation.tasks import METRICS as TASK_METRICS
from fedhip.simulation.tasks import summarize_metrics
from fedhip.utils.words import count, listed, points

Json = dict[str, Any]

#: The files of a run with differential privacy that follow from the sum and from what is public alone.
RELEASED = ("total.safetensors", "global.safetensors", PUBLIC)
TITLES = {
    "auto": "chosen model",
    "majority": "majority class",
    "local": "trained alone",
    "global": "global model",
    "fedhip": "personalized",
}
#: What the majority class is where there are other tasks than classes.
_MAJORITIES = {"regression": "own mean", "multilabel": "majority of labels"}
#: What the models of a run are compared with, in a sentence.
AGAINST_WORDS = {"local": "training alone", "global": "the global model"}
#: Which phases a method's time is made of.
_PHASES: dict[str, tuple[str, ...]] = {
    "majority": (),
    "local": ("models of one client alone",),
    "global": ("local training", "aggregation"),
    "fedhip": ("local training", "aggregation", "personalization"),
}


def results_of(outcome: Outcome, *, config: Json, title: str, seconds: Mapping[str, float]) -> Json:
    """results.json of a round."""
    methods = {}
    for method in outcome.methods:
        rounds, up, down = outcome.traffic(method)
        methods[method] = {
            "accuracy": {},
            "per_client": [client_entry(result, method) for result in outcome.clients],
            "rounds": rounds,
            "seconds": round(sum(outcome.seconds.get(phase, 0.0) for phase in _PHASES[method]), 3),
            "upload_bytes_per_client": up,
            "download_bytes_per_client": down,
            "temperature": outcome.temperatures.get(method),
        }
    results: Json = {
        "schema": SCHEMA,
        "fedhip": __version__,
        "title": title,
        "config": config,
        "seed": config["seed"],
        "num_clients": len(outcome.clients),
        "num_classes": outcome.federation.grid.num_classes,
        "feature_dim": outcome.federation.grid.num_features,
        "beta": outcome.beta,
        "fraction_bits": outcome.federation.grid.fraction_bits,
        "standardize": outcome.federation.standardize,
        "intercept": outcome.federation.intercept,
        "only_local_classes": bool(config.get("only_local_classes")),
        "methods": methods,
        "leave_one_out": None,
        "seconds": {phase: round(value, 3) for phase, value in {**seconds, **outcome.seconds}.items()},
        "stale": None,
    }
    return results


def add_lift(results: Json, lift: Json) -> None:
    """Say which lift the features went through; its exchange is part of every method's bytes, and no round."""
    results["lift"] = lift
    for method in results["methods"].values():
        _count(method, lift)


def add_balance(results: Json, weights: Sequence[float]) -> None:
    """Say how much a row of each class weighs; the exchange of counts is part of the bytes of those that use it."""
    sent = 8 * len(weights)
    balance = {"weights": list(weights), "upload_bytes_per_client": sent, "download_bytes_per_client": sent}
    results["balance"] = balance
    for name in BALANCED:
        if name in results["methods"]:
            _count(results["methods"][name], balance)


def _count(method: Json, exchange: Json) -> None:
    for way in ("upload", "download"):
        method[f"{way}_bytes_per_client"] += exchange[f"{way}_bytes_per_client"]


def details_of(outcome: Outcome, class_names: Sequence[str], head: type[Head] = Ridge) -> Json:
    """details.json of a round whose models are of this head."""
    return {
        "schema": SCHEMA,
        "class_names": list(class_names),
        "alphas": list(head.alphas),
        "temperatures": list(head.temperatures),
        "clients": {result.client: client_details(result) for result in outcome.clients},
        "columns": outcome.federation.encoding.columns.to_dict(),
        **({} if (targets := outcome.federation.encoding.targets) is None else {"targets": targets.to_dict()}),
        **({} if (room := outcome.federation.encoding.room) is None else {"room": room}),
        "fold_betas": list(outcome.federation.fold_betas),
        "examples": [],
        "stale": [],
    }


def privacy_entry(mechanism: Mechanism, guarantee: str | None = None) -> Json:
    """`privacy` of results.json; `released` are the files of a folder that anybody may have."""
    return {**mechanism.to_dict(), "guarantee": guarantee or mechanism.guarantee, "released": list(RELEASED)}


def add_privacy(details: Json) -> None:
    """With differential privacy nothing is summed over clients: each has a temperature of its own, and no sets."""
    details["alphas"] = list(PRIVATE_ALPHAS)
    for client in details["clients"].values():
        losses = {"global": client.pop("global_log_losses"), Ridge.method: client.pop("log_losses")}
        client["temperature"] = {method: common_temperature([found]) for method, found in losses.items()}
        client |= {"log_losses": None, "global_log_losses": None}


def rival_entry(run: MethodRun, clients: Sequence[ClientResult]) -> Json:
    """A rival in the shape of the others; `note` and `diverged` say what a table must say of it."""
    alphas = run.alphas or [None] * len(clients)
    tested = run.tested or [None] * len(clients)
    entries = [
        {
            "client": client.client,
            "train": client.train,
            "test": client.test,
            "accuracy": accuracy,
            "alpha": alpha,
            **measured(found),
        }
        for client, accuracy, alpha, found in zip(clients, run.accuracy, alphas, tested, strict=True)
    ]
    return {
        "accuracy": {},
        "per_client": entries,
        "rounds": run.rounds,
        "seconds": round(run.seconds, 3),
        "upload_bytes_per_client": run.upload_bytes_per_client,
        "download_bytes_per_client": run.download_bytes_per_client,
        "options": dict(run.options),
        "note": run.note,
        "diverged": run.diverged,
    }


def title_of(method: str, task: str = "classification") -> str:
    """What a method is called in tables."""
    if method == MAJORITY and task in _MAJORITIES:
        return _MAJORITIES[task]
    return TITLES.get(method) or (METHODS[method].title if method in METHODS else method)


def metrics_in_words(results: Json, class_names: Sequence[str] = ()) -> list[str]:
    """What the run's own models reach beside accuracy, and who gains by them, a line each."""
    own, lines = head_of(results).method, []
    method = results["methods"].get(own, {})
    found = {name: kept.get("pooled", kept["mean"]) for name, kept in metrics_in(method).items() if name != "accuracy"}
    if known := {name: value for name, value in found.items() if value is not None}:
        words = [f"{title_of_metric(name, class_names)} {written(name, value)}" for name, value in known.items()]
        lines.append(f"{title_of(own)}: {', '.join(words)}")
    return lines + gains_in_words(results)


def gains_in_words(results: Json) -> list[str]:
    """Who gains by the run's own models against training alone and the global model, a line each."""
    lines, real = [], results.get("task") == "regression"
    shown, unit = (saved, "of absolute error saved") if real else (points, "points")
    for other, gain in (results.get("gains") or {}).items():
        if gain["mean"] is None:
            continue
        ends = "" if gain["low"] is None else f" (95 % interval {shown(gain['low'])} to {shown(gain['high'])})"
        named = [
            f"{listed([*map(repr, names[:5]), *([f'{len(names) - 5:,} others'] if len(names) > 5 else [])])} {which}"
            for which, names in (("better", gain["gains_beyond_chance"]), ("worse", gain["loses_beyond_chance"]))
            if names
        ]
        lines.append(
            f"against {AGAINST_WORDS[other]}: {shown(gain['mean'])} {unit}{ends}; {gain['better']} of "
            f"{count(len(gain['per_client']), 'client')} better, {gain['worse']} worse; significant"
            f"{': ' + ', '.join(named) if named else ' for no single client'}"
        )
    return lines


def saved(value: float) -> str:
    """An error that is saved, in the target's units, with its sign."""
    return f"{value:+.3g}".replace("-", "−") if value else "0"


def client_entry(result: ClientResult, method: str, own: str = Ridge.method) -> Json:
    """A client's line in `per_client`; `own` is the method of its own model, which has an α."""
    return {
        "client": result.client,
        "train": result.train,
        "test": result.test,
        "accuracy": result.accuracy.get(method),  # rivals are not run again for a client that joins
        "alpha": result.alpha if method == own else None,
        **measured(result.tested.get(method)),
        **result.metrics.get(method, {}),
        **result.group_counts,
    }


def client_details(result: ClientResult) -> Json:
    """What else is known of a client."""
    personal, real = result.personal, bool(result.metrics) or result.is_regression
    return {
        "train_counts": result.train_counts,
        "test_counts": result.test_counts,
        "confusions": [list(confusion) for confusion in result.confusions],
        "alpha": result.alpha,
        "own": None if personal is None else personal.own,
        # The curve over α, where one was looked at; and the accuracy to be expected, for which α was chosen elsewhere.
        "loo_accuracy": None if personal is None or real else personal.curve,
        "loo_chosen": None if personal is None or real else personal.estimate,
        **({"loo_error": personal.curve, "loo_error_chosen": personal.estimate} if personal and real else {}),
        "log_losses": None if personal is None else personal.log_losses,
        "global_log_losses": None if personal is None else personal.global_log_losses,
        # What accuracies were measured with, by method; no smoothing: no prior.
        "priors": {
            method: {"temperature": prior.temperature, "smoothing": None if prior.is_none else prior.smoothing}
            for method, prior in result.priors.items()
        },
        # How far rows left out were from being right, for prediction sets: by its own model, and by the global one.
        "misses": [] if personal is None else [_short(part) for part in personal.misses],
        "miss_scale": 1.0 if personal is None else personal.miss_scale,
        "global_misses": [] if personal is None else [_short(part) for part in personal.global_misses],
        **({} if personal is None or personal.choice is None else {"choice": personal.choice.to_dict()}),
    }


def _short(values: Sequence[float]) -> list[float | None]:
    """Seven digits; what is infinite has no number in JSON."""
    return [float(f"{value:.7g}") if math.isfinite(value) else None for value in values]


def refresh(results: Json, details: Json) -> None:
    """All that sums up over clients, from what is there of each."""
    results["num_clients"] = len(details["clients"])
    for method in results["methods"].values():
        entries = method["per_client"]
        method["accuracy"] = summarize([e["accuracy"] for e in entries], [e["test"] for e in entries])
    refresh_metrics(results)
    if (task := results.get("task", "classification")) != "classification":
        for method in results["methods"].values():
            for name, found in summarize_metrics(method["per_client"], TASK_METRICS[task]).items():
                method[name] = {**found, "low": None, "high": None, **method.get(name, {})}
    curves = [c["loo_accuracy"] for c in details["clients"].values() if c["loo_accuracy"] is not None]
    chosen = [c["loo_chosen"] for c in details["clients"].values() if c["loo_chosen"] is not None]
    results["leave_one_out"] = (
        {
            "alphas": details["alphas"] if curves else [],
            "accuracy": np.mean(curves, axis=0).tolist() if curves else [],
            "chosen": float(np.mean(chosen)),
        }
        if chosen
        else None
    )
    errors = [c["loo_error"] for c in details["clients"].values() if c.get("loo_error") is not None]
    chosen_errors = [c["loo_error_chosen"] for c in details["clients"].values() if "loo_error_chosen" in c]
    if chosen_errors:
        results["leave_one_out_error"] = {
            "alphas": details["alphas"] if errors else [],
            "error": np.mean(errors, axis=0).tolist() if errors else [],
            "chosen": float(np.mean(chosen_errors)),
        }
    details["temperature"] = {
        head_of(results).method: _temperature(details, "log_losses"),
        "global": _temperature(details, "global_log_losses"),
    }


def _temperature(details: Json, losses: str) -> float | None:
    """One for all clients: to one with a few easy rows its own would be nearly 0, and every answer certain."""
    return common_temperature((client[losses] for client in details["clients"].values()), details["temperatures"])


def remove_client(results: Json, details: Json, client: str) -> None:
    """Leave nothing of a client."""
    _drop_choice(results)  # the client's rows are among those it counts
    for method in results["methods"].values():
        method["per_client"] = [entry for entry in method["per_client"] if entry["client"] != client]
    remove_gains(results, client)
    details["clients"].pop(client, None)
    details["examples"] = [example for example in details["examples"] if example["client"] != client]


def _drop_choice(results: Json) -> None:
    """Forget what candidates reached: the numbers are of other clients than are there now. What was chosen stays."""
    results.pop("recommendation", None)  # of runs from before there were choices
    if "choice" in results:
        results["choice"] = {name: results["choice"][name] for name in ("features", "model", "head")}


def put_client(results: Json, details: Json, result: ClientResult) -> None:
    """Add a client, or replace what is known of it."""
    _drop_choice(results)  # it knew the client otherwise, or not at all
    own = head_of(results).method
    for method, entry in results["methods"].items():
        new = client_entry(result, method, own)
        places = [i for i, old in enumerate(entry["per_client"]) if old["client"] == result.client]
        if places:
            if method not in result.accuracy:  # nobody ran it again
                new = {**entry["per_client"][places[0]], "train": result.train, "test": result.test}
            entry["per_client"][places[0]] = new
        else:
            entry["per_client"].append(new)
    put_gains(results, [gains_of(result.client, result.tested, own)])
    details["clients"][result.client] = client_details(result)

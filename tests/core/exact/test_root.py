"""A client's statistics from a rounded square root: as near as its bits allow, a square, within its bytes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedhip.core.exact.fixedpoint import GridStatistics, decode, round_features
from fedhip.core.exact.root import MOST_BITS, root_bytes, root_numbers, root_statistics
from fedhip.errors import GridOverflowError, InputError

WIDTH, CLASSES, BITS = 12, 4, 28


def problem(rows: int, kind: str = "usual") -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(rows)
    F = rng.normal(size=(rows, WIDTH)) + rng.normal(size=WIDTH)
    labels = rng.integers(0, CLASSES, rows)
    match kind:
        case "equal rows":
            F[:] = F[:1]
        case "equal columns":
            F[:] = F[:, :1]
        case "zeros":
            F[:] = 0.0
        case "tails":
            F = rng.standard_cauchy(size=F.shape)
        case "one class":
            labels[:] = 2
    return round_features(torch.from_numpy(F), BITS), torch.from_numpy(labels)


def oracle(F: torch.Tensor, labels: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    X, Y = F.numpy(), np.eye(CLASSES)[labels.numpy()]
    return X.T @ X, X.T @ Y


KINDS = ["usual", "equal rows", "equal columns", "zeros", "tails", "one class"]


@pytest.mark.parametrize("rows", [1, 2, 7, 12, 15, 16, 40])
@pytest.mark.parametrize("kind", KINDS)
def test_with_room_enough_it_is_the_statistics(rows: int, kind: str) -> None:
    """Off by what rounding each number to the step can add to a product, and no more."""
    F, labels = problem(rows, kind)
    found = root_statistics(F, labels, CLASSES, 10**6, fraction_bits=BITS)
    exact = GridStatistics.from_data(F.numpy(), labels.numpy(), CLASSES, fraction_bits=BITS)
    assert torch.equal(found.counts, exact.counts)
    gram, cross = oracle(F, labels)
    largest = max(float(np.sqrt(np.diagonal(gram).max())), 1e-12)
    # Steps of 2^-14, or 20 bits of the largest number.
    step = max(2.0**-14, largest * 2.0**-19)
    near = 2.0 * step * largest * np.sqrt(rows + 1.0) + 1e-9
    told = decode(found)
    assert np.abs(told.gram.numpy() - gram).max() <= near
    assert np.abs(told.cross.numpy() - cross).max() <= np.sqrt(rows + 1.0) * step


@pytest.mark.parametrize("rows", [3, 9, 40])
@pytest.mark.parametrize("room", [60, 100, 200, 400])
def test_however_coarse_no_direction_is_lost(rows: int, room: int) -> None:
    """The scatter within classes, which LDA inverts, has no negative eigenvalue: the sum of rounded products would."""
    F, labels = problem(rows)
    told = decode(root_statistics(F, labels, CLASSES, room, fraction_bits=BITS))
    n = told.counts.double().clamp(min=1.0)
    within = told.gram - (told.cross / n) @ told.cross.mT
    assert float(torch.linalg.eigvalsh(within)[0]) > -1e-6
    gram, _ = oracle(F, labels)
    rounded = np.round(gram / 8.0) * 8.0
    assert rows > 3 or np.linalg.eigvalsh(rounded)[0] < 0.0  # what is compared with


@pytest.mark.parametrize("rows", [1, 5, 30])
def test_a_bit_more_is_a_step_half_as_long(rows: int) -> None:
    """The error falls with the room, about as the step does."""
    F, labels = problem(rows)
    gram, _ = oracle(F, labels)
    errors = []
    for bits in (6, 10, 14):
        room = root_bytes(rows, WIDTH, CLASSES, bits)
        told = decode(root_statistics(F, labels, CLASSES, room, fraction_bits=BITS))
        errors.append(float(np.abs(told.gram.numpy() - gram).max()))
    assert errors[1] < errors[0] / 4
    assert errors[2] < errors[1] / 4


@pytest.mark.parametrize("rows", [1, 5, 30])
@pytest.mark.parametrize("kind", ["usual", "tails", "one class"])
def test_what_is_sent_fits_and_is_all_there_is(rows: int, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Written down bit by bit and read again: within the room, and the same statistics."""
    sent: list[tuple[torch.Tensor, int]] = []
    plain = torch.round

    def seen(values: torch.Tensor) -> torch.Tensor:
        rounded = plain(values)
        if not sent:  # the first that is rounded is A
            sent.append((rounded, len(rounded)))
        return rounded

    F, labels = problem(rows, kind)
    room = root_bytes(rows, WIDTH, CLASSES, 9)
    monkeypatch.setattr(torch, "round", seen)
    found = root_statistics(F, labels, CLASSES, room, fraction_bits=BITS)
    monkeypatch.undo()
    ((A, height),) = sent
    classes = len(set(labels.tolist()))
    bits = 8 * (4 * CLASSES + 2 + height)
    for at, row in enumerate(A):
        # Below the diagonal of the triangle nothing is sent, and there is nothing.
        start = max(0, at - classes)
        assert not bool(row[:start].any())
        top = int(row.abs().max())
        bits += (top.bit_length() + 1 if top else 0) * (WIDTH - start)
    assert bits <= 8 * room
    assert (
        root_numbers(rows, WIDTH, CLASSES) >= sum(WIDTH - max(0, at - classes) for at in range(height)) or rows > WIDTH
    )
    # Whole multiples of one step: what is on the grid is the square of what was sent.
    shift = [s for s in range(40, -90, -1) if torch.equal((A.mT @ A) * 2.0**s, found.gram.double())]
    assert shift
    assert all(s % 2 == 0 for s in shift[:1])


def test_the_same_rows_give_the_same_bits_and_sums_are_exact() -> None:
    F, labels = problem(40)
    halves = [root_statistics(F[at], labels[at], CLASSES, 300, fraction_bits=BITS) for at in (slice(17), slice(17, 40))]
    again = root_statistics(F[:17], labels[:17], CLASSES, 300, fraction_bits=BITS)
    assert again == halves[0]
    assert halves[0] + halves[1] == halves[1] + halves[0]
    assert (halves[0] + halves[1]) - halves[1] == halves[0]


def test_one_row_out_of_all_proportion_costs_the_others_little() -> None:
    """Its own row of the root takes more bits, and no other: the others keep their step, or nearly."""
    F, labels = problem(30)
    room = root_bytes(30, WIDTH, CLASSES, 12)
    errors = []
    for factor in (1.0, 1000.0):
        G = F.clone()
        G[0] *= factor
        told = decode(root_statistics(G, labels, CLASSES, room, fraction_bits=BITS))
        gone = torch.eye(WIDTH, dtype=torch.float64) - torch.outer(F[0], F[0]) / F[0].square().sum()
        difference = gone @ (told.gram - G.mT @ G) @ gone
        errors.append(float(difference.abs().max()))
    assert errors[1] < 32 * errors[0]


def test_what_does_not_fit_is_said() -> None:
    F, labels = problem(30)
    with pytest.raises(InputError, match="there are no rows"):
        root_statistics(F[:0], labels[:0], CLASSES, 1000, fraction_bits=BITS)
    F[3, 2] = torch.nan
    with pytest.raises(InputError, match="client 'a'"):
        root_statistics(F, labels, CLASSES, 1000, fraction_bits=BITS, client="a")
    F[3, 2] = 0.0
    with pytest.raises(InputError, match="hold nothing of"):
        root_statistics(F, labels, CLASSES, 20, fraction_bits=BITS)
    with pytest.raises(GridOverflowError, match="client 'a'"):
        root_statistics(F * 1e9, labels, CLASSES, 1000, fraction_bits=BITS, client="a")
    assert MOST_BITS == 21

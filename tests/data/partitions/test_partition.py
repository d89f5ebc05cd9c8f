from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedhip.data import Partition, client_parts, list_partitions, make_partition, split_clients, split_of
from fedhip.errors import InputError
from tests.drawing import examples

SCHEMES = ("dirichlet", "dirichlet-unbalanced", "shards", "iid", "quantity")
LABELS = np.repeat(np.arange(20), 150)


def entropy(partition: Partition, labels: NDArray[np.int64] = LABELS) -> float:
    """Mean over clients of the entropy of their classes."""
    total = 0.0
    for rows in partition.rows:
        share = np.unique(labels[rows], return_counts=True)[1] / len(rows)
        total -= float((share * np.log(share)).sum())
    return total / partition.num_clients


@st.composite
def problems(draw: st.DrawFn) -> dict[str, Any]:
    scheme = draw(st.sampled_from(SCHEMES))
    labels = draw(st.lists(st.integers(0, 9), min_size=1, max_size=120))
    shards = draw(st.integers(1, 3)) if scheme == "shards" else None
    clients = draw(st.integers(1, max(1, len(labels) // (shards or 1))))
    if shards is not None and clients * shards > len(labels):
        shards = 1
    problem: dict[str, Any] = {"labels": labels, "scheme": scheme, "num_clients": clients}
    problem["min_rows"] = draw(st.integers(1, len(labels) // clients))
    problem["seed"] = draw(st.integers(0, 2**32))
    if shards is not None:
        problem["shards_per_client"] = shards
    elif scheme != "iid":
        problem["concentration"] = draw(st.sampled_from([5e-324, 1e-300, 1e-3, 0.1, 1.0, 100.0, 1e308]))
    return problem


@given(problems())
@examples(300)
def test_every_row_has_one_client_and_every_client_enough_rows(problem: dict[str, Any]) -> None:
    partition = make_partition(**problem)
    rows = np.concatenate(partition.rows)
    assert sorted(rows.tolist()) == list(range(len(problem["labels"])))
    assert partition.num_clients == problem["num_clients"] == len(partition.rows)
    assert min(map(len, partition.rows)) >= problem["min_rows"]
    assert partition.sizes.tolist() == [len(r) for r in partition.rows]
    again = make_partition(**problem)
    np.testing.assert_array_equal(again.assignment, partition.assignment)
    assert again.sha256 == partition.sha256


@given(problems(), st.sampled_from([0.5, 0.8, 0.9, 0.01, 0.99]))
@examples(200)
def test_split_is_as_documented_for_every_client(problem: dict[str, Any], fraction: float) -> None:
    partition = make_partition(**problem)
    parts = client_parts(partition, split_clients(partition, fraction))
    for rows, (train, test) in zip(partition.rows, parts, strict=True):
        assert sorted([*train, *test]) == rows.tolist()
        n = len(rows)
        expected = min(max(int(fraction * n + 0.5), 1), max(n - 1, 1))
        assert (len(train), len(test)) == (expected, n - expected)


def test_split_of_small_clients() -> None:
    labels = np.zeros(15, dtype=int)
    partition = make_partition(labels, "natural", clients=np.repeat([1, 2, 3, 4, 5], [1, 2, 3, 4, 5]))
    sizes = [(len(train), len(test)) for train, test in client_parts(partition, split_clients(partition))]
    assert sizes == [(1, 0), (1, 1), (2, 1), (3, 1), (4, 1)]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_seed_changes_partition_and_split(scheme: str) -> None:
    one, two = (make_partition(LABELS, scheme, 10, seed=seed) for seed in (1, 2))
    assert one.sha256 != two.sha256
    assert not np.array_equal(split_clients(one), split_clients(one, seed=2))
    np.testing.assert_array_equal(split_clients(one), split_clients(one, seed=1))


def test_the_split_of_a_client_does_not_depend_on_the_others() -> None:
    names = np.array(["a", "b", "c"]).repeat([40, 55, 70])[np.random.default_rng(0).permutation(165)]
    whole = make_partition(np.zeros(165, dtype=int), "natural", clients=names)
    without = make_partition(np.zeros(110, dtype=int), "natural", clients=names[names != "b"])
    np.testing.assert_array_equal(split_clients(whole)[names != "b"], split_clients(without))


def test_split_does_not_follow_the_order_of_rows() -> None:
    """In every tenth of the rows a fifth is for testing, within four standard deviations."""
    split = split_clients(make_partition(np.zeros(40_000, dtype=int), "iid", 2))
    assert np.abs(split.reshape(10, -1).mean(axis=1) - 0.2).max() < 4 * np.sqrt(0.2 * 0.8 / 4000)


def test_no_class_is_always_the_last_to_be_spread() -> None:
    """What is left at the end is forced on clients, so a fixed order would favour some labels."""
    labels = np.repeat(np.arange(10), 100)
    concentrated = np.zeros(10)
    for seed in range(150):
        partition = make_partition(labels, "dirichlet", 10, concentration=0.05, seed=seed)
        concentrated += ((partition.class_counts(labels, 10) / 100) ** 2).sum(axis=0) / 150
    assert np.ptp(concentrated) < 0.1, concentrated  # 0.15 in the order of labels


@pytest.mark.parametrize("scheme", ["dirichlet", "dirichlet-unbalanced"])
def test_entropy_grows_with_concentration(scheme: str) -> None:
    means = [
        np.mean([entropy(make_partition(LABELS, scheme, 20, concentration=c, seed=s)) for s in range(5)])
        for c in (0.01, 0.1, 1.0, 10.0, 1000.0)
    ]
    # The last step nears the limit log 20; the standard error of these means is below 0.01 there.
    assert all(np.diff(means) > 0.03), means
    assert means[-1] > 0.98 * np.log(20)


@pytest.mark.parametrize("scheme", ["dirichlet", "dirichlet-unbalanced"])
def test_skew_does_not_fall_as_concentration_goes_to_zero(scheme: str) -> None:
    labels = np.repeat(np.arange(100), 100)
    entropies, classes = [], []
    for concentration in (1.0, 0.1, 0.01, 1e-3, 1e-4, 1e-6, 1e-12, 5e-324):
        made = [make_partition(labels, scheme, 50, concentration=concentration, seed=seed) for seed in range(3)]
        for partition in made:
            assert sorted(np.concatenate(partition.rows).tolist()) == list(range(10_000))
        entropies.append(np.mean([entropy(partition, labels) for partition in made]))
        classes.append(np.mean([(partition.class_counts(labels, 100) > 0).sum(axis=1).mean() for partition in made]))
    # Below 1e-4 each class has one winner and only chance differs; rows cut at a client's cap add fractions.
    assert (np.diff(entropies) < 0.05).all(), entropies
    assert (np.diff(classes) < 0.1).all(), classes
    assert classes[-1] < 3


def test_quantity_gives_all_to_one_as_concentration_goes_to_zero() -> None:
    largest = [
        np.mean([make_partition(LABELS, "quantity", 20, concentration=c, seed=s).sizes.max() for s in range(20)])
        for c in (1.0, 0.1, 0.01, 1e-3, 1e-6)
    ]
    assert (np.diff(largest) >= 0).all(), largest
    assert largest[-1] == 3000 - 19  # the others have the least there is, one row each


def literature(labels: NDArray[np.int64], clients: int, concentration: float, seed: int) -> list[NDArray[np.int64]]:
    """The loop of the papers: a client that has N/K rows gets none of the classes to come."""
    random = np.random.default_rng(seed)
    held: list[list[int]] = [[] for _ in range(clients)]
    for label in np.unique(labels):
        rows = random.permutation(np.flatnonzero(labels == label))
        share = random.dirichlet(np.full(clients, concentration))
        share *= [len(own) < len(labels) / clients for own in held]
        cuts = (np.cumsum(share / share.sum()) * len(rows)).astype(int)[:-1]
        for own, more in zip(held, np.split(rows, cuts), strict=True):
            own += more.tolist()
    return [np.array(own) for own in held]


@pytest.mark.parametrize("concentration", [0.1, 0.5, 1.0])
def test_capped_clients_are_as_skewed_as_in_the_literature(concentration: float) -> None:
    labels = np.repeat(np.arange(50), 200)
    ours = [
        entropy(make_partition(labels, "dirichlet", 25, concentration=concentration, seed=s), labels) for s in range(8)
    ]
    theirs = []
    for seed in range(8):
        rows = literature(labels, 25, concentration, seed)
        assignment = np.empty(len(labels), dtype=np.int64)
        for client, own in enumerate(rows):
            assignment[own] = client
        theirs.append(entropy(make_partition(labels, "natural", clients=assignment), labels))
    assert np.mean(ours) == pytest.approx(np.mean(theirs), rel=0.05)


@pytest.mark.parametrize("rows", [3000, 2999, 2981])
@pytest.mark.parametrize("concentration", [0.001, 0.1, 100.0])
def test_capped_sizes_differ_by_at_most_one(rows: int, concentration: float) -> None:
    for scheme, options in (("dirichlet", {"concentration": concentration}), ("iid", {})):
        sizes = make_partition(LABELS[:rows], scheme, 20, **options).sizes  # type: ignore[arg-type]
        assert sizes.max() - sizes.min() <= 1


def test_unbalanced_sizes_vary_as_dirichlet_says() -> None:
    """A client's share is a mean over classes of Beta(λ, (K−1)λ): its variance has a closed form."""
    clients, concentration = 10, 0.5
    sizes = np.array(
        [
            make_partition(LABELS, "dirichlet-unbalanced", clients, concentration=concentration, seed=s).sizes
            for s in range(60)
        ]
    )
    shares = sizes / len(LABELS)
    mean = 1 / clients
    expected = mean * (1 - mean) / (clients * concentration + 1) / 20
    assert shares.var() == pytest.approx(expected, rel=0.3)


def test_class_shares_have_the_dirichlet_variance() -> None:
    """Largest share of a class at λ → 0 is one client's; and at λ the second moment is (λ+1)/(Kλ+1)/K."""
    clients, concentration = 10, 0.1
    labels = np.repeat(np.arange(50), 1000)
    partition = make_partition(labels, "dirichlet-unbalanced", clients, concentration=concentration)
    shares = partition.class_counts(labels, 50) / 1000
    expected = (concentration + 1) / (clients * concentration + 1) / clients
    assert (shares**2).mean() == pytest.approx(expected, rel=0.15)


def test_iid_clients_have_the_classes_of_the_whole() -> None:
    """Chi-square of clients × classes against independence: near its degrees of freedom."""
    partition = make_partition(LABELS, "iid", 10)
    counts = partition.class_counts(LABELS, 20)
    expected = len(LABELS) / 20 / 10
    chi2 = ((counts - expected) ** 2 / expected).sum()
    freedom = 9 * 19
    assert abs(chi2 - freedom) < 4 * np.sqrt(2 * freedom)
    skewed = make_partition(LABELS, "dirichlet", 10, concentration=1.0).class_counts(LABELS, 20)
    assert ((skewed - expected) ** 2 / expected).sum() > 2 * freedom


def test_shards_limit_the_classes_of_a_client() -> None:
    for each in (1, 2, 5):
        partition = make_partition(LABELS, "shards", 20, shards_per_client=each)
        assert partition.sizes.tolist() == [150] * 20
        # A shard no longer than a class touches at most two of them.
        assert max(len(set(LABELS[rows])) for rows in partition.rows) <= 2 * each
    one = make_partition(LABELS, "shards", 20, shards_per_client=1)
    assert all(len(set(LABELS[rows])) == 1 for rows in one.rows)


def test_quantity_skews_sizes_and_not_classes() -> None:
    partition = make_partition(LABELS, "quantity", 5, concentration=0.5, min_rows=100, seed=3)
    assert partition.sizes.max() > 2 * partition.sizes.min()
    expected = partition.sizes[:, None] / 20
    chi2 = ((partition.class_counts(LABELS, 20) - expected) ** 2 / expected).sum()
    freedom = 4 * 19
    assert abs(chi2 - freedom) < 4 * np.sqrt(2 * freedom)


def test_minimum_takes_from_the_largest() -> None:
    """With the minimum, small clients have exactly it, and the largest were cut to one level."""
    options: dict[str, Any] = {"concentration": 0.05, "seed": 4}
    free = make_partition(LABELS, "quantity", 20, **options).sizes
    least = make_partition(LABELS, "quantity", 20, min_rows=100, **options).sizes
    small = free < 100
    assert small.sum() > 5
    assert (least[small] == 100).all()
    cut = free > least
    assert cut.any()
    assert least[cut].max() - least[cut].min() <= 1
    kept = ~small & ~cut
    np.testing.assert_array_equal(least[kept], free[kept])
    assert (least[kept] <= least[cut].min() + 1).all()


def test_natural_clients_keep_their_rows() -> None:
    clients = np.array(["b", "a", "b", "c"])
    partition = make_partition([0, 1, 1, 0], "natural", clients=clients)
    assert partition.clients == ("a", "b", "c")
    assert [rows.tolist() for rows in partition.rows] == [[1], [0, 2], [3]]


def test_class_counts_by_hand() -> None:
    partition = make_partition([0, 1, 1, 2], "natural", clients=[0, 0, 1, 1])
    assert partition.class_counts([0, 1, 1, 2], 4).tolist() == [[1, 1, 0, 0], [0, 1, 1, 0]]


def test_labels_need_not_be_sorted_or_complete() -> None:
    labels = np.random.default_rng(0).choice([3, 7, 9], 500)
    for scheme in SCHEMES:
        assert make_partition(labels, scheme, 7).sizes.sum() == 500


def test_schemes_are_listed() -> None:
    assert tuple(list_partitions()) == (*SCHEMES, "natural")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"concentration": 0.0}, "above 0, not 0.0"),
        ({"concentration": -1.0}, "above 0, not -1.0"),
        ({"concentration": float("nan")}, "above 0, not nan"),
        ({"concentration": float("inf")}, "above 0, not inf"),
        ({"concentration": "0.1"}, "must be a number, not '0.1'"),
        ({"scheme": "quantity", "concentration": 0}, "above 0, not 0"),
        ({"scheme": "iid", "concentration": 0.1}, "'iid' has no concentration"),
        ({"shards_per_client": 2}, "'dirichlet' has no shards_per_client"),
        ({"scheme": "shards", "shards_per_client": 0}, "at least 1, not 0"),
        ({"scheme": "shards", "shards_per_client": 1.5}, "whole number of at least 1, not 1.5"),
        ({"scheme": "shards", "shards_per_client": 31}, "10 clients with 31 shards each need 310 rows"),
        ({"scheme": "dirichelet"}, "no partition scheme 'dirichelet'; choose one of dirichlet,"),
        ({"num_clients": 301}, "301 clients cannot share 300 rows"),
        ({"num_clients": 0}, "at least 1, not 0"),
        ({"num_clients": -2}, "at least 1, not -2"),
        ({"num_clients": 2.0}, "at least 1, not 2.0"),
        ({"num_clients": None}, "needs a number of clients"),
        ({"min_rows": 0}, "min_rows must be a whole number of at least 1, not 0"),
        ({"min_rows": 31}, "need 310 rows, but there are 300; .* lower min_rows \\(--min-rows\\) to 30"),
        ({"seed": -1}, "seed must be a whole number of at least 0, not -1"),
        ({"seed": 0.5}, "seed must be"),
        ({"scheme": "natural", "num_clients": None}, "no natural clients"),
        ({"scheme": "natural", "clients": [0] * 300}, "1 natural clients, not 10"),
        ({"scheme": "natural", "num_clients": None, "clients": [0, 1]}, "2 clients for 300 rows"),
        (
            {"scheme": "natural", "num_clients": None, "clients": [0] * 299 + [1], "min_rows": 2},
            "natural client '1' has 1 rows",
        ),
        ({"labels": []}, "labels are"),
        ({"labels": [-1] * 300}, "whole numbers from 0"),
        ({"labels": [0.5] * 300}, "labels are float64"),
        ({"labels": [[0]]}, r"shape \(1, 1\)"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_impossible_partitions(options: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"labels": LABELS[:300], "scheme": "dirichlet", "num_clients": 10, **options}
    with pytest.raises(InputError, match=message):
        make_partition(**arguments)


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.1, 1.5, float("nan")])
def test_impossible_splits(fraction: float) -> None:
    with pytest.raises(InputError, match="between 0 and 1"):
        split_clients(make_partition(LABELS, "iid", 3), fraction)


def test_split_of_the_data_wins() -> None:
    partition = make_partition(LABELS, "iid", 3)
    given = np.arange(len(LABELS)) % 2
    np.testing.assert_array_equal(split_of(given, partition), given)
    assert split_of(given, partition).dtype == np.int8
    np.testing.assert_array_equal(split_of(None, partition), split_clients(partition))
    for wrong in (given[:-1], given * 2, given - 1):
        with pytest.raises(InputError, match="the data's split is int64"):
            split_of(wrong, partition)


def test_split_of_another_length() -> None:
    with pytest.raises(InputError, match="split has shape"):
        client_parts(make_partition(LABELS, "iid", 3), np.zeros(5, dtype=np.int8))


def test_sixty_thousand_rows_for_a_thousand_clients() -> None:
    labels = np.repeat(np.arange(100), 600)
    for scheme in SCHEMES:
        partition = make_partition(labels, scheme, 1000, min_rows=10)
        assert partition.sizes.min() >= 10
        assert partition.sizes.sum() == 60_000

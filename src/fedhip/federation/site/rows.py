"""A site's rows: read from its own disk, in the agreed classes, divided as `fedhip run` divides them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedhip.data import Dataset, FeatureSet, load_dataset, make_partition, read_features, split_of
from fedhip.data.one_by_one import divide_one_by_one, row_contents
from fedhip.data.tables import Description, TableRows, fill, is_table, read_described
from fedhip.errors import FedHiPError, FedHiPWarning, InputError
from fedhip.federation.agreement.agreement import Agreement
from fedhip.federation.agreement.names import class_positions
from fedhip.federation.agreement.policy import Policy
from fedhip.federation.site.encoder import find_encoder
from fedhip.federation.status_codes import SiteCode, SiteRefusalError
from fedhip.federation.sums.vector import Vector
from fedhip.utils.groups import group_numbers

if TYPE_CHECKING:
    from fedhip.simulation.client import Client
    from fedhip.simulation.encoding import RowEncoding

_LARGEST = 2.0**64


@dataclass(frozen=True)
class SiteRows:
    """Images, features or a table of one site; `labels` are numbers of the agreed classes.

    `split` is 0 (train), 1 (test), or 2: a training row of a class of which there are too few here (`smallest_class`).
    `notes` are what the site's people should know: columns that are not as the agreement describes them.
    """

    site: str
    data: Dataset | FeatureSet | TableRows
    chosen: NDArray[np.bool_]
    labels: NDArray[np.int64]
    split: NDArray[np.int8]
    notes: tuple[str, ...] = ()

    @classmethod
    def read(
        cls,
        source: Path,
        site: str,
        agreement: Agreement,
        policy: Policy,
        *,
        cache: Path | None = None,
        device: str | None = None,
    ) -> SiteRows:
        """The rows at `source`: a feature file, an image folder or an .npz of images; refused if they do not fit.

        Of an agreement on tables, a table; features of text are kept in `cache`.
        """
        notes: list[str] = []
        data = (
            _load(source, agreement)
            if agreement.table is None
            else _load_table(source, agreement, cache, device, notes)
        )
        chosen = _rows_of(site, data, source)
        labels = _agreed_labels(data, chosen, agreement, policy.class_names)
        if data.split is None and agreement.epsilon is not None:
            try:
                split = divide_one_by_one(data, agreement.seed, np.flatnonzero(chosen))
            except OSError as error:
                raise SiteRefusalError(SiteCode.DATA, f"a row cannot be read: {error}") from error
        elif data.split is None:
            # Whose rows these are, how many and the seed decide: the same division as in a run over all sites.
            whose = np.full(len(labels), site)
            groups = None if data.groups is None else data.groups[chosen]
            partition = make_partition(labels, "natural", clients=whose, seed=agreement.seed, groups=groups)
            split = split_of(None, partition)
        else:
            split = data.split[chosen].copy()
        if agreement.epsilon is None:  # else a row more could bring another one along: noise hides one
            counts = np.bincount(labels[split == 0], minlength=len(agreement.classes))
            split[(split == 0) & (counts < policy.smallest_class)[labels]] = 2
        rows = cls(site, data, chosen, labels, split, tuple(notes))
        rows._require(agreement, source)
        return rows

    def census(self, num_classes: int) -> Vector:
        """Training rows of each class."""
        return np.bincount(self.labels[self.split == 0], minlength=num_classes).astype(np.uint64)

    @property
    def left_out(self) -> int:
        """Training rows of classes of which there are too few."""
        return int((self.split == 2).sum())

    def _require(self, agreement: Agreement, source: Path) -> None:
        train = int((self.split == 0).sum())
        if train == 0:
            few = " of a class with enough rows (smallest_class in site.toml)" if self.left_out else ""
            raise SiteRefusalError(SiteCode.NO_ROWS, f"{source} has no row to train on{few}; a site needs at least one")
        if train > agreement.max_rows:
            raise SiteRefusalError(
                SiteCode.ROWS,
                f"{source} has {train} training rows, and the agreement allows {agreement.max_rows} a site (max_rows); "
                "take fewer, or agree on more",
            )
        if isinstance(self.data, TableRows):
            require_size(np.nan_to_num(self.unfilled), agreement)
        elif isinstance(self.data, FeatureSet):
            _require_width(self.data.features.shape[1], agreement, source)
            require_size(self.data.features[self.chosen][self.split == 0], agreement)
        elif agreement.backbone is None:
            raise SiteRefusalError(
                SiteCode.DATA,
                f"{source} holds images, and the agreement names no backbone: every site brings a feature file",
            )

    @property
    def unfilled(self) -> NDArray[np.float64]:
        """The training rows of a table, NaN where values are missing."""
        assert isinstance(self.data, TableRows)  # noqa: S101  (who asks has looked)
        found: NDArray[np.float64] = self.data.matrix[self.chosen][self.split == 0]
        return found

    def contents(self) -> tuple[str, Iterator[bytes]]:
        """What the training rows are, whatever becomes of them: bytes for each, and of which kind."""
        return row_contents(self.data, np.flatnonzero(self.chosen)[self.split == 0])

    def client(
        self,
        agreement: Agreement,
        *,
        cache: Path,
        weights: Path | None = None,
        device: str | None = None,
        table: Description | None = None,
    ) -> Client:
        """Its rows as features, through the agreed backbone where they are images; these are kept in `cache`.

        `table` says what missing values of a table are filled with.
        """
        from fedhip.simulation.client import Client

        if isinstance(self.data, TableRows):
            assert table is not None  # noqa: S101  (the agreement describes it)
            features: NDArray[Any] = fill(self.data.matrix.copy(), table, self.data.source)
        elif isinstance(self.data, FeatureSet):
            features = self.data.features
        else:
            features = _extract(self.data, agreement, cache, weights, device)
        rows = features if self.chosen.all() else features[self.chosen]
        train, test = self.split == 0, self.split == 1
        if self.data.groups is not None and agreement.head == "logistic":
            raise SiteRefusalError(
                SiteCode.DATA,
                "these rows have groups, and the logistic head leaves rows out one by one; agree on another head, or "
                "leave the groups out",
            )
        groups = None if self.data.groups is None else group_numbers(self.data.groups[self.chosen])
        together = (None, None) if groups is None else (groups[train], groups[test])
        return Client(self.site, (rows[train], self.labels[train]), (rows[test], self.labels[test]), *together)


def _load(source: Path, agreement: Agreement) -> Dataset | FeatureSet:
    window = None if agreement.backbone is None else agreement.backbone.window
    try:
        if source.suffix == ".safetensors" or (source.suffix == ".npz" and _holds_features(source)):
            features = read_features(source)
            if features.weights is not None:
                raise InputError(f"{source} has weights, and rows of a federation weigh alike; leave them out")
            return features
        if is_table(source):
            raise InputError(
                f"{source} is a table, and the agreement describes none; agree on one (init --columns columns.toml)"
            )
        data = load_dataset(source, allow_single=True, window=window)
    except (FedHiPError, OSError, ValueError) as error:
        raise SiteRefusalError(SiteCode.DATA, str(error)) from error
    if data.window is not None and window is None and agreement.backbone is not None:
        raise SiteRefusalError(
            SiteCode.DATA,
            f"{source} has images of more than 8 bits, and the agreement has no window: each site would find another; "
            "agree on one (init --window LOW HIGH), or save the images with 8 bits",
        )
    return data


def _load_table(
    source: Path, agreement: Agreement, cache: Path | None, device: str | None, notes: list[str]
) -> TableRows:
    """A table by the agreed description; `notes` gets what is not as it says."""
    from fedhip.features.text_columns import TextColumns

    assert agreement.table is not None  # noqa: S101  (who asks has looked)
    if not is_table(source):
        raise SiteRefusalError(
            SiteCode.DATA, f"{source} is no table, and the agreement describes one; give a .csv, .tsv or .parquet file"
        )
    texts = TextColumns(device=device, cache=cache or False)
    try:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            found = read_described(source, agreement.table, texts=texts)
    except (FedHiPError, OSError, ValueError) as error:
        raise SiteRefusalError(SiteCode.DATA, str(error)) from error
    notes += [str(warning.message) for warning in told if issubclass(warning.category, FedHiPWarning)]
    return found


def _holds_features(source: Path) -> bool:
    with np.load(source, allow_pickle=False) as arrays:
        return "images" not in arrays.files


def _rows_of(site: str, data: Dataset | FeatureSet | TableRows, source: Path) -> NDArray[np.bool_]:
    """Which rows are this site's; a file of several clients has those of its name."""
    everything = np.ones(len(data), dtype=bool)
    if data.clients is None:
        return everything
    names = np.unique(data.clients)
    if site in names:
        return np.asarray(data.clients == site)
    if len(names) == 1:
        return everything
    raise SiteRefusalError(
        SiteCode.NO_ROWS, f"{source} holds rows of {len(names)} clients and none of {site!r}; give this site's own rows"
    )


def _agreed_labels(
    data: Dataset | FeatureSet | TableRows,
    chosen: NDArray[np.bool_],
    agreement: Agreement,
    class_names: Mapping[str, str],
) -> NDArray[np.int64]:
    """Labels by the agreed numbers; a class that occurs here and nowhere in the agreement is refused by name."""
    labels = data.labels[chosen]
    used = np.unique(labels)
    positions = class_positions([data.class_names[label] for label in used], agreement.classes, class_names)
    numbers = np.full(data.num_classes, -1, np.int64)
    numbers[used] = positions
    return np.asarray(numbers[labels])


def _extract(
    data: Dataset, agreement: Agreement, cache: Path, weights: Path | None, device: str | None
) -> NDArray[Any]:
    """Features by the agreed backbone, from the cache if they are there."""
    from fedhip.features import cache_folder, extract

    reference = agreement.backbone
    if reference is None:
        raise SiteRefusalError(SiteCode.DATA, "the agreement names no backbone, so images cannot be used")
    try:
        backbone = reference.load(weights=find_encoder(agreement, weights), device=device)
    except (FedHiPError, OSError) as error:
        raise SiteRefusalError(SiteCode.ENCODER, str(error)) from error
    dtype = reference.dtype if backbone.mixed_precision else None
    features = extract(backbone, data, dtype=dtype, cache=cache_folder(cache) or False)
    _require_width(features.shape[1], agreement, Path(data.name))
    return features


def require_size(features: NDArray[Any], agreement: Agreement) -> None:
    """Refuse training features that are larger than agreed: the grid would not hold their sum.

    Columns in units of their own have no common bound but that of any survey (`fedhip.core.exact.columns`).
    """
    sizes = np.maximum(features.max(axis=0), -features.min(axis=0))
    column = int(sizes.argmax())
    largest = float(sizes[column])
    if largest >= _LARGEST:
        raise SiteRefusalError(
            SiteCode.OVERFLOW,
            f"a feature of column {column} is as large as {largest:g} here, and no grid holds more than "
            f"{_LARGEST:.1g}; repair the value, or rescale the column at all sites",
        )
    clipped = agreement.epsilon is not None  # in the sum; a site's own model is of its rows as they are
    if agreement.columns == "plain" and not clipped and largest > agreement.largest_feature:
        raise SiteRefusalError(
            SiteCode.OVERFLOW,
            f"a feature of column {column} is as large as {largest:g} here, and the agreement allows "
            f"{agreement.largest_feature:g}; agree on units of each column's own (init --columns sum), rescale the "
            "column at all sites, or agree on more (init --largest-feature)",
        )


def require_agreed_units(encoding: RowEncoding, client: Client) -> None:
    """Refuse rows of which a column would be rounded away: the units that were agreed on are not its own."""
    if (lost := lost_column(encoding, client) or _coarse_column(encoding, client)) is not None:
        raise SiteRefusalError(SiteCode.DATA, f"{lost}; or agree on units of each column's own (init --columns sum)")


def lost_column(encoding: RowEncoding, client: Client) -> str | None:
    """A column that varies here by less than a step of the grid, in words."""
    from fedhip.core.exact.columns import require_same_constants
    from fedhip.errors import ColumnWarning

    with warnings.catch_warnings():
        warnings.simplefilter("error", ColumnWarning)
        try:
            require_same_constants(encoding.columns, client.train[0], step=encoding.step)
        except ColumnWarning as found:
            return str(found)
    return None


def _coarse_column(encoding: RowEncoding, client: Client) -> str | None:
    """A column of whose deviation here rounding to the grid would change a sixteenth or more, in words."""
    features = client.train[0]
    low, high, deviation = features.min(axis=0), features.max(axis=0), features.std(axis=0, dtype=np.float64)
    steps = np.ldexp(encoding.step, encoding.columns.exponent.numpy())
    # What the numbers themselves are rounded to is no loss; and a deviation of many steps loses less.
    varies = high - low > 2.0**-40 * np.maximum(np.abs(low), np.abs(high))
    for column in np.flatnonzero(varies & (deviation < 8.0 * steps)):
        moved = (features[:, column].astype(np.float64) - float(encoding.columns.offset[column])) / steps[column]
        if float(np.square(np.rint(moved) - moved).mean()) * 256.0 > float(deviation[column] / steps[column]) ** 2:
            return (
                f"column {column} varies from {float(low[column]):.9g} to {float(high[column]):.9g} here, and would be "
                f"rounded to multiples of {float(steps[column]):g}; scale the column at all sites"
            )
    return None


def _require_width(width: int, agreement: Agreement, source: Path) -> None:
    if width != agreement.width:
        raise SiteRefusalError(
            SiteCode.WIDTH,
            f"the features of {source} are {width} wide, and the agreement says {agreement.width}; use its backbone",
        )

"""UCI "ADL Recognition with Wrist-worn Accelerometer": 839 recordings of 16 wearers, 14 activities.

A recording is a text file: a line for each 32nd of a second, three whole numbers from 0 to 63 for −1.5 g to 1.5 g. Its
73 features, in this order:

- for each of four signals, the axes x, y, z and the size |a| of the acceleration, in g (17 × 4): mean, deviation,
  least, largest, the quantiles 10, 25, 50, 75 and 90 %, the mean step from one sample to the next without its sign, and
  the logarithm of the power in seven bands of frequency (edges at 0.25, 0.5, 1, 2, 3, 5, 8 and 16 Hz)
- the correlations of x and y, x and z, y and z
- the mean of |x − x̄| + |y − ȳ| + |z − z̄|
- the logarithm of the duration in seconds
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedhip.data.feature_files import FeatureSet, feature_set
from fedhip.data.tables.description import Description
from fedhip.errors import DataMissingError, FileError

PAGE = "https://archive.ics.uci.edu/dataset/283/dataset+for+adl+recognition+with+wrist+worn+accelerometer"
RECORDINGS, WEARERS, ACTIVITIES = 839, 16, 14
WIDTH = 73
RATE = 32.0  # samples in a second

_BANDS = (0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 8.0, 16.0)  # Hz
_QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)
_NAME = re.compile(r"(?:^|/)([A-Z][A-Za-z_]*)/Accelerometer-[^/]*-([fm]\d+)\.txt$")
_LARGEST = 1 << 22  # bytes of a recording; the longest has a thirtieth of it

Floats = NDArray[np.float64]


def load_wrist(data: Path | None, description: Description | None = None) -> FeatureSet:
    """Features of all recordings in a zip archive or folder; the label is the activity, the client the wearer."""
    get = f"download it from {PAGE}, and give the archive or its unpacked folder with --data PATH"
    if data is None:
        raise DataMissingError(f"wrist needs the recordings; {get}")
    if not data.exists():
        raise DataMissingError(f"{data} is not there; {get}")
    features, labels, clients = [], [], []
    for name, activity, wearer, content in _recordings(data, get):
        features.append(recording_features(_samples(f"{data}: {name}", content, get)))
        labels.append(activity)
        clients.append(wearer)
    if (len(labels), len(set(clients)), len(set(labels))) != (RECORDINGS, WEARERS, ACTIVITIES):
        raise DataMissingError(
            f"{data} has {len(labels)} recordings of {len(set(clients))} wearers, not {RECORDINGS} of {WEARERS}: it is "
            f"not complete; {get} again"
        )
    return feature_set(np.array(features), np.array(labels), np.array(clients))


def recording_features(samples: Floats) -> Floats:
    """The features (73,) of a recording (T, 3) in g, T at least 2."""
    size = np.sqrt((samples**2).sum(axis=1, keepdims=True))
    signals = np.concatenate([samples, size], axis=1)
    parts = [_signal_features(signal) for signal in signals.T]
    centred = samples - samples.mean(axis=0)
    deviation = np.sqrt((centred**2).mean(axis=0))
    pairs = [
        float((centred[:, i] * centred[:, j]).mean() / (deviation[i] * deviation[j]))
        if deviation[i] * deviation[j]
        else 0.0
        for i, j in ((0, 1), (0, 2), (1, 2))
    ]
    area = float(np.abs(centred).sum(axis=1).mean())
    return np.concatenate([*parts, pairs, [area, np.log(len(samples) / RATE)]])


def _signal_features(x: Floats) -> Floats:
    centred = x - x.mean()
    power = np.abs(np.fft.rfft(centred)) ** 2 / len(x) ** 2
    frequency = np.fft.rfftfreq(len(x), 1 / RATE)
    bands = [power[(frequency >= low) & (frequency < high)].sum() for low, high in pairwise(_BANDS)]
    return np.concatenate(
        [
            [x.mean(), x.std(), x.min(), x.max()],
            np.quantile(x, _QUANTILES),
            [np.abs(np.diff(x)).mean()],
            np.log(np.array(bands) + 1e-6),
        ]
    )


def _recordings(data: Path, get: str) -> Iterator[tuple[str, str, str, bytes]]:
    """Name, activity, wearer and content of every recording, in the order of their names.

    UCI's archive holds some of them a second time, in folders that end in _MODEL.
    """
    if data.is_dir():
        for path in sorted(data.rglob("Accelerometer-*.txt")):
            if found := _of(path.relative_to(data.parent).as_posix()):
                yield path.name, *found, path.read_bytes()
        return
    try:
        with zipfile.ZipFile(data) as archive:
            for member in sorted(archive.infolist(), key=lambda member: member.filename):
                if (found := _of(member.filename)) and member.file_size <= _LARGEST:
                    yield member.filename, *found, archive.read(member)
    except (zipfile.BadZipFile, OSError, EOFError) as error:
        raise FileError(f"{data} is not a zip archive, or cut off ({error}); {get} again") from error


def _of(name: str) -> tuple[str, str] | None:
    """Activity and wearer, from a recording's name."""
    found = _NAME.search(name)
    if found is None or found[1].endswith("_MODEL") or "__MACOSX" in name:
        return None
    return found[1].lower(), found[2]


def _samples(name: str, content: bytes, get: str) -> Floats:
    """A recording in g (T, 3)."""
    try:
        rows = [[int(cell) for cell in line.split()] for line in content.decode("ascii").splitlines() if line.strip()]
        values = np.array(rows, dtype=np.float64)
    except ValueError as error:
        raise FileError(f"{name} is not a recording ({error}); {get} again") from None
    if values.ndim != 2 or values.shape[1] != 3 or len(values) < 2 or values.min() < 0 or values.max() > 63:
        raise FileError(f"{name} is not a recording of three columns from 0 to 63; {get} again")
    return -1.5 + 3.0 * values / 63.0

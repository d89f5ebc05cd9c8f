"""Clients whose rows are looked through once, and moved to a device once, for all methods of a table."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import overload

import numpy as np
import torch
from torch import Tensor

from fedhip.errors import InputError
from fedhip.heads.task import check_clients
from fedhip.simulation.client import Client, LabelledRows
from fedhip.simulation.orders import client_number, sorted_rows

#: Orders of rows that are kept on a device, in bytes: the methods of a table all use the same.
ORDERS_KEPT = 2**30


class CheckedClients(Sequence[Client]):
    """A list of clients whose rows nobody changes any more; what was found out about them is kept."""

    def __init__(self, clients: Sequence[Client]) -> None:
        self._clients = tuple(clients)
        self._placed: dict[tuple[int, torch.device, torch.dtype], DeviceRows] = {}
        self._digest: bytes | None = None
        #: Numbers of classes that the rows were checked for.
        self._checked: set[int] = set()

    @classmethod
    def of(cls, clients: Sequence[Client]) -> CheckedClients:
        """The same, if it is one."""
        return clients if isinstance(clients, cls) else cls(clients)

    def check(self, num_classes: int) -> None:
        """Refuse rows that no method can be trained on, and two clients of one name."""
        if num_classes not in self._checked:
            names = [client.name for client in self]
            if len(set(names)) < len(names):
                twice = next(name for name in names if names.count(name) > 1)
                raise InputError(f"two clients are called {twice!r}; give each a name of its own")
            check_clients(self, num_classes)
            self._checked.add(num_classes)

    def __len__(self) -> int:
        return len(self._clients)

    @overload
    def __getitem__(self, at: int) -> Client: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[Client]: ...

    def __getitem__(self, at: int | slice) -> Client | Sequence[Client]:
        return self._clients[at]

    def __iter__(self) -> Iterator[Client]:
        return iter(self._clients)

    @property
    def digest(self) -> bytes:
        """SHA-256 of all names and rows."""
        if self._digest is None:
            sha = hashlib.sha256()
            for client in self._clients:
                sha.update(f"{len(client.name)} {client.name}".encode())
                for part in (*client.train, *client.test):
                    array = np.ascontiguousarray(part)
                    sha.update(f"{array.dtype}{array.shape}".encode())
                    sha.update(array.data)
            self._digest = sha.digest()
        return self._digest

    def to_device(self, num_classes: int, device: torch.device, dtype: torch.dtype) -> DeviceRows:
        """The rows on a device."""
        key = (num_classes, device, dtype)
        if key not in self._placed:
            self._placed[key] = DeviceRows(self._clients, num_classes, device, dtype)
        return self._placed[key]


class DeviceRows:
    """The rows of clients on a device.

    Those with training rows are numbered 0 to K − 1; `place[k]` is where client k stands among all.
    """

    def __init__(
        self, clients: Sequence[Client], num_classes: int, device: torch.device, dtype: torch.dtype = torch.float32
    ) -> None:
        self.device, self.dtype = device, dtype
        self.place = [at for at, client in enumerate(clients) if len(client.train[1])]
        self.names = tuple(clients[at].name for at in self.place)
        self.rows = [len(clients[at].train[1]) for at in self.place]
        self.starts = list(accumulate(self.rows, initial=0))
        self.features, self.labels = self._stack([clients[at].train for at in self.place])
        tests = [len(client.test[1]) for client in clients]
        self.tests = list(zip(tests, accumulate(tests, initial=0), strict=False))
        self.test_features, self.test_labels = self._stack([client.test for client in clients])
        self.class_counts = torch.stack(
            [
                torch.bincount(self.labels[start : start + rows], minlength=num_classes)
                for start, rows in zip(self.starts, self.rows, strict=False)
            ]
        )
        self.numbers = torch.tensor([client_number(name) for name in self.names], device=device)
        self.row_counts = torch.tensor(self.rows, device=device)
        self.first_rows = torch.tensor(self.starts[:-1], device=device)
        self._orders: dict[tuple[int, ...], Tensor] = {}

    def length(self, batch: int) -> int:
        """The rows of the largest client, and what fills up its last batch."""
        return -(-max(self.rows) // batch) * batch

    def orders(self, length: int, seed: int, round_: int, epochs: range, purpose: int) -> list[Tensor]:
        """(K, length) for each epoch: the orders of all clients' rows, followed by what fills up."""
        keys = {epoch: (length, seed, round_, epoch, purpose) for epoch in epochs}
        missing = [epoch for epoch, key in keys.items() if key not in self._orders]
        found = {epoch: self._orders[key] for epoch, key in keys.items() if key in self._orders}
        if missing:
            span = range(missing[0], missing[-1] + 1)
            new = sorted_rows(self.row_counts, self.numbers, length, seed, round_, span, purpose)
            found |= dict(zip(span, new, strict=True))
            most = max(len(epochs), ORDERS_KEPT // (new[0].numel() * new.element_size()))
            for epoch in missing:
                while len(self._orders) >= most:
                    self._orders.pop(next(iter(self._orders)))
                self._orders[keys[epoch]] = found[epoch]
        return [found[epoch] for epoch in epochs]

    def _stack(self, parts: Sequence[LabelledRows]) -> tuple[Tensor, Tensor]:
        widths = {part.shape[1] for part, labels in parts if len(labels)}
        features = torch.empty(sum(len(y) for _, y in parts), max(widths, default=0), dtype=self.dtype)
        at = 0
        for part, labels in parts:
            if len(labels):
                features[at : at + len(labels)] = torch.from_numpy(np.array(part))  # which may be read-only
            at += len(labels)
        classes = torch.as_tensor(np.concatenate([np.asarray(y, np.int64) for _, y in parts]))
        return features.to(self.device), classes.to(self.device)

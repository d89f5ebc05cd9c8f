"""Phase 2 with noise: the released sum, and all that follows from it.

What follows costs nothing: counts, β, the global model, and the sum put back among those that rows can have.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import cast

import numpy as np
import torch
from torch import Tensor

from fedhip.core import PersonalizationPath, Statistics
from fedhip.core.affine import AffineModel
from fedhip.core.exact.columns import Columns
from fedhip.core.exact.fixedpoint import GridStatistics
from fedhip.core.rows import one_hot
from fedhip.errors import InputError
from fedhip.privacy.mechanism import CONSTANT, Mechanism
from fedhip.privacy.public import PublicMap
from fedhip.simulation.client import Client
from fedhip.simulation.encoding import RowEncoding
from fedhip.simulation.federation import Federation
from fedhip.simulation.options import Beta
from fedhip.simulation.private.units import part_of


@dataclass(frozen=True)
class PrivateFederation(Federation):
    """Phase 2 with noise: what every client receives.

    The last feature of the sum is the constant; its row of the sums by class are the counts. All that is here follows
    from the released sum and from what is public.
    """

    mechanism: Mechanism = None  # type: ignore[assignment]  # the fields before have defaults
    public: PublicMap = None  # type: ignore[assignment]

    @classmethod
    def released(
        cls, total: GridStatistics, mechanism: Mechanism, public: PublicMap, beta: Beta = "auto"
    ) -> PrivateFederation:
        """From the sum of the clients' noisy statistics; β is the noise's own size, unless it is given."""
        found = cls(total, 0.0, _encoding(mechanism), mechanism=mechanism, public=public)
        counts = found.sums[1][-1].round().clamp(min=0.0).to(torch.int64)
        grid = GridStatistics(total.gram, total.cross, counts, total.fraction_bits)
        chosen = mechanism.edge if isinstance(beta, str) else beta
        found = cls(grid, float(chosen), found.encoding, mechanism=mechanism, public=public)
        found.require_rows()
        return found

    def require_rows(self) -> None:
        """Refuse a sum that the noise buries; by the noisy count, so that this gives nothing away."""
        rows, needed = float(self.sums[0][-1, -1]), self.mechanism.least_rows(self.grid.num_classes)
        if rows < needed:
            epsilon, d = self.mechanism.epsilon, self.grid.num_classes
            # A count that its own noise may have made says nothing of how much more is needed.
            known = rows > 3.0 * self.mechanism.unsure_rows(d)
            larger = f"epsilon = {self.mechanism.larger_epsilon(rows, d):g}" if known else "a larger epsilon"
            raise InputError(
                f"the federation is too small for epsilon = {epsilon:g}: its sum has about {max(rows, 0.0):,.0f} rows, "
                f"and the noise weighs as much as {needed:,.0f}; with that many rows it would do, or with {larger}. "
                "This sum was released, and so its epsilon is spent"
            )

    @cached_property
    def sums(self) -> tuple[Tensor, Tensor]:
        """G (w + 1, w + 1) and H (w + 1, d) of rows (z, 1), in which what is said twice is said alike.

        Σ z stands in the matrix's last column and is the sum over classes. Each has noise of its own; the two together
        have less.
        """
        step, sigma = 2.0**-self.grid.fraction_bits, self.mechanism.total_sigma
        G, H = self.grid.gram.to(torch.float64) * step, self.grid.cross.to(torch.float64) * step
        noise = torch.full((len(G),), sigma**2 / 2.0, dtype=torch.float64)
        noise[-1] = sigma**2
        noise /= CONSTANT**2
        missing = G[:, -1] / CONSTANT - H.sum(dim=1)
        H = H + (missing * sigma**2 / (H.shape[1] * sigma**2 + noise))[:, None]
        G = G.clone()
        G[:, -1] = G[-1] = H.sum(dim=1) * CONSTANT
        G[-1] /= CONSTANT
        G[:, -1] /= CONSTANT
        H[-1] /= CONSTANT
        return G, H

    @cached_property
    def total(self) -> Statistics:
        """The sum as the ridge sees it: as near to the released one as a matrix of rows can be."""
        G, H = self.sums
        return Statistics._of(positive(G), H, self.grid.counts, intercept=True)

    @property
    def is_regression(self) -> bool:
        """Classes alone."""
        return False

    def on_raw(self, weights: Tensor) -> AffineModel:
        """A model on features as they came."""
        return self.public.on_raw(weights)

    def own_sums(self, client: Client) -> GridStatistics:
        """The client's part of the sum, without noise."""
        return part_of(client, self.mechanism, self.public, self.grid.num_classes)

    def path(self, client: Client) -> PersonalizationPath:
        """All of a client's models: others' rows and noise from the sum, its own as they are, in all directions."""
        own, step = self.own_sums(client), 2.0**-self.grid.fraction_bits
        G, H = self.sums
        A, B = own.gram.to(torch.float64) * step, own.cross.to(torch.float64) * step
        for part in (A, A.mT, B):
            part[-1] /= CONSTANT
        rest, others = positive(G - A), H - B
        F = self.public.full(torch.as_tensor(np.asarray(client.train[0])))
        F = torch.cat((F, torch.ones_like(F[:, :1])), dim=1)
        labels = torch.as_tensor(np.asarray(client.train[1]))
        gram, cross = F.mT @ F, F.mT @ one_hot(labels, self.grid.num_classes)
        # What others' rows say is of the first w directions and the constant.
        at = torch.tensor([*range(self.public.width), len(gram) - 1])
        gram[at[:, None], at] += rest
        cross[at] += others
        own_counts = torch.bincount(labels, minlength=self.grid.num_classes)
        counts = torch.maximum(self.grid.counts, own_counts)
        total = Statistics._of((gram + gram.mT) / 2.0, cross, counts, intercept=True)
        return PersonalizationPath(total, F, labels, self.beta, client=client.name, groups=client.groups)

    def traffic(self, method: str) -> tuple[int, int, int]:
        """One round; nothing travels but the sum."""
        if method == "local":
            return 0, 0, 0
        w, d = self.grid.num_features, self.grid.num_classes
        size = 8 * (w * (w + 1) // 2 + w * d)
        return 1, size, size


def positive(matrix: Tensor) -> Tensor:
    """The nearest matrix, in Frobenius norm, that rows can have: without its negative eigenvalues."""
    values, vectors = torch.linalg.eigh((matrix + matrix.mT) / 2.0)
    found = (vectors * values.clamp(min=0.0)) @ vectors.mT
    return cast(Tensor, (found + found.mT) / 2.0)


def _encoding(mechanism: Mechanism) -> RowEncoding:
    return RowEncoding(Columns.plain(mechanism.width + 1), mechanism.fraction_bits)

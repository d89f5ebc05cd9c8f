"""A round with differential privacy: noise in the sum, a client's own rows clean.

phase 1   at each client: statistics of its clipped rows and its share of the noise, in whole numbers (`units.py`)
phase 2   at the server: their sum; counts, β and the global model follow from it (`federation.py`)
phase 3   at each client: from the sum less its own part, its own rows as they are beside it (`round.py`)
"""

from fedhip.simulation.private.federation import PrivateFederation
from fedhip.simulation.private.round import (
    PRIVATE_ALPHAS,
    federate_privately,
    personalize_privately,
    simulate_privately,
)
from fedhip.simulation.private.units import PrivacyOptions, require_own_groups, shared_group

__all__ = [
    "PRIVATE_ALPHAS",
    "PrivacyOptions",
    "PrivateFederation",
    "federate_privately",
    "personalize_privately",
    "require_own_groups",
    "shared_group",
    "simulate_privately",
]

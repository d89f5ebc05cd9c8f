"""Secure aggregation: the sum of the sites' vectors mod 2^64 and nothing else of them.

`Member` is a site, `Collector` the server.

The protocol of Bonawitz et al. (2017) with two masks for each site, in the variant for a server that may cheat:

    1  keys     each site signs two ephemeral keys and a commitment to the seed of its own mask
    2  share    each site deals Shamir shares of its seed and of its mask key to the others, sealed, and signs what it
                dealt
    3  mask     each site sends its vector + own mask ± one mask in common with each other site, signed
    4  unmask   the sites reveal shares of the survivors' seeds and of the mask keys of those that are gone

The masks that two survivors have in common cancel; the server makes the rest again from the shares. Where a site is
gone, the others first sign the list of survivors (`agree`), so that the server cannot tell each site another list.
"""

from fedhip.federation.secure_sum.collector import Collector
from fedhip.federation.secure_sum.commitment import Commitment, Opening
from fedhip.federation.secure_sum.errors import Reason, SecureSumError
from fedhip.federation.secure_sum.member import Member

__all__ = ["Collector", "Commitment", "Member", "Opening", "Reason", "SecureSumError"]

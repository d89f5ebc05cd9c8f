"""Numbers of Google's dp-accounting, kept in dp_accounting.json; it pins an attrs that other tools here cannot use.

    python -m venv apart && apart/bin/pip install dp-accounting==0.6.0
    apart/bin/python tests/privacy/dp_accounting_numbers.py > tests/privacy/dp_accounting.json

ε is that of its Rényi accountant over a hundred thousand orders: of single releases of Gaussian noise, of several at
once, and of zCDP's ρ.
"""

from __future__ import annotations

import json

import dp_accounting
import numpy as np
from dp_accounting import rdp

ORDERS = (1.0 + np.geomspace(1e-4, 1e6, 100_001)).tolist()
DELTAS = (1e-4, 1e-5, 1e-6)


def epsilon(event: dp_accounting.DpEvent, delta: float) -> float:
    """ε of a release."""
    return float(rdp.RdpAccountant(ORDERS).compose(event).get_epsilon(delta))


def main() -> None:
    """Print all of them."""
    gaussian, zcdp = dp_accounting.GaussianDpEvent, dp_accounting.ZCDpEvent
    lines = []
    for delta in DELTAS:
        for multiplier in (0.6377, 1.0, 4.0451, 33.982):
            lines.append({"noise": [multiplier], "delta": delta, "epsilon": epsilon(gaussian(multiplier), delta)})
        several = (4.0, 4.0, 9.0)
        together = dp_accounting.ComposedDpEvent([gaussian(each) for each in several])
        lines.append({"noise": list(several), "delta": delta, "epsilon": epsilon(together, delta)})
        lines += [{"rho": rho, "delta": delta, "epsilon": epsilon(zcdp(rho), delta)} for rho in (1e-3, 0.03, 1.2)]
    print(json.dumps({"dp_accounting": "0.6.0", "lines": lines}, indent=1))


if __name__ == "__main__":
    main()

"""What a federation that chooses costs each site in sums, messages and bytes, with a lift that competes and without.

python scripts/federation_bytes.py WIDTH CLASSES
"""

from __future__ import annotations

import argparse

from fedhip.federation.agreement.init import draft
from fedhip.federation.sums.table import PLAIN, PRODUCTS, WIDE, sums_before
from fedhip.federation.sums.traffic import bytes_of


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("width", type=int, help="features, at most 256")
    parser.add_argument("classes", type=int)
    asked = parser.parse_args()
    names = [f"class {number}" for number in range(asked.classes)]
    agreement = draft(name="x", sites=["a", "b", "c"], classes=names, width=asked.width)
    lift = (PRODUCTS, *WIDE.all)
    for title, sums in (("no lift competes", PLAIN.all), ("lift taken", lift), ("tried", (*lift, *PLAIN.all))):
        kinds = [*sums_before(agreement), *sums]
        messages = 2 + 3 + 4 * (len(kinds) - 1)  # hello and the end; the keys of the first sum come with hello
        up, down = (number / 1e6 for number in bytes_of(agreement, kinds))
        print(f"{title:18}{len(kinds):4} sums{messages:5} messages{up:8.2f} MB up{down:8.2f} MB down")


if __name__ == "__main__":
    main()

"""`python -m fedhip` is `fedhip`."""

import sys

from fedhip.cli.main import main

sys.exit(main())

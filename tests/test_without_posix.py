"""`fedhip run` where the system lacks what POSIX alone has, as Windows does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np

PROGRAM = """
import os, signal, sys
import matplotlib.figure, torch, numpy  # these know how to do without; what is hidden is hidden from fedhip alone
for name in ("fcntl", "resource", "pwd", "grp"):
    sys.modules[name] = None
for name in ("O_NOFOLLOW", "O_CLOEXEC", "O_DIRECTORY", "fchmod", "getuid", "geteuid", "sched_getaffinity", "fork"):
    delattr(os, name)
del signal.SIGKILL
from fedhip.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


def test_a_run(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    labels = np.arange(60) % 3
    features = random.normal(size=(60, 5)) + labels[:, None]
    names, clients = np.array(["a", "b", "c"])[labels], np.repeat(["north", "south"], 30)
    np.savez(tmp_path / "rows.npz", features=features, labels=names, clients=clients)
    run = tmp_path / "run"
    words = ["run", "--features", str(tmp_path / "rows.npz"), "--head", "ridge", "--out", str(run)]
    done = subprocess.run([sys.executable, "-c", PROGRAM, *words], capture_output=True, text=True, check=False)  # noqa: S603
    assert done.returncode == 0, done.stderr
    assert (run / "results.json").is_file()
    assert (run / "report.html").is_file()

"""The `fedhip` command itself: help, version, and how failures look."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedhip
from fedhip.cli import list as list_command
from fedhip.cli.common.parser import commands_of, subparser
from fedhip.cli.main import COMMANDS, build_parser, main, overview


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--help"])
    assert stop.value.code == 0
    shown = capsys.readouterr().out
    for command in ("run", "partition", "extract", "pretrain", "export", "list", "doctor", "completion"):
        assert re.search(rf"^    {command}\s", shown, re.MULTILINE)
        with pytest.raises(SystemExit):
            main([command, "--help"])


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out == f"fedhip {fedhip.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run"], "fedhip: no data given; choose one of --dataset NAME, --data PATH and --features FILE"),
        (["extract", "x.npz"], "fedhip: no data given; choose --dataset NAME or --data PATH"),
        (["extract", "--clients", "3", "x.npz"], "fedhip: --clients has no effect without --styles"),
        (["run", "--features", "none.npz", "--data", "here"], "fedhip: --features stands alone"),
        (["run", "--features", "none.npz"], "none.npz"),
        (["run", "--dataset", "sketchs", "--clients", "5"], "sketches"),
        (["run", "--dataset", "sketches", "--clients", "20000"], "20000"),
        (["run", "--dataset", "sketches", "--clients", "5", "--concentration", "0"], "fedhip: "),
        (["partition", "--dataset", "sketches", "--clients", "0"], "fedhip: "),
    ],
)
def test_a_failure_is_one_line_and_exit_code_3(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 3
    shown = capsys.readouterr()
    assert shown.out == ""
    assert message in shown.err
    assert shown.err.count("\n") == 1
    assert "Traceback" not in shown.err


def test_an_interrupt_is_exit_code_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(what: str) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(list_command, "_entries", interrupted)
    assert main(["list", "datasets"]) == 130
    assert capsys.readouterr().err == "fedhip: interrupted\n"


@pytest.mark.parametrize("words", ["list datasets", "list datasets --json"])
def test_a_reader_that_leaves_early_is_no_traceback(words: str) -> None:
    command = f"set -o pipefail; {sys.executable} -m fedhip {words} | true"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)  # noqa: S603, S607
    assert done.stderr == ""
    assert done.returncode in (0, 3)


@pytest.mark.filterwarnings("default")
def test_a_warning_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two rows, three features, β = 0: the equations are singular."""
    np.savez(tmp_path / "f.npz", features=[[1.0, 2.0, 3.0], [2.0, 1.0, 0.0]], labels=[0, 1])
    assert main(["run", "--features", str(tmp_path / "f.npz"), "--clients", "1", "--beta", "0", "--alpha", "1"]) == 0
    warnings = [line for line in capsys.readouterr().err.splitlines() if "singular" in line]
    assert warnings
    assert all(line.startswith("fedhip: warning: the equations are singular") for line in warnings)


def test_every_command_has_a_handler() -> None:
    commands = list(commands_of(build_parser()))
    assert len(commands) > len(COMMANDS)  # those of `federation` and `cache` too
    for parser in commands:
        assert callable(parser.get_default("handler")), parser.prog


def test_the_overview_is_what_the_commands_say_themselves() -> None:
    """It is written down apart from them, so that help need not import them."""
    assert overview().format_help() == build_parser().format_help()


def test_fedhip_alone_is_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    alone = capsys.readouterr().out
    with pytest.raises(SystemExit) as stop:
        main(["--help"])
    assert stop.value.code == 0
    assert capsys.readouterr().out == alone


def test_no_option_is_abbreviated() -> None:
    assert [parser.prog for parser in commands_of(build_parser()) if parser.allow_abbrev] == []


def test_every_command_is_found_in_its_module() -> None:
    """A name that the table lacks, or holds in another place, would be shown differently or not at all."""
    parser = build_parser()
    (shown,) = (action.choices for action in parser._actions if isinstance(action.choices, dict))
    assert [*shown] == [*COMMANDS]
    for name in COMMANDS:
        alone = build_parser([name])
        assert subparser(alone, name).format_help() == subparser(parser, name).format_help() != alone.format_help()


@pytest.mark.parametrize(
    ("words", "light"),
    [
        ("", True),
        ("--help", True),
        ("--version", True),
        ("list datasets", True),
        ("federation serve --help", True),
        ("export --help", True),
        ("run --help", False),
    ],
)
def test_what_needs_no_torch_does_not_wait_for_it(words: str, light: bool) -> None:
    program = (
        "import sys, contextlib, fedhip.cli.main as m\n"
        "with contextlib.suppress(SystemExit): m.main(sys.argv[1:])\n"
        "print('torch' in sys.modules, file=sys.stderr)"
    )
    command = [sys.executable, "-c", program, *words.split()]
    done = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603
    assert done.stdout
    assert done.stderr.split() == [str(not light)]


def test_a_mistyped_command_does_not_wait_for_torch_either() -> None:
    program = (
        "import sys, contextlib, fedhip.cli.main as m\n"
        "with contextlib.suppress(SystemExit): m.main(['rn'])\n"
        "print({'torch', 'numpy', 'rich'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)  # noqa: S603
    assert done.stdout == "set()\n"
    assert "did you mean 'run'?" in done.stderr

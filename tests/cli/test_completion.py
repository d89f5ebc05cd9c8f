"""`fedhip completion`: the scripts, and what bash completes with its own."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fedhip.cli.completion import script
from fedhip.cli.main import build_parser, main


@pytest.fixture(scope="module")
def bash_script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("completion") / "fedhip.bash"
    path.write_text(script(build_parser(), "bash"))
    return path


def complete(path: Path, folder: Path, *words: str) -> set[str]:
    """What bash offers for the last word, in a folder."""
    function = 'eval "$(complete -p fedhip | sed "s/.*-F \\([^ ]*\\) .*/called=\\1/")"; "$called" fedhip'
    program = (
        'source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); '
        f'COMP_LINE="$*"; COMP_POINT=${{#COMP_LINE}}; {function} "${{@: -1}}" "${{@: -2:1}}"; '
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    command = ["bash", "--norc", "-c", program, "bash", str(path), "fedhip", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)  # noqa: S603
    assert done.stderr == ""
    return set(done.stdout.split())


def test_bash_accepts_the_script(bash_script: Path) -> None:
    done = subprocess.run(["bash", "-n", str(bash_script)], capture_output=True, text=True, check=False)  # noqa: S603, S607
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["ru"], {"run"}),
        (["p"], {"partition", "personalize", "predict", "pretrain"}),
        (["run", "--be"], {"--beta"}),
        (["run", "--dataset", "sketches", "--cl"], {"--client-column", "--clients", "--clip"}),
        (["list", "d"], {"datasets"}),
        (["completion", ""], {"bash", "zsh", "tcsh"}),
        (["extract", "--precision", "b"], {"bfloat16"}),
        (["list", "x"], set()),
    ],
)
def test_bash_completes_commands_options_and_choices(
    bash_script: Path, tmp_path: Path, words: list[str], expected: set[str]
) -> None:
    assert complete(bash_script, tmp_path, *words) == expected


def test_bash_completes_paths(bash_script: Path, tmp_path: Path) -> None:
    (tmp_path / "data.npz").touch()
    (tmp_path / "data-run").mkdir()
    everything, folders = {"data.npz", "data-run"}, {"data-run"}
    assert complete(bash_script, tmp_path, "run", "--features", "da") == everything  # FILE
    assert complete(bash_script, tmp_path, "extract", "--weights", "da") == everything  # PATH
    assert complete(bash_script, tmp_path, "pretrain", "--pool", "da") == everything  # SOURCE
    assert complete(bash_script, tmp_path, "partition", "--out", "da") == folders  # DIR
    assert complete(bash_script, tmp_path, "export", "da") == folders  # RUN
    assert complete(bash_script, tmp_path, "export", "data-run", "da") == everything  # FILE


@pytest.mark.parametrize(
    ("shell", "lines"),
    [
        (
            "zsh",
            [
                '":what:(datasets partitions backbones methods)"',
                "]:auto|gcv|NUMBER:",
                '":the folder of a run:_files -/"',
            ],
        ),
        ("tcsh", ["'p/1/(run ", " beta ", "'n/list/(datasets partitions backbones methods)/'", "'n/--features/f/'"]),
    ],
)
def test_other_shells(tmp_path: Path, shell: str, lines: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    written = capsys.readouterr().out
    for line in lines:
        assert line in written
    if shutil.which(shell):
        (tmp_path / "script").write_text(written)
        subprocess.run([shell, "-n", str(tmp_path / "script")], check=True)  # noqa: S603


def test_an_unknown_shell_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["completion", "csh"])
    assert stop.value.code == 2
    assert "csh" in capsys.readouterr().err


def test_help_says_how_to_install(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["completion", "--help"])
    assert "fedhip completion bash > ~/.local/share/bash-completion/completions/fedhip" in capsys.readouterr().out


def test_without_shtab(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["completion", "bash"]) == 3
    assert capsys.readouterr().err == "fedhip: completion needs shtab; pip install shtab\n"

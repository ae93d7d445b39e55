from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from preprocessing.beam_cli import main
from tests.conftest import ROOT

BEAM = Path(sys.executable).with_name("beam")


def run(*command: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(list(map(str, command)), cwd=ROOT, capture_output=True, text=True, timeout=120)


def test_the_command_as_users_type_it(books: Path, vocabulary_file: Path, tmp_path: Path) -> None:
    script = "preprocessing/make_shards.py"
    shared = ("--vocab", vocabulary_file, "--sequence-lengths", 32, "--duplicates", 1, "--output", tmp_path / "out")
    done = run(BEAM, "run", script, "--books", books / "*.txt", *shared)
    assert (done.returncode, done.stderr) == (0, "")
    assert "documents  12" in done.stdout
    by_beam, by_python = [BEAM, "run"], [sys.executable]  # of which Beam, once imported, would say more
    for program in (by_beam, by_python):
        refused = run(*program, script, "--books", tmp_path / "*.none", *shared)
        assert refused.returncode == 2
        assert refused.stderr.startswith("make_shards: error: ")
        assert refused.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "told"),
    [(["run", "nowhere.py"], "nowhere.py: no such file"), (["run", str(ROOT / "README.md")], "not a Python file")],
)
def test_what_cannot_be_run_is_named(arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert told in capsys.readouterr().err


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--help"])
    assert caught.value.code == 0
    assert "beam run preprocessing/make_shards.py" in capsys.readouterr().out


def test_a_file_finds_modules_beside_it_as_under_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["beam"])
    monkeypatch.setattr(sys, "path", ["/where/beam/is", *sys.path[1:]])
    (tmp_path / "beside_a_pipeline.py").write_text("CODE = 7\n")
    (tmp_path / "script.py").write_text("import sys, beside_a_pipeline\nsys.exit(beside_a_pipeline.CODE)\n")
    with pytest.raises(SystemExit, match="7"):
        main(["run", str(tmp_path / "script.py")])


def test_a_file_gets_its_arguments_and_its_exit_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["beam"])
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\nassert __name__ == '__main__'\nsys.exit(len(sys.argv[1:]) + (sys.argv[1] == '--help'))\n"
    )
    with pytest.raises(SystemExit) as caught:
        main(["run", str(script), "--help", "--x=1"])
    assert caught.value.code == 3

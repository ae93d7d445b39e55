import pytest

import trainer.tracking.__main__ as tracking
from cluster import doctor
from preprocessing import inspect
from trainer import export, new_vocabulary, outcome, pretrain
from trainer.paths import parse_path


def test_a_leading_tilde_is_the_home_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert parse_path("~/runs") == tmp_path / "runs"  # which no shell puts into --output=~/runs
    assert parse_path("./~/runs").parts[0] == "~"


@pytest.mark.parametrize(("main", "words"), [
    (outcome.main, [""]),
    (export.main, ["run", ""]),
    (new_vocabulary.main, ["model", "", "new"]),
    (tracking.main, ["sync", ""]),
    (pretrain.main, ["--config", "a.toml", "--shards", "shards", "--output", ""]),
    (pretrain.main, ["--config", "a.toml", "--shards", "shards", "--output", "run", "--init-from", ""]),
    (pretrain.main, ["--config", "a.toml", "--output", "run", "--shards", ""]),
    (doctor.main, ["--shared", ""]),
    (inspect.main, ["shards", "--histograms", ""]),
])  # fmt: skip
def test_a_variable_of_the_shell_that_is_not_set_is_not_the_current_folder(capsys, main, words):
    try:
        code = main(words)
    except SystemExit as end:
        code = end.code
    assert code == 2
    assert "the path is empty; write . for the current folder" in capsys.readouterr().err

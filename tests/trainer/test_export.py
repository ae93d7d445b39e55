"""`python -m trainer.export`: any checkpoint, by any number of ranks, becomes what transformers loads."""

import io
import json
import shutil
from pathlib import Path

import pytest
import torch
from transformers import BertForPreTraining as TheirBert

from preprocessing.schema import checksum
from tests.failing import failures_in_turn
from tests.ranks import run_ranks
from tests.trainer.rank_tasks import run_pretrain
from trainer.checkpoint import read_run_state
from trainer.config import load_recipe
from trainer.export import export_checkpoint, main
from trainer.run_directory import RunDirectory


@pytest.fixture(scope="module")
def run(recipe, shards, tmp_path_factory):
    """A run of two ranks under ZeRO 3."""
    folder = tmp_path_factory.mktemp("export")
    config = folder / "ds_config.json"
    config.write_text('{"zero_optimization": {"stage": 3}, "bf16": {"enabled": true}, "train_batch_size": "auto"}')
    arguments = ["--config", str(recipe), "--deepspeed_config", str(config), "--shards", str(shards),
                 "--output", str(folder / "run")]  # fmt: skip
    assert run_ranks(2, run_pretrain, arguments, log=folder / "log") == [0, 0], (folder / "log").read_text()
    return folder / "run"


def test_a_sharded_checkpoint_becomes_the_export_that_the_run_made_itself(run, tmp_path, capsys):
    assert main([str(run / "checkpoints" / "step-000008"), str(tmp_path / "out")]) == 0
    assert "the weights of step 8" in capsys.readouterr().out
    ours, theirs = (path / "model.safetensors" for path in (tmp_path / "out", run / "exports" / "step-000008"))
    assert ours.read_bytes() == theirs.read_bytes()
    lineage, of_run = (json.loads((path.parent / "lineage.json").read_text()) for path in (ours, theirs))
    assert lineage == of_run
    state, given = read_run_state(run / "checkpoints" / "step-000008"), ("step", "samples", "manifest_blake2b")
    assert [lineage[name] for name in given] == [getattr(state, name) for name in given]
    assert lineage["config_blake2b"] == state.config_blake2b == checksum(run / "config.toml")
    assert (lineage["samples"], lineage["run"]) == (64, str(run.resolve()))
    model = TheirBert.from_pretrained(tmp_path / "out")
    assert torch.isfinite(model.bert.embeddings.word_embeddings.weight).all()


def test_who_lacks_a_letter_of_its_name_is_told_of_it_without(run, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(shown := io.BytesIO(), encoding="ascii"))
    assert main([str(run), str(tmp_path / "größe")]) == 0
    assert shown.getvalue().endswith(b"/gr??e: the weights of step 8\n")


@pytest.mark.parametrize("name", [".", "checkpoints/latest"])
def test_a_run_stands_for_its_newest_checkpoint(run, tmp_path, capsys, name):
    assert main([str(run / name), str(tmp_path / "out")]) == 0
    assert "the weights of step 8" in capsys.readouterr().out


@pytest.mark.parametrize("name", [".", "checkpoints/latest", "checkpoints/step-000008"])
def test_checkpoints_may_lie_on_another_disk(run, tmp_path, capsys, name):
    moved, disk = shutil.copytree(run, tmp_path / "moved"), tmp_path / "disk"
    (moved / "checkpoints").rename(disk)
    (moved / "checkpoints").symlink_to(disk)
    assert main([str(moved / name), str(tmp_path / "out")]) == 0
    assert json.loads((tmp_path / "out" / "lineage.json").read_text())["run"] == str(moved)
    assert main([str(moved / name), str(disk / "out")]) == 2
    assert "checkpoints, which is the trainer's alone; choose" in capsys.readouterr().err


def test_the_lineage_tells_where_the_run_lies_however_it_was_named(run, tmp_path, monkeypatch):
    monkeypatch.chdir(run.parent)
    given, checkpoint = RunDirectory(Path(run.name)), run / "checkpoints" / "step-000008"
    model = load_recipe(given.config).model
    export_checkpoint(given, read_run_state(checkpoint), checkpoint, tmp_path / "out", model)
    assert json.loads((tmp_path / "out" / "lineage.json").read_text())["run"] == str(run.resolve())


def test_storage_that_fails_for_a_moment_is_no_mistake(run, tmp_path, monkeypatch, capsys):
    out, told = tmp_path / "out", set()
    whole = contents(run / "exports" / "step-000008")
    for path in failures_in_turn(monkeypatch, run, lambda: main([str(run), str(out)])):
        shutil.rmtree(out, ignore_errors=True)
        capsys.readouterr()
        if main([str(run), str(out)]) == 0:  # which gets by without
            assert contents(out) == whole
            continue
        assert not out.exists()
        error = capsys.readouterr().err
        assert error.startswith("error: ")
        assert "/state-" in error if path.name.startswith("state-") else path.name in error  # threads read the parts
        assert "Stale file handle" in error
        assert error.endswith("; give the same command again\n")
        assert error.count("\n") == 1
        told.add(path.name)
    assert told > {"latest", "config.toml", "run_state.json", "manifest.json", "vocab.txt"}


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_mistakes(run, tmp_path, capsys):
    checkpoint = run / "checkpoints" / "step-000008"
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(checkpoint)
    untokenized = shutil.copytree(run, tmp_path / "run", ignore=shutil.ignore_patterns("tokenizer"))
    damaged = shutil.copytree(run, tmp_path / "damaged")
    (damaged / "initial_weights.json").write_text("[" * 100_000)
    mistaken = shutil.copytree(run, tmp_path / "mistaken")
    (mistaken / "manifest.json").write_text("[" * 100_000)
    cut = shutil.copytree(run, tmp_path / "cut")
    (cut / "tokenizer" / "vocab.txt").write_text("[PAD]\n")
    flipped = shutil.copytree(run, tmp_path / "flipped") / "checkpoints" / "step-000008"
    state = flipped / "state-00001-of-00002.safetensors"
    state.write_bytes(state.read_bytes()[:-1] + b"\x55")
    for arguments, message in (
        ([str(flipped), str(tmp_path / "out")], f"{state}: not the bytes that were written"),
        ([str(cut), str(tmp_path / "out")], "vocab.txt: the special token [UNK] is missing"),
        ([str(checkpoint), str(tmp_path)], "is there already; choose another directory"),
        ([str(run / "checkpoints" / "step-000099"), str(tmp_path / "out")], "step-000099: no such checkpoint"),
        ([str(run / "exports" / "step-000008"), str(tmp_path / "out")], "not a RUN/checkpoints/step-...; what"),
        ([str(run / "checkpoints"), str(tmp_path / "out")], "what is beside checkpoints/ is needed too"),
        ([str(checkpoint), str(checkpoint / "out")], "checkpoints, which is the trainer's alone; choose"),
        ([str(checkpoint), str(checkpoint.parent / "step-000009")], "checkpoints, which is the trainer's alone"),
        ([str(checkpoint), str(tmp_path / "link" / "out")], "checkpoints, which is the trainer's alone; choose"),
        ([str(damaged / "checkpoints" / "step-000008"), str(tmp_path / "out")], "initial_weights.json: damaged ("),
        ([str(mistaken), str(tmp_path / "out")], "manifest.json: damaged ("),
        ([str(checkpoint), str(tmp_path / "file" / "out")], f"{tmp_path / 'file'}: File exists"),
        ([str(untokenized / "checkpoints" / "step-000008"), str(tmp_path / "out")], "no tokenizer there"),
    ):
        assert main(arguments) == 2
        error = capsys.readouterr().err
        assert error.startswith("error: ")
        assert message in error
        assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()

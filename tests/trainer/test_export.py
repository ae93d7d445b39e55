"""`python -m trainer.export`: any checkpoint, by any number of ranks, becomes what transformers loads."""

import shutil

import pytest
import torch
from transformers import BertForPreTraining as TheirBert

from tests.ranks import run_ranks
from tests.trainer.rank_tasks import run_pretrain
from trainer.export import main


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
    model = TheirBert.from_pretrained(tmp_path / "out")
    assert torch.isfinite(model.bert.embeddings.word_embeddings.weight).all()


def test_mistakes(run, tmp_path, capsys):
    checkpoint = run / "checkpoints" / "step-000008"
    (tmp_path / "file").touch()
    untokenized = shutil.copytree(run, tmp_path / "run", ignore=shutil.ignore_patterns("tokenizer"))
    damaged = shutil.copytree(run, tmp_path / "damaged")
    (damaged / "initial_weights.json").write_text("{")
    for arguments, message in (
        ([str(checkpoint), str(tmp_path)], "is there already; choose another directory"),
        ([str(run / "checkpoints" / "step-000099"), str(tmp_path / "out")], "step-000099: no such checkpoint"),
        ([str(run / "exports" / "step-000008"), str(tmp_path / "out")], "no such checkpoint; give a RUN/checkpoints/"),
        ([str(run), str(tmp_path / "out")], "no such checkpoint; give a RUN/checkpoints/step-..."),
        ([str(checkpoint), str(checkpoint / "out")], "in the checkpoint, and would go with it"),
        ([str(damaged / "checkpoints" / "step-000008"), str(tmp_path / "out")], "initial_weights.json: damaged ("),
        ([str(checkpoint), str(tmp_path / "file" / "out")], f"{tmp_path / 'file'}: File exists"),
        ([str(untokenized / "checkpoints" / "step-000008"), str(tmp_path / "out")], "no tokenizer there"),
    ):
        assert main(arguments) == 2
        error = capsys.readouterr().err
        assert error.startswith("error: ")
        assert message in error
        assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()

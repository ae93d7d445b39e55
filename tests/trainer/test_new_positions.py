"""`python -m trainer.new_positions`: old positions keep what they had, new ones begin as copies, the rest stays."""

import io
import json
import shutil

import pytest
import torch
from transformers import AutoTokenizer
from transformers import BertForPreTraining as TheirBert
from transformers import MegatronBertForPreTraining as TheirMegatronBert

from preprocessing.schema import checksum
from preprocessing.tokenization import SPECIAL_TOKENS
from tests.trainer.shard_factory import save_tokenizer
from trainer.config import load_recipe
from trainer.hugging_face import TOKENIZER_FILES, load_export, save_export
from trainer.initial_model import find_given
from trainer.model import BertConfig, BertForPreTraining
from trainer.new_positions import main
from trainer.run_directory import RunDirectory
from trainer.settings import ConfigError

WORDS = [*SPECIAL_TOKENS, "the", "cat", "sat"]
CONFIG = BertConfig(
    vocab_size=len(WORDS),
    hidden_size=8,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=16,
    max_position_embeddings=12,
)
POSITIONS = "bert.embeddings.position.weight"


def export(folder, **settings):
    config = BertConfig(**{**CONFIG.__dict__, **settings})
    save_tokenizer(WORDS, True, folder / "tokenizer")
    save_export(folder / "model", BertForPreTraining(config, seed=3).state_dict(), config, folder / "tokenizer", {})
    return folder / "model"


@pytest.fixture
def model(tmp_path):
    return export(tmp_path)


def test_who_lacks_a_letter_of_its_name_is_told_of_it_without(model, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(shown := io.BytesIO(), encoding="ascii"))
    assert main([str(model), "24", str(tmp_path / "größer")]) == 0
    assert shown.getvalue().endswith(b"/gr??er: 24 positions, 12 of them as they were\n")


@pytest.mark.parametrize("positions", [5, 13, 24, 31])
def test_where_rows_come_from(model, tmp_path, positions, capsys, caplog):
    out = tmp_path / "models" / "other"
    assert main([str(model), str(positions), str(out)]) == 0
    kept = min(positions, 12)
    assert capsys.readouterr().out == f"{out}: {positions} positions, {kept} of them as they were\n"
    assert caplog.messages == []
    old, new = load_export(model), load_export(out)
    assert new.config.max_position_embeddings == positions
    assert all(torch.equal(row, old.state[POSITIONS][i % 12]) for i, row in enumerate(new.state[POSITIONS]))
    assert len(new.state[POSITIONS]) == positions
    assert all(torch.equal(new.state[name], old.state[name]) for name in old.state.keys() - {POSITIONS})
    told = json.loads((out / "lineage.json").read_text())
    assert told["initial_weights"] == {"directory": str(model), "blake2b": checksum(model / "model.safetensors")}


@pytest.mark.parametrize(("pre_layer_norm", "theirs"), [(False, TheirBert), (True, TheirMegatronBert)])
def test_transformers_reads_longer_texts_with_it_and_short_ones_as_before(tmp_path, pre_layer_norm, theirs):
    old, new = export(tmp_path, pre_layer_norm=pre_layer_norm), tmp_path / "new"
    assert main([str(old), "24", str(new)]) == 0
    tokenizer = AutoTokenizer.from_pretrained(new)
    assert tokenizer.model_max_length == 24
    text = tokenizer("the cat sat", return_tensors="pt")
    before, after = (theirs.from_pretrained(folder).eval()(**text).prediction_logits for folder in (old, new))
    assert torch.equal(before, after)
    long = tokenizer("the cat sat " * 9, return_tensors="pt", truncation=True)
    assert theirs.from_pretrained(new).eval()(**long).prediction_logits.shape == (1, 24, len(WORDS))


def test_a_recipe_of_longer_texts_names_the_command_and_takes_what_it_makes(model, recipe, tmp_path):
    sizes = [f"model.{name}={json.dumps(value)}" for name, value in CONFIG.__dict__.items()]
    longer = load_recipe(recipe, [*sizes, "model.max_position_embeddings=64"])
    with pytest.raises(ConfigError, match=r"has max_position_embeddings 12, the recipe 64; .*trainer.new_positions"):
        find_given(model).check(longer)
    with pytest.raises(ConfigError, match=r"max_position_embeddings is 12; given weights get more by trainer.new_pos"):
        load_recipe(recipe, sizes)
    assert main([str(model), "64", str(tmp_path / "longer")]) == 0
    find_given(tmp_path / "longer").check(longer)


def test_mistakes(model, tmp_path, capsys):
    bare = shutil.copytree(model, tmp_path / "bare")
    for name in TOKENIZER_FILES:
        (bare / name).unlink(missing_ok=True)
    mixed = shutil.copytree(model, tmp_path / "mixed")
    (mixed / "vocab.txt").write_text("\n".join([*SPECIAL_TOKENS, "sat", "the", "cat"]) + "\n")
    run = RunDirectory(tmp_path / "run")
    run.export(12).mkdir(parents=True)
    out = tmp_path / "out"
    for arguments, message in (
        ([model, "12", out], f"{model}: has 12 positions already"),
        ([model, "24", tmp_path], "is there already; choose another directory"),
        ([tmp_path / "nowhere", "24", out], "config.json: missing"),
        ([run.path, "24", out], f"missing, so it is no export; the newest one is {run.export(12)}"),
        ([bare, "24", out], "no tokenizer there; give a folder with vocab.txt or tokenizer.json"),
        ([mixed, "24", out], "tokenizer.json: has another vocabulary than vocab.txt beside it; copy"),
        ([model, "24", model / "vocab.txt" / "out"], "vocab.txt: File exists"),
    ):
        assert main([str(word) for word in arguments]) == 2
        error = capsys.readouterr().err
        assert error.startswith("error: ")
        assert message in error
        assert error.count("\n") == 1
    assert not out.exists()


@pytest.mark.parametrize(
    ("positions", "reason"),
    [
        ("many", "'many' is not a whole number of 1 or more"),
        ("0", "'0' is not a whole number of 1 or more"),
        ("1_0", "'1_0' is not a whole number of 1 or more"),
        ("65537", "65537 is more than 65536, the most that is taken here"),  # and that shards can need
    ],
)
def test_what_is_no_number_of_positions(tmp_path, capsys, positions, reason):
    with pytest.raises(SystemExit) as stopped:
        main([str(tmp_path), positions, str(tmp_path / "out")])
    assert stopped.value.code == 2
    assert f"argument positions: {reason}" in capsys.readouterr().err

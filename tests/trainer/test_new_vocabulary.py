"""`python -m trainer.new_vocabulary`: words keep what they had, new ones begin with their pieces, the rest stays."""

import io
import json
import re
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer
from transformers import BertForPreTraining as TheirBert

from preprocessing.schema import checksum
from preprocessing.tokenization import SPECIAL_TOKENS, VocabularyError, load_tokenizer, load_words
from tests.failing import failures_in_turn
from tests.trainer.shard_factory import save_tokenizer
from trainer.hugging_face import Export, load_export, save_export
from trainer.lineage import code_version
from trainer.model import BertConfig, BertForPreTraining
from trainer.new_vocabulary import change_vocabulary, main
from trainer.run_directory import RunDirectory

OLD = [*SPECIAL_TOKENS, "##", "cat", "card", "##io", "##gram", "the", "##s"]
EXTENDED = [*SPECIAL_TOKENS, "cardiogram", *OLD[6:], "##grams", "心", "cats"]
CONFIG = BertConfig(
    vocab_size=16,  # four rows more than words
    hidden_size=8,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=16,
    max_position_embeddings=12,
)
WORDS, BIAS = "bert.embeddings.word.weight", "mlm.bias"


@pytest.fixture
def state():
    generator = torch.Generator().manual_seed(3)
    shapes = BertForPreTraining(CONFIG).state_dict()
    return {name: torch.randn(tensor.shape, generator=generator) for name, tensor in shapes.items()}


@pytest.fixture
def model(tmp_path, state):
    save_tokenizer(OLD, True, tmp_path / "old")
    save_export(tmp_path / "model", state, CONFIG, tmp_path / "old", {})
    return tmp_path / "model"


@pytest.fixture
def tokenizer(tmp_path):
    save_tokenizer(EXTENDED, True, tmp_path / "shards" / "tokenizer")
    return tmp_path / "shards" / "tokenizer"


def test_where_rows_come_from(model, tokenizer, tmp_path, state, capsys, caplog, monkeypatch):
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "models" / "domain" / "new"
    assert main([model.name, str(tokenizer), str(out)]) == 0
    assert "15 words, 11 of them as they were, 3 from their pieces, 1 new" in capsys.readouterr().out
    assert caplog.messages == []
    config, changed, initialized = load_export(out)
    assert (config.vocab_size, initialized) == (15, [])
    fresh = BertForPreTraining(config, seed=0).state_dict()
    for name in (WORDS, BIAS):
        old, new = state[name], changed[name]
        for word in set(OLD) & set(EXTENDED):
            assert torch.equal(new[EXTENDED.index(word)], old[OLD.index(word)]), word
        assert torch.equal(new[5], old[[7, 8, 9]].mean(dim=0))  # cardiogram
        assert torch.equal(new[12], old[[9, 11]].mean(dim=0))  # ##grams
        assert torch.equal(new[14], old[[6, 11]].mean(dim=0))  # cats
        assert torch.equal(new[13], fresh[name][13])  # 心, as in a new model
    assert all(torch.equal(changed[name], state[name]) for name in state.keys() - {WORDS, BIAS})
    told = json.loads((out / "lineage.json").read_text())
    assert told["initial_weights"] == {"directory": str(model), "blake2b": checksum(model / "model.safetensors")}
    assert told["code"] == code_version()


def test_who_lacks_a_letter_of_its_name_is_told_of_it_without(model, tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(shown := io.BytesIO(), encoding="ascii"))
    assert main([str(model), str(tokenizer), str(tmp_path / "größer")]) == 0
    assert b"/gr??er: 15 words, 11 of them" in shown.getvalue()


def test_capitals_and_accents_that_a_model_does_not_know_are_what_it_took_them_for(state):
    """An uncased model under a cased vocabulary: it has read these words, without them."""
    words = [*SPECIAL_TOKENS, "Cat", "CARDIOGRAM", "##Ś", "the", "Ca心t", "cats"]
    export = Export(CONFIG, state, [])
    changed = change_vocabulary(export, OLD, words)
    old, new = state[WORDS], changed.state[WORDS]
    assert torch.equal(new[5], old[6])
    assert torch.equal(new[6], old[[7, 8, 9]].mean(dim=0))
    assert torch.equal(new[7], old[11])
    assert (changed.kept, changed.from_pieces, changed.new) == (6, 4, 1)


def test_what_the_model_lacks_is_told(model, tokenizer, tmp_path, caplog):
    """As an encoder without heads does."""
    weights = model / "model.safetensors"
    save_file({name: tensor for name, tensor in load_file(weights).items() if "seq_rel" not in name}, weights)
    assert main([str(model), str(tokenizer), str(tmp_path / "out")]) == 0
    assert caplog.messages == [f"{model} has no nsp.weight, nsp.bias: newly initialised"]


def test_a_text_of_old_words_means_what_it_meant(model, tokenizer, tmp_path):
    assert main([str(model), str(tokenizer), str(tmp_path / "out")]) == 0
    scores = []
    for directory in (model, tmp_path / "out"):
        read, ids = AutoTokenizer.from_pretrained(directory), load_words(directory)
        tokens = read("the cat [MASK] card", return_tensors="pt")
        logits = TheirBert.from_pretrained(directory).eval()(**tokens).prediction_logits
        scores.append(logits[..., [ids.index(word) for word in OLD[6:]]])
    assert torch.equal(*scores)


def test_words_that_transformers_4_added_keep_their_embeddings(model, tmp_path):
    """Its add_tokens changes tokenizer.json, and vocab.txt not."""
    read = load_tokenizer(model)
    read.add_tokens(["cardiogram"])
    read.save(str(model / "tokenizer.json"))
    save_tokenizer([*OLD, "cardiogram"], True, tmp_path / "new")
    assert main([str(model), str(tmp_path / "new"), str(tmp_path / "out")]) == 0
    before, after = load_export(model).state, load_export(tmp_path / "out").state
    assert torch.equal(after[WORDS], before[WORDS][: len(OLD) + 1])


def test_the_same_vocabulary_in_another_order_and_back(model, tmp_path):
    other = [*SPECIAL_TOKENS[::-1], *OLD[:4:-1]]
    save_tokenizer(other, True, tmp_path / "other")
    assert main([str(model), str(tmp_path / "other"), str(tmp_path / "there")]) == 0
    assert load_export(tmp_path / "there").config.pad_token_id == 4
    assert main([str(tmp_path / "there"), str(tmp_path / "old"), str(tmp_path / "back")]) == 0
    before, after = load_export(model).state, load_export(tmp_path / "back").state
    assert torch.equal(after[WORDS], before[WORDS][: len(OLD)])


def test_half_precision_and_a_tokenizer_without_its_list(model):
    weights = model / "model.safetensors"
    save_file({name: tensor.half() for name, tensor in load_file(weights).items()}, weights)
    (model / "vocab.txt").unlink()
    export = load_export(model)
    changed = change_vocabulary(export, load_words(model), EXTENDED)
    assert torch.equal(changed.state[WORDS][5], export.state[WORDS][[7, 8, 9]].float().mean(dim=0))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"cat":6', '"cat":60', "tokenizer.json: its ids are not those from 0 to"),
        ('"[PAD]"', '"[VOID]"', "tokenizer.json: the special token [PAD] is missing"),
    ],
)
def test_a_tokenizer_without_its_list_needs_all_ids_and_special_tokens(model, old, new, message):
    (model / "vocab.txt").unlink()
    described = json.loads((model / "tokenizer.json").read_text())
    described["model"]["vocab"] = json.loads(
        json.dumps(described["model"]["vocab"], separators=(",", ":")).replace(old, new)
    )
    described["added_tokens"] = [token for token in described["added_tokens"] if token["content"] != "[PAD]"]
    (model / "tokenizer.json").write_text(json.dumps(described))
    with pytest.raises(VocabularyError, match=re.escape(message)):
        load_words(model)


def test_storage_that_fails_for_a_moment_is_no_mistake(model, tokenizer, tmp_path, monkeypatch, capsys):
    arguments, out = [str(model), str(tokenizer), str(tmp_path / "out" / "new")], tmp_path / "out"
    for folder in (model, tokenizer):
        with monkeypatch.context() as patch:
            for path in failures_in_turn(patch, folder, lambda: main(arguments)):
                shutil.rmtree(out, ignore_errors=True)
                capsys.readouterr()
                if main(arguments) == 0:  # which gets by without
                    assert len(list((out / "new").iterdir())) == 6
                    continue
                error = capsys.readouterr().err
                assert error.startswith(f"error: {path}: ")
                assert "Stale file handle" in error
                assert error.endswith("; give the same command again\n")
                assert error.count("\n") == 1
            shutil.rmtree(out, ignore_errors=True)


def test_mistakes(model, tokenizer, tmp_path, capsys):
    small = shutil.copytree(model, tmp_path / "small")
    save_tokenizer([*OLD, *"abcde"], True, small)
    mixed = shutil.copytree(tokenizer, tmp_path / "mixed")
    shutil.copy(model / "tokenizer.json", mixed)
    run = RunDirectory(tmp_path / "run")
    run.export(12).mkdir(parents=True)
    for arguments, message in (
        ([model, mixed, tmp_path / "out"], "tokenizer.json: has another vocabulary than vocab.txt beside it; copy"),
        ([model, tokenizer, tmp_path], "is there already; choose another directory"),
        ([tmp_path / "nowhere", tokenizer, tmp_path / "out"], "config.json: missing"),
        ([model, tmp_path / "nowhere", tmp_path / "out"], "tokenizer.json: no such file"),
        ([model, tokenizer.parent, tmp_path / "out"], f"is a folder of shards; its tokenizer is {tokenizer}"),
        ([run.path, tokenizer, tmp_path / "out"], f"missing, so it is no export; the newest one is {run.export(12)}"),
        ([model, tokenizer, tokenizer / "vocab.txt" / "out"], "vocab.txt: File exists"),
        ([small, tokenizer, tmp_path / "out"], "the model's tokenizer has 17 words and its weights 16 rows"),
    ):
        assert main([str(word) for word in arguments]) == 2
        error = capsys.readouterr().err
        assert error.startswith("error: ")
        assert message in error
        assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()

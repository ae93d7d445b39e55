"""Models that are kept: what transformers makes of the folder is what the evaluation found."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from scipy.special import softmax

from benchmarks import transformers_finetuning as peer
from eval.encoding import Encoder
from eval.finetune import Settings, predict
from eval.inputs import open_checkpoint
from eval.kinds import Choices, Kind, Questions, Tags, Texts
from eval.models import origin_of, save_model, why_not_saved
from eval.readers.examples import Answer, ChoiceExample, QuestionExample, TaggedSentence, TextExample
from eval.tasks import TASKS
from eval.tasks.finetuned import FineTuned
from preprocessing.tokenization import load_tokenizer
from tests.eval.conftest import CONFIG, random_state
from trainer.hugging_face import load_export, save_export
from trainer.model import BertConfig

WORDS = [f"word{i}" for i in range(12)]
CASES: dict[str, tuple[Kind, list[Any]]] = {
    "classes of pairs": (
        Texts(("no", "yes", "maybe")),
        [TextExample(str(i), " ".join(WORDS[: i + 1]), " ".join(WORDS[i:]), i % 3) for i in range(9)],
    ),
    "figures": (Texts((), ("spearman",)), [TextExample(str(i), WORDS[i], None, i / 2) for i in range(9)]),
    "choices": (
        Choices(),
        [ChoiceExample(str(i), " ".join(WORDS[: i + 1]), "", tuple(WORDS[i : i + 4]), i % 4) for i in range(6)],
    ),
    "answers": (
        Questions("v1.1"),
        [QuestionExample(str(i), WORDS[i], " ".join(WORDS), (Answer(WORDS[0], 0),)) for i in range(6)],
    ),
    "tags": (
        Tags(context=False),
        [TaggedSentence(str(i), tuple(WORDS[i : i + 4]), ("O", "B-PER", "I-PER", "O"), i) for i in range(6)],
    ),
}
POST = dataclasses.replace(CONFIG, max_position_embeddings=96)
PRE = dataclasses.replace(POST, pre_layer_norm=True)


@pytest.mark.parametrize("config", [POST, PRE], ids=["bert", "megatron-bert"])
@pytest.mark.parametrize("name", CASES)
def test_transformers_loads_it_whole_and_says_the_same(
    name: str, config: BertConfig, shards: Path, tmp_path: Path
) -> None:
    kind, examples = CASES[name]
    checkpoint, folder = tmp_path / "export", tmp_path / "models" / "task"
    save_export(checkpoint, random_state(config), config, shards / "tokenizer", {"step": 7})
    ours = kind.build(load_export(checkpoint), seed=1)
    with torch.no_grad():
        ours.head.output.weight.mul_(15.0)  # scores that differ
        ours.head.output.bias.copy_(torch.arange(len(ours.head.output.bias)))
    save_model(folder, ours, kind, open_checkpoint(checkpoint), {"task": name}, {"dev": {"f1": 50.0}}, {})

    settings = json.loads((folder / "config.json").read_text())
    prefix = "MegatronBert" if config.pre_layer_norm else "Bert"
    assert settings["architectures"] == [prefix + str(kind.published_as)]
    theirs, told = getattr(transformers, settings["architectures"][0]).from_pretrained(
        folder, output_loading_info=True, attn_implementation="eager"
    )
    assert not any(told.values()), told  # nothing missing, too much, or of another shape
    samples = kind.encode(examples, Encoder(load_tokenizer(folder), 96), training=False)
    expected = peer.predict(theirs, samples, kind)
    for one, other in zip(predict(ours, samples, kind.collate, Settings(), torch.device("cpu")), expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=2e-5)
    assert np.ptp(np.concatenate([np.ravel(logits) for logits in expected])) > 0.1
    if isinstance(kind, Texts | Tags):
        assert list(theirs.config.id2label.values()) == list(kind.classes or ["score"])
        assert theirs.config.label2id == {label: i for i, label in theirs.config.id2label.items()}


@pytest.mark.parametrize(
    "kind", [Texts(("billing", "delivery")), Texts(("0", "1"), names=("billing", "delivery"))], ids=["words", "numbers"]
)
def test_a_pipeline_of_transformers_names_the_classes(kind: Texts, shards: Path, tmp_path: Path) -> None:
    save_export(tmp_path / "export", random_state(), CONFIG, shards / "tokenizer", {})
    checkpoint = open_checkpoint(tmp_path / "export")
    save_model(tmp_path / "model", kind.build(checkpoint.export, seed=1), kind, checkpoint, {}, {}, {})
    pipeline = transformers.pipeline("text-classification", str(tmp_path / "model"), device="cpu")
    texts = ["word1 word2", "word1 " * 500]
    assert {found["label"] for found in pipeline(texts, truncation=True)} <= {"billing", "delivery"}


def test_classes_that_files_have_as_numbers_have_names_and_results_are_of_the_same_task() -> None:
    kinds = {name: task.kind for name, task in TASKS.items() if isinstance(task, FineTuned)}
    numbered = {name: kind for name, kind in kinds.items() if isinstance(kind, Texts) and kind.labels[:1] == ("0",)}
    assert numbered.keys() == {"cola", "sst2", "mrpc", "qqp", "wnli", "nsmc"}
    for kind in numbered.values():
        assert len(set(kind.names)) == len(kind.labels)
        assert repr(kind) == repr(dataclasses.replace(kind, names=()))


def test_a_pipeline_of_transformers_takes_pairs_to_a_model_of_one_type(shards: Path, tmp_path: Path) -> None:
    config = dataclasses.replace(CONFIG, type_vocab_size=1)
    kind, examples = CASES["classes of pairs"]
    save_export(tmp_path / "export", random_state(config), config, shards / "tokenizer", {})
    checkpoint = open_checkpoint(tmp_path / "export")
    model = kind.build(checkpoint.export, seed=1)
    save_model(tmp_path / "model", model, kind, checkpoint, {}, {}, {})
    pipeline = transformers.pipeline("text-classification", str(tmp_path / "model"), device="cpu", top_k=None)
    samples = kind.encode(examples, Encoder(checkpoint.tokenizer, 48), training=False)
    logits = predict(model, samples, kind.collate, Settings(), torch.device("cpu"))
    found = pipeline([{"text": example.a, "text_pair": example.b} for example in examples])
    for scores, told in zip(softmax(np.stack(logits), axis=1), found, strict=True):
        assert {of["label"]: of["score"] for of in told} == pytest.approx(
            dict(zip(kind.classes, scores, strict=True)), abs=1e-5
        )


def test_its_encoder_can_be_learned_on(shards: Path, tmp_path: Path) -> None:
    """As RTE from a model that has learned MNLI: the encoder and pooler are read, and the head is left."""
    save_export(tmp_path / "export", random_state(), CONFIG, shards / "tokenizer", {})
    checkpoint, kind = open_checkpoint(tmp_path / "export"), Texts(("a", "b", "c"))
    model = kind.build(checkpoint.export, seed=1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.25)
    save_model(tmp_path / "model", model, kind, checkpoint, {}, {}, {})
    again = Texts(("x", "y")).build(load_export(tmp_path / "model"), seed=2)
    for name, tensor in model.state_dict().items():
        if not name.startswith("head.output."):
            torch.testing.assert_close(again.state_dict()[name], tensor, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("task", "is_decoder", "reason"),
    [
        ("mrpc", False, None),
        ("conll2003", True, None),
        ("squad_v2", True, None),
        ("mrpc", True, "judged by its last token"),
        ("swag", True, "judged by its last token"),
        ("conll2003_last", False, "no class for a BiLSTM"),
    ],
)
def test_what_transformers_has_no_class_for(task: str, is_decoder: bool, reason: str | None) -> None:
    found = why_not_saved(TASKS[task].kind, dataclasses.replace(CONFIG, is_decoder=is_decoder))
    assert found == reason if reason is None else reason in str(found)


@pytest.mark.parametrize("content", [None, "{", "[]", "{}", '{"fine_tuned": 3}', "[" * 100_000])
def test_a_folder_of_something_else_is_no_model_of_ours(content: str | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "lineage.json").write_text(content)
    assert origin_of(tmp_path) is None

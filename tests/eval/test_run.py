"""The command: what it writes, what it refuses, and what MLflow gets."""

import argparse
import dataclasses
import errno
import json
import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from mlflow.tracking import MlflowClient
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer

from eval import inputs, plan, probe
from eval import run as evaluation
from eval.errors import UsageError
from eval.inputs import choose_length
from eval.options import parse
from eval.plan import Plan
from eval.run import main
from eval.tracked import tracked_metrics
from preprocessing.schema import ShardDirectory, checksum
from preprocessing.tokenization import CLS, load_tokenizer
from tests.eval.conftest import CONFIG, STEP, random_state
from tests.eval.evaluations import results_of
from tests.failing import REASON, fail_at
from tests.streams import stdout_to
from tests.trainer.mlflow_store import empty_store, write_run
from tests.trainer.shard_factory import write_shards
from trainer import tracking
from trainer.hugging_face import Export, save_export
from trainer.run_directory import RunDirectory

ALL = "mlm,nsp,fill_mask"


def run(export: Path, output: Path, shards: Path | None, *options: str, tasks: str = ALL, track: bool = False) -> int:
    argv = ["--checkpoint", str(export), "--output", str(output), "--tasks", tasks, *options]
    argv += ["--shards", str(shards)] if shards else []
    return main(argv if track else [*argv, "--no-tracking"])


def test_results(export: Path, shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(export, tmp_path / "new" / "results", shards) == 0
    results = results_of(tmp_path / "new" / "results")
    manifest = ShardDirectory(shards).manifest_blake2b
    assert results["checkpoint"] == {
        "path": str(export),
        "weights_blake2b": checksum(export / "model.safetensors"),
        "lineage": json.loads((export / "lineage.json").read_text()),
    }
    assert results["shards"] == {
        "path": str(shards), "manifest_blake2b": manifest, "sequence_length": 40, "samples": 33,
    }  # fmt: skip
    threads = torch.get_num_threads()
    assert results["settings"] == {"dtype": "float32", "device": "cpu", "batch_size": 32, "threads": threads}
    assert results["code"] == plan.code_version()
    assert results["seconds"] > 0
    assert list(results["tasks"]) == ["mlm", "nsp", "fill_mask"]
    for task, metrics in (("mlm", ["perplexity", "loss", "accuracy"]), ("nsp", ["accuracy", "loss"])):
        found = results["tasks"][task]
        assert (found["version"], list(found["metrics"])) == (1, metrics)
        assert all(len(figure) == 4 and figure["half_width"] > 0 for figure in found["metrics"].values())
        assert found["baselines"].keys() == found["metrics"].keys()
    baselines = {name: figure["baseline"] for name, figure in results["tasks"]["mlm"]["metrics"].items()}
    assert baselines["perplexity"] == pytest.approx(math.exp(baselines["loss"]))
    share, entropy = (results["tasks"]["nsp"]["metrics"][name]["baseline"] for name in ("accuracy", "loss"))
    assert share == pytest.approx(17 / 33)  # whose second segments are random
    assert results["tasks"]["nsp"]["baselines"]["accuracy"] == "always 'random', the larger class"
    assert entropy == pytest.approx(-share * math.log(share) - (1 - share) * math.log(1 - share))
    assert len(results["tasks"]["fill_mask"]["details"]["sentences"]) == 10
    assert sorted(path.name for path in (tmp_path / "new" / "results").iterdir()) == [".collect.lock", "results.json"]
    assert (results["data"], results["fine_tuning"], results["failed"], results["files"]) == (None, None, {}, [])

    shown = capsys.readouterr().out
    perplexity = results["tasks"]["mlm"]["metrics"]["perplexity"]
    assert f" {perplexity['value']:,.1f} ± {perplexity['half_width']:,.1f} |" in shown
    assert f"{perplexity['baseline']:,.1f} | unigrams of the training text" in shown
    assert f"| {probe.SENTENCES[0]}" in shown
    assert "trained on other shards" in shown  # the lineage of this export names others


def test_twice_the_same(export: Path, shards: Path, tmp_path: Path) -> None:
    found = []
    for name in ("a", "b"):
        assert run(export, tmp_path / name, shards) == 0
        found.append(results_of(tmp_path / name))
        assert found[-1].pop("seconds") > 0
    assert found[0] == found[1]


def test_samples_and_lengths_as_asked(export: Path, shards: Path, tmp_path: Path) -> None:
    assert run(export, tmp_path, shards, "--samples", "9", "--sequence-length", "32", "--batch-size", "4") == 0
    results = results_of(tmp_path)
    assert (results["shards"]["samples"], results["shards"]["sequence_length"]) == (9, 32)
    assert results["tasks"]["nsp"]["details"] == {"samples": 9}


def test_lengths() -> None:
    assert choose_length(None, [32, 40, 64], 48) == 40
    assert choose_length(None, [512, 128], 512) == 512
    assert choose_length(32, [32, 40, 64], 48) == 32
    with pytest.raises(UsageError, match=r"^sequences of 64 tokens, but the model has 48 positions"):
        choose_length(None, [96, 64], 48)


def test_own_sentences(export: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "sentences.txt"
    longest = "[MASK]" + 45 * " word1"  # of 48 tokens, as many as the model has positions
    file.write_text(
        f"word1 [MASK]\u2028word2\n\n  [MASK] [MASK]  \n{longest}\n", encoding="utf-8-sig"
    )  # one line, as editors see it
    assert run(export, tmp_path, None, "--sentences", str(file), tasks="fill_mask") == 0  # no shards needed
    sentences = results_of(tmp_path)["tasks"]["fill_mask"]["details"]["sentences"]
    assert [(s["sentence"], len(s["masks"])) for s in sentences] == [
        ("word1 [MASK]\u2028word2", 1),
        ("[MASK] [MASK]", 2),
        (longest, 1),
    ]
    assert all(len(mask) == 5 for s in sentences for mask in s["masks"])
    assert results_of(tmp_path)["shards"] is None
    assert "... [MASK] 2" in capsys.readouterr().out


def test_a_tokenizer_that_cuts_and_pads_does_not_here(export: Path, tmp_path: Path) -> None:
    found = []
    for name in ("as it was", "cutting"):
        assert run(export, tmp_path / name, None, tasks="fill_mask") == 0
        found.append(results_of(tmp_path / name)["tasks"])
        tokenizer = load_tokenizer(export)
        tokenizer.enable_truncation(4)
        tokenizer.enable_padding(length=16)
        tokenizer.save(str(export / "tokenizer.json"))
    assert found[0] == found[1]


@pytest.mark.parametrize("change", [
    {"special_tokens": {}}, {"special_tokens": {CLS: {"id": CLS, "ids": [10**6], "tokens": [CLS]}}},
    {"single": [{"SpecialToken": {"id": "[GONE]", "type_id": 0}}]},
    {"single": [{"Sequence": {"id": "B", "type_id": 0}}]},
])  # fmt: skip
def test_texts_are_framed_as_bert_does_it_whatever_the_tokenizer_s_file_says(
    export: Path, tmp_path: Path, change: dict
) -> None:
    """`tokenizers` takes such a file as it is, and panics when it is given a text."""
    assert run(export, tmp_path / "as it was", None, tasks="fill_mask") == 0
    content = json.loads((export / "tokenizer.json").read_text())
    content["post_processor"] |= change
    (export / "tokenizer.json").write_text(json.dumps(content))
    assert run(export, tmp_path / "damaged", None, tasks="fill_mask") == 0
    assert results_of(tmp_path / "damaged")["tasks"] == results_of(tmp_path / "as it was")["tasks"]


def test_a_tokenizer_without_the_word_that_it_has_for_unknown_ones(
    export: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It would fail at the first unknown one."""
    content = json.loads((export / "tokenizer.json").read_text())
    content["model"]["unk_token"] = "zzz"
    (export / "tokenizer.json").write_text(json.dumps(content))
    code = run(export, tmp_path / "results", None, tasks="fill_mask")
    told = f"{export}/tokenizer.json: has the unk_token 'zzz', which its vocabulary lacks; set it to [UNK] there"
    assert_refused(code, capsys, tmp_path / "results", told)


def test_weights_whose_products_are_no_numbers(
    export: Path, shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = load_file(export / "model.safetensors")
    state["cls.predictions.transform.LayerNorm.weight"] *= 1e38
    save_file(state, export / "model.safetensors")
    assert run(export, tmp_path / "results", shards, tasks="mlm,nsp,fill_mask") == 1
    assert capsys.readouterr().err.count("the model computes NaN or infinity, for its weights are too large") == 3


def test_weights_in_a_pickle_as_older_models_are_published(export: Path, shards: Path, tmp_path: Path) -> None:
    assert run(export, tmp_path / "ours", shards, tasks="mlm,nsp") == 0
    torch.save(load_file(export / "model.safetensors"), export / "pytorch_model.bin")
    (export / "model.safetensors").unlink()
    assert run(export, tmp_path / "older", shards, tasks="mlm,nsp") == 0

    ours, older = results_of(tmp_path / "ours"), results_of(tmp_path / "older")
    assert older["tasks"] == ours["tasks"]
    assert older["checkpoint"]["weights_blake2b"] == checksum(export / "pytorch_model.bin")


@pytest.mark.parametrize(
    ("architectures", "named"),
    [(["BertForMaskedLM"], "BertForMaskedLM"), (None, "AutoModel"), (["x(); y"], "AutoModel"), ({}, "AutoModel")],
)
def test_weights_in_another_format_become_ours_by_their_own_class(
    export: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], architectures: object, named: str
) -> None:
    """Another one would draw heads that they lack, and these would then be evaluated."""
    (export / "model.safetensors").rename(export / "tf_model.h5")
    content = json.loads((export / "config.json").read_text())
    (export / "config.json").write_text(json.dumps(content | {"architectures": architectures}))
    code = run(export, tmp_path / "results", None, tasks="fill_mask")
    assert_refused(code, capsys, tmp_path / "results", f"transformers: {named}.from_pretrained(X).save_pretrained(X)")


def test_two_words_of_one_id(export: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = json.loads((export / "tokenizer.json").read_text())
    content["model"]["vocab"]["word1"] = content["model"]["vocab"]["word2"]
    (export / "tokenizer.json").write_text(json.dumps(content))
    (export / "vocab.txt").unlink()
    code = run(export, tmp_path / "results", None, tasks="fill_mask")
    assert_refused(code, capsys, tmp_path / "results", "tokenizer.json: gives 'word1' and 'word2' the same id 7")


def test_threads(export: Path, tmp_path: Path) -> None:
    assert run(export, tmp_path, None, "--threads", "2", tasks="fill_mask") == 0
    assert results_of(tmp_path)["settings"]["threads"] == 2
    torch.set_num_threads(1)


def test_an_export_of_another_program(export: Path, shards: Path, tmp_path: Path) -> None:
    (export / "lineage.json").unlink()
    assert run(export, tmp_path, shards) == 0
    assert results_of(tmp_path)["checkpoint"]["lineage"] == {}


@pytest.mark.parametrize(
    "lineage", [{}, {"manifest_blake2b": "ours"}, {"manifest_blake2b": "0d", "shards_blake2b": ["0d", "ours"]}]
)
def test_of_held_out_samples_of_the_shards_that_were_trained_on_there_is_nothing_to_say(
    export: Path, shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], lineage: dict[str, Any]
) -> None:
    """Nor where another program wrote the export. Of several directories each is told."""
    text = json.dumps(lineage).replace("ours", ShardDirectory(shards).manifest_blake2b)
    (export / "lineage.json").write_text(text)
    assert run(export, tmp_path / "results", shards, tasks="mlm") == 0
    assert "other shards" not in capsys.readouterr().out


def test_figures_on_other_shards_are_not_replaced(
    export: Path, shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "results"
    others = write_shards(tmp_path / "shards", sequence_lengths=(32, 40, 64), validation=(6, 6))
    assert run(export, out, shards, tasks="pretraining") == 0
    found = results_of(out)
    capsys.readouterr()
    assert run(export, out, others, tasks="mlm,fill_mask") == 2
    assert capsys.readouterr().err == (
        f"error: {out}/results.json: has mlm of other shards, that lay in {shards}; choose another --output, or "
        "delete that file\n"
    )
    assert results_of(out) == found
    assert run(export, out, others, tasks="fill_mask") == 0  # which reads none
    assert run(export, out, others, tasks="mlm") == 2
    assert run(export, out, shards, tasks="mlm") == 0
    assert run(export, tmp_path / "others", others, tasks="mlm") == 0


def test_a_model_that_learned_something_else_says_what(
    export: Path, shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = dataclasses.replace(CONFIG, is_decoder=True)
    save_export(export.with_name("step-000009"), random_state(config), config, shards / "tokenizer", {})
    (export.parents[1] / "config.toml").write_text("[train]\nnext_sentence = false\n")
    assert run(export.with_name("step-000009"), tmp_path, shards, tasks="pretraining") == 0
    tasks = results_of(tmp_path)["tasks"]
    assert {name: task["details"]["instead"] for name, task in tasks.items()} == {
        "mlm": "next words", "nsp": "an untrained head",
    }  # fmt: skip
    rows = {line.split(" | ")[0].strip("| ") for line in capsys.readouterr().out.splitlines()}
    assert {"mlm perplexity, next words", "nsp accuracy, an untrained head"} <= rows
    assert tracked_metrics(results_of(tmp_path)).keys() == {f"mlm_{metric}" for metric in tasks["mlm"]["metrics"]}
    assert run(export, tmp_path / "masked", shards, tasks="mlm") == 0
    masked = results_of(tmp_path / "masked")["tasks"]["mlm"]["details"]
    assert "instead" not in masked
    assert tasks["mlm"]["details"]["words"] > 3 * masked["words"]  # all of the text, and not 15 in 100


def test_next_sentences_of_shards_that_have_none_are_no_figures(
    export: Path, shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As `make_shards --no-nsp` makes them: every label would be the same."""
    shutil.copytree(shards, alone := tmp_path / "alone")
    manifest = json.loads((alone / "manifest.json").read_text())
    manifest["options"]["pairs"] = {"next_sentence": False}
    (alone / "manifest.json").write_text(json.dumps(manifest))
    assert run(export, tmp_path / "results", alone, tasks="nsp") == 0
    results = results_of(tmp_path / "results")
    assert results["tasks"]["nsp"]["details"]["instead"] == "samples of one segment"
    assert "nsp accuracy, samples of one segment" in capsys.readouterr().out
    assert tracked_metrics(results) == {}


def test_an_export_that_is_replaced_while_it_is_read_is_evaluated_as_it_is_then(
    export: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a run that went back, say. The figures are those of the weights whose checksum stands beside them."""
    load, before = inputs.load_export, checksum(export / "model.safetensors")
    loaded: list[Path] = []

    def load_and_replace(path: Path) -> Export:
        found = load(path)
        if not loaded:
            state = random_state()
            first = state["mlm.bias"].roll(1)
            save_export(export, state | {"mlm.bias": first}, CONFIG, export, {"step": STEP})
        loaded.append(path)
        return found

    monkeypatch.setattr(inputs, "load_export", load_and_replace)
    assert run(export, tmp_path / "replaced", None, tasks="fill_mask") == 0
    assert run(export, tmp_path / "later", None, tasks="fill_mask") == 0
    replaced, later = (results_of(tmp_path / name) for name in ("replaced", "later"))
    assert later["checkpoint"]["weights_blake2b"] != before
    assert replaced["checkpoint"] == later["checkpoint"]
    assert replaced["tasks"] == later["tasks"]


def test_results_name_the_export_that_a_link_led_to_at_the_start(
    export: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    newer, link = export.with_name("step-000009"), export.with_name("latest")
    shutil.copytree(export, newer)
    link.symlink_to(export.name)
    prepare = evaluation.prepare

    def prepare_and_move(arguments: argparse.Namespace) -> Plan:
        plan = prepare(arguments)
        link.unlink()
        link.symlink_to(newer.name)
        return plan

    monkeypatch.setattr(evaluation, "prepare", prepare_and_move)
    assert run(link, tmp_path / "results", None, tasks="fill_mask") == 0
    assert results_of(tmp_path / "results")["checkpoint"]["path"] == str(export)


def test_one_pass_serves_both(export: Path, shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    passes = []
    score = probe.score
    monkeypatch.setattr(probe, "score", lambda *arguments: passes.append(None) or score(*arguments))
    assert run(export, tmp_path, shards, tasks="pretraining") == 0
    assert len(passes) == 1


def test_no_more_is_computed_than_there_are_samples(
    export: Path, shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = []
    score = probe.score
    monkeypatch.setattr(
        probe, "score", lambda model, batches: score(model, (sizes.append(len(b.nsp_labels)) or b for b in batches))
    )
    assert run(export, tmp_path, shards, "--batch-size", "1000", tasks="mlm") == 0
    assert sizes == [33]


def without(name: str) -> Callable[[Path], None]:
    return lambda export: (export / name).unlink()


def reweighted(change: Callable[[dict], dict]) -> Callable[[Path], None]:
    def apply(export: Path) -> None:
        file = export / "model.safetensors"
        save_file(change(load_file(file)), file, metadata={"format": "pt"})

    return apply


def overwritten(name: str, text: str) -> Callable[[Path], None]:
    return lambda export: (export / name).write_text(text)


def lacking(prefix: str) -> Callable[[Path], None]:
    return reweighted(lambda state: {name: value for name, value in state.items() if not name.startswith(prefix)})


def without_normalizer(export: Path) -> None:
    content = json.loads((export / "tokenizer.json").read_text())
    (export / "tokenizer.json").write_text(json.dumps(content | {"normalizer": None}))


INCOMPLETE = {
    "no directory": (shutil.rmtree, "config.json: missing"),
    "no configuration": (without("config.json"), "config.json: missing"),
    "no weights": (without("model.safetensors"), "model.safetensors: missing"),
    "cut weights": (overwritten("model.safetensors", "x"), "model.safetensors: damaged"),
    "no tokenizer": (without("tokenizer.json"), "tokenizer.json: no such file"),
    "no normalizer": (without_normalizer, "tokenizer.json: keeps the case of words, but its vocabulary has no upper"),
    "damaged lineage": (overwritten("lineage.json", "{"), "lineage.json: not JSON"),
    "lineage nested without end": (overwritten("lineage.json", "[" * 100_000), "lineage.json: not JSON"),
    "lineage that is no object": (overwritten("lineage.json", "[]"), "lineage.json: not a JSON object"),
    "lineage of another kind": (overwritten("lineage.json", '{"step": "7"}'), "lineage.json: step is '7', not as an"),
    "lineage of no step": (overwritten("lineage.json", f'{{"step": {10**30}}}'), "lineage.json: step is 1000000"),
    "lineage of no shards": (overwritten("lineage.json", '{"shards_blake2b": 5}'), "json: shards_blake2b is 5, not as"),
    "lineage of no code": (overwritten("lineage.json", '{"code": 7}'), "lineage.json: code is 7, not as an"),
    "no head for words": (lacking("cls.predictions.transform.dense"), "lacks mlm.dense.weight, which mlm needs"),
    "no head for sentences": (lacking("cls.seq_relationship"), "lacks nsp.weight, which nsp needs"),
    "no pooler": (lacking("bert.pooler"), "lacks pooler.dense.weight, which nsp needs"),
    "diverged": (
        reweighted(lambda state: state | {"cls.predictions.bias": torch.full((64,), torch.nan)}),
        "mlm.bias contains NaN or infinity",
    ),
}


def test_a_byte_of_a_held_out_shard_that_has_flipped(
    export: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It would be another word, and the figures be those of data that no manifest names."""
    shards = write_shards(tmp_path / "shards", sequence_lengths=(32, 40, 64), validation=(6, 5))
    damaged = next(shards.glob("validation-shard-00001-*"))
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)
    code = run(export, tmp_path / "results", shards, tasks="mlm")
    assert_refused(code, capsys, tmp_path / "results", f"{damaged}: checksum differs from the manifest")


def assert_refused(code: int, capsys: pytest.CaptureFixture[str], output: Path, *fragments: str) -> None:
    captured = capsys.readouterr()
    assert code == 2
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    assert [fragment for fragment in fragments if fragment not in captured.err] == []
    assert not output.exists()  # before anything was computed


@pytest.mark.parametrize("case", INCOMPLETE)
def test_an_incomplete_export(
    export: Path, shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], case: str
) -> None:
    spoil, message = INCOMPLETE[case]
    spoil(export)
    assert_refused(run(export, tmp_path / "results", shards), capsys, tmp_path / "results", message)


def test_without_a_head_for_words_no_mask_is_filled(
    export: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lacking("cls.predictions.transform.dense")(export)
    code = run(export, tmp_path / "results", None, tasks="fill_mask")
    assert_refused(code, capsys, tmp_path / "results", "lacks mlm.dense.weight, which fill_mask needs")


@pytest.mark.parametrize("given", ["runs/demo", "runs/demo/exports", "runs/demo/checkpoints/step-000060"])
def test_of_a_folder_of_the_run_that_is_no_export_the_newest_export_is_told(
    export: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], given: str
) -> None:
    shutil.copytree(export, newest := export.with_name("step-1000000"))
    (tmp_path / given).mkdir(parents=True, exist_ok=True)
    code = run(tmp_path / given, tmp_path / "results", None, tasks="fill_mask")
    told = f"{tmp_path / given / 'config.json'}: missing, so it is no export; the newest one is {newest}\n"
    assert_refused(code, capsys, tmp_path / "results", told)


def test_a_vocabulary_without_its_tokenizer_is_told_with_how_to_make_it(
    export: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (export / "tokenizer.json").unlink()
    code = run(export, tmp_path / "results", None, tasks="fill_mask")
    how = f"AutoTokenizer.from_pretrained('{export}').save_pretrained('{export}')"
    assert_refused(code, capsys, tmp_path / "results", how)
    AutoTokenizer.from_pretrained(str(export)).save_pretrained(str(export))
    assert run(export, tmp_path / "results", None, tasks="fill_mask") == 0


@pytest.mark.parametrize(
    ("options", "tasks", "message"),
    [
        ([], "mlm,glew", "no task is named 'glew'; did you mean glue?"),
        ([], ",", "no tasks; name some of mlm, nsp, fill_mask, cola, "),
        (["--sequence-length", "64"], "mlm", "sequences of 64 tokens, but the model has 48 positions"),
        (["--sequence-length", "33"], "mlm", "no pairs for sequence length 33, only for [32, 40, 64]"),
        (["--sentences", "nowhere.txt"], "fill_mask", "nowhere.txt: can't read it (No such file or directory)"),
    ],
)
def test_options_that_cannot_be(
    export: Path, shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], tasks: str,
    message: str,
) -> None:  # fmt: skip
    code = run(export, tmp_path / "results", shards, *options, tasks=tasks)
    assert_refused(code, capsys, tmp_path / "results", message)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"word1 [MASK]\nword2\n", "line 2 has no [MASK]"),
        (b"\n \n", "no sentences"),
        (b"\xff [MASK]\n", "line 1: not UTF-8"),
        (b"[MASK]" + 50 * b" word1", "line 1 has 53 tokens, but the model 48 positions"),
    ],
)
def test_sentences_that_cannot_be(
    export: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes, message: str
) -> None:
    (tmp_path / "sentences.txt").write_bytes(content)
    code = run(export, tmp_path / "results", None, "--sentences", str(tmp_path / "sentences.txt"), tasks="fill_mask")
    assert_refused(code, capsys, tmp_path / "results", message, "sentences.txt")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not JSON (Expecting property name"),
        ("[]", "not a JSON object; copy the folder anew"),
        ('{"do_lower_case": false}', "has do_lower_case false, but tokenizer.json beside it lowercase true; set both"),
        (
            '{"tokenize_chinese_chars": false}',
            "has tokenize_chinese_chars false, but tokenizer.json beside it handle_chinese_chars true; set both",
        ),
        ('{"strip_accents": false}', "has strip_accents false, but tokenizer.json beside it strip_accents null; set"),
    ],
)
def test_settings_by_which_transformers_takes_texts_otherwise(
    export: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, message: str
) -> None:
    (export / "tokenizer_config.json").write_text(content)
    code = run(export, tmp_path / "results", None, tasks="fill_mask")
    assert_refused(code, capsys, tmp_path / "results", f"tokenizer_config.json: {message}")


def test_without_a_word_on_accents_they_go_where_upper_case_goes(export: Path, tmp_path: Path) -> None:
    (export / "tokenizer_config.json").write_text('{"do_lower_case": true, "strip_accents": true}')
    assert run(export, tmp_path / "results", None, tasks="fill_mask") == 0


def test_settings_that_a_tokenizer_has_in_another_form_are_left_to_it(export: Path, tmp_path: Path) -> None:
    content = json.loads((export / "tokenizer.json").read_text())
    content["normalizer"] = {"type": "Sequence", "normalizers": [content["normalizer"]]}
    (export / "tokenizer.json").write_text(json.dumps(content))
    (export / "tokenizer_config.json").write_text('{"do_lower_case": true, "tokenize_chinese_chars": true}')
    assert run(export, tmp_path, None, tasks="fill_mask") == 0


def test_how_a_tokenizer_knows_a_mask(
    export: Path, shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer = json.loads((export / "tokenizer.json").read_text())
    *others, mask = tokenizer["added_tokens"]
    tokenizer["added_tokens"] = [*others, {**mask, "lstrip": True}]  # the blank before it is part of it
    (export / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert run(export, tmp_path / "blank", None, tasks="fill_mask") == 0
    capsys.readouterr()
    tokenizer["added_tokens"] = others
    (export / "tokenizer.json").write_text(json.dumps(tokenizer))
    code = run(export, tmp_path / "results", None, tasks="fill_mask")
    message = "takes the [MASK] of a sentence for words; add it to added_tokens there"
    assert_refused(code, capsys, tmp_path / "results", "tokenizer.json", message)
    assert run(export, tmp_path / "results", shards, tasks="mlm") == 0  # whose words are masked by their numbers


@pytest.mark.parametrize("ending", [None, "", "\r\n"])
def test_shards_are_of_an_exports_words_however_its_files_have_them(
    export: Path, shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], ending: str | None
) -> None:
    """What transformers 5 saves has no vocab.txt; others end its lines otherwise, or not the last one."""
    listed = export / "vocab.txt"
    words = listed.read_text().splitlines()
    listed.unlink() if ending is None else listed.write_text((ending or "\n").join(words) + ending, newline="")
    assert run(export, tmp_path / "results", shards, tasks="mlm") == 0
    capsys.readouterr()
    other, saved = write_shards(tmp_path / "other", vocab_size=65), listed if listed.exists() else "tokenizer.json"
    assert_refused(
        run(export, tmp_path / "no", other), capsys, tmp_path / "no", f"another vocabulary than {export}", str(saved)
    )


def test_shards_that_cannot_be(export: Path, shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = tmp_path / "results"
    assert_refused(run(export, results, None), capsys, results, "give the shards with --shards")
    assert_refused(run(export, results, tmp_path / "nowhere"), capsys, results, "nowhere: no such directory")
    other = write_shards(tmp_path / "other", vocab_size=65)
    assert_refused(run(export, results, other), capsys, results, "made with another vocabulary than", "vocab.txt")
    trained = write_shards(tmp_path / "trained", validation=())
    assert_refused(run(export, results, trained), capsys, results, "held out of its 18 documents; make")
    single = write_shards(tmp_path / "single", validation=(1,), pairs_per_row=1)
    assert_refused(run(export, results, single), capsys, results, "too few for an estimate")
    long = write_shards(tmp_path / "long", sequence_lengths=(64,))
    assert_refused(
        run(export, results, long), capsys, results, "sequences of 64 tokens, but the model has 48 positions"
    )


def test_a_training_shard_damaged_inside(export: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The baseline of masked words alone is of these."""
    shards = write_shards(tmp_path / "shards")
    file = next(shards.glob("shard-*.arrow"))
    file.write_bytes(bytes(file.stat().st_size))
    assert run(export, tmp_path / "results", shards) == 1
    (failure,) = capsys.readouterr().err.splitlines()
    assert failure.startswith(f"failed: mlm: {file}: not a readable Arrow file")
    results = results_of(tmp_path / "results")
    assert list(results["tasks"]) == ["nsp", "fill_mask"]
    assert list(results["failed"]) == ["mlm"]


@pytest.mark.parametrize(
    ("name", "opened", "named", "place"),
    [
        ("config.json", 1, False, "config.json"),  # where it is held, see trainer.leases
        ("config.json", 2, True, "config.json"),
        ("config.json", 2, False, "."),
        ("tokenizer_config.json", 1, True, "tokenizer_config.json"),
        ("tokenizer.json", 1, False, "tokenizer.json"),
        ("vocab.txt", 2, False, "vocab.txt"),
        ("model.safetensors", 1, False, "."),  # for its checksum
        ("lineage.json", 1, False, "lineage.json"),
    ],
)
def test_an_export_that_can_not_be_read_for_a_moment(
    export: Path, shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    name: str, opened: int, named: bool, place: str,
) -> None:  # fmt: skip
    with monkeypatch.context() as patch:
        fail_at(patch, export / name, opened, named=named)
        assert run(export, tmp_path / "results", shards) == 1
    told = f"error: {export / place}: can't be read now ({REASON}); give the same command again\n"
    assert capsys.readouterr() == ("", told)
    assert run(export, tmp_path / "results", shards) == 0


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("unable to open file <{}>: error (5)"),
        FileNotFoundError("gone: {}"),
        OSError("an error (os error 5)"),
    ],
)
def test_weights_that_libraries_can_not_open_for_a_moment(
    export: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception
) -> None:
    """As torch and safetensors tell it, which know no errors of an open."""
    weights = export / "model.safetensors"
    why = str(error).format(weights)
    monkeypatch.setattr("trainer.tensor_files.safe_open", mock.Mock(side_effect=type(error)(why)))
    assert run(export, tmp_path / "results", None, tasks="fill_mask") == 1
    told = f"error: {weights}: can't be read now ({why}); give the same command again\n"
    assert capsys.readouterr() == ("", told)


@pytest.mark.parametrize("name", ["manifest.json", "tokenizer/vocab.txt", "validation-shard-00000-of-00002.arrow"])
def test_shards_that_can_not_be_read_for_a_moment(
    export: Path,
    shards: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
) -> None:
    with monkeypatch.context() as patch:
        fail_at(patch, shards / name)
        assert run(export, tmp_path / "results", shards) == 1
    told = f"error: {shards / name}: can't be read now ({REASON}); give the same command again\n"
    assert capsys.readouterr() == ("", told)
    assert run(export, tmp_path / "results", shards) == 0


@pytest.mark.parametrize("place", ["trainer.files.try_lock", "trainer.files.os.fsync", "eval.locks.try_lock"])
@pytest.mark.parametrize("number", [errno.EIO, errno.EINVAL], ids=errno.errorcode.get)
def test_an_output_whose_storage_fails_at_an_open_file(
    export: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], number: int,
    place: str,
) -> None:  # fmt: skip
    """Of which the operating system tells no name. What was there before stays."""
    out = tmp_path / "results"
    assert run(export, out, None, tasks="fill_mask") == 0
    before = (out / "results.json").read_bytes()
    capsys.readouterr()
    with monkeypatch.context() as patch:
        patch.setattr(place, mock.Mock(side_effect=OSError(number, os.strerror(number))))
        assert run(export, out, None, tasks="fill_mask") == 1
    assert capsys.readouterr() == (
        "",
        f"error: {out}: {os.strerror(number)}; mend that, and run the same command again\n",
    )
    assert (out / "results.json").read_bytes() == before
    assert run(export, out, None, tasks="fill_mask") == 0


def test_an_error_of_ours_is_no_mistake_of_the_users(
    export: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Libraries raise ValueError for both; one of ours leaves a traceback."""

    def fail(*_: object) -> None:
        raise ValueError("zip() argument 2 is shorter than argument 1")

    monkeypatch.setattr("eval.probe.fill_masks", fail)
    assert run(export, tmp_path / "results", None, tasks="fill_mask") == 1
    (record,) = (record for record in caplog.records if record.message == "fill_mask failed")
    assert record.exc_info is not None
    monkeypatch.setattr("eval.run.prepare", fail)
    with pytest.raises(ValueError, match="is shorter than"):
        run(export, tmp_path / "others", None, tasks="fill_mask")


def test_an_output_that_is_a_file(export: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Or a link that leads nowhere, where no folder can be made."""
    file, link = tmp_path / "results", tmp_path / "link"
    file.write_text("")
    link.symlink_to("nowhere")
    shutil.rmtree(export)  # it is told first
    for other, output in ((file, file), (file, file / "new"), (link, link), (link, link / "new")):
        assert run(export, output, None, tasks="fill_mask") == 2
        assert capsys.readouterr().err == f"error: {other}: not a directory; choose another place\n"


@pytest.mark.parametrize(
    "option",
    [["--samples", "1"], ["--batch-size", "0"], ["--threads", "two"], ["--threads", "1025"], ["--workers", "1025"],
     ["--seeds", "10001"], ["--seeds", "9" * 30], ["--epochs", "2147483648"], ["--data", ""], ["--sample", "9"]],
)  # fmt: skip
def test_values_that_cannot_be(export: Path, tmp_path: Path, option: list[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        run(export, tmp_path, None, *option)


def test_several_directories_of_shards_are_told_how_they_are_evaluated_on(
    export: Path, shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = "an evaluation reads one directory; run python -m eval.run for each, with an --output of its own"
    for words in (["--shards", str(shards), "more"], ["--shards", str(shards), "--shards", "more"]):
        with pytest.raises(SystemExit, match="2"):
            run(export, tmp_path / "results", None, *words)
        assert capsys.readouterr().err == f"python -m eval.run: error: --shards: {told}; see --help\n"
        assert not (tmp_path / "results").exists()


def test_an_export_beside_which_nothing_lies(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        parse(["--checkpoint", "/", "--tasks", "mrpc"])
    told = "--checkpoint /: results have no place beside it; give one by --output"
    assert capsys.readouterr().err == f"python -m eval.run: error: {told}; see --help\n"
    assert parse(["--checkpoint", "/", "--tasks", "mrpc", "--output", "out"]).output == Path("out")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The store beside the run directory."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return empty_store(tmp_path / "runs" / "mlflow.db")


def tracked(export: Path) -> str:
    """Carry a finished run over to MLflow; returns its id there."""
    directory = RunDirectory(export.parent.parent)
    directory.set_outcome("done")
    tracking.prepare(directory, "tests")
    return tracking.sync(directory, status="FINISHED")


def only_other(store: str, experiment: str, *known: str):
    client = MlflowClient(store)
    found = client.search_runs([client.get_experiment_by_name(experiment).experiment_id])
    [other] = [one for one in found if one.info.run_id not in known]
    return other


@pytest.mark.parametrize("moved", [False, True])
def test_a_child_run(export: Path, shards: Path, tmp_path: Path, store: str, moved: bool) -> None:
    parent = tracked(export)
    if moved:
        export.parent.parent.rename(tmp_path / "runs" / "renamed")
        export = tmp_path / "runs" / "renamed" / "exports" / export.name
    assert run(export, tmp_path / "results", shards, track=True) == 0
    child, results = only_other(store, "tests", parent), results_of(tmp_path / "results")
    assert child.info.run_name == f"eval step-{STEP:06d}"
    assert child.data.metrics == {
        f"{task}_{metric}": figure["value"]
        for task, found in results["tasks"].items()
        for metric, figure in found["metrics"].items()
    }
    expected = {
        "mlflow.parentRunId": parent,
        "step": str(STEP),
        "export_blake2b": checksum(export / "model.safetensors"),
        "manifest_blake2b": results["shards"]["manifest_blake2b"],
        "training_manifest_blake2b": "0d",
        "config_blake2b": "c0",
        "code_version": results["code"]["version"],
    }
    assert expected.items() <= child.data.tags.items()
    [entry] = MlflowClient(store).get_metric_history(child.info.run_id, "mlm_perplexity")
    assert entry.step == STEP
    artifact = MlflowClient(store).download_artifacts(child.info.run_id, "results.json", str(tmp_path))
    assert Path(artifact).read_bytes() == (tmp_path / "results" / "results.json").read_bytes()
    assert child.info.status == "FINISHED"


def test_figures_of_a_head_that_was_never_trained_are_none_of_the_export(
    export: Path, shards: Path, tmp_path: Path, store: str
) -> None:
    parent = tracked(export)
    with (export.parents[1] / "config.toml").open("a") as recipe:
        recipe.write("[train]\nnext_sentence = false\n")
    assert run(export, tmp_path / "results", shards, tasks="pretraining", track=True) == 0
    found = only_other(store, "tests", parent).data.metrics
    assert set(found) == {"mlm_perplexity", "mlm_loss", "mlm_accuracy"}


def test_a_run_was_begun_under_the_name_that_the_trained_one_had(export: Path, tmp_path: Path, store: str) -> None:
    parent = tracked(export)
    export.parent.parent.rename(tmp_path / "runs" / "renamed")
    other = tracked(write_run(export.parent.parent) / "exports" / export.name)
    moved = tmp_path / "runs" / "renamed" / "exports" / export.name
    assert run(moved, tmp_path / "results", None, tasks="fill_mask", track=True) == 0
    assert only_other(store, "tests", parent, other).data.tags["mlflow.parentRunId"] == parent


def test_while_the_run_trains_its_own_writer_takes_the_evaluation(
    export: Path, tmp_path: Path, store: str, capsys: pytest.CaptureFixture[str]
) -> None:
    parent = tracked(export)
    directory = RunDirectory(export.parent.parent)
    directory.set_outcome(None)
    assert run(export, tmp_path / "results", None, tasks="fill_mask", track=True) == 0
    assert "by the training's own writer: it waits in " in capsys.readouterr().out
    assert tracking.sync(directory, status="FINISHED") == parent
    assert only_other(store, "tests", parent).info.run_name == f"eval step-{STEP:06d}"


def test_a_run_of_its_own(export: Path, tmp_path: Path, store: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(export, tmp_path / "runs" / "results", None, tasks="fill_mask", track=True) == 0
    assert "mlflow.parentRunId" not in only_other(store, "bert-pretraining").data.tags
    results = tmp_path / "runs" / "results" / "results.json"
    assert f"\nresults: {results}\nMLflow: {store}, a run of its own" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("stdout", "encoding"), [("/dev/full", "utf-8"), ("letters", "ascii")], ids=["nobody reads", "letters that lack"]
)
def test_what_cannot_be_shown_is_not_lost(
    export: Path, tmp_path: Path, store: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    stdout: str, encoding: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    Path("sentence").write_text("“[MASK]”")
    words = ["--checkpoint", str(export), "--tasks", "fill_mask", "--output", "runs/new", "--sentences", "sentence"]
    with stdout_to(tmp_path / stdout, encoding):
        assert main(words) == 0
    assert capsys.readouterr().err == ""
    if stdout == "letters":
        assert "?[MASK]?" in (tmp_path / stdout).read_text()
    assert only_other(store, "bert-pretraining").info.run_name == f"eval step-{STEP:06d}"


def test_a_store_of_a_relative_path_is_found_from_everywhere(
    export: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty_store(tmp_path / "runs" / "tracked.db")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///runs/tracked.db")
    parent = tracked(export)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    assert run(export, tmp_path / "results", None, tasks="fill_mask", track=True) == 0
    child = only_other(f"sqlite:///{tmp_path}/runs/tracked.db", "tests", parent)
    assert child.data.tags["mlflow.parentRunId"] == parent


def test_mlflow_out_of_reach(
    export: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:secret@127.0.0.1:1")
    assert run(export, tmp_path / "results", None, tasks="fill_mask", track=True) == 0
    assert (tmp_path / "results" / "results.json").is_file()
    warning = capsys.readouterr().err
    assert warning.startswith("warning: not in MLflow: ")
    assert "secret" not in warning
    assert warning.count("\n") == 1

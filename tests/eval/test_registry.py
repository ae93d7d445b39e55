"""The best export is registered, loaded by its version and served; its vectors are transformers' states pooled."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import pytest
import requests
import torch
import transformers
from mlflow.environment_variables import MLFLOW_HTTP_REQUEST_TIMEOUT
from mlflow.exceptions import MlflowException
from mlflow.models import Model
from mlflow.tracking import MlflowClient

from eval import registry
from eval.embeddings import count_terms
from eval.pretrained import load_pretrained
from eval.probe import fill_masks
from eval.registry import choose, main
from eval.results import read_results, write_results
from preprocessing.locks import try_lock
from preprocessing.schema import checksum
from tests.eval.conftest import CONFIG, random_state
from tests.eval.evaluations import task, write_evaluation
from tests.failing import REASON, fail_at
from tests.ranks import free_port
from tests.trainer.mlflow_store import empty_store, write_run
from trainer.hugging_face import save_export
from trainer.leases import remove_export
from trainer.run_directory import RunDirectory
from trainer.tracking import Store, evaluation_store, log_evaluation, prepare, sync

TEXTS = ["word10 word11 word12", "word13", "word12 word12 word30 word10 word9"]
DOCUMENTS = ["word10 word12 word12", "word12", "word30 word12 word10"]


@pytest.fixture(autouse=True)
def _mlflow_as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Where models are, and the paths of code that loaded models bring with them, are a process's own business."""
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI"):  # MLflow sets both, for processes that it starts
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    mlflow.set_tracking_uri(None)
    mlflow.set_registry_uri(None)


@pytest.fixture
def run(export: Path) -> RunDirectory:
    """A finished run that MLflow knows, with exports of two steps and an evaluation of each."""
    run = RunDirectory(export.parents[1])
    empty_store(run.path.parent / "mlflow.db")
    shutil.copytree(export, run.export(9))
    prepare(run, "tests")
    sync(run, "FINISHED")
    run.set_outcome("done")
    write_evaluation(run.path, 7, mrpc=task(f1=90.5, accuracy=85.0), mlm=task(perplexity=9.0))
    write_evaluation(run.path, 9, mrpc=task(f1=88.0, accuracy=86.0), mlm=task(perplexity=8.0))
    return run


def register(run: RunDirectory, *more: str) -> str:
    """Register as bert-test; returns the store."""
    assert main([str(run.path), "--metric", "mrpc.f1", "--name", "bert-test", *more]) == 0
    return f"sqlite:///{run.path.parent / 'mlflow.db'}"


def load(store: str, version: int = 1) -> Any:
    mlflow.set_tracking_uri(store)
    return mlflow.pyfunc.load_model(f"models:/bert-test/{version}")


def ask(model: Any, texts: list[str], **params: Any) -> pd.DataFrame:
    return model.predict(pd.DataFrame({"text": texts}), params=params)


def hidden_states(export: Path, text: str) -> tuple[torch.Tensor, ...]:
    """Of transformers' model, each [1, S, D]."""
    encoded = transformers.AutoTokenizer.from_pretrained(export)(text, return_tensors="pt")
    model = transformers.BertModel.from_pretrained(export).eval()
    with torch.inference_mode():
        return model(**encoded, output_hidden_states=True).hidden_states


def test_a_loaded_version_gives_pooled_hidden_states(run: RunDirectory, tmp_path: Path) -> None:
    (tmp_path / "corpus.txt").write_text("\n\n \n".join(DOCUMENTS) + "\n")
    model = load(register(run, "--corpus", str(tmp_path / "corpus.txt"), "--k1", "1.5", "--b", "0.5"))
    default = ask(model, TEXTS)["embedding"]
    middle = {pooling: ask(model, TEXTS, layer=1, pooling=pooling)["embedding"] for pooling in ("cls", "max", "bm25")}
    tokenizer = load_pretrained(run.export(7)).tokenizer
    terms = count_terms(tokenizer, DOCUMENTS, k1=1.5, b=0.5)
    for i, text in enumerate(TEXTS):
        states = hidden_states(run.export(7), text)
        weights = torch.tensor(terms.weights(tokenizer.encode(text, add_special_tokens=False).ids))
        by_hand = {
            "cls": states[1][0, 0],
            "max": states[1][0].max(dim=0).values,
            "bm25": weights @ states[1][0, 1:-1] / weights.sum(),
        }
        np.testing.assert_allclose(default[i], states[-1][0].mean(dim=0), rtol=0, atol=1e-5)
        for pooling, expected in by_hand.items():
            np.testing.assert_allclose(middle[pooling][i], expected, rtol=0, atol=1e-5, err_msg=pooling)


@pytest.mark.parametrize(("given", "seconds"), [(None, 600), ("7", 7)])
def test_a_server_gets_time_for_a_model_of_gigabytes(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch, given: str | None, seconds: int
) -> None:
    """It answers an upload when it has put it where its artifacts lie, which may be another one's storage."""
    waits, log = [], Model.log

    def log_and_note(*arguments: Any, **more: Any) -> Any:
        waits.append(MLFLOW_HTTP_REQUEST_TIMEOUT.get())
        return log(*arguments, **more)

    monkeypatch.setattr("trainer.tracking.store._GIVEN", given)
    monkeypatch.setattr(Model, "log", log_and_note)
    before = MLFLOW_HTTP_REQUEST_TIMEOUT.get()
    register(run)
    assert waits == [seconds]
    assert MLFLOW_HTTP_REQUEST_TIMEOUT.get() == before


def test_a_store_is_held_while_it_is_written_to_and_not_while_a_corpus_is_read(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trainings write to it, and wait no longer than a minute at their end."""
    free = []

    def look(do: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            with (run.path.parent / "mlflow.db.lock").open("a") as file:
                free.append(try_lock(file.fileno()))
            return do(*arguments)

        return call

    monkeypatch.setattr(registry, "count_terms", look(count_terms))
    monkeypatch.setattr(registry, "register", look(registry.register))
    register(run, "--corpus", __file__)
    assert free == [True, False]


def test_a_loaded_version_fills_masks(run: RunDirectory) -> None:
    model = load(register(run))
    texts = ["word10 [MASK] word12", "[MASK] [MASK]"]
    masks = ask(model, texts, task="fill_mask", top=3)["masks"]
    expected = fill_masks(*load_pretrained(run.export(7)), texts, top=3)
    assert [len(of_text) for of_text in masks] == [1, 2]
    for of_text, sentence in zip(masks, expected, strict=True):
        for candidates, reference in zip(of_text, sentence.masks, strict=True):
            assert [c["token"] for c in candidates] == [c.token for c in reference]
            np.testing.assert_allclose([c["probability"] for c in candidates], [c.probability for c in reference])


@pytest.mark.parametrize(("metric", "step"), [("mrpc.f1", 7), ("mrpc.accuracy", 9), ("mlm.perplexity", 9)])
def test_the_best_is_registered(run: RunDirectory, metric: str, step: int, capsys: pytest.CaptureFixture[str]) -> None:
    register(run, "--metric", metric, "--name", "bert\x1b[31m")
    assert f"{run.export(step)} is version 1 of bert\\x1b[31m in" in capsys.readouterr().out


def test_another_run_s_model_is_not_registered_as_this_one_s(
    run: RunDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Though its results lie among those of this one, as of peers that are shown in one report."""
    other = RunDirectory(write_run(tmp_path / "runs" / "other"))
    other.exports.mkdir()
    save_export(other.export(40), random_state(), CONFIG, run.export(7), {"run": str(other.path), "step": 40})
    foreign = shutil.copytree(other.export(40), tmp_path / "foreign")
    for name, export, lineage in (("peer", other.export(40), {"run": str(other.path)}), ("of-nobody", foreign, {})):
        file = write_evaluation(other.path, 40, name, mrpc=task(f1=99.0))
        results = read_results(file)
        results["checkpoint"] |= {"path": str(export), "lineage": lineage}
        (run.path / name).mkdir()
        write_results(run.path / name / "results.json", results)
    register(run)
    assert f"{run.export(7)} is version 1 of bert-test" in capsys.readouterr().out


def test_results_of_a_run_that_was_moved_stay_its_own_wherever_they_lie_in_it(run: RunDirectory) -> None:
    (run.path / "evaluations" / "step-000007").rename(run.path / "tried")
    moved = RunDirectory(run.path.rename(run.path.with_name("moved")))
    assert choose(moved, "mrpc", "f1").export == moved.export(7)


def test_figures_of_weights_that_were_trained_anew_since_don_t_count(
    run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_evaluation(run.path, 9, "before", mrpc=task(f1=99.0))
    results = read_results(file)
    results["checkpoint"]["weights_blake2b"] = "of old"
    write_results(file, results)
    register(run)
    assert f"{run.export(7)} is version 1 of bert-test" in capsys.readouterr().out


def test_a_trial_is_no_reason_to_register(
    run: RunDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def try_out(name: str, metric: str) -> None:
        trial = write_evaluation(run.path, 9, name, **{name: task({"selected_by": metric}, **{metric: 100.0})})
        write_results(trial, read_results(trial) | {"data": {"path": "/data", "limit": 4}})

    try_out("mrpc", "f1")
    register(run)
    assert f"{run.export(7)} is version 1 of bert-test" in capsys.readouterr().out
    try_out("rte", "accuracy")
    assert main([str(run.path), "--metric", "rte.accuracy"]) == 2
    assert capsys.readouterr().err == (
        "error: rte.accuracy was only tried out, with --limit; evaluate rte without it\n"
    )


def test_a_trial_over_few_samples_is_no_reason_either(run: RunDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    write_evaluation(run.path, 9, "trial", mlm=task({"samples": 20}, perplexity=1.0))
    write_evaluation(run.path, 7, "whole", mlm=task({"samples": 2000}, perplexity=7.0))
    register(run, "--metric", "mlm.perplexity")
    told = capsys.readouterr()
    assert f"{run.export(7)} is version 1 of bert-test" in told.out
    left_out = "note: left out, with mlm.perplexity of trials alone (--limit, fewer samples): step-000009\n"
    assert told.err.startswith(left_out)


def test_figures_on_different_data_make_no_export_the_better_one(
    run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(run.path / "evaluations")
    files = []
    for step, manifest, perplexity, samples in ((7, "real", 7.0, 2000), (9, "easy", 1.0, 50)):
        of_shards = {"path": "shards", "manifest_blake2b": manifest, "sequence_length": 128, "samples": samples}
        file = write_evaluation(run.path, step, manifest, mlm=task({"samples": samples}, perplexity=perplexity))
        write_results(file, read_results(file) | {"shards": of_shards})
        files.append(file)
    assert main([str(run.path), "--metric", "mlm.perplexity"]) == 2
    told = capsys.readouterr().err
    assert all(str(file) in told for file in files)
    assert "evaluate all exports on one, or move the others' results away" in told
    files[1].unlink()
    register(run, "--metric", "mlm.perplexity")
    assert f"{run.export(7)} is version 1 of bert-test" in capsys.readouterr().out


def test_a_version_says_where_it_comes_from(run: RunDirectory) -> None:
    store = evaluation_store([run.path], run.path)
    file = run.path / "evaluations" / "step-000007" / "results.json"
    weights = run.export(7) / "model.safetensors"
    tags = {"step": "7", "export_blake2b": checksum(weights)}
    results = read_results(file)
    results["checkpoint"]["lineage"]["code"] = {"version": "0.3.0", "commit": "c0ffee", "modified": False}
    write_results(file, results)
    evaluation = log_evaluation(store, "eval step-000007", {"mrpc_f1": 90.5}, tags, [file])
    uri = register(run)
    register(run)
    client = MlflowClient(uri)
    versions = client.search_model_versions("name = 'bert-test'")
    assert sorted(int(version.version) for version in versions) == [1, 2]
    assert {version.run_id for version in versions} == {evaluation}
    expected = tags | {"metric": "mrpc.f1", "figure": "90.5", "training_manifest_blake2b": "0d", "config_blake2b": "c0"}
    expected |= {"code_version": "0.3.0", "code_commit": "c0ffee"}  # which trained
    assert expected.items() <= versions[0].tags.items()
    assert "manifest_blake2b" not in versions[0].tags  # what an evaluation is of
    logged = client.get_logged_model(versions[0].source.removeprefix("models:/"))
    assert {(of.key, of.value, of.step) for of in logged.metrics} == {("mrpc_f1", 90.5, 7)}  # the evaluation's own
    assert logged.params["num_hidden_layers"] == "2"


@pytest.mark.parametrize(("figures", "source"), [((90.5, 89.0), 0), ((89.0, 90.5), 1), ((88.0, 89.0), 1)])
def test_the_source_is_the_evaluation_that_has_the_figure(
    run: RunDirectory, figures: tuple[float, ...], source: int
) -> None:
    store = evaluation_store([run.path], run.path)
    file = run.path / "evaluations" / "step-000007" / "results.json"
    tags = {"step": "7", "export_blake2b": checksum(run.export(7) / "model.safetensors")}
    evaluations = [log_evaluation(store, "again", {"mrpc_f1": figure}, tags, [file]) for figure in figures]
    log_evaluation(store, "of others", {"mrpc_f1": 90.5}, tags | {"step": "9", "export_blake2b": "99"}, [file])
    client = MlflowClient(register(run))
    assert client.get_model_version("bert-test", "1").run_id == evaluations[source]


def test_the_registered_files(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    register(run)
    assert not sys.dont_write_bytecode
    (folder,) = (run.path.parent / "mlartifacts" / "models").glob("*/artifacts")
    names = {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}
    wanted = {"MLmodel", "serving.py", "artifacts/step-000007/model.safetensors", "code/eval/embeddings.py"}
    wanted |= {"code/trainer/model.py", "code/preprocessing/tokenization.py", "serving_input_example.json"}
    assert wanted <= names
    assert not [name for name in names if name.endswith((".pkl", ".pickle", ".pt", ".bin", ".pyc"))]
    requirements = (folder / "requirements.txt").read_text().splitlines()
    assert f"torch=={torch.__version__.partition('+')[0]}" in [line.partition("+")[0] for line in requirements]


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"task": "translate"}, "task 'translate' is unknown; choose embed or fill_mask"),
        ({"layer": 3}, "there is no layer 3: the model has 0"),
        ({"pooling": "sum"}, "pooling 'sum' is unknown; choose one of cls, mean, max, bm25"),
        ({"pooling": "bm25"}, "pooling 'bm25' needs the statistics of a corpus; register the model with --corpus"),
        ({"task": "fill_mask"}, r"text 1 has no \[MASK\]; write it where a word is to be guessed"),
        ({"task": "fill_mask", "top": 0}, "top is 0; give a number of tokens of 1 or more"),
    ],
)
def test_what_a_loaded_version_refuses(registered: str, params: dict[str, Any], message: str) -> None:
    with pytest.raises(MlflowException, match=message):
        ask(load(registered), ["word10"], **params)


def test_parameters_that_are_null_are_left_at_their_defaults(registered: str) -> None:
    model, asked = load(registered), pd.DataFrame({"text": ["word10 word11 [MASK]"]})
    served, nulls = model.unwrap_python_model(), dict.fromkeys(("task", "layer", "pooling", "top"))
    expected = ask(model, ["word10 word11 [MASK]"], task="embed", layer=-1, pooling="mean")["embedding"][0]
    for params in ({}, nulls):
        assert served.predict(None, asked, params)["embedding"][0] == expected
        [masks] = served.predict(None, asked, params | {"task": "fill_mask"})["masks"]
        assert [len(candidates) for candidates in masks] == [5]
    assert [len(candidates) for candidates in ask(model, ["[MASK]"], task="fill_mask")["masks"][0]] == [5]


def test_an_export_that_is_registered_is_not_deleted_meanwhile(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[bool] = []
    register = registry.register

    def look(store: Store, export: Path, *others: Any) -> int:
        remove_export(export)
        held.append(export.is_dir())
        return register(store, export, *others)

    monkeypatch.setattr(registry, "register", look)
    assert main([str(run.path), "--metric", "mrpc.f1"]) == 0
    assert held == [True]


def test_a_text_that_lacks_is_refused(registered: str) -> None:
    with pytest.raises(MlflowException, match="a text is null"):
        ask(load(registered), ["word10", None])


@pytest.mark.parametrize("task", ["embed", "fill_mask"])
def test_a_text_that_is_half_a_surrogate_pair_is_refused(registered: str, task: str) -> None:
    """JSON can have one, as an escape."""
    model = load(registered).unwrap_python_model()
    with pytest.raises(MlflowException, match="a text is no Unicode: surrogates not allowed"):
        model.predict(None, pd.DataFrame({"text": ["word10 [MASK] \ud800"]}, dtype=object), {"task": task})


def test_a_text_with_a_mask_that_is_too_long_is_refused(registered: str) -> None:
    with pytest.raises(MlflowException, match="text 2 has 63 tokens, but the model 48 positions; shorten it"):
        ask(load(registered), ["[MASK]", "[MASK]" + 60 * " word10"], task="fill_mask")


@pytest.fixture(scope="module")
def registered(tmp_path_factory: pytest.TempPathFactory, shards: Path) -> str:
    """The store of a registered version, for tests that only read it."""
    run = RunDirectory(write_run(tmp_path_factory.mktemp("registered") / "runs" / "demo"))
    empty_store(run.path.parent / "mlflow.db")
    run.exports.mkdir()
    save_export(run.export(7), random_state(), CONFIG, shards / "tokenizer", {})
    write_evaluation(run.path, 7, mrpc=task(f1=90.5))
    prepare(run, "tests")
    sync(run, "FINISHED")
    run.set_outcome("done")
    return register(run)


@pytest.mark.parametrize(
    "name", ["evaluations/step-000007/results.json", "exports/step-000007/model.safetensors", "corpus.txt"]
)
def test_what_can_not_be_read_for_a_moment_is_no_mistake(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    corpus = run.path / "corpus.txt"
    corpus.write_text("\n".join(DOCUMENTS) + "\n")
    fail_at(monkeypatch, run.path / name)
    assert main([str(run.path), "--metric", "mrpc.f1", "--corpus", str(corpus)]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert str(run.path / name) in error
    assert REASON in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("kind", ["a file elsewhere", "a folder elsewhere", "nothing", "itself", "a pipe"])
def test_what_a_link_in_an_export_leads_to_is_not_registered(
    run: RunDirectory, tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "private").mkdir()
    (tmp_path / "private" / "key").write_text("secret")
    (run.export(7) / "more").mkdir()
    odd = run.export(7) / "more" / "odd"
    targets = {"a file elsewhere": "private/key", "a folder elsewhere": "private", "nothing": "gone"}
    if kind == "a pipe":
        os.mkfifo(odd)
    else:
        odd.symlink_to(odd if kind == "itself" else tmp_path / targets[kind])
    assert main([str(run.path), "--metric", "mrpc.f1"]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"error: {odd}: not a file of this export")
    assert told.count("\n") == 1
    odd.unlink()
    odd.symlink_to(run.export(7) / "config.json")
    register(run)


def test_mistakes_end_with_one_line(run: RunDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def refused(*arguments: str) -> str:
        assert main([str(run.path), *arguments]) == 2
        return capsys.readouterr().err

    assert refused("--metric", "rte.accuracy") == (
        "error: no evaluation has rte.accuracy; there are mlm.perplexity, mrpc.accuracy, mrpc.f1\n"
    )
    assert main([str(tmp_path / "gone"), "--metric", "mrpc.f1"]) == 2
    assert capsys.readouterr().err == f"error: {tmp_path / 'gone'}: no such directory; give a run directory\n"
    assert main([str(run.export(7)), "--metric", "mrpc.f1"]) == 2
    told = f"error: {run.export(7)}: no evaluation of its exports; give a run directory that has been evaluated\n"
    assert capsys.readouterr().err == told
    (tmp_path / "empty.txt").write_text("\n \n")
    assert "can't read" in refused("--metric", "mrpc.f1", "--corpus", str(tmp_path / "gone.txt"))
    assert "holds no words" in refused("--metric", "mrpc.f1", "--corpus", str(tmp_path / "empty.txt"))
    assert "a/b" in refused("--metric", "mrpc.f1", "--name", "a/b")
    assert "k1 = inf" in refused("--metric", "mrpc.f1", "--corpus", __file__, "--k1", "inf")
    for words, told in (
        (["--name", " "], "argument --name: it is empty"),
        (["--k1", "1"], "argument --k1: it is of BM25, which wants a --corpus"),
        (["--b", "0"], "argument --b: it is of BM25"),
        (["--metric", "rte."], "'rte.' is not of the form TASK.METRIC, such as mrpc.f1"),
        (["--metric", ".f1"], "'.f1' is not of the form TASK.METRIC, such as mrpc.f1"),
    ):
        with pytest.raises(SystemExit, match="2"):
            main([str(run.path), "--metric", "mrpc.f1", *words])
        assert told in capsys.readouterr().err
    (run.export(7) / "model.safetensors").write_bytes(b"")
    assert "not the weights that" in refused("--metric", "mrpc.f1")
    shutil.rmtree(run.export(7))
    assert "it is gone" in refused("--metric", "mrpc.f1")


@pytest.mark.parametrize(
    ("address", "code", "told"),
    [
        ("http://127.0.0.1:1", 1, "http://127.0.0.1:1: "),
        ("http://user:pass@word@127.0.0.1:1", 1, "http://127.0.0.1:1: "),
        ("postgresql://user:pass@word@host/name", 2, "postgresql://host/name: No module named 'psycopg"),
        ("postgresql://user:pass@word@host:port/name", 2, "MLFLOW_TRACKING_URI is not the address of a store ("),
    ],
    ids=["a server that is away", "with credentials", "a database without its driver", "no address"],
)
def test_a_store_that_is_not_reached(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    address: str, code: int, told: str,
) -> None:  # fmt: skip
    run.tracking.unlink()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    assert main([str(run.path), "--metric", "mrpc.f1"]) == code
    error = capsys.readouterr().err
    assert error.startswith(f"error: {told}")
    assert error.count("\n") == 1
    assert not any(secret in error for secret in ("user", "pass", "word@"))


def test_where_a_version_is_told_without_the_credentials(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run.tracking.unlink()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://user:secret@tracking.example")
    monkeypatch.setattr(registry, "register", lambda *_: 3)
    assert main([str(run.path), "--metric", "mrpc.f1", "--name", "a b"]) == 0
    assert capsys.readouterr().out == (
        f"{run.export(7)} is version 3 of a b in http://tracking.example; to serve it:\n"
        "MLFLOW_TRACKING_URI=http://tracking.example mlflow models serve --env-manager local \\\n"
        "    --model-uri 'models:/a b/3'\n"
    )


def test_a_store_that_is_damaged(run: RunDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    (run.path.parent / "mlflow.db").write_bytes(b"no database" * 1000)
    assert main([str(run.path), "--metric", "mrpc.f1"]) == 1
    error = capsys.readouterr().err
    assert "file is not a database" in error
    assert error.endswith("; try again later\n")
    assert error.count("\n") == 1


@pytest.fixture
def server(registered: str, tmp_path: Path) -> Iterator[str]:
    """The address of `mlflow models serve`, in a process that knows only the registered files."""
    port = free_port()
    command = ["mlflow", "models", "serve", "--env-manager", "local", "--model-uri", "models:/bert-test/1"]
    environment = os.environ | {"MLFLOW_TRACKING_URI": registered, "OMP_NUM_THREADS": "1"}
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            [*command, "--port", str(port)],
            cwd=tmp_path,
            env=environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        address = f"http://127.0.0.1:{port}"
        end = time.monotonic() + 300
        while not answers(address):
            assert process.poll() is None and time.monotonic() < end, (tmp_path / "log").read_text()  # noqa: PT018
            time.sleep(0.5)
        yield address
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        process.wait()


def answers(address: str) -> bool:
    try:
        return requests.get(f"{address}/ping", timeout=5).ok
    except requests.RequestException:
        return False


@pytest.mark.slow
def test_served_over_http(server: str, registered: str) -> None:
    def invoke(**request: Any) -> requests.Response:
        return requests.post(f"{server}/invocations", json=request, timeout=60)

    rows = [{"text": text} for text in TEXTS]
    served = invoke(inputs=rows, params={"layer": 1, "pooling": "max"}).json()["predictions"]
    expected = ask(load(registered), TEXTS, layer=1, pooling="max")["embedding"]
    for row, reference in zip(served, expected, strict=True):
        np.testing.assert_allclose(row["embedding"], reference, rtol=0, atol=1e-6)
    filled = invoke(inputs=[{"text": "word10 [MASK]"}], params={"task": "fill_mask", "top": 2}).json()["predictions"]
    assert [len(mask) for mask in filled[0]["masks"]] == [2]
    refused = invoke(inputs=rows, params={"layer": 99})
    assert (refused.status_code, "there is no layer 99" in refused.json()["message"]) == (400, True)

"""The trainer as its users meet it: outcomes, messages and what stands in the run directory."""

import errno
import functools
import hashlib
import json
import os
import re
import shutil
import socket
import statistics
import subprocess
import sys
import threading
from importlib.metadata import version

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer
from transformers import BertForPreTraining as TheirBert

from preprocessing.schema import MANIFEST
from tests.conftest import ROOT
from tests.ranks import run_ranks
from tests.trainer.conftest import TINY, losses, train_in
from tests.trainer.rank_tasks import (
    run_pretrain,
    run_pretrain_and_check_out_another_commit,
    run_pretrain_and_crash,
    run_pretrain_and_crash_beside_others,
    run_pretrain_and_edit_the_configuration,
    run_pretrain_and_judge_its_loss_soon,
    run_pretrain_and_lose_a_gpu,
    run_pretrain_and_lose_the_settings,
    run_pretrain_and_signal,
    run_pretrain_and_signal_in_validation_and_count_commits,
    run_pretrain_and_signal_on_a_full_disk,
    run_pretrain_and_signal_while_it_waits,
    run_pretrain_and_stop,
    run_pretrain_and_stop_at_its_end,
    run_pretrain_and_tell_who_exports,
    run_pretrain_beside_slow_ranks,
    run_pretrain_in_environments_that_differ,
    run_pretrain_on_a_disk_that_stays_full,
    run_pretrain_on_a_full_disk,
    run_pretrain_on_a_full_gpu,
    run_pretrain_on_broken_data,
    run_pretrain_on_broken_data_and_count_commits,
    run_pretrain_on_data_that_is_broken_where_the_second_phase_begins,
    run_pretrain_on_nodes_that_differ,
    run_pretrain_where_a_rank_can_reach_a_teraflop,
    run_pretrain_where_another_rank_is_missing,
    run_pretrain_where_only_the_small_files_find_no_room,
    run_pretrain_where_storage_fails,
    run_pretrain_where_the_port_is_taken,
    run_pretrain_with,
    run_pretrain_with_a_bad_sample,
    run_pretrain_with_a_bad_sample_on_a_slow_disk,
    run_pretrain_with_a_slow_export,
    run_pretrain_with_a_tracker_that_ends_late,
    run_pretrain_with_another_numpy,
    run_pretrain_with_slow_validation,
    run_pretrain_without_patience,
    run_pretrain_without_room_for_its_outcome,
    run_pretrain_without_streams,
)
from tests.trainer.shard_factory import write_shards
from trainer import export
from trainer.checkpoint import read_run_state
from trainer.files import read_lines
from trainer.leases import hold_export, hold_run
from trainer.loss_trend import LossTrend, follow
from trainer.run_directory import RunDirectory, step_folders, step_number


@pytest.fixture(scope="module")
def train_once(recipe, shards, tmp_path_factory):
    """Train a run for all who look at it or go on from a copy; the folder that holds it, and its log."""

    def train(name, *settings, world=1, **given):
        folder = tmp_path_factory.mktemp(name)
        assert train_in(folder, recipe, shards)(*settings, world=world, **given)[0] == [0] * world
        return folder

    return train


@pytest.fixture(scope="module")
def trained(train_once):
    """Of two ranks that nobody stopped."""
    return train_once("trained", world=2)


@pytest.fixture(scope="module")
def stopped(train_once):
    """Of two ranks, and asked to stop in its third step."""
    return train_once("stopped", world=2, task=run_pretrain_and_signal)


@pytest.fixture(scope="module")
def four_steps(train_once):
    """Of one rank that was to train four of its eight steps first."""
    return train_once("four_steps", "train.max_steps=4")


def copied(folder, tmp_path):
    """The run of a folder, for who changes it."""
    return RunDirectory(shutil.copytree(folder / "run", tmp_path / "run"))


@pytest.fixture
def done(trained, tmp_path):
    return copied(trained, tmp_path)


@pytest.fixture
def requeued(stopped, tmp_path):
    return copied(stopped, tmp_path)


@pytest.fixture
def half(four_steps, tmp_path):
    return copied(four_steps, tmp_path)


def test_a_run_directory_has_all_that_a_reader_needs(trained, shards):
    run, log = trained / "run", (trained / "log").read_text()
    assert (run / "outcome").read_text() == "done\n"
    assert (run / "manifest.json").read_text() == (shards / MANIFEST).read_text()
    assert json.loads((run / "code.json").read_text())["version"]
    assert {"config.toml", "ds_config.json", "code.diff", "tokenizer"} <= {path.name for path in run.iterdir()}
    lines = list(read_lines(run / "metrics.jsonl"))
    assert [line["step"] for line in lines] == list(range(1, 9))
    assert [line["samples"] for line in lines] == list(range(8, 65, 8))
    assert {"loss", "mlm_loss", "nsp_loss", "mlm_accuracy", "nsp_accuracy", "learning_rate", "grad_norm",
            "tokens_per_second",
            "tflops", "mfu", "padding", "peak_memory_gb", "data_seconds", "compute_seconds", "forward_seconds",
            "backward_seconds", "update_seconds", "checkpoint_seconds"} < set(lines[0])  # fmt: skip
    assert all(line[part] > 0 for line in lines for part in line if part.endswith("_seconds"))
    assert all(0.05 < line["peak_memory_gb"] < 100 for line in lines)
    shares = [
        sum(line[f"{part}_seconds"] for part in ("forward", "backward", "update")) / line["compute_seconds"]
        for line in lines
    ]
    assert max(shares) < 1
    assert statistics.median(shares) > 0.5  # the rest is mostly waiting for the other rank
    assert all(line["loss"] == pytest.approx(line["mlm_loss"] + line["nsp_loss"]) for line in lines)
    assert [line["step"] for line in read_lines(run / "validation.jsonl")] == [4, 8]
    state = json.loads((run / "checkpoints" / "step-000008" / "run_state.json").read_text())
    assert (state["step"], state["samples"], state["world_size"], state["threads"]) == (8, 64, 2, 1)
    assert sorted(path.name for path in (run / "exports").iterdir()) == ["step-000004", "step-000008"]
    modes = {path.stat().st_mode for folder in ("exports", "checkpoints") for path in (run / folder).glob("step-*/*")}
    assert modes == {(run / "config.toml").stat().st_mode}, "as the umask says, whoever wrote them"
    assert ["validation_seconds" in line for line in lines] == [line["step"] in (4, 8) for line in lines]
    parts = ("data", "compute", "checkpoint", "validation")
    spent = {part: sum(line.get(f"{part}_seconds", 0.0) for line in lines) for part in parts}
    shares = ", ".join(f"{part} {seconds / sum(spent.values()):.2%}" for part, seconds in spent.items())
    for words in ("22,594 parameters", "step 2/8: loss", "to go", "held out: loss", f"time of 8 steps: {shares}"):
        assert words in log


def test_a_step_of_each_start_is_recorded_on_request_and_trains_the_same(call, trained, tmp_path):
    whole, recorded = trained / "run", tmp_path / "run"
    for end in (5, 8):
        codes, log = call(f"train.max_steps={end}", "log.profile_step=2", world=2)
        assert codes == [0, 0]
    traces = sorted(path.name for path in (recorded / "profile").iterdir())
    assert traces == ["step-000002.json.gz", "step-000007.json.gz"]
    assert log.count("step 7 of rank 0 took") == log.count(f"trace of step 7: {recorded / 'profile'}") == 1
    assert "of rank 1 took" not in log
    figures = (
        [(line["loss"], line["grad_norm"]) for line in read_lines(run / "metrics.jsonl")] for run in (whole, recorded)
    )
    assert next(figures) == next(figures)


def test_utilisation_is_of_what_all_ranks_could_do_together(call, tmp_path):
    codes, log = call("train.max_steps=1", world=2, task=run_pretrain_where_a_rank_can_reach_a_teraflop)
    assert codes == [0, 0]
    assert "ceiling: 2.000 TFLOP/s of matrix products in torch.bfloat16 over all ranks" in log
    (line,) = read_lines(tmp_path / "run" / "metrics.jsonl")
    assert line["mfu"] == pytest.approx(line["tflops"] / 2)


def test_the_export_is_a_bert_of_transformers(trained, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    export = trained / "run" / "exports" / "step-000008"
    model, report = TheirBert.from_pretrained(export, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    tokenizer = AutoTokenizer.from_pretrained(export)
    logits = model.eval()(**tokenizer("word1 word2 [MASK]", return_tensors="pt")).prediction_logits
    assert logits.shape[-1] == 64
    assert torch.isfinite(logits).all()
    lineage = json.loads((export / "lineage.json").read_text())
    assert lineage["step"] == 8
    assert len(lineage["manifest_blake2b"]) == 32


def test_the_same_command_again_does_nothing_when_the_run_is_done(call, done):
    before = done.metrics.read_bytes()
    codes, log = call(world=2)
    assert codes == [0, 0]
    assert "done already, 8 steps" in log
    assert done.metrics.read_bytes() == before


def test_what_a_kill_after_the_last_checkpoint_cut_is_made_up_for(call, done):
    """Between the last checkpoint and the outcome lies the export."""
    export = (done.export(8) / "model.safetensors").read_bytes()
    shutil.rmtree(done.export(8))
    done.set_outcome(None)
    codes, log = call(world=2, task=run_pretrain_and_tell_who_exports)
    assert codes == [0, 0]
    assert re.findall("exported by rank .", log) == ["exported by rank 0"]
    assert (done.export(8) / "model.safetensors").read_bytes() == export
    assert done.outcome == ("done", "")


def test_a_run_of_one_step_is_told_of_in_the_singular(call):
    settings = "phases.0.steps=1", "schedule.warmup_steps=1"
    _, log = call(*settings)
    assert "schedule.warmup_steps is 1, and there is 1 step\n" in log
    assert "time of 1 step: " in log
    assert "done: 1 step; " in log
    assert "done already, 1 step\n" in call(*settings)[1]


def test_a_signal_ends_the_run_after_the_step_with_a_checkpoint(call, requeued, trained):
    """One rank is told; all agree, finish the step and write. The same command then gives the uninterrupted curve."""
    run = requeued.path
    assert (run / "outcome").read_text().startswith("requeue: asked to stop after step ")
    stopped_at = [line["step"] for line in read_lines(run / "metrics.jsonl")][-1]
    assert 0 < stopped_at < 8
    assert (run / "checkpoints" / "latest").read_text() == f"step-{stopped_at:06d}\n"
    assert call(world=2)[0] == [0, 0]
    keys = ("step", "loss", "grad_norm")
    curves = [
        [[line[key] for key in keys] for line in read_lines(path / "metrics.jsonl")] for path in (run, trained / "run")
    ]
    assert curves[0] == curves[1]


def test_two_phases_in_one_command_and_a_resume_in_the_second(call, tmp_path):
    shards = write_shards(tmp_path / "shards", sequence_lengths=(16, 32))
    recipe = tmp_path / "two.toml"
    recipe.write_text(
        TINY.replace("sequence_length = 32\nsteps = 8", "sequence_length = 16\nsteps = 5").replace(
            "[checkpoint]",
            "[[phases]]\nsequence_length = 32\nsteps = 4\nglobal_batch_size = 4\nmicro_batch_size = 2\n"
            "max_predictions = 4\nreset_moments = true\nschedule = { peak = 1e-3, warmup_steps = 0 }\n\n[checkpoint]",
        ),
        encoding="utf-8",
    )
    codes, log = call(config=recipe, shards=shards, world=2, task=run_pretrain_and_edit_the_configuration)
    assert codes == [0, 0]
    assert log.count("ZeRO stage 2") == 2  # as RUN/ds_config.json has it, in both phases
    halves = tmp_path / "halves"
    for settings in (["train.max_steps=7"], []):
        assert call(*settings, config=recipe, shards=shards, output=halves, world=2)[0] == [0, 0]
    whole, resumed = ([(line["step"], line["samples"], line["loss"]) for line in read_lines(path / "metrics.jsonl")]
                      for path in (tmp_path / "run", halves))  # fmt: skip
    assert whole == resumed
    assert [samples for _, samples, _ in whole] == [8, 16, 24, 32, 40, 44, 48, 52, 56]
    validated = [
        [line["step"] for line in read_lines(path / "validation.jsonl")] for path in (tmp_path / "run", halves)
    ]
    assert validated == [[4, 5, 8, 9], [4, 5, 7, 8, 9]], "at the end of each phase and of each start too"
    for path in (tmp_path / "run", halves):
        state = (path / "checkpoints" / "step-000009" / "state-00000-of-00002.safetensors").read_bytes()
        assert b'"optimizer_step":"4"' in state[:4096], "the moments of the second phase began anew"
        trend = LossTrend(mean=0.0, lowest=0.0, good_step=0, steps=0)
        for line in list(read_lines(path / "metrics.jsonl"))[5:]:
            trend = follow(trend, line["step"], line["mlm_loss"], 2.0)
        assert read_run_state(path / "checkpoints" / "step-000009").trend == trend, "and so did its trend"
    rates = [line["learning_rate"] for line in read_lines(tmp_path / "run" / "metrics.jsonl")]
    assert rates[5:] == pytest.approx([1e-3, 0.75e-3, 0.5e-3, 0.25e-3])


@pytest.fixture
def three_steps_and_two(tmp_path):
    """A recipe of two phases of one sequence length."""
    second = "[[phases]]\nsequence_length = 32\nsteps = 2\nglobal_batch_size = 8\nmicro_batch_size = 2\n"
    text = TINY.replace("steps = 8", "steps = 3").replace(
        "[checkpoint]", f"{second}max_predictions = 4\n\n[checkpoint]"
    )
    (tmp_path / "phases.toml").write_text(text, encoding="utf-8")
    return tmp_path / "phases.toml"


@pytest.mark.parametrize(("settings", "outcome"), [
    ([], ("requeue", "asked to stop after step 3")), (["train.max_steps=3"], ("done", "")),
], ids=["a phase's last step", "the last step of all"])  # fmt: skip
def test_a_signal_in_a_last_step_begins_no_other_phase_and_no_other_start(
    call, three_steps_and_two, tmp_path, settings, outcome
):
    call("log.validate_every=0", *settings, config=three_steps_and_two, task=run_pretrain_and_signal)
    run = RunDirectory(tmp_path / "run")
    assert run.outcome == outcome
    assert run.step == 3


def test_a_phase_goes_on_with_the_moments_of_the_one_before(call, three_steps_and_two, tmp_path):
    """Unless it says reset_moments."""
    assert call("log.validate_every=0", config=three_steps_and_two)[0] == [0]
    state = (tmp_path / "run" / "checkpoints" / "step-000005" / "state-00000-of-00001.safetensors").read_bytes()
    assert b'"optimizer_step":"5"' in state[:4096]


def test_data_that_can_not_be_read_where_a_phase_begins_leaves_the_checkpoint_before(
    call, three_steps_and_two, tmp_path
):
    task = run_pretrain_on_data_that_is_broken_where_the_second_phase_begins
    assert call(config=three_steps_and_two, task=task)[0] == [1]
    run = RunDirectory(tmp_path / "run")
    assert run.outcome == ("failed", "rank 0: shard-x: a broken pair")
    assert run.candidates() == [run.checkpoint(3)]


def test_options_and_settings_in_any_order(shards, recipe, deepspeed_config, tmp_path):
    """Shards of a second --shards count too, and settings wherever they stand."""
    others = write_shards(tmp_path / "others", seed=2)
    words = ["train.max_steps=4", "--config", recipe, "--shards", shards, "log.every=1", "--output", tmp_path / "run",
             "--shards", others, "log.validate_every=0", "--deepspeed_config", deepspeed_config(),
             "checkpoint.every=4"]  # fmt: skip
    assert run_ranks(1, run_pretrain, [str(word) for word in words], log=tmp_path / "log") == [0]
    run = tmp_path / "run"
    assert [line["step"] for line in read_lines(run / "metrics.jsonl")] == [1, 2, 3, 4]
    assert len(json.loads((run / "manifest.json").read_text())["directories"]) == 2
    assert not (run / "validation.jsonl").exists()


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize(("changes", "words"), [
    ({"zero_optimization": {"stage": 2, "overlap_com": True}}, "overlap_com: Extra inputs are not permitted"),
    ({"zero_optimization": {"stage": 3, "mics_shard_size": 1}}, "MiCS ZeRO-3 sharding has been removed"),
    ({"zero_optimization": {"stage": 2, "offload_optimizer": True}}, "offload_optimizer"),
])  # fmt: skip
def test_what_deepspeed_refuses_is_a_mistake_of_the_user(call, deepspeed_config, tmp_path, changes, words, world):
    codes, log = call(world=world, deepspeed_config=deepspeed_config(**changes))
    assert codes == [2] * world
    errors = [line for line in log.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert errors[0].startswith("error: DeepSpeed's configuration: ")
    assert words in errors[0]
    assert not (tmp_path / "run").exists()


def test_a_run_that_runs_out_of_memory_may_go_on_with_less_of_it(call, deepspeed_config, tmp_path):
    """Smaller micro-batches and activations that are computed again; without dropout the curve is the same."""
    plain = ["model.hidden_dropout_prob=0.0", "model.attention_probs_dropout_prob=0.0"]
    exact = {"deepspeed_config": deepspeed_config(bf16={"enabled": False}, zero_optimization=None)}
    assert call(*plain, **exact, output=tmp_path / "whole")[0] == [0]
    assert call(*plain, "train.max_steps=4", **exact)[0] == [0]
    codes, log = call(*plain, "phases.0.micro_batch_size=1", "model.activation_checkpointing=true", **exact)
    assert codes == [0]
    assert "phases.0.micro_batch_size: 2 -> 1: from here on the same samples and masks" in log
    whole, less = (
        [(line["samples"], line["loss"]) for line in read_lines(tmp_path / name / "metrics.jsonl")]
        for name in ("whole", "run")
    )
    assert [samples for samples, _ in less] == [samples for samples, _ in whole]
    assert [loss for _, loss in less] == pytest.approx([loss for _, loss in whole], rel=1e-5)


def test_an_export_names_the_code_that_trained_it(call, tmp_path):
    assert call(task=run_pretrain_and_check_out_another_commit)[0] == [0]
    code = json.loads((tmp_path / "run" / "code.json").read_text())
    assert code["commit"] != "c0ffee"
    assert export.main([str(tmp_path / "run" / "checkpoints" / "step-000008"), str(tmp_path / "again")]) == 0
    for directory in (tmp_path / "run" / "exports" / "step-000008", tmp_path / "again"):
        assert json.loads((directory / "lineage.json").read_text())["code"] == code


def test_a_run_that_is_moved_while_it_trains_ends_well(call, tmp_path):
    codes, log = call(task=run_pretrain_and_lose_the_settings)
    assert codes == [0], log
    config = (tmp_path / "run" / "config.toml.away").read_bytes()
    lineage = json.loads((tmp_path / "run" / "exports" / "step-000008" / "lineage.json").read_text())
    assert lineage["config_blake2b"] == hashlib.blake2b(config, digest_size=16).hexdigest()


@pytest.mark.parametrize("world", [1, 2])
def test_a_disk_that_is_full_costs_a_checkpoint_and_not_the_run(call, tmp_path, world):
    """The last rank finds no room at step 4; the run goes on with what was there, and a later checkpoint fits again."""
    codes, log = call("checkpoint.every=2", "checkpoint.keep=0", world=world, task=run_pretrain_on_a_full_disk)
    assert codes == [0] * world
    assert "No space left on device" in log
    assert "the newest good checkpoint is that of step 2" in log
    kept = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert kept == ["latest", "step-000002", "step-000006", "step-000008"]
    assert len(losses(tmp_path / "run")) == 8


def test_a_disk_without_room_for_a_line_of_metrics_costs_nothing(call, tmp_path):
    task = run_pretrain_where_only_the_small_files_find_no_room
    codes, log = call("checkpoint.every=2", "log.validate_every=0", world=2, task=task)
    assert codes == [0, 0]
    assert log.count("metrics.jsonl: can't be written (No space left on device)") == 2
    assert "step 4: the checkpoint can't be written ([Errno 28] No space left on device)" in log
    assert [line["step"] for line in read_lines(tmp_path / "run" / "metrics.jsonl")] == list(range(1, 9))
    assert RunDirectory(tmp_path / "run").step == 8


def test_a_disk_that_stays_full_is_an_error_at_the_end(call, tmp_path):
    codes, log = call(task=run_pretrain_on_a_disk_that_stays_full)
    assert codes == [2]
    (reason,) = re.findall("^error: (.*)", log, re.MULTILINE)
    assert reason.startswith(f"{tmp_path / 'run'}: no checkpoint of step 8 (")
    assert "No space left on device" in reason
    assert (tmp_path / "run" / "outcome").read_text() == f"failed: {reason}\n"
    assert not list((tmp_path / "run" / "checkpoints").glob("*step*"))


def test_a_signal_on_a_full_disk_costs_the_steps_since_the_checkpoint_before(call, trained, tmp_path):
    """Preemption is no mistake of a person: the run is to be started again, but not for ever where nothing is kept."""
    codes, log = call("checkpoint.every=2", world=2, task=run_pretrain_and_signal_on_a_full_disk)
    assert codes == [1, 1]
    (told,) = re.findall("^error: (.*)", log, re.MULTILINE)
    assert told.startswith("asked to stop after step 3, whose checkpoint can't be written (")
    assert "No space left on device" in told
    assert told.endswith("); make room: the same command goes on after step 2")
    run = RunDirectory(tmp_path / "run")
    assert run.outcome is None
    assert run.step == 2
    assert call(world=2)[0] == [0, 0]
    assert losses(run.path) == losses(trained / "run")


@pytest.mark.parametrize(
    ("task", "where"),
    [
        (run_pretrain_and_stop, ["in all_reduce", "in (train_step|count_step)"]),
        (run_pretrain_and_stop_at_its_end, ["in all_gather_object", "in settle"]),
    ],
)
def test_a_rank_that_hangs_is_noticed_by_the_others(call, tmp_path, task, where):
    """The last rank stops dead (SIGSTOP), within a step or after the last; the other says where it waits, and ends."""
    with pytest.raises(AssertionError, match="rank 0 died"):
        call("train.hang_seconds=8", world=2, task=task)
    log = (tmp_path / "log").read_text()
    assert "Timeout (0:00:08)!" in log
    assert all(re.search(words, log) for words in where)


def test_without_next_sentence_only_the_words_are_learned(call, tmp_path):
    codes, log = call("train.next_sentence=false", "optimizer.weight_decay=0", world=2)
    assert "NSP" not in log
    assert codes == [0, 0]
    lines = list(read_lines(tmp_path / "run" / "metrics.jsonl"))
    assert all(line["loss"] == line["mlm_loss"] for line in lines)
    weights = [load_file(tmp_path / "run" / "exports" / f"step-00000{n}" / "model.safetensors") for n in (4, 8)]
    head, words = "cls.seq_relationship.weight", "bert.embeddings.word_embeddings.weight"
    assert torch.equal(weights[0][head], weights[1][head])
    assert not torch.equal(weights[0][words], weights[1][words])


def test_a_loss_that_is_no_number_ends_the_run_as_failed(call, tmp_path):
    """A learning rate of 1e38 drives the weights to infinity in a few steps."""
    codes, log = call(
        "schedule.peak=1e38", "schedule.warmup_steps=0", "optimizer.max_gradient_norm=0", "checkpoint.every=1"
    )
    assert codes == [1]
    errors = [line for line in log.splitlines() if line.startswith("error:")]
    assert len(errors) == 1
    assert re.match(r"error: step \d: the loss is nan in every micro-batch: .* the training has diverged", errors[0])
    outcome = RunDirectory(tmp_path / "run").outcome
    assert outcome == ("failed", errors[0].removeprefix("error: "))


@pytest.mark.parametrize("world", [1, 2])
def test_a_loss_that_rises_and_stays_ends_the_run_while_there_is_a_checkpoint_from_before(
    call, recipe, tmp_path, world
):
    """The learning rate rises to 1 over two phases of one stream. Interrupted, it ends at the same step."""
    before, phase, after = re.split(r"(?=\[\[phases\]\])|(?=\[checkpoint\])", recipe.read_text())
    two_phases = tmp_path / "two_phases.toml"
    two_phases.write_text(before + phase + phase.replace("steps = 8", "steps = 32") + after)
    settings = ["schedule.peak=1", "schedule.warmup_steps=30", "log.validate_every=0", "train.divergence=1",
                "checkpoint.every=2", "checkpoint.keep=1", "checkpoint.keep_exports=1"]  # fmt: skip
    start = {"world": world, "task": run_pretrain_and_judge_its_loss_soon, "config": two_phases}
    run, whole = RunDirectory(tmp_path / "run"), RunDirectory(tmp_path / "whole")
    codes, log = call(*settings, output=whole.path, **start)
    assert codes == [1] * world
    (error,) = (line.removeprefix("error: ") for line in log.splitlines() if line.startswith("error:"))
    assert re.match(r"step (\d+): the loss rose after step 2 and stays 1\.\d nats above", error)
    last = int(error.split()[1].rstrip(":"))
    assert last > 8, "in the second phase"
    assert f"write step-000002 into {whole.latest} and give data.skip=[[16,{8 * last}]], which" in error
    assert whole.outcome == ("failed", error)
    assert len(losses(whole.path)) == last
    kept, exports = ([step_number(path) for path in step_folders(of)] for of in (whole.checkpoints, whole.exports))
    assert kept == exports == [2, last - last % 2]

    assert call(*settings, "train.max_steps=6", **start)[0] == [0] * world
    codes, log = call(*settings, **start)
    assert codes == [1] * world
    assert error.replace(str(whole.path), str(run.path)) in log
    newest = kept[-1]
    assert read_run_state(run.checkpoint(newest)).trend == read_run_state(whole.checkpoint(newest)).trend

    ended = RunDirectory(tmp_path / "ended")
    for _ in range(2):  # and where it is the last step that shows it, another start finds no run that is done
        codes, log = call(*settings, f"train.max_steps={last}", output=ended.path, **start)
        assert codes == [1] * world
        assert error.replace(str(whole.path), str(ended.path)) in log
        assert (ended.ending, ended.step) == ("failed", last)

    run.latest.write_text("step-000002\n")
    skip = f"data.skip=[[16,{8 * last}]]"
    assert call(*settings, skip, "train.divergence=0", "train.max_steps=12", **start)[0] == [0] * world
    lines = list(read_lines(run.metrics))
    assert [line["step"] for line in lines if "loss" not in line] == list(range(3, last + 1))


def test_ranks_that_all_others_wait_for_are_told_by_name(call):
    codes, log = call("log.validate_every=0", world=2, task=run_pretrain_beside_slow_ranks)
    assert codes == [0, 0]
    host = re.escape(socket.gethostname())
    slow, waiting = (line for line in log.splitlines() if line.startswith("all ranks wait"))
    assert re.search(rf"forward passes take longer .*: rank 1 on {host} [\d.]+ times as long; ", slow)
    assert re.search(rf"waits for its data: rank 0 on {host} \d+% of its time, the median rank \d+%; ", waiting)


def test_a_loss_that_is_no_number_leaves_the_checkpoint_that_is_being_written(call, tmp_path):
    """It is from before."""
    assert call("checkpoint.every=1", task=run_pretrain_with_a_bad_sample_on_a_slow_disk)[0] == [1]
    assert RunDirectory(tmp_path / "run").step == 1


def test_data_that_one_rank_can_not_read_ends_the_run_with_what_is_trained(call, trained, tmp_path):
    """The last rank finds a broken pair at its fourth step: all write a checkpoint of the third, and one says why."""
    codes, log = call(world=2, task=run_pretrain_on_broken_data)
    assert codes == [1, 1]
    assert [line for line in log.splitlines() if line.startswith("error:")] == ["error: rank 1: shard-x: a broken pair"]
    assert "Traceback" not in log
    assert RunDirectory(tmp_path / "run").outcome == ("failed", "rank 1: shard-x: a broken pair")
    assert (tmp_path / "run" / "checkpoints" / "latest").read_text() == "step-000003\n"
    assert call(world=2)[0] == [0, 0]
    assert losses(tmp_path / "run") == losses(trained / "run")


def test_a_checkpoint_that_is_complete_is_not_written_again_for_data_that_can_not_be_read(call, tmp_path):
    """A kill between its end and the new one's would leave neither."""
    codes, log = call("checkpoint.every=3", world=2, task=run_pretrain_on_broken_data_and_count_commits)
    assert codes == [1, 1]
    assert [line for line in log.splitlines() if line.startswith("committed")] == ["committed 3"]
    assert (tmp_path / "run" / "checkpoints" / "latest").read_text() == "step-000003\n"
    codes, log = call("checkpoint.every=3", world=2, task=run_pretrain_on_broken_data_and_count_commits)
    assert codes == [1, 1]
    assert "committed" not in log, "nor by a start that comes no further"


def test_a_configuration_of_deepspeed_is_read_once(call, deepspeed_config, tmp_path):
    """What is checked is what is written down: of a pipe, and of a file that begins with an editor's mark."""
    text = deepspeed_config().read_text()
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=(tmp_path / "pipe").write_text, args=(text,))
    writer.start()
    assert call("train.max_steps=2", deepspeed_config=tmp_path / "pipe")[0] == [0]
    writer.join()
    run = RunDirectory(tmp_path / "run")
    assert run.deepspeed_config.read_text() == text
    (tmp_path / "marked.json").write_text(text, encoding="utf-8-sig")
    for steps in (4, 6):
        assert call(f"train.max_steps={steps}", deepspeed_config=tmp_path / "marked.json")[0] == [0]
        assert run.deepspeed_config.read_text() == text


def test_a_trainer_that_waits_for_another_one_ends_where_it_is_asked_to(call, half):
    with hold_run(half):
        half.set_outcome(None)
        codes, log = call(task=run_pretrain_and_signal_while_it_waits)
    assert codes == [1]
    assert "waiting up to 86400 s for it to end" in log
    assert f"error: {half.path}: in use by process {os.getpid()} on " in log
    assert half.outcome is None


@pytest.mark.parametrize(("name", "value"), [("LOCAL_RANK", "x"), ("LOCAL_RANK", "1"), ("MASTER_ADDR", "")])
def test_what_is_wrong_with_a_launcher_s_variables_is_told_by_somebody(call, name, value):
    codes, log = call("train.max_stepz=1" if value == "1" else "train.max_steps=1",
                      task=functools.partial(run_pretrain_with, variables={name: value}))  # fmt: skip
    assert codes == [2]
    (error,) = re.findall("^error: (.*)", log, re.MULTILINE)
    assert error.startswith("train.max_stepz=1: unknown setting" if value == "1" else name)


def test_a_port_that_another_training_has_is_told_in_a_line(call, tmp_path):
    codes, log = call(task=run_pretrain_where_the_port_is_taken)
    assert codes == [1]
    assert re.search(
        r"^error: port \d+ is taken, by another training on this machine perhaps; give another one", log, re.M
    )
    assert "Traceback" not in log
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_was_asked_for_and_is_not_there_is_told_in_a_line(tmp_path):
    """As on a node whose driver is broken, where DeepSpeed left to itself would take the CPU."""
    write_shards(tmp_path / "shards")
    (tmp_path / "recipe.toml").write_text(TINY)
    launched = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    command = [sys.executable, "trainer/pretrain.py", "--config", tmp_path / "recipe.toml",
               "--shards", tmp_path / "shards", "--output", tmp_path / "run"]  # fmt: skip
    environment = {**os.environ, **launched, "DS_ACCELERATOR": "cuda"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    assert re.search(r"^error: rank 0 on \S+: no cuda device 0 \(.*\); see by nvidia-smi", done.stderr, re.M)
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()


def test_a_rank_that_does_not_come_is_told_in_a_line_while_and_after_it_is_waited_for(call, tmp_path):
    codes, log = call("phases.0.micro_batch_size=1", task=run_pretrain_where_another_rank_is_missing)
    assert codes == [1]
    assert re.search(r"^waiting for 2 ranks at 127\.0\.0\.1:\d+$", log, re.M)
    assert re.search(r"^error: 2 ranks did not come together at 127\.0\.0\.1:\d+ \(Timed out after ", log, re.M)
    assert "Traceback" not in log
    assert not (tmp_path / "run").exists()


def test_closed_streams_are_no_reason_to_end(call, tmp_path):
    assert call("train.max_steps=1", task=run_pretrain_without_streams)[0] == [0]
    assert RunDirectory(tmp_path / "run").outcome.ending == "done"


def test_a_mistake_at_a_restart_is_not_requeued_again(call, requeued):
    """A job script that restarts a requeued run with a broken command must not go on doing so."""
    assert requeued.outcome.ending == "requeue"
    assert call("train.max_stepz=3", world=2)[0] == [2, 2]
    assert requeued.outcome.ending == "failed"
    assert "unknown setting train.max_stepz" in requeued.outcome.reason
    assert call(world=2)[0] == [0, 0]
    assert call("train.max_stepz=3")[0] == [2]
    assert requeued.outcome == ("done", ""), "a mistake does not undo what is done"


def test_a_mistake_at_the_first_start_leaves_its_word_in_a_folder_for_it(call, tmp_path):
    """That a script has made which starts crashed runs again; another folder gets nothing, and none is made."""
    run, other = RunDirectory(tmp_path / "run"), tmp_path / "other"
    assert call("train.max_stepz=3", output=tmp_path / "nothing")[0] == [2]
    assert not (tmp_path / "nothing").exists()
    other.mkdir()
    (other / "letter.txt").touch()
    assert call("train.max_stepz=3", output=other)[0] == [2]
    assert [path.name for path in other.iterdir()] == ["letter.txt"]
    run.path.mkdir()
    assert call("train.max_stepz=3", world=2)[0] == [2, 2]
    assert run.ending == "failed"
    assert run.is_new
    assert call("train.max_steps=1")[0] == [0]


def test_a_command_line_that_is_none_is_not_requeued_again(call, requeued):
    """Such as of a variable that is not set; the trainer knows no more than which run it is about."""
    for given, told in (({"shards": ""}, "argument --shards: "), ({"bogus": 1}, "unknown option --bogus: ")):
        requeued.set_outcome("requeue", "asked to stop")
        codes, log = call(world=2, **given)
        assert codes == [2, 2]
        (error,) = re.findall("^error: (.*)", log, re.MULTILINE)
        assert error.startswith(told)
        assert "usage" not in log
        assert requeued.outcome == ("failed", error)
    assert call(world=2)[0] == [0, 0]
    assert call(bogus=1)[0] == [2]
    assert requeued.outcome == ("done", "")


@pytest.mark.parametrize(("word", "told"), [
    ("--foo\udcff", "unknown option --foo\\udcff: "),
    ("train.seed=\udcff", "\\udcff"),
    ("--foo\nbar\x1b[31m", "unknown option --foo bar\\x1b[31m: "),
], ids=["an option", "a setting", "escapes"])  # fmt: skip
def test_what_is_no_text_in_a_command_is_told_as_it_is_written_in_python(call, tmp_path, word, told):
    """Bytes that are no UTF-8 can't be written into the outcome, and others would command a terminal."""
    run = RunDirectory(tmp_path / "run")
    run.path.mkdir()
    run.config.touch()
    run.set_outcome("requeue", "asked to stop")
    codes, log = call(word)
    assert codes == [2]
    assert "Traceback" not in log
    (error,) = re.findall("^error: (.*)", log, re.MULTILINE)
    assert told in error
    assert run.outcome == ("failed", error)


def test_files_that_are_opened_take_no_place_of_a_stream_that_is_closed(tmp_path):
    program = (
        "import os, sys; os.closerange(0, 3)\n"
        "from trainer import pretrain; pretrain._open_streams()\n"
        f"with open({str(tmp_path / 'file')!r}, 'w') as file: file.write(str(file.fileno()))\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
    assert int((tmp_path / "file").read_text()) > 2


def test_ranks_that_were_given_other_things_at_a_restart_are_not_requeued_again(call, requeued, deepspeed_config):
    """All of them find it when they have met, and an earlier start's outcome is still there."""
    other = deepspeed_config(zero_optimization={"stage": 1})
    apart = functools.partial(run_pretrain_on_nodes_that_differ, option="--deepspeed_config", of_the_last=other)
    codes, log = call(world=2, task=apart)
    assert codes == [2, 2]
    (error,) = re.findall("^error: (.*)", log, re.MULTILINE)
    assert error.startswith("rank 1 was given other deepspeed_config than rank 0: ")
    assert requeued.outcome == ("failed", error)


def test_a_run_that_can_not_be_taken_over_is_told(call, requeued):
    """Its outcome stays, for that can't be written either."""
    requeued.outcome_file.unlink()
    (requeued.outcome_file / "folder").mkdir(parents=True)
    codes, log = call(world=2)
    assert codes == [2, 2]
    assert len(re.findall(f"^error: {requeued.outcome_file}: can't be written ", log, re.MULTILINE)) == 1


def test_a_run_that_is_to_be_trained_for_longer_is_not_done_any_more(call, tmp_path):
    """Or a job script would take one that fails, or is killed, before its next step for done."""
    shards = write_shards(tmp_path / "own")
    assert call("train.max_steps=4", shards=shards)[0] == [0]
    run, shard = RunDirectory(tmp_path / "run"), shards / "shard-00000-of-00003.arrow"
    content = shard.read_bytes()
    shard.write_bytes(content[:-9] + b"x" + content[-8:])
    assert call("train.max_steps=4", shards=shards)[0] == [0]
    assert run.outcome == ("done", ""), "nothing more is asked for"
    assert call("train.max_steps=6", shards=shards)[0] == [2]
    assert run.ending == "failed"
    shard.write_bytes(content)
    assert call("train.max_steps=6", shards=shards, task=run_pretrain_without_room_for_its_outcome)[0] == [1]
    assert run.ending is None
    codes, log = call("train.max_steps=6", shards=shards, task=run_pretrain_without_room_for_its_outcome)
    assert codes == [1]
    assert log.endswith(f"error: {run.path}: can't be written (No space left on device); mend that, and give the same "
                        "command: no step is lost\n")  # fmt: skip
    assert call("train.max_steps=6", shards=shards)[0] == [0]
    assert run.outcome == ("done", "")


def where_storage_fails(call, name, number, times=1):
    return functools.partial(run_pretrain_where_storage_fails, call=call, name=name, number=number, times=times)


NOW = "can't be read or written now"


@pytest.mark.parametrize(("call_of_path", "name", "number", "message"), [
    ("unlink", "run/outcome", errno.ESTALE, f"{NOW} (Stale file handle); give the same command again"),
    ("glob", "run/exports", errno.EACCES, f"{NOW} (Permission denied); give the same command again"),
    ("open", "run/.code.json.incomplete", errno.EIO, f"{NOW} (Input/output error); give the same command again"),
    ("open", "run/.outcome.incomplete", errno.ENOSPC, "can't be written (No space left on device); mend that, and"),
])  # fmt: skip
def test_storage_that_fails_the_first_rank_is_told_once_and_ends_all(call, half, call_of_path, name, number, message):
    """For a moment maybe, so that nobody needs to be asked before the same command is given again."""
    codes, log = call(world=2, task=where_storage_fails(call_of_path, name, number))
    assert codes == [1, 1]
    (error,) = [line for line in log.splitlines() if line.startswith("error: ")]
    assert message in error
    assert "Traceback" not in log
    assert half.ending in (None, "done")
    assert call(world=2)[0] == [0, 0]
    assert half.outcome == ("done", "")
    assert half.step == 8


@pytest.mark.usefixtures("half")
@pytest.mark.parametrize("name", ["checkpoints/latest", "run/config.toml"])
def test_storage_that_fails_a_rank_by_itself_is_told_in_a_line(call, name):
    """Before the ranks have met; no word is left of it, as a job script then gives the command again."""
    codes, log = call(task=where_storage_fails("read_text", name, errno.ESTALE))
    assert codes == [1]
    assert re.search(
        rf"^error: .*{name}: can't .* \(Stale file handle\); give the same command again$", log, re.MULTILINE
    )
    assert "Traceback" not in log
    assert call()[0] == [0]


@pytest.mark.parametrize("world", [1, 2])
def test_the_last_checkpoint_is_tried_once_more(call, tmp_path, world):
    """Nothing comes after it that would be saved instead."""
    codes, log = call(world=world, task=where_storage_fails("mkdir", "/.step-000008.incomplete", errno.EIO))
    assert codes == [0] * world
    assert log.count("step 8: the checkpoint can't be written (") == 1
    run = RunDirectory(tmp_path / "run")
    assert (run.step, run.ending) == (8, "done")


def test_storage_that_fails_the_last_checkpoint_is_no_verdict(call, tmp_path):
    """As that of a full disk is: a job script gives the command again, and only the last steps are trained again."""
    codes, log = call(task=where_storage_fails("mkdir", "/.step-000008.incomplete", errno.EIO, times=2))
    assert codes == [1]
    run = RunDirectory(tmp_path / "run")
    assert log.endswith(f"[Errno 5] Input/output error: '{run.staging(8)}'); mend that, and give the same command: it "
                        "goes on after step 4\n")  # fmt: skip
    assert run.outcome is None
    assert call()[0] == [0]


def test_a_run_that_is_done_stays_so_whatever_can_not_be_read_of_it(call, tmp_path):
    task = where_storage_fails("is_dir", "exports/step-000008", errno.ESTALE)
    assert call(task=task)[0] == [0]
    assert RunDirectory(tmp_path / "run").outcome == ("done", "")


def test_a_copy_that_is_damaged_is_made_anew_by_the_same_command(call, tmp_path):
    """So a job that is restarted goes on: its shards are as good as they were."""
    cache = f"data.cache_dir={tmp_path / 'cache'}"
    codes, log = call(cache, world=2, task=run_pretrain_on_broken_data)
    assert codes == [1, 1]
    assert "shard-x: a broken pair; it is a copy in data.cache_dir: the same command makes it anew\n" in log
    run = RunDirectory(tmp_path / "run")
    assert run.outcome is None
    assert call(cache, world=2)[0] == [0, 0]
    assert run.outcome == ("done", "")


def test_a_crash_leaves_no_word(call, tmp_path):
    codes, log = call(task=run_pretrain_and_crash)
    assert codes == [1]
    assert "Traceback" in log
    assert "MemoryError" in log
    assert RunDirectory(tmp_path / "run").outcome is None


def test_a_rank_that_crashes_alone_waits_for_nobody(call):
    """The other is in a collective then, which under NCCL it would leave only when this process has ended."""
    codes, log = call(world=2, task=run_pretrain_and_crash_beside_others)
    assert codes == [1, 1]
    assert "MemoryError" in log
    assert "left the group" not in log


@pytest.mark.parametrize(("task", "told"), [
    (run_pretrain_and_lose_a_gpu, "AcceleratorError: CUDA error: uncorrectable ECC error encountered\n"),
    (run_pretrain_on_a_full_gpu, "the GPU is out of memory; set phases.N.micro_batch_size lower, "),
], ids=["lost", "full"])  # fmt: skip
def test_a_rank_whose_gpu_fails_says_which_it_is(call, tmp_path, task, told):
    """Most launchers mix its traceback with those of the ranks that lose it."""
    codes, log = call(world=2, task=task)
    assert codes == [1, 1]
    assert f"error: rank 1 on {socket.gethostname()}, local rank 1: {told}" in log
    assert RunDirectory(tmp_path / "run").outcome is None


def test_the_outcome_does_not_wait_for_mlflow(call, tmp_path):
    """A launcher that was told to stop kills after 30 s, and MLflow may take a minute."""
    _, log = call(world=2, task=run_pretrain_with_a_tracker_that_ends_late)
    assert "while MLflow ends: Outcome(ending='done', reason='')" in log
    codes, log = call(
        "schedule.peak=1e38", "schedule.warmup_steps=0", "optimizer.max_gradient_norm=0", output=tmp_path / "nan",
        task=run_pretrain_with_a_tracker_that_ends_late,
    )  # fmt: skip
    assert codes == [1]
    assert "while MLflow ends: Outcome(ending='failed', reason='step " in log


def test_no_rank_ends_before_the_outcome_is_written(call, tmp_path):
    """The first one's export may take minutes; a launcher that waits for it after the others' end has less patience."""
    assert call(world=2, task=run_pretrain_with_a_slow_export)[0] == [(0, True)] * 2
    run = RunDirectory(tmp_path / "run")
    shutil.rmtree(run.export(8))  # as a kill may leave it
    assert call(world=2, task=run_pretrain_with_a_slow_export)[0] == [(0, True)] * 2
    assert run.export(8).is_dir()


def test_a_validation_that_takes_longer_than_a_hang_is_none(call, tmp_path):
    """Six batches of 1.6 s each."""
    codes, _ = call("train.max_steps=4", "train.hang_seconds=8", task=run_pretrain_with_slow_validation)
    assert codes == [0]
    assert [line["step"] for line in read_lines(tmp_path / "run" / "validation.jsonl")] == [4]


@pytest.mark.parametrize("steps", [8, 4], ids=["before the last step", "after the last step"])
@pytest.mark.parametrize("every", [4, 8], ids=["checkpoint due", "checkpoint not due"])
def test_a_validation_ends_where_a_rank_is_asked_to_stop_and_is_made_up_for(call, trained, tmp_path, steps, every):
    settings = [f"train.max_steps={steps}", f"checkpoint.every={every}"]
    codes, log = call(*settings, world=2, task=run_pretrain_and_signal_in_validation_and_count_commits)
    assert codes == [0, 0]
    assert re.findall("committed .", log) == ["committed 4"], "once: a kill could take what is complete"
    run, whole = RunDirectory(tmp_path / "run"), RunDirectory(trained / "run")
    assert run.outcome == ("requeue", "asked to stop after step 4")
    assert run.step == 4
    assert not run.validation_metrics.exists()
    assert call(*settings, world=2)[0] == [0, 0]
    assert run.outcome == ("done", "")
    assert without_times(run.validation_metrics) == without_times(whole.validation_metrics)[: steps // 4]
    assert losses(run.path) == losses(whole.path)[:steps]


def test_a_step_at_which_all_is_to_stop_is_validated_by_the_next_start(call, tmp_path):
    settings = ["log.validate_every=3"]
    assert call(*settings, world=2, output=tmp_path / "whole")[0] == [0, 0]
    assert call(*settings, world=2, task=run_pretrain_and_signal)[0] == [0, 0]
    run, whole = RunDirectory(tmp_path / "run"), RunDirectory(tmp_path / "whole")
    assert run.outcome == ("requeue", "asked to stop after step 3")
    assert not run.validation_metrics.exists()
    assert call(*settings, world=2)[0] == [0, 0]
    assert [line["step"] for line in read_lines(run.validation_metrics)] == [3, 6, 8]
    assert without_times(run.validation_metrics) == without_times(whole.validation_metrics)


def test_a_checkpoint_that_is_to_stay_is_written_whatever_the_others_are(call, tmp_path):
    settings = ["checkpoint.every=4", "checkpoint.keep=1", "checkpoint.keep_every=3", "log.validate_every=0"]
    assert call(*settings)[0] == [0]
    assert [step_number(path) for path in step_folders(RunDirectory(tmp_path / "run").checkpoints)] == [3, 6, 8]


def test_a_step_that_is_validated_and_of_which_no_checkpoint_is_due_has_none(call, tmp_path):
    assert call("checkpoint.every=3", "checkpoint.keep=0", "log.validate_every=2")[0] == [0]
    run = RunDirectory(tmp_path / "run")
    assert [line["step"] for line in read_lines(run.validation_metrics)] == [2, 4, 6, 8]
    assert [step_number(path) for path in step_folders(run.checkpoints)] == [3, 6, 8]


def without_times(metrics):
    return [{name: value for name, value in line.items() if name != "time"} for line in read_lines(metrics)]


def test_an_export_that_finds_no_room_at_a_start_costs_nothing_else(call, half):
    shutil.rmtree(half.exports)
    half.exports.write_text("no folder can be made here")
    for settings in (["train.max_steps=4"], ["train.max_steps=6"]):  # when all is done, and when there is more to train
        codes, log = call(*settings)
        assert codes == [0]
        assert "the export can't be written (" in log
        assert "Traceback" not in log
        assert half.outcome == ("done", "")
    assert half.step == 6


def test_two_trainers_do_not_share_a_run(call, half):
    before = half.metrics.read_bytes()
    with hold_run(half):
        half.set_outcome(None)
        codes, log = call("schedule.peak=0.5")
        assert codes == [2], "a mistake that is seen before the lock is asked for"
        assert "started with other settings" in log
        codes, log = call(world=2, task=run_pretrain_without_patience)
    assert codes == [1, 1], "not 2: a job that was started again too early is worth another try"
    (error,) = re.findall("^error: (.*)", log, re.MULTILINE)
    assert error.startswith(f"{half.path}: in use by process {os.getpid()} on ")
    assert half.outcome is None, "what the other trainer will have to say is its own"
    assert half.metrics.read_bytes() == before
    assert call(world=2)[0] == [0, 0]


def test_a_run_that_is_set_back_by_hand_loses_nothing(call, tmp_path):
    assert call("checkpoint.every=2", "checkpoint.keep=0")[0] == [0]
    run = RunDirectory(tmp_path / "run")
    before = losses(run.path)
    (run.checkpoints / "latest").write_text("step-000004\n")
    codes, log = call("checkpoint.every=100", "checkpoint.keep=1", "checkpoint.keep_exports=1", "train.max_steps=6")
    assert codes == [0]
    aside = run.path / "set_aside" / "1"
    assert f"resuming from step 4: newer checkpoints and exports are now in {aside}, with a copy" in log
    assert sorted(path.name for path in (aside / "checkpoints").iterdir()) == ["step-000006", "step-000008"]
    assert sorted(path.name for path in (aside / "exports").iterdir()) == ["step-000006", "step-000008"]
    assert losses(aside) == before
    assert sorted(path.name for path in run.checkpoints.iterdir()) == ["latest", "step-000006"]
    assert [path.name for path in run.exports.iterdir()] == ["step-000006"]
    assert call()[0] == [0]
    assert losses(run.path) == before


def test_a_run_that_goes_on_with_other_libraries_says_so(call):
    assert call("train.max_steps=2")[0] == [0]
    assert "other libraries" not in call("train.max_steps=4")[1]
    codes, log = call("train.max_steps=6", task=run_pretrain_with_another_numpy)
    assert codes == [0]
    assert f"written with other libraries than resume it (numpy 1.26.0, not {version('numpy')}): samples" in log


@pytest.mark.parametrize("differing", ["shards", "recipe", "deepspeed_config"])
def test_nodes_with_other_files_under_one_name_are_told_apart(
    call, recipe, books, deepspeed_config, tmp_path, differing
):
    """Each would train well by itself, and all together on anything but what was asked for."""
    other_recipe = tmp_path / "other.toml"
    other_recipe.write_text(recipe.read_text().replace("peak = 1e-2", "peak = 2e-2"))
    of_the_last = {
        "shards": ("--shards", books),
        "recipe": ("--config", other_recipe),
        "deepspeed_config": ("--deepspeed_config", deepspeed_config(zero_optimization={"stage": 1})),
    }
    option, other = of_the_last[differing]
    codes, log = call(
        world=2, task=functools.partial(run_pretrain_on_nodes_that_differ, option=option, of_the_last=other)
    )
    assert codes == [2, 2]
    (error,) = re.findall("^error: (.*)", log, re.MULTILINE)
    assert error.startswith(f"rank 1 was given other {differing} than rank 0: see that all nodes have the same files")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("of_the_last", "told"),
    [({"code": "x", "numpy": "1.0"}, "other code; numpy 1.0, not 2."), ({"torch": None}, "torch missing, not 2.")],
)
def test_nodes_with_other_code_or_libraries_are_told_apart(call, tmp_path, of_the_last, told):
    """They would compute something between the two."""
    apart = functools.partial(run_pretrain_in_environments_that_differ, of_the_last=of_the_last)
    codes, log = call(world=2, task=apart)
    assert codes == [2, 2]
    (error,) = re.findall("^error: (.*)", log, re.MULTILINE)
    assert error.startswith(f"rank 1 on {socket.gethostname()} has not what rank 0 has: {told}")
    assert not (tmp_path / "run").exists()


def test_nodes_with_run_directories_of_their_own_are_told_so(call, tmp_path):
    """As on a disk of each node."""
    apart = functools.partial(run_pretrain_on_nodes_that_differ, option="--output", of_the_last=tmp_path / "other")
    told = (
        f"{tmp_path / 'run'}: {socket.gethostname()} can't read what the first rank wrote there; take an --output on "
        "a file system that all nodes share"
    )
    assert call(world=2, task=apart)[0] == [2, 2]
    assert RunDirectory(tmp_path / "run").outcome == ("failed", told)
    assert call("train.max_steps=2", world=2)[0] == [0, 0]
    assert call(world=2, task=apart)[0] == [2, 2], "a run that has a checkpoint, too"
    assert RunDirectory(tmp_path / "run").outcome == ("failed", told)
    assert not (tmp_path / "other").exists()


def test_the_advice_of_the_message_gets_past_a_bad_sample(call, tmp_path):
    assert call(world=2, task=run_pretrain_with_a_bad_sample)[0] == [1, 1]
    run = RunDirectory(tmp_path / "run")
    assert run.outcome.reason.startswith("step 2: the loss is nan, first on rank 1; data.skip=[[9,10],[12,13]] ")
    skip = re.search(r"data\.skip=\S+", run.outcome.reason).group()
    assert call(skip, world=2, task=run_pretrain_with_a_bad_sample)[0] == [0, 0]
    assert run.outcome == ("done", "")
    assert len(losses(run.path)) == 8


def test_retention_leaves_an_export_to_whom_it_evaluates(call, half):
    exports = half.exports
    with hold_export(exports / "step-000004"):
        assert call("train.max_steps=6", "checkpoint.every=2", "checkpoint.keep_exports=1")[0] == [0]
        assert sorted(path.name for path in exports.iterdir()) == ["step-000004", "step-000006"]
    assert call("checkpoint.every=2", "checkpoint.keep_exports=1")[0] == [0]
    assert sorted(path.name for path in exports.iterdir()) == ["step-000008"]

"""What a session puts together; tests/trainer/test_pretrain.py trains with it."""

import dataclasses
import math
import multiprocessing
import time
from types import SimpleNamespace

import pytest
import torch

from tests.trainer.shard_factory import write_shards
from trainer.checkpoint import Learner
from trainer.config import load_recipe
from trainer.corpus import open_corpus
from trainer.determinism import arithmetic_of
from trainer.engine import GlobalCounts
from trainer.files import append_lines
from trainer.loading import DamagedShardError, LoaderError
from trainer.metrics import Laps
from trainer.run_directory import RunDirectory
from trainer.saving import Problem
from trainer.session import Session, _throughput, _warn_of, owes_validation
from trainer.start import Written
from trainer.stopping import watch
from trainer.world import World


def of_session(recipe, shards, folder, *settings):
    """A session of one rank that trains nothing."""
    run = RunDirectory(folder)
    world, rest = World(0, 1, torch.device("cpu")), SimpleNamespace()
    corpus = open_corpus([str(shards)])
    written = Written("checksum", {})
    return Session([], None, load_recipe(recipe, settings), corpus, run, written, world, rest, rest, False)


def end_and_take_time(session):
    watch(1)
    session.deepspeed_configs = [{}]
    assert session.train(session.recipe.last_step) == ("done", "")
    time.sleep(3)


def test_what_comes_after_the_training_may_take_longer_than_a_hang(recipe, shards, tmp_path):
    """As MLflow's end may, on a slow line."""
    session = of_session(recipe, shards, tmp_path)
    session.run.export(session.recipe.last_step).mkdir(parents=True)
    process = multiprocessing.get_context("fork").Process(target=end_and_take_time, args=(session,))
    process.start()
    process.join()
    assert process.exitcode == 0


@pytest.fixture
def two_phases(recipe, tmp_path):
    """A recipe of three steps and of two."""
    second = "[[phases]]\nsequence_length = 32\nsteps = 2\nglobal_batch_size = 8\nmicro_batch_size = 2\n"
    text = recipe.read_text().replace("steps = 8", "steps = 3")
    path = tmp_path / "phases.toml"
    path.write_text(text.replace("[checkpoint]", f"{second}max_predictions = 4\n\n[checkpoint]"), encoding="utf-8")
    return path


@pytest.mark.parametrize(("settings", "step", "owes_validation", "trained"), [
    ([], 0, False, [(0, 0, 3), (3, 3, 5)]),
    ([], 2, False, [(0, 2, 3), (3, 3, 5)]),
    ([], 3, False, [(3, 3, 5)]),
    ([], 3, True, [(0, 3, 3), (3, 3, 5)]),
    ([], 4, True, [(3, 4, 5)]),
    ([], 5, False, []),
    ([], 5, True, [(3, 5, 5)]),
    (["train.max_steps=4"], 1, False, [(0, 1, 3), (3, 3, 4)]),
    (["train.max_steps=2"], 1, False, [(0, 1, 2)]),
])  # fmt: skip
def test_a_start_goes_through_the_phases_that_have_steps_left_or_a_validation_to_make_up_for(
    two_phases, shards, tmp_path, settings, step, owes_validation, trained
):
    session = of_session(two_phases, shards, tmp_path, *settings)
    session.run.export(step).mkdir(parents=True)
    session.deepspeed_configs, session.owes_validation, phases = [{}, {}], owes_validation, []

    def train_phase(phase, config, begin, step, end):
        session.owes_validation = False
        phases.append((begin, step, end))
        return end, True

    session._train_phase = train_phase
    assert session.train(step) == ("done", "")
    assert phases == trained


@pytest.mark.parametrize("has_export", [True, False])
def test_the_last_word_names_the_export_where_there_is_one(recipe, shards, tmp_path, caplog, has_export):
    caplog.set_level("INFO")
    session = of_session(recipe, shards, tmp_path)
    session.deepspeed_configs, export = [{}], session.run.export(8)
    if has_export:
        export.mkdir(parents=True)
    session.train(8)
    assert caplog.messages[-1] == "done: 8 steps" + has_export * f"; the newest export is {export}"


@pytest.mark.parametrize(("rank", "made"), [(0, [8]), (1, [])])
def test_only_the_first_rank_makes_an_export_that_is_missing(recipe, shards, tmp_path, monkeypatch, rank, made):
    asked = []
    monkeypatch.setattr("trainer.session.export_if_missing", lambda run, step, model: asked.append(step))
    session = of_session(recipe, shards, tmp_path)
    session.deepspeed_configs, session.world = [{}], World(rank, 2, torch.device("cpu"))
    session.train(8)
    assert asked == made


@pytest.mark.parametrize(("steps", "lines"), [((7, 8), "2 lines"), ((8,), "1 line")])
def test_lines_that_find_no_room_to_the_end_are_told_to_be_lost(recipe, shards, tmp_path, caplog, steps, lines):
    session = of_session(recipe, shards, tmp_path)
    session.deepspeed_configs = [{}]
    session._metrics.waiting = [
        (tmp_path / "file-system-that-is-gone" / "metrics.jsonl", {"step": step}) for step in steps
    ]
    session.run.export(8).mkdir(parents=True)
    session.train(8)
    assert caplog.messages == [f"{lines} of metrics could not be written and got lost (No such file or directory)"]


@pytest.mark.parametrize(("full_sequences", "is_told"), [(8, True), (4, False), (16, True)])
def test_a_larger_micro_batch_is_named_that_fits_even_if_all_sequences_were_full(
    recipe, shards, tmp_path, monkeypatch, caplog, full_sequences, is_told
):
    """A step of eight samples that took 30 % of the memory by so many tokens, padding included."""
    monkeypatch.setattr("trainer.session.memory_share", lambda _: 0.3)
    caplog.set_level("INFO")
    session = of_session(recipe, shards, tmp_path)
    totals = GlobalCounts(10, 8, 4, tokens=100, slots=32 * full_sequences, flops=1, stop=0, writing=0, unreadable=0)
    session._tell_of_room(session.recipe.phases[0], 4, totals)
    told = "30% of the GPU's memory is in use: phases.0.micro_batch_size=4 fits too, and fewer, larger ones are faster"
    assert caplog.messages == [told] * is_told


def test_a_checkpoint_gets_its_name_once_no_rank_is_writing_and_no_step_waits_for_that(recipe, shards, tmp_path):
    session = of_session(recipe, shards, tmp_path)
    settled, told = [], []
    session.saver = SimpleNamespace(writing=True, settle=lambda: settled.append(True))
    session.stop = SimpleNamespace(received=False)

    def step(writing):
        def count(batches, stop, is_writing, unreadable):
            told.append(is_writing)
            return SimpleNamespace(writing=writing, unreadable=0)

        session._take(iter([[]]), SimpleNamespace(count_step=count), Laps(torch.device("cpu")), 0)

    step(writing=2)
    session.saver.writing = False
    step(writing=1)
    assert (told, settled) == ([True, False], [])
    step(writing=0)
    assert settled == [True]


@pytest.mark.parametrize("kind", [DamagedShardError, LoaderError])
def test_where_what_was_trained_could_not_be_saved_the_error_says_so(recipe, shards, tmp_path, kind):
    session = of_session(recipe, shards, tmp_path)
    session.saver, error = SimpleNamespace(problem=None), kind("rank 1: cut")
    assert session._without_checkpoint(error) is error
    session.saver.problem = Problem("No space left on device", passes=False)
    told = session._without_checkpoint(error)
    assert (type(told), str(told)) == (kind, "rank 1: cut; no checkpoint of the last step (No space left on device)")


def test_a_step_owes_its_validation_until_that_has_a_line(recipe, tmp_path):
    """A start that goes on from it would write a second one."""
    run = RunDirectory(tmp_path)
    for settings, owing in (
        (["log.validate_every=3"], [3, 6, 8]),
        (["log.validate_every=1"], [1, 2, 3, 4, 5, 6, 7, 8]),
        (["log.validate_every=0"], []),
        (["train.max_steps=6"], [4, 6]),
        ([], [4, 8]),
    ):
        asked = load_recipe(recipe, settings)
        assert [step for step in range(asked.last_step + 1) if owes_validation(run, asked, step)] == owing
    append_lines(run.validation_metrics, {"step": 4})
    assert [step for step in range(9) if owes_validation(run, load_recipe(recipe), step)] == [8]


def test_a_phase_goes_on_behind_the_samples_of_earlier_ones_of_its_length(recipe, tmp_path):
    phases = "\n".join(
        f"[[phases]]\nsequence_length = {length}\nsteps = 3\nglobal_batch_size = 4\nmicro_batch_size = 2\n"
        "max_predictions = 4\n"
        for length in (16, 32, 32)
    )
    path = tmp_path / "phases.toml"
    path.write_text(recipe.read_text().replace("[checkpoint]", f"{phases}\n[checkpoint]"), encoding="utf-8")
    session = of_session(path, write_shards(tmp_path / "shards", sequence_lengths=(16, 32)), tmp_path)
    firsts = [
        min(int(batch.indices[0]) for batch in session._steps(phase, begin)[0])
        for begin, _, phase in session.recipe.phase_ranges()
    ]
    assert firsts == [0, 0, 64, 64 + 12]


def test_what_a_phase_reads_is_told_as_far_as_the_run_goes(recipe, shards, tmp_path, caplog):
    """Of 54 pairs."""
    caplog.set_level("INFO")
    for settings, expected in (
        ([], "64 samples from {} (1.19 epochs)"),
        (["train.max_steps=4"], "32 samples from {} (0.59 epochs)"),
        (
            ["train.max_steps=4", "data.skip=[[8,24],[30,99]]"],
            "32 samples from {} (0.59 epochs); 18 of them are skipped",
        ),
    ):
        session = of_session(recipe, shards, tmp_path, *settings)
        session._steps(session.recipe.phases[0], 0)
        assert caplog.messages[-1] == f"data: {expected}".format(shards)


def test_what_ranks_compare_are_seconds_a_token_and_waits_as_shares_of_the_whole_step(recipe, shards, tmp_path):
    session = of_session(recipe, shards, tmp_path)
    batches = next(iter(session._steps(session.recipe.phases[0], 0)))
    seen = []
    bottlenecks = SimpleNamespace(after_step=lambda *step: seen.append(step) or [])
    seconds = {"forward_seconds": 0.3, "data_seconds": 0.1, "compute_seconds": 0.9}
    _warn_of(bottlenecks, batches, seconds)
    _warn_of(bottlenecks, batches, {**seconds, "host_share": 0.2})
    tokens = sum(int(batch.tokens.bounds[-1]) for batch in batches)
    assert seen == [(0.3, 0.1, 1.0, tokens, 0.0), (0.3, 0.1, 1.0, tokens, 0.2)]


def test_rates_are_of_the_time_that_a_step_waits_and_computes():
    seconds = {"data_seconds": 1.0, "compute_seconds": 3.0, "checkpoint_seconds": 5.0}
    totals = GlobalCounts(10, 8, 4, tokens=600, slots=800, flops=8e12, stop=False, writing=False, unreadable=False)
    assert _throughput(totals, seconds, 16e12) == {
        **seconds, "tokens_per_second": 150.0, "tflops": 2.0, "mfu": 0.125, "padding": 0.25,
    }  # fmt: skip


@pytest.mark.parametrize(("losses", "exports", "told"), [
    ([3.0, 2.0, 2.5], [10, 12], "; the export that is nearest to that step is {exports}/step-000010"),
    ([3.0, 2.0, 2.5], [3, 9, 12], "; the export that is nearest to that step is {exports}/step-000009"),
    ([3.0, 2.0, 2.5], [], ""),
    ([3.0, 2.0, 2.009], [10, 12], None),
    ([3.0, 2.5, 2.0], [10, 12], None),
    ([3.0, 2.0, math.nan], [10, 12], None),
    ([math.nan, 2.0, 2.5], [], ""),
    ([None, 2.0, 2.5], [], ""),
    ([], [10, 12], None),
])  # fmt: skip
def test_a_held_out_loss_that_was_lower_before_the_end_is_told_with_the_export_of_then(
    two_phases, shards, tmp_path, caplog, losses, exports, told
):
    """In the last phase alone: losses of another length don't compare. And some have none, as nothing was predicted."""
    session = of_session(two_phases, shards, tmp_path, "phases.1.steps=9")
    session.deepspeed_configs = [{}, {}]
    for step, loss in zip((3, 9, 10, 12), [1.0, *losses], strict=False):
        append_lines(
            session.run.validation_metrics, {"step": step} if loss is None else {"step": step, "mlm_loss": loss}
        )
    for step in exports:
        session.run.export(step).mkdir(parents=True)
    assert session.train(12) == ("done", "")
    lowest = "the held-out loss of masked words was lowest after step 10: 2.0000, and is 2.5000 now"
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warnings == ([lowest + told.format(exports=session.run.exports)] if told is not None else [])


def test_a_held_out_loss_that_was_lower_before_the_end_of_a_phase_is_told_where_that_is_to_be_the_last_step(
    two_phases, shards, tmp_path, caplog
):
    session = of_session(two_phases, shards, tmp_path, "train.max_steps=3")
    session.deepspeed_configs = [{}, {}]
    for step, loss in ((1, 3.0), (2, 2.0), (3, 2.5)):
        append_lines(session.run.validation_metrics, {"step": step, "mlm_loss": loss})
    assert session.train(3) == ("done", "")
    assert "lowest after step 2: 2.0000, and is 2.5000 now" in caplog.text


def test_a_checkpoint_says_how_and_of_what_it_was_trained(recipe, shards, tmp_path):
    """What a resume compares, and what another run must know to begin with it."""
    session = of_session(recipe, shards, tmp_path, "train.seed=7")
    session.written = Written("checksum", {"libraries": {"torch": "2.12.0"}})
    state = session._state(4, SimpleNamespace(loss_scale=None))
    assert (state.step, state.samples) == (4, 32)
    assert (state.config_blake2b, state.code) == session.written
    assert state.manifest_blake2b == session.shards.manifest_blake2b
    assert (state.world_size, state.threads) == (1, torch.get_num_threads())
    assert state.arithmetic == arithmetic_of(torch.device("cpu"))
    model, vocabulary = dataclasses.asdict(session.recipe.model), session.shards.vocabulary.blake2b
    assert state.learner == Learner(model, vocabulary, "bert_adam", seed=7)

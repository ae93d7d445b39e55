"""When a run has diverged, and what is told then."""

import dataclasses

import pytest

from tests.trainer.conftest import STATE
from trainer.checkpoint import begin_checkpoint, commit_checkpoint
from trainer.config import load_recipe
from trainer.divergence import DivergedError, Divergence, check_not_diverged
from trainer.loss_trend import LossTrend
from trainer.run_directory import RunDirectory


def of_run(recipe, folder, *settings):
    return Divergence(load_recipe(recipe, settings), RunDirectory(folder))


def test_what_is_told_names_the_checkpoint_from_before_and_the_samples_since(recipe, tmp_path):
    divergence = of_run(recipe, tmp_path, "phases.0.steps=50000", "data.skip=[[7,9]]")
    divergence.trend = LossTrend(mean=3.9, lowest=1.8, good_step=45_031)
    told = str(divergence.error(45_170))
    assert "there is no checkpoint from before: begin anew with a lower peak or" in told
    assert "data.skip" not in told
    for saved in (44_000, 45_000, 46_000):
        divergence.run.checkpoint(saved).mkdir(parents=True)
    told = str(divergence.error(45_170))
    assert told.startswith("step 45170: the loss rose after step 45031 and stays 2.1 nats above its lowest mean")
    latest = tmp_path / "checkpoints" / "latest"
    assert f"write step-045000 into {latest} and give data.skip=[[7,9],[360000,361360]], which" in told
    assert "or begin another run with a lower peak from that step's export; with train.divergence=0" in told


def in_phases(recipe, folder, *others):
    """A recipe of eight steps of 8 samples of 32, and then of phases with other settings than those."""
    given = {"sequence_length": 32, "steps": 8, "global_batch_size": 8, "micro_batch_size": 2, "max_predictions": 4}
    phases = [f"[[phases]]\n{to_lines({**given, **other})}\n" for other in others]
    path = folder / "phases.toml"
    path.write_text(recipe.read_text().replace("[checkpoint]", "\n".join([*phases, "[checkpoint]"])), encoding="utf-8")
    return path


def to_lines(settings):
    return "\n".join(f"{name} = {value}" for name, value in settings.items())


@pytest.mark.parametrize(("step", "good_step", "named", "skipped"), [
    (7, 5, "step-000005", "[[40,56]]"),
    (7, 4, "step-000004", "[[32,56]]"),
    (7, 3, None, None),
    (14, 10, "step-000010", "[[72,88]]"),
    (14, 8, "step-000005", "[[40,88]]"),
    (18, 17, "step-000010", "[[0,32]]"),
])  # fmt: skip
def test_a_run_that_has_diverged_names_the_newest_checkpoint_from_before_and_the_samples_since(
    recipe, tmp_path, step, good_step, named, skipped
):
    """By their places in the stream of the phase's length: a second phase of 4 samples a step reads on, a third not."""
    phases = in_phases(
        recipe, tmp_path, {"global_batch_size": 4}, {"sequence_length": 16, "steps": 4, "global_batch_size": 16}
    )
    divergence = of_run(phases, tmp_path)
    for saved in (4, 5, 10):
        divergence.run.checkpoint(saved).mkdir(parents=True)
    divergence.trend = LossTrend(mean=4.5, lowest=2.0, good_step=good_step)
    assert divergence.is_seen
    error = str(divergence.error(step))
    told = f"write {named} into {divergence.run.latest} and give data.skip={skipped}, which"
    assert told in error if named else "there is no checkpoint from before" in error


def test_what_is_skipped_already_is_part_of_the_advice(recipe, tmp_path):
    divergence = of_run(recipe, tmp_path, "data.skip=[[18,22],[30,44]]")
    divergence.run.checkpoint(4).mkdir(parents=True)
    divergence.trend = LossTrend(mean=4.5, lowest=2.0, good_step=5)
    assert "give data.skip=[[18,22],[30,56]], which" in str(divergence.error(7))


@pytest.mark.parametrize(("second", "is_judged_by_the_first"), [
    ({}, True),
    ({"global_batch_size": 4, "weights": "[1]"}, False),
    ({"sequence_length": 16}, False),
])  # fmt: skip
def test_the_losses_of_a_phase_are_judged_by_those_before_where_they_are_on_the_same_data(
    recipe, tmp_path, caplog, second, is_judged_by_the_first
):
    divergence = of_run(in_phases(recipe, tmp_path, second), tmp_path)
    for rise, is_told in ((0.1, False), (1.0, True)):
        caplog.clear()
        before = divergence.trend = LossTrend(mean=2.0 + rise, lowest=2.0, good_step=5)
        divergence.enter(8, divergence.recipe.phases[1])
        assert divergence.trend == (before if is_judged_by_the_first else before.begin_anew())
        assert ["1.0 nats above its lowest mean where a phase on other data begins" in m for m in caplog.messages] == [
            True
        ] * (is_told and not is_judged_by_the_first)


@pytest.mark.parametrize(("phases", "are_the_same"), [
    ([{}], True),
    ([{"weights": "[0.5]"}], True),
    ([{"weights": "[0.5]"}, {}], True),
    ([{"weights": "[1]"}], False),
    ([{"weights": "[1]"}, {}], False),
    ([{"weights": "[1]"}, {"weights": "[1]"}], True),
])  # fmt: skip
def test_weights_that_each_phase_has_of_its_own_are_compared_with_those_of_all(recipe, tmp_path, phases, are_the_same):
    divergence = of_run(in_phases(recipe, tmp_path, *phases), tmp_path, "data.weights=[0.5]")
    divergence.trend = trend = LossTrend(mean=2.0, lowest=2.0, good_step=5)
    divergence.enter(8 * len(phases), divergence.recipe.phases[-1])
    assert divergence.trend == (trend if are_the_same else trend.begin_anew())


def test_losses_are_judged_by_those_of_the_phase_before_and_not_by_an_earlier_one_s(recipe, tmp_path):
    """As of a length that a run comes back to."""
    divergence = of_run(in_phases(recipe, tmp_path, {"sequence_length": 16}, {}), tmp_path)
    divergence.trend = trend = LossTrend(mean=2.0, lowest=2.0, good_step=5)
    begin, _, phase = list(divergence.recipe.phase_ranges())[2]
    divergence.enter(begin, phase)
    assert divergence.trend == trend.begin_anew()


def test_of_a_rise_before_a_phase_nothing_is_told_where_a_run_may_diverge(recipe, tmp_path, caplog):
    path = in_phases(recipe, tmp_path, {"sequence_length": 16})
    divergence = of_run(path, tmp_path, "train.divergence=0")
    divergence.trend = LossTrend(mean=3.0, lowest=2.0, good_step=5)
    divergence.enter(8, divergence.recipe.phases[1])
    assert not caplog.messages


def diverged_at(step, path, good_step=4):
    """A run with a checkpoint of a step that was trained after its loss had risen."""
    run, trend = RunDirectory(path), LossTrend(mean=4.5, lowest=2.0, good_step=good_step)
    begin_checkpoint(run, step)
    commit_checkpoint(run, dataclasses.replace(STATE, step=step, samples=8 * step, trend=trend))
    return run


def test_a_run_that_would_go_on_from_where_it_had_diverged_does_not(recipe, tmp_path):
    run = diverged_at(6, tmp_path)
    with pytest.raises(DivergedError, match=r"step 6: the loss rose after step 4 and stays 2\.5 nats above its lowest"):
        check_not_diverged(run, load_recipe(recipe), 6)
    check_not_diverged(run, load_recipe(recipe, ["train.divergence=3"]), 6)
    check_not_diverged(run, load_recipe(recipe), 0)
    next_phase = in_phases(recipe, tmp_path, {"sequence_length": 16})
    check_not_diverged(run, load_recipe(next_phase, ["phases.0.steps=6"]), 6)
    run.set_outcome("done")
    check_not_diverged(run, load_recipe(recipe), 6)


def test_a_run_that_has_diverged_at_its_last_step_is_told_so_again(recipe, tmp_path):
    run = diverged_at(8, tmp_path)
    with pytest.raises(DivergedError, match=r"^step 8: the loss rose after step 4"):
        check_not_diverged(run, load_recipe(recipe), 8)


def test_a_run_that_has_diverged_by_the_end_that_it_was_given_is_told_so_though_a_phase_would_follow(recipe, tmp_path):
    run, phases = diverged_at(8, tmp_path), in_phases(recipe, tmp_path, {"sequence_length": 16})
    check_not_diverged(run, load_recipe(phases), 8)
    with pytest.raises(DivergedError, match=r"^step 8: the loss rose after step 4"):
        check_not_diverged(run, load_recipe(phases, ["train.max_steps=8"]), 8)


def test_a_run_that_has_diverged_in_a_later_phase_is_told_which_samples_of_that_to_skip(recipe, tmp_path):
    run = diverged_at(14, tmp_path, good_step=12)
    run.checkpoint(10).mkdir()
    phases = load_recipe(in_phases(recipe, tmp_path, {"sequence_length": 16}, {}))
    with pytest.raises(DivergedError, match=r"write step-000010 into .* and give data\.skip=\[\[16,48\]\], which"):
        check_not_diverged(run, phases, 14)


def test_the_loss_of_the_masked_words_counts_where_there_is_one(recipe, tmp_path):
    divergence = of_run(recipe, tmp_path)
    divergence.enter(0, divergence.recipe.phases[0])
    divergence.follow(1, {"loss": 9.0})
    assert divergence.trend is None
    assert not divergence.is_seen
    divergence.follow(2, {"loss": 9.0, "mlm_loss": 8.0})
    assert divergence.trend.mean == 8.0


def test_a_limit_of_less_than_a_nat_is_one(recipe, tmp_path):
    divergence = of_run(recipe, tmp_path, "train.divergence=0.5")
    for rise, is_seen in ((0.4, False), (0.6, True)):
        divergence.trend = LossTrend(mean=2.0 + rise, lowest=2.0, good_step=5)
        assert divergence.is_seen == is_seen


def test_a_run_that_may_diverge_keeps_no_trend(recipe, tmp_path):
    divergence = of_run(recipe, tmp_path, "train.divergence=0")
    divergence.trend = LossTrend(mean=4.5, lowest=2.0, good_step=5)
    assert not divergence.is_seen
    divergence.follow(7, {"mlm_loss": 4.5})
    assert divergence.trend is None
    assert not divergence.is_seen

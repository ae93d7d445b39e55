"""fp16's dynamic loss scaling: DeepSpeed's scaler by itself, and a training in fp16 with overflows in it."""

import dataclasses
import json
from itertools import pairwise

import pytest
from deepspeed.runtime.fp16 import loss_scaler
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from tests.ranks import run_ranks
from tests.trainer.engine_tasks import gradients_in_fp16
from tests.trainer.rank_tasks import run_pretrain, run_pretrain_in_fp16
from trainer.checkpoint import read_run_state
from trainer.files import read_lines
from trainer.joining import fp16_is_supported
from trainer.loss_scale import LossScale, is_exhausted, put_loss_scale, take_loss_scale
from trainer.run_directory import RunDirectory

ZERO_2 = {"stage": 2}


@pytest.fixture(autouse=True)
def _alone(monkeypatch):
    monkeypatch.setattr(loss_scaler.dist, "get_rank", lambda: 0)


def scaler(**settings):
    made = loss_scaler.DynamicLossScaler(**{
        "init_scale": 2.0**4, "scale_window": 3, "min_scale": 1, "delayed_shift": 2, "consecutive_hysteresis": False,
        **settings,
    })  # fmt: skip
    put_loss_scale(made, None)
    return made


def scales(made, updates):
    """The scale after each update; "o" is one whose gradients overflow."""
    found = []
    for update in updates:
        made.update_scale(update == "o")
        found.append(made.cur_scale)
    return found


@pytest.mark.parametrize(("settings", "updates", "expected"), [
    ({}, ".......", [16, 16, 16, 32, 32, 32, 64]),  # doubles after three good ones, the first of which counts nothing
    ({}, "oo..oo", [16, 8, 8, 8, 4, 2]),  # the first overflow uses the hysteresis up, which good ones don't refill
    ({}, "oo...oo", [16, 8, 8, 8, 8, 4, 2]),
    ({}, "oo....oo", [16, 8, 8, 8, 8, 16, 16, 8]),  # doubling refills it
    ({"consecutive_hysteresis": True}, "oo..oo", [16, 8, 8, 8, 8, 4]),  # each good one does
    ({"delayed_shift": 1}, "oooooo", [8, 4, 2, 1, 1, 1]),  # down to the least
])  # fmt: skip
def test_the_scale_after_a_series_of_overflows(settings, updates, expected):
    assert scales(scaler(**settings), updates) == expected


@given(
    updates=st.lists(st.sampled_from(".o"), max_size=40),
    split=st.integers(0, 40),
    hysteresis=st.integers(1, 3),
    refill=st.booleans(),
)
def test_a_restored_scaler_goes_on_as_the_one_that_was_saved(updates, split, hysteresis, refill):
    settings = {"delayed_shift": hysteresis, "consecutive_hysteresis": refill}
    whole, first, second = (scaler(**settings) for _ in range(3))
    scales(first, updates[:split])
    state = LossScale(**json.loads(json.dumps(dataclasses.asdict(take_loss_scale(first)))))
    scales(second, "o.")  # nothing is left of what it was
    put_loss_scale(second, state)
    assert take_loss_scale(second) == state
    assert scales(whole, updates)[split:] == scales(second, updates[split:])
    assert take_loss_scale(second) == take_loss_scale(whole)


def test_a_scale_that_can_not_fall_is_told():
    made = scaler(init_scale=2.0)
    assert [is_exhausted(made) for _ in scales(made, "o")] == [False]
    scales(made, "o")
    assert made.cur_scale == 1
    assert is_exhausted(made)


def test_the_lowest_scale_can_fall_no_more_only_when_the_hysteresis_is_used_up():
    made = scaler(init_scale=1.0, delayed_shift=2)
    assert not is_exhausted(made)
    scales(made, "o")
    assert is_exhausted(made)


def test_a_fixed_scale_and_no_scale_have_no_state():
    fixed = loss_scaler.LossScaler(128)
    before = vars(fixed).copy()
    for other in (fixed, None):
        put_loss_scale(other, LossScale(2.0, 0, 1))
        assert take_loss_scale(other) is None
        assert not is_exhausted(other)
    assert vars(fixed) == before


@pytest.fixture
def train(recipe, shards, deepspeed_config, tmp_path):
    """Train in fp16 with two ranks; returns the run and what was printed."""

    def run(name, *settings, task=run_pretrain_in_fp16, zero=ZERO_2, **fp16):
        fp16 = {"enabled": True, "initial_scale_power": 20, "hysteresis": 1, "loss_scale_window": 2, **fp16}
        config = deepspeed_config(bf16=None, fp16=fp16, zero_optimization=zero)
        arguments = ["--config", str(recipe), "--deepspeed_config", str(config), "--shards", str(shards), "--output",
                     str(tmp_path / name), "log.validate_every=0", *settings]  # fmt: skip
        codes = run_ranks(2, task, arguments, log=tmp_path / "log")
        return RunDirectory(tmp_path / name), codes, (tmp_path / "log").read_text()

    return run


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_gradients_are_divided_by_the_scale_that_they_were_multiplied_by(recipe, shards, deepspeed_config, stage):
    """Where it grows too: DeepSpeed 0.19 by itself divides by the new one then."""
    fp16 = {"enabled": True, "initial_scale_power": 4, "loss_scale_window": 2}
    config = deepspeed_config(bf16=None, fp16=fp16, zero_optimization={"stage": stage})
    (steps,) = run_ranks(1, gradients_in_fp16, recipe, shards, config)
    scales, told, given = zip(*steps, strict=True)
    assert [now > before for before, now in pairwise(scales)].count(True) == 2
    assert told == pytest.approx([told[0]] * len(steps), rel=0.01)
    assert given == pytest.approx(told, rel=0.01)


@pytest.mark.skipif(fp16_is_supported(), reason="this processor has fp16")
def test_fp16_on_a_processor_without_it_is_refused_before_anything_is_written(train):
    run, codes, log = train("run", task=run_pretrain)
    assert codes == [2, 2]
    assert "error: fp16: this machine's processor can't compute in it; use bf16, or train on GPUs" in log
    assert not run.path.exists()


@pytest.mark.parametrize(
    "zero", [{"stage": 1}, ZERO_2, {"stage": 3}, {**ZERO_2, "offload_optimizer": {"device": "cpu"}}]
)
def test_updates_that_overflow_are_left_out_and_a_resume_knows_the_scale(train, zero):
    """A scale of 2^20 is too large at first; a window of two updates brings it back there again and again."""
    steps = "phases.0.steps=16"
    whole, codes, log = train("whole", steps, "checkpoint.every=16", zero=zero)
    assert codes == [0, 0], log
    lines = list(read_lines(whole.metrics))
    skipped = [line["step"] for line in lines if line["skipped_updates"]]
    assert 1 in skipped
    assert 3 <= len(skipped) < 12
    assert all(("grad_norm" in line) == (line["step"] not in skipped) for line in lines)
    for line, following in pairwise(lines):
        if line["skipped_updates"]:
            assert following["loss_scale"] == line["loss_scale"] / 2
    assert [line["samples"] for line in lines] == [8 * step for step in range(1, 17)], (
        "skipped samples are not repeated"
    )

    state = whole.checkpoint(16) / "state-00000-of-00002.safetensors"
    assert f'"optimizer_step":"{16 - len(skipped)}"' in state.read_bytes()[:4096].decode(errors="ignore")

    halves, *_ = train("halves", steps, f"train.max_steps={skipped[1]}", zero=zero)
    assert read_run_state(halves.checkpoint(skipped[1])).loss_scale.good_updates == 0
    halves, codes, log = train("halves", steps, zero=zero)
    assert codes == [0, 0], log
    keys = ("step", "loss", "loss_scale", "skipped_updates")
    curves = [[[line[key] for key in keys] for line in read_lines(run.metrics)] for run in (halves, whole)]
    assert curves[0] == curves[1]
    weights = [load_file(run.export(16) / "model.safetensors") for run in (halves, whole)]
    assert all(weights[0][name].equal(weights[1][name]) for name in weights[0])


def test_a_gradient_that_overflows_at_the_lowest_scale_ends_the_run(train):
    run, codes, log = train("run", initial_scale_power=20, min_loss_scale=2**20)
    assert codes == [1, 1]
    assert "error: step 1: a gradient even at the lowest loss scale, 1.04858e+06, is NaN or infinite" in log
    assert run.outcome.ending == "failed"

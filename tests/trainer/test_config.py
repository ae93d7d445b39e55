import errno
import json
import os
import re
from dataclasses import replace
from operator import attrgetter
from unittest import mock

import pytest

from preprocessing.storage_errors import exit_code
from tests.conftest import ROOT
from tests.trainer.conftest import TINY
from trainer.config import differences, load_recipe, to_toml
from trainer.model import BertConfig, parameter_count
from trainer.schedule import ScheduleConfig
from trainer.settings import ConfigError, apply_override

RECIPES = ROOT / "trainer" / "recipes"


def test_the_paper_s_recipes():
    """Devlin et al. (2019), appendix A.2: 1 M steps of 256 sequences, 90 % of them at 128 tokens, warm-up 10 k."""
    large, base = load_recipe(RECIPES / "bert_large.toml"), load_recipe(RECIPES / "bert_base.toml")
    assert parameter_count(large.model) == 336_226_108
    assert parameter_count(base.model) == 110_106_428
    for recipe in (large, base):
        assert [(p.sequence_length, p.steps, p.global_batch_size) for p in recipe.phases] == [
            (128, 900_000, 256),
            (512, 100_000, 256),
        ]
        assert [recipe.predictions(p) for p in recipe.phases] == [19, 77]
        optimizer, schedule = recipe.optimizer, recipe.schedule
        assert (optimizer.name, optimizer.beta1, optimizer.beta2, optimizer.eps) == ("bert_adam", 0.9, 0.999, 1e-6)
        assert (optimizer.weight_decay, optimizer.max_gradient_norm) == (0.01, 1.0)
        assert (schedule.peak, schedule.warmup_steps, schedule.power, schedule.decay_from) == (
            1e-4,
            10_000,
            1.0,
            "start",
        )
        assert (recipe.masking.probability, recipe.masking.mask, recipe.masking.random) == (0.15, 0.8, 0.1)
        assert (recipe.model.hidden_dropout_prob, recipe.model.attention_probs_dropout_prob) == (0.1, 0.1)
        assert recipe.model.layer_norm_eps == 1e-12


def test_nvidia_s_large_batch_recipe():
    """DeepLearningExamples, LanguageModeling/BERT: warm-up over 28.43 % and 12.8 %, square-root decay."""
    recipe = load_recipe(RECIPES / "lamb_64k.toml")
    assert parameter_count(recipe.model) == 336_226_108
    assert [(p.sequence_length, p.steps, p.global_batch_size) for p in recipe.phases] == [
        (128, 7038, 65_536),
        (512, 1563, 32_768),
    ]
    assert (recipe.optimizer.name, recipe.optimizer.weight_decay, recipe.optimizer.max_gradient_norm) == (
        "lamb",
        0.01,
        1.0,
    )
    assert [(p.schedule.peak, p.schedule.power) for p in recipe.phases] == [(6e-3, 0.5), (4e-3, 0.5)]
    assert [p.schedule.warmup_steps / p.steps for p in recipe.phases] == pytest.approx([0.2843, 0.128], abs=1e-4)
    assert recipe.learning_rate(2001) == pytest.approx(6e-3 * (1 - 2001 / 7038) ** 0.5)
    assert recipe.learning_rate(7038) == 0.0  # the second phase warms up again
    assert recipe.learning_rate(7238) == pytest.approx(4e-3 * (1 - 200 / 1563) ** 0.5)


def test_a_recipe_for_given_weights_leaves_the_model_to_them():
    given = BertConfig(vocab_size=99, hidden_act="relu", layer_norm_eps=1e-5, activation_checkpointing=True)
    recipe = load_recipe(RECIPES / "continued.toml", ["model.hidden_dropout_prob=0.0"], given)
    assert recipe.model == replace(given, hidden_dropout_prob=0.0, activation_checkpointing=False)
    assert load_recipe(RECIPES / "bert_base.toml", model=given).model.vocab_size == 30522, "what a recipe says, holds"
    with pytest.raises(ConfigError, match=r"continued.toml: has no \[model\], .* by --init-from its folder, .* sizes"):
        load_recipe(RECIPES / "continued.toml", ["train.seed=2"])


def test_the_sizes_of_table_6():
    found = {
        (recipe.model.num_hidden_layers, recipe.model.hidden_size, recipe.model.num_attention_heads)
        for recipe in map(load_recipe, RECIPES.glob("table6_*.toml"))
        if recipe.model.intermediate_size == 4 * recipe.model.hidden_size
    }
    assert found == {(3, 768, 12), (6, 768, 3), (6, 768, 12), (12, 768, 12), (12, 1024, 16), (24, 1024, 16)}


def test_a_day_s_budget():
    """Izsak et al. (2021): LayerNorm before sublayers, no NSP, 4,096 sequences of 128, 1e-3 after 6 % of warm-up."""
    recipe = load_recipe(RECIPES / "budget_24h.toml")
    assert (recipe.model.num_hidden_layers, recipe.model.hidden_size) == (24, 1024)
    assert recipe.model.pre_layer_norm
    assert (recipe.model.hidden_dropout_prob, recipe.model.attention_probs_dropout_prob) == (0.1, 0.1)
    assert not recipe.train.next_sentence
    optimizer, schedule = recipe.optimizer, recipe.schedule
    assert (optimizer.name, optimizer.beta1, optimizer.beta2, optimizer.eps) == ("adamw", 0.9, 0.98, 1e-6)
    assert (optimizer.weight_decay, optimizer.max_gradient_norm) == (0.01, 0.0)
    (phase,) = recipe.phases
    assert (phase.sequence_length, phase.steps, phase.global_batch_size) == (128, 23_000, 4096)
    assert (schedule.peak, schedule.power) == (1e-3, 1.0)
    assert schedule.warmup_steps / phase.steps == pytest.approx(0.06)
    # Their pretraining/schedules.py, LinearCurve: the decay begins at the peak.
    assert [recipe.learning_rate(step) for step in (690, 1380, 12_190)] == pytest.approx([5e-4, 1e-3, 5e-4])


def test_the_tasks_of_table_5():
    base = load_recipe(RECIPES / "bert_base.toml")
    no_nsp, left_to_right = (load_recipe(RECIPES / f"ablation_{name}.toml") for name in ("no_nsp", "left_to_right"))
    assert differences(base, no_nsp) == ["train.next_sentence: True -> False"]
    assert differences(no_nsp, left_to_right) == ["model.is_decoder: False -> True"]


def test_a_recipe_extends_another_table_by_table(tmp_path):
    (tmp_path / "base.toml").write_text(TINY, encoding="utf-8")
    (tmp_path / "child.toml").write_text('extends = "base.toml"\n[schedule]\npeak = 0.5\n', encoding="utf-8")
    base, child = load_recipe(tmp_path / "base.toml"), load_recipe(tmp_path / "child.toml")
    assert (child.schedule.peak, child.schedule.warmup_steps) == (0.5, base.schedule.warmup_steps)
    assert child.phases == base.phases
    (tmp_path / "grandchild.toml").write_text('extends = "child.toml"\n[schedule]\npower = 2\n', encoding="utf-8")
    grandchild = load_recipe(tmp_path / "grandchild.toml")
    assert (grandchild.schedule.peak, grandchild.schedule.power) == (0.5, 2)
    for parent in ("loop.toml", "../base.toml", "..", ".", "", "base\0.toml", 3):
        (tmp_path / "loop.toml").write_text(f"extends = {json.dumps(parent)}\n", encoding="utf-8")
        with pytest.raises(ConfigError, match="extends must name another recipe in the same folder"):
            load_recipe(tmp_path / "loop.toml")
    for depth in range(5):
        (tmp_path / f"{depth}.toml").write_text(f'extends = "{depth + 1}.toml"\n', encoding="utf-8")
    (tmp_path / "5.toml").write_text(TINY, encoding="utf-8")
    load_recipe(tmp_path / "1.toml")
    with pytest.raises(ConfigError, match="not in circles nor over more than 4 files"):
        load_recipe(tmp_path / "0.toml")


def test_a_recipe_that_is_extended_and_not_there_is_told_by_the_file_that_names_it(tmp_path):
    """The user has named the one; the other lies somewhere else, such as beside the recipes of the trainer."""
    (tmp_path / "mine.toml").write_text('extends = "demo.toml"\n', encoding="utf-8")
    (tmp_path / "other.toml").write_text('extends = "my_own.toml"\n', encoding="utf-8")
    told = f'mine.toml: extends = "demo.toml", which is not in {tmp_path}; copy it there from {RECIPES}'
    with pytest.raises(ConfigError, match=f"{re.escape(told)}$"):
        load_recipe(tmp_path / "mine.toml")
    with pytest.raises(ConfigError, match=r'"my_own\.toml", which is not in .*; copy it there$'):
        load_recipe(tmp_path / "other.toml")


def test_a_recipe_that_is_extended_and_can_not_be_looked_at_is_not_called_missing(tmp_path, monkeypatch):
    (tmp_path / "base.toml").write_text(TINY, encoding="utf-8")
    (tmp_path / "child.toml").write_text('extends = "base.toml"\n', encoding="utf-8")
    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda *_: False)  # as it says where storage fails
        patch.setattr(os, "stat", mock.Mock(side_effect=OSError(errno.ESTALE, os.strerror(errno.ESTALE))))
        with pytest.raises(ConfigError, match=r"base\.toml: can't read the recipe \(Stale file handle\)$") as told:
            load_recipe(tmp_path / "child.toml")
    assert exit_code(told.value) == 1, "it may pass"


@pytest.mark.parametrize(
    ("override", "meant"),
    [
        ("max_steps=3", "train.max_steps"),
        ("phases.0.peak=3", "phases.0.schedule.peak"),
        ("every=3", "checkpoint.every or log.every or tracking.every"),
    ],
)
def test_a_setting_that_another_section_has_is_looked_for_there(override, meant):
    with pytest.raises(ConfigError, match=rf"; did you mean {meant}\?"):
        load_recipe(RECIPES / "demo.toml", [override])


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.toml")), ids=lambda path: path.stem)
def test_every_recipe_loads_and_survives_being_written_out(path, tmp_path):
    recipe = load_recipe(path, model=BertConfig(vocab_size=99))
    (tmp_path / "config.toml").write_text(to_toml(recipe), encoding="utf-8")
    assert load_recipe(tmp_path / "config.toml") == recipe


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.toml")), ids=lambda path: path.stem)
def test_a_recipe_of_many_steps_gives_mlflow_every_hundredth_and_another_all(path):
    recipe = load_recipe(path, model=BertConfig(vocab_size=99))
    assert recipe.tracking.every == (100 if max(phase.steps for phase in recipe.phases) >= 100_000 else 1)


def test_a_schedule_that_no_phase_follows_is_not_to_be_set_and_makes_no_difference():
    path = RECIPES / "lamb_64k.toml"
    with pytest.raises(ConfigError, match=r"schedule.peak=1e-3: in .* say phases.0.schedule.peak=1e-3$"):
        load_recipe(path, ["schedule.peak=1e-3"])
    recipe = load_recipe(path, ["phases.0.schedule.peak=1e-3"])
    assert recipe.learning_rate(2001) == pytest.approx(1e-3 * (1 - 2001 / 7038) ** 0.5)
    other = replace(recipe, schedule=ScheduleConfig(peak=1.0))
    assert not differences(recipe, other)


def test_overrides(recipe):
    changed = load_recipe(
        recipe,
        ["train.seed=7", "phases.0.micro_batch_size=4", "schedule.peak=2e-4", "optimizer.name=adamw", "log.every=5",
         "tracking.enabled=true"],
    )  # fmt: skip
    assert (changed.train.seed, changed.phases[0].micro_batch_size, changed.schedule.peak) == (7, 4, 2e-4)
    assert (changed.optimizer.name, changed.log.every, changed.tracking.enabled) == ("adamw", 5, True)


@pytest.mark.parametrize(
    ("text", "value"), [("12:00:00", "12:00:00"), ("2026-01-01", "2026-01-01"), ("3", 3), ("x", "x")]
)
def test_a_time_or_a_date_is_a_string(text, value):
    """As in slurm.time=12:00:00, which TOML would take for noon."""
    raw = {}
    apply_override(raw, f"slurm.time={text}")
    assert raw == {"slurm": {"time": value}}


def test_one_number_of_a_list_may_be_set(recipe):
    overrides = ["data.weights=[1, 2, 3]", "data.weights.1=0.5"]
    assert load_recipe(recipe, overrides).data.weights == (1.0, 0.5, 3.0)
    with pytest.raises(ConfigError, match=r"data\.weights\.3: there is no '3' .*; those there end with number 2"):
        load_recipe(recipe, [*overrides, "data.weights.3=4"])


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.sed=1", r"unknown setting train\.sed; did you mean train\.seed\?"),
        ("optimiser.eps=1", r"unknown setting optimiser; did you mean optimizer\?"),
        ("phases.0.batch=1", r"unknown setting phases\.0\.batch"),
        ("phases.1.steps=1", r"phases\.1\.steps: there is no '1'"),
        ("train.seed", "section.key=value"),
        ("schedule.peak.x=1", "schedule.peak is a single value"),
        ("train.seed=abc", r"train\.seed: .*integer"),
        ("model.num_attention_heads=3", r"model: .*heads"),
        ("model.is_decoder=true", r"set train.next_sentence=false"),
        ("phases.0.steps=0", r"phases\.0: steps must be positive"),
        ("phases.0.sequence_length=64", "max_position_embeddings"),
        ("optimizer.name=sgd", r"optimizer\.name: .*'bert_adam'"),
        ("phases.0.schedule={peek=1}", r"unknown setting phases\.0\.schedule\.peek; did you mean"),
        ("masking.probability=2", r"masking\.probability is 2"),
        ("masking.mask=nan", r"masking\.mask is nan"),
        ("train.seed=-1", r"train: seed must be 0 or more and below 2\^63"),
        ("train.seed=9223372036854775808", r"train: seed must be 0 or more and below 2\^63"),
        ("schedule.peak=nan", r"schedule\.peak must be positive, .* all of them finite"),
        ("optimizer.max_gradient_norm=nan", r"max_gradient_norm must be 0 or more and finite"),
        ("optimizer.eps=inf", r"optimizer\.eps be 1\.2e-38 or more, and finite"),
        ("optimizer.eps=1e-46", r"optimizer\.eps be 1\.2e-38 or more, and finite"),
        ("schedule.peak=true", r"schedule\.peak is true; give a number"),
        (
            "optimizer.bias_correction=false",
            r'optimizer\.bias_correction is of "lamb" alone; "adamw" corrects the bias',
        ),
        ("data.weights=0.7,0.3", r"data\.weights: Input should be a list, in square brackets"),
        ("data.skip=[5,9]", r"data\.skip\.0: Input should be a list, in square brackets"),
        ("data.weights=[true, 1]", r"data\.weights\.0 is true; give a number"),
        ("model.num_hidden_layers=true", r"model\.num_hidden_layers is true; give a number"),
        ("phases.0.steps=false", r"phases\.0\.steps is false; give a number"),
        ("phases=[]", r"a recipe needs at least one \[\[phases\]\]"),
        *(
            (f"tracking.experiment={name}", "tracking: experiment must be a name of 1 to 500 characters")
            for name in ("", "   ", "x" * 501)
        ),
    ],
)
def test_a_wrong_setting_is_named(recipe, override, message):
    with pytest.raises(ConfigError, match=message) as caught:
        load_recipe(recipe, [override])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("in_file", "overrides", "culprit"),
    [
        ("", ["train.max_step=3"], "train.max_step=3: unknown setting train.max_step; did you mean train.max_steps?"),
        ("", ["train.max_steps=3", "trai.seed=3"], "FILE: unknown setting trai; ... (with trai.seed=3)"),
        ("", ["train={seeds=3}"], "train={seeds=3}: unknown setting train.seeds; "),
        ("", ["train.seed=abc", "log.every=5"], "train.seed=abc: train.seed: Input should be a valid integer"),
        ("", ["train.seed=true"], "train.seed=true: train.seed is true; give a number"),
        ("", ["train.seed=-1", "log.every=5"], "FILE: train: seed must be 0 or more... (with train.seed=-1)"),
        ("max_step = 3", ["train.seed=5"], "FILE: unknown setting train.max_step; "),
        ("max_steps = 'x'", ["train.seed=5", "log.every=5"], "FILE: train.max_steps: Input should be a valid integer"),
        ("max_steps = 'x'", ["train.max_steps=true"], "train.max_steps=true: train.max_steps is true; give a number"),
        ("max_steps = -1", ["train.seed=5"], "FILE: train: max_steps must be 0 or more... (with train.seed=5)"),
        ("max_steps = -1", ["log.every=5"], "FILE: train: max_steps must be 0 or more...10000000"),
    ],
)
def test_a_mistake_on_the_command_line_is_told_from_one_in_the_file(tmp_path, in_file, overrides, culprit):
    file = tmp_path / "recipe.toml"
    file.write_text(f"{TINY}\n[train]\n{in_file}\n", encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_recipe(file, overrides)
    begin, _, end = culprit.replace("FILE", str(file)).partition("...")
    assert str(caught.value).startswith(begin)
    assert str(caught.value).endswith(end)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["model.intermediate_size=312", "train.fp8=true"], r"multiples of 16.*intermediate_size 312.*leave it out"),
        (["model.hidden_size=40", "train.fp8=true"], r"multiples of 16.*hidden_size 40 .*leave it out"),
        *(
            (["train.fused=true", other], r"train\.fused has kernels for layers that end in LayerNorm")
            for other in ("model.pre_layer_norm=true", "model.hidden_act=relu", "train.fp8=true")
        ),
        (
            ["model.is_decoder=true", "train.next_sentence=false", "masking.probability=0.2"],
            r"sees nothing of a second segment .*leave \[masking\] out",
        ),
        *(
            (
                ["train.cuda_graphs=true", *others],
                r"cuda_graphs needs a data.token_multiple of some 1/32 .*and no model.activation_checkpointing",
            )
            for others in ([], ["data.token_multiple=64", "model.activation_checkpointing=true"])
        ),
    ],
)
def test_settings_that_do_not_go_together_are_refused(recipe, overrides, message):
    with pytest.raises(ConfigError, match=message):
        load_recipe(recipe, overrides)


@pytest.mark.parametrize(
    "override",
    ["train.hang_seconds=-1", "train.max_steps=-1", "train.threads=-1", "checkpoint.every=0", "checkpoint.keep=-1",
     "checkpoint.keep_every=-1", "checkpoint.keep_exports=-1", "log.every=0", "log.validate_every=-1",
     "log.validation_samples=0", "log.profile_step=-1", "log.profile_step=1",
     "tracking.every=0", "tracking.every=2147483648",
     "data.workers=-2", "data.workers=1025", "data.shuffle_bytes=0",
     "data.shuffle_bytes=9223372036854775808", "schedule.warmup_steps=2147483648",
     "phases.0.max_predictions=0", "phases.0.global_batch_size=0", "phases.0.micro_batch_size=0",
     "phases.0.sequence_length=0", "phases.0.steps=2147483648"],
)  # fmt: skip
def test_a_number_out_of_bounds_is_refused(recipe, override):
    with pytest.raises(ConfigError, match=r"must be (0 or more|-1 to 1024|positive)"):
        load_recipe(recipe, [override])


@pytest.mark.parametrize(
    ("setting", "value"),
    [("train.divergence", 0), ("train.seed", 0), ("tracking.experiment", "x" * 500), ("data.workers", 1024),
     ("optimizer.beta2", 0), ("optimizer.weight_decay", 0), ("optimizer.max_gradient_norm", 0)],
)  # fmt: skip
def test_a_setting_at_its_bound_is_taken(recipe, setting, value):
    assert attrgetter(setting)(load_recipe(recipe, [f"{setting}={value}"])) == value


def test_a_phase_may_be_as_short_as_pairs_of_shards_can_be(recipe):
    assert load_recipe(recipe, ["phases.0.sequence_length=8"]).phases[0].sequence_length == 8


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.hang_seconds=10000000000000", "hang_seconds 0 to 10000000"),
        ("train.threads=2048", "threads 0 to 1024"),
        ("phases.0.global_batch_size=9999999999999999", "global_batch_size must be positive and below"),
        ("phases.0.sequence_length=7", "phases.0: sequence_length must be 8 or more, as those of shards are"),
        ("optimizer={name='lamb', min_trust_ratio=inf}", "min_trust_ratio must be 0 or more, finite"),
        ("data.token_multiple=0", "token_multiple must be 1 to 65,536"),
        ("data.token_multiple=1000000007", "token_multiple must be 1 to 65,536"),
        ("data.weights=[1e308, 1e308]", "data.weights must be positive numbers"),
        ("data.weights=[1e300]", r"data.weights must be positive numbers, and less than 1e\+100 together"),
        ("data.skip=[[0, 9223372036854775808]]", "data.skip must be pairs"),
        (f"checkpoint.every={'9' * 500}", "checkpoint.every is out of range; give a number of 64 bits"),
        ("train.divergence=-1", "divergence must be 0 or more, finite"),
        ("train.divergence=nan", "divergence must be 0 or more, finite"),
        ("train.divergence=inf", "divergence must be 0 or more, finite"),
        ("phases.0.weights=[0, 0.0]", "phases.0: weights must be numbers of 0 or more, not all of them 0"),
        ("phases.0.weights=[1, -0.5]", "phases.0: weights must be numbers of 0 or more"),
        ("phases.0.weights=[1, nan]", "phases.0: weights must be numbers of 0 or more"),
        ("phases.0.weights=[1e300, 1e-300]", r"not all of them 0, and less than 1e\+100 together"),
        ("phases.0.weights=[1e308, 1e308]", "phases.0: weights must be numbers of 0 or more"),
    ],
)
def test_a_number_that_no_machine_takes_is_refused(recipe, override, message):
    with pytest.raises(ConfigError, match=message):
        load_recipe(recipe, [override])


def test_a_recipe_that_is_not_there_or_not_toml(tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere\.toml: can't read"):
        load_recipe(tmp_path / "nowhere.toml")
    for text in ("[model\n", "a = " + "[" * 10_000, "a = " + "9" * 5000):
        (tmp_path / "broken.toml").write_text(text, encoding="utf-8")
        with pytest.raises(ConfigError, match=r"broken\.toml: not a TOML file"):
            load_recipe(tmp_path / "broken.toml")


def test_phases_follow_one_another(tmp_path):
    two = TINY.replace("[checkpoint]", "[[phases]]\nsequence_length = 16\nsteps = 3\nglobal_batch_size = 4\n"
                       "micro_batch_size = 2\nmax_predictions = 2\n[checkpoint]")  # fmt: skip
    (tmp_path / "two.toml").write_text(two, encoding="utf-8")
    recipe = load_recipe(tmp_path / "two.toml")
    assert [(begin, end) for begin, end, _ in recipe.phase_ranges()] == [(0, 8), (8, 11)]
    assert (recipe.total_steps, recipe.last_step) == (11, 11)
    assert load_recipe(tmp_path / "two.toml", ["train.max_steps=9"]).last_step == 9
    assert [recipe.samples(step) for step in (0, 1, 8, 9, 11)] == [0, 8, 64, 68, 76]


@pytest.mark.parametrize(
    "override",
    ["model.hidden_dropout_prob=0.2", "phases.0.max_predictions=3", "optimizer.beta1=0.8", "schedule.power=0.5",
     "masking.probability=0.2", "train.seed=9", "train.next_sentence=false", "train.compile=true", "train.fused=true",
     "train.fp8=true", "data.shuffle_bytes=5", "data.weights=[1.0, 2.0]", "phases.0.weights=[1.0, 0.0]",
     "data.token_multiple=64"],
)  # fmt: skip
def test_whatever_changes_the_numbers_is_a_difference(recipe, override):
    [found] = differences(load_recipe(recipe), load_recipe(recipe, [override]))
    assert found.startswith(override.partition("=")[0] + ": ")


@pytest.mark.parametrize("way", ["compile=false", "compile=true", "fused=true", "fp8=true"])
def test_so_are_graphs_however_the_layers_are_computed(recipe, way):
    rounded = ["data.token_multiple=64", f"train.{way}"]
    [found] = differences(load_recipe(recipe, rounded), load_recipe(recipe, [*rounded, "train.cuda_graphs=true"]))
    assert found == "train.cuda_graphs: False -> True"


@pytest.mark.parametrize(
    "override",
    ["train.max_steps=3", "train.threads=2", "train.hang_seconds=5", "train.deterministic=false", "checkpoint.every=3",
     "log.every=7", "log.profile_step=20", "tracking.enabled=true", "tracking.every=100",
     "phases.0.micro_batch_size=4", "model.activation_checkpointing=true", "data.workers=2",
     "data.verify=false", "data.cache_dir='/x'", "data.skip=[[1, 2]]"],
)  # fmt: skip
def test_whatever_does_not_is_none(recipe, override):
    """It may change from a start of a run to the next."""
    assert differences(load_recipe(recipe), load_recipe(recipe, [override])) == []


@pytest.mark.parametrize("limit", [5, 20, 1000])
def test_a_limit_that_no_sample_reaches_changes_nothing(recipe, limit):
    """15 % of 32 tokens are 5, whether they are limited to 20, as google-research/bert does, or not at all."""
    path = recipe.with_name("unlimited.toml")
    path.write_text(recipe.read_text().replace("max_predictions = 4\n", ""))
    unlimited = load_recipe(path)
    assert unlimited.phases[0].max_predictions is None
    assert unlimited.predictions(unlimited.phases[0]) == 5
    assert differences(load_recipe(recipe, [f"phases.0.max_predictions={limit}"]), unlimited) == []
    assert differences(load_recipe(recipe), unlimited) == ["phases.0.max_predictions: 4 -> None"]


def test_left_to_right_all_but_the_last_token_predict_one(recipe):
    left_to_right = load_recipe(recipe, ["model.is_decoder=true", "train.next_sentence=false"])
    (phase,) = left_to_right.phases
    assert (left_to_right.predictions(phase), left_to_right.predictions(phase, 20.4)) == (31, 19)


def test_a_phase_more_or_less_is_a_difference(recipe):
    one = load_recipe(recipe)
    two = replace(one, phases=[*one.phases, replace(one.phases[0], steps=3)])
    assert "phases.1.steps: None -> 3" in differences(one, two)
    assert "phases.1.steps: 3 -> None" in differences(two, one)


def test_differences_tell_the_old_value_and_the_new(recipe):
    old = load_recipe(recipe)
    other = load_recipe(recipe, ["train.seed=5", "schedule.peak=0.5", "phases.0.global_batch_size=16"])
    assert differences(old, other) == [
        "phases.0.global_batch_size: 8 -> 16",
        "schedule.peak: 0.01 -> 0.5",
        "train.seed: 1 -> 5",
    ]

import dataclasses
import json

import pytest

from tests.trainer.conftest import ROOT, TINY
from trainer.config import (
    _SECTIONS,
    _VALUES,
    ConfigError,
    accumulation_steps,
    apply_override,
    differences,
    load_recipe,
    resolve_deepspeed,
    to_toml,
    without_communication,
)
from trainer.model import parameter_count

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
        assert [p.max_predictions for p in recipe.phases] == [20, 77]
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
    assert (phase.sequence_length, phase.steps, phase.global_batch_size, phase.max_predictions) == (
        128,
        23_000,
        4096,
        20,
    )
    assert (schedule.peak, schedule.power) == (1e-3, 1.0)
    assert schedule.warmup_steps / phase.steps == pytest.approx(0.06)


def test_the_tasks_of_table_5():
    base = load_recipe(RECIPES / "bert_base.toml")
    no_nsp, left_to_right = (load_recipe(RECIPES / f"ablation_{name}.toml") for name in ("no_nsp", "left_to_right"))
    assert differences(base, no_nsp) == ["train.next_sentence: True -> False"]
    assert differences(no_nsp, left_to_right) == ["model.is_decoder: False -> True"]


@pytest.mark.parametrize("name", ["compile", "fp8"])
def test_compiled_layers_and_products_in_eight_bits_need_their_parameters_to_stay(recipe, deepspeed_config, name):
    settings, config = load_recipe(recipe, [f"train.{name}=true"]), deepspeed_config(zero_optimization={"stage": 3})
    with pytest.raises(ConfigError, match=rf"train\.{name} needs zero_optimization\.stage 0, 1 or 2"):
        resolve_deepspeed(config, settings, settings.phases[0], world=2)
    assert resolve_deepspeed(deepspeed_config(), settings, settings.phases[0], world=2)


def test_a_recipe_extends_another_table_by_table(tmp_path):
    (tmp_path / "base.toml").write_text(TINY, encoding="utf-8")
    (tmp_path / "child.toml").write_text('extends = "base.toml"\n[schedule]\npeak = 0.5\n', encoding="utf-8")
    base, child = load_recipe(tmp_path / "base.toml"), load_recipe(tmp_path / "child.toml")
    assert (child.schedule.peak, child.schedule.warmup_steps) == (0.5, base.schedule.warmup_steps)
    assert child.phases == base.phases
    (tmp_path / "grandchild.toml").write_text('extends = "child.toml"\n[schedule]\npower = 2\n', encoding="utf-8")
    grandchild = load_recipe(tmp_path / "grandchild.toml")
    assert (grandchild.schedule.peak, grandchild.schedule.power) == (0.5, 2)
    for parent in ("loop.toml", "../base.toml", 3):
        (tmp_path / "loop.toml").write_text(f"extends = {json.dumps(parent)}\n", encoding="utf-8")
        with pytest.raises(ConfigError, match="extends must name another recipe in the same folder"):
            load_recipe(tmp_path / "loop.toml")


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.toml")), ids=lambda path: path.stem)
def test_every_recipe_loads_and_survives_being_written_out(path, tmp_path):
    recipe = load_recipe(path)
    (tmp_path / "config.toml").write_text(to_toml(recipe), encoding="utf-8")
    assert load_recipe(tmp_path / "config.toml") == recipe


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
        ("optimizer.eps=inf", r"optimizer\.eps be positive and finite"),
    ],
)
def test_a_wrong_setting_is_named(recipe, override, message):
    with pytest.raises(ConfigError, match=message) as caught:
        load_recipe(recipe, [override])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "override",
    ["train.hang_seconds=-1", "train.max_steps=-1", "train.threads=-1", "checkpoint.every=0", "checkpoint.keep=-1",
     "checkpoint.keep_every=-1", "checkpoint.keep_exports=-1", "log.every=0", "log.validate_every=-1",
     "log.validation_samples=0", "data.workers=-1", "data.shuffle_bytes=0", "phases.0.max_predictions=0",
     "phases.0.global_batch_size=0", "phases.0.micro_batch_size=0", "phases.0.sequence_length=0"],
)  # fmt: skip
def test_a_number_that_is_too_small_is_refused(recipe, override):
    with pytest.raises(ConfigError, match=r"must be (0 or more|positive)"):
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


@pytest.mark.parametrize(
    "override",
    ["model.hidden_dropout_prob=0.2", "phases.0.max_predictions=3", "optimizer.beta1=0.8", "schedule.power=0.5",
     "masking.probability=0.2", "train.seed=9", "train.next_sentence=false", "train.compile=true", "train.fp8=true",
     "data.shuffle_bytes=5", "data.weights=[1.0, 2.0]", "data.token_multiple=64"],
)  # fmt: skip
def test_whatever_changes_the_numbers_is_a_difference(recipe, override):
    [found] = differences(load_recipe(recipe), load_recipe(recipe, [override]))
    assert found.startswith(override.partition("=")[0] + ": ")


@pytest.mark.parametrize(
    "override",
    ["train.max_steps=3", "train.threads=2", "train.hang_seconds=5", "checkpoint.every=3", "log.every=7",
     "tracking.enabled=true", "phases.0.micro_batch_size=4", "model.activation_checkpointing=true", "data.workers=2",
     "data.verify=false", "data.cache_dir='/x'", "data.skip=[[1, 2]]"],
)  # fmt: skip
def test_whatever_does_not_is_none(recipe, override):
    """It may change from a start of a run to the next."""
    assert differences(load_recipe(recipe), load_recipe(recipe, [override])) == []


def test_differences_tell_the_old_value_and_the_new(recipe):
    old = load_recipe(recipe)
    other = load_recipe(recipe, ["train.seed=5", "schedule.peak=0.5", "phases.0.global_batch_size=16"])
    assert differences(old, other) == [
        "phases.0.global_batch_size: 8 -> 16",
        "schedule.peak: 0.01 -> 0.5",
        "train.seed: 1 -> 5",
    ]


def test_deepspeed_gets_what_the_recipe_rules(recipe, deepspeed_config):
    settings = load_recipe(recipe)
    resolved = resolve_deepspeed(deepspeed_config(), settings, settings.phases[0], world=2)
    assert resolved["train_batch_size"] == 8
    assert resolved["train_micro_batch_size_per_gpu"] == 2
    assert resolved["gradient_accumulation_steps"] == 2
    assert not resolved["zero_force_ds_cpu_optimizer"]  # absent, it would refuse our optimizers beside offloading
    assert resolved["gradient_clipping"] == 1.0  # absent, DeepSpeed would clip at 1.0 whatever the recipe says
    unclipped = dataclasses.replace(settings, optimizer=dataclasses.replace(settings.optimizer, max_gradient_norm=0.0))
    assert resolve_deepspeed(deepspeed_config(), unclipped, settings.phases[0], 2)["gradient_clipping"] == 0.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gradient_clipping": 0.5}, "gradient_clipping is 0.5, but the recipe says 1.0"),
        ({"train_batch_size": 16}, "train_batch_size is 16, but the recipe says 8"),
        (
            {"optimizer": {"type": "Adam"}},
            r'optimizer is {"type": "Adam"}; remove it; the recipe\'s \[optimizer\] rules',
        ),
        ({"scheduler": {"type": "WarmupLR"}}, r"remove it; the recipe's \[schedule\] rules it"),
        ({"zero_optimization": {"stage": 0}}, "mixed precision needs zero_optimization.stage"),
        ({"fp16": {"enabled": True}}, "bf16 and fp16 are both enabled; choose one"),
        ({"bf16": {"enabled": True, "check_grad_overflow": False}}, "bf16.check_grad_overflow is false; leave it on"),
        ({"zero_optimization": {"stage": 2, "compute_grad_norm": False}}, "compute_grad_norm is false; leave it on"),
        ({"bf16": {"enabled": True, "bf16_optimizer_states": True}}, "bf16_optimizer_states is true; leave it off"),
        (
            {"bf16": {"enabled": True, "bf16_master_weights_and_grads": True}},
            "bf16_master_weights_and_grads is true; leave it off",
        ),
        (
            {"bf16": None, "fp16": {"enabled": True, "fp16_master_weights_and_grads": True}},
            "fp16_master_weights_and_grads is true; leave it off",
        ),
        ({"torch_autocast": {"enabled": True}}, "torch_autocast.enabled is true; use bf16 or fp16"),
        (
            {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu", "super_offload": True}}},
            "offload_optimizer.super_offload is true; remove it",
        ),
        ({"zero_optimization": {"stage": 2, "zenflow": {"topk_ratio": 0.1}}}, "zenflow is .*; remove it"),
        (
            {"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": "/"}}},
            'offload_optimizer.device is "nvme"; use cpu',
        ),
        (
            {"zero_optimization": {"stage": 2, "round_robin_gradients": True}},
            "round_robin_gradients is true; leave it off: DeepSpeed then keeps weights in another order than it says",
        ),
        ({"tensor_parallel": {"autotp_size": 2}}, "tensor_parallel is .*; remove it: ranks share the samples"),
        ({"sequence_parallel_size": 2}, "sequence_parallel_size is 2; remove it: ranks share the samples"),
        ({"activation_checkpointing": {}}, "remove it and set model.activation_checkpointing=true"),
        ({"gradient_predivide_factor": 2.0}, "gradient_predivide_factor is 2.0; remove it: losses are normalized"),
        ({"gradient_allreduce_op": "sum"}, 'gradient_allreduce_op is "sum"; remove it'),
        ({"zero_force_ds_cpu_optimizer": True}, r"is true; remove it; the recipe's \[optimizer\] is never replaced"),
        ({"fp16": True}, "fp16 is true; it must be an object"),
        ({"data_types": "fp32"}, 'data_types is "fp32"; it must be an object'),
        ({"zero_optimisation": {"stage": 3}}, r"unknown key zero_optimisation; did you mean zero_optimization\?"),
        ({"prescale_gradient": True}, r"unknown key prescale_gradient; did you mean prescale_gradients\?"),
        ({"bfloat16": {"enabled": True}}, r"unknown key bfloat16; did you mean bf16\?"),
        ({"pipeline": {"stages": 2}}, "unknown key pipeline; remove it: it has no effect on this trainer"),
    ],
)
def test_a_deepspeed_configuration_that_disagrees(recipe, deepspeed_config, changes, message):
    settings = load_recipe(recipe)
    with pytest.raises(ConfigError, match=message):
        resolve_deepspeed(deepspeed_config(**changes), settings, settings.phases[0], world=2)


def test_sections_of_deepspeeds_configuration_are_objects(recipe, tmp_path):
    """null too, which the fixture leaves out."""
    settings = load_recipe(recipe)
    (tmp_path / "ds.json").write_text('{"fp16": null}', encoding="utf-8")
    with pytest.raises(ConfigError, match="fp16 is null; it must be an object"):
        resolve_deepspeed(tmp_path / "ds.json", settings, settings.phases[0], world=1)


def test_deepspeed_reads_every_key_that_is_taken():
    from deepspeed.runtime.config import DeepSpeedConfig

    asked = set()

    class Asked(dict):
        def get(self, key, default=None):
            asked.add(key)
            return super().get(key, default)

        def __contains__(self, key):
            asked.add(key)
            return super().__contains__(key)

        def keys(self):
            return self

    DeepSpeedConfig(Asked(train_batch_size=1))
    assert {*_SECTIONS, *_VALUES} <= asked


@pytest.mark.parametrize(
    ("stage", "off", "has_type"),
    [
        (0, {"overlap_comm": False}, True),
        (1, {"overlap_comm": False, "reduce_scatter": False}, True),
        (2, {"overlap_comm": False, "reduce_scatter": False}, False),
        (3, {"overlap_comm": False}, True),
    ],
)
def test_one_rank_has_nothing_to_communicate(stage, off, has_type):
    zero = {"stage": stage, "overlap_comm": True, "reduce_bucket_size": 7}
    config = {"bf16": {"enabled": True}, "zero_optimization": zero, "communication_data_type": "fp32"}
    alone = without_communication(config)
    assert alone == {
        "bf16": {"enabled": True}, "zero_optimization": {**zero, **off},
        **({"communication_data_type": "fp32"} if has_type else {}),
    }  # fmt: skip


def test_equal_values_are_no_disagreement(recipe, deepspeed_config):
    settings = load_recipe(recipe)
    resolve_deepspeed(deepspeed_config(gradient_clipping=1.0, train_batch_size=8), settings, settings.phases[0], 2)


def test_a_deepspeed_configuration_that_can_t_be_read(recipe, tmp_path):
    settings = load_recipe(recipe)
    for text, message in (
        ("{", "not a JSON file"),
        ("[" * 100_000, "not a JSON file"),
        ("[]", "must be a JSON object"),
    ):
        (tmp_path / "ds.json").write_text(text, encoding="utf-8")
        with pytest.raises(ConfigError, match=message):
            resolve_deepspeed(tmp_path / "ds.json", settings, settings.phases[0], 1)
    with pytest.raises(ConfigError, match=r"nowhere\.json: can't read"):
        resolve_deepspeed(tmp_path / "nowhere.json", settings, settings.phases[0], 1)


def test_a_global_batch_that_the_ranks_can_t_divide(recipe):
    phase = load_recipe(recipe).phases[0]
    assert [accumulation_steps(phase, world) for world in (1, 2, 4)] == [4, 2, 1]
    with pytest.raises(ConfigError, match=r"global batch of 8 .* 3 ranks: it must be a multiple of 6"):
        accumulation_steps(phase, 3)


def test_the_file_at_the_root_is_for_bert_large():
    large = load_recipe(RECIPES / "bert_large.toml")
    for world in (1, 2, 8):
        for phase in large.phases:
            assert resolve_deepspeed(ROOT / "ds_config.json", large, phase, world)["bf16"]["enabled"]

"""What DeepSpeed is told: its own knobs, what the recipe rules, and what would do harm."""

import dataclasses

import pytest

from tests.conftest import ROOT
from trainer.config import load_recipe
from trainer.deepspeed_config import (
    _SECTIONS,
    _VALUES,
    accumulation_steps,
    other_numbers,
    read_deepspeed,
    resolve,
    without_communication,
)
from trainer.settings import ConfigError


@pytest.mark.parametrize("name", ["compile", "cuda_graphs", "fused", "fp8"])
def test_whatever_makes_a_layer_fast_needs_its_parameters_to_stay(recipe, deepspeed_config, name):
    settings = load_recipe(recipe, [f"train.{name}=true", "data.token_multiple=64"])
    config = deepspeed_config(zero_optimization={"stage": 3})
    with pytest.raises(ConfigError, match=rf"train\.{name} needs zero_optimization\.stage 0, 1 or 2"):
        resolve(read_deepspeed(config), settings, settings.phases[0], world=2)
    assert resolve(read_deepspeed(deepspeed_config()), settings, settings.phases[0], world=2)


@pytest.mark.parametrize("name", ["compile", "cuda_graphs"])
def test_what_torch_compiles_or_a_graph_holds_is_not_profiled_by_deepspeed(recipe, deepspeed_config, name):
    """The first would end the run at the step that is to be profiled, and again at each start."""
    settings = load_recipe(recipe, [f"train.{name}=true", "data.token_multiple=64"])
    config = deepspeed_config(flops_profiler={"enabled": True})
    with pytest.raises(ConfigError, match=rf"flops_profiler\.enabled: DeepSpeed 0\.19 fails.* train\.{name}=false"):
        resolve(read_deepspeed(config), settings, settings.phases[0], world=2)
    plain = load_recipe(recipe)
    assert resolve(read_deepspeed(config), plain, plain.phases[0], world=2)["flops_profiler"] == {"enabled": True}


def test_deepspeed_gets_what_the_recipe_rules(recipe, deepspeed_config):
    settings = load_recipe(recipe)
    resolved = resolve(read_deepspeed(deepspeed_config()), settings, settings.phases[0], world=2)
    assert resolved["train_batch_size"] == 8
    assert resolved["train_micro_batch_size_per_gpu"] == 2
    assert resolved["gradient_accumulation_steps"] == 2
    assert not resolved["zero_force_ds_cpu_optimizer"]  # absent, it would refuse our optimizers beside offloading
    assert resolved["gradient_clipping"] == 1.0  # absent, DeepSpeed would clip at 1.0 whatever the recipe says
    unclipped = dataclasses.replace(settings, optimizer=dataclasses.replace(settings.optimizer, max_gradient_norm=0.0))
    assert resolve(read_deepspeed(deepspeed_config()), unclipped, settings.phases[0], 2)["gradient_clipping"] == 0.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"log_level": "quiet"}, 'log_level is "quiet"; choose debug, info, warning, error, critical'),
        ({"zero_optimization": {"stage": 1, "legacy_stage1": True}}, "legacy_stage1 is true; remove it"),
        (
            {"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu", "ratio": 0.5}}},
            "offload_optimizer.ratio is 0.5; leave it out",
        ),
        (
            {"bf16": None, "zero_optimization": {"offload_optimizer": {"device": "cpu"}}},
            "offload_optimizer has no effect under stage 0; remove it, or take stage 1, 2 or 3",
        ),
        (
            {"zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}},
            "offload_param has no effect under stage 2; remove it, or take stage 3",
        ),
        ({"gradient_clipping": 0.5}, "gradient_clipping is 0.5, but the recipe says 1.0"),
        ({"gradient_clipping": "1.0"}, 'gradient_clipping is "1.0", but the recipe says 1.0'),
        ({"train_batch_size": 16}, "train_batch_size is 16, but the recipe says 8"),
        (
            {"optimizer": {"type": "Adam"}},
            r'optimizer is {"type": "Adam"}; remove it; the recipe\'s \[optimizer\] rules',
        ),
        ({"scheduler": {"type": "WarmupLR"}}, r"remove it; the recipe's \[schedule\] rules it"),
        ({"bf16": {"enabled": "auto"}}, r'bf16\.enabled is "auto"; write true or false'),
        ({"zero_optimization": {"stage": "2"}}, r'zero_optimization\.stage is "2"; choose 0, 1, 2 or 3'),
        ({"zero_optimization": {"stage": True}}, r"zero_optimization\.stage is true; choose 0, 1, 2 or 3"),
        ({"zero_optimization": {"stage": 4}}, r"zero_optimization\.stage is 4; choose 0, 1, 2 or 3"),
        ({"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme", "nvme_path": "/"}}}, "use cpu"),
        ({"zero_optimization": {"stage": 0}}, "mixed precision needs zero_optimization.stage"),
        (
            {"bf16": None, "fp16": {"enabled": True}, "zero_optimization": {"stage": 0}},
            "mixed precision needs zero_optimization.stage",
        ),
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
        ({"communication_data_type": "float99"}, 'communication_data_type is "float99"; choose fp32, fp16 or bf16'),
        (
            {"zero_optimization": {"stage": 3, "zero_quantized_gradients": True}},
            "zero_quantized_gradients is true; remove it",
        ),
        (
            {"zero_optimization": {"stage": 3, "stage3_module_granularity_threshold": 100000}},
            "stage3_module_granularity_threshold is 100000; remove it",
        ),
        (
            {"zero_optimization": {"stage": 3, "module_granularity_threshold": 100000}},
            "zero_optimization.module_granularity_threshold is 100000; remove it",
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
        ({"zero_allow_untested_optimizer": False}, "zero_allow_untested_optimizer is false; remove it"),
        ({"zero_force_ds_cpu_optimizer": True}, r"is true; remove it; the recipe's \[optimizer\] is never replaced"),
        ({"fp16": True}, "fp16 is true; it must be an object"),
        ({"data_types": "fp32"}, 'data_types is "fp32"; it must be an object'),
        ({"zero_optimisation": {"stage": 3}}, r"unknown key zero_optimisation; did you mean zero_optimization\?"),
        ({"prescale_gradients": True}, "prescale_gradients is true; remove it: losses are normalized already"),
        ({"prescale_gradient": True}, r"unknown key prescale_gradient; did you mean prescale_gradients\?"),
        ({"bfloat16": {"enabled": True}}, r"unknown key bfloat16; did you mean bf16\?"),
        ({"data_types": {"grad_accum_dtyp": "fp32"}}, "data_types.grad_accum_dtyp has no effect here"),
        ({"data_types": {"grad_accum_dtype": "fp23"}}, 'data_types.grad_accum_dtype is "fp23"; choose fp32, fp16 or'),
        ({"timers": {"thruput": {"enabled": True}}}, "timers.thruput has no effect here, only throughput has"),
        ({"timers": {"throughput": True}}, "timers.throughput is true; it must be an object"),
        ({"flops_profiler": {"enable": True}}, "flops_profiler.enable has no effect here"),
        ({"flops_profiler": {"enabled": "true"}}, 'flops_profiler.enabled is "true"; write true or false'),
        ({"flops_profiler": {"enabled": True, "profile_step": "10"}}, 'profile_step is "10"; give a step'),
        ({"flops_profiler": {"profile_step": 0}}, "profile_step is 0; give a step, from 1"),
        ({"flops_profiler": {"module_depth": -2}}, "module_depth is -2; give a depth, -1 for all"),
        ({"flops_profiler": {"top_modules": 0}}, "top_modules is 0; give a number of modules"),
        ({"flops_profiler": {"output_file": 7}}, "output_file is 7; give a file's name"),
        ({"flops_profiler": {"recompute_fwd_factor": -0.5}}, r"recompute_fwd_factor is -0\.5; give a number"),
        ({"flops_profiler": {"detailed": 1}}, "flops_profiler.detailed is 1; write true or false"),
        ({"dump_state": 1}, "dump_state is 1; write true or false"),
        ({"wall_clock_breakdown": "no"}, 'wall_clock_breakdown is "no"; write true or false'),
        # DeepSpeed takes the word for the value that is refused.
        ({"zero_optimization": {"stage": 2, "round_robin_gradients": "true"}}, 'is "true"; write true or false'),
        ({"torch_autocast": {"enabled": "yes"}}, 'torch_autocast.enabled is "yes"; write true or false'),
        (
            {"bf16": None, "zero_optimization": {"stage": 0, "cpu_offload": True}},
            'write "offload_optimizer": {"device"',
        ),
        ({"zero_optimization": {"stage": 3, "cpu_offload_param": True}}, 'write "offload_param": {"device": "cpu"}'),
        ({"steps_per_print": True}, "steps_per_print is true; give a number of steps"),
        ({"steps_per_print": 0}, "steps_per_print is 0; give a number of steps"),
        ({"steps_per_print": "auto"}, 'steps_per_print is "auto"; give a number of steps'),
        ({"aio": {"thread_count": 4}}, "unknown key aio; remove it: it has no effect"),  # of nvme, which is refused
        ({"pipeline": {"stages": 2}}, "unknown key pipeline; remove it: it has no effect on this trainer"),
    ],
)
def test_a_deepspeed_configuration_that_disagrees(recipe, deepspeed_config, changes, message):
    settings = load_recipe(recipe)
    with pytest.raises(ConfigError, match=message):
        resolve(read_deepspeed(deepspeed_config(**changes)), settings, settings.phases[0], world=2)


def test_sections_of_deepspeeds_configuration_are_objects(recipe, tmp_path):
    """null too, which the fixture leaves out."""
    settings = load_recipe(recipe)
    (tmp_path / "ds.json").write_text('{"fp16": null}', encoding="utf-8")
    with pytest.raises(ConfigError, match="fp16 is null; it must be an object"):
        resolve(read_deepspeed(tmp_path / "ds.json"), settings, settings.phases[0], world=1)


@pytest.mark.parametrize(
    ("changes", "level"),
    [
        ({}, None),
        ({"steps_per_print": 2}, "info"),
        ({"steps_per_print": 8}, "info"),  # at the last one
        ({"steps_per_print": 1_000_000}, None),  # never, as other programs' files have it
        ({"dump_state": True}, "info"),
        ({"comms_logger": {"enabled": True, "verbose": True}}, "info"),
        ({"steps_per_print": 2, "log_level": "error"}, "error"),
    ],
)
def test_what_deepspeed_is_asked_to_print_is_printed(recipe, deepspeed_config, changes, level):
    settings = load_recipe(recipe)
    resolved = resolve(read_deepspeed(deepspeed_config(**changes)), settings, settings.phases[0], world=2)
    assert resolved.get("log_level") == level


def test_deepspeed_measures_no_throughput_unless_asked_to(recipe, deepspeed_config):
    """It would wait for the device twice in every micro-batch."""
    settings = load_recipe(recipe)
    for changes, measures in (({}, False), ({"timers": {"throughput": {"enabled": True}}}, True)):
        resolved = resolve(read_deepspeed(deepspeed_config(**changes)), settings, settings.phases[0], world=2)
        assert resolved["timers"] == {"throughput": {"enabled": measures}}


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
    del config["zero_optimization"]  # as for 0
    assert without_communication(config) == config


@pytest.mark.parametrize(("stage", "sums", "device", "left_to"), [
    (2, "fp32", None, 1), (2, "fp32", "none", 1), (2, "fp32", "cpu", 2), (2, "bf16", None, 2), (3, "fp32", None, 3),
    (1, "fp32", None, 1),
])  # fmt: skip
def test_one_rank_leaves_float32_sums_of_bf16_to_zero_1(stage, sums, device, left_to):
    offload = {"offload_optimizer": {"device": device}} if device else {}
    config = {"bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": sums},
              "zero_optimization": {"stage": stage, **offload}, "communication_data_type": "fp32"}  # fmt: skip
    alone = without_communication(config)
    assert alone["zero_optimization"]["stage"] == left_to
    assert ("communication_data_type" in alone) == (left_to != 2)


def test_one_rank_leaves_fp16_to_zero_2():
    config = {"fp16": {"enabled": True}, "data_types": {"grad_accum_dtype": "fp32"}, "zero_optimization": {"stage": 2}}
    assert without_communication(config)["zero_optimization"]["stage"] == 2


def test_what_computes_other_numbers_is_told_and_nothing_else():
    before = {"bf16": {"enabled": True}, "zero_optimization": {"stage": 2, "reduce_bucket_size": 7}}
    after = {
        "fp16": {"enabled": True}, "data_types": {"grad_accum_dtype": "fp32"}, "communication_data_type": "fp32",
        "zero_optimization": {"stage": 1, "offload_optimizer": {"device": "cpu"}, "reduce_bucket_size": 8},
    }  # fmt: skip
    assert other_numbers(before, after) == [
        "bf16.enabled: True -> None", "fp16.enabled: None -> True", "data_types.grad_accum_dtype: None -> fp32",
        "communication_data_type: None -> fp32", "zero_optimization.stage: 2 -> 1",
        "zero_optimization.offload_optimizer.device: None -> cpu",
    ]  # fmt: skip
    assert other_numbers({"fp16": {"enabled": False}, "zero_optimization": {"stage": 0}}, {}) == []


def test_a_key_is_no_part_of_a_file_that_is_copied_and_is_not_told(recipe, deepspeed_config):
    settings = load_recipe(recipe)
    path = deepspeed_config(comet={"enabled": True, "api_key": "SeCrEt"})
    with pytest.raises(ConfigError, match=r"comet\.api_key .* set the variable COMET_API_KEY") as refused:
        resolve(read_deepspeed(path), settings, settings.phases[0], 2)
    assert "SeCrEt" not in str(refused.value)


@pytest.mark.parametrize("changes", [
    {"steps_per_print": 1},
    {"log_level": "INFO"},
    {"flops_profiler": {"profile_step": 1, "module_depth": -1, "top_modules": 1, "output_file": "flops.txt",
                        "recompute_fwd_factor": 0.0, "detailed": False}},
    {"zero_optimization": {"stage": 1, "offload_optimizer": {"device": "cpu", "ratio": 1.0}}},
    {"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}}},
])  # fmt: skip
def test_what_deepspeed_can_do_it_may_be_asked_for(recipe, deepspeed_config, changes):
    settings = load_recipe(recipe)
    resolved = resolve(read_deepspeed(deepspeed_config(**changes)), settings, settings.phases[0], 2)
    assert changes.items() <= resolved.items()


def test_equal_values_are_no_disagreement(recipe, deepspeed_config):
    settings = load_recipe(recipe)
    resolve(
        read_deepspeed(deepspeed_config(gradient_clipping=1.0, train_batch_size=8)), settings, settings.phases[0], 2
    )


def test_a_deepspeed_configuration_that_can_t_be_read(recipe, tmp_path):
    settings = load_recipe(recipe)
    for text, message in (
        ("{", "not a JSON file"),
        ("[" * 100_000, "not a JSON file"),
        ("[]", "must be a JSON object"),
        ('{"zero_optimization": {"stage": 1, "stage": 2}}', "'stage' stands twice in one object"),
    ):
        (tmp_path / "ds.json").write_text(text, encoding="utf-8")
        with pytest.raises(ConfigError, match=message):
            resolve(read_deepspeed(tmp_path / "ds.json"), settings, settings.phases[0], 1)
    (tmp_path / "ds.json").write_text("{}", encoding="utf-8-sig")  # as some editors do
    resolve(read_deepspeed(tmp_path / "ds.json"), settings, settings.phases[0], 1)
    with pytest.raises(ConfigError, match=r"nowhere\.json: can't read"):
        resolve(read_deepspeed(tmp_path / "nowhere.json"), settings, settings.phases[0], 1)


def test_a_global_batch_that_the_ranks_can_t_divide(recipe):
    phase = load_recipe(recipe).phases[0]
    assert [accumulation_steps(phase, world) for world in (1, 2, 4)] == [4, 2, 1]
    with pytest.raises(ConfigError, match=r"global batch of 8 .* 3 rank\(s\): it must be a multiple of 6"):
        accumulation_steps(phase, 3)


def test_the_file_at_the_root_is_for_bert_large():
    large = load_recipe(ROOT / "trainer" / "recipes" / "bert_large.toml")
    for world in (1, 2, 8):
        for phase in large.phases:
            assert resolve(read_deepspeed(ROOT / "ds_config.json"), large, phase, world)["bf16"]["enabled"]

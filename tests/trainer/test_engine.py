"""DeepSpeed against a loop of plain PyTorch, and against itself with other numbers of ranks."""

import functools
import json
import re

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from preprocessing.schema import ShardDirectory
from tests.ranks import run_ranks
from tests.trainer import reference
from tests.trainer.conftest import FLOAT32, write_deepspeed_config
from tests.trainer.engine_tasks import (
    bytes_left_after_close,
    bytes_of_one_rank,
    first_numbers_of_dropout,
    graphs_of_training_and_validation,
    norm_that_adam_gets_without_zero,
    norm_under_zero_1,
    order_of_a_step,
    printed_in_a_step,
    start_engine_with,
    state_by_deepspeed_s_own_sums,
    state_of_one_rank,
    waits_for_the_device,
)
from tests.trainer.rank_tasks import (
    device_of_this_rank,
    run_pretrain,
    run_pretrain_in_emulated_graphs,
    run_pretrain_where_new_memory_holds_nan,
    run_pretrain_with_a_quick_compiler,
    run_pretrain_with_onednn,
    run_pretrain_with_the_attention_of_a_gpu,
    train_into_what_is_no_number,
)
from trainer.config import load_recipe
from trainer.data import SampleStream
from trainer.model import BertForPreTraining, pretraining_losses
from trainer.schedule import learning_rate

NO_DROPOUT = ["model.hidden_dropout_prob=0", "model.attention_probs_dropout_prob=0"]


def curve(run, key="loss"):
    return [json.loads(line)[key] for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def train(recipe, shards):
    """Run the trainer in some ranks, and return its run directory."""

    def run(output, config, world, *settings, task=run_pretrain):
        arguments = ["--config", str(recipe), "--deepspeed_config", str(config), "--shards", str(shards),
                     "--output", str(output), *settings]  # fmt: skip
        log = output.parent / f"{output.name}.log"
        assert run_ranks(world, task, arguments, log=log) == [0] * world, log.read_text()
        return output

    return run


@pytest.fixture(scope="module")
def whole(train, tmp_path_factory):
    """The directory of a run of two ranks under ZeRO 2 that nobody stops, trained once for all who compare with it."""

    @functools.cache
    def run(precision, *settings):
        folder = tmp_path_factory.mktemp("whole")
        config = write_deepspeed_config(folder, **(FLOAT32 if precision == "float32" else {}))
        return train(folder / "run", config, 2, *settings)

    return run


OPTIMIZERS = {
    "adamw": (lambda groups: torch.optim.AdamW(groups, betas=(0.9, 0.999), eps=1e-6), 1e-2),
    "lamb": (reference.Lamb, 5e-2),
}


@pytest.fixture(scope="module", params=OPTIMIZERS)
def plain_loop(request, recipe, shards):
    """Settings, and losses and norms of 20 steps of the same model, batches and optimizer without DeepSpeed."""
    build, peak = OPTIMIZERS[request.param]
    overrides = [*NO_DROPOUT, "phases.0.steps=20", f"schedule.peak={peak}", f"optimizer.name={request.param}"]
    settings = load_recipe(recipe, overrides)
    phase = settings.phases[0]
    stream = SampleStream(
        ShardDirectory(shards),
        "train",
        phase.sequence_length,
        seed=settings.train.seed,
        max_predictions=phase.max_predictions,
        masking=settings.masking,
        data=settings.data,
    )
    model = BertForPreTraining(settings.model, seed=settings.train.seed)
    undecayed = [p for name, p in model.named_parameters() if name.endswith("bias") or "norm" in name]
    decayed = [p for p in model.parameters() if all(p is not q for q in undecayed)]
    three = [p for name, p in model.named_parameters() if name.endswith("qkv.weight")]
    groups = [
        {"params": decayed, "weight_decay": 0.01, "three": three},
        {"params": undecayed, "weight_decay": 0.0, "undecayed": True},
    ]
    optimizer = build(groups)
    losses, norms = [], []
    for step in range(phase.steps):
        batch = stream.batch(np.arange(step * 8, (step + 1) * 8))
        logits = model(batch.tokens, batch.positions)
        sums = pretraining_losses(logits[0], batch.mlm_labels, logits[1], batch.nsp_labels)
        loss = sums.mlm_loss / len(batch.mlm_labels) + sums.nsp_loss / 8
        optimizer.zero_grad()
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item())
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, phase.steps, settings.schedule)
        optimizer.step()
        losses.append(loss.item())
    return overrides, losses, norms


@pytest.mark.parametrize(("stage", "world"), [(0, 2), (1, 2), (2, 4), (3, 2)])
def test_every_zero_stage_in_float32_is_the_plain_loop(train, plain_loop, deepspeed_config, tmp_path, stage, world):
    settings, losses, norms = plain_loop
    config = deepspeed_config(**FLOAT32, zero_optimization={"stage": stage})
    run = train(tmp_path / "run", config, world, *settings, "log.validate_every=0", "checkpoint.every=20")
    assert losses[0] - losses[-1] > 0.1, "the comparison means nothing if nothing is learned"
    np.testing.assert_allclose(curve(run), losses, rtol=1e-5)
    np.testing.assert_allclose(curve(run, "grad_norm"), norms, rtol=1e-4)


@pytest.mark.parametrize("plain_loop", ["adamw"], indirect=True)
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_every_zero_stage_in_bf16_is_the_plain_loop_but_for_rounding(
    train, plain_loop, deepspeed_config, tmp_path, stage
):
    settings, losses, _ = plain_loop
    config = deepspeed_config(zero_optimization={"stage": stage})
    settings = [*settings, "log.validate_every=0", "checkpoint.every=20"]
    run = train(tmp_path / "run", config, 2, *settings, task=run_pretrain_with_onednn)
    np.testing.assert_allclose(curve(run), losses, rtol=2e-3)


def test_a_rank_takes_the_device_of_its_place_on_the_node():
    """Before anything is sent: DeepSpeed selects it only when it makes an engine."""
    assert run_ranks(2, device_of_this_rank, None) == [([0], "0"), ([1], "1")]


# Name: changes of DeepSpeed's configuration, settings, and how far losses may lie from the plain loop's in float32.
WAYS = {
    **{f"offload, ZeRO {stage}": (
        {**FLOAT32, "zero_optimization": {"stage": stage, "offload_optimizer": {"device": "cpu"}}}, [], 1e-5
    ) for stage in (2, 3)},
    "offload, ZeRO 2, bf16": ({"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}, [], 2e-3),
    "checkpointed activations, ZeRO 3": (
        {**FLOAT32, "zero_optimization": {"stage": 3}}, ["model.activation_checkpointing=true"], 1e-5
    ),
    "compiled": (FLOAT32, ["train.compile=true", "data.token_multiple=64"], 1e-5),
    "compiled, checkpointed activations": (
        FLOAT32, ["train.compile=true", "model.activation_checkpointing=true"], 1e-5
    ),
    "CUDA graphs": (FLOAT32, ["train.cuda_graphs=true", "data.token_multiple=8"], 1e-5),
    "eight bits": ({}, ["train.fp8=true"], 2e-2),
}  # fmt: skip


@pytest.mark.parametrize("plain_loop", ["adamw"], indirect=True)
@pytest.mark.parametrize(
    "way",
    [pytest.param(way, marks=[pytest.mark.long] if way.startswith("compiled, ") else []) for way in WAYS],
)
def test_every_way_to_train_is_the_plain_loop_and_goes_on_bit_for_bit(
    train, plain_loop, deepspeed_config, tmp_path, way
):
    """20 steps of two ranks, two micro-batches accumulated."""
    settings, losses, _ = plain_loop
    changes, more, tolerance = WAYS[way]
    tasks = {"graphs": run_pretrain_in_emulated_graphs, "compiled": run_pretrain_with_a_quick_compiler}
    task = next((task for word, task in tasks.items() if word in way), run_pretrain_with_onednn)
    train = functools.partial(train, task=task)
    config, settings = deepspeed_config(**changes), [*settings, *more, "log.validate_every=0", "checkpoint.every=20"]
    whole = train(tmp_path / "whole", config, 2, *settings)
    np.testing.assert_allclose(curve(whole), losses, rtol=tolerance)
    train(tmp_path / "halves", config, 2, *settings, "train.max_steps=7")
    halves = train(tmp_path / "halves", config, 2, *settings)
    assert curve(halves) == curve(whole)
    assert curve(halves, "grad_norm") == curve(whole, "grad_norm")


def test_lamb_in_bf16_is_right_under_the_third_class_of_optimizers(train, deepspeed_config, tmp_path):
    """ZeRO 1 in bf16 with float32 accumulation is a class of its own in DeepSpeed; ZeRO 2 must give the same curve."""
    settings = [*NO_DROPOUT, "optimizer.name=lamb"]
    curves = [
        curve(train(tmp_path / f"zero{stage}", deepspeed_config(zero_optimization={"stage": stage}), 2, *settings))
        for stage in (1, 2)
    ]
    np.testing.assert_allclose(curves[0], curves[1], rtol=2e-4)


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_the_number_of_ranks_does_not_change_the_curve(train, whole, deepspeed_config, tmp_path, precision):
    """Accumulation 4 on 1 rank, 2 on 2, 1 on 4: the same samples, masks and, with dropout on, the same dropout."""
    config, of_two = deepspeed_config(**(FLOAT32 if precision == "float32" else {})), curve(whole(precision))
    tolerance = 1e-6 if precision == "float32" else 1e-3
    for world in (1, 4):
        np.testing.assert_allclose(curve(train(tmp_path / f"run{world}", config, world)), of_two, rtol=tolerance)
    without_dropout = curve(train(tmp_path / "without", config, 1, *NO_DROPOUT))
    assert without_dropout != pytest.approx(of_two, rel=tolerance)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_run_that_stopped_goes_on_bit_for_bit(train, whole, deepspeed_config, tmp_path, stage):
    config = deepspeed_config(zero_optimization={"stage": stage})
    whole = whole("bf16") if stage == 2 else train(tmp_path / "whole", config, 2)
    halves = train(tmp_path / "halves", config, 2, "train.max_steps=4")
    train(halves, config, 2)
    for key in ("step", "samples", "loss", "mlm_loss", "nsp_accuracy", "grad_norm", "learning_rate"):
        assert curve(halves, key) == curve(whole, key)
    assert len(curve(whole)) == 8
    weights = [load_file(run / "exports" / "step-000008" / "model.safetensors") for run in (whole, halves)]
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


@pytest.mark.parametrize("stage", [2, 3])
def test_what_new_memory_holds_is_of_no_account(train, deepspeed_config, tmp_path, stage):
    """Three ranks can't divide the parameters, and DeepSpeed does not write into what fills the last one's up."""
    buckets = {"reduce_bucket_size": 50_000}  # more than there are parameters: DeepSpeed's own take seconds to fill
    config = deepspeed_config(**FLOAT32, zero_optimization={"stage": stage, **buckets})
    settings = ["train.max_steps=3", "phases.0.global_batch_size=6", "log.validate_every=3", "checkpoint.every=1"]
    plain, filled = (
        train(tmp_path / task.__name__, config, 3, *settings, task=task)
        for task in (run_pretrain, run_pretrain_where_new_memory_holds_nan)
    )
    assert curve(filled) == curve(plain)
    for path in sorted(plain.glob("checkpoints/step-000003/state-*.safetensors")):
        ours, theirs = load_file(path), load_file(filled / path.relative_to(plain))
        assert all(ours[name].equal(theirs[name]) for name in {*ours, *theirs})


@pytest.mark.parametrize("case", ["ranks 1 2 4 1", "stages 1 2 3 1", "stages 0 3 0 2", "lamb, ranks 1 2 4 1"])
def test_a_run_goes_on_with_other_ranks_and_other_stages(train, whole, deepspeed_config, tmp_path, case):
    """The same samples, masks and dropout; losses equal to rounding in float32."""
    worlds = [1, 2, 4, 1] if "ranks" in case else [2, 2, 2, 2]
    stages = [int(word) for word in case.split()[1:]] if case.startswith("stages") else [2, 2, 3, 2]
    name = "lamb" if "lamb" in case else "adamw"
    settings = [f"optimizer.name={name}", f"schedule.peak={OPTIMIZERS[name][1]}", "log.validate_every=0"]
    whole = whole("float32", *settings)
    for i, (world, stage) in enumerate(zip(worlds, stages, strict=True)):
        config = deepspeed_config(**FLOAT32, zero_optimization={"stage": stage})
        train(tmp_path / "changing", config, world, *settings, f"train.max_steps={2 * (i + 1)}")
    told = "samples, masks and dropout are the same, but losses will differ in the last bits"
    assert (told in (tmp_path / "changing.log").read_text()) == ("ranks" in case)
    assert curve(whole)[0] - curve(whole)[-1] > 0.03
    np.testing.assert_allclose(curve(tmp_path / "changing"), curve(whole), rtol=1e-6)
    weights = [load_file(run / "exports" / "step-000008" / "model.safetensors") for run in
               (whole, tmp_path / "changing")]  # fmt: skip
    for name, tensor in weights[0].items():
        torch.testing.assert_close(weights[1][name], tensor, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("optimizer", ["lamb", "bert_adam"])
def test_without_next_sentences_their_weights_stay_as_they_were_drawn(
    train, recipe, deepspeed_config, tmp_path, optimizer
):
    """Without a gradient there is nothing but decay, and LAMB's ratio would make it the learning rate itself."""
    settings = ["train.next_sentence=false", f"optimizer.name={optimizer}", "schedule.peak=0.1"]
    run = train(tmp_path / "run", deepspeed_config(**FLOAT32), 2, *settings)
    weights = load_file(run / "exports" / "step-000008" / "model.safetensors")
    drawn = load_recipe(recipe)
    model = BertForPreTraining(drawn.model, seed=drawn.train.seed)
    assert torch.equal(weights["cls.seq_relationship.weight"], model.nsp.weight)
    assert torch.equal(weights["bert.pooler.dense.weight"], model.pooler.dense.weight)
    assert not torch.equal(weights["bert.embeddings.word_embeddings.weight"], model.bert.embeddings.word.weight)


def test_exports_hold_the_float32_masters(whole):
    """In bf16 training the weights that are exported have more bits than the ones that are multiplied."""
    weights = load_file(whole("bf16") / "exports" / "step-000008" / "model.safetensors")
    assert all(tensor.dtype == torch.float32 for tensor in weights.values())
    words = weights["bert.embeddings.word_embeddings.weight"]
    assert not torch.equal(words, words.bfloat16().float())


@pytest.mark.parametrize(("stage", "precision"), [
    (0, "float32"), (1, "float32"), (2, "float32"), (3, "float32"), (1, "bf16"), (2, "bf16"), (3, "bf16"),
])  # fmt: skip
def test_what_is_no_number_never_reaches_weights_or_moments(recipe, shards, deepspeed_config, stage, precision):
    """On one of two ranks, in its second micro-batch of step 2; both ranks hear of the samples."""
    config = deepspeed_config(**(FLOAT32 if precision == "float32" else {}), zero_optimization={"stage": stage})
    cases = [
        *((optimizer, poison) for optimizer in ("adamw", "lamb") for poison in ("loss nan", "gradient inf")),
        ("bert_adam", "loss inf"),
        ("bert_adam", "gradient nan"),
    ]
    for results in run_ranks(2, train_into_what_is_no_number, recipe, shards, config, cases):
        for case, (untouched, message) in zip(cases, results, strict=True):
            assert untouched, case
            what, value = case[1].split()
            loss = f"the loss is {value}, first on rank 1; data.skip=[[14,16]] passes over their samples"
            gradient = "a gradient is NaN or infinite, though all losses are finite; the samples of the step "
            assert message == f"step 2: {loss if what == 'loss' else gradient + 'are [8, 16]'}"


@pytest.mark.parametrize("stage", [1, 2])
def test_a_layout_that_is_not_known_is_no_start(recipe, deepspeed_config, stage):
    """The first of such settings is refused by name; this is what the next one meets. Every rank hears of it."""
    config = deepspeed_config(**FLOAT32, zero_optimization={"stage": stage})
    message, other = run_ranks(2, start_engine_with, recipe, config, {"round_robin_gradients": True})
    assert message == other
    assert re.match(r"DeepSpeed's configuration: rank \d finds \S+ in another place than DeepSpeed says", message)
    assert run_ranks(2, start_engine_with, recipe, config, {}) == ["no error"] * 2


@pytest.mark.parametrize(
    ("stage", "precision"), [(0, FLOAT32), (1, FLOAT32), (2, FLOAT32), (3, FLOAT32), (1, {}), (2, {}), (3, {})]
)
def test_a_closed_engine_leaves_nothing_in_memory(recipe, shards, deepspeed_config, stage, precision):
    """The next phase builds its own: without room for both, it could not."""
    config = deepspeed_config(**precision, zero_optimization={"stage": stage})
    ((weight, *others),) = run_ranks(1, bytes_left_after_close, recipe, shards, config)
    assert others == [0] * 5
    assert weight == 0 or stage == 3  # whose model DeepSpeed never lets go of


def test_the_next_batch_is_asked_for_before_the_last_backward_pass(recipe, shards, deepspeed_config):
    """Within that pass DeepSpeed may have the process wait for the device."""
    (order,) = run_ranks(1, order_of_a_step, recipe, shards, deepspeed_config())
    assert order == ["forward", "backward", "forward", "meanwhile", "backward"]


def test_every_micro_batch_of_every_step_has_dropout_of_its_own(recipe, shards, deepspeed_config):
    (numbers,) = run_ranks(1, first_numbers_of_dropout, recipe, shards, deepspeed_config())
    assert len(set(numbers)) == len(numbers) == 6


GRAPHS = {
    "ZeRO 0": ({**FLOAT32, "zero_optimization": {"stage": 0}}, []),
    "ZeRO 1, bf16": ({"zero_optimization": {"stage": 1}}, []),
    "ZeRO 2, bf16": ({"zero_optimization": {"stage": 2}}, []),
    "ZeRO 1": ({**FLOAT32, "zero_optimization": {"stage": 1}}, []),
    "ZeRO 2": ({**FLOAT32, "zero_optimization": {"stage": 2}}, []),
    "ZeRO 2, in buckets": ({"zero_optimization": {"stage": 2, "contiguous_gradients": False}}, []),
    "compiled": (  # each way that a layer is called takes the compiler seconds: there is one layer, and no validation
        {"zero_optimization": {"stage": 1}},
        ["train.compile=true", "data.token_multiple=32", "model.num_hidden_layers=1", "log.validate_every=0"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("way", [pytest.param(way, marks=pytest.mark.slow) if i > 2 else way for i, way in
                                 enumerate(GRAPHS)])  # fmt: skip
def test_graphs_change_no_bit_whether_a_run_is_stopped_or_not(train, deepspeed_config, tmp_path, way):
    """Of two ranks with two micro-batches of several shapes each, and with dropout."""
    changes, more = GRAPHS[way]
    config, settings = deepspeed_config(**changes), ["data.token_multiple=8", *more]
    task = run_pretrain_with_the_attention_of_a_gpu
    without = train(tmp_path / "without", config, 2, *settings, task=task)
    settings, task = [*settings, "train.cuda_graphs=true"], run_pretrain_in_emulated_graphs
    whole = train(tmp_path / "whole", config, 2, *settings, task=task)
    train(tmp_path / "stopped", config, 2, *settings, "train.max_steps=3", task=task)
    stopped = train(tmp_path / "stopped", config, 2, *settings, task=task)
    for key in ("loss", "mlm_accuracy", "nsp_loss", "grad_norm"):
        assert curve(without, key) == curve(whole, key) == curve(stopped, key)
    weights = [load_file(run / "exports" / "step-000008" / "model.safetensors") for run in (without, whole, stopped)]
    for name, tensor in weights[0].items():
        assert torch.equal(tensor, weights[1][name])
        assert torch.equal(tensor, weights[2][name])


def test_only_training_is_put_into_graphs(recipe, shards, deepspeed_config):
    """Batches of validation differ in their numbers of tokens, and each of these would be recorded."""
    ((training, both),) = run_ranks(1, graphs_of_training_and_validation, recipe, shards, deepspeed_config())
    assert both == training > 1


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_deepspeed_does_not_wait_for_the_device_to_measure_it(recipe, shards, deepspeed_config, stage):
    """As it would from the third step on, twice in every micro-batch."""
    config = deepspeed_config(**FLOAT32, zero_optimization={"stage": stage})
    measured = deepspeed_config(**FLOAT32, zero_optimization={"stage": stage}, timers={"throughput": {"enabled": True}})
    assert [run_ranks(1, waits_for_the_device, recipe, shards, path) for path in (config, measured)] == [[0], [8]]


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_deepspeed_prints_nothing(recipe, shards, deepspeed_config, stage):
    """As it would of memory in use, under ZeRO 1 in bf16."""
    config = deepspeed_config(zero_optimization={"stage": stage})
    assert run_ranks(1, printed_in_a_step, recipe, shards, config) == [""]


@pytest.mark.parametrize(("stage", "sums"), [(1, "fp32"), (2, "fp32"), (2, "bf16"), (3, "fp32")])
def test_one_rank_computes_the_same_without_what_ranks_do_to_communicate(stage, sums, recipe, shards, deepspeed_config):
    path = deepspeed_config(
        zero_optimization={"stage": stage, "overlap_comm": True}, data_types={"grad_accum_dtype": sums}
    )
    weights, same = (run_ranks(1, state_of_one_rank, recipe, shards, path, does)[0] for does in (True, False))
    assert all(np.array_equal(ours, theirs) for ours, theirs in zip(weights, same, strict=True))


@pytest.mark.parametrize(("stage", "of_ranks"), [(1, 32), (2, 88)])
def test_one_rank_moves_no_gradient_to_communicate_it(stage, of_ranks, recipe, shards, deepspeed_config):
    """Of two micro-batches the first one's, of 16 bits, begins the sum in float32 (6 bytes), the other is added (10).

    Those of many ranks are sent besides: under ZeRO 1 packed and unpacked, under ZeRO 2 widened first.
    """
    config = deepspeed_config(zero_optimization={"stage": stage})
    of_many, of_one = (run_ranks(1, bytes_of_one_rank, recipe, shards, config, does)[0] for does in (True, False))
    assert of_one == pytest.approx(16, abs=0.5)
    assert of_many == pytest.approx(of_ranks, abs=0.5)


def test_under_zero_1_gradients_are_added_up_at_once_to_the_same_bits(recipe, shards, deepspeed_config):
    config = deepspeed_config(zero_optimization={"stage": 1})
    (ours,) = run_ranks(1, state_of_one_rank, recipe, shards, config, False)
    (theirs,) = run_ranks(1, state_by_deepspeed_s_own_sums, recipe, shards, config)
    assert all(np.array_equal(one, other) for one, other in zip(ours, theirs, strict=True))


@pytest.fixture
def gradient_of_embeddings():
    """Whose rows differ by orders of magnitude, so that torch's own norm of it is 1e-5 off and more on a CPU."""
    gradient = np.random.default_rng(0).standard_normal((30522, 128), dtype=np.float32)
    return gradient * np.exp(3 * np.random.default_rng(1).standard_normal((30522, 1), dtype=np.float32))


def test_without_zero_gradients_are_clipped_by_the_right_norm_on_a_cpu_too(
    recipe, deepspeed_config, gradient_of_embeddings
):
    config = deepspeed_config(**FLOAT32, zero_optimization=None)
    (norm,) = run_ranks(1, norm_that_adam_gets_without_zero, recipe, config, gradient_of_embeddings)
    assert norm == pytest.approx(1.0, rel=1e-6)  # optimizer.max_gradient_norm


def test_under_zero_1_the_norm_is_right_on_a_cpu_too(gradient_of_embeddings):
    gradient = gradient_of_embeddings
    (norm,) = run_ranks(1, norm_under_zero_1, [gradient])
    assert norm == pytest.approx(np.linalg.norm(gradient.astype(np.float64)), rel=1e-6)

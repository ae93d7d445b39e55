"""The plan's times: published runs, properties of the network model, and counts that PyTorch confirms."""

from collections import Counter
from dataclasses import replace
from typing import get_args, get_type_hints

import pytest
import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from cluster.planning.calibration import SYSTEMS, compare, fit
from cluster.planning.estimate import LAYER_OPERATIONS, TEMPORARY_BYTES, UPDATE_BYTES, _operations
from cluster.planning.hardware import GPUS, Node
from cluster.planning.network import all_gather, all_reduce
from cluster.planning.sharding import Sharding
from cluster.planning.throughput import Speed, Work, step_time
from tests.conftest import ROOT
from trainer import attention
from trainer.config import load_recipe
from trainer.model import BertConfig, BertForPreTraining, pretraining_losses
from trainer.optim import OptimizerConfig, build_optimizer
from trainer.packing import PackedTokens

A100 = GPUS["a100-80"]
LARGE = 336_226_108
WORK = Work(flops=0.24e12, micro_batch=64, accumulation=4, parameters=LARGE, update_bytes=50)
PUBLISHED = {system.name: [run.gpus for run in system.runs] for system in SYSTEMS}


@pytest.mark.parametrize("system", SYSTEMS, ids=lambda system: system.name)
def test_published_runs_follow_from_the_smallest(system):
    smallest, *larger = compare(system)
    assert smallest.error == pytest.approx(0, abs=1e-9)
    assert [run.gpus for run in larger] == PUBLISHED[system.name][1:]
    assert all(abs(run.error) < 0.2 for run in larger), [f"{run.error:+.1%}" for run in larger]


def test_the_published_figures_are_those_of_the_sources():
    deepspeed, nvidia, _ = (compare(system) for system in SYSTEMS)
    hours = {run.gpus: run.published / 3600 for run in deepspeed}
    assert hours == pytest.approx({16: 33 + 13 / 60, 64: 8 + 41 / 60, 256: 2.4, 1024: 44 / 60})
    rates = {run.gpus: run.samples / run.published / run.gpus for run in nvidia}
    assert [rates[1], rates[256]] == pytest.approx([580, 540], rel=1e-3)
    assert [fit(SYSTEMS[0]), fit(SYSTEMS[1])] == pytest.approx([0.49, 0.45], abs=0.005)


def test_an_all_reduce_of_one_rank_costs_nothing():
    assert all_reduce(1e9, 1, A100.node) == 0 == all_gather(1e9, 1, A100.node)


def test_a_large_message_takes_the_time_of_its_bytes():
    """Twice (n - 1) / n of them through each GPU."""
    assert all_reduce(1e12, 8, A100.node) == pytest.approx(2 * 7 / 8 * 1e12 / A100.node.bus, rel=1e-3)
    slow = replace(A100.node, network=1e9)
    assert all_gather(1e12, 16, slow) == pytest.approx(15 / 16 * 1e12 / 1e9, rel=1e-3)


def test_messages_wait_for_every_hop():
    """By NCCL's constants for the latencies of the simple protocol (src/graph/tuning.cc)."""
    node = Node(gpus=4, bus=100e9, network=50e9, source="")
    # By ranks: of one node, of two, of three, and of three of which one is half empty.
    ring = {2: 8.4 + 3.4, 4: 8.4 + 3 * 3.4, 8: 8.4 + 6 * 3.4 + 9.6, 12: 8.4 + 9 * 3.4 + 2 * 9.6,
            10: 8.4 + 7 * 3.4 + 2 * 9.6}  # fmt: skip
    tree = {2: 2 * 28, 4: 2 * 3 * 28, 8: 2 * (3 * 28 + 50), 12: 2 * (3 * 28 + 2 * 50), 10: 2 * (3 * 28 + 2 * 50)}
    for ranks in ring:
        assert all_gather(0, ranks, node) == pytest.approx(ring[ranks] * 1e-6)
        assert all_reduce(0, ranks, node, "ring") == pytest.approx((2 * ring[ranks] - 8.4) * 1e-6)
        assert all_reduce(0, ranks, node, "tree") == pytest.approx(tree[ranks] * 1e-6)
    size = 8 * 4096  # from which on a ring over several nodes waits longer
    assert all_gather(size, 8, node) == pytest.approx((8.4 + 1.9 * (6 * 3.4 + 9.6)) * 1e-6 + size * 7 / 8 / 50e9)
    assert all_gather(size - 1, 8, node) < all_gather(size, 8, node) - 20e-6
    assert all_gather(size, 4, node) == pytest.approx(ring[4] * 1e-6 + size * 3 / 4 / 100e9)


def test_within_a_node_the_ring_is_taken_and_beyond_two_a_tree_has_a_ceiling():
    for size in (0, 1e3, 1e9):
        assert all_reduce(size, 8, A100.node) == all_reduce(size, 8, A100.node, "ring")
    fast = Node(gpus=4, bus=400e9, network=400e9, source="")
    rates = [2 * 1e15 / all_reduce(1e15, 4 * nodes, fast, "tree") for nodes in (1, 2, 3)]
    assert rates == pytest.approx([360e9, 360e9, 80e9], rel=1e-6)


def test_a_tree_beats_the_ring_on_many_nodes_only():
    few, many = (
        {algorithm: all_reduce(700e6, ranks, A100.node, algorithm) for algorithm in ("ring", "tree")}
        for ranks in (16, 4096)
    )
    assert few["ring"] < few["tree"]
    assert many["tree"] < many["ring"] / 2
    assert all_reduce(700e6, 4096, A100.node) == many["tree"]


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_network_time_grows_with_gpus_and_shrinks_with_bandwidth(stage):
    sharding = Sharding(stage=stage, overlap=True)
    times = [step_time(WORK, Speed(A100, 0.45), sharding, ranks).network for ranks in (1, 8, 64, 512)]
    assert times[0] == 0
    assert sorted(times) == times
    faster = replace(A100, node=replace(A100.node, bus=1e15, network=1e15))
    assert step_time(WORK, Speed(faster, 0.45), sharding, 512).network < times[-1]


def test_what_each_stage_sends():
    """In bytes of a parameter through each GPU, where latency is nothing."""
    node = replace(A100.node, bus=1e6, network=1e6)
    far = 1024
    sent = {
        stage: step_time(WORK, Speed(replace(A100, node=node), 0.45, algorithm="ring"), sharding, far).network
        * 1e6
        / LARGE
        for stage, sharding in {
            0: Sharding(0, "float32"),
            1: Sharding(1),
            "1, where none are sent to owners": Sharding(1, scatter=True),
            2: Sharding(2, bucket=50_000_000),
            "2 to owners": Sharding(2, bucket=50_000_000, scatter=True),
            3: Sharding(3, bucket=50_000_000),
            "3, weights let go": Sharding(3, bucket=50_000_000, live=10_000_000),
        }.items()
    }
    micro_batches = WORK.accumulation
    assert sent == pytest.approx(
        {
            0: 2 * 4,
            1: 2 * 4 + 2,
            "1, where none are sent to owners": 2 * 4 + 2,
            2: micro_batches * 2 * 4 + 2,
            "2 to owners": micro_batches * 4 + 2,
            3: micro_batches * (4 + 2),
            "3, weights let go": micro_batches * (4 + 2 + 2),
        },
        rel=0.01,
    )


@pytest.mark.parametrize(("stage", "less"), [(0, 1), (1, 8), (2, 8), (3, 8)])
def test_ranks_share_the_update_under_zero_and_each_does_all_of_it_without(stage, less):
    alone, shared = (step_time(WORK, Speed(A100, 0.45), Sharding(stage), ranks).update for ranks in (1, 8))
    assert alone == pytest.approx(less * shared)


def test_a_bucket_as_large_as_the_model_hides_nothing():
    speed = Speed(A100, 0.45)
    whole, small, none = (
        step_time(WORK, speed, Sharding(2, bucket=bucket, overlap=overlap), 64)
        for bucket, overlap in ((500_000_000, True), (50_000_000, True), (50_000_000, False))
    )
    assert whole.exposed == pytest.approx(whole.network)
    assert none.exposed == pytest.approx(none.network)
    assert small.exposed < 0.4 * small.network


def test_buckets_are_hidden_but_for_the_last_under_what_is_computed_meanwhile():
    work, node = replace(WORK, accumulation=1, parameters=200_000_000), replace(A100.node, bus=1e12, network=1e12)
    sharding = Sharding(2, bucket=50_000_000, overlap=True)
    once = all_gather(200_000_000 * 2, 8, node)
    one = all_reduce(50_000_000 * 4, 8, node)

    def waited(backward: float) -> float:
        products = work.micro_batch * work.flops / (0.45 * A100.peak)
        speed = Speed(replace(A100, node=node), 0.45 * products * 2 / 3 / backward)
        step = step_time(work, speed, sharding, 8)
        assert step.network == pytest.approx(4 * one + once)
        return step.exposed - once

    assert waited(backward=2 * one) == pytest.approx(one + (3 - 2 * 3 / 4) * one)
    assert waited(backward=5 * one) == pytest.approx(one)


def test_without_zero_and_in_deepspeed_s_own_optimizer_for_bf16_the_bucket_is_not_that_of_the_settings():
    for sharding, gathered in ((Sharding(0, "float32", bucket=1000), 0), (Sharding(1, bucket=1000), 2)):
        step = step_time(WORK, Speed(A100, 0.45), sharding, 64)
        gathering = all_gather(LARGE * gathered, 64, A100.node) if gathered else 0
        assert step.network == step.exposed == pytest.approx(all_reduce(LARGE * 4, 64, A100.node) + gathering)


def test_what_is_sent_after_the_last_backward_pass_is_waited_for_whatever_overlap_says():
    work = replace(WORK, parameters=1_200_000_000)  # three buckets of those that can't be set
    for sharding in (Sharding(0, "float32", overlap=True), Sharding(1, overlap=True)):
        step = step_time(work, Speed(A100, 0.45), sharding, 64)
        assert step.exposed == pytest.approx(step.network)


def test_weights_that_are_gathered_without_overlap_are_waited_for():
    waits, hides = (step_time(WORK, Speed(A100, 0.45), Sharding(3, overlap=overlap), 64) for overlap in (False, True))
    assert waits.exposed == pytest.approx(waits.network)
    assert hides.exposed < waits.exposed


def test_weights_are_gathered_under_the_forward_pass_and_gradients_sent_under_the_backward_pass():
    """A fourth of the weights, in 16 bits, takes a second; a fourth of their gradients, in 32, takes two."""
    work = replace(WORK, accumulation=1, parameters=200_000_000)
    node = replace(A100.node, bus=7 / 8 * 100e6)
    fast = work.micro_batch * work.flops / A100.peak
    sharding = Sharding(3, bucket=50_000_000, prefetch=50_000_000, overlap=True)
    for products, gathering, sending in ((6, 1 + 3 / 2, 2 + 3), (12, 1, 2)):  # seconds, a third of them forward
        step = step_time(work, Speed(replace(A100, node=node), fast / products), sharding, 8)
        assert step.network == pytest.approx(4 * 1 + 4 * 2, rel=1e-3)
        assert step.exposed == pytest.approx(gathering + sending, rel=1e-3)


@pytest.mark.parametrize(("gpu", "times"), [("a100-80", 16), ("v100-32", 125 / 15.7)])
def test_products_in_float32_take_longer(gpu, times):
    """TF32, which takes an A100 an eighth of the time, is off by torch's own default."""
    assert not torch.backends.cuda.matmul.allow_tf32
    wide, half = (
        step_time(WORK, Speed(GPUS[gpu], 0.45), Sharding(2, precision), 8).compute for precision in ("float32", "fp16")
    )
    assert wide == pytest.approx(times * half)


def test_launching_limits_small_micro_batches():
    slow = replace(WORK, micro_batch=1, operations=3000)
    step = step_time(slow, Speed(A100, 0.45, launch=6e-6), Sharding(2), 8)
    assert step.launch_bound
    assert step.compute == pytest.approx(WORK.accumulation * 3000 * 6e-6)
    assert not step_time(replace(slow, micro_batch=64), Speed(A100, 0.45, launch=6e-6), Sharding(2), 8).launch_bound


def test_gradients_of_a_graph_are_sent_when_it_has_ended():
    sharding = Sharding(2, bucket=50_000_000, overlap=True)
    meanwhile, after = (
        step_time(replace(WORK, all_at_once=all_at_once), Speed(A100, 0.45), sharding, 64)
        for all_at_once in (False, True)
    )
    assert after.network == meanwhile.network
    assert after.exposed == pytest.approx(after.network)
    assert meanwhile.exposed < after.exposed


def test_the_cpu_has_the_operations_of_a_micro_batch_and_gradients_to_look_after():
    """In about the shares of what docs/results/gpu.md measured: 59 ms under ZeRO 2 to 28, and 26 to 5 in graphs."""
    settings = "train.cuda_graphs=true", "data.token_multiple=1024"
    plain, in_graphs = (
        [_operations(load_recipe(ROOT / "trainer/recipes/bert_large.toml", given), "sdpa", stage) for stage in (1, 2)]
        for given in ((), settings)
    )
    assert plain == [3750, 3750 + 12 * 302]
    assert in_graphs == [2 * 302, 14 * 302]
    own = _operations(load_recipe(ROOT / "trainer/recipes/bert_large.toml"), "fused", 1)
    assert own / plain[0] == pytest.approx((31.0 - 2.3) / (27.8 - 1.8), rel=0.01)  # ms without those of the update


def test_recomputation_costs_a_third():
    plain, again = (
        step_time(replace(WORK, recompute=recompute), Speed(A100, 0.45), Sharding(2), 8) for recompute in (False, True)
    )
    assert again.compute / plain.compute == pytest.approx(4 / 3)


class Traffic(TorchDispatchMode):
    """Counts calls, and bytes that operations read and write."""

    def __init__(self):
        super().__init__()
        self.calls, self.bytes = Counter(), 0

    def __torch_dispatch__(self, operation, types, arguments=(), keywords=None):
        out = operation(*arguments, **(keywords or {}))
        self.calls[operation.overloadpacket.__name__] += 1
        read = [x for x in tree_leaves((arguments, keywords)) if isinstance(x, torch.Tensor)]
        written = [
            x
            for argument, value in zip(operation._schema.arguments, arguments, strict=False)
            if argument.alias_info is not None and argument.alias_info.is_write
            for x in tree_leaves(value)
        ]
        there = {x.untyped_storage().data_ptr() for x in read}
        new = [
            x for x in tree_leaves(out) if isinstance(x, torch.Tensor) and x.untyped_storage().data_ptr() not in there
        ]
        if written or new:  # and no mere view
            self.bytes += sum(x.numel() * x.element_size() for x in (*read, *written, *new))
        return out


@pytest.mark.parametrize("name", get_args(get_type_hints(OptimizerConfig)["name"]))
def test_an_update_moves_as_many_bytes_as_planned(name):
    parameter = torch.nn.Parameter(torch.randn(1000, 100))
    group = {"params": [parameter], "weight_decay": 0.01, "lr": 1e-3}
    optimizer = build_optimizer([group], OptimizerConfig(name=name))
    parameter.grad = torch.randn_like(parameter)
    optimizer.step()  # makes the moments
    with Traffic() as traffic, profile(activities=[ProfilerActivity.CPU], profile_memory=True) as measured:
        optimizer.step()
    assert traffic.bytes / parameter.numel() == pytest.approx(UPDATE_BYTES[name], rel=0.15)
    held = most = 0
    for event in measured.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            most = max(most, held)
    assert most / parameter.numel() == pytest.approx(TEMPORARY_BYTES[name], rel=0.1, abs=0.1)


def test_a_layer_launches_as_many_operations_as_planned(monkeypatch):
    """Counted on a CPU that takes the GPUs' way to attention; dropout and gradients' hooks are added by hand."""
    monkeypatch.setattr(attention, "_fastest", lambda query, probability: "sdpa")
    calls = []
    for layers in (2, 3):
        config = BertConfig(
            vocab_size=100, hidden_size=32, num_hidden_layers=layers, num_attention_heads=2, intermediate_size=64,
            hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        )  # fmt: skip
        ids = torch.ones((2, 8), dtype=torch.long)
        model, tokens = BertForPreTraining(config), PackedTokens.from_padded(ids, ids, ids)
        with Traffic() as traffic:
            words, following = model(tokens, torch.arange(4))
            zeros = torch.zeros(4, dtype=torch.long)
            losses = pretraining_losses(words, zeros, following, zeros[:2])
            (losses.mlm_loss + losses.nsp_loss).backward()
        calls.append(traffic.calls.total())
    dropouts, parameters = 2 * 3, 16
    assert calls[1] - calls[0] + dropouts + parameters == pytest.approx(LAYER_OPERATIONS["sdpa"], rel=0.15)

"""The plan's bytes against those that PyTorch and DeepSpeed really allocate."""

import itertools
from dataclasses import replace

import pytest
import torch
from deepspeed.runtime.engine import MEMORY_OPT_ALLREDUCE_SIZE
from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef
from torch.profiler import ProfilerActivity, profile

from cluster.planning.activations import MicroBatch, fastest_kernel, kept_bytes, largest_micro_batch, peak_bytes
from cluster.planning.sharding import ENGINE_BUCKET, Sharding, model_states, read_sharding
from tests.cluster.rank_tasks import measure_peaks
from tests.ranks import run_ranks
from trainer import products
from trainer.model import VOCABULARY_MULTIPLES, BertConfig, BertForPreTraining, parameter_count, pretraining_losses
from trainer.optim import OptimizerConfig, build_optimizer, parameter_groups
from trainer.packing import PackedTokens

SMALL = BertConfig(
    vocab_size=500, hidden_size=64, num_hidden_layers=4, num_attention_heads=2, intermediate_size=256,
    max_position_embeddings=64,
)  # fmt: skip
WIDE = replace(SMALL, vocab_size=8000, hidden_size=128, num_attention_heads=4, intermediate_size=512)
RELU = replace(SMALL, hidden_act="relu")
SHAPES = {
    "small": (SMALL, MicroBatch(8, 64, 80)),
    "relu": (RELU, MicroBatch(8, 64, 80)),
    "wide": (WIDE, MicroBatch(4, 64, 40)),
    "scores": (replace(SMALL, vocab_size=8000, num_hidden_layers=1), MicroBatch(2, 64, 100)),  # which take most of it
}
WIDTHS = {torch.float32: 4, torch.bfloat16: 2}
WAYS = [*itertools.product(("small", "wide"), WIDTHS, (False, True)), ("relu", torch.bfloat16, False),
        *itertools.product(("scores",), WIDTHS, (False,))]  # fmt: skip


def losses(config, batch, dtype):
    """A function that computes a loss of a new model, on full sequences, and the model."""
    model = BertForPreTraining(config).to(dtype).train()
    ids = torch.randint(0, config.vocab_size, (batch.sequences, batch.length))
    tokens = PackedTokens.from_padded(ids, torch.zeros_like(ids), torch.ones_like(ids))
    each = batch.predictions // batch.sequences
    positions = torch.cat([torch.arange(1, each + 1) + b * batch.length for b in range(batch.sequences)])
    return lambda: loss_of(model, tokens, positions), model


def loss_of(model, tokens, positions):
    words, following = model(tokens, positions)
    labels = (torch.zeros(n, dtype=torch.long, device=words.device) for n in (len(positions), len(following)))
    both = pretraining_losses(words, next(labels), following, next(labels))
    return both.mlm_loss + both.nsp_loss


class Kept:
    """Bytes of the distinct storages that a forward pass keeps, weights aside."""

    def __init__(self, model):
        self._weights = {StorageWeakRef(p.untyped_storage()) for p in model.parameters()}
        self._sizes, self._alive = {}, []

    def take(self, tensor):
        storage = tensor.untyped_storage()
        if StorageWeakRef(storage) not in self._weights:
            self._sizes[StorageWeakRef(storage)] = storage.nbytes()
            self._alive.append(tensor)  # so that no other storage takes its place
        return tensor

    @property
    def bytes(self):
        return sum(self._sizes.values())


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize(("shape", "dtype", "checkpointing"), WAYS, ids=str)
def test_activations_are_what_autograd_keeps(shape, dtype, checkpointing, dropout):
    config, batch = SHAPES[shape]
    config = replace(
        config, activation_checkpointing=checkpointing, hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )  # fmt: skip
    compute, model = losses(config, batch, dtype)
    kept = Kept(model)
    with saved_tensors_hooks(kept.take, lambda tensor: tensor):
        compute()
    assert kept_bytes(config, batch, WIDTHS[dtype], "grouped", checkpointing) == pytest.approx(kept.bytes, rel=0.01)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_activations_on_a_gpu_without_one(checkpointing, causal):
    """Tensors that only know their shape go the way of CUDA tensors, to the kernel for packed sequences."""
    config, batch = SHAPES["small"]
    config = replace(
        config, activation_checkpointing=checkpointing, attention_probs_dropout_prob=0.0, is_decoder=causal
    )
    assert fastest_kernel(config, 2) == "varlen"
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with FakeTensorMode(allow_non_fake_inputs=True), torch.device("cuda"):
            model = BertForPreTraining(config, seed=None)
            kept = Kept(model)
            ids = torch.zeros(batch.tokens, dtype=torch.long)
            bounds = torch.zeros(batch.sequences + 1, dtype=torch.int32)
            with saved_tensors_hooks(kept.take, lambda tensor: tensor):
                loss_of(model, PackedTokens(ids, ids, ids, bounds, batch.length), ids[: batch.predictions])
    finally:
        torch.set_default_dtype(before)
    assert kept_bytes(config, batch, 2, "varlen", checkpointing) == pytest.approx(kept.bytes, rel=0.02)


@pytest.mark.parametrize(
    ("heads", "dropout", "width", "kernel"),
    [
        (12, 0.0, 2, "varlen"),
        (12, 0.1, 2, "sdpa"),
        (12, 0.0, 4, "sdpa"),
        (2, 0.0, 2, "sdpa"),  # of 384 numbers, more than the kernel has room for
        (64, 0.0, 2, "sdpa"),  # of 12, which are no multiple of 8
    ],
)
def test_the_kernel_is_that_for_the_width_of_a_head(heads, dropout, width, kernel):
    config = replace(SMALL, hidden_size=768, num_attention_heads=heads, attention_probs_dropout_prob=dropout)
    assert fastest_kernel(config, width) == kernel


class Launched:
    """A kernel of Triton's that is launched, and computes nothing."""

    def __getitem__(self, grid):
        return lambda *arguments, **constants: None


@pytest.mark.parametrize("dtype", WIDTHS, ids=str)
@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("length", [64, 192])
def test_activations_of_kernels_of_our_own(length, checkpointing, dropout, dtype, monkeypatch):
    pytest.importorskip("triton", reason="needs triton, which torch has on Linux for x86 and NVIDIA's GPUs")
    from trainer import attention_kernels, fused, kernels

    for kernel in (kernels.add_norm, kernels.gelu):
        monkeypatch.setattr(kernels, kernel.__name__, Launched())
    for kernel in (attention_kernels.draw, attention_kernels.attend):
        monkeypatch.setattr(attention_kernels, kernel.__name__, Launched())
    monkeypatch.setitem(VOCABULARY_MULTIPLES, "cpu", VOCABULARY_MULTIPLES["cuda"])
    config = replace(
        SMALL, activation_checkpointing=checkpointing, hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout, max_position_embeddings=length,
    )  # fmt: skip
    batch = MicroBatch(8, length, 80)
    compute, model = losses(config, batch, dtype)
    fused.fuse(model.bert.layers, config)
    kept = Kept(model)
    with saved_tensors_hooks(kept.take, lambda tensor: tensor):
        compute()
    width = WIDTHS[dtype]
    mask = batch.tokens * config.hidden_size if dropout else 0  # of the embeddings: a byte on GPUs
    expected = kept.bytes - mask * (width - 1)
    kernel = fastest_kernel(config, width, fused=True)
    assert kept_bytes(config, batch, width, kernel, checkpointing) == pytest.approx(expected, rel=0.01)


@pytest.mark.filterwarnings("ignore:TF32 acceleration")  # torch's, where it is told to leave oneDNN out
@pytest.mark.parametrize(("shape", "dtype", "checkpointing"), WAYS, ids=str)
def test_the_peak_is_that_of_the_allocator(shape, dtype, checkpointing, monkeypatch):
    monkeypatch.setattr(products, "LACKING", set())  # as on a GPU, whatever this processor lacks
    config, batch = SHAPES[shape]
    config = replace(config, activation_checkpointing=checkpointing)
    compute, _ = losses(config, batch, dtype)
    compute().backward()  # gradients exist from here on
    with (
        torch.backends.mkldnn.flags(enabled=False),  # which on some processors takes memory to lay matrices out anew
        profile(activities=[ProfilerActivity.CPU], profile_memory=True) as measured,
    ):
        compute().backward()
    held = most = 0
    for event in measured.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            most = max(most, held)
    assert peak_bytes(config, batch, WIDTHS[dtype], "grouped", checkpointing) == pytest.approx(most, rel=0.1)


def test_the_largest_micro_batch_fits_and_one_more_does_not():
    one = MicroBatch(1, 64, 10)
    largest = largest_micro_batch(SMALL, one, 2, "varlen", 10e6)
    peaks = [peak_bytes(SMALL, MicroBatch(n, 64, 10 * n), 2, "varlen", False) for n in (largest, largest + 1)]
    assert peaks[0] <= 10e6 < peaks[1]
    assert largest_micro_batch(SMALL, one, 2, "varlen", 10e3) == 0


@pytest.mark.parametrize("name", ["bert_adam", "lamb"])
def test_weights_gradients_and_moments_of_plain_torch_to_the_byte(name):
    model = BertForPreTraining(SMALL)
    optimizer = build_optimizer(parameter_groups(model, 0.01), OptimizerConfig(name=name))
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.param_groups[0]["lr"] = optimizer.param_groups[1]["lr"] = 0.0
    optimizer.step()
    moments = [state[key] for state in optimizer.state.values() for key in ("exp_avg", "exp_avg_sq")]
    found = [
        sum(tensor.untyped_storage().nbytes() for tensor in tensors)
        for tensors in (model.parameters(), (p.grad for p in model.parameters()), moments)
    ]
    states = model_states(parameter_count(SMALL), Sharding(stage=0, precision="float32"), ranks=1)
    assert [states.weights, states.gradients, states.optimizer] == found


@pytest.mark.parametrize(("stage", "copies"), [(0, 1), (1, 1), (2, 2)])
def test_graphs_write_gradients_to_a_place_of_their_own(stage, copies):
    """From where all are copied at once, which ZeRO 2 has not as a whole otherwise."""
    usual, in_graphs = (
        model_states(PARAMETERS, Sharding(stage=stage), ranks=8, in_graphs=in_graphs) for in_graphs in (False, True)
    )
    assert in_graphs.working - usual.working == copies * 2 * PARAMETERS
    assert in_graphs.updating - usual.updating == 2 * PARAMETERS


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_what_a_configuration_leaves_out_is_deepspeed_s_default(stage):
    ours, theirs = read_sharding({"zero_optimization": {"stage": stage}}), DeepSpeedZeroConfig(stage=stage)
    assert (ours.overlap, ours.scatter) == (theirs.overlap_comm, not theirs.use_multi_rank_bucket_allreduce)
    assert (ours.bucket, ENGINE_BUCKET) == (theirs.reduce_bucket_size, MEMORY_OPT_ALLREDUCE_SIZE)
    assert ours.prefetch == theirs.prefetch_bucket_size
    assert (ours.live, ours.reuse) == (theirs.max_live_parameters, theirs.max_reuse_distance)


LAYERS, WIDTH = 40, 150
PARAMETERS = LAYERS * WIDTH**2
MIXED = {"bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "fp32"}, "communication_data_type": "fp32"}
NARROW = {"bf16": {"enabled": True}}  # gradients are added up and sent in bf16
FLOAT32 = {}
CONVERTED = {"bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "fp32"}}  # added up in float32, sent in bf16
CASES = [
    (MIXED, 2, True, 4, 2),  # the project's own ds_config.json
    *(
        pytest.param(precision, stage, overlap, 4, 2, marks=pytest.mark.slow)
        for precision, stages in ((MIXED, (1, 3)), (FLOAT32, (0, 1, 2, 3)), (NARROW, (1, 2, 3)))
        for stage in stages
        for overlap in ((False, True) if stage else (False,))
    ),
    # Of all gradients at once, as DeepSpeed has it by default.
    *(pytest.param(precision, 3, True, 1, 2, marks=pytest.mark.slow) for precision in (MIXED, FLOAT32, NARROW)),
    *(
        pytest.param(precision, stage, overlap, 1, 4, marks=pytest.mark.slow)
        for precision, stages in ((MIXED, (2,)), (FLOAT32, (1, 2)), (NARROW, (1, 2)), (CONVERTED, (2,)))
        for stage in stages
        for overlap in (False, True)
    ),
    *(pytest.param(precision, 1, False, 4, 1, marks=pytest.mark.slow) for precision in (FLOAT32, NARROW)),
]


@pytest.mark.parametrize(("precision", "stage", "overlap", "buckets", "ranks"), CASES)
def test_model_states_are_what_deepspeed_s_ranks_hold(precision, stage, overlap, buckets, ranks, tmp_path):
    config = {
        "train_batch_size": 2 * ranks, "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 2,
        "gradient_clipping": 1.0, "zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False,
        "zero_optimization": {"stage": stage, "overlap_comm": overlap, "reduce_bucket_size": PARAMETERS // buckets,
                              "stage3_param_persistence_threshold": 0},
        **precision,
    }  # fmt: skip
    sharding = read_sharding(config)
    states, width = model_states(PARAMETERS, sharding, ranks=ranks), sharding.width
    for found in run_ranks(ranks, measure_peaks, config, LAYERS, WIDTH, log=tmp_path / "ranks.log"):
        assert states.working == pytest.approx(found["working"], rel=0.1)
        # On CPUs, not with NCCL, weights that are gathered again lie there twice for a moment.
        assert 0.95 * found["updating"] <= states.updating + (PARAMETERS * width if 0 < stage < 3 else 0)
        assert states.updating <= 1.05 * found["updating"]

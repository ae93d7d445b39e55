"""Which step is recorded, what its kernels are for, and what in a profile is none; all of it holds on a CPU."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.autograd import DeviceType
from torch.autograd.profiler_util import EventList, FunctionEvent

from trainer.profiling import StepProfile, busy_milliseconds, by_kind, kernels_of, kind_of

# As torch 2.11's own libraries and profiles have them.
KERNELS = {
    "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4, false, false, cutlass::bfloat16_t, "
    "Flash_kernel_traits<64, 128, 128, 4, cutlass::bfloat16_t> >, false, true>(pytorch_flash::Flash_fwd_params)": (
        "attention"
    ),
    "fmha_cutlassF_bf16_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<cutlass::bfloat16_t, "
    "cutlass::arch::Sm80, true, 64, 64, 64, true, true>::Params)": "attention",
    "cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_26_64x64x64_1x4x1": "attention",
    "attend_backward_keys": "attention",  # ours
    "draw": "attention",
    "triton_red_fused__log_softmax__to_copy_argmax_eq_nll_loss_forward_sum_0": "losses",
    "void at::native::(anonymous namespace)::cunn_SoftMaxForward<8, c10::BFloat16, float, float, "
    "at::native::(anonymous namespace)::LogSoftMaxForwardEpilogue>(float*, c10::BFloat16 const*, int)": "losses",
    "nvjet_tst_128x256_64x4_2x1_v_bz_coopA_TNT": "matrix products",
    "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_256x128_32x3_tn_align8>(Params)": (
        "matrix products"
    ),
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<FusedOptimizerTensorListMetadata<4>, "
    "FusedAdamMathFunctor<float, 4, (ADAM_MODE)1, false>>": "optimizer",
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)": "communication",
    "Memcpy HtoD (Pinned -> Device)": "copies",
    "void at::native::vectorized_elementwise_kernel<8, at::native::bfloat16_copy_kernel_cuda(at::TensorIteratorBase&)::"
    "{lambda(float)#1}, std::array<char*, 2ul> >(int, std::array<char*, 2ul>)": "elementwise",  # no LAMB
    "triton_per_fused_add_native_dropout_native_layer_norm_3": "elementwise",
    "aten::addmm": "matrix products",  # a CPU's
    "aten::_fused_adam_": "optimizer",
    "gloo:all_reduce": "communication",
}


@pytest.mark.parametrize(("kernel", "kind"), KERNELS.items())
def test_the_kind_of_a_kernel(kernel: str, kind: str):
    assert kind_of(kernel) == kind


def event(name: str, begin: int, end: int, **more: Any) -> FunctionEvent:
    return FunctionEvent(
        0, name, 0, begin, end, use_device="cuda", stack=[], **{"device_type": DeviceType.CUDA, **more}
    )


def test_annotations_and_what_the_host_does_are_no_kernels():
    events = EventList(
        [
            event("nvjet_tst", 0, 2000),
            event("nvjet_tst", 2000, 3000),
            event("flash_fwd_kernel", 3000, 3500),
            event("## Call CompiledFxGraph fabc123 ##", 0, 3500, is_user_annotation=True),
            event("Optimizer.step#Adam.step", 0, 9000, is_user_annotation=True),
            event("aten::mm", 0, 9000, device_type=DeviceType.CPU),
        ],
        use_device="cuda",
    )
    events._build_tree()  # as the profiler does
    kernels = kernels_of(events.key_averages())
    assert kernels == [(3.0, 2, "nvjet_tst"), (0.5, 1, "flash_fwd_kernel")]
    assert by_kind(kernels) == {"matrix products": 3.0, "attention": 0.5}


def test_a_gpu_is_busy_while_it_has_a_kernel_in_any_stream():
    events = [
        event("nvjet_tst", 1000, 3000),
        event("ncclDevKernel_AllReduce", 2000, 4000),  # beside it
        event("ncclDevKernel_AllGather", 2500, 3500),  # within what is counted already
        event("draw", 6000, 6500),
        event("Optimizer.step#Adam.step", 0, 9000, is_user_annotation=True),
        event("aten::mm", 0, 9000, device_type=DeviceType.CPU),
    ]
    assert busy_milliseconds(events) == 3.5


def steps(profiled: StepProfile, last: int) -> None:
    for step in range(1, last + 1):
        with torch.profiler.record_function(f"of step {step}"):
            torch.ones(100, 100) @ torch.ones(100, 100)
        profiled.after_step(step)
    profiled.close()


@pytest.mark.parametrize("number", [2, 3])
def test_the_step_that_is_asked_for_is_recorded_alone(number: int, tmp_path: Path, caplog: pytest.LogCaptureFixture):
    caplog.set_level("INFO", logger="pretrain")
    steps(StepProfile(number, tmp_path / "profile", torch.device("cpu")), last=5)
    (trace,) = (tmp_path / "profile").iterdir()
    assert trace.name == f"step-00000{number}.json.gz"
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    names = {event["name"] for event in events}
    assert {name for name in names if name.startswith("of step")} == {f"of step {number}"}
    assert "aten::mm" in names
    where, shares = (record.getMessage() for record in caplog.records)
    assert where == f"trace of step {number}: {trace}, for https://ui.perfetto.dev"
    told = dict(share.rsplit(" ", 1) for share in shares.partition(": ")[2].split(", "))
    assert {"matrix products", "elementwise", "Python and waits"} == set(told)
    assert sum(float(share.rstrip("%")) for share in told.values()) == pytest.approx(100, abs=1)


@pytest.mark.parametrize(("number", "last"), [(0, 5), (2, 1), (5, 3), (5, 4)])
def test_a_step_that_does_not_come_is_not_recorded(number: int, last: int, tmp_path: Path):
    steps(StepProfile(number, tmp_path / "profile", torch.device("cpu")), last)
    assert not (tmp_path / "profile").exists()


def test_a_trace_that_finds_no_place_costs_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    caplog.set_level("INFO", logger="pretrain")
    (tmp_path / "profile").write_text("a file", encoding="utf-8")
    steps(StepProfile(2, tmp_path / "profile", torch.device("cpu")), last=3)
    warning, shares = caplog.records
    assert warning.levelname == "WARNING"
    assert warning.getMessage().startswith("the trace of step 2 can't be written: ")
    assert shares.getMessage().startswith("step 2 of rank 0 took ")

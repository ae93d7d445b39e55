"""What torch.compile writes for a layer of BERT-LARGE on a GPU, without one, and ours: kernels and what they cost.

    python benchmarks/gpu_kernels.py                     # a minute or two on a CPU; a torch that has triton

A layer's forward and backward pass are traced on the CPU. Then their graphs are told that they lie on a GPU of compute
capability 9.0, Inductor writes its kernels for that, and triton builds each of them. Nothing is run. Inductor itself
counts what a kernel reads and writes; here it is given in widths: elements of 16 bits a token, divided by the width of
the model. Instructions are read off the machine's code. The kernels of trainer.fused are built and counted as well.
benchmarks/gpu_predictions.py takes its figures from here.

This reaches into torch: the names that are patched below are those of 2.11 to 2.15.
"""

from __future__ import annotations

import contextlib
import copy
import math
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import torch._inductor.async_compile
import triton
from torch._dynamo.device_interface import CudaInterface
from torch._inductor import compile_fx, config
from torch._inductor.codecache import PyCodeCache
from torch._inductor.graph import GraphLowering
from torch._inductor.output_code import OutputCode
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _triton
from torch.utils._pytree import tree_map
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime import driver

from preprocessing.markdown import markdown_table
from trainer import attention_kernels, fused, fused_attention, kernels
from trainer.determinism import use_deterministic_kernels
from trainer.fused_attention import How
from trainer.model import BertConfig, Layer
from trainer.packing import PackedTokens

GPU = torch.device("cuda", 0)
CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
PROPERTIES = SimpleNamespace(
    name="of compute capability 9.0", major=9, minor=0, multi_processor_count=132, regs_per_multiprocessor=65536,
    max_threads_per_multi_processor=2048, max_threads_per_block=1024, warp_size=32, total_memory=80 << 30,
    shared_memory_per_block_optin=232448, shared_memory_per_multiprocessor=233472, gcnArchName="",
    L2_cache_size=50 << 20,
)  # fmt: skip
ANSWERS = {  # to what is asked of a device
    "torch.cuda.is_available": True, "torch.cuda.device_count": 1, "torch.cuda.current_device": 0,
    "torch.cuda.get_device_properties": PROPERTIES, "torch.cuda.get_device_capability": (9, 0),
    "torch.cuda.get_device_name": PROPERTIES.name, "torch.cuda.init": None, "torch.cuda._lazy_init": None,
    "torch.cuda._exchange_device": 0, "torch.cuda._maybe_exchange_device": 0, "torch.cuda.synchronize": None,
    "torch.cuda.current_stream": None, "torch._C._cuda_getCurrentRawStream": 0, "torch._C._cuda_setDevice": None,
    "torch._C._cuda_getDevice": 0, "torch._subclasses.fake_tensor.init_gpu_context": None,
    "torch.cuda.get_rng_state": torch.zeros(16, dtype=torch.uint8), "torch.cuda.set_rng_state": None,
    "torch.utils._triton.has_triton": True, "torch._inductor.scheduler.has_triton": True,
    "torch._inductor.runtime.triton_heuristics.triton_helpers.set_driver_to_gpu": None,
}  # fmt: skip
TOKENS, SEQUENCES = 29_696, 264  # about 256 samples of 128
# Bytes that a program may have of a multiprocessor's shared memory, by compute capability (CUDA C++ Programming Guide).
SHARED = {80: 163 << 10, 86: 99 << 10, 89: 99 << 10, 90: 227 << 10, 100: 227 << 10, 120: 99 << 10}
TYPES = {  # of kernels' arguments; others are tensors in 16 bits, or strides
    **dict.fromkeys(("means", "inverses", "sums", "logs", "deltas"), "*fp32"),
    **dict.fromkeys(("probability", "kept", "eps", "to_exponent", "to_score"), "fp32"),
    **dict.fromkeys(("count", "rows_each", "size", "group_count", "dropped"), "i32"),
    **dict.fromkeys(("query_bounds", "key_bounds"), "*i32"), "seed": "*i64", "bits": "*u8",
}  # fmt: skip


@dataclass
class Kernel:
    """What Inductor made one kernel of.

    Attributes:
        backward: whether it is one of the backward pass.
        operations: in it.
        bytes: read and written.
    """

    backward: bool
    operations: str
    bytes: int


@contextlib.contextmanager
def pretended_gpu() -> Iterator[None]:
    """Have torch and triton believe in a GPU, as far as it takes to write and build kernels."""
    names = ("get_device_properties", "get_compute_capability", "current_device", "is_available")
    for function in vars(_triton).values():
        getattr(function, "cache_clear", lambda: None)()
    with contextlib.ExitStack() as patches:
        for name, answer in ANSWERS.items():
            patches.enter_context(mock.patch(name, lambda *_, answer=answer: answer, create=True))
        for name, answer in zip(names, (PROPERTIES, 90, 0, True), strict=True):
            patches.enter_context(mock.patch.object(CudaInterface, name, staticmethod(lambda *_, a=answer: a)))
        for name, answer in (("current_device", 0), ("get_device_properties", PROPERTIES)):
            patches.enter_context(mock.patch.object(CudaInterface.Worker, name, staticmethod(lambda *_, a=answer: a)))
        driver.set_active(mock.Mock(**{
            "get_current_target.return_value": GPUTarget("cuda", 90, 32), "get_current_device.return_value": 0,
            "get_active_torch_device.return_value": GPU, "get_current_stream.return_value": 0,
            "utils.get_device_properties.return_value": {"max_shared_mem": 232448, "multiprocessor_count": 132,
                                                         "warpSize": 32, "max_num_regs": 65536},
        }))  # fmt: skip
        yield


@dataclass
class NeverRun(OutputCode):
    """In the place of compiled code: gives tensors of the right shapes with anything in them."""

    outputs: Sequence[Any]
    symbols: Sequence[Any]
    _boxed_call = True

    def __call__(self, *inputs: Any) -> list[Any]:
        """The outputs of a graph; its inputs come one by one or in a list."""
        given = inputs[0] if isinstance(inputs[0], list) else inputs
        values = {symbol: value for symbol, value in zip(self.symbols, given, strict=True) if symbol is not None}

        def size(of: Any) -> Any:
            return int(of.node.expr.subs(values)) if isinstance(of, torch.SymInt) else of

        return [
            torch.empty_strided([*map(size, out.shape)], [*map(size, out.stride())], dtype=out.dtype)
            if isinstance(out, torch.Tensor)
            else size(out)
            for out in self.outputs
        ]

    def post_compile(self, *_: Any) -> None:
        """Nothing to load."""

    def set_triton_bundle(self, _: Any) -> None:
        """Nothing to keep."""


class Writer:
    """A backend of torch.compile that has kernels written for a GPU and never runs them."""

    def __init__(self) -> None:
        self.kernels: list[Kernel] = []
        self.sources: dict[str, str] = {}  # of triton, and the names of the functions in them

    def __call__(self, graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        """As Dynamo calls a backend."""
        return compile_fx.compile_fx(graph, inputs, inner_compile=self._compile)

    def _compile(self, graph: torch.fx.GraphModule, inputs: Sequence[Any], **options: Any) -> NeverRun:
        (returned,) = (node for node in graph.graph.nodes if node.op == "output")
        outputs = [getattr(node, "meta", {}).get("val", node) for node in returned.args[0]]
        never_run = NeverRun(copy.copy(outputs), [x.node.expr if isinstance(x, torch.SymInt) else None for x in inputs])
        for node in graph.graph.nodes:
            node.meta = tree_map(_moved, node.meta)
            node.args, node.kwargs = tree_map(_moved, node.args), tree_map(_moved, node.kwargs)
        tree_map(_moved, list(inputs))
        with (
            pretended_gpu(),
            mock.patch.object(GraphLowering, "codegen", self._noting(options.get("is_backward", False))),
            mock.patch.object(torch._inductor.async_compile.AsyncCompile, "triton", self._keep),
            mock.patch.object(torch._inductor.async_compile.AsyncCompile, "wait", return_value=None),
            config.patch(force_disable_caches=True, compile_threads=1),
        ):
            compile_fx.compile_fx_inner(graph, inputs, **options)
        for x in inputs:
            if isinstance(x, FakeTensor):
                x.fake_device = torch.device("cpu")
        return never_run

    def _noting(self, backward: bool) -> Callable[[GraphLowering], Any]:
        codegen = GraphLowering.codegen

        def note(graph: GraphLowering) -> Any:
            written = codegen(graph)
            scheduler: Any = graph.scheduler
            for node in scheduler.nodes:
                if not node.is_extern():
                    origins = {origin for part in node.get_nodes() for origin in part.node.origins}
                    names = sorted(
                        {str(origin.target).split(".")[-2] for origin in origins if "." in str(origin.target)}
                    )
                    self.kernels.append(Kernel(backward, ", ".join(names), node.get_read_write_buffers_sizes()))
            return written

        return note

    def _keep(self, name: str, source: str, *_: Any, **__: Any) -> None:
        self.sources[source] = name


def _moved(value: Any) -> Any:
    """On the GPU, in place, what is without data on the CPU."""
    if isinstance(value, FakeTensor) and value.device.type == "cpu":
        value.fake_device = GPU
    return GPU if isinstance(value, torch.device) and value.type == "cpu" else value


def build(sources: dict[str, str]) -> dict[str, float]:
    """Have triton build every kernel, in each of its forms, down to the machine's code.

    Returns:
        Instructions an element by kernel, of the form that has the fewest; of those alone that have no loop, and so run
        each instruction once.

    Raises:
        Exception: triton's, of one that can't be built.
    """
    counts = {}
    with pretended_gpu():
        for source, name in sources.items():
            kernel = getattr(PyCodeCache.load(source), name)
            programs = [(form, kernel._precompile_config(form).kernel.cubin_raw) for form in kernel.configs]
            if " in tl.range(" not in source:
                counts[name] = min(
                    32
                    * form.num_warps
                    * _instructions(program)
                    / (form.kwargs["XBLOCK"] * kernel.size_hints.get("r0_", 1))
                    for form, program in programs
                )
    return counts


def _registers(program: bytes) -> tuple[int, int]:
    """Of a thread, and bytes of its stack."""
    registers, stack = re.findall(r"(?:REG|STACK):(\d+)", _dump(program, "-res-usage"))
    return int(registers), int(stack)


def _instructions(program: bytes) -> int:
    """Of a thread."""
    return len(_addresses_and_jumps(program))


def _of_the_loop(program: bytes) -> int:
    """Of a thread, in a round of the longest loop; all where there is none."""
    code = _addresses_and_jumps(program)
    rounds = [sum(target <= address <= end for address, _ in code) for end, target in code if -1 < target < end]
    return max(rounds, default=len(code))


def _addresses_and_jumps(program: bytes) -> list[tuple[int, int]]:
    """Of each instruction, where it is and where it jumps to; -1 where it goes on with the next."""
    listing = _dump(program, "-sass")
    found = re.finditer(r"^\s+/\*([0-9a-f]{4,})\*/\s+(?!NOP)(?:.*?\bBRA\b.*?0x([0-9a-f]+))?", listing, re.MULTILINE)
    return [(int(at, 16), int(to, 16) if to else -1) for at, to in (match.groups() for match in found)]


def _dump(program: bytes, what: str) -> str:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(program)
        file.flush()
        return subprocess.run([CUOBJDUMP, what, file.name], capture_output=True, text=True, check=True).stdout


def build_ours(bert: BertConfig) -> dict[str, tuple[float, float]]:
    """Have triton build the kernels of trainer.fused, but for those of attention.

    Returns:
        Widths that each reads and writes for a token, and its instructions an element of what it goes through.
    """
    d, f = bert.hidden_size, bert.intermediate_size
    by_erf = fused._BY_ERF[bert.hidden_act]
    plan = {  # kernel: widths, constants and elements that a program has at once
        "add_norm": (4, {"DROPS": True, **fused._row(d)}, d),
        "add_norm_backward": (4, {"DROPS": True, **fused._row(d)}, d),
        "gelu": (2 * f / d, {"BY_ERF": by_erf, "BLOCK": fused._FLAT}, fused._FLAT),
        "gelu_backward": (3 * f / d, {"BY_ERF": by_erf, "WIDTH": f, **fused._TILE}, math.prod(fused._TILE.values())),
    }
    built = {}
    for name, (widths, constants, elements) in plan.items():
        warps = constants.get("num_warps", 4)
        program = _built(getattr(kernels, name), {**fused._ARITHMETIC, **constants}).asm["cubin"]
        built[name] = widths, 32 * warps * _of_the_loop(program) / elements
    return built


def build_attention(bert: BertConfig, length: int) -> dict[str, tuple[float, int, int]]:
    """Have triton build the kernels of trainer.fused_attention, with dropout, for sequences of so many tokens.

    Returns:
        Instructions a weight, registers of a thread, and bytes of it for which there are none.
    """
    built = {}
    for name, rows, constants in _of_attention(bert, length):
        program = _built(getattr(attention_kernels, name), constants).asm["cubin"]
        threads = 32 * constants["num_warps"]
        built[name] = threads * _of_the_loop(program) / rows**2, *_registers(program)
    return built


def shared_memory(bert: BertConfig, length: int, capability: int) -> int:
    """Bytes of a multiprocessor that attention's kernels take at most, built for a compute capability times 10."""
    built = [
        _built(getattr(attention_kernels, name), constants, capability)
        for name, _, constants in _of_attention(bert, length)
    ]
    return max(int(kernel.metadata.shared) for kernel in built)


def _of_attention(bert: BertConfig, length: int) -> Iterator[tuple[str, int, dict[str, Any]]]:
    """The kernels for sequences of so many tokens, queries and keys of their blocks, and what they are built for."""
    tokens = PackedTokens.from_sequences([[0] * length])
    how = How(tokens, tokens, bert.num_attention_heads, False, 0.1, torch.zeros(1, dtype=torch.int64))
    x = torch.empty(length, bert.hidden_size, dtype=torch.bfloat16)
    backward = ["attend_backward"] if how.is_whole(x) else ["attend_backward_queries", "attend_backward_keys"]
    for name in ("draw", "attend", *backward):
        rows = fused_attention._WHOLE if name in ("draw", "attend_backward") else how.rows(x)
        yield name, rows, how.constants(x, rows)


def _built(kernel: Any, constants: dict[str, Any], capability: int = 90) -> Any:
    """What triton makes of a kernel, with the types and alignments that tensors of a step have."""
    options = {name: value for name, value in constants.items() if name not in kernel.arg_names}
    known = {name: value for name, value in constants.items() if name in kernel.arg_names}
    signature = {name: "constexpr" if name in known else TYPES.get(name, "*bf16") for name in kernel.arg_names}
    for name in kernel.arg_names:
        if name.endswith("stride"):
            signature[name] = "i32"
    places = [place for place, name in enumerate(kernel.arg_names) if _is_aligned(name, signature[name])]
    aligned = {(place,): [["tt.divisibility", 16]] for place in places}
    source = ASTSource(fn=kernel, signature=signature, constexprs=known, attrs=aligned)
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)


def _is_aligned(name: str, of: str) -> bool:
    """Whether an argument is a multiple of 16: what a kernel is not told of, and one seed of several, are none."""
    return of in ("*bf16", "*fp32", "*u8", "*i32") or name.endswith("stride") or name in ("size", "group_count")


def write_layer(hidden_dropout: float) -> Writer:
    """The kernels of a layer in the middle of BERT-LARGE."""
    bert = BertConfig(30522, hidden_dropout_prob=hidden_dropout, attention_probs_dropout_prob=0.0, num_hidden_layers=1)
    lengths = torch.full((SEQUENCES,), TOKENS // SEQUENCES)
    lengths[-1] += TOKENS - lengths.sum()
    ids = torch.zeros(TOKENS, dtype=torch.int64)
    tokens = PackedTokens.from_flat(ids, ids, lengths)
    writer = Writer()
    with (
        # As they would be there; functions, which Dynamo can trace.
        mock.patch("trainer.attention._fastest", lambda *_: "varlen"),  # noqa: PT008
        mock.patch("trainer.products.LACKING", frozenset()),
        mock.patch("trainer.model.dropout", lambda x, p: torch.ops.aten.native_dropout(x, p, True)[0] if p else x),
    ):
        with torch.device("meta"):
            layer = Layer(bert).bfloat16()
        layer = layer.to_empty(device="cpu").train()
        layer.compile(backend=writer, fullgraph=True)
        hidden = torch.empty(TOKENS, bert.hidden_size, dtype=torch.bfloat16, requires_grad=True)
        torch._dynamo.mark_dynamic(hidden, 0)
        output = layer(hidden, tokens)
        output.backward(torch.empty_like(output))
    return writer


def main() -> None:
    """The kernels of a layer, one in each line, and what dropout's random numbers and an order of sums cost."""
    use_deterministic_kernels(False, GPU)
    in_any_order = write_layer(0.1)
    use_deterministic_kernels(True, GPU)
    writer, without = write_layer(0.1), write_layer(0.0)
    width = 2 * TOKENS * BertConfig(30522).hidden_size
    rows = [
        ["backward" if kernel.backward else "forward", kernel.operations, f"{kernel.bytes / width:.1f}"]
        for kernel in writer.kernels
        if kernel.bytes / width >= 0.05
    ]
    total = sum(kernel.bytes for kernel in writer.kernels) / width
    bodies = [[source.partition("@triton.jit")[2] for source in each.sources] for each in (writer, in_any_order)]
    same = "the same" if bodies[0] == bodies[1] else "others"
    print(f"torch {torch.__version__}; all kernels build for compute capability 9.0")
    print(f"train.deterministic = false: {same}\n")
    print(markdown_table([["pass", "operations", "widths"], *rows, ["both", "all", f"{total:.1f}"]], [2]))
    for what, each in (("with", writer), ("without", without)):
        counts = [[name, f"{count:.0f}"] for name, count in build(each.sources).items()]
        print(markdown_table([[f"{what} dropout", "instructions an element"], *counts], [1]))
    ours = [[name, f"{widths:.0f}", f"{count:.0f}"] for name, (widths, count) in build_ours(BertConfig(30522)).items()]
    print(markdown_table([["trainer.fused", "widths", "instructions an element"], *ours], [1, 2]))
    for length in (128, 512):
        found = build_attention(BertConfig(30522), length).items()
        rows = [[name, f"{count:.0f}", str(registers), str(bytes_)] for name, (count, registers, bytes_) in found]
        heading = [f"attention, {length} tokens", "instructions a weight", "registers", "bytes without one"]
        print(markdown_table([heading, *rows], [1, 2, 3]))
    needs = []
    for capability, there in SHARED.items():
        taken = [shared_memory(BertConfig(30522), length, capability) for length in (128, 512)]
        needs.append([f"{capability / 10:.1f}", *(f"{bytes_:,}" for bytes_ in (*taken, there))])
    names = ["compute capability", "shared memory of attention, 128 tokens", "512 tokens", "there is"]
    print(markdown_table([names, *needs], [0, 1, 2, 3]))


if __name__ == "__main__":
    main()

"""What tests have ranks do; a module of its own, because ranks import their task by name."""

from __future__ import annotations

import errno
import functools
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

# muon_optimizer and _dynamo: what DeepSpeed imports in the middle of its work, here once for all ranks.
import deepspeed.runtime.zero.muon.muon_optimizer
import numpy as np
import pyarrow
import torch
import torch._dynamo
from deepspeed.accelerator import cuda_accelerator, get_accelerator
from torch import Tensor

from preprocessing.schema import ShardDirectory, ShardError
from tests.trainer.emulated_graphs import EmulatedRecorder
from trainer import (
    agreement,
    attention,
    bottlenecks,
    engine,
    graphs,
    joining,
    lineage,
    loss_trend,
    metrics_log,
    preflight,
    pretrain,
    saving,
    session,
    sharded_state,
    start,
)
from trainer.checkpoint import RunState
from trainer.config import Recipe, load_recipe
from trainer.data import Batch, SampleStream
from trainer.deepspeed_config import read_deepspeed, resolve
from trainer.engine import Engine, GlobalCounts
from trainer.joining import join_world
from trainer.leases import hold_run
from trainer.loading import StepReader, Steps
from trainer.model import EMPTY_SLOT, Losses
from trainer.non_finite import NonFiniteError
from trainer.run_directory import RunDirectory
from trainer.sharded_state import file_name, write_state
from trainer.stopping import end_at_once
from trainer.world import World, has_joined, leave_world

pyarrow.array([0])  # imports pandas where it is installed, which every rank would take longer for than for its steps


def run_pretrain(arguments: list[str]) -> int:
    """The trainer's main, as a launcher would start it."""
    return pretrain.main(arguments)


def run_pretrain_with(arguments: list[str], variables: dict[str, str]) -> int:
    """The trainer's main, where a launcher has set other variables."""
    os.environ.update(variables)
    return pretrain.main(arguments)


def run_pretrain_and_signal_while_it_waits(arguments: list[str]) -> int:
    """The trainer's main; it gets SIGTERM a second after it has begun to wait, for a day, for another trainer's end."""

    def hold_and_be_asked(*given: Any, **named: Any) -> Any:
        threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGTERM)).start()
        return hold_run(*given, **named, patience=86400.0)

    start.hold_run = hold_and_be_asked
    return pretrain.main(arguments)


def run_pretrain_with_onednn(arguments: list[str]) -> int:
    """The trainer's main with the products that users have on a CPU."""
    torch.backends.mkldnn.set_flags(True)
    return pretrain.main(arguments)


def run_pretrain_where_held_out_storage_fails_for_rank_1(arguments: list[str]) -> int:
    """The trainer's main; one rank can't open held-out shards."""
    open_shard = pyarrow.memory_map

    def fail(path: str) -> pyarrow.MemoryMappedFile:
        if os.environ["RANK"] == "1" and "validation" in path:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), path)
        return open_shard(path)

    with mock.patch("pyarrow.memory_map", fail):
        return pretrain.main(arguments)


def run_pretrain_where_new_memory_holds_nan(arguments: list[str]) -> int:
    """The trainer's main; what torch.empty gives holds NaN, as memory that was used before may."""
    torch.utils.deterministic.fill_uninitialized_memory = True  # type: ignore[attr-defined]
    torch.use_deterministic_algorithms(True)
    return pretrain.main(arguments)


def run_pretrain_as_a_program(arguments: list[str]) -> None:
    """As trainer/pretrain.py is run: Ctrl-C is heard, and after an error the process is gone at once."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if code := pretrain.main(arguments):
        end_at_once(code)


def run_pretrain_in_fp16(arguments: list[str]) -> int:
    """The trainer's main where DeepSpeed takes the processor for one that has fp16: torch computes in it, slowly."""
    get_accelerator().is_fp16_supported = lambda: True  # type: ignore[method-assign]
    return pretrain.main(arguments)


def run_pretrain_with_a_quick_compiler(arguments: list[str]) -> int:
    """The trainer's main; torch.compile traces and differentiates, and leaves out the minutes of a C++ compiler."""
    compile_module = torch.nn.Module.compile
    torch.nn.Module.compile = functools.partialmethod(compile_module, backend="aot_eager")  # type: ignore[assignment]
    torch.compile = functools.partial(torch.compile, backend="aot_eager")
    return pretrain.main(arguments)


def run_pretrain_with_the_attention_of_a_gpu(arguments: list[str]) -> int:
    """The trainer's main; attention waits for no value, and torch.compile is quick."""
    attention._fastest = lambda *_: "sdpa"  # type: ignore[assignment]
    return run_pretrain_with_a_quick_compiler(arguments)


def run_pretrain_in_emulated_graphs(arguments: list[str]) -> int:
    """The same, as train.cuda_graphs has it on a GPU."""
    graphs.Recorder = EmulatedRecorder  # type: ignore[assignment,misc]
    preflight.device_kind = lambda: torch.device("cuda")  # type: ignore[attr-defined]
    return run_pretrain_with_the_attention_of_a_gpu(arguments)


def run_pretrain_and_signal(arguments: list[str]) -> int:
    """The trainer's main; the last rank gets SIGTERM after its second step."""
    return _with_signal(arguments, signal.SIGTERM)


def run_pretrain_and_stop(arguments: list[str]) -> int:
    """The trainer's main; the last rank stops dead after its second step."""
    return _with_signal(arguments, signal.SIGSTOP)


def run_pretrain_and_edit_the_configuration(arguments: list[str]) -> int:
    """The trainer's main; after two steps somebody edits DeepSpeed's configuration for another run."""
    path = Path(arguments[arguments.index("--deepspeed_config") + 1])
    return _with_accident(arguments, 2, lambda: path.write_text('{"zero_optimization": {"stage": 3}}'))


def run_pretrain_and_check_out_another_commit(arguments: list[str]) -> int:
    """The trainer's main; after two steps git says that the checkout is of another commit."""
    return _with_accident(arguments, 2, lambda: setattr(lineage, "_git", lambda *_, **__: "c0ffee"))


def _with_signal(arguments: list[str], number: signal.Signals) -> int:
    return _with_accident(arguments, 2, lambda: os.kill(os.getpid(), number))


def run_pretrain_and_crash(arguments: list[str]) -> int:
    """The trainer's main; the last rank runs out of memory after its second step."""

    def crash() -> None:
        raise MemoryError

    return _with_accident(arguments, 2, crash)


def run_pretrain_and_lose_a_gpu(arguments: list[str]) -> int:
    """The trainer's main; the last rank's GPU falls off the bus after its second step, in torch's words."""
    words = "CUDA error: uncorrectable ECC error encountered\nCUDA kernel errors might be asynchronously reported"

    def lose() -> None:
        raise torch.AcceleratorError(words)

    return _with_accident(arguments, 2, lose)


def run_pretrain_on_a_full_gpu(arguments: list[str]) -> int:
    """The trainer's main; the last rank's GPU has no room left after its second step."""

    def fill() -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of")

    return _with_accident(arguments, 2, fill)


def run_pretrain_and_keep_its_beginning(arguments: list[str]) -> int:
    """The trainer's main; before the first step the ranks write what they begin with into OUTPUT.begun."""
    train_step, begun = Engine.train_step, Path(arguments[arguments.index("--output") + 1] + ".begun")

    def keep_and_step(self: Engine, *args: Any, **kwargs: Any) -> dict[str, float]:
        begun.mkdir(exist_ok=True)
        rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        if not (begun / file_name(rank, world)).exists():
            write_state(begun, rank, world, self.snapshot(), self.optimizer_step)
        return train_step(self, *args, **kwargs)

    Engine.train_step = keep_and_step  # type: ignore[method-assign]
    return pretrain.main(arguments)


def run_pretrain_and_crash_beside_others(arguments: list[str]) -> int:
    """As run_pretrain_and_crash; to leave the process group in good order, which could wait for ever, is told."""
    torch.distributed.destroy_process_group = lambda *_: print("left the group")
    return run_pretrain_and_crash(arguments)


def run_pretrain_and_die_before_the_run_has_begun(arguments: list[str]) -> int:
    """The trainer's main; SIGKILL comes when all but the recipe is written."""
    write = start.write_atomically

    def write_or_die(path: Path, content: str | bytes) -> None:
        if path.name == "config.toml":
            os.kill(os.getpid(), signal.SIGKILL)
        write(path, content)

    start.write_atomically = write_or_die
    return pretrain.main(arguments)


def run_pretrain_with_slow_validation(arguments: list[str]) -> int:
    """The trainer's main; a batch of the validation takes 1.6 seconds."""
    losses = Engine._losses

    def slow_losses(self: Engine, batch: Batch) -> Losses:
        if not self._engine.module.training:
            time.sleep(1.6)
        return losses(self, batch)

    Engine._losses = slow_losses  # type: ignore[method-assign]
    return pretrain.main(arguments)


def run_pretrain_and_signal_in_validation_and_count_commits(arguments: list[str]) -> int:
    """The last rank gets SIGTERM in the second batch of a validation; a line for each checkpoint that gets its name."""
    _tell_commits()
    losses, batches = Engine._losses, []

    def losses_and_signal(self: Engine, batch: Batch) -> Losses:
        if not self._engine.module.training:
            batches.append(batch)
            if len(batches) == 2 and os.environ["RANK"] == str(int(os.environ["WORLD_SIZE"]) - 1):
                os.kill(os.getpid(), signal.SIGTERM)
        return losses(self, batch)

    Engine._losses = losses_and_signal  # type: ignore[method-assign]
    return pretrain.main(arguments)


def run_pretrain_and_stop_at_its_end(arguments: list[str]) -> int:
    """The trainer's main; the last rank stops dead when it has trained its last step."""
    close = StepReader.close

    def close_and_stop(self: StepReader) -> None:
        close(self)
        if os.environ["RANK"] == str(int(os.environ["WORLD_SIZE"]) - 1):
            os.kill(os.getpid(), signal.SIGSTOP)

    StepReader.close = close_and_stop  # type: ignore[method-assign]
    return pretrain.main(arguments)


def run_pretrain_with_a_tracker_that_ends_late(arguments: list[str]) -> int:
    """The trainer's main; at the end of tracking it is told what the run directory says by then."""

    @contextmanager
    def tracking(run: RunDirectory, _: Recipe) -> Iterator[None]:
        yield
        print("while MLflow ends:", run.outcome)

    pretrain._start_tracking = tracking
    return pretrain.main(arguments)


def run_pretrain_without_patience(arguments: list[str]) -> int:
    """The trainer's main; another trainer gets no time to end."""
    start.hold_run = functools.partial(hold_run, patience=0)
    return pretrain.main(arguments)


def _with_accident(arguments: list[str], step: int, happen: Callable[[], None]) -> int:
    """The trainer's main; something happens to the last rank after one of its steps."""
    train_step, calls = Engine.train_step, []

    def step_and_accident(*args: Any, **kwargs: Any) -> dict[str, float]:
        metrics = train_step(*args, **kwargs)
        calls.append(1)
        if len(calls) == step and os.environ["RANK"] == str(int(os.environ["WORLD_SIZE"]) - 1):
            happen()
        return metrics

    Engine.train_step = step_and_accident  # type: ignore[method-assign]  this process is the rank's own
    return pretrain.main(arguments)


def run_pretrain_with_a_bad_sample(arguments: list[str]) -> int:
    """The trainer's main; wherever sample 12 is learned from, the loss is no number."""
    losses = Engine._losses

    def losses_of_good_samples(self: Engine, batch: Batch) -> Losses:
        found = losses(self, batch)
        bad = 12 in batch.indices[batch.nsp_labels != EMPTY_SLOT]
        return found._replace(mlm_loss=found.mlm_loss * float("nan")) if bad else found

    Engine._losses = losses_of_good_samples  # type: ignore[method-assign]
    return pretrain.main(arguments)


def run_pretrain_with_a_bad_sample_on_a_slow_disk(arguments: list[str]) -> int:
    """As run_pretrain_with_a_bad_sample; a checkpoint takes longer than the next step."""
    write = saving.write_state

    def write_late(*rest: Any) -> None:
        time.sleep(2)
        write(*rest)

    saving.write_state = write_late
    return run_pretrain_with_a_bad_sample(arguments)


def run_pretrain_on_nodes_that_differ(arguments: list[str], option: str, of_the_last: Path) -> int:
    """The trainer's main; under one name the last rank finds another file or folder, as a node of its own may."""
    if os.environ["RANK"] == str(int(os.environ["WORLD_SIZE"]) - 1):
        arguments[arguments.index(option) + 1] = str(of_the_last)
    agreement._PATIENCE = 1  # with what is on its way
    return pretrain.main(arguments)


def run_pretrain_in_environments_that_differ(arguments: list[str], of_the_last: dict[str, str]) -> int:
    """The trainer's main; the last rank has other code or libraries, as a node of its own may."""
    if os.environ["RANK"] == str(int(os.environ["WORLD_SIZE"]) - 1):
        agreement.environment = lambda: {**lineage.environment(), **of_the_last}
    return pretrain.main(arguments)


def run_pretrain_with_another_numpy(arguments: list[str]) -> int:
    """The trainer's main, as if another version had been installed since."""
    code = lineage.code_version()
    start.code_version = lambda: {**code, "libraries": {**code["libraries"], "numpy": "1.26.0"}}
    return pretrain.main(arguments)


def run_pretrain_tracked(arguments: list[str], tracking_uri: str) -> int:
    """The trainer's main; its tracker looks for news many times a second."""
    from trainer.tracking import tracker

    os.environ["MLFLOW_TRACKING_URI"] = tracking_uri
    tracker._INTERVAL = 0.05
    return pretrain.main(arguments)


def run_pretrain_on_broken_data(arguments: list[str]) -> int:
    """The trainer's main; the last rank can't read its micro-batches of step 4."""
    read = Steps.__getitem__

    def read_what_is_whole(self: Steps, step: int) -> list[Batch]:
        if step == 3 and os.environ["RANK"] == str(int(os.environ["WORLD_SIZE"]) - 1):
            raise ShardError("shard-x: a broken pair")
        return read(self, step)

    Steps.__getitem__ = read_what_is_whole  # type: ignore[method-assign]
    return pretrain.main(arguments)


def run_pretrain_on_data_that_is_broken_where_the_second_phase_begins(arguments: list[str]) -> int:
    """The trainer's main; phases of one length read one stream, of which the part of the second can't be read."""
    read = Steps.__getitem__

    def read_the_first_phase(self: Steps, step: int) -> list[Batch]:
        if self._first:
            raise ShardError("shard-x: a broken pair")
        return read(self, step)

    Steps.__getitem__ = read_the_first_phase  # type: ignore[method-assign]
    return pretrain.main(arguments)


def run_pretrain_on_broken_data_and_count_commits(arguments: list[str]) -> int:
    """run_pretrain_on_broken_data, and a line for each checkpoint that gets its name."""
    _tell_commits()
    return run_pretrain_on_broken_data(arguments)


def _tell_commits() -> None:
    commit = saving.commit_checkpoint

    def commit_and_tell(run: RunDirectory, state: RunState, *rest: Any) -> None:
        print("committed", state.step)
        commit(run, state, *rest)

    saving.commit_checkpoint = commit_and_tell


def run_pretrain_and_tell_who_exports(arguments: list[str]) -> int:
    """The trainer's main, and a line for each export that a rank makes."""
    make = saving.export_checkpoint

    def make_and_tell(*rest: Any) -> None:
        print("exported by rank", os.environ["RANK"])
        make(*rest)

    saving.export_checkpoint = make_and_tell
    return pretrain.main(arguments)


def run_pretrain_with_a_slow_export(arguments: list[str]) -> tuple[int, bool]:
    """The trainer's main, and whether the run directory says by its end how the run ended."""
    make = saving.export_checkpoint

    def make_slowly(*rest: Any) -> None:
        time.sleep(2)
        make(*rest)

    saving.export_checkpoint = make_slowly
    code = pretrain.main(arguments)
    return code, RunDirectory(Path(arguments[arguments.index("--output") + 1])).outcome is not None


def run_pretrain_and_lose_the_settings(arguments: list[str]) -> int:
    """The trainer's main; before the first checkpoint somebody moves config.toml away."""
    begin = saving.begin_checkpoint

    def move_and_begin(run: RunDirectory, step: int) -> None:
        if run.config.exists():
            run.config.rename(run.path / "config.toml.away")
        begin(run, step)

    saving.begin_checkpoint = move_and_begin
    return pretrain.main(arguments)


def run_pretrain_where_a_rank_can_reach_a_teraflop(arguments: list[str]) -> int:
    """The trainer's main; what the processor of each rank could do at most is known."""
    session.measure_ceiling = lambda *_: 1e12
    return pretrain.main(arguments)


def run_pretrain_where_the_port_is_taken(arguments: list[str]) -> int:
    """The trainer's main; another program listens where the ranks are to meet."""
    with socket.create_server(("127.0.0.1", int(os.environ["MASTER_PORT"]))):
        return pretrain.main(arguments)


def run_pretrain_where_another_rank_is_missing(arguments: list[str]) -> int:
    """The trainer's main of the first of two ranks; the second one, on a node that failed perhaps, never comes."""
    os.environ["WORLD_SIZE"] = "2"
    joining._TOLD_AFTER = 0.5
    impatient = functools.partial(deepspeed.init_distributed, timeout=timedelta(seconds=2))
    with mock.patch("deepspeed.init_distributed", impatient):
        return pretrain.main(arguments)


def run_pretrain_without_streams(arguments: list[str]) -> int:
    """The trainer's main as `>&- 2>&-` starts it."""
    sys.stdout = sys.stderr = None
    return pretrain.main(arguments)


def run_pretrain_on_a_full_disk(arguments: list[str]) -> int:
    """The trainer's main; the last rank finds the disk full while it writes the checkpoint of step 4."""
    return _with_full_disk(arguments, lambda path: path.parent.name == ".step-000004.incomplete")


def run_pretrain_on_a_disk_that_stays_full(arguments: list[str]) -> int:
    """The trainer's main; no checkpoint finds room."""
    return _with_full_disk(arguments, lambda _: True)


def run_pretrain_and_signal_on_a_full_disk(arguments: list[str]) -> int:
    """The trainer's main; the last rank gets SIGTERM after its second step, whose checkpoint is the last that fits."""
    return _with_full_disk(
        arguments, lambda path: path.parent.name != ".step-000002.incomplete", run_pretrain_and_signal
    )


def run_pretrain_where_only_the_small_files_find_no_room(arguments: list[str]) -> int:
    """The trainer's main; no line of metrics from step 3 to 5 nor at first of 8, no folder for step 4's checkpoint."""
    append_lines, begin_checkpoint = metrics_log.append_lines, saving.begin_checkpoint
    tries: list[int] = []

    def append_if_there_is_room(path: Path, line: dict[str, Any], *more: dict[str, Any]) -> None:
        tries.append(line["step"])
        if (line["step"] == 3 and len(tries) < 6) or (line["step"] == 8 and tries.count(8) == 1):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        append_lines(path, line, *more)

    def begin_if_there_is_room(run: RunDirectory, step: int) -> None:
        if step == 4:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        begin_checkpoint(run, step)

    metrics_log.INTERVAL = 0.0  # each line is tried to be written as its step is done
    metrics_log.append_lines = append_if_there_is_room
    saving.begin_checkpoint = begin_if_there_is_room
    return pretrain.main(arguments)


def run_pretrain_where_storage_fails(arguments: list[str], call: str, name: str, number: int, times: int) -> int:
    """The trainer's main; what a method of Path is asked of a path that ends so, the first times, fails."""
    does, failed = getattr(Path, call), list[str]()

    def fail(path: Path, *given: Any, **named: Any) -> Any:
        if str(path).endswith(name) and len(failed) < times:
            failed.append(name)
            raise OSError(number, os.strerror(number), str(path))
        return does(path, *given, **named)

    with mock.patch.object(Path, call, fail):
        return pretrain.main(arguments)


def run_pretrain_where_the_last_rank_s_storage_fails(arguments: list[str]) -> int:
    """The trainer's main; while ranks compare what they begin with, the last one can't read it."""
    compare = pretrain.check_initial_weights

    def compare_where_storage_fails(world: World, init_from: Path) -> dict[str, str]:
        if world.rank < world.size - 1:
            return compare(world, init_from)
        failing = OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(init_from))
        with mock.patch("trainer.initial_model.checksum", side_effect=failing):
            return compare(world, init_from)

    with mock.patch.object(pretrain, "check_initial_weights", compare_where_storage_fails):
        return pretrain.main(arguments)


def run_pretrain_without_room_for_its_outcome(arguments: list[str]) -> int:
    """The trainer's main; that it is done can't be written down."""
    set_outcome = RunDirectory.set_outcome

    def set_if_there_is_room(run: RunDirectory, ending: Any, reason: str = "") -> None:
        if ending == "done":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        set_outcome(run, ending, reason)

    RunDirectory.set_outcome = set_if_there_is_room  # type: ignore[method-assign]
    return pretrain.main(arguments)


def device_of_this_rank(_: None) -> tuple[list[int], str]:
    """What the accelerator was told, and the device that the rank takes for its own."""
    told: list[int] = []
    get_accelerator().set_device = told.append  # type: ignore[method-assign, assignment]
    world = join_world(threads=1)
    world.gather(None)  # the first rank keeps the others' meeting place: none leaves while another still joins
    return told, os.environ["LOCAL_RANK"] if world.device.type == "cpu" else str(world.device.index)


def what_ranks_tell_each_other(_: None) -> tuple[tuple[int, bool], list[float], list[str], list[bool]]:
    """Who a rank is, sums and a gathering over all, and whether it is in the process group before and after leaving."""
    world = join_world(threads=1)
    sums, gathered = world.sum([2.0**25 + world.rank, 0.5]), world.gather(f"of {world.rank}")
    is_in = [has_joined()]
    leave_world()
    leave_world()  # which is over by now
    return (world.rank, world.is_first), sums, gathered, [*is_in, has_joined()]


def patience_in_collectives(hang_seconds: int) -> list[float]:
    """Seconds that a rank waits for another in the common group, and in one that is made later."""
    world = join_world(threads=1, hang_seconds=hang_seconds)
    groups = torch.distributed.group.WORLD, torch.distributed.new_group()
    found: list[Any] = [group._get_backend(world.device) for group in groups]  # type: ignore[union-attr]
    leave_world()
    return [backend.options._timeout.total_seconds() for backend in found]


def free_memory_of_a_part_of_a_gpu() -> int:
    """What DeepSpeed tells ZeRO of it, beside NVIDIA's library that would be asked for the GPU of a number."""
    os.environ["CUDA_VISIBLE_DEVICES"] = "MIG-0f1e2d3c"
    cuda_accelerator.pynvml = mock.Mock()
    accelerator = cuda_accelerator.CUDA_Accelerator()
    join_world(threads=1)
    with mock.patch.multiple(accelerator, total_memory=lambda _: 10, memory_allocated=lambda _: 3):
        return accelerator.available_memory(0)


def sum_while_the_device_computes() -> tuple[list[float], bool]:
    """A sum over ranks that share a GPU, and whether that had still to do what it was asked for before."""
    torch.distributed.init_process_group("gloo")  # NCCL wants a GPU a rank
    world = World(torch.distributed.get_rank(), torch.distributed.get_world_size(), torch.device("cuda"))
    world.sum([0.0])
    computed = torch.cuda.Event()
    torch.cuda._sleep(2 * 10**10)  # clock cycles: some ten seconds
    computed.record()
    sums = world.sum([1.5])
    computes = not computed.query()
    leave_world()
    return sums, computes


def _with_full_disk(
    arguments: list[str], full: Callable[[Path], bool], main: Callable[[list[str]], int] = run_pretrain
) -> int:
    write_tensors = sharded_state.write_tensors

    def write_if_there_is_room(path: Path, tensors: Any, metadata: dict[str, str]) -> str:
        if full(path) and os.environ["RANK"] == str(int(os.environ["WORLD_SIZE"]) - 1):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        return write_tensors(path, tensors, metadata)

    sharded_state.write_tensors = write_if_there_is_room
    return main(arguments)


def run_pretrain_and_judge_its_loss_soon(arguments: list[str]) -> int:
    """By a mean over ten steps."""
    loss_trend._STEPS = 10
    return pretrain.main(arguments)


def run_pretrain_beside_slow_ranks(arguments: list[str]) -> int:
    """The trainer's main, which compares three steps; the first rank waits for its data, the last one is slow."""
    bottlenecks._STEPS = 3
    forward, read = engine.Engine._losses, session.StepReader.__next__

    def forward_slowly(self: engine.Engine, batch: Batch) -> Any:
        time.sleep(0.1)
        return forward(self, batch)

    def read_slowly(self: session.StepReader) -> list[Batch]:
        time.sleep(0.1)
        return read(self)

    if os.environ["RANK"] == "0":
        session.StepReader.__next__ = read_slowly  # type: ignore[method-assign]
    if os.environ["RANK"] == str(int(os.environ["WORLD_SIZE"]) - 1):
        engine.Engine._losses = forward_slowly  # type: ignore[method-assign]
    return pretrain.main(arguments)


class Lesson:
    """An engine and its batches, in a rank that was started for it: steps without the run around them."""

    def __init__(self, world: World, recipe: Recipe, shards: Path, deepspeed_config: Path, **engine: Any):
        phase = recipe.phases[0]
        self.recipe, self.world, self.step = recipe, world, 0
        config = resolve(read_deepspeed(deepspeed_config), recipe, phase, world.size)
        self.engine = Engine(recipe, config, world, **engine)
        self._stream = SampleStream(
            ShardDirectory(shards), "train", phase.sequence_length, seed=1, max_predictions=phase.max_predictions,
            masking=recipe.masking, data=recipe.data,
        )  # fmt: skip

    def train(self) -> dict[str, float]:
        """A step of two micro-batches of two samples on every rank."""
        places = [self.world.rank, self.world.rank + self.world.size]
        first = self.step * 4 * self.world.size
        batches = [self._stream.batch(np.arange(first + 2 * place, first + 2 * place + 2)) for place in places]
        totals: GlobalCounts = self.engine.count_step(batches, stop=False)
        metrics = self.engine.train_step(self.step, list(zip(places, batches, strict=True)), totals, 1e-2)
        self.step += 1
        return metrics

    def state(self) -> list[Tensor]:
        """A copy of all that this rank would save."""
        flats = self.engine.snapshot()
        return [tensor.clone() for flat in flats for tensor in flat.tensors.values()]


def train_into_what_is_no_number(
    recipe: Path, shards: Path, deepspeed_config: Path, cases: list[tuple[str, str]]
) -> list[tuple[bool, str]]:
    """After a good step the last rank's second loss, or one number of its gradient, is not finite.

    Args:
        recipe: of the model.
        shards: to read from.
        deepspeed_config: of the engine.
        cases: an optimizer, and what becomes of loss or gradient: "loss nan".

    Returns:
        For each case whether weights and moments kept their bits, and the message.
    """
    world = join_world(1)
    results = []
    for optimizer, poison in cases:
        lesson = Lesson(world, load_recipe(recipe, [f"optimizer.name={optimizer}"]), shards, deepspeed_config)
        lesson.train()
        before, moment_step = lesson.state(), lesson.engine.optimizer_step
        _poison(lesson.engine, poison, world)
        try:
            lesson.train()
            message = "no error"
        except NonFiniteError as error:
            message = str(error)
        same = all(torch.equal(*pair) for pair in zip(before, lesson.state(), strict=True))
        results.append((same and lesson.engine.optimizer_step == moment_step == 1, message))
        lesson.engine.close()
    return results


def _poison(engine: Engine, poison: str, world: World) -> None:
    if world.rank != world.size - 1:
        return
    where, value = poison.split()
    losses, turns = engine._losses, []

    def poisoned_losses(batch: Batch) -> Losses:
        found = losses(batch)
        turns.append(1)
        return found._replace(mlm_loss=found.mlm_loss * float(value)) if len(turns) == 2 else found

    def poisoned_gradient(gradient: Tensor) -> Tensor:
        return gradient.index_fill(0, torch.tensor([1]), float(value))

    if where == "loss":
        engine._losses = poisoned_losses  # type: ignore[method-assign]
    else:
        engine._engine.module.model.nsp.bias.register_hook(poisoned_gradient)

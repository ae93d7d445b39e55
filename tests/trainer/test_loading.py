"""Reading ahead: a killed process or a damaged shard is one error that says so, at the step that needs it."""

import gc
import multiprocessing
import multiprocessing.synchronize
import os
import resource
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from preprocessing.schema import ShardDirectory
from tests.conftest import ROOT
from tests.limits import too_many_open_files
from tests.trainer.shard_factory import write_shards
from trainer.data import DataConfig, SampleStream
from trainer.loading import DamagedShardError, LoaderError, NoProcessError, StepReader, Steps, _end, _start
from trainer.masking import MaskingConfig


@pytest.fixture(autouse=True)
def _looked_after_often(monkeypatch):
    """torch looks every five seconds whether a process that says nothing is still there."""
    monkeypatch.setattr(_MultiProcessingDataLoaderIter._try_get_data, "__defaults__", (0.2,))


def steps_of(path, **data):
    stream = SampleStream(
        ShardDirectory(path), "train", 32, seed=1, max_predictions=4, masking=MaskingConfig(), data=DataConfig(**data)
    )
    return Steps(stream, global_batch_size=4, micro_batch_size=2, rank=0, world=1)


def test_steps_may_begin_behind_other_samples_of_the_stream(shards):
    """As in a second phase of the same sequence length, which would else see again what the first one saw."""
    later = Steps(steps_of(shards).stream, 4, 2, rank=0, world=1, first=12)
    assert [batch.indices.tolist() for batch in later[0]] == [batch.indices.tolist() for batch in steps_of(shards)[3]]
    far = 1 << 32  # samples are counted in 64 bits
    step = Steps(later.stream, 4, 2, rank=0, world=1, first=far)[0]
    assert [batch.indices.tolist() for batch in step] == [[far + 1, far + 2], [far, far + 3]]


def test_a_killed_process_ends_the_reading_when_its_step_is_due_and_not_before(shards):
    before, others = signal.getsignal(signal.SIGCHLD), multiprocessing.active_children()
    loaded = StepReader(steps_of(shards), 0, 1000, workers=2)
    next(loaded)
    assert signal.getsignal(signal.SIGCHLD) is before
    victim = next(process for process in multiprocessing.active_children() if process not in others)
    victim.kill()
    victim.join()  # a handler of SIGCHLD would have raised by now
    message = rf"^loader process {victim.pid} was killed by SIGKILL, usually for lack of memory; lower data.workers or "
    with pytest.raises(LoaderError, match=message):
        list(loaded)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP])
def test_a_signal_to_all_processes_of_a_job_leaves_the_loader_to_its_trainer(shards, number):
    others = multiprocessing.active_children()  # of other tests
    loaded = StepReader(steps_of(shards), 0, 20, workers=2)
    next(loaded)
    for process in multiprocessing.active_children():
        if process not in others:
            os.kill(process.pid, number)
    assert len(list(loaded)) == 19
    assert set(multiprocessing.active_children()) <= set(others)


def test_a_node_that_lets_no_process_be_started_is_told_in_one_line(shards, monkeypatch):
    """And torch's iterator does not tell more when it is collected."""
    told = r"^\S+: no process can be started that reads ahead \(Too many open files\); [^\n]*data\.workers=0$"
    steps, more = steps_of(shards), list[object]()
    monkeypatch.setattr("sys.unraisablehook", more.append)
    with too_many_open_files(), pytest.raises(NoProcessError, match=told) as raised:
        StepReader(steps, 0, 4, workers=1)
    del raised
    gc.collect()
    assert not more


class Told:
    """A loader that notes which signals are held back while its processes start."""

    def __iter__(self):
        self.held_back = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        return iter(())


def test_requests_to_stop_wait_for_the_start_of_the_processes_and_no_longer(shards):
    """Before they ignore them these would end the processes; held back for good, the trainer would never hear them."""
    before, loader = signal.pthread_sigmask(signal.SIG_BLOCK, ()), Told()
    _start(loader)
    assert loader.held_back == before | {signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP}
    reader = StepReader(steps_of(shards), 0, 4, workers=1)
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before
    reader.close()


def read_and_wait(steps: Steps, begun: multiprocessing.synchronize.Event) -> None:
    reader = StepReader(steps, 0, 1000, workers=2)
    next(reader)
    begun.set()
    time.sleep(600)


def test_a_killed_trainer_leaves_no_process(shards):
    """They are deaf to SIGTERM, have steps larger than a pipe for nobody, and would hold the trainer's locks."""
    context = multiprocessing.get_context("fork")
    begun = context.Event()
    trainer = context.Process(target=read_and_wait, args=(Steps(steps_of(shards).stream, 4096, 4096, 0, 1), begun))
    trainer.start()
    assert begun.wait(300)
    processes = psutil.Process(trainer.pid).children()
    assert len(processes) == 2
    trainer.kill()
    trainer.join()
    _, left = psutil.wait_procs(processes, 30)
    for process in left:
        process.kill()
    assert not left


FAIL = """
import sys
from pathlib import Path
from tests.trainer.test_loading import steps_of
from trainer.loading import StepReader, Steps

reader = StepReader(Steps(steps_of(Path(sys.argv[1])).stream, 4096, 4096, 0, 1), 0, 1000, workers=2)
next(reader)
sys.exit(3)
"""


def test_a_trainer_that_fails_does_not_wait_for_its_loader(shards):
    """Whose processes have steps larger than a pipe for nobody, and no ear for Python's own request to end."""
    trainer = psutil.Popen([sys.executable, "-c", FAIL, str(shards)], cwd=ROOT)
    try:
        assert trainer.wait(300) == 3
    finally:
        left = [*trainer.children(), trainer] if trainer.is_running() else []
        for process in left:
            process.kill()


def test_a_shard_that_is_cut_while_it_is_read_is_named(tmp_path):
    """Touching what is no longer there kills the process that does; the trainer looks for the reason."""
    path = write_shards(tmp_path / "shards", train=(7,))
    loaded = StepReader(steps_of(path), 0, 1000, workers=1)
    next(loaded)
    os.truncate(path / "shard-00000-of-00001.arrow", 0)
    with pytest.raises(
        DamagedShardError,
        match=r"^\S*shard-00000-of-00001\.arrow: 0 bytes where the manifest says \d+; copy it again, or [^\n]*$",
    ):
        list(loaded)


@pytest.mark.parametrize("workers", [0, 1])
def test_what_a_process_finds_wrong_is_one_line_at_its_step(tmp_path, workers):
    path = write_shards(tmp_path / "shards")
    steps = steps_of(path, shuffle_bytes=1)
    last = steps.stream.locate(np.arange(54))[0][-1]
    (path / f"shard-{last:05d}-of-00003.arrow").unlink()
    loaded = StepReader(steps, 0, 14, workers)
    good = [next(loaded) for _ in range(8)]
    assert [batch.indices.tolist() for batch in good[7]] == [[29, 30], [28, 31]]
    with pytest.raises(
        DamagedShardError,
        match=r"^\S*: the manifest lists this shard but it is not there; copy it again, or [^\n]*$",
    ):
        list(loaded)


@pytest.mark.parametrize("workers", [0, 1])
def test_storage_that_fails_is_one_line_at_its_step_and_no_damage(tmp_path, workers):
    """A process that may open no more files finds nothing wrong with those that it can't open."""
    path = write_shards(tmp_path / "shards")
    others = multiprocessing.active_children()
    reader = StepReader(steps_of(path, shuffle_bytes=1), 0, 14, workers)
    next(reader)
    (process,) = {*multiprocessing.active_children()} - {*others} if workers else {multiprocessing.current_process()}
    before = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (3, before[1]))
    try:
        with pytest.raises(LoaderError, match=r"^\S+\.arrow: can't be read now \(Too many open files\); [^\n]*$"):
            list(reader)
    finally:
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, before)
    reader.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_steps_are_the_same_whether_they_are_read_ahead_or_not(shards, workers):
    """In a trainer each is unpacked while the device computes; asked for twice, or at the end, it changes nothing."""
    plain = [[batch.indices.tolist() for batch in step] for step in StepReader(steps_of(shards), 0, 6, workers=0)]
    reader, found = StepReader(steps_of(shards), 0, 6, workers), []
    for step in reader:
        found.append([batch.indices.tolist() for batch in step])
        reader.read_ahead()
        if len(found) % 2:
            reader.read_ahead()
    assert found == plain


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_that_nobody_foresaw_is_told_as_what_it_is(shards, monkeypatch, workers):
    monkeypatch.setattr(SampleStream, "batch", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        next(StepReader(steps_of(shards), 0, 4, workers))


def test_a_killed_process_is_told_however_its_reader_finds_its_pipe(shards):
    """Most often as a RuntimeError, that torch raises when it looks for dead processes."""
    others = multiprocessing.active_children()
    reader = StepReader(steps_of(shards), 0, 1000, workers=1)
    next(reader)
    for process in set(multiprocessing.active_children()) - set(others):
        process.kill()
    reader._take = lambda: os.write(-1, b"")
    with pytest.raises(LoaderError, match="was killed by SIGKILL"):
        next(reader)
    reader.close()


@pytest.mark.parametrize(("code", "words"), [
    (-signal.SIGKILL, "was killed by SIGKILL, usually for lack of memory; lower data.workers or add memory"),
    (-signal.SIGSEGV, "was killed by SIGSEGV"),
    (3, "ended with exit code 3"),
])  # fmt: skip
def test_how_a_process_ended(code, words):
    assert _end(code) == words


def test_without_processes_a_step_is_read_when_it_is_asked_for(shards, monkeypatch):
    """A CPU that trains has no time for more."""
    reader, read, batch = StepReader(steps_of(shards), 0, 4, workers=0), [], SampleStream.batch
    monkeypatch.setattr(SampleStream, "batch", lambda *given: read.append(given) or batch(*given))
    micro_batches = len(next(reader))
    reader.read_ahead()
    reader.close()
    assert len(read) == micro_batches


def test_a_process_that_was_killed_is_told_though_storage_fails_when_the_reason_is_looked_for(shards):
    others = multiprocessing.active_children()
    reader = StepReader(steps_of(shards), 0, 1000, workers=1)
    next(reader)
    for process in {*multiprocessing.active_children()} - {*others}:
        process.kill()
    with too_many_open_files(), pytest.raises(LoaderError, match="was killed by SIGKILL"):
        list(reader)
    reader.close()


def test_what_goes_wrong_ahead_is_said_when_the_step_is_due(tmp_path):
    path = write_shards(tmp_path / "shards", train=(7,))
    others = multiprocessing.active_children()
    reader = StepReader(steps_of(path), 0, 1000, workers=1)
    next(reader)
    os.truncate(path / "shard-00000-of-00001.arrow", 0)
    with pytest.raises(DamagedShardError, match=r": 0 bytes where the manifest says"):
        assert all(reader.read_ahead() is None for _ in reader)
    reader.close()
    assert set(multiprocessing.active_children()) <= set(others)


def test_steps_of_many_micro_batches_take_no_descriptors(shards):
    """Each has eight tensors; a limit of 1,024 descriptors would end a run of 48 micro-batches."""
    stream = steps_of(shards).stream
    reader = StepReader(Steps(stream, 64, 1, rank=0, world=1), 0, 4, workers=1)
    first = next(reader)
    before = len(list(Path("/proc/self/fd").iterdir()))
    second = next(reader)
    assert (len(first), len(second)) == (64, 64)
    assert len(list(Path("/proc/self/fd").iterdir())) <= before  # what other tests have left may go meanwhile
    reader.close()


def test_a_reader_that_is_closed_early_leaves_no_process_and_no_thread(shards):
    others, threads = multiprocessing.active_children(), {*threading.enumerate()}
    reader = StepReader(steps_of(shards), 0, 1000, workers=2)
    next(reader)
    reader.read_ahead()
    reader.close()
    assert set(multiprocessing.active_children()) <= set(others)
    assert not any(thread.name.startswith("loader") for thread in {*threading.enumerate()} - threads)
    assert list(reader) == []

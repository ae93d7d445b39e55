"""python -m cluster.doctor: on this machine as it is, with things broken, alone and as ranks."""

import errno
import json
import os
import re
import resource
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
import torch

from cluster.checkup import peers, storage
from cluster.checkup.findings import Finding, judge, table
from cluster.checkup.node import (
    check_compiler,
    check_gpus,
    check_limits,
    check_packages,
    check_python,
    check_shared_memory,
    check_threads,
)
from cluster.checkup.peers import UsageError, check_bandwidth, check_names, check_visibility, read_launch
from cluster.checkup.storage import check_space, check_writing
from cluster.doctor import main
from tests.cluster.doctor_tasks import (
    run_doctor,
    run_doctor_on_nodes_with_gpus,
    run_doctor_on_other_files,
    run_doctor_where_files_open_slowly,
    run_doctor_where_one_node_has_cuda,
    run_doctor_with_a_clock_ahead,
    run_doctor_with_a_wrong_sum,
    run_doctor_with_another_torch,
)
from tests.ranks import free_port, run_ranks
from tests.streams import FULL, nobody_reads, stdout_to

LAUNCHED = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    "SLURM_STEP_NUM_TASKS",
)


@pytest.fixture(autouse=True)
def _not_launched(monkeypatch):
    for name in LAUNCHED:
        monkeypatch.delenv(name, raising=False)


def state_of(findings, check):
    (found,) = {finding for finding in findings if finding.check == check}
    return found


def test_alone_on_this_machine(tmp_path, capsys):
    code = main(["--shared", str(tmp_path), "--need-gb", "0.001", "--json"])
    found = {row["check"]: row for row in json.loads(capsys.readouterr().out)}
    assert {"python", "packages", "gpus", "open files", "threads", "disk space", "writing"} <= found.keys()
    assert found["packages"]["state"] == "ok"
    assert found["disk space"]["state"] == "ok"
    assert "fsyncs a second" in found["writing"]["found"]
    assert "TFLOP/s, matrix products" in found["speed"]["found"]
    assert code == int(any(row["state"] == "wrong" for row in found.values()))
    assert not list(tmp_path.iterdir())


def test_a_process_with_low_limits_and_no_compiler(tmp_path):
    """The command itself, in a shell as some nodes have it."""
    environment = {"PATH": str(tmp_path), "HOME": str(tmp_path), "OMP_NUM_THREADS": "1000"}
    done = subprocess.run(
        [sys.executable, "-m", "cluster.doctor", "--json"], capture_output=True, text=True, env=environment,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (512, 512)),
    )  # fmt: skip
    found = {row["check"]: row for row in json.loads(done.stdout)}
    assert done.returncode == 1
    assert found["open files"]["state"] == "wrong"
    assert found["open files"]["found"] == "512"
    assert "ulimit -n" in found["open files"]["advice"]
    assert found["compiler"]["state"] == "warning"
    assert "no C compiler" in found["compiler"]["found"]
    assert found["threads"]["state"] == "warning"


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_who_reads_has_seen_enough_and_a_disk_that_is_full_is_a_failure(options, monkeypatch):
    """`| head`, which is gone here before anything is printed."""
    monkeypatch.setattr("cluster.doctor._check_alone", lambda *_: [Finding("memory", "ok", "enough")])
    with stdout_to(nobody_reads()):
        assert main(["--alone", *options]) == 0
    with stdout_to(FULL):
        assert main(["--alone", *options]) == 2


def test_the_compiler_that_is_meant_is_triton_s(monkeypatch, tmp_path):
    """One of C: a node has no need of C++."""
    monkeypatch.setenv("CC", "no-such-compiler")
    assert check_compiler().state == "warning"
    monkeypatch.delenv("CC")
    (tmp_path / "clang").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert f"{tmp_path}/clang" in check_compiler().found
    monkeypatch.setattr("sysconfig.get_paths", lambda: {"include": str(tmp_path)})
    assert (check_compiler().state, check_compiler().found) == ("warning", "no Python.h")


def test_open_files_are_judged_by_the_limit_in_force():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        states = []
        for limit in (1000, 2000, 4096):
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
            states.append(state_of(check_limits(), "open files").state)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert states == ["wrong", "warning", "ok"]


UNLIMITED = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("check", "limit", "adapters", "state", "words"),
    [
        ("open files", UNLIMITED, [], "ok", "unlimited"),
        ("locked memory", 64 << 10, [], "ok", "0 MiB, no InfiniBand"),
        ("locked memory", 64 << 20, ["mlx5_0", "mlx5_1"], "wrong", "64 MiB, adapters mlx5_0, mlx5_1"),
        ("locked memory", UNLIMITED, ["mlx5_0"], "ok", "unlimited, adapters mlx5_0"),
        ("stack", 8 << 20, [], "ok", "8 MiB"),
        ("stack", 512 << 10, [], "warning", "0 MiB"),
        ("stack", 8 << 30, [], "warning", "8,192 MiB"),
        ("stack", UNLIMITED, [], "ok", "unlimited"),
    ],
)
def test_limits_of_a_process(tmp_path, monkeypatch, check, limit, adapters, state, words):
    for adapter in adapters:
        (tmp_path / adapter).touch()
    monkeypatch.setattr("cluster.checkup.node._INFINIBAND", tmp_path if adapters else tmp_path / "none")
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    found = state_of(check_limits(), check)
    assert (found.state, found.found) == (state, words)
    if (check, state) == ("locked memory", "wrong"):
        assert all(word in found.advice for word in ("LimitMEMLOCK=infinity", "slurmd", "containerd"))


@pytest.mark.parametrize(
    ("adapters", "library", "state"),
    [(["mlx5_0"], None, "wrong"), (["mlx5_0"], "libc.so.6", "ok"), ([], None, None)],
)
def test_adapters_without_their_library_are_wrong(tmp_path, monkeypatch, adapters, library, state):
    """NCCL would go over TCP, at a tenth of the rate, and say so in its debug output alone."""
    for adapter in adapters:
        (tmp_path / adapter).touch()
    monkeypatch.setattr("cluster.checkup.node._INFINIBAND", tmp_path)
    monkeypatch.setattr("cluster.checkup.node._VERBS", library or "libnone.so.1")
    found = [finding for finding in check_limits() if finding.check == "rdma"]
    assert [finding.state for finding in found] == ([state] if state else [])
    if state == "wrong":
        assert found[0].found.startswith("no libnone.so.1 for mlx5_0 (libnone.so.1: cannot open shared object file")
        assert "libibverbs1" in found[0].advice


@pytest.mark.parametrize(
    ("has_gpus", "free", "state"),
    [(True, 100 << 20, "wrong"), (True, 500 << 20, "warning"), (True, 2 << 30, "ok"),
     (False, 64 << 20, "ok"), (False, 1 << 19, "wrong")],  # 64 MiB is all that containers have by themselves
)  # fmt: skip
def test_shared_memory_that_is_left(monkeypatch, has_gpus, free, state):
    monkeypatch.setattr("torch.cuda.is_available", lambda: has_gpus)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free, total=4 << 30))
    found = check_shared_memory()
    assert (found.state, found.found) == (state, f"{free / (1 << 30):.2f} of 4.00 GiB free in /dev/shm")


def test_a_node_without_shared_memory(monkeypatch, tmp_path):
    monkeypatch.setattr("cluster.checkup.node._SHARED_MEMORY", tmp_path / "none")
    found = check_shared_memory()
    assert (found.state, found.found) == ("wrong", f"no {tmp_path / 'none'} (No such file or directory)")


def test_a_python_that_the_project_does_not_take(monkeypatch):
    assert check_python().state == "ok"
    monkeypatch.setattr("platform.python_version", lambda: "3.9.1")
    assert check_python().state == "wrong"


@pytest.mark.parametrize(
    ("environment", "state", "words"),
    [
        ({}, "warning", "not set"),
        ({"OMP_NUM_THREADS": "0"}, "warning", "is 0"),
        ({"OMP_NUM_THREADS": "many"}, "warning", "many"),
        ({"OMP_NUM_THREADS": "1"}, "ok", "1 rank(s)"),
        ({"OMP_NUM_THREADS": "1", "LOCAL_WORLD_SIZE": "0"}, "ok", "1 rank(s)"),
        ({"OMP_NUM_THREADS": "100000"}, "warning", "100000"),
        ({"OMP_NUM_THREADS": "2", "LOCAL_WORLD_SIZE": "100000"}, "warning", "100000 rank(s)"),
        ({"OMP_NUM_THREADS": "2", "LOCAL_WORLD_SIZE": "4"}, "ok", "8 cores"),
        ({"OMP_NUM_THREADS": "3", "LOCAL_WORLD_SIZE": "4"}, "warning", "8 cores"),
    ],
)
def test_threads(environment, state, words, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    found = check_threads(environment)
    assert found.state == state
    assert words in found.found


@pytest.mark.parametrize(
    ("cpu", "memory", "words", "state"),
    [
        ("200000 100000", 2**30, "2 cores, 1 GiB", "warning"),
        ("50000 100000", 2**30, "1 cores, 1 GiB", "warning"),
        ("9900000 100000", "max", "8 cores, ", "ok"),
        ("max 100000", 2**30, "8 cores, 1 GiB", "ok"),
    ],
)
def test_a_container_has_no_more_than_its_limits(cpu, memory, words, state, monkeypatch, tmp_path):
    """Of a Pod the kernel shows all cores of the node, and shares out their time."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr("cluster.checkup.node._CONTAINER", tmp_path)
    (tmp_path / "cpu.max").write_text(f"{cpu}\n")
    (tmp_path / "memory.max").write_text(f"{memory}\n")
    found = check_threads({"OMP_NUM_THREADS": "8"})
    assert found.state == state
    assert words in found.found


def test_other_versions_than_the_projects(monkeypatch):
    monkeypatch.setattr(
        "cluster.checkup.node.requires",
        lambda _: ["torch>=99", "nothing-of-this-name", "numpy>=1", 'apache-beam==0; extra == "preprocess"'],
    )
    (found,) = check_packages()
    assert found.state == "wrong"
    assert "nothing-of-this-name is missing" in found.found
    assert ">=99" in found.found
    assert "numpy" not in found.found
    assert "beam" not in found.found


def test_a_project_that_is_not_installed_is_told_once(monkeypatch):
    """As where its folder alone is on PYTHONPATH: then nothing says which versions it wants."""

    def missing(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr("cluster.checkup.node.requires", missing)
    monkeypatch.setattr("cluster.checkup.node.metadata", missing)
    assert check_python().state == "ok"
    (found,) = check_packages()
    assert (found.state, found.found) == ("wrong", "bert-pretraining is not installed")


# What nvidia-smi prints: name, driver, memory, memory in use, ECC errors, slowed down, temperature.
H200 = "NVIDIA H200, 570.86.15, 143771, 0, 0, Not Active, 31"


@pytest.fixture
def nvidia_smi(tmp_path, monkeypatch):
    """Puts a shell script in the place of nvidia-smi."""

    def write(script):
        program = tmp_path / "nvidia-smi"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)

    return write


@pytest.mark.parametrize(
    ("script", "check", "state", "words"),
    [
        (f"echo '{H200}'; echo '{H200}'", "gpus", "wrong", "2 x NVIDIA H200, 140 GiB, PyTorch sees 0"),
        (f"echo '{H200}'", "gpu health", "ok", "at most 31 C"),
        (f"echo '{H200}'; echo '{H200.replace(' 0, 0,', ' 0, 3,')}'", "gpu health", "wrong", "GPU 1 has memory errors"),
        (f"echo '{H200.replace('Not Active', 'Active')}'", "gpu health", "warning", "GPU 0 is slowed down"),
        (f"echo '{H200.replace(' 0, 0,', ' 90000, 0,')}'", "gpu health", "warning", "memory in use"),
        (f"echo '{H200.replace(' 0, Not', ' [N/A], Not')}'", "gpu health", "ok", "no errors"),
        ("echo 'NVIDIA-SMI has failed: no driver'; exit 9", "gpus", "wrong", "no driver"),
        ("echo 'NVIDIA-SMI has failed: no driver' >&2; exit 9", "gpus", "wrong", "fails (NVIDIA-SMI has failed: no"),
        ("exit 3", "gpus", "wrong", "nvidia-smi fails (exit code 3)"),
        ("echo 'No devices were found'; exit 6", "gpus", "wrong", "ask for them (--gpus-per-node"),
        (f"echo '{H200.replace(' 0, 0,', ' 600, 0,')}'", "gpu health", "ok", "no errors"),
        ("echo 'No devices were found'", "gpus", "wrong", "nvidia-smi says 'No devices were found'"),
        (f"echo '{H200}'; echo 'Unable to talk to GPU 1'", "gpus", "wrong", "says 'Unable to talk to GPU 1'"),
    ],
)
def test_what_nvidia_smi_says(script, check, state, words, nvidia_smi, monkeypatch):
    nvidia_smi(script)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    found = state_of(check_gpus(), check)
    assert found.state == state
    assert words in f"{found.found}. {found.advice}"


def test_an_nvidia_smi_that_can_not_be_started(nvidia_smi, tmp_path):
    nvidia_smi("")
    (tmp_path / "nvidia-smi").write_text("#!/nowhere/sh\n")
    (found,) = check_gpus()
    assert (found.state, found.found[:17], found.advice[:10]) == ("wrong", "nvidia-smi fails ", "The driver")


H100 = "NVIDIA H100, 570.86.15, 81559, 0, 0, Not Active, 31"


@pytest.mark.parametrize(
    ("gpus", "visible", "chosen", "state", "words"),
    [
        ([H200, H200], 2, None, "ok", "2 x NVIDIA H200, 140 GiB"),
        ([H200, H200], 1, None, "warning", "2 x NVIDIA H200, 140 GiB, PyTorch sees 1"),
        ([H200, H200], 1, "0", "ok", "2 x NVIDIA H200, 140 GiB, PyTorch sees 1"),
        ([H200, H200], 1, "0,1", "warning", "2 x NVIDIA H200, 140 GiB, PyTorch sees 1"),  # as SLURM sets it
        ([H200, H200], 2, "0,1,2,3", "ok", "2 x NVIDIA H200, 140 GiB"),  # for nodes with more of them too
        ([H200, H100], 2, None, "warning", "2 x NVIDIA H100, 80 GiB and NVIDIA H200, 140 GiB"),
        ([], 1, None, "ok", "1 by PyTorch, no nvidia-smi"),
        ([], 0, None, "warning", "none"),
    ],
)
def test_gpus_that_pytorch_sees(gpus, visible, chosen, state, words, nvidia_smi, monkeypatch):
    if gpus:
        nvidia_smi("; ".join(f"echo '{gpu}'" for gpu in gpus))
    else:
        monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr("torch.cuda.is_available", lambda: visible > 0)
    monkeypatch.setattr("torch.cuda.device_count", lambda: visible)
    monkeypatch.setattr("torch.cuda.nccl.version", lambda: (2, 29, 7))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if chosen:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", chosen)
    found = state_of(check_gpus(), "gpus")
    assert (found.state, found.found) == (state, words)


@pytest.mark.parametrize("error", [
    RuntimeError("Error 802: system not yet initialized\nmore"), AssertionError("Torch not compiled with CUDA enabled"),
])  # fmt: skip
def test_why_pytorch_sees_no_gpu(error, nvidia_smi, monkeypatch):
    nvidia_smi(f"echo '{H200}'")
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("torch.cuda.init", mock.Mock(side_effect=error))
    found = state_of(check_gpus(), "gpus")
    assert found.state == "wrong"
    assert found.found == f"1 x NVIDIA H200, 140 GiB, PyTorch sees 0 ({str(error).partition(chr(10))[0]})"


@pytest.mark.parametrize(
    ("nccl", "machine", "state"),
    [((2, 28, 9), "aarch64", "warning"), ((2, 29, 7), "aarch64", "ok"), ((2, 28, 9), "x86_64", "ok")],
)
def test_an_nccl_that_hangs_on_arm(nccl, machine, state, nvidia_smi, monkeypatch):
    nvidia_smi(f"echo '{H200}'")
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    monkeypatch.setattr("torch.cuda.nccl.version", lambda: nccl)
    monkeypatch.setattr("platform.machine", lambda: machine)
    found = state_of(check_gpus(), "cuda")
    assert found.state == state
    assert found.found.startswith("driver 570.86.15, CUDA ")
    assert found.found.endswith(f", NCCL {'.'.join(map(str, nccl))}")


def test_a_directory_that_is_not_there(tmp_path):
    missing = tmp_path / "not mounted"
    for found in (check_space(missing, 1e9), check_writing(missing)):
        assert found.state == "wrong"
        assert found.advice == "Make it, or mount the shared file system on this node."


def test_a_read_only_directory(tmp_path):
    directory = Path("/sys") if os.geteuid() == 0 else tmp_path  # root writes wherever the kernel lets it
    if os.geteuid():
        tmp_path.chmod(0o500)
    found = check_writing(directory)
    assert found.state == "wrong"
    assert found.advice


def test_a_file_instead_of_a_directory(tmp_path):
    (tmp_path / "file").touch()
    assert check_writing(tmp_path / "file").state == "wrong"


@pytest.fixture
def full_disk(tmp_path):
    """A file system of its own without a free byte."""
    mount = shutil.which("mount")
    command = [str(mount), "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(tmp_path)]
    if mount is None or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("needs the right to mount a small file system")
    (tmp_path / "filler").write_bytes(b"\0" * 65536)
    yield tmp_path
    subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_full_disk(full_disk):
    assert check_space(full_disk, 1e9).state == "wrong"
    found = check_writing(full_disk)
    assert found.state == "wrong"
    assert "full" in found.advice
    assert [path.name for path in full_disk.iterdir()] == ["filler"]


def test_nodes_do_not_write_one_file_whatever_they_are_called(tmp_path, monkeypatch):
    write, written = storage.write_synced, []
    monkeypatch.setattr(storage, "write_synced", lambda path, content: (written.append(path), write(path, content)))
    for node in ("node1.east", "node1.west"):
        monkeypatch.setattr("os.uname", lambda node=node: SimpleNamespace(nodename=node))
        assert check_writing(tmp_path).found.startswith("write, fsync and rename work")
    assert len(set(written)) == 2
    assert not list(tmp_path.iterdir())


def test_little_room_is_a_warning_and_hardly_any_is_wrong(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1234.5e9, total=2e12))
    found = [check_space(tmp_path, needed) for needed in (1234.5e9, 2e12, 12.345e12, 13e12)]
    assert [finding.state for finding in found] == ["ok", "warning", "warning", "wrong"]
    assert {finding.found for finding in found} == {f"1,234.5 GB free of 2,000.0 in {tmp_path}"}
    assert found[1].advice.startswith("A run needs some 2,000 GB of checkpoints and exports: make room")


def test_the_room_that_is_needed_is_the_user_s_word(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("cluster.doctor.check_node", lambda _: [])
    assert main(["--shared", str(tmp_path), "--need-gb", "1e9"]) == 1
    assert "wrong, disk space: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("seconds", "blocks", "rate", "state"), [(0.01, 50, "100", "ok"), (0.1, 20, "10", "ok"), (0.5, 4, "2", "warning")]
)
def test_a_disk_on_which_files_take_long_to_arrive(tmp_path, monkeypatch, seconds, blocks, rate, state):
    """Fifty blocks, or as many as two seconds are enough for."""
    arrived = []
    monkeypatch.setattr(os, "fsync", arrived.append)
    monkeypatch.setattr(storage, "time", SimpleNamespace(monotonic=lambda: 1000 + seconds * len(arrived)))
    found = check_writing(tmp_path)
    assert (found.state, len(arrived)) == (state, 1 + blocks)  # the first one is of the file that is renamed
    assert found.found == f"write, fsync and rename work in {tmp_path}; {rate} fsyncs a second"


def test_a_file_system_that_shows_the_old_file_after_a_rename(tmp_path, monkeypatch):
    monkeypatch.setattr(Path, "replace", lambda *_: None)
    found = check_writing(tmp_path)
    assert (found.state, found.found) == ("wrong", f"{tmp_path}: a renamed file is still the old one")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("call", ["rename", "open"])
def test_a_mount_of_object_storage_that_renames_no_folder_or_adds_to_no_file(tmp_path, monkeypatch, call):
    """A run would begin there, and find that out at its first checkpoint."""
    work = getattr(Path, call)

    def refuse(path, *arguments, **named):
        if call == "rename" or arguments == ("ab",):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return work(path, *arguments, **named)

    monkeypatch.setattr(Path, call, refuse)
    found = check_writing(tmp_path)
    assert found.state == "wrong"
    assert found.found == f"{tmp_path}: no file can be added to, or no folder renamed (Too many open files)"
    assert not list(tmp_path.iterdir())


def test_names():
    (found,) = check_names({"MASTER_ADDR": "localhost", "MASTER_PORT": "1234"})
    assert found.state == "ok"
    for address in ("no-such-node.invalid", "a..b", "x" * 70):  # the last two are no names
        (found,) = check_names({"MASTER_ADDR": address, "MASTER_PORT": "1234"})
        assert found.state == "wrong"
        assert "does not resolve" in found.found


def test_a_name_that_takes_long_to_look_up(monkeypatch):
    seconds = [0.0]

    def look_up(*_):
        seconds[0] += 3
        return [(2, 1, 6, "", ("10.0.0.7", 1234))]

    monkeypatch.setattr(peers, "time", SimpleNamespace(monotonic=lambda: seconds[0]))
    monkeypatch.setattr("socket.getaddrinfo", look_up)
    (found,) = check_names({"MASTER_ADDR": "node3", "MASTER_PORT": "1234"})
    assert (found.state, found.found) == ("warning", "MASTER_ADDR node3 is 10.0.0.7, after 3 s")


RANK = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}


@pytest.mark.parametrize(
    "environment",
    [
        {"RANK": "0"},
        {"WORLD_SIZE": "2"},
        {**RANK, "RANK": "2"},
        {**RANK, "MASTER_PORT": "http"},
        {**RANK, "MASTER_PORT": "99999999"},
        {**RANK, "MASTER_PORT": "0"},
        {**RANK, "MASTER_ADDR": ""},
    ],
)
def test_half_a_launch_is_a_mistake_in_usage(environment, monkeypatch, capsys):
    with pytest.raises(UsageError):
        read_launch(environment)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert main([]) == 2
    assert capsys.readouterr().err.startswith("error: ")


def test_room_that_is_needed_is_needed_in_a_folder(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["--need-gb", "700"])
    assert stopped.value.code == 2
    assert "--need-gb: in which folder? name it by --shared" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "value"), [("--need-gb", "0"), ("--need-gb", "nan"), ("--patience", "inf"), ("--patience", "abc")]
)
def test_options_that_make_no_sense_exit_with_2(option, value, capsys):
    with pytest.raises(SystemExit) as stopped:
        main([option, value])
    assert stopped.value.code == 2
    assert f"argument {option}: '{value}' is not a number above 0" in capsys.readouterr().err


def test_launch_of_torchrun_and_of_nobody():
    assert read_launch({}) is None
    assert read_launch({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}) is None  # a batch script, which is no step
    shell = {"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_STEP_ID": "4294967290", "SLURM_STEP_NUM_TASKS": "1"}
    assert read_launch(shell) is None  # salloc's, a step of one
    assert read_launch({**RANK, "RANK": "0", "WORLD_SIZE": "1"}) is None  # no network to look at
    launch = read_launch(RANK)
    assert launch == {**RANK, "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}


def test_a_launch_of_slurm_that_lacks_a_variable_is_a_mistake(tmp_path, monkeypatch):
    """And none of the node's, which exit code 1 tells."""
    with pytest.raises(UsageError, match=r"SLURM's variables are not those of a task \('SLURM_PROCID'\); start"):
        read_launch({"SLURM_STEP_NUM_TASKS": "2", "SLURM_JOB_ID": "1"})
    (tmp_path / "scontrol").write_text("#!/bin/sh\n")
    (tmp_path / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    task = {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NUM_NODES": "1"}
    with pytest.raises(UsageError, match=r"^scontrol names no node for ''; set MASTER_ADDR"):
        read_launch({**task, "SLURM_STEP_NODELIST": ""})


def test_launch_of_slurm(tmp_path, monkeypatch):
    (tmp_path / "scontrol").write_text('#!/bin/sh\n[ "$3" = "node[3-4]" ] && echo node3 && echo node4\n')
    (tmp_path / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    slurm = {
        "SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_NUM_NODES": "2",
        "SLURM_STEP_ID": "2", "SLURM_JOB_ID": "30007", "SLURM_STEP_NODELIST": "node[3-4]",
        "SLURM_JOB_NODELIST": "node[1-9]",
    }  # fmt: skip
    assert read_launch(slurm) == {
        "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "node3",
        "MASTER_PORT": "20201",
    }  # fmt: skip
    given = {"MASTER_ADDR": "10.0.0.7", "MASTER_PORT": "1234", "SLURM_STEP_NODELIST": "node9"}
    found = read_launch({**slurm, **given})
    assert found
    assert (found["MASTER_ADDR"], found["MASTER_PORT"]) == ("10.0.0.7", "1234")
    found = read_launch({**slurm, "SLURM_STEP_NODELIST": "", "SLURM_JOB_NODELIST": "node[3-4]", "MASTER_PORT": "65535"})
    assert found
    assert (found["MASTER_ADDR"], found["MASTER_PORT"]) == ("node3", "65535")
    with pytest.raises(UsageError, match="MASTER_PORT 65536 must be from 1 to 65535"):
        read_launch({**slurm, "MASTER_PORT": "65536"})
    for elsewhere in ("node9", "no scontrol"):
        if elsewhere == "no scontrol":
            monkeypatch.setenv("PATH", "/nowhere")
        with pytest.raises(UsageError, match=f"scontrol doesn't say which nodes '{elsewhere}' are .*; set MASTER_ADDR"):
            read_launch({**slurm, "SLURM_STEP_NODELIST": elsewhere})
        found = read_launch({**slurm, "SLURM_STEP_NODELIST": elsewhere, "MASTER_ADDR": "10.0.0.7"})
        assert found
        assert (found["MASTER_ADDR"], found["MASTER_PORT"]) == ("10.0.0.7", "20201")


def test_two_ranks(tmp_path):
    (code, printed), (other_code, nothing) = run_ranks(
        2, run_doctor, ["--shared", str(tmp_path), "--need-gb", "0.001"], log=tmp_path / "log"
    )
    assert code == other_code == int("wrong, " in printed)
    for words in (
        "all ranks have the same code",
        "over gloo, 2 ranks on 1 host",
        "apart at most",
        "TFLOP/s, matrix products in",
        "all nodes see each other's files",
    ):
        assert words in printed
    assert nothing == ""
    assert [path.name for path in tmp_path.iterdir()] == ["log"]


def test_a_wrong_sum_is_told_whichever_rank_gets_it(tmp_path):
    (code, printed), _ = run_ranks(2, run_doctor_with_a_wrong_sum, [], log=tmp_path / "log")
    assert code == 1
    assert "a WRONG sum" in printed


def stand_in_peers(hosts):
    """The first of ranks, all of which have what it has."""
    return SimpleNamespace(
        rank=0, size=len(hosts), hosts=hosts, one_host=len(set(hosts)) == 1, gather=lambda own: [own] * len(hosts)
    )


@pytest.mark.parametrize(("seconds", "speed", "state"), [(0.125, "0.20", "ok"), (0.5, "0.05", "warning")])
def test_the_network_s_speed_is_counted_as_nccl_tests_do_of_the_best_round_and_slow_is_warned_of(
    monkeypatch, seconds, speed, state
):
    """Of 16 MiB each of four ranks sends and receives three quarters twice."""
    clock = iter([0, 9, 9, 9 + seconds, *range(10, 100)])
    monkeypatch.setattr("cluster.checkup.peers.time", SimpleNamespace(monotonic=lambda: next(clock)))
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda values: values.fill_(4))
    monkeypatch.setattr(torch.distributed, "barrier", lambda: None)
    (found,) = check_bandwidth(stand_in_peers(["a", "a", "b", "b"]), "gloo")
    assert (found.state, found.found) == (state, f"{speed} GB/s over gloo, 4 ranks on 2 hosts")


@pytest.mark.parametrize(
    ("late", "state", "words"),
    [(0, "ok", "see each other's files"), (3, "warning", "see each other's files, after 3 s"),
     (60, "wrong", "files of a are not seen")],
)  # fmt: skip
def test_files_that_are_seen_late_are_warned_of(tmp_path, monkeypatch, late, state, words):
    now = [0.0]
    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=lambda _: now.append(now.pop() + 1))
    monkeypatch.setattr("cluster.checkup.peers.time", clock)
    monkeypatch.setattr("cluster.checkup.peers._is_there", lambda *_: now[0] >= late)
    found = check_visibility(stand_in_peers(["a"]), tmp_path)
    assert (found.state, found.found.endswith(words)) == (state, True)
    assert not list(tmp_path.iterdir())


def test_libraries_that_differ(tmp_path):
    (code, printed), _ = run_ranks(2, run_doctor_with_another_torch, [], log=tmp_path / "log")
    assert code == 1
    assert re.search(r"^wrong, same versions: \S+: torch 2\.10\.0, not 2\.\d+", printed, re.MULTILINE)


def test_a_node_whose_cuda_is_broken_is_named_and_no_rank_waits_for_it(tmp_path):
    (code, printed), _ = run_ranks(2, run_doctor_where_one_node_has_cuda, [], log=tmp_path / "log")
    assert code == 1
    assert re.search("^wrong, same devices: no CUDA on node2, but on other nodes", printed, re.MULTILINE)
    assert "all-reduce" not in printed


@pytest.mark.parametrize(("seconds", "state"), [(5, "warning"), (-90, "wrong")])
def test_clocks_that_differ(seconds, state, tmp_path):
    results = run_ranks(2, run_doctor_with_a_clock_ahead, ["--json"], seconds, log=tmp_path / "log")
    rows = json.loads(results[0][1])
    clocks = next(row for row in rows if row["check"] == "clocks")
    assert clocks["state"] == state
    assert float(clocks["found"].split()[0]) == pytest.approx(abs(seconds), abs=0.5)
    assert [code for code, _ in results] == [int(any(row["state"] == "wrong" for row in rows))] * 2


def test_directories_that_are_not_one(tmp_path):
    directories = [tmp_path / "here", tmp_path / "there"]
    for directory in directories:
        directory.mkdir()
    results = run_ranks(2, run_doctor_on_other_files, ["--json"], [str(d) for d in directories], log=tmp_path / "log")
    rows = [row for row in json.loads(results[0][1]) if row["check"] == "shared files"]
    assert [code for code, _ in results] == [1, 1]
    assert {(row["host"], row["state"]) for row in rows} == {("node1", "wrong"), ("node2", "wrong")}
    assert "files of node2 are not seen" in rows[0]["found"]
    assert not any(any(directory.iterdir()) for directory in directories)


@pytest.mark.parametrize(
    ("gpus", "states", "told"),
    [
        (["8 x H100", "8 x H100", "7 x H100"], ["ok", "ok", "warning"], "7 x H100, and 8 x H100 elsewhere"),
        (["8 x A100", "8 x H100", "8 x H100"], ["warning", "ok", "ok"], "8 x A100, and 8 x H100 elsewhere"),
        (["8 x H100", "8 x H100", "8 x H100"], ["ok", "ok", "ok"], "8 x H100"),
    ],
)
def test_a_node_whose_gpus_are_not_those_of_the_others(tmp_path, gpus, states, told):
    """By itself each of them is well; a GPU that fell off the bus is not there to be slow either."""
    results = run_ranks(3, run_doctor_on_nodes_with_gpus, ["--json"], gpus, log=tmp_path / "log")
    rows = [row for row in json.loads(results[0][1]) if row["check"] == "gpus"]
    assert [(row["host"], row["state"]) for row in rows] == list(zip(("node1", "node2", "node3"), states, strict=True))
    assert told in [row["found"] for row in rows]


def test_how_long_a_look_at_many_files_takes_is_not_how_late_they_are_seen(tmp_path):
    arguments = ["--json", "--shared", str(tmp_path)]
    results = run_ranks(2, run_doctor_where_files_open_slowly, arguments, log=tmp_path / "log")
    rows = [row for row in json.loads(results[0][1]) if row["check"] == "shared files"]
    assert {(row["host"], row["state"]) for row in rows} == {("node1", "ok"), ("node2", "ok")}


def test_one_rank_cannot_write(tmp_path):
    directories = [str(tmp_path), str(tmp_path / "not mounted")]
    results = run_ranks(2, run_doctor_on_other_files, ["--json"], directories, log=tmp_path / "log")
    rows = [row for row in json.loads(results[0][1]) if row["check"] == "shared files"]
    assert {(row["host"], row["state"]) for row in rows} == {("node1", "ok"), ("node2", "wrong")}


def test_a_rank_that_never_comes(monkeypatch, capsys):
    launch = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    # The last two are what the doctor sets.
    for name, value in {**launch, "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}.items():
        monkeypatch.setenv(name, value)
    assert main(["--patience", "2"]) == 1
    assert "2 ranks don't come together" in capsys.readouterr().out


def test_a_meeting_place_that_does_not_resolve_is_not_waited_for(monkeypatch, capsys):
    launch = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "no-such-node.invalid", "MASTER_PORT": "1234"}
    for name, value in launch.items():
        monkeypatch.setenv(name, value)
    assert main([]) == 1
    assert "does not resolve" in (told := capsys.readouterr().out)
    assert "don't come together" not in told


def test_alone_a_node_is_checked_whatever_a_launcher_has_set(monkeypatch, capsys):
    monkeypatch.setenv("RANK", "0")
    assert main(["--alone"]) in (0, 1)
    assert "MASTER_ADDR" not in capsys.readouterr().out


@pytest.mark.parametrize(("state", "code"), [("ok", 0), ("warning", 0), ("wrong", 1)])
def test_only_what_is_wrong_fails_and_all_is_well_where_all_is(monkeypatch, capsys, state, code):
    found = [judge("stack", "1 MiB", "Set more.", wrong=state == "wrong", warning=state == "warning")]
    monkeypatch.setattr("cluster.doctor.check_node", lambda _: found)
    assert main([]) == code
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == ("All is well." if state == "ok" else f"{state}, stack: 1 MiB. Set more.")
    assert bool(found[0].advice) == (state != "ok")


def test_findings_that_find_no_room_are_a_failure(monkeypatch):
    monkeypatch.setattr("cluster.doctor.check_node", lambda _: [])
    monkeypatch.setattr("cluster.doctor.print_result", lambda _: 2)
    assert main([]) == main(["--json"]) == 2


def test_equal_findings_of_several_hosts_are_one_row():
    fine, bad = Finding("stack", "ok", "8 MiB"), Finding("stack", "wrong", "1 MiB", "Set more.")
    placed = [*((f"node{i}", fine) for i in range(6)), ("node6", bad), ("node6", bad)]
    lines = list(table(placed))
    assert "node0, node1, node2, node3 and 2 more" in lines[0]
    assert lines[1:] == ["wrong, stack: 1 MiB. Set more."]
    assert "all 2" in next(table([(host, fine) for host in ("a", "b")]))
    assert "| node1 |" in next(table([("node1", fine)]))


def test_checks_stand_together_and_what_is_wrong_comes_before_warnings():
    little, none = Finding("stack", "warning", "1 MiB", "Set more."), Finding("gpus", "wrong", "none", "Ask for some.")
    shown, *advice = table([("a", Finding("stack", "ok", "8 MiB")), ("a", none), ("b", little)])
    assert [line.split()[1] for line in shown.splitlines()[2:]] == ["stack", "stack", "gpus"]
    assert advice == ["wrong, gpus: none. Ask for some.", "warning, stack: 1 MiB. Set more."]

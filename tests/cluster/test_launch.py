"""Launching as a user types it: what is written, what reaches the programs, and what is refused before anything starts.

SLURM's commands are stand-ins here that write down how they were called; test_slurm.py has the real ones.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import tomli_w
import yaml

from cluster.checks import check_reads, writing
from cluster.k8s import launch as launch_on_kubernetes
from cluster.k8s.launch import STAGING, _object_name
from cluster.launch import main
from cluster.local.settings import LocalSettings
from cluster.programs import CORPUS, READERS, Program, read_chain
from cluster.settings import load_settings
from cluster.slurm import visible
from cluster.slurm.settings import Container
from cluster.snapshot import PACKAGES, take_snapshot
from eval.results import RESULTS, write_results
from preprocessing.sources.registry import SOURCES
from preprocessing.storage_errors import UnavailableError
from tests.conftest import ROOT
from tests.eval.evaluations import results
from tests.failing import LISTING, REASON, fail_at, fail_on
from tests.trainer.conftest import TINY
from tests.trainer.shard_factory import write_shards
from trainer.arguments import parse
from trainer.checkpoint import Learner, RunState, begin_checkpoint, commit_checkpoint
from trainer.lineage import code_version, uncommitted_changes
from trainer.run_directory import RunDirectory
from trainer.settings import ConfigError

SINFO = "gpu*|2-00:00:00|4|gpu:h100:8(S:0-1)\ncpu|infinite|10|(null)\nshort|1:00:00|2|gpu:2"
SETTINGS = """
[slurm]
shared = ["HERE", "PREFIX"]

[slurm.pretrain]
nodes = 2
gpus_per_node = 0
cpus_per_task = 3

[slurm.eval]
gpus_per_node = 0
"""
STAND_IN = """#!PYTHON -I
import json, os, sys
names = ("PATH", "PYTHONPATH", "PYTHONSAFEPATH", "PYTHONUNBUFFERED", "PYTHONNOUSERSITE", "OMP_NUM_THREADS",
         "DS_ACCELERATOR", "MASTER_ADDR", "MASTER_PORT", "HOSTILE",
         "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES")
seen = {name: os.environ.get(name) for name in names} | {"folder": os.getcwd()}
with open("CALLS", "a") as calls:
    print(json.dumps([os.path.basename(sys.argv[0]), sys.argv[1:], seen]), file=calls)
"""
HOSTILE = """it's a $(touch pwned) "x" `touch pwned` 100% \\ ;&| --x"""
LONG = "a" * 300  # no file system has such a name: looking for it is an error
MLM = ("--tasks", "mlm")
TEXTS = ("--books", "s3://bucket/*.txt", "--train-vocab", "500")


def chain_of(shards="made", run="run", results="results", preprocess=(), pretrain=(), evaluation=()):
    """Settings for all three programs, by what they write and further words."""
    arguments = {
        "preprocess": [*TEXTS, "--output", shards, *preprocess],
        "pretrain": ["--config", "tiny.toml", "--output", run, *pretrain],
        "eval": [*MLM, "--output", results, *evaluation],
    }
    return [f"{name}.arguments={json.dumps(words)}" for name, words in arguments.items()]


# What SC2016 warns of, and what we want: nothing in single quotes is expanded.
SHELLCHECK = [str(Path(sys.executable).with_name("shellcheck")), "--exclude=SC2016"]


@pytest.fixture(autouse=True, scope="module")
def code_looked_up_once():
    """Each snapshot tells which code it is of, for which git is asked five times; here it stays the same."""
    with (
        mock.patch("cluster.snapshot.code_version", return_value=code_version()),
        mock.patch("cluster.snapshot.uncommitted_changes", return_value=uncommitted_changes()),
    ):
        yield


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    """The current folder, with a book, shards, a recipe and settings; everything below it counts as shared."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "book.txt").touch()
    write_shards(tmp_path / "shards")
    (tmp_path / "tiny.toml").write_text(TINY.replace("global_batch_size = 8", "global_batch_size = 16"))
    (tmp_path / "ds_config.json").write_text((ROOT / "ds_config.json").read_text())
    (tmp_path / "cluster.toml").write_text(SETTINGS.replace("HERE", str(tmp_path)).replace("PREFIX", sys.prefix))
    return tmp_path


@pytest.fixture
def slurm(here, monkeypatch):
    """Stand-ins for SLURM's commands; each call is kept with its arguments and what a job sees of its environment."""
    folder, calls = here / "bin", here / "calls"
    folder.mkdir()
    calls.touch()

    def stand_in(name: str, body: str = "") -> None:
        program = STAND_IN.replace("PYTHON", sys.executable, 1).replace("CALLS", str(calls)) + body + "\n"
        (folder / name).write_text(program)
        (folder / name).chmod(0o755)

    stand_in("sinfo", f"print({SINFO!r})")
    stand_in("sbatch", f"print(sum(1 for line in open({str(calls)!r}) if '\"sbatch\"' in line) + 40)")
    stand_in("srun")
    stand_in("scontrol", "print('node7\\nnode8') if sys.argv[1] == 'show' else None")
    stand_in("squeue", "print('RUNNING None')")
    stand_in("scancel")
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    slurm.stand_in, slurm.calls = stand_in, lambda: [json.loads(line) for line in calls.read_text().splitlines()]
    return slurm


@pytest.fixture
def pods(monkeypatch) -> None:
    """A volume of Pods may be seen here, below /tmp; Pods are of this user's group, and there is no kubectl."""
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr("cluster.k8s.settings._TAKEN", ())
    monkeypatch.setattr("cluster.k8s.launch.POD_GROUP", os.getgid())


def launch(*arguments: object) -> int:
    """Pretraining with the files of ``here``."""
    return main(["pretrain", "--on", "slurm", "--settings", "cluster.toml", *map(str, arguments), "--",
                 "--config", "tiny.toml", "--shards", "shards", "--output", "runs/tiny", "train.seed=3"])  # fmt: skip


def run_job(file: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """A job file, as SLURM would run it on the first node."""
    environment = {**os.environ, "SLURM_JOB_ID": "12", "SLURM_JOB_NODELIST": "node[7-8]", **variables}
    return subprocess.run(["bash", file], env=environment, capture_output=True, text=True, timeout=60)


def directives(file: Path) -> list[str]:
    return [line.removeprefix("#SBATCH ") for line in file.read_text().splitlines() if line.startswith("#SBATCH")]


def check_shell(*files: Path) -> None:
    for file in files:
        subprocess.run(["bash", "-n", file], check=True)
    done = subprocess.run([*SHELLCHECK, *files], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


# ---- what is written ------------------------------------------------------------------------------------------------


def test_the_run_directory_holds_all_that_the_job_needs_and_sbatch_gets_it(here, slurm, capsys):
    job = {"time": "1-00:00:00", "memory": "500G", "gpus_per_node": 4, "gpu_type": "h100"}
    settings = [f"slurm.pretrain.{name}={value}" for name, value in job.items()]
    assert launch(*settings, "slurm.account=lang", "slurm.partition=gpu", 'slurm.options=["--exclusive"]') == 0
    job = here / "runs" / "tiny" / "job"
    (snapshot,) = job.glob("snapshot-*")
    assert "seed = 3" in (snapshot / "config.toml").read_text()
    assert (snapshot / "ds_config.json").read_bytes() == (here / "ds_config.json").read_bytes()
    name = next(re.finditer("--job-name=(pretrain-tiny-[0-9a-f]{8})\n", (job / "pretrain.sbatch").read_text()))[1]
    assert directives(job / "pretrain.sbatch") == [
        f"--job-name={name}", f"--output={job}/logs/pretrain-%j.log", "--open-mode=append", "--requeue",
        "--dependency=singleton",
        "--time=1-00:00:00", "--partition=gpu", "--account=lang", "--gpus-per-node=h100:4", "--mem=500G", "--exclusive",
        "--nodes=2", "--ntasks-per-node=4", "--cpus-per-task=3", "--signal=USR1@300",
    ]  # fmt: skip
    check_shell(job / "pretrain.sbatch")
    assert slurm.calls()[-1][:2] == ["sbatch", ["--parsable", str(job / "pretrain.sbatch")]]
    told = capsys.readouterr().out
    for words in ("pretrain: job 41", "squeue --job=41", f"{job}/logs/pretrain-41.log\n", "runs/tiny/outcome",
                  f"once more: sbatch {job}/pretrain.sbatch"):  # fmt: skip
        assert words in told


@pytest.mark.parametrize(
    ("gpus", "asked"),
    [
        (["gpus_per_node=4", "gpu_type=h100"], ["--gres=gpu:h100:4"]), (["gpus_per_node=0"], []),
        (["gpus_per_node=4", 'options=["--gres nvme:1"]'], ["--gres=gpu:4,nvme:1"]),  # of two sbatch takes the last
        (["gpus_per_node=0", 'options=["--gres=nvme:1", "--gres=lic"]'], ["--gres=nvme:1,lic"]),
    ],
)  # fmt: skip
def test_gpus_are_asked_for_by_gres_where_the_cluster_wants_that(here, slurm, gpus, asked):
    assert launch("--dry-run", "slurm.gres=true", *(f"slurm.pretrain.{setting}" for setting in gpus)) == 0
    words = directives(here / "runs" / "tiny" / "job" / "pretrain.sbatch")
    assert [word for word in words if word.startswith(("--gpu", "--gres"))] == asked


@pytest.mark.parametrize(
    ("option", "asks"),
    [
        ("--gres=gpu:2", True), ("--gres=nvme:1,gpu:h100:2", True), ("--gres gpu", True), ("--gpus=2", True),
        ("--gpus-per-node=2", True), ("--gpus-per-task h100:1", True), ("--tres-per-task=gres/gpu:1", True),
        ("--gres=nvme:1", False), ("--gpu-freq=high", False), ("--exclusive", False),
        ("--gres-flags=allow-task-sharing", False),
    ],
)  # fmt: skip
def test_gpus_that_the_ranks_would_not_know_of_are_refused(option, asks):
    """Else a training would compute on the CPUs of nodes whose GPUs it holds."""
    override = f"slurm.options={json.dumps([option])}"
    if asks:
        with pytest.raises(ConfigError, match=r"asks for GPUs .* by gpus_per_node and gpu_type of the job, and by"):
            load_settings(None, [override])
    else:
        assert load_settings(None, [override]).slurm.options == [option]


@pytest.mark.parametrize(
    ("option", "advice"),
    [
        ("--no-requeue", "the job file sets it"), ("--job-name=x", "the job file sets it"),
        ("--array 0-3", "slurm.eval.array"), ("--time=5", "by the setting of that name"),
        ("--dependency=afterok:7", "sbatch --dependency=...,singleton FILE"), ("--signal=TERM@5", "slurm.notice"),
        ("--depend=afterok:7", "sbatch --dependency=...,singleton FILE"), ("--arr 0-3", "slurm.eval.array"),
        ("--gpu-bind=closest", "ranks choose their GPU by LOCAL_RANK, for which each must see all those of its node"),
        ("--tres-bind gres/gpu:single:1", "must see all"), ("--ntasks-per-gpu=1", "must see all"),
        ("--gpu-b=single:1", "must see all"), ("--wait", "waits for no job"),
        ("--tasks-per-node=2", "slurm.pretrain.tasks_per_node"),
    ],
)  # fmt: skip
def test_what_a_job_file_says_itself_is_no_option_to_add(option, advice):
    """The later line would count: two starts at once in a run, no restart, or another time than the one checked.

    sbatch takes beginnings of options for them.
    """
    with pytest.raises(ConfigError, match=rf"slurm: options: '{option}' is not one to add; .*{re.escape(advice)}"):
        load_settings(None, [f"slurm.options={json.dumps([option])}"])
    assert load_settings(None, ['slurm.options=["--time-min=5"]']).slurm.options == ["--time-min=5"]


_OF_SBATCH = {"SBATCH_NO_REQUEUE": "1", "SBATCH_JOB_NAME": "x", "SBATCH_ARRAY_INX": "0-1", "SBATCH_TIMELIMIT": "3",
              "SBATCH_SIGNAL": "TERM@9", "SBATCH_WAIT": "1", "SBATCH_OUTPUT": "x", "SBATCH_OPEN_MODE": "truncate",
              "SBATCH_REQUEUE": "1", "SBATCH_ACCOUNT": "mine", "SBATCH_PARTITION": "nosuch"}  # fmt: skip
_SHOW_SBATCH = (
    f"json.dump({{name: value for name, value in os.environ.items() if name in {[*_OF_SBATCH]}}}, open('seen', 'a'))"
    "\nprint(41)"
)


@pytest.mark.parametrize("by_hand", [False, True])
@pytest.mark.parametrize("job", ["pretrain", "all"])
def test_variables_of_the_shell_do_not_overrule_the_job_files(here, slurm, capsys, monkeypatch, job, by_hand):
    """For sbatch they count for more than the lines in a file. What the settings leave open stays the user's to say."""
    for name, value in _OF_SBATCH.items():
        monkeypatch.setenv(name, value)
    slurm.stand_in("sbatch", _SHOW_SBATCH)
    chain = [*chain_of(pretrain=["--shards", "shards"]), "slurm.partition=cpu"]
    assert main([job, "--on", "slurm", "--settings", "cluster.toml", *chain, *["--dry-run"] * by_hand]) == 0
    if by_hand and job == "all":
        subprocess.run(["bash", here / "run" / "job" / "all.sh"], check=True)
    elif not by_hand:
        dropped = ", ".join(sorted(_OF_SBATCH.keys() - {"SBATCH_ACCOUNT"}))
        assert f"note: {dropped} of this shell are left out, for the settings say it\n" in capsys.readouterr().err
    if job == "all" or not by_hand:
        assert (here / "seen").read_text() == '{"SBATCH_ACCOUNT": "mine"}' * (3 if job == "all" else 1)


@pytest.mark.parametrize(
    ("settings", "overruling"),
    [
        (["account='a'", "qos='q'"], ["ACCOUNT", "QOS"]),
        (["constraint='ib'"], ["CONSTRAINT"]),
        (["pretrain.memory='4G'"], ["MEM_PER_CPU", "MEM_PER_GPU", "MEM_PER_NODE"]),
        (["pretrain.gpus_per_node=2"], ["GPUS", "GPUS_PER_NODE", "GPUS_PER_TASK", "GRES"]),
        (["pretrain.gpus_per_node=2", "gres=true"], ["GPUS", "GPUS_PER_NODE", "GPUS_PER_TASK", "GRES"]),
        ([], []),
    ],
)  # fmt: skip
def test_what_the_settings_say_is_said_by_no_other_variable_either(
    here, slurm, capsys, monkeypatch, settings, overruling
):
    """Memory and GPUs have several, any of which would count beside the line."""
    names = ("ACCOUNT", "CONSTRAINT", "GPUS", "GPUS_PER_NODE", "GPUS_PER_TASK", "GRES", "MEM_PER_CPU", "MEM_PER_GPU",
             "MEM_PER_NODE", "QOS")  # fmt: skip
    for name in names:
        monkeypatch.setenv(f"SBATCH_{name}", "1")
    assert launch("slurm.pretrain.gpus_per_node=0", *(f"slurm.{setting}" for setting in settings)) == 0
    dropped = ", ".join(f"SBATCH_{name}" for name in overruling)
    notes = [line for line in capsys.readouterr().err.splitlines() if line.startswith("note: ")]
    assert notes == [f"note: {dropped} of this shell are left out, for the settings say it"] * bool(dropped)


@pytest.mark.parametrize("by_hand", [False, True])
@pytest.mark.parametrize("job", ["pretrain", "all"])
def test_jobs_do_not_get_what_a_job_that_they_are_submitted_from_has_set_for_its_own_srun(
    here, slurm, monkeypatch, job, by_hand
):
    """Theirs would take it for options: of SLURM_MEM_PER_CPU beside its own SLURM_MEM_PER_NODE it refuses to start."""
    for name in ("SLURM_JOB_ID", "SLURM_MEM_PER_CPU", "SLURM_GPUS_PER_TASK", "SLURM_CONF", "SLURM_JWT"):
        monkeypatch.setenv(name, "7")
    show = "print(*sorted(name for name in os.environ if name.startswith('SLURM')), file=open('seen', 'a'))"
    slurm.stand_in("sbatch", f"{show}\nprint(41)")
    chain = chain_of(pretrain=["--shards", "shards"])
    assert main([job, "--on", "slurm", "--settings", "cluster.toml", *chain, *["--dry-run"] * by_hand]) == 0
    if by_hand and job == "all":
        subprocess.run(["bash", here / "run" / "job" / "all.sh"], check=True)
    if job == "all" or not by_hand:
        assert (here / "seen").read_text() == "SLURM_CONF SLURM_JWT\n" * (3 if job == "all" else 1)


def test_outside_of_a_job_variables_of_slurm_are_the_user_s_own(here, slurm, monkeypatch):
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.setenv("SLURM_CPU_BIND", "none")
    slurm.stand_in("sbatch", "print(os.environ.get('SLURM_CPU_BIND'), file=open('seen', 'a'))\nprint(41)")
    assert launch() == 0
    assert (here / "seen").read_text() == "none\n"


@pytest.mark.parametrize(("limit", "array"), [(0, "0-3"), (1, "0-3%1"), (2, "0-3%2")])
def test_as_many_members_of_an_evaluation_run_at_once_as_the_settings_allow(here, slurm, limit, array):
    settings = ["slurm.partition=cpu", "slurm.eval.array=4", f"slurm.eval.array_limit={limit}"]
    (here / "export").mkdir()
    words = ["--checkpoint", "export", "--tasks", "mrpc", "--data", ".", "--output", "results"]
    assert main(["eval", "--on", "slurm", "--settings", "cluster.toml", *settings, "--dry-run", "--", *words]) == 0
    (file,) = here.rglob("eval.sbatch")
    assert f"--array={array}" in directives(file)


def test_a_dry_run_writes_the_same_and_submits_nothing(here, slurm, capsys):
    assert launch("--dry-run") == 0
    assert "sbatch" not in [name for name, *_ in slurm.calls()]
    file = here / "runs" / "tiny" / "job" / "pretrain.sbatch"
    assert capsys.readouterr().out == f"to submit: sbatch {file}\n"
    dry = file.read_bytes()
    assert launch() == 0
    assert file.read_bytes() == dry


def test_a_job_that_runs_goes_on_with_its_own_script(here):
    """A shell reads a script as it comes to it, and the next launch writes another one."""
    command = ["pretrain", "--on", "local", "--dry-run", "--", "--config", "tiny.toml", "--shards", "shards"]
    assert main([*command, "--output", "run"]) == 0
    with (here / "run" / "job" / "pretrain.sh").open() as running:
        assert main([*command, "--output", "run", "train.seed=3"]) == 0
        assert running.read() != (here / "run" / "job" / "pretrain.sh").read_text()


def test_jobs_that_write_the_same_output_have_one_name_and_no_others(here, slurm):
    """SLURM runs one job of a name at a time (--dependency=singleton)."""

    def name(output: str) -> str:
        assert main(["pretrain", "--on", "slurm", "--settings", "cluster.toml", "--dry-run", "--",
                     "--config", "tiny.toml", "--shards", "shards", "--output", output]) == 0  # fmt: skip
        return directives(here / output / "job" / "pretrain.sbatch")[0]

    (here / "link").symlink_to(here / "a")
    assert name("a/large") == name("link/large")
    assert name("a/large") != name("b/large")


def test_a_job_knows_its_files_by_the_names_that_the_user_gave(here, slurm, monkeypatch):
    """The other nodes may have the link and not what it leads to here, such as a home folder's mount."""
    (here / "elsewhere").mkdir()
    for name in ("shards", "tiny.toml", "ds_config.json"):
        (here / name).rename(here / "elsewhere" / name)
    (here / "link").symlink_to(here / "elsewhere")
    monkeypatch.chdir(here / "link")
    monkeypatch.setenv("PWD", str(here / "link"))
    settings = [
        "--settings", f"{here}/cluster.toml", "slurm.container.runtime=pyxis", "slurm.container.image=a#b:1",
        f'slurm.container.mounts=["{here}/link"]',
    ]  # fmt: skip
    command = ["pretrain", "--on", "slurm", "--dry-run", *settings, "--", "--config", "tiny.toml"]
    assert main([*command, "--shards", "shards", "--output", f"{here}/link/run"]) == 0
    file = here / "link" / "run" / "job" / "pretrain.sbatch"
    assert str(here / "elsewhere") not in file.read_text()
    assert f"--container-workdir={here}/link" in file.read_text()
    run_job(file)
    srun = next(arguments for name, arguments, _ in slurm.calls() if name == "srun" and "--shards" in arguments)
    assert srun[-4:] == ["--shards", f"{here}/link/shards", "--output", f"{here}/link/run"]


def test_a_link_out_of_what_an_image_or_a_pod_sees_is_told(here, slurm, pods, capsys, monkeypatch):
    (here / "volume").mkdir()
    (here / "volume" / "out").symlink_to(here)
    monkeypatch.chdir(here / "volume")
    settings = [
        "--settings", f"{here}/cluster.toml", f"kubernetes.mount_path={here}/volume", "slurm.container.runtime=pyxis",
        "slurm.container.image=a#b:1", f'slurm.container.mounts=["{here}/volume"]',
    ]  # fmt: skip
    output = [*TEXTS, "--output", f"{here}/volume/out/made"]
    assert main(["preprocess", "--on", "kubernetes", *settings, "--", *output]) == 2
    assert f"'{here}/volume/out/made' is not in the shared volume" in capsys.readouterr().err
    assert main(["preprocess", "--on", "slurm", *settings, "--", *output]) == 2
    assert f"{here}/volume/out/made: is not within the image" in capsys.readouterr().err
    assert not (here / "made").exists()


def test_shards_of_a_chain_are_found_by_another_name_of_their_folder(here):
    (here / "link").symlink_to(here)
    chain = read_chain(
        {"preprocess": ["--output", "link/made"],
         "pretrain": ["--config", "tiny.toml", "--shards", "made", "--output", "run"],
         "eval": ["--tasks", "mlm", "--checkpoint", "link/run/exports/step-000008", "--output", "results"]}
    )  # fmt: skip
    assert [program.reads for program in chain] == [(), (), ()]


def test_a_job_starts_a_rank_per_process_with_the_snapshot_s_code(here, slurm):
    launch("--dry-run")
    job = here / "runs" / "tiny" / "job"
    (snapshot,) = job.glob("snapshot-*")
    done = run_job(job / "pretrain.sbatch")
    (arguments, seen), = [call[1:] for call in slurm.calls() if call[0] == "srun"]  # fmt: skip
    assert arguments == [
        "--kill-on-bad-exit=0", "--wait=300", "--label", "--ntasks-per-node=1", "--cpus-per-task=3",
        "--distribution=*:block", sys.executable, "-m", "cluster.slurm.rank", str(snapshot / "trainer" / "pretrain.py"),
        "--config", str(snapshot / "config.toml"), "--deepspeed_config", str(snapshot / "ds_config.json"),
        "--shards", str(here / "shards"), "--output", str(here / "runs" / "tiny"),
    ]  # fmt: skip
    assert seen["PYTHONPATH"].split(":")[0] == str(snapshot)
    assert seen["PYTHONNOUSERSITE"] is None  # without an image what the user has installed there may be wanted
    assert seen["MASTER_ADDR"] == "node7"
    assert 20000 <= int(seen["MASTER_PORT"]) < 30000
    # srun here trains nothing
    assert "will be restarted: crash 1 since step 0 (exit code 0); it ran on node[7-8]\n" in done.stderr
    (crash,) = map(json.loads, (job / "crashes.jsonl").read_text().splitlines())
    assert crash["job"] == "12"


@pytest.mark.parametrize("gpus", [0, 2])
def test_a_program_runs_in_the_folder_and_by_the_interpreter_of_the_launch_on_as_many_threads_as_cores(
    here, slurm, monkeypatch, gpus
):
    for name in ("DS_ACCELERATOR", "PYTHONSAFEPATH", "PYTHONUNBUFFERED", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    launch("--dry-run", f"slurm.pretrain.gpus_per_node={gpus}")
    monkeypatch.chdir("/")
    job = here / "runs" / "tiny" / "job"
    run_job(job / "pretrain.sbatch", PYTHONPATH="/site")
    (seen,) = [seen for name, _, seen in slurm.calls() if name == "srun"]
    (snapshot,) = job.glob("snapshot-*")
    assert seen["folder"] == str(here)
    assert seen["PATH"].split(":")[0] == str(Path(sys.executable).parent)
    assert seen["PYTHONPATH"] == f"{snapshot}:/site"
    assert (seen["PYTHONSAFEPATH"], seen["PYTHONUNBUFFERED"], seen["OMP_NUM_THREADS"]) == ("1", "1", "3")
    assert seen["DS_ACCELERATOR"] == ("cuda" if gpus else "cpu")  # or DeepSpeed takes the CPU where CUDA doesn't start


def test_a_job_whose_folder_a_node_lacks_starts_nothing_elsewhere(here, slurm, monkeypatch):
    (here / "home").mkdir()
    arguments = ["--config", f"{here}/tiny.toml", "--deepspeed_config", f"{here}/ds_config.json"]
    monkeypatch.chdir(here / "home")
    assert main(["pretrain", "--on", "slurm", "--settings", f"{here}/cluster.toml", "--dry-run", "--", *arguments,
                 "--shards", f"{here}/shards", "--output", f"{here}/run"]) == 0  # fmt: skip
    monkeypatch.chdir(here)
    (here / "home").rmdir()
    assert run_job(here / "run" / "job" / "pretrain.sbatch").returncode == 1
    assert "srun" not in [name for name, *_ in slurm.calls()]


@pytest.mark.parametrize("place", ["slurm", "kubernetes"])
def test_deepspeed_s_configuration_is_read_once(here, slurm, pods, place):
    """A shell's <(...) is a pipe, of which nothing is left for the second phase, nor for the copy."""
    text = (here / "ds_config.json").read_text()
    os.mkfifo(here / "pipe")
    writer = threading.Thread(target=(here / "pipe").write_text, args=(text,), daemon=True)
    writer.start()
    more = ["--config", "tiny.toml", "--deepspeed_config", "pipe", "--shards", "shards", "--output", "run"]
    settings = ["--settings", "cluster.toml", f"kubernetes.mount_path={here}", "kubernetes.pretrain.gpus=0"]
    assert main(["pretrain", "--on", place, "--dry-run", *settings, "--", *more]) == 0
    writer.join()
    (copy,) = (here / "run" / "job").glob("snapshot-*/ds_config.json")
    assert copy.read_text() == text


def test_a_restarted_job_takes_another_port(here, slurm):
    """At the old one a rank of the last start may still listen."""
    launch("--dry-run")
    for restarts in ("0", "1", "2"):
        run_job(here / "runs" / "tiny" / "job" / "pretrain.sbatch", SLURM_RESTART_COUNT=restarts)
    assert len({seen["MASTER_PORT"] for name, _, seen in slurm.calls() if name == "srun"}) == 3


def test_a_setup_that_ends_at_the_first_error_keeps_no_job_from_its_restart(here, slurm):
    launch("--dry-run", 'slurm.setup=["set -euo pipefail"]')
    slurm.stand_in("srun", "sys.exit(137)")
    done = run_job(here / "runs" / "tiny" / "job" / "pretrain.sbatch")
    assert "will be restarted: crash 1 since step 0 (exit code 137)" in done.stderr
    assert slurm.calls()[-1][:2] == ["scontrol", ["requeue", "12"]]


@pytest.mark.parametrize(
    ("outcome", "code", "requeued"), [("done", 0, False), ("failed", 1, False), ("requeue", 0, True)]
)
def test_a_job_ends_as_the_run_directory_says(here, slurm, outcome, code, requeued):
    launch("--dry-run")
    run = here / "runs" / "tiny"
    slurm.stand_in("srun", f"open({str(run / 'outcome')!r}, 'w').write({outcome!r}); sys.exit(1)")
    assert run_job(run / "job" / "pretrain.sbatch").returncode == code
    assert (["scontrol", ["requeue", "12"]] in [call[:2] for call in slurm.calls()]) == requeued


@pytest.mark.parametrize("signalled", ["SIGTERM", "SIGUSR1"])
def test_a_job_file_outlives_the_signal_that_ends_its_ranks(here, slurm, signalled):
    """A preemption's goes to the job file as well, which has still to ask for the restart."""
    launch("--dry-run")
    run = here / "runs" / "tiny"
    ends = f"open({str(run / 'outcome')!r}, 'w').write('requeue')"
    slurm.stand_in("srun", f"import signal; os.kill(os.getppid(), signal.{signalled}); {ends}")
    assert run_job(run / "job" / "pretrain.sbatch").returncode == 0
    assert slurm.calls()[-1][:2] == ["scontrol", ["requeue", "12"]]


def test_names_that_look_like_numbers_stay_as_they_are_written():
    words = ["account=2024_01", "qos=7", "environment.A=+5", "environment.B=0x10", "partition=inf"]
    settings = load_settings(None, [f"slurm.{word}" for word in words]).slurm
    assert (settings.account, settings.qos, settings.environment) == ("2024_01", "7", {"A": "+5", "B": "0x10"})
    assert settings.partition == "inf"


def test_a_signal_leaves_the_verdict_on_a_run_alone(here, slurm):
    """It may come while the verdict is made, of whose program the signal's own code would be taken for that."""
    python = here / "python"
    signalled = "[ $3 != after ] || { kill -TERM $$; kill -USR1 $$; }"
    python.write_text(f'#!/bin/sh\n{signalled}\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    launch("--dry-run", f"slurm.python={python}")
    run = here / "runs" / "tiny"
    slurm.stand_in("srun", f"open({str(run / 'outcome')!r}, 'w').write('requeue')")
    assert run_job(run / "job" / "pretrain.sbatch").returncode == 0
    assert slurm.calls()[-1][:2] == ["scontrol", ["requeue", "12"]]


def test_filters_of_the_shell_do_not_hide_a_job_from_its_restart(here, slurm):
    """sbatch gives a job the shell's variables, and by SQUEUE_PARTITION squeue leaves out what it is asked for."""
    slurm.stand_in("squeue", "print('' if {'SQUEUE_PARTITION', 'SLURM_CLUSTERS'} & {*os.environ} else 'RUNNING None')")
    slurm.stand_in("srun", "sys.exit(143)")
    done = run_job(evaluation('slurm.setup=["export SQUEUE_PARTITION=gpu"]'), SLURM_CLUSTERS="here")
    assert (done.returncode, slurm.calls()[-1][:2]) == (0, ["scontrol", ["requeue", "12"]])


def test_an_evaluation_s_job_file_outlives_a_preemption_s_signal(here, slurm):
    slurm.stand_in("srun", "import signal; os.kill(os.getppid(), signal.SIGTERM); sys.exit(143)")
    assert run_job(evaluation()).returncode == 0
    assert slurm.calls()[-1][:2] == ["scontrol", ["requeue", "12"]]


@pytest.mark.parametrize(
    ("state", "requeued"), [("RUNNING None", True), ("COMPLETING None", False), ("COMPLETING TimeLimit", True)]
)
@pytest.mark.parametrize("job", ["preprocess", "pretrain", "eval"])
def test_a_job_asks_slurm_until_it_answers(here, slurm, job, state, requeued):
    """A controller that restarts does not. A job that was cancelled must not come back, one out of time must."""
    too_early = f"sys.argv[1] != 'show' and open({str(here / 'calls')!r}).read().count(CALL) <= 2"
    refuse = f"if {too_early}: sys.exit('Socket timed out')"
    slurm.stand_in("squeue", refuse.replace("CALL", "'[\"squeue\"'") + f"\nprint({state!r})")
    slurm.stand_in("scontrol", refuse.replace("CALL", '\'["scontrol", ["requeue"\''))
    slurm.stand_in("sleep")
    slurm.stand_in("srun", "sys.exit(130)")
    if job == "pretrain":
        launch("--dry-run")
        file = here / "runs" / "tiny" / "job" / "pretrain.sbatch"
    elif job == "preprocess":
        assert preprocess() == 0
        file = here / "made.job" / "preprocess.sbatch"
    else:
        file = evaluation()
    check_shell(file)
    done = run_job(file)
    called = [name for name, arguments, _ in slurm.calls() if name == "squeue" or arguments[:1] == ["requeue"]]
    assert called == (["squeue"] * 3 + ["scontrol", "squeue", "scontrol", "squeue", "scontrol"] * requeued)
    assert (done.returncode == 0) == requeued
    assert ("it was cancelled" in done.stderr) != requeued


def test_a_job_that_is_cancelled_while_it_asks_again_is_not_brought_back(here, slurm):
    """The signal of scancel ends no more than the job file's sleep."""
    cancelled = f"'\"requeue\"' in open({str(here / 'calls')!r}).read()"
    slurm.stand_in("squeue", f"print('COMPLETING None' if {cancelled} else 'RUNNING None')")
    slurm.stand_in("scontrol", "sys.exit('Unable to contact slurm controller')")
    slurm.stand_in("sleep", "import signal; os.kill(os.getppid(), signal.SIGTERM)")
    slurm.stand_in("srun", "sys.exit(143)")
    done = run_job(evaluation())
    assert done.returncode == 1
    assert [arguments[0] for name, arguments, _ in slurm.calls() if name == "scontrol"] == ["requeue"]
    assert "the job is COMPLETING: it was cancelled" in done.stderr


def test_a_job_that_slurm_does_not_requeue_ends_and_does_not_hold_its_nodes(here, slurm):
    slurm.stand_in("scontrol", "sys.exit('Requested operation is presently disabled for job 12')")
    slurm.stand_in("sleep")
    slurm.stand_in("srun", "sys.exit(143)")
    done = run_job(evaluation())
    assert done.returncode == 1
    assert done.stderr.endswith("SLURM does not requeue the job, as it says above: submit its file again to go on\n")
    assert [arguments for name, arguments, _ in slurm.calls() if name == "sleep"] == [["10"]] * 29


def test_a_start_that_can_not_clear_away_the_last_outcome_does_not_take_it_for_its_own(here, slurm):
    """A folder stands for what can't be removed: the ranks would refuse, and the old `requeue` start them for ever."""
    launch("--dry-run")
    run = here / "runs" / "tiny"
    (run / "outcome" / "old").mkdir(parents=True)
    done = run_job(run / "job" / "pretrain.sbatch")
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: {run}: its outcome can't be removed (")
    assert "srun" not in [name for name, *_ in slurm.calls()]


def test_an_image_that_is_not_fetched_once_ends_no_job(here, slurm):
    """Its step that clears away the outcome fails, and the ranks may find the image there again."""
    slurm.stand_in("srun", "sys.exit(1 if 'before' in sys.argv else 0)")
    (here / "bert.sqsh").touch()
    container = [f"slurm.container.image={here}/bert.sqsh", f'slurm.container.mounts=["{here}"]']
    assert launch("--dry-run", "slurm.container.runtime=pyxis", *container) == 0
    assert run_job(here / "runs" / "tiny" / "job" / "pretrain.sbatch").returncode == 0
    assert len([name for name, *_ in slurm.calls() if name == "srun"]) == 3


def evaluation(*settings: str) -> Path:
    """The job file of an evaluation with the files of ``here``."""
    assert main(["eval", "--on", "slurm", "--settings", "cluster.toml", "--dry-run", *settings, "--",
                 "--checkpoint", "shards", "--output", "results", "--tasks", "mrpc", "--data", "."]) == 0  # fmt: skip
    return Path.cwd() / "results" / "job" / "eval.sbatch"


@pytest.mark.parametrize("array", [1, 3])
@pytest.mark.parametrize(("code", "requeued"), [(130, True), (143, True), (0, False), (1, False), (137, False)])
def test_an_evaluation_that_is_asked_to_stop_is_requeued_of_an_array_the_member_alone(
    here, slurm, array, code, requeued
):
    """The number of an array's last member is that of the whole array too."""
    slurm.stand_in("srun", f"sys.exit({code})")
    file = evaluation(f"slurm.eval.array={array}", "slurm.notice=77")
    check_shell(file)
    assert {"--ntasks=1", "--cpus-per-task=8", "--signal=INT@77"} <= {*directives(file)}
    member = {
        "SLURM_JOB_ID": "14",
        "SLURM_ARRAY_JOB_ID": "12",
        "SLURM_ARRAY_TASK_ID": "2",
        "SLURM_ARRAY_TASK_COUNT": "3",
    }
    done = run_job(file, **(member if array > 1 else {}))
    number = "12_2" if array > 1 else "12"
    asked = [arguments for name, arguments, _ in slurm.calls() if name in ("squeue", "scontrol")]
    assert asked == [["--noheader", "--format=%T %r", f"--job={number}"], ["requeue", number]] * requeued
    (step,) = [arguments for name, arguments, _ in slurm.calls() if name == "srun"]
    assert step[:2] == ["--ntasks=1", "--cpus-per-task=8"]
    assert done.returncode == (0 if requeued else code)


@pytest.mark.parametrize("program", ["pretrain", "eval"])
def test_variables_that_would_change_what_srun_does_are_not_taken_over(here, slurm, program):
    """SLURM sets them in an interactive job, from which this one is submitted, and where --export=NONE is asked for."""
    left = {"SLURM_EXPORT_ENV": "NONE", "SLURM_CPU_BIND": "mask_cpu:0x3", "SLURM_CPU_BIND_TYPE": "mask_cpu:"}
    left |= {"SLURM_GPU_BIND": "single:1", "SLURM_TRES_BIND": "gres/gpu:single:1", "SLURM_TRES_BIND_VERBOSE": "1"}
    left |= {"SLURM_GPUS_PER_TASK": "1", "SLURM_NTASKS_PER_GPU": "1"}
    watched = ("SLURM_EXPORT", "SLURM_CPU", "SLURM_GPU", "SLURM_TRES", "SLURM_NTASKS_PER_GPU")
    slurm.stand_in("srun", f"print([name for name in os.environ if name.startswith({watched})])")
    launch("--dry-run", 'slurm.setup=["export SLURM_CPU_BIND_VERBOSE=verbose"]')
    file = here / "runs" / "tiny" / "job" / "pretrain.sbatch" if program == "pretrain" else evaluation()
    check_shell(file)
    own = ["SLURM_CPU_BIND_VERBOSE"] if program == "pretrain" else []  # what the settings say is meant
    assert run_job(file, **left).stdout.strip() == str(own)


@pytest.mark.parametrize(
    ("settings", "ours"),
    [
        ([], True), (['slurm.options=["--exclusive"]'], True), (['slurm.options=["--distribution=cyclic"]'], False),
        (['slurm.options=["--dist plane=4"]'], False), (["slurm.environment.SLURM_DISTRIBUTION=block:cyclic"], False),
    ],
)  # fmt: skip
def test_ranks_fill_a_socket_after_the_other_unless_the_settings_say_otherwise(here, slurm, settings, ours):
    """GPUs are numbered by sockets, and SLURM's default would give every other rank the cores of the other one."""
    launch("--dry-run", *settings)
    file = here / "runs" / "tiny" / "job" / "pretrain.sbatch"
    check_shell(file)
    run_job(file)
    (arguments,) = [arguments for name, arguments, _ in slurm.calls() if name == "srun"]
    assert [word for word in arguments if word.startswith("--dist")] == ["--distribution=*:block"] * ours


def test_variables_of_the_settings_stay_the_ranks_own(here, slurm):
    given = {"MASTER_ADDR": "10.0.0.7", "MASTER_PORT": "12345", "OMP_NUM_THREADS": "2", "DS_ACCELERATOR": "xpu"}
    launch("--dry-run", *(f"slurm.environment.{name}={value}" for name, value in given.items()))
    file = here / "runs" / "tiny" / "job" / "pretrain.sbatch"
    check_shell(file)
    run_job(file)
    (seen,) = [seen for name, _, seen in slurm.calls() if name == "srun"]
    assert {name: seen[name] for name in given} == given


def test_hostile_names_reach_the_program_as_they_are_and_nothing_else_happens(here, slurm, monkeypatch):
    folder = here / HOSTILE.replace("/", "").replace("\\", "")  # backslashes are refused, below
    folder.mkdir()
    for name in ("shards", "tiny.toml", "ds_config.json"):
        (folder / name).symlink_to(here / name)
    python = folder / "my python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    monkeypatch.chdir(folder)
    shared = f"slurm.shared=[{json.dumps(str(here))}]"
    settings = [
        shared,
        f"slurm.python={json.dumps(str(python))}",
        "slurm.pretrain.gpus_per_node=0",
        f"slurm.environment.HOSTILE={json.dumps(HOSTILE)}",
        'slurm.setup=["echo ready"]',
    ]
    arguments = ["--config", "tiny.toml", "--shards", "shards", "--output", "run", "--init-from", "shards"]
    assert main(["pretrain", "--on", "slurm", "--dry-run", *settings, "--", *arguments]) == 0
    file = folder / "run" / "job" / "pretrain.sbatch"
    check_shell(file)
    done = run_job(file)
    assert done.stdout == "ready\n"
    (arguments, seen), = [call[1:] for call in slurm.calls() if call[0] == "srun"]  # fmt: skip
    assert seen["HOSTILE"] == HOSTILE
    assert arguments[arguments.index("-m") - 1] == str(python)
    assert arguments[-2:] == ["--output", str(folder / "run")]
    assert not list(here.rglob("pwned"))
    (log,) = [word for word in directives(file) if word.startswith("--output=")]
    assert "100%% " in log  # sbatch replaces %j and the like


def test_a_backslash_in_a_path_is_refused_as_the_log_would_be_lost_and_the_job_with_it(here, slurm, capsys):
    command = ["pretrain", "--on", "slurm", "--settings", "cluster.toml", "--", "--config", "tiny.toml"]
    assert main([*command, "--shards", "shards", "--output", "runs/a\\b"]) == 2
    assert f"error: {here}/runs/a\\b: sbatch drops backslashes from the names of logs; take" in capsys.readouterr().err
    assert "sbatch" not in [name for name, *_ in slurm.calls()]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (
            ["slurm.container.runtime=pyxis", "slurm.container.image=nvcr.io#nvidia/pytorch:26.01-py3"],
            ["--container-image=nvcr.io#nvidia/pytorch:26.01-py3", "--container-mounts=HERE:HERE",
             "--container-workdir=HERE", "python", "-m", "cluster.slurm.rank"],
        ),
        (
            ["slurm.container.runtime=apptainer", "slurm.container.image=HERE/bert.sif"],
            ["apptainer", "exec", "--nv", "--bind", "HERE:HERE", "--pwd", "HERE", "HERE/bert.sif",
             "python", "-m", "cluster.slurm.rank"],
        ),
    ],
)  # fmt: skip
def test_a_container_goes_around_every_program(here, slurm, settings, expected):
    (here / "bert.sif").touch()
    slurm.stand_in("apptainer")
    mounts = f'slurm.container.mounts=["{here}"]'
    assert launch("--dry-run", mounts, *[setting.replace("HERE", str(here)) for setting in settings]) == 0
    file = here / "runs" / "tiny" / "job" / "pretrain.sbatch"
    check_shell(file)
    assert "export PATH" not in file.read_text()  # the image's own
    run_job(file)
    runs = [arguments for name, arguments, _ in slurm.calls() if name in ("srun", "apptainer")]
    training = next(arguments for arguments in runs if "cluster.slurm.rank" in arguments)
    assert {seen["PYTHONNOUSERSITE"] for name, _, seen in slurm.calls() if name in ("srun", "apptainer")} == {"1"}
    begin = training.index("--distribution=*:block") + 1
    assert training[begin : begin + len(expected)] == [word.replace("HERE", str(here)) for word in expected]
    deciding = [arguments for arguments in runs if "cluster.slurm.requeue" in arguments]
    assert [("before" in arguments, "after" in arguments) for arguments in deciding] == [(True, False), (False, True)]
    once = ["--overlap", "--nodes=1", "--ntasks=1"]  # and not by every rank
    assert all(arguments[:3] == once for arguments in deciding) == ("pyxis" in settings[0])


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (["container.runtime=pyxis", "pretrain.gpus_per_node=2"], ("all", "compute,utility")),
        (
            ["container.runtime=pyxis", "pretrain.gpus_per_node=2", "environment.NVIDIA_DRIVER_CAPABILITIES=all"],
            ("all", "all"),
        ),
        (["container.runtime=pyxis", "pretrain.gpus_per_node=0"], (None, None)),  # enroot fails where no driver is
        (["container.runtime=apptainer", "pretrain.gpus_per_node=2"], (None, None)),
    ],
)
def test_enroot_is_told_to_bring_gpus_into_an_image(here, slurm, monkeypatch, settings, expected):
    """It does not by itself: of an image that says neither the ranks would see no GPU."""
    names = ("NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES")
    for name in names:
        monkeypatch.delenv(name, raising=False)
    slurm.stand_in("apptainer")
    (here / "bert.sqsh").touch()
    container = [f"slurm.container.image={here}/bert.sqsh", f'slurm.container.mounts=["{here}"]']
    assert launch("--dry-run", *container, *(f"slurm.{setting}" for setting in settings)) == 0
    file = here / "runs" / "tiny" / "job" / "pretrain.sbatch"
    check_shell(file)
    run_job(file)
    assert {tuple(seen[name] for name in names) for kind, _, seen in slurm.calls() if kind == "srun"} == {expected}


@pytest.mark.parametrize(("image", "fetched"), [("nvcr.io#nvidia/pytorch:26.01-py3", True), ("HERE/bert.sqsh", False)])
def test_an_image_that_pyxis_fetches_for_every_step_is_warned_of(here, slurm, capsys, image, fetched):
    (here / "bert.sqsh").touch()
    container = [f"slurm.container.image={image.replace('HERE', str(here))}", f'slurm.container.mounts=["{here}"]']
    assert launch("--dry-run", "slurm.container.runtime=pyxis", *container) == 0
    told = capsys.readouterr().err
    expected = (
        f"warning: slurm.container.image {image}: pyxis fetches it anew for every step, and the last one must end"
    )
    assert told.startswith(expected) if fetched else not told


def test_the_home_folder_of_an_image_and_its_mounts_is_found(here, slurm, monkeypatch):
    monkeypatch.setenv("HOME", str(here))
    (here / "bert.sif").touch()
    container = ["slurm.container.image=~/bert.sif", 'slurm.container.mounts=["~/runs", "~"]']
    assert launch("--dry-run", "slurm.container.runtime=apptainer", *container) == 0
    text = (here / "runs" / "tiny" / "job" / "pretrain.sbatch").read_text()
    assert f"{here}/runs:{here}/runs,{here}:{here}" in text
    assert f"{here}/bert.sif" in text
    assert "~" not in text


@pytest.mark.parametrize("setting", ["image=/shared$X/bert.sif", 'mounts=["/", "/shared$X"]'])
def test_a_variable_in_a_container_s_paths_is_refused(here, slurm, capsys, setting):
    container = [
        "slurm.container.runtime=apptainer",
        "slurm.container.image=docker://a:1",
        f"slurm.container.{setting}",
    ]
    assert launch("--dry-run", *container) == 2
    assert "no shell reads this, so it is not replaced; write the path out" in capsys.readouterr().err


def test_a_home_folder_whose_name_no_container_can_be_told_is_refused_as_a_mount(here, slurm, monkeypatch, capsys):
    monkeypatch.setenv("HOME", f"{here}/kim,lee")
    container = ["slurm.container.image=docker://a:1", 'slurm.container.mounts=["~/data"]']
    assert launch("--dry-run", "slurm.container.runtime=apptainer", *container) == 2
    told = capsys.readouterr().err
    assert f"slurm.container: mounts: '{here}/kim,lee/data' must be a whole path without commas" in told


def test_an_image_must_see_the_folder_of_the_code_too(here, slurm, monkeypatch, capsys):
    """That of shards alone lies beside them."""
    monkeypatch.chdir(here / "bin")
    mounts = f'slurm.container.mounts=["{here}/bin", "{here}/made"]'
    container = ["slurm.container.runtime=pyxis", "slurm.container.image=a#b:1", f'slurm.shared=["{here}"]']
    command = ["preprocess", "--on", "slurm", "--dry-run", mounts, *container, "--", *TEXTS, "--output", f"{here}/made"]
    assert main(command) == 2
    assert f"{here}/made.job: is not within the image; add its folder to" in capsys.readouterr().err


def test_all_three_in_a_chain_each_fed_by_the_one_before(here, slurm, capsys):
    settings = [
        'preprocess.arguments=["--books", "*.txt", "--train-vocab", "500", "--output", "made"]',
        'pretrain.arguments=["--config", "tiny.toml", "--output", "runs/tiny", "train.max_steps=5"]',
        'eval.arguments=["--tasks", "mlm,mrpc", "--data", ".", "--output", "results"]',
        "slurm.partition=cpu",
        "slurm.eval.array=3",
        "slurm.eval.array_limit=2",
    ]
    assert main(["all", "--on", "slurm", "--settings", "cluster.toml", *settings]) == 0
    job = here / "runs" / "tiny" / "job"
    told = capsys.readouterr().out
    logs = re.findall(rf"tail -F {job}/logs/(.*)", told)
    assert logs == ["preprocess-41.log", "pretrain-42.log", "eval-43_*.log"]
    assert re.findall("output    (.*)", told) == [f"{here}/made", f"{here}/results"]
    files = [job / f"{name}.sbatch" for name in ("preprocess", "pretrain", "eval")]
    check_shell(*files, job / "all.sh")
    submitted = [arguments for name, arguments, _ in slurm.calls() if name == "sbatch"]
    assert submitted == [
        ["--parsable", str(files[0])],
        ["--parsable", "--dependency=afterok:41,singleton", "--kill-on-invalid-dep=yes", str(files[1])],
        ["--parsable", "--dependency=afterok:42,singleton", "--kill-on-invalid-dep=yes", str(files[2])],
    ]
    assert {"--array=0-2%2", f"--output={job}/logs/eval-%A_%a.log"} <= {*directives(files[2])}
    for file in files:
        run_job(file, SLURM_ARRAY_TASK_ID="1", SLURM_ARRAY_TASK_COUNT="3")
    preprocess, pretraining, evaluation = [arguments for name, arguments, _ in slurm.calls() if name == "srun"]
    assert preprocess[-6:] == ["--train-vocab", "500", "--books", str(here / "*.txt"), "--output", str(here / "made")]
    assert pretraining[pretraining.index("--shards") + 1] == str(here / "made")
    assert evaluation[evaluation.index("--shards") + 1] == str(here / "made")
    assert evaluation[evaluation.index("--checkpoint") + 1] == str(here / "runs" / "tiny" / "exports" / "step-000005")
    assert evaluation[-4:] == ["--grid-index", "1", "--grid-count", "3"]


@pytest.mark.parametrize("given", [["--shards", "own"], ["--shards=own"]])
def test_shards_that_a_chain_is_given_stand_in_the_place_of_its_own(here, given):
    chain = read_chain(
        {"preprocess": ["--output", "made"],
         "pretrain": ["--config", "tiny.toml", *given, "--output", "run"],
         "eval": [*MLM, *given, "--output", "results"]}
    )  # fmt: skip
    assert [program.reads for program in chain[1:]] == [(here / "own" / "manifest.json",)] * 2
    assert not [program for program in chain[1:] if str(here / "made") in program.arguments]


@pytest.mark.parametrize("cluster", ["", ";cluster"])
@pytest.mark.parametrize("job", ["pretrain", "all"])
def test_the_number_of_a_job_is_told_without_the_cluster_s_name(here, slurm, capsys, cluster, job):
    slurm.stand_in("sbatch", f"print('41{cluster}')")
    chain = chain_of(pretrain=["--shards", "shards"])
    assert main([job, "--on", "slurm", "--settings", "cluster.toml", *chain]) == 0
    assert "pretrain: job 41\n  queue     squeue --job=41\n" in capsys.readouterr().out


def test_a_job_s_own_names_stand_in_the_place_of_what_all_have_and_its_own_lines_are_added(here, slurm):
    """CPU nodes have none of the GPUs' features, and a job of a chain that no node can take pends for ever."""
    settings = {
        "preprocess.arguments": ["--books", "*.txt", "--train-vocab", "500", "--output", "made"],
        "pretrain.arguments": ["--config", "tiny.toml", "--output", "runs/tiny"],
        "eval.arguments": ["--tasks", "mlm", "--output", "results"],
        "slurm.partition": "cpu", "slurm.account": 1234, "slurm.qos": "normal", "slurm.constraint": "icelake",
        "slurm.options": ["--mail-type=FAIL"], "slurm.setup": ["module load gcc"],
        "slurm.environment": {"HTTPS_PROXY": "http://proxy", "NCCL_DEBUG": "WARN"},
        "slurm.pretrain.partition": "gpu", "slurm.pretrain.account": "lang-gpu", "slurm.pretrain.qos": "long",
        "slurm.pretrain.constraint": "h100&ib", "slurm.pretrain.options": ["--exclusive", "--reservation r1"],
        "slurm.pretrain.setup": ["module load cuda"], "slurm.pretrain.environment": {"NCCL_DEBUG": "INFO"},
    }  # fmt: skip
    given = [f"{key}={json.dumps(value).replace(': ', ' = ')}" for key, value in settings.items()]
    assert main(["all", "--on", "slurm", "--settings", "cluster.toml", "--dry-run", *given]) == 0
    job = here / "runs" / "tiny" / "job"
    for name in ("preprocess", "eval"):
        file = job / f"{name}.sbatch"
        common = ["--partition=cpu", "--account=1234", "--qos=normal", "--constraint=icelake", "--mail-type=FAIL"]
        assert [word for word in directives(file) if word in common] == common
        assert "\nmodule load gcc\nset +e " in file.read_text()
        assert "\nexport HTTPS_PROXY=http://proxy\nexport NCCL_DEBUG=WARN\n" in file.read_text()
    file = job / "pretrain.sbatch"
    assert directives(file)[6:13] == [
        "--partition=gpu", "--account=lang-gpu", "--qos=long", "--constraint='h100&ib'",
        "--mail-type=FAIL", "--exclusive", "--reservation=r1",
    ]  # fmt: skip
    assert "\nmodule load gcc\nmodule load cuda\nset +e " in file.read_text()
    assert "\nexport HTTPS_PROXY=http://proxy\nexport NCCL_DEBUG=INFO\n" in file.read_text()


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_what_sbatch_says_of_a_job_that_it_refuses_is_told_wherever_it_says_so(here, slurm, capsys, stream):
    slurm.stand_in("sbatch", f"print('no such account', file=sys.{stream}); sys.exit(1)")
    assert launch() == 2
    job = here / "runs" / "tiny" / "job" / "pretrain.sbatch"
    assert capsys.readouterr().err == f"error: sbatch --parsable {job}: no such account\n"


def test_a_site_s_own_sbatch_may_say_more_than_the_number(here, slurm, capsys):
    slurm.stand_in("sbatch", "print('Welcome, user\\n7\\n41;cluster')")
    assert launch() == 0
    assert "pretrain: job 41\n" in capsys.readouterr().out
    assert main(["all", "--on", "slurm", "--settings", "cluster.toml", *chain_of(), "slurm.partition=cpu"]) == 0
    assert capsys.readouterr().out.count(": job 41\n") == 3


def test_a_submission_without_a_number_is_told(here, slurm, capsys):
    """As that of --test-only."""
    slurm.stand_in("sbatch", "print('allocation would begin tomorrow', file=sys.stderr)")
    assert launch('slurm.options=["--test-only"]') == 2
    assert capsys.readouterr().err.endswith(": no number of a job, but 'allocation would begin tomorrow'\n")
    assert main(["all", "--on", "slurm", "--settings", "cluster.toml", *chain_of(), "slurm.partition=cpu"]) == 2
    assert capsys.readouterr().err.endswith("/all.sh: allocation would begin tomorrow\n")


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
@pytest.mark.parametrize("number", ["9", "9;cluster"])
def test_a_chain_that_is_refused_half_way_leaves_no_job_behind(here, slurm, capsys, number, stream):
    """Of several clusters sbatch says which one it is."""
    refuse = f"print('no such account', file=sys.{stream}); sys.exit(1)"
    slurm.stand_in("sbatch", f"if 'afterok:9,' in str(sys.argv): {refuse}\nprint({number!r})")
    chain = [*chain_of(run="runs/tiny"), "slurm.partition=cpu"]
    assert main(["all", "--on", "slurm", "--settings", "cluster.toml", *chain]) == 2
    assert capsys.readouterr().err == f"error: bash {here}/runs/tiny/job/all.sh: no such account\n"
    assert slurm.calls()[-1][:2] == ["scancel", ["9"]]


def test_all_on_this_machine_is_three_scripts_one_after_the_other(here, capsys):
    chain = [*chain_of(run="runs/tiny"), "local.ranks=4", "local.threads=3"]
    assert main(["all", "--on", "local", "--dry-run", *chain]) == 0
    job = here / "runs" / "tiny" / "job"
    scripts = [job / f"{name}.sh" for name in ("preprocess", "pretrain", "eval")]
    check_shell(*scripts, job / "all.sh")
    assert capsys.readouterr().out == f"to run: bash {job}/all.sh\n"
    assert f"for script in {' '.join(map(str, scripts))}; do\n" in (job / "all.sh").read_text()
    training = scripts[1].read_text()
    assert "--nproc-per-node=4" in training
    assert "export OMP_NUM_THREADS=3" in training
    assert "export DS_ACCELERATOR=cpu" in training


@pytest.mark.parametrize(("gpus", "ranks", "processes"), [(0, 0, 1), (2, 0, 2), (0, 3, 3), (2, 2, 2)])
def test_on_this_machine_a_process_trains_on_each_gpu_or_as_many_as_are_asked_for(gpus, ranks, processes):
    assert LocalSettings(gpus, ranks).processes == processes


@pytest.mark.parametrize("setting", ["gpus", "ranks", "threads"])
def test_on_this_machine_nothing_is_less_than_none(setting):
    with pytest.raises(ValueError, match=r"^gpus, ranks and threads must be 0 or more$"):
        LocalSettings(**{setting: -1})


def test_on_this_machine_the_launch_becomes_the_script_once_it_has_told_which(here, monkeypatch):
    """By then what it told must have left its buffer, with which it ends."""
    become: list[tuple[str, list[str], str]] = []
    with (here / "told").open("w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        monkeypatch.setattr(os, "execvp", lambda *of: become.append((*of, (here / "told").read_text())))
        assert main(["preprocess", "--on", "local", "--", *TEXTS, "--output", "made"]) == 0
    script = f"{here}/made.job/preprocess.sh"
    assert become == [("bash", ["bash", script], f"once more: bash {script}\n")]


def test_on_this_machine_ranks_share_the_cores_and_train_on_gpus_where_there_are(here, monkeypatch, capsys):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    given = ["--", "--config", "tiny.toml", "--shards", "shards", "--output", "run"]
    assert main(["pretrain", "--on", "local", "--dry-run", "local.gpus=2", *given]) == 0
    training = (here / "run" / "job" / "pretrain.sh").read_text().replace("\\\n    ", "")
    starter = "-m torch.distributed.run --standalone --local-addr=127.0.0.1 --nproc-per-node=2 "
    assert f"\nexec {sys.executable} {starter}" in training
    assert "export OMP_NUM_THREADS=4\n" in training
    assert "export DS_ACCELERATOR=cuda" in training
    assert main(["pretrain", "--on", "local", "--dry-run", "local.ranks=3", *given]) == 2
    assert "a global batch of 16 can't be cut into micro-batches of 2 for 3 rank(s)" in capsys.readouterr().err


@pytest.mark.parametrize(("cores", "threads"), [(8, 2), (3, 1)])
def test_on_this_machine_what_is_one_process_has_all_cores_and_a_rank_one_at_least(here, monkeypatch, cores, threads):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    assert main(["all", "--on", "local", "--dry-run", *chain_of(), "local.ranks=4"]) == 0
    for name, expected in (("preprocess", cores), ("pretrain", threads), ("eval", cores)):
        assert f"export OMP_NUM_THREADS={expected}\n" in (here / "run" / "job" / f"{name}.sh").read_text()


@pytest.mark.parametrize("signalled", ["TERM", "INT", None])
def test_a_signal_to_all_reaches_the_job_that_runs_and_ends_all_when_that_has_ended(here, signalled):
    """Once, though the job hears of it from the terminal's group, too, and takes its time to save what it has."""
    assert main(["all", "--on", "local", "--dry-run", *chain_of()]) == 0
    job = here / "run" / "job"
    (job / "preprocess.sh").write_text("echo made >> heard")
    (job / "pretrain.sh").write_text(f"""exec {sys.executable} -c '
import signal, time
def hear(number, frame):
    global heard
    heard = True
    print(signal.Signals(number).name, file=open("heard", "a"))
heard = False
signal.signal(signal.SIGTERM, hear)
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, hear)
print("trains", file=open("heard", "a"))
until = time.monotonic() + 60 * {signalled is not None}
while not heard and time.monotonic() < until:
    time.sleep(0.01)
time.sleep(0.5)
print("saved", file=open("heard", "a"))
'""")
    (job / "eval.sh").write_text("echo evaluated >> heard; exit 3")
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's job in the background ignores it
    process = subprocess.Popen(["bash", job / "all.sh"], start_new_session=True)
    signal.signal(signal.SIGINT, before)
    heard = here / "heard"
    while signalled and not (heard.exists() and "trains" in heard.read_text()):
        time.sleep(0.01)
    if signalled:
        os.killpg(process.pid, signal.Signals[f"SIG{signalled}"])
    code = process.wait(60)
    if signalled:
        assert code == 128 + signal.Signals[f"SIG{signalled}"]
        assert heard.read_text().split() == ["made", "trains", f"SIG{signalled}", "saved"]
    else:
        assert code == 3
        assert heard.read_text().split() == ["made", "trains", "saved", "evaluated"]


@pytest.mark.parametrize(("volume", "mounted"), [("", True), ("/elsewhere", False), (f"/{LONG}", False)])
def test_on_kubernetes_the_manifests_go_beside_the_run_where_its_volume_is_seen(here, pods, capsys, volume, mounted):
    volume = Path(volume or here)
    settings = [
        f"kubernetes.mount_path={volume}",
        "kubernetes.pretrain.gpus=0",
        "kubernetes.pretrain.nodes=2",
        *chain_of(f"{volume}/made", f"{volume}/runs/My_Run", f"{volume}/results", pretrain=["train.max_steps=5"]),
    ]
    assert main(["all", "--on", "kubernetes", *settings]) == 0
    folder = volume / "runs" / "My_Run" / "job" if mounted else next(here.glob("my-run-*.job"))
    assert capsys.readouterr().out == f"to submit: kubectl apply -k {folder}\n"
    assert yaml.safe_load((folder / "kustomization.yaml").read_text())["resources"] == [
        "preprocess",
        "pretrain",
        "eval",
    ]
    pretraining = "".join(file.read_text() for file in (folder / "pretrain").rglob("*.yaml"))
    assert f"{volume}/runs/My_Run" in pretraining
    assert f"{volume}/made" in pretraining
    assert "max_steps = 5" in (folder / "pretrain" / "config.toml").read_text()
    assert [f"workingDir: {snapshot}" in pretraining for snapshot in folder.glob("snapshot-*")] == [True] * mounted


def object_names(folder: Path, outputs: list[str]) -> list[str]:
    """What the objects of pretrainings are called after, in the launches' own files and labels."""
    for output in outputs:
        assert main(["pretrain", "--on", "kubernetes", "kubernetes.pretrain.gpus=0", "--",
                     "--config", "tiny.toml", "--shards", "/shared/s", "--output", output]) == 0  # fmt: skip
    files = sorted(folder.glob("*.job/pretrain/kustomization.yaml"), key=lambda file: file.stat().st_mtime_ns)
    names = [yaml.safe_load(file.read_text())["labels"][0]["pairs"]["app.kubernetes.io/instance"] for file in files]
    assert [f"{name}.job" for name in names] == [file.parents[1].name for file in files]
    return names


def test_on_kubernetes_runs_in_different_folders_have_different_objects_and_a_run_has_the_same_ones(here, pods):
    outputs = ["/shared/a/large", "/shared/b/large", "/shared/BERT_large", "/shared/bert-large"]
    names = object_names(here, outputs)
    assert len(set(names)) == len(outputs)
    assert all(re.fullmatch("(bert-)?large-[0-9a-f]{8}", name) for name in names)
    assert object_names(here, ["/shared/a/large"]) == [*names[1:], names[0]]


def test_on_kubernetes_any_name_of_an_output_will_do(here, pods):
    names = object_names(here, ["/shared/2024-run", "/shared/학습", "/shared/" + "long_" * 20])
    readable = ["run-2024-run", "run", "long-" * 5 + "lo"]
    assert [name[: -len("-00000000")] for name in names] == readable
    assert all(re.fullmatch("[a-z][-a-z0-9]{0,35}", name) for name in names)
    assert max(len(f"{name}-pretrain-node-0-9999-abcde") for name in names) == 63  # the name of a JobSet's Pod


def test_on_kubernetes_nothing_is_written_where_the_job_s_own_folder_lies_outside_the_volume(here, pods, capsys):
    """That of shards alone lies beside them."""
    (here / "volume").mkdir()
    settings = [f"kubernetes.mount_path={here}/volume"]
    before = sorted(here.rglob("*"))
    assert main(["preprocess", "--on", "kubernetes", *settings, "--", *TEXTS, "--output", f"{here}/volume"]) == 2
    assert f"'{here}/volume.job' is not in the shared volume" in capsys.readouterr().err
    assert sorted(here.rglob("*")) == before


def pretrain_on_kubernetes(volume: Path, *options: str, words: Sequence[str] = ()) -> int:
    settings = [*options, f"kubernetes.mount_path={volume}", "kubernetes.pretrain.gpus=0"]
    return main(["pretrain", "--on", "kubernetes", *settings, "--",
                 "--config", "tiny.toml", "--shards", "shards", "--output", "runs/tiny", *words])  # fmt: skip


def kubectl(here: Path, answer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in, of a line of shell."""
    (here / "bin").mkdir()
    (here / "bin" / "kubectl").write_text(f"#!/bin/sh\n{answer}\n")
    (here / "bin" / "kubectl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{here}/bin")


@pytest.mark.parametrize("refused", ["", "error: no such namespace", "The Job is invalid: field is immutable"])
def test_on_kubernetes_the_manifests_are_applied_where_kubectl_is_at_hand(here, pods, monkeypatch, capsys, refused):
    answer = f"echo '{refused}' >&2; exit 1" if refused else "echo applied: $*"
    kubectl(here, answer, monkeypatch)
    command, once_more = f"apply -k {here}/runs/tiny/job", f"kubectl replace --force -k {here}/runs/tiny/job"
    assert pretrain_on_kubernetes(here, "--dry-run") == 0
    assert capsys.readouterr().out == f"to submit: kubectl {command}\n"
    assert pretrain_on_kubernetes(here) == (2 if refused else 0)
    told = capsys.readouterr()
    if refused:
        advice = f"; to delete what is there, even if it runs, and make it anew: {once_more}"
        immutable = "immutable" in refused
        assert told.err.splitlines()[-1] == f"error: kubectl {command}: {refused}{advice if immutable else ''}"
        return
    applied, pods_of, again = told.out.splitlines()
    assert (applied, again) == (f"applied: {command}", f"once more: {once_more}")
    label = yaml.safe_load((here / "runs/tiny/job/pretrain/kustomization.yaml").read_text())["labels"][0]["pairs"]
    (pair,) = (f"{name}={value}" for name, value in label.items())
    assert pods_of == f"pods      kubectl get pods --namespace=default --selector={pair} --watch"


def test_on_kubernetes_pods_may_write_into_what_the_launch_has_made(here, pods):
    before = here.stat()
    assert pretrain_on_kubernetes(here) == 0
    assert here.stat().st_mode == before.st_mode
    for folder in (here / "runs", here / "runs" / "tiny"):
        assert folder.stat().st_mode & 0o2070 == 0o2070
        assert folder.stat().st_gid == os.getgid()


def test_on_kubernetes_pods_may_write_into_a_folder_that_the_user_has_made(here, pods, monkeypatch):
    monkeypatch.setattr("cluster.k8s.launch.POD_USER", os.getuid() + 1)
    run = here / "runs" / "tiny"
    run.mkdir(parents=True)
    run.chmod(0o755)
    assert pretrain_on_kubernetes(here) == 0
    assert run.stat().st_mode & 0o2070 == 0o2070


@pytest.mark.parametrize("mode", [0o770, 0o707])
def test_on_kubernetes_a_run_that_pods_can_write_into_is_left_as_it_is(here, pods, monkeypatch, mode):
    """Its owner may be another user, who alone may change it."""
    monkeypatch.setattr("cluster.k8s.launch.POD_USER", os.getuid() + 1)
    run = here / "runs" / "tiny"
    run.mkdir(parents=True)
    run.chmod(mode)
    assert pretrain_on_kubernetes(here) == 0
    assert run.stat().st_mode & 0o7777 == mode


@pytest.fixture
def usual_umask():
    """Others may enter what is made."""
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.mark.parametrize(("mode", "closed"), [(0o700, True), (0o750, True), (0o711, False)])
def test_on_kubernetes_folders_that_pods_may_not_enter_are_warned_of(
    usual_umask, here, pods, monkeypatch, capsys, mode, closed
):
    """As homes are: a Pod would not come as far as its code."""
    monkeypatch.setattr("cluster.k8s.launch.POD_USER", os.getuid() + 1)
    monkeypatch.setattr("cluster.k8s.launch.POD_GROUP", os.getgid() + 1)
    monkeypatch.setattr("os.chown", lambda *_: None)
    (here / "home").mkdir()
    (here / "home").chmod(mode)
    assert pretrain_on_kubernetes(here, words=["--output", "home/runs/tiny"]) == 0
    told = [line.partition(": Pods, ")[0] for line in capsys.readouterr().err.splitlines() if "may not enter" in line]
    assert told == [f"warning: {here}/home"] * closed


@pytest.mark.parametrize(
    ("cache", "seen"),
    [("HERE/copies/shards", True), ("/tmp/shards", True), ("$CACHE/shards", True), ("/local/shards", False),
     ("shards", False)],
)  # fmt: skip
def test_on_kubernetes_a_cache_of_shards_lies_where_pods_can_write(here, pods, monkeypatch, capsys, cache, seen):
    """Their root is read-only."""
    monkeypatch.setattr("cluster.k8s.launch.POD_USER", os.getuid() + 1)
    assert pretrain_on_kubernetes(here, words=[f"data.cache_dir={cache.replace('HERE', str(here))}"]) == 2 * (not seen)
    told = (
        f"data.cache_dir {cache}: Pods can't write there; take a folder below {here}, which all of them share, or /tmp"
    )
    assert (told in capsys.readouterr().err) != seen
    folders = [here / "copies", here / "copies" / "shards"]
    made = [folder.stat().st_mode & 0o2070 == 0o2070 for folder in folders if folder.exists()]
    assert made == [True, True] * cache.startswith("HERE")


def test_on_kubernetes_pods_may_write_into_every_output_of_a_chain(here, pods):
    settings = [
        f"kubernetes.mount_path={here}",
        "kubernetes.pretrain.gpus=0",
        *chain_of("made/128", results="results/large"),
    ]
    assert main(["all", "--on", "kubernetes", *settings]) == 0
    for name in ("made", "made/128", "run", "results", "results/large"):
        assert (here / name).stat().st_mode & 0o2070 == 0o2070
    assert main(["preprocess", "--on", "kubernetes", settings[0], "--", *TEXTS, "--output", "alone/shards"]) == 0
    for name in ("alone", "alone/shards"):
        assert (here / name).stat().st_mode & 0o2070 == 0o2070


@pytest.mark.parametrize("open_to_all", [False, True])
def test_on_kubernetes_pods_may_write_where_flink_takes_its_files_from(here, pods, monkeypatch, open_to_all):
    """The volume's own folder may be root's alone; where Pods may write there, they make it themselves."""
    monkeypatch.setattr("cluster.k8s.launch.POD_USER", os.getuid() + 1)
    here.chmod(0o777 if open_to_all else 0o755)
    settings = [f"kubernetes.mount_path={here}", "kubernetes.preprocess.engine=flink"]
    assert main(["preprocess", "--on", "kubernetes", *settings, "--", *TEXTS, "--output", "made"]) == 0
    made = [folder.stat().st_mode & 0o2070 == 0o2070 for folder in here.glob(STAGING)]
    assert made == [True] * (not open_to_all)
    assert f"--artifacts-dir=$(VOLUME)/{STAGING} " in (here / "made.job/base/preprocess/flink/submit.yaml").read_text()


def test_on_kubernetes_options_of_flink_are_refused_before_anything_is_made(here, pods, capsys):
    settings = [f"kubernetes.mount_path={here}", "kubernetes.preprocess.engine=flink"]
    words = [*TEXTS, "--output", "made", "--runner=FlinkRunner"]
    assert main(["preprocess", "--on", "kubernetes", *settings, "--", *words]) == 2
    assert capsys.readouterr().err.startswith("error: preprocess: --runner=FlinkRunner: leave it out")
    assert not list(here.glob("made*"))


def test_on_kubernetes_results_in_the_run_directory_do_not_make_it_an_old_one(here, pods):
    settings = [
        f"kubernetes.mount_path={here}",
        "kubernetes.pretrain.gpus=0",
        *chain_of(results="run/results"),
    ]
    assert main(["all", "--on", "kubernetes", *settings]) == 0
    assert RunDirectory(here / "run").is_new


def test_on_kubernetes_an_image_without_a_registry_is_warned_of(here, pods, capsys):
    chain = [
        "kubernetes.pretrain.gpus=0",
        *chain_of("/shared/made", "/shared/run", "/shared/results"),
    ]
    assert main(["all", "--on", "kubernetes", "--dry-run", *chain]) == 0
    told = capsys.readouterr().err.splitlines()
    assert [line.partition(":0.1.0")[0] for line in told] == [
        "warning: image bert-preprocessing",
        "warning: image bert-pretraining",
    ]
    assert all("names no registry: nodes look for it on Docker Hub unless it is loaded there" in line for line in told)
    named = ["kubernetes.image=localhost/a:1", "kubernetes.preprocess.image=registry:5000/b:1"]
    assert main(["all", "--on", "kubernetes", "--dry-run", *chain, *named]) == 0
    assert capsys.readouterr().err == ""


def tolerated(job: str, key: str = "gpu") -> str:
    return f'kubernetes.{job}.tolerations=[{{key="{key}"}}]'


@pytest.mark.parametrize(
    ("settings", "lacks"),
    [
        ([tolerated("pretrain")], ("eval", "pretrain")),
        ([tolerated("eval")], ("pretrain", "eval")),
        ([tolerated("pretrain"), tolerated("eval")], None),
        ([tolerated("pretrain"), "kubernetes.eval.gpus=0"], None),
        ([tolerated("pretrain"), "kubernetes.pretrain.gpus=0"], None),
        ([tolerated("preprocess", "memory")], None),
        ([], None),
    ],
)
def test_on_kubernetes_pods_that_lack_the_toleration_of_others_with_gpus_are_warned_of(
    here, pods, capsys, settings, lacks
):
    """Nodes with GPUs have a taint as a rule: an evaluation would stay Pending when the training is done."""
    chain = [
        "kubernetes.image=localhost/a:1",
        "kubernetes.preprocess.image=localhost/b:1",
        *chain_of("/shared/made", "/shared/run", "/shared/results"),
    ]
    assert main(["all", "--on", "kubernetes", "--dry-run", *chain, *settings]) == 0
    told = capsys.readouterr().err
    assert told.count("\n") == bool(lacks)
    if lacks:
        asks, other = lacks
        expected = f"kubernetes.{asks} asks for GPUs without the toleration of gpu that kubernetes.{other} has"
        assert told.startswith(f"warning: {expected}")


@pytest.mark.parametrize("source", ["a umask", "a checkout"])
def test_on_kubernetes_pods_may_read_the_code_whatever_lets_nobody(here, pods, monkeypatch, source):
    if source == "a checkout":
        checkout = here / "checkout"
        for package in PACKAGES:
            shutil.copytree(ROOT / package, checkout / package, ignore=shutil.ignore_patterns("__pycache__"))
        for path in checkout.rglob("*"):
            path.chmod(0o700 if path.is_dir() else 0o600)
        monkeypatch.setattr("cluster.snapshot.ROOT", checkout)
    before = os.umask(0o077 if source == "a umask" else 0o022)
    try:
        assert pretrain_on_kubernetes(here) == 0
    finally:
        os.umask(before)
    job = here / "runs" / "tiny" / "job"
    (snapshot,) = job.glob("snapshot-*")
    for path in (job, snapshot, *snapshot.rglob("*")):
        wanted = 0o055 if path.is_dir() else 0o044
        assert path.stat().st_mode & wanted == wanted, path


def test_on_kubernetes_a_run_that_pods_can_not_write_into_is_refused(here, pods, monkeypatch, capsys):
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr("cluster.k8s.launch.POD_USER", os.getuid() + 1)
    monkeypatch.setattr("cluster.k8s.launch.POD_GROUP", os.getgid() + 1)
    monkeypatch.setattr(os, "chown", refuse)
    assert pretrain_on_kubernetes(here) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert f"have root run chgrp {os.getgid() + 1} {here}/runs && chmod g+rwxs {here}/runs\n" in told
    assert not list(here.rglob("*.yaml"))


@pytest.mark.parametrize(("ending", "step", "stays"), [("failed", 4, False), ("done", 4, False), ("done", 8, True)])
def test_on_kubernetes_evaluation_does_not_take_an_old_ending_for_the_new_training_s(
    here, pods, monkeypatch, capsys, ending, step, stays
):
    """A run that is done may get more steps, and is then not done any more."""
    run = RunDirectory(here / "run")
    run.checkpoint(step).mkdir(parents=True)
    shutil.copyfile(here / "tiny.toml", run.config)
    run.set_outcome(ending)
    settings = [f"kubernetes.mount_path={here}", "kubernetes.pretrain.gpus=0", *chain_of()]
    for words in (["--dry-run"], []):  # there is no kubectl
        assert main(["all", "--on", "kubernetes", *words, *settings]) == 0
        assert run.ending == ending
        first = "" if stays else f"rm -f {here}/run/outcome && "
        assert capsys.readouterr().out == f"to submit: {first}kubectl apply -k {here}/run/job\n"
    kubectl(here, "echo jobset/...-pretrain created", monkeypatch)
    assert main(["all", "--on", "kubernetes", *settings]) == 0
    assert bool(run.outcome) == stays


@pytest.fixture
def failed(here):
    """A run that has failed."""
    run = RunDirectory(here / "runs" / "tiny")
    run.path.mkdir(parents=True)
    shutil.copyfile(here / "tiny.toml", run.config)
    run.set_outcome("failed", "the loss is nan")
    return run


@pytest.mark.parametrize(("kind", "answer", "code", "stays"), [
    ("jobset", "exit 1", 2, True),
    ("jobset", "echo jobset.jobset.x-k8s.io/NAME unchanged", 0, True),
    ("job", "echo service/NAME unchanged; echo job.batch/NAME unchanged", 0, True),
    ("job", "echo service/NAME unchanged; echo job.batch/NAME created", 0, False),
    ("trainjob", "echo trainingruntime.trainer.kubeflow.org/NAME unchanged; echo trainjob.trainer.kubeflow.org/NAME "
     "created", 0, False),
    ("trainjob", "echo trainjob.trainer.kubeflow.org/NAME unchanged", 0, True),
])  # fmt: skip
def test_on_kubernetes_an_old_ending_stays_where_no_training_begins(
    here, pods, failed, monkeypatch, kind, answer, code, stays
):
    kubectl(here, answer.replace("NAME", f"{_object_name(failed.path)}-pretrain"), monkeypatch)
    assert pretrain_on_kubernetes(here, f'kubernetes.pretrain.kind="{kind}"') == code
    assert failed.outcome == (("failed", "the loss is nan") if stays else None)


def test_on_kubernetes_an_old_ending_that_can_not_be_put_back_is_told(here, pods, failed, monkeypatch, capsys):
    kubectl(here, "exit 1", monkeypatch)
    fail_on(monkeypatch, launch_on_kubernetes, "exists", failed.outcome_file, errno.ESTALE)
    assert pretrain_on_kubernetes(here) == 1
    told = f"error: {failed.outcome_file}: can't be written (Stale file handle); no training has begun, so write there"
    assert capsys.readouterr().err.endswith(f"{told} again what it held: failed: the loss is nan\n")


def test_on_kubernetes_what_begins_a_failed_run_anew_takes_its_ending_away(here, pods, failed, monkeypatch, capsys):
    """Or the evaluation, which looks at once, would take it for the new one's."""
    kubectl(here, "echo spec.template: Invalid value: field is immutable >&2; exit 1", monkeypatch)
    assert pretrain_on_kubernetes(here) == 2
    replace = f"rm -f {failed.outcome_file} && kubectl replace --force -k {failed.path}/job"
    assert capsys.readouterr().err.endswith(f"make it anew: {replace}\n")
    assert failed.ending == "failed"


@pytest.mark.parametrize(("is_folder", "code"), [(False, 1), (True, 2)])
def test_on_kubernetes_an_old_ending_that_can_not_be_read_is_told(here, pods, monkeypatch, capsys, is_folder, code):
    run = RunDirectory(here / "runs" / "tiny")
    run.path.mkdir(parents=True)
    shutil.copyfile(here / "tiny.toml", run.config)
    if is_folder:
        run.outcome_file.mkdir()
    else:
        fail_at(monkeypatch, run.outcome_file)
    assert pretrain_on_kubernetes(here) == code
    reason = os.strerror(errno.EISDIR) if is_folder else REASON
    told = f"error: pretrain: {run.outcome_file}: can't be read ({reason}); mend that and launch again\n"
    assert capsys.readouterr().err.endswith(told)


@pytest.mark.parametrize("job", ["preprocess", "pretrain"])
@pytest.mark.parametrize("folder", [".", "home/shards"])
def test_on_kubernetes_a_folder_that_fails_for_a_moment_is_told_in_a_line(here, pods, monkeypatch, capsys, job, folder):
    """Whichever look at it that is: one that asks what is there, or one at what was found."""
    write_shards(here / "home" / "shards")
    (here / "home" / "shards" / "a.txt").touch()
    really_stat, looks, failing = os.stat, [0], -1

    def stat_or_fail(path: Any, **more: Any) -> os.stat_result:
        if isinstance(path, str | Path) and Path(path) == here / folder:
            looks[0] += 1
            if looks[0] - 1 == failing:
                raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))
        return really_stat(path, **more)

    def launch_once() -> int:
        shutil.rmtree(here / "runs", ignore_errors=True)
        looks[0] = 0
        if job == "pretrain":
            return pretrain_on_kubernetes(here, words=["--shards", "home/shards"])
        settings = [f"kubernetes.mount_path={here}", "kubernetes.preprocess.engine=flink"]
        words = ["--books", "home/shards/a.txt", "--train-vocab", "500", "--output", "runs/made"]
        return main(["preprocess", "--on", "kubernetes", *settings, "--", *words])

    monkeypatch.setattr(os, "stat", stat_or_fail)
    assert launch_once() == 0
    whole, codes = capsys.readouterr().out, set()
    for failing in range(looks[0]):  # noqa: B007  stat_or_fail reads it
        codes.add(code := launch_once())
        told = capsys.readouterr()
        if code:
            assert re.search(rf"^error: .*{here / folder}: can't be .*Stale file handle", told.err.splitlines()[-1])
        else:
            assert told.out == whole, "one that nothing hangs on"
    assert 1 in codes
    assert codes <= {0, 1}


def test_what_a_site_s_sbatch_says_may_be_in_another_encoding(here, slurm, capsys):
    slurm.stand_in("sbatch", "sys.stdout.buffer.write(b'Ihr Projekt l\\xe4uft ab\\n41\\n')")
    assert launch() == 0
    assert "pretrain: job 41\n" in capsys.readouterr().out


def test_what_kubectl_says_may_be_in_another_encoding(here, pods, monkeypatch, capsys):
    kubectl(here, r"printf 'ge\344ndert\n'", monkeypatch)
    assert pretrain_on_kubernetes(here) == 0
    assert capsys.readouterr().out.startswith("ge\ufffdndert\n")


@pytest.mark.parametrize("place", ["slurm", "kubernetes"])
def test_the_settings_of_the_documentation_can_be_launched(tmp_path, monkeypatch, pods, place):
    def settings_in(page: str) -> dict[str, Any]:
        """The first block of TOML of a page."""
        text = (ROOT / "docs" / page).read_text(encoding="utf-8").replace("/shared", str(tmp_path))
        return tomllib.loads(text.partition("```toml")[2].partition("```")[0])

    monkeypatch.chdir(tmp_path)
    for name in ("trainer", "ds_config.json"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "raw" / "books").mkdir(parents=True)
    for name in ("enwiki-1.xml.bz2", "books/1.txt", "vocab.txt"):
        (tmp_path / "raw" / name).touch()
    settings = settings_in("cluster.md") | (settings_in("kubernetes.md") if place == "kubernetes" else {})
    (tmp_path / "cluster.toml").write_text(tomli_w.dumps(settings))
    shared = [f'slurm.shared=["{tmp_path}"]', f"kubernetes.mount_path={tmp_path}"]
    assert main(["all", "--on", place, "--dry-run", "--settings", "cluster.toml", *shared]) == 0


# ---- snapshots ------------------------------------------------------------------------------------------------------


def test_a_snapshot_is_found_before_the_checkout_and_knows_where_it_is_from(tmp_path):
    snapshot = take_snapshot(tmp_path)
    program = "import cluster, trainer.lineage as l; print(cluster.__file__, l.__file__, l.code_version()['commit'])"
    environment = {**os.environ, "PYTHONPATH": str(snapshot), "PYTHONSAFEPATH": "1"}
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, env=environment, capture_output=True, text=True)
    *modules, commit = done.stdout.split()
    assert [Path(module).parents[1] for module in modules] == [snapshot, snapshot]
    assert commit == (snapshot / "code.commit").read_text().strip()


def test_equal_content_is_one_snapshot_and_another_recipe_is_another(here):
    given = ["--config", "tiny.toml", "--shards", "shards", "--output", "run"]
    first, again, other = (
        take_snapshot(here / "job", READERS["pretrain"]([*given, f"train.seed={seed}"])) for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other
    assert sorted(path.name for path in (here / "job").iterdir()) == sorted({first.name, other.name})
    assert not list(first.rglob("__pycache__"))


def test_a_snapshot_has_no_compiled_files_and_no_links_that_lead_nowhere(tmp_path, monkeypatch):
    """As an editor leaves them beside a file that it holds open; another copy of the same code is the same snapshot."""
    monkeypatch.setattr("cluster.snapshot.ROOT", tmp_path)
    for package in PACKAGES:
        (tmp_path / package / "__pycache__").mkdir(parents=True)
        (tmp_path / package / "__pycache__" / "a.pyc").touch()
        (tmp_path / package / "a.py").touch()
    before = take_snapshot(tmp_path / "job")
    assert sorted(path.name for path in (before / "trainer").iterdir()) == ["a.py"]
    (tmp_path / "trainer" / ".#a.py").symlink_to("user@host.1:2")
    assert take_snapshot(tmp_path / "job") == before
    (tmp_path / "eval" / "a.py").rename(tmp_path / "eval" / "b.py")
    assert take_snapshot(tmp_path / "job") != before


def test_every_option_of_the_trainer_passes_through(here):
    """What launch knows, it must know as the trainer does."""
    given = ["--config", "tiny.toml", "--shards", "shards", "s3://bucket/books", "train.seed=4", "--output", "run",
             "--init-from", "shards"]  # fmt: skip
    program = READERS["pretrain"](given)
    parsed = parse(program.command(here)[1:])
    assert parsed.output == here / "run"
    assert parsed.shards == [str(here / "shards"), "s3://bucket/books"]
    assert parsed.init_from == here / "shards"
    assert program.recipe.train.seed == 4


def test_what_a_recipe_leaves_open_of_the_model_is_that_of_the_weights(here):
    open_recipe = here / "open.toml"
    open_recipe.write_text(TINY[TINY.index("[schedule]") :])
    given = ["--config", "open.toml", "--shards", "shards", "--output", "run", "--init-from", "old"]
    with pytest.raises(ConfigError, match=r"open\.toml: has no \[model\]"):
        READERS["pretrain"](given)  # of a folder that is not seen here, the job itself would tell
    (here / "old").mkdir()
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    (here / "old" / "config.json").write_text(json.dumps({"vocab_size": 64, "hidden_act": "relu", **sizes}))
    model = READERS["pretrain"](given).recipe.model
    assert (model.vocab_size, model.num_hidden_layers, model.hidden_act) == (64, 2, "relu")
    run = RunDirectory(here / "other")
    begin_checkpoint(run, 4)
    model = dataclasses.replace(model, hidden_act="gelu")
    learner = Learner(dataclasses.asdict(model), "v", "adamw", 1)
    commit_checkpoint(run, RunState(4, 32, 1, 1, "m", "c", learner, "a CPU"))
    given[-1] = "other/checkpoints/step-000004"
    assert READERS["pretrain"](given).recipe.model == model
    given[1] = "tiny.toml"
    with pytest.raises(ConfigError, match=r"step-000004 has max_position_embeddings 512, the recipe 32; "):
        READERS["pretrain"](given)
    (here / "run").mkdir()
    RunDirectory(here / "run").config.write_text(TINY)  # a run that has begun keeps to its own model
    READERS["pretrain"](given)


def test_weights_that_can_not_be_looked_at_for_a_moment_are_no_mistake(here, capsys, monkeypatch):
    (here / "old").mkdir()
    (here / "old" / "config.json").write_text("{}")
    fail_at(monkeypatch, here / "old" / "config.json")
    words = ["--config", "tiny.toml", "--shards", "shards", "--output", "run", "--init-from", "old"]
    assert main(["pretrain", "--on", "local", "--dry-run", "--", *words]) == 1
    error = capsys.readouterr().err
    assert f"{here}/old/config.json" in error
    assert REASON in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("--init_from=shards", "pretrain: unknown option --init_from: here it is --init-from"),
        ("--shard", "pretrain: unknown option '--shard': did you mean '--shards'?"),
        ("--lr=1e-4", "pretrain: unknown option --lr: here it is schedule.peak=X"),
        ("train_seed=3", "train_seed=3: unknown setting train_seed; did you mean train?"),
        ("3", "'3' is not of the form section.key=value"),
    ],
)
def test_what_the_trainer_does_not_take_is_told_at_the_launch(here, capsys, word, told):
    """And not by a job that has waited for its nodes."""
    command = ["--config", "tiny.toml", word, "--shards", "shards", "--output", "run"]
    assert main(["pretrain", "--on", "local", "--dry-run", "--", *command]) == 2
    assert capsys.readouterr().err == f"error: {told}\n"
    assert not (here / "run").exists()


def test_an_option_that_is_given_twice_counts_twice(here):
    """As the programs have it."""
    made = READERS["preprocess"](["--books", "a", "--output", "made", "--books", "b"])
    assert made.corpus == (str(here / "a"), str(here / "b"))
    trained = READERS["pretrain"](["--config", "tiny.toml", "--shards", "a", "--shards", "b", "--output", "run"])
    assert trained.reads == (here / "a" / "manifest.json", here / "b" / "manifest.json")


def test_the_command_line_goes_before_the_arguments_of_the_settings(here):
    of_settings = ["--config", "tiny.toml", "--shards", "shards", "--output", "run", "train.seed=3"]
    job = ["pretrain", "--on", "local", "--dry-run", f"pretrain.arguments={json.dumps(of_settings)}"]
    assert main([*job, "--", "--output", "other", "train.seed=4"]) == 0
    (config,) = here.glob("other/job/snapshot-*/config.toml")
    assert "seed = 4" in config.read_text()
    assert not (here / "run").exists()


# ---- what is refused ------------------------------------------------------------------------------------------------

BAD = {
    "a partition that is not there": (["slurm.partition=gpuu"], "no partition 'gpuu'; this cluster has cpu, gpu, "),
    "more nodes than there are": (
        ["slurm.partition=gpu", "slurm.pretrain.nodes=5", "slurm.pretrain.gpus_per_node=8",
         "phases.0.global_batch_size=80"],
        "needs 5 nodes with 8 GPUs for 1-00:00:00, but gpu has 4 nodes with 8 h100 GPUs, 48 h at most",
    ),
    "GPUs of another kind": (
        ["slurm.partition=gpu", "slurm.pretrain.gpus_per_node=4", "slurm.pretrain.gpu_type=a100"],
        "needs 2 nodes with 4 a100 GPUs",
    ),
    "GPUs where there are none": (
        ["slurm.pretrain.partition=cpu", "slurm.pretrain.gpus_per_node=2"],
        "but cpu has 10 nodes with no GPUs, without limit",
    ),
    "more time than a partition gives": (["slurm.partition=short"], "but short has 2 nodes with 2 GPUs, 1 h at most"),
    "a setup that no shell reads": (['slurm.setup=["a\\u0000b"]'], "setup: 'a\\x00b' holds a character that no shell"),
    "a variable that can't be": (['slurm.environment={A="x\\u0000y"}'], "environment: A holds a NUL character"),
    "a variable that is not UTF-8": (["slurm.environment.A=caf\udce9"], "A holds 'caf\\udce9', which is not UTF-8"),
    "a setup that is not UTF-8": (['slurm.setup=["caf\udce9"]'], "setup: 'caf\\udce9' holds a character that no shell"),
    "a folder that can't be printed": (['slurm.shared=["/a\\u0000b"]'], "shared holds characters that can't be"),
    "a time in other digits": (["slurm.pretrain.time=１２:00:00"], "is not of a form like 90 (minutes)"),
    "no time": (["slurm.pretrain.time=0"], "time must be positive, not '0'"),
    "a time that is none": (["slurm.pretrain.time=two days"], "time 'two days' is not of a form like 90 (minutes)"),
    "a memory that is none": (["slurm.pretrain.memory=5 GB"], "memory '5 GB' is not a number with K, M, G or T"),
    "no time left after the notice": (["slurm.pretrain.time=4"], "notice, 300 s, leaves nothing of pretrain.time, 4"),
    "an unknown setting": (["slurm.pretrain.node=2"], "slurm.pretrain.node; did you mean slurm.pretrain.nodes?"),
    "a setting of the jobs": (
        ["slurm.time=10"],
        "slurm.time; did you mean slurm.preprocess.time or slurm.pretrain.time or slurm.eval.time?",
    ),
    "an option that is none": (['slurm.options=["-x; rm"]'], "options: '-x; rm' is not an option of sbatch"),
    "an option of one job that is none": (['slurm.eval.options=["rm"]'], "slurm.eval: options: 'rm' is not an"),
    "a variable of one job that is its own": (["slurm.eval.environment.RANK=1"], "slurm.eval: environment: 'RANK'"),
    "a name with a line end": (['slurm.account="a\\n#SBATCH --uid=0"'], "is not a name that SLURM knows"),
    "a variable that is none": (['slurm.environment={"A;B"="1"}'], "'A;B' is not the name of a variable"),
    "a variable of the job's own": (["slurm.environment.RANK=1"], "'RANK' is not the name of a variable, or one that"),
    "where programs are found": (['slurm.environment.PATH="/opt/bin"'], "'PATH' is not the name of a variable, or one"),
    "fewer ranks than GPUs": (
        ["slurm.pretrain.gpus_per_node=4", "slurm.pretrain.tasks_per_node=2"],
        "2 ranks on 4 GPUs; leave tasks_per_node at 0",
    ),
    "no time left for an evaluation": (["slurm.eval.time=4"], "notice, 300 s, leaves nothing of eval.time, 4"),
    "an image that is not there": (
        ["slurm.container.runtime=apptainer", "slurm.container.image=/nowhere/bert.sif"],
        "slurm.container.image: /nowhere/bert.sif: no such file",
    ),
    "an image that can't be looked for": (
        ["slurm.container.runtime=apptainer", f"slurm.container.image=/{LONG}"],
        f"slurm.container.image: /{LONG}: no such file",
    ),
    "data that the image does not see": (
        ["slurm.container.runtime=pyxis", "slurm.container.image=a#b:1", 'slurm.container.mounts=["/data"]'],
        "is not within the image; add its folder to slurm.container.mounts",
    ),
    "a disk of this machine": (["slurm.shared=[]"], "a file system of this machine alone; take a folder that all"),
    "a current folder that nodes don't see": (['slurm.shared=["HERE/runs", "HERE/shards"]'], "lies on"),
    "more ranks than the batch can divide": (
        ["slurm.pretrain.gpus_per_node=8", "slurm.partition=gpu"],
        "a global batch of 16 can't be cut into micro-batches of 2 for 16 rank(s): it must be a multiple of 32",
    ),
    "settings that are not there": (["--settings", "nowhere.toml"], "nowhere.toml: can't read the cluster's settings"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_told_in_one_line_before_anything_is_submitted(here, slurm, capsys, case):
    settings, message = BAD[case]
    settings = [setting.replace("HERE", str(here)) for setting in settings]
    recipe = [setting for setting in settings if setting.startswith("phases")]
    settings = [setting for setting in settings if not setting.startswith("phases")]
    assert main(["pretrain", "--on", "slurm", "--settings", "cluster.toml", *settings, "--", "--config", "tiny.toml",
                 "--shards", "shards", "--output", "runs/tiny", *recipe]) == 2  # fmt: skip
    errors = capsys.readouterr().err
    assert errors.startswith("error: ")
    assert errors.count("\n") == 1
    assert message in errors
    assert not [name for name, *_ in slurm.calls() if name == "sbatch"]
    assert not (here / "runs").exists()


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["pretrain", "--on", "local", "--", "--shards", "shards", "--output", "run"], "pretrain: the following"),
        (["pretrain", "--on", "local", "--", "--config", "tiny.toml", "--shards", "nowhere", "--output", "run"],
         "nowhere/manifest.json: not there; make it first"),
        (["pretrain", "--on", "local", "--", "--config", "tiny.toml", "--shards", "shards", "--output", "run",
          "model.hiden_size=3"], "unknown setting model.hiden_size"),
        (["eval", "--on", "local", "--", "--checkpoint", "nowhere", "--output", "run", *MLM], "nowhere: not there"),
        (["preprocess", "--on", "local", "--", "--output", "gs://bucket/shards"], "is not a folder; use `beam run`"),
        (["preprocess", "--on", "local", "--", "--output", "/"], "preprocess: --output / has no name; take a folder"),
        (["all", "--on", "local", "--", "--output", "x"], "all: which program is this for?"),
        (["all", "--on", "slurm"], "write arguments = [...] in [preprocess], [pretrain], [eval] of the file that"),
        (["pretrain", "--on", "local", "local.ranks=2"], "give them after --, or as arguments = [...] in [pretrain]"),
        (["pretrain", "--on", "kubernetes", "kubernetes.pretrain.nodes=3", "--", "--config", "tiny.toml",
          "--shards", "/shared/s", "--output", "/shared/run"], "for 24 rank(s): it must be a multiple of 48"),
        (["pretrain", "--on", "kubernetes", "kubernetes.pretrain.gpus=0", "--", "--config", "tiny.toml",
          "--shards", "shards", "--output", "/run"], "kubernetes: "),
        (["eval", "--on", "kubernetes", "--", "--checkpoint", "/shared/export", "--output", "run", *MLM],
         "run' is not in the shared volume; give a whole path below /shared"),
        (["eval", "--on", "kubernetes", "--", "--checkpoint", "shards", "--output", "/shared/results", *MLM],
         "shards' is not in the shared volume"),
        (["eval", "--on", "kubernetes", "--", "--checkpoint", "/shared/e", "--output", "/shared/r", *MLM,
          "--data", "data"], "data' is not in the shared volume"),
        (["eval", "--on", "kubernetes", "--", "--checkpoint", "/shared/e", "--output", "/shared/r",
          "--tasks", "glue,tickets.toml", "--data", "/shared"], "tickets.toml' is not in the shared volume"),
        (["eval", "--on", "slurm", "--", "--checkpoint", "shards", "--output", "run", *MLM, "--shards", "a", "b"],
         "eval: --shards: an evaluation reads one directory; make one of each a job of its own"),
        (["eval", "--on", "slurm", "--", "--checkpoint", "shards", "--output", "run", "--tasks", "mrpc"],
         "eval: mrpc reads a data set; give the folder of its files with --data, or --hub"),
        (["eval", "--on", "slurm", "--", "--checkpoint", "shards", "--output", "run", *MLM, "--data", "nowhere"],
         "nowhere: not there; make it first"),
        (["preprocess", "--on", "kubernetes", "--", *TEXTS, "--output", "run"], "run' is not in the shared volume"),
        (["preprocess", "--on", "kubernetes", "--", *TEXTS, "--output", "/shared/made", "--wikipedia", "data/enwiki-*"],
         "data/enwiki-*' is not in the shared volume; give a whole path below /shared"),
        (["preprocess", "--on", "kubernetes", "--", "--output", "/shared/made", "--jsonl", "s3://b/x",
          "--vocab", "v.txt"], "v.txt' is not in the shared volume"),
        (["pretrain", "--on", "local", "local.ranks=3", "local.gpus=2", "--", "--output", "run"], "3 ranks on 2 GPUs"),
        (["pretrain", "--on", "local", "local.threads=-1", "--", "--output", "run"], "threads must be 0 or more"),
        (["eval", "--on", "slurm", "--", "--checkpoint", "shards", "--output", "a\nb", *MLM], "holds characters that"),
    ],
)  # fmt: skip
def test_bad_arguments_of_the_programs(here, slurm, capsys, command, message):
    assert main(command) == 2
    assert message in capsys.readouterr().err
    assert not (here / "run").exists()


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ("--config", "unknown option '--config': what is for the program itself follows --"),
        ("--setings", "unknown option '--setings': did you mean '--settings'?"),
    ],
)
def test_an_option_of_a_program_without_the_dashes_before_it_is_told_where_it_belongs(capsys, option, told):
    with pytest.raises(SystemExit, match="2"):
        main(["pretrain", "--on", "slurm", option, "tiny.toml"])
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("place", "wrong", "set_by"),
    [
        ("slurm", "slurm.pretrain.gpus_per_node=8", "slurm.pretrain.nodes and slurm.pretrain.gpus_per_node"),
        ("kubernetes", "kubernetes.pretrain.gpus=16", "kubernetes.pretrain.nodes and kubernetes.pretrain.gpus"),
        ("local", "local.ranks=3", "local.gpus and local.ranks"),
    ],
)
def test_ranks_that_can_not_divide_a_batch_are_told_with_what_sets_them_once_the_shards_are_there(
    here, pods, capsys, place, wrong, set_by
):
    settings = ["--settings", "cluster.toml", f"kubernetes.mount_path={here}", "kubernetes.image=example.com/bert:1"]
    command = ["pretrain", "--on", place, "--dry-run", *settings, wrong, "--"]
    command += ["--config", "tiny.toml", "--output", "run", "--shards"]
    assert main([*command, "nowhere"]) == 2
    assert "nowhere/manifest.json: not there; make it first" in capsys.readouterr().err
    assert main([*command, "shards"]) == 2
    assert capsys.readouterr().err.endswith(f", or the number of ranks, which {set_by} set\n")
    assert not (here / "run").exists()


def test_every_phase_is_checked(here, slurm, capsys):
    phase = (
        "[[phases]]\nsequence_length = 32\nsteps = 8\nglobal_batch_size = 9\nmicro_batch_size = 2\nmax_predictions = 4"
    )
    (here / "tiny.toml").write_text((here / "tiny.toml").read_text() + phase)
    assert launch("--dry-run") == 2
    assert "a global batch of 9 can't be cut into micro-batches of 2 for 2 rank(s)" in capsys.readouterr().err


def test_a_configuration_of_deepspeed_s_that_the_trainer_refuses_is_told_before_a_job_waits(here, slurm, capsys):
    (here / "ds_config.json").write_text('{"bf16": {"enabled": true}, "zero_optimization": {"stage": 0}}')
    assert launch("--dry-run") == 2
    assert capsys.readouterr().err.startswith("error: ds_config.json: mixed precision needs")
    assert not (here / "runs").exists()


def test_a_folder_whose_name_has_a_line_end_launches_nothing(here, capsys, monkeypatch):
    """It stands in the job files, in comments too."""
    (here / "a\nb").mkdir()
    monkeypatch.chdir(here / "a\nb")
    command = ["preprocess", "--on", "local", "--dry-run", "--", *TEXTS]
    assert main([*command, "--output", f"{here}/made"]) == 2
    assert "a\\nb': the name holds characters that can't be printed" in capsys.readouterr().err


def test_paths_of_the_settings_are_replaced_as_a_shell_would_or_refused(here, capsys, monkeypatch):
    monkeypatch.setenv("HOME", str(here / "home"))
    (here / "home").mkdir()
    for name in ("tiny.toml", "ds_config.json", "cluster.toml"):
        (here / name).rename(here / "home" / name)
    configuration = '"--config", "~/tiny.toml", "--deepspeed_config", "~/ds_config.json"'
    arguments = configuration + ', "--shards", "{}", "--output={}"'

    def pretrain(shards: str, output: str) -> int:
        given = f"pretrain.arguments=[{arguments.format(shards, output)}]"
        return main(["pretrain", "--on", "local", "--dry-run", "--settings=~/cluster.toml", given])

    assert pretrain("shards", "~/runs/large") == 0
    assert (here / "home" / "runs" / "large" / "job").is_dir()
    assert not (here / "~").exists()
    assert pretrain("$DATA/shards", "run") == 2
    assert capsys.readouterr().err == (
        "error: pretrain: argument --shards: $DATA/shards: no shell reads this, so it is not replaced; "
        "write the path out\n"
    )
    assert (
        main(["eval", "--on", "local", "--", "--checkpoint", "shards", "--output", "run", "--tasks", "mlm,$X.toml"])
        == 2
    )
    assert "eval: argument --tasks: $X.toml: no shell" in capsys.readouterr().err
    assert not (here / "run").exists()


OWN = {"good.toml": 'text = "a"\nlabel = "b"\nlabels = ["0", "1"]', "bad.toml": 'txt = "a"'}


@pytest.mark.parametrize(
    ("place", "tasks", "processes", "message"),
    [
        ("slurm", "mlm,nosuchtask", 1, "eval: no task is named 'nosuchtask'; there are mlm"),
        ("kubernetes", "mlm,nosuchtask,/shared/mine.toml", 1, "eval: no task is named 'nosuchtask'"),
        ("local", "mlm, bad.toml", 1, "unknown setting txt; did you mean text?"),
        (
            "slurm",
            "pretraining,fill_mask",
            4,
            "4 processes are to share the points of a grid, but pretraining, fill_mask",
        ),
        ("kubernetes", "mlm", 2, "2 processes are to share the points of a grid, but mlm learns nothing"),
        ("local", "mlm, nsp", 4, ""),
        ("slurm", "mlm,mrpc", 4, ""),
        ("slurm", "good.toml", 4, ""),
        ("kubernetes", "/shared/mine.toml", 4, ""),
    ],
)
def test_tasks_are_looked_up_and_processes_have_points_to_share(here, slurm, capsys, place, tasks, processes, message):
    for name, text in OWN.items():
        (here / name).write_text(text)
    settings = ["--settings", "cluster.toml", f"slurm.eval.array={processes}", f"kubernetes.eval.pods={processes}",
                "kubernetes.image=example.com/bert:1"]  # fmt: skip
    export, output = ("/shared/e", "/shared/results") if place == "kubernetes" else ("shards", "results")
    command = ["eval", "--on", place, "--dry-run", *settings, "--", "--checkpoint", export, "--output", output]
    data = "/shared" if place == "kubernetes" else "."
    assert main([*command, "--tasks", tasks, "--data", data]) == (2 if message else 0)
    told = capsys.readouterr().err
    assert message in told
    assert told.count("\n") == bool(message)
    assert (here / "results").exists() == (place != "kubernetes" and not message)


@pytest.mark.parametrize(
    ("job", "words", "told"),
    [
        ("preprocess", ["--sequence_lengths", "128"], "make_shards: error: unknown option '--sequence_lengths': did"),
        ("preprocess", ["--vocab", "v.txt"], "make_shards: error: argument --vocab: not allowed with argument --train"),
        ("evaluation", ["--learnig-rates", "1e-5"], "eval: error: unknown option '--learnig-rates': did you"),
        ("evaluation", ["--seeds", "0"], "eval: error: argument --seeds: '0' is not a whole number of 1 or more; see"),
        ("evaluation", ["--tasks", ","], "eval: error: the following arguments are required: --tasks; see"),
    ],
)
def test_what_a_program_does_not_take_is_told_before_its_job_or_the_jobs_before_it_wait(here, capsys, job, words, told):
    with pytest.raises(SystemExit, match="2"):
        main(["all", "--on", "local", *chain_of(**{job: words})])
    seen = capsys.readouterr().err
    assert seen.startswith(told)
    assert seen.count("\n") == 1
    assert not any((here / name).exists() for name in ("made.job", "run", "results"))


@pytest.mark.parametrize(("job", "module"), [("preprocess", "preprocessing.options"), ("eval", "eval.tasks")])
def test_where_the_packages_of_a_program_are_not_installed_its_arguments_are_left_to_the_job(
    here, monkeypatch, capsys, job, module
):
    monkeypatch.setitem(sys.modules, module, None)
    words = {"preprocess": ["--x"], "eval": ["--checkpoint", "shards", "--tasks", "x"]}[job]
    assert main([job, "--on", "local", "--dry-run", "--", "--output", "run", *words]) == 0
    told = f"warning: {job}: its arguments are not checked, since {module} is not installed here\n"
    assert capsys.readouterr().err == told


def test_what_preprocessing_reads_is_known_to_the_launch():
    assert {*CORPUS} == {*(f"--{source}" for source in SOURCES), "--vocab", "--contamination"}


def preprocess(*arguments: str, on: str = "slurm", settings: tuple[str, ...] = ()) -> int:
    return main(["preprocess", "--on", on, "--settings", "cluster.toml", "--dry-run", *settings, "--",
                 *TEXTS, "--output", "made", *arguments])  # fmt: skip


@pytest.mark.parametrize("place", ["slurm", "kubernetes", "local"])
@pytest.mark.parametrize(
    ("arguments", "missing"),
    [
        (["--contamination", "benchmark"], "benchmark"),
        (["--books", "*.txt", "--jsonl", "a/**/*.gz"], "a/**/*.gz"),
    ],
)
def test_inputs_of_preprocessing_that_are_not_there_are_told(here, slurm, pods, capsys, place, arguments, missing):
    settings = (f"kubernetes.mount_path={here}",)
    assert preprocess(*arguments, on=place, settings=settings) == 2
    assert capsys.readouterr().err.startswith(f"error: preprocess: {here}/{missing}: nothing is there; check the path")
    assert not list(here.glob("made*"))


def test_inputs_of_preprocessing_are_found_as_the_job_finds_them(here, slurm):
    for name in ("a [1].txt", "deep/further/down/b.txt"):
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).touch()
    container = ("slurm.container.runtime=pyxis", "slurm.container.image=a#b:1", f'slurm.container.mounts=["{here}"]')
    arguments = ("--books", "a [1].txt", "deep/**/*.txt", "s3://bucket/*.txt", "--contamination", "deep")
    assert preprocess(*arguments, settings=container) == 0


def test_inputs_of_preprocessing_on_a_disk_of_this_machine_are_told(here, slurm, monkeypatch, capsys):
    shared = (f'slurm.shared=["{here}/made", "{here}/made.job", "{here}/raw"]',)
    (here / "raw").mkdir()
    (here / "raw" / "a.txt").touch()
    monkeypatch.chdir(here / "raw")
    settings = ["--settings", f"{here}/cluster.toml", *shared]
    command = [
        "preprocess",
        "--on",
        "slurm",
        "--dry-run",
        *settings,
        "--",
        *TEXTS,
        "--output",
        f"{here}/made",
        "--books",
        "*.txt",
    ]
    assert main(command) == 0
    assert main([*command, f"{here}/b*.txt"]) == 2
    assert f"error: {here}: lies on " in capsys.readouterr().err


def test_inputs_of_preprocessing_must_be_within_the_image(here, slurm, monkeypatch, capsys):
    mounts = f'slurm.container.mounts=["{here}/made", "{here}/made.job", "{here}/bin"]'
    container = ("slurm.container.runtime=pyxis", "slurm.container.image=a#b:1", mounts)
    monkeypatch.chdir(here / "bin")
    settings = ["--settings", f"{here}/cluster.toml", *container]
    command = ["preprocess", "--on", "slurm", "--dry-run", *settings, "--", *TEXTS, "--output", f"{here}/made"]
    assert main([*command, "--books", f"{here}/bin/s*"]) == 0
    assert main([*command, "--books", f"{here}/*.txt"]) == 2
    assert f"error: {here}: is not within the image; add its folder to" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("read", "missing"),
    [(["--shards", "../shards"], "shards/manifest.json"), (["--shards", "s3://b/x", "--init-from", "../bin"], "bin")],
)
def test_what_a_training_reads_must_be_within_the_image(here, slurm, monkeypatch, capsys, read, missing):
    (here / "home").mkdir()
    monkeypatch.chdir(here / "home")
    container = ("slurm.container.runtime=pyxis", "slurm.container.image=a#b:1", 'slurm.container.mounts=["MOUNT"]')
    settings = ["--settings", "../cluster.toml", *(word.replace("MOUNT", f"{here}/home") for word in container)]
    given = ["--config", "../tiny.toml", "--deepspeed_config", "../ds_config.json", *read, "--output", "run"]
    assert main(["pretrain", "--on", "slurm", "--dry-run", *settings, "--", *given]) == 2
    assert f"error: {here}/{missing}: is not within the image; add its folder to" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("cache", "seen"),
    [("HERE/cache", True), ("cache", True), ("$SLURM_TMPDIR/shards", True), ("/scratch/shards", False)],
)
def test_a_cache_of_shards_must_be_within_the_image_though_not_shared(here, slurm, capsys, cache, seen):
    """One that only the node knows can't be looked at; the trainer will find out."""
    command = ["pretrain", "--on", "slurm", "--settings", "cluster.toml", "--dry-run", "slurm.container.image=a#b:1",
               "slurm.container.runtime=pyxis", f'slurm.container.mounts=["{here}"]', "--", "--config", "tiny.toml",
               "--shards", "shards", "--output", "run"]  # fmt: skip
    assert main([*command, f"data.cache_dir={cache.replace('HERE', str(here))}"]) == (0 if seen else 2)
    told = "error: /scratch/shards: is not within the image; add its folder to slurm.container.mounts\n"
    assert (told in capsys.readouterr().err) != seen
    without_image = [word for word in command if not word.startswith("slurm.container")]
    assert main([*without_image, f"data.cache_dir={cache}"]) == 0


@pytest.mark.parametrize(
    "option",
    [
        ["--direct_num_workers=32"],
        ["--direct_num_workers", "32"],
        ["--direct_num_workers=2", "--direct_num_workers=32"],
    ],
)
@pytest.mark.parametrize(
    ("place", "cores", "warned"),
    [("slurm", "slurm.preprocess.cpus_per_task", True), ("kubernetes", "kubernetes.preprocess.cpu", True),
     ("local", "", False)],
)  # fmt: skip
def test_more_workers_than_the_job_has_cores_are_warned_of(here, slurm, pods, capsys, place, option, cores, warned):
    settings = (f"kubernetes.mount_path={here}", "kubernetes.preprocess.image=localhost/b:1")
    assert preprocess(*option, on=place, settings=settings) == 0
    told = capsys.readouterr().err
    assert ("warning: preprocess: --direct_num_workers=32, but the job has 8 cores" in told) == warned
    if warned:
        assert preprocess(*option, on=place, settings=(*settings, f"{cores}=32")) == 0
        assert "--direct_num_workers" not in capsys.readouterr().err


def test_what_a_chain_lacks_is_named_in_the_order_of_the_step(here):
    others = ["later", "books", "wiki", "again"]
    pretrain = ["--config", "tiny.toml", "--shards", "made", *others, "--output", "run", "--init-from", "old"]
    chain = read_chain(
        {"preprocess": ["--output", "made"], "pretrain": pretrain, "eval": [*MLM, "--output", "results"]}
    )
    assert chain[1].reads == (*(here / name / "manifest.json" for name in others), here / "old")
    (here / "later").mkdir()
    (here / "later" / "manifest.json").touch()
    with pytest.raises(ConfigError, match=r"^pretrain: .*/books/manifest\.json: not there"):
        check_reads(chain)


@pytest.mark.parametrize("way", ["reads", "corpus", "glob"])
def test_what_can_not_be_looked_at_now_is_not_called_missing(here, monkeypatch, way):
    (here / "a.txt").touch()
    failing = here if way == "glob" else here / "a.txt"
    reads = (here / "a.txt",) if way == "reads" else ()
    corpus = {"reads": (), "corpus": (f"{here}/a.txt",), "glob": (f"{here}/*.txt",)}[way]
    program = Program("preprocess", here / "made", (), reads, corpus)
    check_reads([program])
    monkeypatch.setattr(os, "access", lambda *_: False)  # as it says where storage fails
    for call in {"stat", "scandir", LISTING} if way == "glob" else {"stat"}:
        fail_on(monkeypatch, os, call, failing, errno.ESTALE)
    with pytest.raises(UnavailableError, match=rf"^{failing}: can't be read now \(Stale file handle\); give the same"):
        check_reads([program])


def test_what_can_not_be_written_is_told_in_the_system_s_words(here):
    for failure in (OSError(errno.EIO, "a library's words", "made"), OSError(errno.EIO, REASON, "made")):
        with (
            pytest.raises(ConfigError, match=rf"^made: can't be written \({REASON}\); choose another$"),
            writing("choose another"),
        ):
            raise failure
    with (
        pytest.raises(ConfigError, match=r"^output: can't be written \(a library's words\); "),
        writing("choose another"),
    ):
        raise OSError("a library's words")


def test_an_image_that_can_not_be_looked_at_now_is_not_called_missing(here, monkeypatch):
    container = Container(runtime="apptainer", image=f"{here}/image.sif")
    monkeypatch.setattr(os, "access", lambda *_: False)
    fail_on(monkeypatch, os, "stat", here / "image.sif", errno.ESTALE)
    with pytest.raises(UnavailableError, match=rf"^{here}/image.sif: can't be read now"):
        visible.check_container(container, [])


def test_an_export_of_a_chain_that_may_not_stay_is_told_from_its_last_one(here):
    chain = read_chain(
        {"preprocess": ["--output", "made"], "pretrain": ["--config", "tiny.toml", "--output", "run"],
         "eval": [*MLM, "--checkpoint", "run/exports/step-000002", "--output", "results"]}
    )  # fmt: skip
    with pytest.raises(ConfigError, match=r"step-000002: not there; .*, which makes shards and a run's last export$"):
        check_reads(chain)


def test_without_a_partition_slurm_chooses_and_judges(here, slurm):
    """By constraint, account, QOS or a plugin of the site: the default one, here without GPUs, tells nothing."""
    slurm.stand_in("sinfo", "print('regular*|1:00:00|3000|(null)')")
    assert launch("slurm.pretrain.gpus_per_node=4", "slurm.constraint=gpu") == 0


def test_a_slurm_that_does_not_answer_is_told_in_one_line(here, slurm, capsys):
    slurm.stand_in("sinfo", "sys.exit('sinfo: error: a long story\\nsinfo: error: no controller')")
    assert launch("slurm.partition=gpu") == 2
    told = "sinfo: error: no controller; is this a login node of the cluster?\n"
    assert capsys.readouterr().err == f"error: {told}"
    assert not (here / "runs").exists()
    assert launch("slurm.partition=gpu", "--dry-run") == 0
    assert capsys.readouterr().err == f"warning: partitions are not checked: {told}"
    assert (here / "runs" / "tiny" / "job" / "pretrain.sbatch").exists()


def test_preprocessing_takes_one_node_however_many_train(here, slurm, capsys):
    slurm.stand_in("sinfo", "print('one|infinite|1|(null)')")
    assert preprocess(settings=("slurm.partition=one",)) == 0
    assert launch("slurm.partition=one") == 2
    assert "needs 2 nodes" in capsys.readouterr().err


def test_a_hidden_partition_is_there(here, slurm):
    slurm.stand_in("sinfo", "print('hidden|infinite|4|(null)' if '--all' in sys.argv else 'cpu|infinite|4|(null)')")
    assert launch("slurm.partition=hidden") == 0


@pytest.mark.parametrize(
    ("shards", "output"),
    [("run", "run"), ("run/shards", "run"), ("run/job/x", "run"), (".", "run"), ("link/shards", "run"),
     ("run/shards", "link")],
)  # fmt: skip
def test_shards_in_the_run_directory_or_around_it_are_refused_before_they_are_made(here, capsys, shards, output):
    (here / "link").symlink_to("run")
    assert main(["all", "--on", "local", "--dry-run", *chain_of(shards, output)]) == 2
    told = capsys.readouterr().err
    assert told.startswith("error: pretrain: --shards ")
    assert told.endswith("lie one in the other; take folders side by side\n")
    assert not (here / "run").exists()


def test_shards_that_are_there_and_a_run_lie_side_by_side_too(here, capsys):
    command = [
        "pretrain",
        "--on",
        "local",
        "--dry-run",
        "--",
        "--config",
        "tiny.toml",
        "--shards",
        "s3://b/x",
        "shards",
    ]
    assert main([*command, "--output", "shards/run"]) == 2
    expected = (
        f"pretrain: --shards {here}/shards and --output {here}/shards/run lie one in the other; take folders side"
    )
    assert expected in capsys.readouterr().err
    assert not (here / "shards" / "run").exists()


@pytest.mark.parametrize("volume", ["/shared", "HERE"])
def test_on_kubernetes_the_volume_itself_is_no_output(here, pods, capsys, volume):
    volume = volume.replace("HERE", str(here))
    before = sorted(here.rglob("*"))
    settings = ["--dry-run", f"kubernetes.mount_path={volume}", "kubernetes.pretrain.gpus=0"]
    given = ["--config", "tiny.toml", "--shards", "s3://bucket/shards", "--output", volume]
    assert main(["pretrain", "--on", "kubernetes", *settings, "--", *given]) == 2
    told = capsys.readouterr().err
    assert told == f"error: pretrain: --output {volume} is the volume itself; take a folder in it\n"
    assert sorted(here.rglob("*")) == before


@pytest.mark.parametrize("place", ["slurm", "kubernetes", "local"])
def test_a_folder_of_something_else_is_none_of_shards(here, slurm, pods, capsys, place):
    (here / "notes").mkdir()
    (here / "notes" / "mine.txt").touch()
    settings = ["--settings", "cluster.toml", f"kubernetes.mount_path={here}"]
    for output, told in (
        ("notes", "contains files that are not from this program, such as 'mine.txt'; use another directory"),
        ("tiny.toml", "a file; choose another --output"),
    ):
        command = ["preprocess", "--on", place, "--dry-run", *settings, "--", *TEXTS, "--output", output]
        assert main(command) == 2
        assert capsys.readouterr().err == f"error: preprocess: {here}/{output}: {told}\n"
        assert not (here / f"{output}.job").exists()


@pytest.mark.parametrize("place", ["slurm", "local"])
def test_a_colon_in_the_path_of_the_code_is_refused(here, slurm, capsys, place):
    """Python would look for the snapshot in two other places, and run the checkout as it is then."""
    command = ["pretrain", "--on", place, "--settings", "cluster.toml", "--dry-run", "--", "--config", "tiny.toml"]
    assert main([*command, "--shards", "shards", "--output", "runs/12:30"]) == 2
    told = "a colon ends a path in PYTHONPATH, where jobs look for their code; take a name without"
    assert capsys.readouterr().err == f"error: {here}/runs/12:30/job: {told}\n"


@pytest.mark.parametrize("place", ["slurm", "kubernetes", "local"])
def test_a_folder_of_something_else_is_no_run_directory(here, slurm, pods, capsys, place):
    (here / "notes").mkdir()
    (here / "notes" / "mine.txt").touch()
    settings = ["--settings", "cluster.toml", f"kubernetes.mount_path={here}", "kubernetes.pretrain.gpus=0"]
    command = ["pretrain", "--on", place, "--dry-run", *settings, "--", "--config", "tiny.toml", "--shards", "shards"]
    assert main([*command, "--output", "notes"]) == 2
    expected = f"error: pretrain: {here}/notes: holds something that is not a run; choose another --output\n"
    assert capsys.readouterr().err == expected
    assert [path.name for path in (here / "notes").iterdir()] == ["mine.txt"]


@pytest.mark.parametrize("place", ["slurm", "kubernetes", "local"])
def test_a_run_is_gone_on_with_by_the_settings_that_it_was_started_with(here, slurm, pods, capsys, place):
    """As the trainer has it, which would tell only when the job has waited for its nodes."""
    (here / "run").mkdir()
    shutil.copyfile(here / "tiny.toml", here / "run" / "config.toml")
    settings = ["--settings", "cluster.toml", f"kubernetes.mount_path={here}", "kubernetes.pretrain.gpus=0"]
    command = ["pretrain", "--on", place, "--dry-run", *settings, "--", "--config", "tiny.toml", "--shards", "shards"]
    assert main([*command, "--output", "run", "train.seed=7", "model.num_hidden_layers=3"]) == 2
    told = capsys.readouterr().err
    assert told == (
        f"error: pretrain: {here}/run: the run was started with other settings (model.num_hidden_layers: 2 -> 3; "
        "train.seed: 1 -> 7); choose another --output, or go on with what the run was started with\n"
    )
    (here / "run" / "checkpoints" / "step-000002").mkdir(parents=True)
    assert main([*command, "--output", "run", "phases.0.steps=999"]) == 2
    assert "; to train longer or otherwise, give its last checkpoint to --init-from, " in capsys.readouterr().err
    assert {path.name for path in (here / "run").iterdir()} == {"config.toml", "checkpoints"}
    assert main([*command, "--output", "run", "phases.0.micro_batch_size=4", "checkpoint.every=3"]) == 0


def test_a_chain_goes_on_with_a_run_by_its_own_settings_too(here, capsys):
    (here / "run").mkdir()
    shutil.copyfile(here / "tiny.toml", here / "run" / "config.toml")
    assert main(["all", "--on", "local", "--dry-run", *chain_of(pretrain=["train.seed=7"])]) == 2
    assert "the run was started with other settings (train.seed: 1 -> 7)" in capsys.readouterr().err


@pytest.mark.parametrize("place", ["slurm", "kubernetes", "local"])
def test_results_of_an_earlier_step_are_told_before_the_training_of_later_ones(here, slurm, pods, capsys, place):
    (here / "results").mkdir()
    write_results(here / "results" / RESULTS, results(here / "run", 4, {}))
    settings = ["--settings", "cluster.toml", f"kubernetes.mount_path={here}", "kubernetes.pretrain.gpus=0"]
    command = ["all", "--on", place, "--dry-run", *settings]
    assert main([*command, *chain_of()]) == 2
    expected = f"error: eval: {here}/results/results.json: of the weights in {here}/run/exports/step-000004, not of "
    assert capsys.readouterr().err.startswith(expected + "step-000008; choose another --output")
    assert not (here / "run").exists()
    assert main([*command, *chain_of(pretrain=["train.max_steps=4"])]) == 0
    assert main([*command, *chain_of(results="others")]) == 0


def test_results_that_can_not_be_read_now_are_told(here, capsys, monkeypatch):
    (here / "results").mkdir()
    write_results(here / "results" / RESULTS, results(here / "run", 4, {}))
    fail_at(monkeypatch, here / "results" / RESULTS)
    assert main(["all", "--on", "local", "--dry-run", *chain_of()]) == 1
    told = f"error: eval: {here}/results/results.json: can't be read now ({REASON}); give the same command again"
    assert capsys.readouterr().err.startswith(told)


def test_results_that_only_the_nodes_user_may_read_are_left_to_the_evaluation(here, monkeypatch):
    (here / "results").mkdir()
    write_results(here / "results" / RESULTS, results(here / "run", 4, {}))
    may = os.access
    closed = f"{here}/results/{RESULTS}"
    monkeypatch.setattr(os, "access", lambda path, mode: str(path) != closed and may(path, mode))
    assert main(["all", "--on", "local", "--dry-run", *chain_of()]) == 0


@pytest.mark.parametrize("may_enter", [True, False])
def test_a_run_that_only_the_nodes_user_may_read_is_left_to_the_trainer(here, monkeypatch, may_enter):
    def refuse(_: object) -> None:
        raise PermissionError

    (here / "run").mkdir()
    shutil.copyfile(here / "tiny.toml", here / "run" / "config.toml")
    if may_enter:
        monkeypatch.setattr("cluster.checks.os.access", lambda path, mode: mode != os.R_OK)
    else:
        monkeypatch.setattr(RunDirectory, "check", refuse)
    command = ["pretrain", "--on", "local", "--dry-run", "--", "--config", "tiny.toml", "--shards", "shards"]
    assert main([*command, "--output", "run", "train.seed=7"]) == 0


def test_shards_that_only_the_nodes_user_may_look_at_are_left_to_the_preprocessing(here, monkeypatch):
    look = os.stat

    def refuse(path: object, *args: object, **kwargs: object) -> os.stat_result:
        if str(path) == f"{here}/new":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return look(path, *args, **kwargs)

    monkeypatch.setattr(os, "stat", refuse)
    assert main(["preprocess", "--on", "local", "--dry-run", "--", *TEXTS, "--output", "new"]) == 0


@pytest.mark.parametrize("place", ["slurm", "kubernetes", "local"])
@pytest.mark.parametrize("output", ["file", "file/run"])
def test_an_output_that_can_not_be_made_is_told_in_one_line(here, slurm, pods, capsys, place, output, monkeypatch):
    (here / "file").touch()
    monkeypatch.setenv("PATH", f"{here}/bin")
    settings = ["--settings", "cluster.toml", f"kubernetes.mount_path={here}", "kubernetes.pretrain.gpus=0"]
    assert main(["pretrain", "--on", place, *settings, "--", "--config", "tiny.toml", "--shards", "shards",
                 "--output", output]) == 2  # fmt: skip
    told = capsys.readouterr().err
    assert f"{here}/file" in told
    assert told.count("\n") == 1
    assert ("a file; " if output == "file" else "can't be written (") in told
    assert "choose another --output" in told
    assert (here / "file").read_bytes() == b""


@pytest.mark.parametrize("place", ["slurm", "kubernetes", "local"])
def test_an_output_whose_links_lead_in_a_circle_is_told_in_one_line(here, slurm, pods, capsys, place):
    (here / "circle").symlink_to("circle")
    settings = [f'slurm.shared=["{here}"]', f"kubernetes.mount_path={here}"]
    assert main(["pretrain", "--on", place, *settings, "--", "--config", "tiny.toml", "--shards", "shards",
                 "--output", "circle/run"]) == 2  # fmt: skip
    told = "error: pretrain: argument --output: circle/run: its links lead in a circle; take another path\n"
    assert capsys.readouterr().err == told


def test_a_machine_without_slurm_can_still_write_the_job(here, monkeypatch, capsys):
    monkeypatch.setenv("PATH", "/nowhere")
    assert launch() == 2
    assert "sinfo: not found; launch on a login node of the cluster" in capsys.readouterr().err
    assert launch("--dry-run") == 0
    assert capsys.readouterr().err.startswith("warning: partitions are not checked: sinfo: not found")


def test_a_network_s_file_system_is_shared_and_the_nearest_mount_counts(monkeypatch, tmp_path):
    # The root may come last: at a boot others are moved into it.
    mounts = [(str(tmp_path), "lustre"), (str(tmp_path / "scratch"), "xfs"), ("/", "ext4")]
    partitions = [type("Mount", (), {"mountpoint": point, "fstype": kind}) for point, kind in mounts]
    # By itself psutil leaves out the mounts of networks.
    monkeypatch.setattr(visible.psutil, "disk_partitions", lambda **asked: partitions if asked == {"all": True} else [])
    visible.check_shared([tmp_path / "runs" / "new"], vouched=[])
    with pytest.raises(ConfigError, match=r"runs: lies on \S*scratch \(xfs\), a file system of this machine alone"):
        visible.check_shared([tmp_path / "scratch" / "runs"], vouched=[tmp_path / "other"])
    (tmp_path / "scratch").mkdir()
    monkeypatch.chdir(tmp_path / "scratch")
    with pytest.raises(ConfigError, match=r"scratch \(the current folder\): lies on"):
        visible.check_shared([tmp_path / "scratch"], vouched=[])
    visible.check_shared([tmp_path / "scratch" / "runs"], vouched=[tmp_path / "scratch"])
    (tmp_path / "link").symlink_to(tmp_path / "scratch")
    visible.check_shared([tmp_path / "scratch" / "runs"], vouched=[tmp_path / "link"])
    visible.check_shared([tmp_path / "link" / "runs"], vouched=[tmp_path / "scratch"])


@pytest.mark.parametrize(
    ("kinds", "shared"),
    [(["nfs4", "overlay"], False), (["tmpfs", "nfs4"], True), ([], True)],  # none: in a chroot
)
def test_of_several_mounts_at_one_place_the_last_counts(monkeypatch, tmp_path, kinds, shared):
    partitions = [type("Mount", (), {"mountpoint": str(tmp_path), "fstype": kind}) for kind in kinds]
    monkeypatch.setattr(visible.psutil, "disk_partitions", lambda **_: partitions)
    with contextlib.nullcontext() if shared else pytest.raises(ConfigError, match=r"\(overlay\), a file system of"):
        visible.check_shared([tmp_path / "runs"], vouched=[])


def test_a_link_on_a_disk_of_this_machine_to_a_shared_folder_is_warned_of(monkeypatch, tmp_path, capsys):
    """Other nodes may have it, as /home often is one on every node; nobody but the user knows."""
    mounts = [("/", "ext4"), (str(tmp_path / "net"), "nfs4")]
    partitions = [type("Mount", (), {"mountpoint": point, "fstype": kind}) for point, kind in mounts]
    monkeypatch.setattr(visible.psutil, "disk_partitions", lambda **_: partitions)
    (tmp_path / "net" / "me").mkdir(parents=True)
    (tmp_path / "home").symlink_to(tmp_path / "net")
    (tmp_path / "net" / "mine").symlink_to("me")
    for paths in ([tmp_path / "home" / "me" / "a", tmp_path / "home" / "me" / "b"], [tmp_path / "home"]):
        visible.check_shared(paths, vouched=[])
        told = capsys.readouterr().err
        assert told.startswith(
            f"warning: {tmp_path}/home: a link on / (ext4), a file system of this machine alone: the nodes"
        )
        assert told.endswith(f"give what it leads to, {tmp_path}/net\n")
        assert told.count("\n") == 1
    visible.check_shared([tmp_path / "home" / "me" / "a"], vouched=[tmp_path / "home"])
    visible.check_shared([tmp_path / "net" / "mine" / "a"], vouched=[])
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("settings", "warned"),
    [
        ([], "PREFIX/bin/"),
        (["slurm.python=/usr/bin/python3"], "/usr/bin/python3"),
        (["slurm.python=venv/bin/python"], "HERE/venv/bin/python"),
        (["slurm.python=~/venv/bin/python"], "HERE/venv/bin/python"),
        (["slurm.python=/net/venv/bin/python"], ""),
        (["slurm.python=HERE/linked/bin/python"], ""),  # of a virtual environment, whose folder counts
        (["slurm.python=python3.12"], ""),  # by setup, such as `module load`
        (['slurm.shared=["HERE", "PREFIX"]'], ""),
        (['slurm.shared=["~/venv"]', "slurm.python=~/venv/bin/python"], ""),
        (['slurm.shared=["venv"]', "slurm.python=venv/bin/python"], ""),
        (
            [
                "slurm.container.runtime=apptainer",
                "slurm.container.image=docker://a",
                'slurm.container.mounts=["HERE"]',
                "slurm.python=/opt/venv/bin/python",  # the image's own
            ],
            "",
        ),
    ],
)
def test_an_interpreter_on_a_disk_of_this_machine_is_warned_of(here, slurm, monkeypatch, capsys, settings, warned):
    """A login node's own virtual environment: the job would end with 127 when it has waited for its nodes."""

    def replaced(text: str) -> str:
        return text.replace("HERE", str(here)).replace("PREFIX", sys.prefix)

    mounts = [("/", "ext4"), (str(here), "nfs4"), (str(here / "venv"), "ext4"), ("/net", "nfs4")]
    partitions = [type("Mount", (), {"mountpoint": point, "fstype": kind}) for point, kind in mounts]
    monkeypatch.setattr(visible.psutil, "disk_partitions", lambda **_: partitions)
    monkeypatch.setenv("HOME", str(here))
    (here / "linked" / "bin").mkdir(parents=True)
    (here / "linked" / "bin" / "python").symlink_to("/usr/bin/python3")
    assert launch("--dry-run", "slurm.shared=[]", *map(replaced, settings)) == 0
    told = capsys.readouterr().err
    assert told.count("\n") == bool(warned)
    assert told.startswith(f"warning: {replaced(warned)}" if warned else "")
    assert not warned or "the jobs' interpreter lies on " in told
    if "~" in str(settings):
        assert f"{here}/venv/bin/python -m cluster.slurm.rank" in (
            here / "runs" / "tiny" / "job" / "pretrain.sbatch"
        ).read_text().replace("\\\n    ", "")


@pytest.mark.parametrize(
    ("time", "seconds"),
    [("90", 5400), ("90:30", 5430), ("1:02:03", 3723), ("2-0", 172800), ("2-01:30", 178200), ("2-1:1:1", 176461)],
)
def test_times_mean_what_they_mean_to_sbatch(time, seconds):
    assert load_settings(None, [f'slurm.pretrain.time="{time}"']).slurm.pretrain.seconds == seconds


@pytest.mark.slow
def test_on_this_machine_two_ranks_train_and_the_same_command_finds_it_done(here):
    command = [sys.executable, "-m", "cluster.launch", "pretrain", "--on", "local", "local.ranks=2",
               "local.threads=1", "--", "--config", "tiny.toml", "--shards", "shards", "--output", "run"]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    for _ in range(2):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
    assert "done already, 8 steps" in done.stderr
    assert (here / "run" / "outcome").read_text().startswith("done")
    state = json.loads((here / "run" / "checkpoints" / "step-000008" / "run_state.json").read_text())
    assert (state["world_size"], state["threads"]) == (2, 1)

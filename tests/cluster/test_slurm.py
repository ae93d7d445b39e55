"""The job files on a real two-node SLURM: nodes lost, time limits, crashes, cancelled jobs, and the chain of all three.

Needs the laboratory beside the repository (../shared/cluster: scripts that start slurmctld and two nodes, each with a
network, a host name and a process table of its own) and root.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path

import psutil
import pytest

from preprocessing.schema import ShardDirectory
from tests.conftest import LAB, ROOT, TEXTS
from tests.labs import to_itself
from tests.trainer.conftest import TINY
from tests.trainer.shard_factory import write_shards
from trainer.files import read_lines

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.skipif(not (LAB / "cluster" / "slurm-up").exists(), reason="no SLURM laboratory at ../shared/cluster"),
    pytest.mark.skipif(os.geteuid() != 0, reason="the SLURM laboratory needs root"),
    pytest.mark.timeout(1200),
]

STEPS = 300
RECIPE = (
    TINY.replace("steps = 8", f"steps = {STEPS}")
    .replace("validate_every = 4", "validate_every = 0")
    .replace("\nevery = 4", "\nevery = 20")
    .replace("\nevery = 2\n", "\nevery = 100\n")
)
SETTINGS = """
[slurm]
setup = ["echo start ${SLURM_RESTART_COUNT:-0} on $(hostname)"]
shared = ["HERE"]
notice = 90

[slurm.preprocess]
cpus_per_task = 1

[slurm.pretrain]
nodes = 2
gpus_per_node = 0
cpus_per_task = 1
time = "30"

[slurm.eval]
gpus_per_node = 0
cpus_per_task = 1
"""
# For a training that lasts until SLURM has acted, which takes it up to a minute, however fast the machine is: Python
# imports sitecustomize.py by itself, and the rank that writes the metrics is slow at each step while a file is there.
SLOW = """
import json
import os
import time

plain = json.dumps


def dumps(values, **options):
    if isinstance(values, dict) and "grad_norm" in values and os.path.exists(os.environ["SLOW_WHILE"]):
        time.sleep(0.2)
    return plain(values, **options)


json.dumps = dumps
"""
# A partition whose jobs may be preempted, and one whose jobs preempt them.
PREEMPTION = """
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=low Nodes=ALL PriorityTier=1 PreemptMode=REQUEUE GraceTime=120 State=UP
PartitionName=high Nodes=ALL PriorityTier=10 PreemptMode=OFF State=UP
"""
ENDED = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED"}


LAB_FILES = Path(os.environ.get("SLURM_LAB_DIR", "/tmp/slurm-lab"))


def lab(*command: str) -> None:
    """Run slurm-up or slurm-down; in a session of its own, since what it starts lives on."""
    command = (LAB / "cluster" / command[0], *command[1:])
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    # For `deepspeed --hostfile`; and SLURM's own time to end in, as a busy machine takes long for a last checkpoint.
    environment = {**os.environ, "SLURM_LAB_SSH": "1", "SLURM_LAB_KILL_WAIT": "30"}
    done = subprocess.run(command, **quiet, env=environment, timeout=300, start_new_session=True)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """Two nodes."""
    with to_itself("slurm"):
        lab("slurm-up")
        with (LAB_FILES / "etc" / "slurm.conf").open("a") as configuration:
            configuration.write(PREEMPTION)
        slurm("scontrol", "reconfigure")
        yield
        lab("slurm-down")


@pytest.fixture(scope="module")
def site(cluster, tmp_path_factory) -> Path:
    """A folder that both nodes see, with shards, a recipe and a settings file."""
    folder = tmp_path_factory.mktemp("site")
    write_shards(folder / "shards")
    (folder / "recipe.toml").write_text(RECIPE)
    (folder / "ds_config.json").write_text((ROOT / "ds_config.json").read_text())
    (folder / "cluster.toml").write_text(SETTINGS.replace("HERE", str(folder)))
    (folder / "slow").mkdir()
    (folder / "slow" / "sitecustomize.py").write_text(SLOW)
    return folder


@pytest.fixture
def hold(tmp_path) -> Path:
    """A file; while it is there, each step of a training with `slow` takes a fifth of a second longer."""
    path = tmp_path / "hold"
    path.touch()
    return path


@pytest.fixture
def slow(site, hold) -> str:
    """A line of slurm.setup."""
    return f"export PYTHONPATH={site}/slow:$PYTHONPATH SLOW_WHILE={hold}"


class Job:
    """A job in SLURM's queue, and its run directory."""

    def __init__(self, number: str, run: Path):
        self.number = number
        self.run = run

    def __str__(self) -> str:
        return f"job {self.number} ({self.state})\n{self.log}"

    @property
    def state(self) -> str:
        command = ["squeue", "--noheader", "--states=all", "--format=%T", f"--job={self.number}"]
        for _ in range(20):
            if found := subprocess.run(command, capture_output=True, text=True).stdout.strip():
                return found
            time.sleep(1)  # it did not answer
        return ""

    @property
    def restarts(self) -> int:
        return int(re.search(r"Restarts=(\d+)", slurm("scontrol", "show", "job", self.number))[1])

    @property
    def span(self) -> list[datetime]:
        """When it began, for the last time, and when it ended, in whole seconds."""
        told = slurm("scontrol", "show", "job", self.number)
        return [datetime.fromisoformat(re.search(rf"{name}=(\S+)", told)[1]) for name in ("StartTime", "EndTime")]

    @property
    def log(self) -> str:
        return (self.run / "job" / "logs" / f"pretrain-{self.number}.log").read_text()

    @property
    def steps(self) -> int:
        return sum(1 for _ in read_lines(self.run / "metrics.jsonl"))

    def limit(self, minutes: int) -> None:
        slurm("scontrol", "update", f"JobId={self.number}", f"TimeLimit={minutes}")

    def wait_for(self, what: Callable[[], object], seconds: float = 900) -> None:
        deadline = time.monotonic() + seconds
        while not what():
            assert time.monotonic() < deadline, str(self)
            time.sleep(0.2)

    def wait_for_steps(self, steps: int) -> None:
        self.wait_for(lambda: self.steps >= steps or self.state in ENDED)

    def wait_for_end(self) -> str:
        self.wait_for(lambda: self.state in ENDED)
        return self.state


def slurm(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def launch(site, cluster):
    """Launch a pretraining by the command that a user types; a job that a failed test leaves is cancelled."""
    jobs = []

    def start(name: str, *recipe: str, settings: Sequence[str] = ()) -> Job:
        arguments = ["--config", "recipe.toml", "--shards", "shards", "--output", f"runs/{name}", *recipe]
        told = run_launch(site, "pretrain", *settings, "--", *arguments)
        jobs.append(Job(re.search(r"pretrain: job (\d+)", told)[1], site / "runs" / name))
        return jobs[-1]

    yield start
    for job in jobs:
        subprocess.run(["scancel", job.number], check=False)


def run_launch(site: Path, job: str, *arguments: str) -> str:
    command = [sys.executable, "-m", "cluster.launch", job, "--on", "slurm", "--settings", "cluster.toml", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=site, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout


def curve(run: Path) -> list[tuple]:
    """What must not differ by a bit."""
    keys = ("step", "samples", "loss", "mlm_loss", "nsp_loss", "grad_norm", "learning_rate")
    return [tuple(line[key] for key in keys) for line in read_lines(run / "metrics.jsonl")]


def weights(run: Path) -> bytes:
    return (run / "exports" / f"step-{STEPS:06d}" / "model.safetensors").read_bytes()


@pytest.fixture(scope="module")
def whole(site, cluster) -> Path:
    """A run that nothing disturbed."""
    told = run_launch(site, "pretrain", "--", "--config", "recipe.toml", "--shards", "shards", "--output", "runs/whole")
    job = Job(re.search(r"pretrain: job (\d+)", told)[1], site / "runs" / "whole")
    assert job.wait_for_end() == "COMPLETED", str(job)
    assert job.restarts == 0
    assert [step for step, *_ in curve(job.run)] == list(range(1, STEPS + 1))
    return job.run


def test_a_node_is_lost_and_the_job_goes_on_when_it_returns(launch, whole):
    job = launch("cut")
    job.wait_for_steps(100)
    lab("slurm-down", "node2")
    cut_at = job.steps
    try:
        job.wait_for(lambda: job.state == "PENDING", 120)
    finally:
        lab("slurm-up", "node2")
    assert job.wait_for_end() == "COMPLETED", str(job)
    assert 100 <= cut_at < STEPS
    assert job.restarts >= 1
    assert re.search(r"resumed after step \d+", job.log)
    assert curve(job.run) == curve(whole)
    assert weights(job.run) == weights(whole)


def test_the_ranks_write_a_checkpoint_ahead_of_the_time_limit_and_the_job_goes_on(launch, whole, slow, hold):
    job = launch("limit", settings=[f"slurm.setup={json.dumps([slow])}"])
    job.wait_for_steps(20)
    minutes = int(re.search(r"RunTime=00:(\d+):", slurm("scontrol", "show", "job", job.number))[1])
    job.limit(minutes + 2)  # closer than the notice of 90 s, which SLURM takes for 90 to 120
    job.wait_for(lambda: job.state == "PENDING", 200)
    assert (job.run / "outcome").read_text().startswith("requeue")
    stopped_at = job.steps
    hold.unlink()
    job.limit(30)
    assert 20 <= stopped_at < STEPS
    assert (job.run / "checkpoints" / "latest").read_text().strip() == f"step-{stopped_at:06d}"
    assert job.wait_for_end() == "COMPLETED", str(job)
    assert f"resumed after step {stopped_at} " in job.log
    assert curve(job.run) == curve(whole)
    assert weights(job.run) == weights(whole)


def test_a_job_that_misses_the_notice_goes_on_after_its_time_limit_too(launch, slow):
    """It comes while the setup runs, so that the ranks hear of the limit no sooner than it is there."""
    setup = f"slurm.setup={json.dumps([slow, 'sleep 20'])}"
    job = launch("unheard", settings=[setup, "slurm.notice=59", "slurm.pretrain.time=1"])
    job.wait_for(lambda: job.state in {"PENDING", *ENDED} and job.steps, 300)
    assert job.state == "PENDING", str(job)
    assert (job.run / "outcome").read_text().startswith("requeue")
    assert job.restarts == 1
    slurm("scancel", job.number)
    assert job.wait_for_end() == "CANCELLED", str(job)


def test_a_preempted_job_makes_room_with_a_checkpoint_and_comes_back(launch, whole, slow, hold):
    setup = f"slurm.setup={json.dumps([slow])}"
    job = launch("preempted", settings=[setup, "slurm.partition=low", 'slurm.options=["--exclusive"]'])
    job.wait_for_steps(30)
    urgent = ["--partition=high", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap=sleep 1"]
    number = slurm("sbatch", "--parsable", *urgent)
    job.wait_for(lambda: job.state == "PENDING", 200)
    assert (job.run / "outcome").read_text().startswith("requeue")
    stopped_at = job.steps
    assert (job.run / "checkpoints" / "latest").read_text().strip() == f"step-{stopped_at:06d}"
    hold.unlink()
    assert Job(number, job.run).wait_for_end() == "COMPLETED"
    job.wait_for_steps(stopped_at + 50)
    slurm("scancel", job.number)
    assert job.wait_for_end() == "CANCELLED", str(job)
    assert f"resumed after step {stopped_at} " in job.log
    found = curve(job.run)
    assert len(found) >= stopped_at + 50
    assert found == curve(whole)[: len(found)]


def test_a_rank_dies_and_the_job_starts_again_until_it_is_cancelled_while_a_second_launch_waits(launch, whole):
    job, second = (launch("killed") for _ in range(2))
    job.wait_for_steps(50)
    task_of(job, "pretrain.py", RANK="1").kill()
    job.wait_for(lambda: job.state == "PENDING", 120)
    assert second.state == "PENDING"
    assert "will be restarted: crash 1 since step" in job.log
    (crash,) = read_lines(job.run / "job" / "crashes.jsonl")
    assert (crash["job"], crash["step"] % 20) == (job.number, 0)
    job.wait_for(lambda: "resumed after step" in job.log)
    job.wait_for_steps(crash["step"] + 60)
    assert second.state == "PENDING"
    assert len(curve(job.run)) < STEPS
    slurm("scancel", job.number)
    assert job.wait_for_end() == "CANCELLED", str(job)
    assert second.wait_for_end() == "COMPLETED", str(second)
    assert job.state == "CANCELLED"  # a requeued job would be back by now
    assert "it was cancelled" in job.log
    assert [one.restarts for one in (job, second)] == [1, 0]
    assert re.search(r"resumed after step \d+", second.log)
    assert curve(job.run) == curve(whole)


def task_of(job: Job, script: str, **variables: str) -> psutil.Process | None:
    """The process of a job that runs a script, on whichever node."""
    wanted = {"SLURM_JOB_ID": job.number, **variables}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            is_python = "python" in Path(process.cmdline()[0] if process.cmdline() else "").name
            runs = is_python and any(Path(word).name == script for word in process.cmdline())
            if runs and wanted.items() <= process.environ().items():
                return process
    return None


def test_deepspeed_with_a_hostfile_gives_the_same_curve(site, whole):
    """From the first node, by pdsh; the documented way for those who have no SLURM or don't want it."""
    (site / "hostfile").write_text("node1 slots=1\nnode2 slots=1\n")
    variables = {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1", "PATH": os.environ["PATH"],
                 "PYTHONPATH": str(ROOT)}  # fmt: skip
    (site / ".deepspeed_env").write_text("".join(f"{name}={value}\n" for name, value in variables.items()))
    command = ["env", *(f"{name}={value}" for name, value in variables.items()),
               "deepspeed", "--hostfile", "hostfile", "--master_addr", "node1", f"{ROOT}/trainer/pretrain.py",
               "--config", "recipe.toml", "--shards", "shards", "--output", "runs/hostfile",
               "train.max_steps=40"]  # fmt: skip
    ssh = ["ssh", "-F", LAB_FILES / "ssh" / "config", "-i", LAB_FILES / "ssh" / "id_ed25519", "root@10.77.0.11"]
    words = f"cd {shlex.quote(str(site))} && {shlex.join(command)}"
    done = subprocess.run([*ssh, words], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert curve(site / "runs" / "hostfile") == curve(whole)[:40]


def test_a_run_that_would_fail_again_is_not_started_again(launch):
    job = launch("failed", "schedule.peak=1e38", "schedule.warmup_steps=0", "optimizer.max_gradient_norm=0")
    assert job.wait_for_end() == "FAILED", str(job)
    assert job.restarts == 0
    assert (job.run / "outcome").read_text().startswith("failed")
    assert "given up: it would fail again" in job.log


def test_preprocessing_pretraining_and_evaluation_run_through_in_a_chain(site):
    """On three hundred news articles, twenty times each; what each job reads is what the one before has made."""
    articles = (TEXTS / "lee_background.cor").read_text(encoding="utf-8").splitlines()
    articles *= 20  # so that the first job is not done before it is interrupted
    (site / "news.jsonl").write_text("".join(json.dumps({"text": article}) + "\n" for article in articles))
    arguments = {
        "preprocess": ["--jsonl", "news.jsonl", "--train-vocab", "1000", "--sequence-lengths", "32",
                       "--deduplicate", "none", "--validation-fraction", "0.1", "--output", "news"],
        "pretrain": ["--config", "recipe.toml", "--output", "runs/chain", "model.vocab_size=1000",
                     "train.max_steps=30"],
        "eval": ["--tasks", "mlm,nsp", "--samples", "32", "--no-tracking", "--output", "results"],
    }  # fmt: skip
    settings = [f"{name}.arguments={json.dumps(given)}" for name, given in arguments.items()]
    told = run_launch(site, "all", *settings)
    jobs = [Job(number, site / "runs" / "chain") for number in re.findall(r": job (\d+)", told)]
    logs = site / "runs" / "chain" / "job" / "logs"
    jobs[0].wait_for(lambda: (site / "news" / "job.json").exists() or jobs[0].state in ENDED)  # now it hears signals
    slurm("scancel", "--signal=INT", jobs[0].number)  # as at the time limit
    for job in jobs:
        job.wait_for(lambda job=job: job.state in ENDED)
        assert job.state == "COMPLETED", "\n".join(path.read_text() for path in logs.iterdir())
    assert jobs[0].restarts == 1
    times = [moment for job in jobs for moment in job.span]
    assert times == sorted(times)  # each began when the one before it had ended
    assert ShardDirectory(site / "news").manifest.statistics["documents"]["in_shards"] == len(articles)
    assert (site / "runs" / "chain" / "outcome").read_text().startswith("done")
    results = json.loads((site / "results" / "results.json").read_text())
    assert results["checkpoint"]["path"] == str(site / "runs" / "chain" / "exports" / "step-000030")
    assert results["checkpoint"]["lineage"]["manifest_blake2b"] == results["shards"]["manifest_blake2b"]


def test_a_chain_whose_first_job_fails_is_not_left_in_the_queue(site):
    (site / "broken.jsonl").write_text("no JSON\n", encoding="utf-8")
    settings = [
        'preprocess.arguments=["--jsonl", "broken.jsonl", "--train-vocab", "1000", "--output", "never"]',
        'pretrain.arguments=["--config", "recipe.toml", "--output", "runs/never"]',
        'eval.arguments=["--tasks", "mlm", "--output", "results-never"]',
    ]
    jobs = [
        Job(number, site / "runs" / "never")
        for number in re.findall(r": job (\d+)", run_launch(site, "all", *settings))
    ]
    for job in jobs:
        job.wait_for(lambda job=job: job.state in ENDED, 120)
    assert [job.state for job in jobs] == ["FAILED", "CANCELLED", "CANCELLED"]


def test_the_doctor_sees_two_nodes(site, cluster):
    command = ["srun", "--nodes=2", "--ntasks-per-node=1", f"--chdir={ROOT}", sys.executable, "-m", "cluster.doctor",
               "--shared", str(site), "--need-gb", "0.001", "--json"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    rows = json.loads(done.stdout)
    assert {row["host"] for row in rows} == {"node1", "node2"}
    (bandwidth,) = [row for row in rows if row["check"] == "all-reduce"]
    assert "2 ranks on 2 hosts" in bandwidth["found"]
    checks = ("names", "clocks", "shared files")
    assert {(row["check"], row["state"]) for row in rows if row["check"] in checks} == {(name, "ok") for name in checks}
    assert socket.gethostname() not in {row["host"] for row in rows}

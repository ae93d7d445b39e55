"""Kubernetes, as far as it goes without a cluster: a real API server judges the manifests, and real Pods train.

Needs the laboratory beside the repository (../shared/cluster): k8s-check asks the upstream server for custom resources
with the real definitions; pods-run does what the controllers of Job, JobSet and Kubeflow's trainer do, and runs the
Pods by podman, each with its own address, host name and processes, as the user, with the read-only root and without the
capabilities that the manifests say.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from cluster.k8s.render import Work, render
from cluster.k8s.settings import EvalPods, KubernetesSettings, PreprocessPods, PretrainPods
from cluster.programs import Program
from tests.cluster.k8s.kustomize import needs_kubectl, write
from tests.conftest import LAB, ROOT
from tests.ranks import run_ranks
from tests.trainer.conftest import TINY
from tests.trainer.rank_tasks import run_pretrain_with_onednn
from tests.trainer.shard_factory import SPECIAL, write_shards
from trainer.config import load_recipe
from trainer.deepspeed_config import read_deepspeed

CHECK, RUN = LAB / "cluster" / "k8s-check", LAB / "cluster" / "pods-run"
K8S = ROOT / "cluster" / "k8s"
STEPS = 120
USER = 1000  # of the manifests

pytestmark = [
    pytest.mark.kubernetes,
    pytest.mark.timeout(1800),  # a busy machine, at the first of them with the API server's build
    pytest.mark.skipif(not CHECK.exists(), reason="no Kubernetes laboratory at ../shared/cluster"),
    needs_kubectl,
]


# ---- judged by the server -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server() -> Iterator[None]:
    """The API server; the first time it is built, which takes minutes."""
    with socket.socket() as probe:
        was_up = probe.connect_ex(("127.0.0.1", int(os.environ.get("CRD_LAB_PORT", "16443")))) == 0
    started = subprocess.run(
        [LAB / "cluster" / "crd-server-up"], capture_output=True, text=True, start_new_session=True
    )
    if started.returncode:
        pytest.skip(f"no API server: {started.stderr.strip()[-300:]}")
    yield
    if not was_up:
        subprocess.run([LAB / "cluster" / "crd-server-down"], capture_output=True)


def judge(directories: list[Path], folder: Path) -> subprocess.CompletedProcess[str]:
    """What strict checking says to kustomizations."""
    files = []
    for directory in directories:
        built = subprocess.run(["kubectl", "kustomize", directory], capture_output=True, text=True, check=True)
        files.append(folder / f"{directory.parent.name}-{directory.name}.yaml")
        files[-1].write_text(built.stdout)
    return subprocess.run([CHECK, *files], capture_output=True, text=True)


def test_every_overlay_is_accepted(server, tmp_path):
    overlays = [
        K8S / "base" / "storage",
        *(path.parent for path in (K8S / "overlays").glob("*/*-*/kustomization.yaml")),
    ]
    judged = judge(overlays, tmp_path)
    assert judged.returncode == 0, judged.stdout
    assert len(overlays) == 12
    assert re.match(r"\d+ documents accepted", judged.stdout)


@pytest.mark.parametrize("kind", ["job", "jobset", "trainjob"])
@pytest.mark.parametrize("engine", ["job", "flink"])
def test_what_is_rendered_is_accepted(server, tmp_path, kind, engine):
    pretrain, preprocess = PretrainPods(kind=kind, nodes=4), PreprocessPods(engine=engine)
    settings = KubernetesSettings(namespace="ml", queue="gpus", pretrain=pretrain, preprocess=preprocess)
    preprocessing = Program("preprocess", Path("/shared/shards"), ("--books", "x"))
    evaluation = Program("eval", Path("/shared/results"), ("--tasks", "mlm"))
    work = work_of(preprocessing, training(tmp_path), evaluation)
    judged = judge([write(tmp_path / "run", render(settings, work))], tmp_path)
    assert judged.returncode == 0, judged.stdout


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("unknown-field", "JobSet/demo-pretrain: spec.failurePolicy.maxRestart: unknown field"),
        ("restart-in-place", "Job/demo-pretrain: spec.template.spec.restartPolicy: must be Never"),
        ("missing-volume", "Job/demo-eval: spec.template.spec.containers[0].volumeMounts[0].name: no volume 'shared'"),
        ("more-than-the-limit", "Job/demo-preprocess: spec.template.spec.containers[0].resources.requests.memory: 8Gi"),
        ("reserved-variable", "TrainJob/demo-pretrain: spec.trainer.env[0].name: PET_NODE_RANK is reserved"),
        ("unknown-flink", 'FlinkDeployment/bert-large-flink: spec.flinkVersion: Unsupported value: "v9_9"'),
    ],
)
def test_a_broken_one_is_refused(server, tmp_path, fault, message):
    judged = judge([Path(__file__).parent / "broken" / fault], tmp_path)
    assert judged.returncode == 1
    assert message in judged.stdout


# ---- run as Pods ----------------------------------------------------------------------------------------------------


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    """The shared volume, with the code on it: the Pods' image is this machine's Python."""
    path = tmp_path / "volume"
    path.mkdir()
    for name in ("cluster", "trainer", "preprocessing", "eval"):
        shutil.copytree(ROOT / name, path / "code" / name, ignore=shutil.ignore_patterns("__pycache__"))
    (path / "runs").mkdir()
    os.chown(path / "runs", USER, USER)
    return path


def pods(volume: Path, directory: Path, seconds: float = 500) -> subprocess.Popen[str]:
    """Start what a directory says; what the Pods print is in directory.log."""
    manifests = directory.with_suffix(".yaml")
    built = subprocess.run(["kubectl", "kustomize", directory], capture_output=True, text=True, check=True)
    manifests.write_text(built.stdout)
    search = os.pathsep.join([str(Path(sys.executable).parent), "/usr/bin", "/bin"])
    command = [
        RUN, "--mount", sys.prefix, "--mount", sysconfig.get_config_var("installed_base"),
        "--env", f"PATH={search}", "--env", "DS_ACCELERATOR=cpu",
        "--volume", f"bert-pretraining={volume}", "--timeout", str(seconds), manifests,
    ]  # fmt: skip
    log = directory.with_suffix(".log").open("w")
    return subprocess.Popen(list(map(str, command)), stdout=log, stderr=subprocess.STDOUT, text=True)


def told(directory: Path) -> str:
    return directory.with_suffix(".log").read_text(errors="replace")


def settings_for(kind: str) -> KubernetesSettings:
    """Two small nodes of one rank and one core."""
    training = PretrainPods(kind=kind, nodes=2, gpus=0, cpu=1, memory="2Gi", grace_seconds=120)
    small = {"cpu": 1, "memory": "2Gi", "gpus": 0}
    return KubernetesSettings(
        pretrain=training, preprocess=PreprocessPods(**small), eval=EvalPods(**small)
    )  # fmt: skip


RECIPE = (
    TINY.replace("steps = 8", f"steps = {STEPS}")
    .replace("validate_every = 4", "validate_every = 0")
    .replace("every = 4", "every = 10")
)
OUTPUT = Path("/shared/runs/tiny")  # as Pods see it


def training(folder: Path) -> Program:
    """Of a recipe that is written into a folder here."""
    (folder / "recipe.toml").write_text(RECIPE)
    return Program(
        "pretrain",
        OUTPUT,
        ("--shards", "/shared/shards", "--output", str(OUTPUT)),
        recipe=load_recipe(folder / "recipe.toml"),
        deepspeed_config=read_deepspeed(ROOT / "ds_config.json"),
    )


def work_of(*programs: Program) -> Work:
    return Work("tiny", {program.name: program for program in programs}, code="/shared/code")


def curve(run: Path) -> list[tuple]:
    path = run / "metrics.jsonl"
    whole = [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")] if path.exists() else []
    return [(line["step"], line["samples"], line["loss"], line["grad_norm"]) for line in whole]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory) -> list[tuple]:
    """The curve of two ranks on this machine, started by no cluster and never disturbed."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    write_shards(folder / "shards")
    (folder / "recipe.toml").write_text(RECIPE)
    arguments = ["--config", folder / "recipe.toml", "--deepspeed_config", ROOT / "ds_config.json",
                 "--shards", folder / "shards", "--output", folder / "run"]  # fmt: skip
    assert run_ranks(2, run_pretrain_with_onednn, list(map(str, arguments))) == [0, 0]
    return curve(folder / "run")


def first_process(node: int) -> psutil.Process:
    """The process that the Pod of a node began with, as this machine sees it."""
    for process in psutil.process_iter(["cmdline"]):
        if "cluster.k8s.ranks" in (process.info["cmdline"] or []):
            environment = process.environ()
            if environment.get("PET_NODE_RANK") == str(node) and environment.get("RUN") == str(OUTPUT):
                return process
    raise AssertionError(f"no Pod of node {node} is there")


def wait_for_step(step: int, run: Path, lab: subprocess.Popen[str], directory: Path) -> None:
    deadline = time.monotonic() + 400
    while len(curve(run)) < step:
        assert lab.poll() is None, told(directory)[-3000:]
        assert time.monotonic() < deadline, told(directory)[-3000:]
        time.sleep(0.1)


@contextmanager
def running(volume: Path, directory: Path) -> Iterator[subprocess.Popen[str]]:
    lab = pods(volume, directory)
    try:
        yield lab
    finally:
        lab.terminate()
        lab.wait(60)


@pytest.mark.parametrize(
    ("kind", "drained", "killed"),
    [("job", 0, 1), ("jobset", 1, 0), pytest.param("trainjob", 0, 1, marks=pytest.mark.long)],  # which becomes a JobSet
)
def test_pods_drained_and_killed_leave_the_curve_of_a_run_that_was_never_disturbed(
    volume, uninterrupted, tmp_path, kind, drained, killed
):
    """One Pod gets SIGTERM, as when its node is drained; later the other one, or the same, is killed."""
    write_shards(volume / "shards")
    directory = write(tmp_path / "run", render(settings_for(kind), work_of(training(tmp_path))))
    run = volume / "runs" / "tiny"
    with running(volume, directory) as lab:
        wait_for_step(20, run, lab, directory)
        first_process(drained).send_signal(signal.SIGTERM)
        wait_for_step(55, run, lab, directory)
        first_process(killed).send_signal(signal.SIGKILL)
        assert lab.wait(400) == 0, told(directory)[-3000:]
    log = told(directory)
    assert len(re.findall(r"failed with 10", log)) == 2, "both Pods stop with a checkpoint when one is told to"
    after = log.rpartition("failed with 10\n")[2]
    assert re.search(r"failed with (137|1)$", after, re.MULTILINE), "the killed one, or first the one that lost it"
    restarts = 0 if kind == "job" else 1
    assert kind == "job" or f"({restarts} restarts" in log, "the drained Pods cost no restart, the killed one costs one"
    assert (run / "outcome").read_text().startswith("done")
    assert curve(run) == uninterrupted


@pytest.mark.parametrize("kind", ["job", "jobset"])
def test_a_mistake_is_not_tried_again(volume, tmp_path, kind):
    write_shards(volume / "shards", vocab_size=70)
    directory = write(tmp_path / "run", render(settings_for(kind), work_of(training(tmp_path))))
    with running(volume, directory) as lab:
        assert lab.wait(300) == 1
    log = told(directory)
    assert "made with a vocabulary of 70 entries, but model.vocab_size is 64" in log
    assert "PodFailurePolicy" in log or "FailJobSet" in log
    assert len(re.findall(r"started at", log)) == 2


def test_all_three_jobs_submitted_at_once_run_one_after_the_other(volume, tmp_path):
    """Pretraining waits for the shards, evaluation for the run; nobody but they themselves sees to that."""
    words = [f"word{i}" for i in range(64 - len(SPECIAL))]
    (volume / "vocab.txt").write_text("\n".join([*SPECIAL, *words]) + "\n")
    for book in range(8):
        lines = [" ".join(words[(book + i * j) % len(words)] for j in range(1, 9)) + " ." for i in range(1, 60)]
        (volume / f"book-{book}.txt").write_text("\n".join(lines) + "\n")
    shards, results = Path("/shared/runs/shards"), Path("/shared/runs/results")
    export = OUTPUT / "exports" / f"step-{20:06d}"
    making = (
        "--books", "/shared/book-*.txt", "--vocab", "/shared/vocab.txt", "--sequence-lengths", "32",
        "--duplicates", "2", "--validation-fraction", "0.3", "--min-tokens", "1", "--deduplicate", "none",
        "--output", str(shards),
    )  # fmt: skip
    learning = ("--shards", str(shards), "--output", str(OUTPUT), "train.max_steps=20")
    judging = ("--checkpoint", str(export), "--tasks", "mlm,nsp", "--shards", str(shards), "--samples", "10",
               "--no-tracking", "--output", str(results))  # fmt: skip
    work = work_of(
        Program("preprocess", shards, making),
        replace(training(tmp_path), arguments=learning),
        Program("eval", results, judging),
    )
    directory = write(tmp_path / "run", render(settings_for("job"), work))
    with running(volume, directory) as lab:
        assert lab.wait(500) == 0, told(directory)[-3000:]
    assert (volume / "runs" / "shards" / "manifest.json").exists()
    assert len(curve(volume / "runs" / "tiny")) == 20
    results = json.loads((volume / "runs" / "results" / "results.json").read_text())
    assert set(results["tasks"]) == {"mlm", "nsp"}


# ---- the image ------------------------------------------------------------------------------------------------------


@pytest.fixture
def images() -> Iterator[Path]:
    """A folder of a short name: podman wants one of 50 characters at most."""
    with tempfile.TemporaryDirectory(prefix="images-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@pytest.fixture
def podman(images: Path) -> list[str]:
    """The laboratory's podman with images of its own, among them stand-ins for those that a registry has."""
    if shutil.which("debootstrap") is None:
        pytest.skip("debootstrap is not installed")
    (images / "job.yaml").write_text(
        "{apiVersion: batch/v1, kind: Job, metadata: {name: hello}, spec: {template: {spec: {restartPolicy: Never, "
        "containers: [{name: hello, image: none, command: ['true']}]}}}}"
    )
    subprocess.run([RUN, images / "job.yaml"], check=True, capture_output=True)  # installs what it needs
    lab = Path(os.environ.get("PODS_LAB_DIR", "/tmp/pods-lab"))
    command = ["env", f"CONTAINERS_CONF={lab / 'containers.conf'}", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "podman",
               "--root", str(images / "store"), "--runroot", str(images / "run"),
               "--tmpdir", str(images / "tmp")]  # fmt: skip
    debian = ["debootstrap", "--variant=minbase", "bookworm", images / "debian", "http://deb.debian.org/debian"]
    made = subprocess.run(debian, capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"debootstrap: {made.stdout[-300:]}")
    beam = images / "beam" / "opt" / "apache" / "beam"
    beam.mkdir(parents=True)
    (beam / "boot").touch(0o755)
    for name in ("debian", "beam"):
        subprocess.run(["tar", "-C", images / name, "-cf", images / f"{name}.tar", "."], check=True)
        subprocess.run(
            [*command, "import", images / f"{name}.tar", f"localhost/{name}:1"], check=True, capture_output=True
        )
    return command


def test_the_dockerfile_builds_on_a_bare_debian_and_its_image_preprocesses(podman, tmp_path):
    """As non-root, on a read-only root, without network; and without torch, which preprocessing has no use for."""
    certificates = os.environ.get("SSL_CERT_FILE", "/etc/ssl/certs/ca-certificates.crt")
    build = [
        *podman, "build", "--isolation=chroot", "--network=host", "--pull=never", "--target=preprocessing",
        "--build-arg=BASE=localhost/debian:1", "--build-arg=BEAM=localhost/beam:1", "--tag=localhost/preprocessing:1",
        # What the network here wants; the image has nothing of it.
        f"--volume={certificates}:/ca.crt:ro", "--env=SSL_CERT_FILE=/ca.crt", "--env=PIP_CERT=/ca.crt",
        "--file=cluster/image/Dockerfile", "--ignorefile=cluster/image/Dockerfile.dockerignore", ".",
    ]  # fmt: skip
    built = subprocess.run(build, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr[-3000:]

    (tmp_path / "book.txt").write_text("\n\n".join(f"This is sentence {i}. It says {i * i}." for i in range(200)))
    (tmp_path / "other.txt").write_text("\n\n".join(f"Another book has {i} pages. It is long." for i in range(200)))
    tmp_path.chmod(0o777)
    image = [
        *podman, "run", "--rm", "--network=none", "--read-only", "--tmpfs=/tmp", "--cap-drop=all",
        f"--volume={tmp_path}:/shared", "localhost/preprocessing:1",
    ]  # fmt: skip
    make_shards = ["beam", "run", "preprocessing/make_shards.py", "--books", "/shared/*.txt", "--train-vocab", "200",
                   "--sequence-lengths", "32", "--duplicates", "1", "--output", "/shared/shards"]  # fmt: skip
    made = subprocess.run([*image, *make_shards], capture_output=True, text=True)
    assert made.returncode == 0, made.stderr[-3000:]
    assert (tmp_path / "shards" / "manifest.json").stat().st_uid == USER
    modules = "import importlib.util as u; print([n for n in ('torch', 'deepspeed', 'mlflow') if u.find_spec(n)])"
    assert subprocess.run([*image, "python", "-c", modules], capture_output=True, text=True).stdout == "[]\n"

"""What a Kubernetes cluster is to be told: a section of the cluster's settings."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Literal

from cluster.places import Text, check_environment, check_rank_per_gpu

_LABEL = "[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_SUBDOMAIN = rf"{_LABEL}(\.{_LABEL})*"
# Setting -> the form of its name, and how many characters it may have: a queue's is the value of a label.
_NAMES = {"namespace": (_LABEL, 63), "queue": (_SUBDOMAIN, 63)} | dict.fromkeys(
    ("claim", "mlflow_secret", "data_secret"), (_SUBDOMAIN, 253)
)
_KEY = re.compile(rf"((?=[^/]{{1,253}}/){_SUBDOMAIN}/)?[A-Za-z0-9]([-\w.]{{0,61}}[A-Za-z0-9])?", re.ASCII)
_VALUE = re.compile(r"([A-Za-z0-9]([-\w.]{0,61}[A-Za-z0-9])?)?", re.ASCII)
_MEMORY = re.compile(r"[1-9]\d*(Ki|Mi|Gi|Ti)")
_REPOSITORY = re.compile(r"[a-z0-9][-a-z0-9._:/]*")
_TAG = re.compile(r"\w[-\w.]{0,127}", re.ASCII)
_UNREADABLE = re.compile("[\0-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\ufffe\uffff]")  # in YAML, for kustomize
_MOST = 2**31 - 1  # of what is counted
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_OURS = re.compile(
    "RUN|SHARDS|PODS|RECIPE|DEEPSPEED_CONFIG|CPUS|HOME|JOB|JOBSET|JOB_COMPLETION_INDEX|PET_.*"
    "|TASKMANAGERS|RUN_PYTHON_SDK_IN_DEFAULT_ENVIRONMENT"  # of preprocessing on Flink
    "|PATH|PYTHONPATH|PYTHONHOME|PYTHONSAFEPATH"  # the image's own
    "|RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|MASTER_ADDR|MASTER_PORT"  # cluster.k8s.ranks
)
_TAKEN = ("bin", "dev", "etc", "lib", "lib64", "opt", "proc", "run", "sbin", "sys", "tmp", "usr", "var")


@dataclass(frozen=True)
class Toleration:
    """A taint of nodes that Pods don't mind."""

    key: str
    operator: Literal["Exists", "Equal"] = "Exists"
    value: str = ""
    effect: Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"] = ""

    def __post_init__(self) -> None:
        if not _KEY.fullmatch(self.key) or not _VALUE.fullmatch(self.value):
            raise ValueError(f"toleration {self.key!r}={self.value!r} is not a valid taint")
        if self.value and self.operator == "Exists":
            raise ValueError(f"toleration {self.key!r}: a value needs operator Equal")


@dataclass(frozen=True)
class Pods:
    """The Pods of a job; what they ask for is what they get, no more and no less.

    Attributes:
        cpu: cores of a Pod.
        memory: of a Pod, such as "64Gi".
        gpus: of a Pod.
        node_selector: labels that its node must have.
        tolerations: taints that its node may have.
    """

    cpu: int = 8
    memory: str = "64Gi"
    gpus: int = 0
    node_selector: dict[str, str] = field(default_factory=dict)
    tolerations: list[Toleration] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.cpu <= 0 or self.gpus < 0:
            raise ValueError("cpu must be positive, gpus 0 or more")
        for name, value in vars(self).items():
            if type(value) is int and value > _MOST:
                raise ValueError(f"{name} is more than {_MOST}, the most that Kubernetes takes")
        _check_memory("memory", self.memory)
        for key, value in self.node_selector.items():
            if not _KEY.fullmatch(key) or not _VALUE.fullmatch(value):
                raise ValueError(f"node_selector {key!r}={value!r} is not a valid node label")


@dataclass(frozen=True)
class PreprocessPods(Pods):
    """[kubernetes.preprocess].

    Attributes:
        engine: "job" is one Pod with as many worker processes as cores; "flink" a cluster by the Flink operator,
            of whose Pods cpu and memory say nothing.
        image: with Beam.
        task_managers: of Flink, with one worker process each.
        worker_memory: of such a process.
    """

    engine: Literal["job", "flink"] = "job"
    image: str = "bert-preprocessing:0.1.0"
    task_managers: int = 8
    worker_memory: str = "2Gi"

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_image(self.image)
        if self.gpus:
            raise ValueError("preprocessing has no use for GPUs")
        if self.task_managers <= 0:
            raise ValueError("task_managers must be positive")
        _check_memory("worker_memory", self.worker_memory)


@dataclass(frozen=True)
class PretrainPods(Pods):
    """[kubernetes.pretrain].

    Attributes:
        kind: "trainjob" needs Kubeflow Trainer v2, "jobset" needs JobSet, "job" needs nothing but Kubernetes.
        nodes: Pods.
        processes: ranks of a Pod; 0 for one per GPU, or one where there is none.
        grace_seconds: from SIGTERM to SIGKILL; long enough for a step and a checkpoint.
        wait_minutes: for the shards, where preprocessing was submitted with it. The Pods hold their GPUs meanwhile.
    """

    gpus: int = 8
    cpu: int = 64
    memory: str = "512Gi"
    kind: Literal["trainjob", "jobset", "job"] = "jobset"
    nodes: int = 1
    processes: int = 0
    grace_seconds: int = 600
    wait_minutes: int = 1440

    def __post_init__(self) -> None:
        super().__post_init__()
        if min(self.nodes, self.grace_seconds, self.wait_minutes) <= 0 or self.processes < 0:
            raise ValueError("nodes, grace_seconds and wait_minutes must be positive, processes 0 or more")
        check_rank_per_gpu("processes", self.processes, self.gpus)

    @property
    def ranks_per_node(self) -> int:
        """Processes of a Pod."""
        return self.processes or self.gpus or 1

    @property
    def ranks(self) -> int:
        """Processes in all."""
        return self.nodes * self.ranks_per_node


@dataclass(frozen=True)
class EvalPods(Pods):
    """[kubernetes.eval].

    Attributes:
        pods: how many; more than one share the points of a grid.
        wait_minutes: for the end of a training that was submitted with it.
    """

    gpus: int = 1
    pods: int = 1
    wait_minutes: int = 20_160

    def __post_init__(self) -> None:
        super().__post_init__()
        if min(self.pods, self.wait_minutes) <= 0:
            raise ValueError("pods and wait_minutes must be positive")


@dataclass(frozen=True)
class KubernetesSettings:
    """[kubernetes].

    Attributes:
        namespace: of everything.
        image: of training and evaluation, with a tag or digest.
        claim: the volume that all Pods share.
        mount_path: where they see it; shards, runs and results lie below.
        gpu: what the cluster calls a GPU.
        queue: Kueue's LocalQueue; empty where there is no Kueue.
        mlflow_secret: a Secret with MLFLOW_TRACKING_URI and what it needs; it may be missing. Empty for none.
        data_secret: a Secret with what corpora and shards behind URLs need, such as AWS_ACCESS_KEY_ID: variables of
            preprocessing and training. Empty for none.
        environment: more variables of all jobs, such as NCCL_SOCKET_IFNAME and HTTPS_PROXY.
    """

    namespace: str = "default"
    image: str = "bert-pretraining:0.1.0"
    claim: str = "bert-pretraining"
    mount_path: str = "/shared"
    gpu: str = "nvidia.com/gpu"
    queue: str = ""
    mlflow_secret: str = "mlflow"  # noqa: S105  a name
    data_secret: str = ""
    environment: dict[str, Text] = field(default_factory=dict)
    preprocess: PreprocessPods = field(default_factory=PreprocessPods)
    pretrain: PretrainPods = field(default_factory=PretrainPods)
    eval: EvalPods = field(default_factory=EvalPods)

    def __post_init__(self) -> None:
        for name, (form, most) in _NAMES.items():
            value = getattr(self, name)
            is_one = re.fullmatch(form, value) and len(value) <= most
            if not is_one and (value or name in ("namespace", "claim")):
                letters = "a-z, 0-9 and inner -" + ("" if form == _LABEL else " and .")
                raise ValueError(f"{name} {value!r} is not a name that Kubernetes accepts: up to {most} of {letters}")
        _check_image(self.image)
        if not _KEY.fullmatch(self.gpu) or "/" not in self.gpu:
            raise ValueError(f"gpu {self.gpu!r} is not a resource such as nvidia.com/gpu")
        if not is_clean(self.mount_path):
            raise ValueError(f"mount_path {self.mount_path!r} must be a whole path, such as /shared")
        if (first := PurePosixPath(self.mount_path).parts[1]) in _TAKEN:
            raise ValueError(f"mount_path {self.mount_path!r} lies in the image's /{first}; choose one such as /shared")
        check_environment(self.environment, _OURS)
        for name, value in self.environment.items():
            if _UNREADABLE.search(value):
                raise ValueError(f"environment: {name} holds {value!r}, whose control characters kubectl does not read")


def is_clean(path: str) -> bool:
    """Whether a path is whole, without "..", colons and characters that can't be printed, and not the root."""
    parts = PurePosixPath(path).parts
    return len(parts) > 1 and parts[0] == "/" and ".." not in parts and ":" not in path and path.isprintable()


def _check_memory(name: str, memory: str) -> None:
    if not _MEMORY.fullmatch(memory):
        raise ValueError(f"{name} {memory!r} is not of a form like 64Gi")


def split_image(image: str) -> tuple[str, str, str]:
    """Repository, tag and digest of an image; what is not given is empty."""
    rest, _, digest = image.partition("@")
    if ":" not in rest.rpartition("/")[2]:
        return rest, "", digest
    repository, _, tag = rest.rpartition(":")
    return repository, tag, digest


def has_registry(image: str) -> bool:
    """Whether an image's name begins with the host of a registry; without one nodes ask Docker Hub."""
    host, slash, _ = image.partition("/")
    return bool(slash) and (host == "localhost" or bool(re.search(r"[.:]", host)))


def _check_image(image: str) -> None:
    repository, tag, digest = split_image(image)
    if not _REPOSITORY.fullmatch(repository) or (tag and not _TAG.fullmatch(tag)) or image.endswith((":", "@")):
        raise ValueError(f"image {image!r} is not a name such as registry.example.com/bert-pretraining:0.1.0")
    if (digest and not _DIGEST.fullmatch(digest)) or (not digest and tag in ("", "latest")):
        raise ValueError(
            f"image {image!r} needs a tag, and not latest, or a digest: a restart must find the same image"
        )

"""Manifests of a run: overlays over the base beside this module, which `kubectl apply -k DIRECTORY` takes as they are.

    DIRECTORY/
        kustomization.yaml            all jobs of the run
        preprocess/, pretrain/, eval/
            kustomization.yaml        which base and which kind; namespace, images, queue
            settings/                 what is patched into the Pod: resources, paths, arguments
            config.toml, ds_config.json     shown to the Pods as a ConfigMap
        base/                         a copy of what these stand on

Every value goes through a YAML writer and, where Kubernetes would expand $(NAME), through its escape.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from cluster.k8s.settings import KubernetesSettings, Pods, is_clean, split_image
from cluster.paths import is_seen
from cluster.programs import CONFIG, DEEPSPEED_CONFIG, Name, Program
from trainer.config import to_toml
from trainer.settings import ConfigError

BASE = Path(__file__).with_name("base")
_RUNNERS = ("--runner", "--direct_")  # options of Beam that say who works
_OF_FLINK = (*_RUNNERS, "--job_endpoint", "--artifact_endpoint", "--environment_", "--parallelism")  # in its manifest
NAME_LABEL = "app.kubernetes.io/instance"  # of all that a launch sends: what its objects are called after
_FILES = "/etc/bert-pretraining"  # where Pods see the run's configuration


@dataclass(frozen=True)
class Work:
    """What is to be done.

    Attributes:
        name: what the run's objects are called after.
        programs: the jobs; of several each waits for what the one before makes. Pods see the same paths.
        code: a directory with the code to run; empty for the image's own.
    """

    name: str
    programs: Mapping[Name, Program]
    code: str = ""


def render(settings: KubernetesSettings, work: Work) -> dict[str, str]:
    """The files of a directory for ``kubectl apply -k``, by their names."""
    jobs = {
        name: make(settings, work)
        for name, make in (("preprocess", _preprocess), ("pretrain", _pretrain), ("eval", _eval))
        if name in work.programs
    }
    files = {"kustomization.yaml": to_yaml(_kustomization(resources=list(jobs)))}
    for name, overlay in jobs.items():
        base = {str(path.relative_to(BASE.parent)): path.read_text(encoding="utf-8") for path in _files_of(name)}
        files |= base | {f"{name}/{file}": text for file, text in overlay.items()}
    return files


def check_paths(settings: KubernetesSettings, paths: Iterable[Path | str]) -> None:
    """See that Pods share what lies there, and where links that are seen from here lead to.

    Raises:
        ConfigError: one is not a path below the volume's.
    """
    for path in map(str, paths):
        if not is_clean(path) or not is_seen(Path(path), [Path(settings.mount_path)]):
            raise ConfigError(
                f"kubernetes: {path!r} is not in the shared volume; give a whole path below {settings.mount_path}, "
                'without ".." and colons'
            )


def check_arguments(settings: KubernetesSettings, programs: Iterable[Program]) -> None:
    """See that arguments don't say what the manifests say.

    Raises:
        ConfigError: Flink does the preprocessing, and they say who does.
    """
    if settings.preprocess.engine != "flink":
        return
    words = (word for program in programs if program.name == "preprocess" for word in program.arguments)
    if word := next((word for word in words if word.startswith(_OF_FLINK)), None):
        raise ConfigError(
            f'preprocess: {word}: leave it out, as the manifests of kubernetes.preprocess.engine="flink" say it'
        )


def to_yaml(value: Any) -> str:
    """A YAML document that Kubernetes' reader, of another YAML version than ours, takes as it is meant."""
    text: str = yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)
    return text


def _preprocess(settings: KubernetesSettings, work: Work) -> dict[str, str]:
    """One Pod that runs the command, with its workers in it or in a Flink cluster."""
    pods = settings.preprocess
    arguments = work.programs["preprocess"].arguments
    workers = []
    if pods.engine == "job" and pods.cpu > 1 and not any(word.startswith(_RUNNERS) for word in arguments):
        workers = ["--direct_running_mode=multi_processing", f"--direct_num_workers={pods.cpu}"]
    credentials = {"envFrom": secrets} if (secrets := _data_secret(settings)) else {}
    command = {
        **_container("beam", settings, work),
        "args": _literal([*arguments, *workers]),
        **({"env": _variables(settings.environment)} if settings.environment else {}),
        **credentials,
        "resources": _resources(settings, pods),
    }
    flink = {"name": "flink-main-container", "volumeMounts": _mounts(settings)}
    worker = {  # stays in the folder of the base: Beam writes into it
        "name": "worker",
        "env": _variables({**settings.environment, **({"PYTHONPATH": work.code} if work.code else {})}),
        **credentials,
        "volumeMounts": _mounts(settings),
        "resources": {amount: {"memory": pods.worker_memory} for amount in ("requests", "limits")},
    }
    patches = [
        _patch("preprocess", work, {"run": work.name}, {**_pod(settings, pods), "containers": [command]}),
        _patch(
            "taskmanager",
            work,
            {"count": str(pods.task_managers)},
            {**_pod(settings, pods), "containers": [flink, worker]},
        ),
    ]
    return _overlay(settings, work, "preprocess", pods.engine, patches)


def _pretrain(settings: KubernetesSettings, work: Work) -> dict[str, str]:
    """A Pod for each node."""
    pods, program = settings.pretrain, work.programs["pretrain"]
    assert program.recipe
    assert program.deepspeed_config
    files = {CONFIG: to_toml(program.recipe), DEEPSPEED_CONFIG: program.deepspeed_config.text}
    variables: dict[str, str | int] = {
        "RUN": str(program.output),
        "PET_NNODES": pods.nodes,
        "PET_NPROC_PER_NODE": pods.ranks_per_node,
        **program.variables(pods.gpus),
        **settings.environment,
        "RECIPE": f"{_FILES}/{CONFIG}",
        "DEEPSPEED_CONFIG": f"{_FILES}/{DEEPSPEED_CONFIG}",
    }
    node = {
        **_container("node", settings, work),
        "args": _literal(program.arguments),
        "env": _variables(variables),
        "envFrom": [*_mlflow_secret(settings), *_data_secret(settings)],
        "resources": _resources(settings, pods),
    }
    spec: dict[str, Any] = {
        "terminationGracePeriodSeconds": pods.grace_seconds,
        **_pod(settings, pods),
        "initContainers": [
            _waiter("shards", settings, work, {"SHARDS": _output(work, "preprocess")}, pods.wait_minutes)
        ],
        "containers": [node],
    }
    # Named after its content too: Pods that run, and are made anew, keep what they were submitted with.
    config_map = f"{work.name}-pretrain-{_fingerprint(files)}"
    node["volumeMounts"] += [{"name": "files", "mountPath": _FILES, "readOnly": True}]
    spec["volumes"] += [{"name": "files", "configMap": {"name": config_map}}]
    patch = _patch("pretrain", work, {"run": work.name}, spec)
    return _overlay(settings, work, "pretrain", pods.kind, [patch], config_map, files)


def _eval(settings: KubernetesSettings, work: Work) -> dict[str, str]:
    """Pods that share a grid."""
    pods = settings.eval
    grid = ["--grid-index=$(JOB_COMPLETION_INDEX)", "--grid-count=$(PODS)"] if pods.pods > 1 else []
    command = {
        **_container("eval", settings, work),
        "args": [*_literal(work.programs["eval"].on(pods.gpus).arguments), *grid],
        # The base takes OMP_NUM_THREADS from a field: that must go where a value is given, and nothing else has one.
        "env": [
            {**variable, "valueFrom": None} if variable["name"] == "OMP_NUM_THREADS" else variable
            for variable in _variables({"RUN": _output(work, "pretrain"), "PODS": pods.pods, **settings.environment})
        ],
        "envFrom": _mlflow_secret(settings),
        "resources": _resources(settings, pods),
    }
    spec = {
        **_pod(settings, pods),
        "initContainers": [_waiter("training", settings, work, {"RUN": _output(work, "pretrain")}, pods.wait_minutes)],
        "containers": [command],
    }
    return _overlay(settings, work, "eval", "job", [_patch("eval", work, {"run": work.name}, spec)])


def _output(work: Work, name: Name) -> str:
    """What a job makes that others wait for; empty where it is not of this work."""
    return str(work.programs[name].output) if name in work.programs else ""


def _fingerprint(files: Mapping[str, str]) -> str:
    """Of names and contents."""
    return hashlib.blake2b(json.dumps(files, sort_keys=True).encode(), digest_size=4).hexdigest()


def _files_of(job: str) -> list[Path]:
    return sorted((BASE / job).rglob("*.yaml"))


def _overlay(
    settings: KubernetesSettings,
    work: Work,
    job: str,
    kind: str,
    patches: Sequence[Mapping[str, Any]],
    config_map: str = "",
    files: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """The files of one job's overlay."""
    images = [_image("bert-pretraining", settings.image), _image("bert-preprocessing", settings.preprocess.image)]
    queue = {"kueue.x-k8s.io/queue-name": settings.queue} if settings.queue else {}
    whole = _kustomization(
        namespace=settings.namespace,
        resources=[f"../base/{job}"],
        components=["settings", f"../base/{job}/{kind}"],  # in this order: the kind takes the Pod as it is then
        images=images,
        labels=[{"pairs": {NAME_LABEL: work.name, **queue}}],
    )
    if files:
        options = {"disableNameSuffixHash": True}
        whole["configMapGenerator"] = [{"name": config_map, "files": list(files), "options": options}]
    component = {
        "apiVersion": "kustomize.config.k8s.io/v1alpha1",
        "kind": "Component",
        "patches": [{"path": f"{patch['metadata']['name']}.yaml"} for patch in patches],
    }
    return {
        "kustomization.yaml": to_yaml(whole),
        "settings/kustomization.yaml": to_yaml(component),
        **{f"settings/{patch['metadata']['name']}.yaml": to_yaml(patch) for patch in patches},
        **(files or {}),
    }


def _kustomization(**fields: Any) -> dict[str, Any]:
    return {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", **fields}


def _image(name: str, image: str) -> dict[str, str]:
    """Kustomize's rule that gives an image of the base its real name."""
    repository, tag, digest = split_image(image)
    rule = {"name": name, "newName": repository, "newTag": tag, "digest": digest}
    return {key: value for key, value in rule.items() if value}


def _patch(template: str, work: Work, labels: Mapping[str, str], spec: Mapping[str, Any]) -> dict[str, Any]:
    """A patch of one of the base's Pods; ``labels`` are read by kustomize and stay here."""
    return {
        "apiVersion": "v1",
        "kind": "PodTemplate",
        "metadata": {"name": template, "labels": dict(labels)},
        "template": {"metadata": {"labels": {NAME_LABEL: work.name}}, "spec": dict(spec)},
    }


def _pod(settings: KubernetesSettings, pods: Pods) -> dict[str, Any]:
    """Where a Pod may run, and its volume."""
    tolerations = [
        {key: value for key, value in dataclasses.asdict(toleration).items() if value}
        for toleration in pods.tolerations
    ]
    return {
        **({"nodeSelector": dict(pods.node_selector)} if pods.node_selector else {}),
        **({"tolerations": tolerations} if tolerations else {}),
        "volumes": [{"name": "shared", "persistentVolumeClaim": {"claimName": settings.claim}}],
    }


def _container(name: str, settings: KubernetesSettings, work: Work, reads: bool = False) -> dict[str, Any]:
    """The beginning of a container's patch."""
    code = {"workingDir": work.code} if work.code else {}
    return {"name": name, **code, "volumeMounts": _mounts(settings, reads)}


def _mounts(settings: KubernetesSettings, reads: bool = False) -> list[dict[str, Any]]:
    """The base's mount at another place, where that is asked for; mounts merge by their path.

    Args:
        settings: say where.
        reads: whether the container only reads there.
    """
    if settings.mount_path == "/shared":
        return []
    mount = {"name": "shared", "mountPath": settings.mount_path, **({"readOnly": True} if reads else {})}
    return [{"$patch": "delete", "mountPath": "/shared"}, mount]


def _waiter(name: str, settings: KubernetesSettings, work: Work, what: dict[str, str], minutes: int) -> dict[str, Any]:
    """The patch of the init container that waits for the job before; with nothing to wait for it is taken out."""
    if not any(what.values()):
        return {"name": name, "$patch": "delete"}
    return {**_container(name, settings, work, reads=True), "env": _variables({**what, "WAIT_MINUTES": minutes})}


def _resources(settings: KubernetesSettings, pods: Pods) -> dict[str, Any]:
    """Requests and limits are the same, so that a Pod is the last that a full node takes memory from."""
    amounts = {"cpu": str(pods.cpu), "memory": pods.memory, **({settings.gpu: str(pods.gpus)} if pods.gpus else {})}
    return {"requests": dict(amounts), "limits": dict(amounts)}


def _mlflow_secret(settings: KubernetesSettings) -> list[dict[str, Any]]:
    return [{"secretRef": {"name": settings.mlflow_secret, "optional": True}}] if settings.mlflow_secret else []


def _data_secret(settings: KubernetesSettings) -> list[dict[str, Any]]:
    return [{"secretRef": {"name": settings.data_secret}}] if settings.data_secret else []


def _variables(values: Mapping[str, str | int]) -> list[dict[str, str]]:
    return [{"name": name, "value": _literal([str(value)])[0]} for name, value in values.items()]


def _literal(words: Sequence[str]) -> list[str]:
    """Words in which Kubernetes is not to expand $(NAME)."""
    return [word.replace("$", "$$") for word in words]


class _Dumper(yaml.SafeDumper):
    """Quotes every string that some version of YAML takes for something else: 1e3, 0o17, 1:30, yes."""


def _represent_string(dumper: _Dumper, value: str) -> yaml.Node:
    plain = re.fullmatch(r"[A-Za-z/][\w./-]*", value, re.ASCII) and not re.fullmatch(
        r"y|n|yes|no|on|off|true|false|null", value, re.IGNORECASE
    )
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=None if plain else '"')


_Dumper.add_representer(str, _represent_string)

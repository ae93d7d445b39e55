"""What cluster.launch sends to Kubernetes, from settings."""

from __future__ import annotations

import re
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from cluster.k8s.render import BASE, Work, check_arguments, check_paths, render, to_yaml
from cluster.k8s.settings import EvalPods, KubernetesSettings, PreprocessPods, PretrainPods, Toleration, has_registry
from cluster.programs import Program
from tests.cluster.k8s.kustomize import build, containers, needs_kubectl, only, pod_templates, pods, variables, write
from tests.conftest import ROOT
from trainer.config import load_recipe
from trainer.deepspeed_config import read_deepspeed
from trainer.settings import ConfigError, parse

SETTINGS = KubernetesSettings(
    namespace="research",
    image="registry.example.com:5000/team/bert:1.2",
    claim="lustre",
    mount_path="/lustre",
    queue="gpus",
    mlflow_secret="tracking",
    environment={"NCCL_SOCKET_IFNAME": "eth0", "NCCL_IB_TIMEOUT": "22"},
    preprocess=PreprocessPods(cpu=16, image="registry.example.com:5000/team/beam@sha256:" + "0" * 64),
    pretrain=PretrainPods(
        nodes=4, cpu=96, memory="900Gi", grace_seconds=900, wait_minutes=90, node_selector={"gpu": "h100"},
        tolerations=[Toleration("nvidia.com/gpu", effect="NoSchedule")],
    ),
    eval=EvalPods(pods=3, wait_minutes=5000),
)  # fmt: skip
PREPROCESS = Program(
    "preprocess", Path("/lustre/shards"), ("--books", "/lustre/books/*.txt", "--output", "/lustre/shards")
)
PRETRAIN = Program(
    "pretrain",
    Path("/lustre/runs/large"),
    ("--shards", "/lustre/shards", "--output", "/lustre/runs/large"),
    recipe=load_recipe(ROOT / "trainer" / "recipes" / "demo.toml"),
    deepspeed_config=read_deepspeed(ROOT / "ds_config.json"),
)
EVAL = Program(
    "eval",
    Path("/lustre/results"),
    ("--checkpoint", "/lustre/runs/large/exports/step-000100", "--output", "/lustre/results"),
)
WORK = Work("large", {"preprocess": PREPROCESS, "pretrain": PRETRAIN, "eval": EVAL})


def with_experiment(name: str) -> Work:
    """The same with another recipe."""
    assert PRETRAIN.recipe
    recipe = replace(PRETRAIN.recipe, tracking=replace(PRETRAIN.recipe.tracking, experiment=name))
    return replace(WORK, programs={**WORK.programs, "pretrain": replace(PRETRAIN, recipe=recipe)})


def objects_of(settings: KubernetesSettings, work: Work, folder: Path) -> list[dict]:
    return build(write(folder, render(settings, work)))


@pytest.fixture(scope="module", params=["job", "jobset", "trainjob"])
def objects(request, tmp_path_factory) -> list[dict]:
    """All three jobs, with each kind of pretraining."""
    settings = replace(SETTINGS, pretrain=replace(SETTINGS.pretrain, kind=request.param))
    return objects_of(settings, WORK, tmp_path_factory.mktemp(request.param))


@needs_kubectl
class TestTheWholeRun:
    """All three jobs in one directory."""

    def test_is_in_its_namespace_and_queue_under_its_name(self, objects):
        for item in objects:
            assert item["metadata"]["namespace"] == "research"
            assert item["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "gpus"
            assert re.fullmatch("large-(preprocess|pretrain(-[0-9a-f]{8})?|eval)", item["metadata"]["name"])

    def test_is_found_by_one_label_pods_too(self, objects):
        label = "app.kubernetes.io/instance"
        templates = [item for value in objects for item in pod_templates(value)]
        assert len(templates) == 3
        assert {item["metadata"]["labels"][label] for item in [*objects, *templates]} == {"large"}

    def test_has_the_images_and_the_volume(self, objects):
        for pod in pods(objects):
            (volume,) = [volume for volume in pod["volumes"] if volume["name"] == "shared"]
            assert volume["persistentVolumeClaim"] == {"claimName": "lustre"}
            for box in containers(pod):
                assert box["image"] in (SETTINGS.image, SETTINGS.preprocess.image)
                assert [m["mountPath"] for m in box["volumeMounts"] if m["name"] == "shared"] == ["/lustre"]

    def test_trains_where_and_with_what_the_settings_say(self, objects):
        (pod,) = [pod for pod in pods(objects) if pod["containers"][0]["name"] == "node"]
        (node,) = pod["containers"]
        assert pod["nodeSelector"] == {"gpu": "h100"}
        assert pod["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
        assert pod["terminationGracePeriodSeconds"] == 900
        assert node["resources"]["limits"] == {"cpu": "96", "memory": "900Gi", "nvidia.com/gpu": "8"}
        assert node["envFrom"] == [{"secretRef": {"name": "tracking", "optional": True}}]
        found = variables(node)
        assert found["RUN"] == "/lustre/runs/large"
        assert found["NCCL_SOCKET_IFNAME"] == "eth0"
        assert found["NCCL_IB_TIMEOUT"] == "22"
        assert (found["PET_NNODES"], found["PET_NPROC_PER_NODE"]) == ("4", "8")
        assert node["args"] == list(PRETRAIN.arguments)

    def test_has_the_recipe_in_a_config_map_that_the_command_names(self, objects):
        config = only(objects, "ConfigMap")
        assert tomllib.loads(config["data"]["config.toml"])["model"]["vocab_size"] == PRETRAIN.recipe.model.vocab_size
        assert config["data"]["ds_config.json"] == (ROOT / "ds_config.json").read_text(encoding="utf-8")
        (pod,) = [pod for pod in pods(objects) if pod["containers"][0]["name"] == "node"]
        (volume,) = [volume for volume in pod["volumes"] if volume["name"] == "files"]
        (mount,) = [m for m in pod["containers"][0]["volumeMounts"] if m["name"] == "files"]
        assert volume["configMap"]["name"] == config["metadata"]["name"]
        found = variables(pod["containers"][0])
        assert found["RECIPE"] == f"{mount['mountPath']}/config.toml"
        assert found["DEEPSPEED_CONFIG"] == f"{mount['mountPath']}/ds_config.json"

    def test_leaves_the_recipe_of_a_run_that_runs_as_it_is(self, objects, tmp_path):
        other = objects_of(SETTINGS, with_experiment("another"), tmp_path)
        assert only(other, "ConfigMap")["metadata"]["name"] != only(objects, "ConfigMap")["metadata"]["name"]

    def test_only_reads_where_it_waits(self, objects):
        waiting = [box for pod in pods(objects) for box in pod.get("initContainers", [])]
        assert len(waiting) == 2
        for box in waiting:
            assert [m["readOnly"] for m in box["volumeMounts"] if m["name"] == "shared"] == [True]

    def test_waits_for_the_job_before(self, objects):
        waiting = {
            pod["containers"][0]["name"]: variables(pod["initContainers"][0])
            for pod in pods(objects)
            if pod.get("initContainers")
        }
        assert waiting == {
            "node": {"SHARDS": "/lustre/shards", "WAIT_MINUTES": "90"},
            "eval": {"RUN": "/lustre/runs/large", "WAIT_MINUTES": "5000"},
        }

    def test_shares_the_grid_and_the_cores(self, objects):
        evaluation = next(item for item in objects if item["metadata"]["name"] == "large-eval")
        assert (evaluation["spec"]["parallelism"], evaluation["spec"]["completions"]) == (3, 3)
        (box,) = evaluation["spec"]["template"]["spec"]["containers"]
        device = ["--device", "cuda" if box["resources"]["limits"].get("nvidia.com/gpu") else "cpu"]
        assert box["args"] == [*device, *EVAL.arguments, "--grid-index=$(JOB_COMPLETION_INDEX)", "--grid-count=$(PODS)"]
        (pod,) = [pod for pod in pods(objects) if pod["containers"][0]["name"] == "beam"]
        assert pod["containers"][0]["args"][-1] == "--direct_num_workers=16"
        assert pod["containers"][0]["resources"]["limits"] == {"cpu": "16", "memory": "64Gi"}


@needs_kubectl
def test_one_job_alone_waits_for_nothing(tmp_path):
    (pod,) = pods(objects_of(SETTINGS, Work("large", {"pretrain": PRETRAIN}), tmp_path))
    assert not pod["initContainers"]


def container(settings: KubernetesSettings, work: Work, name: str) -> dict:
    """The patch of the first container of a job's Pods."""
    return yaml.safe_load(render(settings, work)[f"{name}/settings/{name}.yaml"])["template"]["spec"]["containers"][0]


@pytest.mark.parametrize(("gpus", "device"), [(0, "cpu"), (2, "cuda")])
def test_programs_compute_on_what_their_pods_ask_for(gpus, device):
    """DeepSpeed by itself takes the CPU where CUDA does not start, and evaluations do."""
    settings = replace(SETTINGS, pretrain=PretrainPods(gpus=gpus), eval=EvalPods(gpus=gpus))
    assert {"name": "DS_ACCELERATOR", "value": device} in container(settings, WORK, "pretrain")["env"]
    assert container(settings, WORK, "eval")["args"][:2] == ["--device", device]
    own = {"name": "DS_ACCELERATOR", "value": "xpu"}
    settings = replace(settings, environment={"DS_ACCELERATOR": "xpu"})
    assert [v for v in container(settings, WORK, "pretrain")["env"] if v["name"] == "DS_ACCELERATOR"] == [own]


@pytest.mark.parametrize(
    "word",
    [
        "--runner=FlinkRunner", "--direct_num_workers=3", "--job_endpoint=elsewhere:1",
        "--artifact_endpoint=elsewhere:2", "--environment_type=DOCKER", "--parallelism=3",
    ],
)  # fmt: skip
def test_who_works_is_said_once(word):
    """Of two the later counts: the job would go elsewhere, beside a Flink cluster that was made for it."""
    programs = [replace(PREPROCESS, arguments=(*PREPROCESS.arguments, word))]
    on_flink = replace(SETTINGS, preprocess=PreprocessPods(engine="flink"))
    with pytest.raises(ConfigError, match=rf"^preprocess: {word}: leave it out, as the manifests"):
        check_arguments(on_flink, programs)
    check_arguments(on_flink, [PREPROCESS])
    check_arguments(SETTINGS, programs)


def test_one_pod_has_the_grid_to_itself():
    alone = container(replace(SETTINGS, eval=EvalPods(pods=1)), WORK, "eval")
    assert alone["args"] == ["--device", "cuda", *EVAL.arguments]
    assert container(replace(SETTINGS, eval=EvalPods(pods=2)), WORK, "eval")["args"][-1] == "--grid-count=$(PODS)"


@pytest.mark.parametrize("own", ["--runner=DirectRunner", "--direct_num_workers=3", "--direct_running_mode=in_memory"])
def test_workers_are_as_many_as_cores_unless_the_user_says_who_works(own):
    """One core has nothing to share; Beam's own runner in one process is for that."""
    given, few = list(PREPROCESS.arguments), replace(SETTINGS, preprocess=PreprocessPods(cpu=2))
    shared = ["--direct_running_mode=multi_processing", "--direct_num_workers=2"]
    assert container(few, WORK, "preprocess")["args"] == [*given, *shared]
    assert container(replace(SETTINGS, preprocess=PreprocessPods(cpu=1)), WORK, "preprocess")["args"] == given
    told = replace(PREPROCESS, arguments=(*given, own))
    assert container(few, Work("large", {"preprocess": told}), "preprocess")["args"] == [*given, own]


def test_pods_without_gpus_ask_for_none():
    """Not even for 0 of a resource that the cluster may not know."""
    on_cpu = {"gpus": 0, "cpu": 2, "memory": "4Gi"}
    settings = replace(SETTINGS, pretrain=PretrainPods(processes=3, **on_cpu), eval=EvalPods(**on_cpu))
    for name in ("pretrain", "eval"):
        amounts = container(settings, WORK, name)["resources"]
        assert amounts["requests"] == amounts["limits"] == {"cpu": "2", "memory": "4Gi"}
    assert variables(container(settings, WORK, "pretrain"))["PET_NPROC_PER_NODE"] == "3"


@needs_kubectl
def test_what_the_settings_leave_out_is_not_there(tmp_path):
    """No queue, Secret or toleration, nor one without a name; the volume lies where the base has it."""
    for item in objects_of(KubernetesSettings(mlflow_secret=""), replace(WORK, programs={"eval": EVAL}), tmp_path):
        assert "kueue.x-k8s.io/queue-name" not in item["metadata"]["labels"]
        for pod in pods(item):
            assert not pod.get("tolerations")
            assert not any(box.get("envFrom") for box in containers(pod))
            for box in containers(pod):
                assert [m["mountPath"] for m in box["volumeMounts"] if m["name"] == "shared"] == ["/shared"]


@needs_kubectl
def test_preprocessing_on_flink(tmp_path):
    flink = PreprocessPods(engine="flink", task_managers=5, worker_memory="3Gi", node_selector={"pool": "cpu"})
    objects = objects_of(replace(SETTINGS, preprocess=flink), Work("large", {"preprocess": PREPROCESS}), tmp_path)
    task_manager = only(objects, "FlinkDeployment")["spec"]["taskManager"]["podTemplate"]["spec"]
    (worker,) = [box for box in task_manager["containers"] if box["name"] == "worker"]
    assert worker["resources"]["limits"] == worker["resources"]["requests"] == {"cpu": "1", "memory": "3Gi"}
    assert task_manager["nodeSelector"] == {"pool": "cpu"}
    (command,) = only(objects, "Job")["spec"]["template"]["spec"]["containers"]
    assert variables(command)["TASKMANAGERS"] == "5"
    assert "--runner=PortableRunner" in command["command"]
    assert command["args"] == list(PREPROCESS.arguments)


@needs_kubectl
def test_code_from_the_shared_volume_instead_of_the_images(tmp_path):
    work = replace(WORK, code="/lustre/runs/large/job/snapshot")
    for pod in pods(objects_of(SETTINGS, work, tmp_path)):
        assert {box.get("workingDir") for box in containers(pod)} == {"/lustre/runs/large/job/snapshot"}


@needs_kubectl
def test_flink_stages_on_the_volume_and_its_workers_find_the_code_without_writing_into_it(tmp_path):
    flink = replace(SETTINGS, preprocess=PreprocessPods(engine="flink"))
    work = Work("large", {"preprocess": PREPROCESS}, code="/lustre/runs/large/job/snapshot")
    objects = objects_of(flink, work, tmp_path)
    task_manager = only(objects, "FlinkDeployment")["spec"]["taskManager"]["podTemplate"]["spec"]
    (worker,) = [box for box in task_manager["containers"] if box["name"] == "worker"]
    assert worker["workingDir"] == "/tmp"
    assert variables(worker)["PYTHONPATH"] == work.code
    assert variables(worker)["HOME"] == "/tmp"
    submitter = only(objects, "Job")["spec"]["template"]["spec"]
    (server,) = submitter["initContainers"]
    assert "--artifacts-dir=$(VOLUME)/flink-staging" in server["args"]
    assert variables(server)["VOLUME"] == "/lustre"
    for box in (server, *submitter["containers"], *task_manager["containers"]):
        assert [m["mountPath"] for m in box["volumeMounts"] if m["name"] == "shared"] == ["/lustre"]


@needs_kubectl
@pytest.mark.parametrize("kind", ["job", "jobset", "trainjob"])
@pytest.mark.parametrize(("given", "minutes"), [({}, "1440"), ({"DEEPSPEED_TIMEOUT": "20"}, "20")])
def test_ranks_wait_for_a_pod_that_pends(tmp_path, kind, given, minutes):
    """DeepSpeed's ten minutes would count as a crash, over and over, until no restart is left."""
    settings = replace(SETTINGS, environment=given, pretrain=replace(SETTINGS.pretrain, kind=kind))
    objects = objects_of(settings, WORK, tmp_path)
    nodes = [box for pod in pods(objects) for box in pod["containers"] if box["name"] == "node"]
    assert [variables(node)["DEEPSPEED_TIMEOUT"] for node in nodes] == [minutes]


@needs_kubectl
def test_a_number_of_threads_stands_alone(tmp_path):
    """The base's comes from a field, and a variable that has both is refused."""
    settings = replace(SETTINGS, environment={"OMP_NUM_THREADS": "4"})
    found = [
        variable
        for pod in pods(objects_of(settings, WORK, tmp_path))
        for variable in pod["containers"][0].get("env", [])
        if variable["name"] == "OMP_NUM_THREADS"
    ]
    assert found == [{"name": "OMP_NUM_THREADS", "value": "4"}] * 3


@needs_kubectl
@pytest.mark.parametrize("engine", ["job", "flink"])
def test_all_jobs_have_the_variables_and_those_that_open_urls_the_secret_of_the_data(tmp_path, engine):
    settings = replace(
        SETTINGS,
        environment={"HTTPS_PROXY": "http://proxy:3128"},
        data_secret="storage",
        preprocess=PreprocessPods(engine=engine),
    )
    ours = {
        box["name"]: (variables(box)["HTTPS_PROXY"], [source["secretRef"] for source in box.get("envFrom", [])])
        for pod in pods(objects_of(settings, WORK, tmp_path))
        for box in pod["containers"]
        if box["name"] != "flink-main-container"  # reads the volume only
    }
    mlflow, data = {"name": "tracking", "optional": True}, {"name": "storage"}
    assert ours == {
        "beam": ("http://proxy:3128", [data]),
        **({"worker": ("http://proxy:3128", [data])} if engine == "flink" else {}),
        "node": ("http://proxy:3128", [mlflow, data]),
        "eval": ("http://proxy:3128", [mlflow]),
    }


HOSTILE = [
    "a: b # c",
    "$(RUN)",
    "$$",
    "'\"`\\",
    "- x\n- y",
    "{{ x }}",
    "!!python/object",
    "&a",
    "*a",
    "a: b",
    "yes",
    "on",
    "false",
    "Off",
    "NULL",
    "n",
    "1e3",
    "0o17",
    "é",
]


@needs_kubectl
def test_arguments_and_variables_arrive_as_they_are(tmp_path):
    """Kubernetes replaces $$ by $, and nothing else is changed on the way."""
    settings = replace(SETTINGS, environment={f"V{i}": word for i, word in enumerate(HOSTILE)})
    hostile = {name: replace(program, arguments=tuple(HOSTILE)) for name, program in WORK.programs.items()}
    escaped = [word.replace("$", "$$") for word in HOSTILE]
    for pod in pods(objects_of(settings, replace(WORK, programs=hostile), tmp_path)):
        (box,) = pod["containers"]
        own = ["--device", "cuda"] if box["name"] == "eval" else []
        assert box["args"][: len(own) + len(HOSTILE)] == [*own, *escaped]
        assert [variables(box)[f"V{i}"] for i in range(len(HOSTILE))] == escaped


@needs_kubectl
def test_a_recipe_with_anything_in_it_stays_a_file(tmp_path):
    name = 'a "$(RUN)"\n---\nkind: Secret\n# {{ }}'
    objects = objects_of(SETTINGS, with_experiment(name), tmp_path)
    assert tomllib.loads(only(objects, "ConfigMap")["data"]["config.toml"])["tracking"]["experiment"] == name


@pytest.mark.parametrize("word", HOSTILE)
def test_the_writer_quotes_what_another_reader_might_take_for_something_else(word):
    text = to_yaml({"a": word})
    assert yaml.safe_load(text) == {"a": word}
    assert text.startswith('a: "')


def test_the_same_work_is_rendered_to_the_same_bytes():
    assert render(SETTINGS, WORK) == render(SETTINGS, WORK)


def test_everything_that_is_rendered_lies_in_the_directory():
    for name, text in render(SETTINGS, WORK).items():
        assert not Path(name).is_absolute()
        assert ".." not in Path(name).parts
        for document in yaml.safe_load_all(text) if name.endswith("kustomization.yaml") else ():
            for reference in [*document.get("resources", []), *document.get("components", [])]:
                assert reference.startswith("../base/") or "/" not in reference


def test_paths_of_arguments_are_checked_by_whom_knows_them():
    check_paths(SETTINGS, [Path("/lustre/books")])
    for path in ("/home/books", "/lustre/../lustre/books", "/lustre/a:b", "/lustre/a\nb"):
        with pytest.raises(ConfigError, match="is not in the shared volume"):
            check_paths(SETTINGS, [path])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: KubernetesSettings(namespace="a b"), "namespace 'a b' is not a name"),
        (lambda: KubernetesSettings(claim=""), "claim '' is not a name"),
        (lambda: KubernetesSettings(claim="a_"), "claim 'a_' is not a name"),
        (lambda: KubernetesSettings(namespace="a" * 64), "namespace 'a{64}' is not a name"),
        (lambda: KubernetesSettings(namespace="a.b"), "up to 63 of a-z, 0-9 and inner -$"),
        (lambda: KubernetesSettings(claim="a..b"), "up to 253 of a-z, 0-9 and inner - and .$"),
        (lambda: KubernetesSettings(claim="a." * 126 + "bc"), "claim 'a.* is not a name"),
        (lambda: KubernetesSettings(queue="a." * 31 + "bc"), "queue 'a.* is not a name .*: up to 63"),
        (lambda: KubernetesSettings(queue="x\ny: z"), "queue"),
        (lambda: KubernetesSettings(mlflow_secret="A"), "mlflow_secret 'A'"),
        (lambda: KubernetesSettings(image="bert"), "needs a tag, and not latest"),
        (lambda: KubernetesSettings(image="registry:5000/bert"), "needs a tag, and not latest"),
        (lambda: KubernetesSettings(image="bert:latest"), "needs a tag, and not latest"),
        (lambda: KubernetesSettings(image="bert:1@sha256:12"), "needs a tag, and not latest"),
        (lambda: KubernetesSettings(image="bert:1 --x"), "is not a name such as"),
        (lambda: KubernetesSettings(image="Bert:1"), "is not a name such as"),
        (lambda: KubernetesSettings(image="bert:1@"), "is not a name such as"),
        (lambda: KubernetesSettings(mount_path="shared"), "mount_path 'shared' must be a whole path, such as /shared"),
        (lambda: KubernetesSettings(mount_path="data/shared"), "must be a whole path, such as /shared"),
        (lambda: KubernetesSettings(mount_path="/opt/shared"), "mount_path '/opt/shared' lies in the image's /opt"),
        (lambda: KubernetesSettings(mount_path="/tmp/x"), "mount_path"),
        (lambda: KubernetesSettings(mount_path="/"), "mount_path"),
        (lambda: KubernetesSettings(mount_path="/data/../shared"), "must be a whole path, such as /shared"),
        (lambda: KubernetesSettings(mount_path="/data:ro"), "must be a whole path, such as /shared"),
        (lambda: KubernetesSettings(gpu="gpu"), "gpu 'gpu' is not a resource"),
        (lambda: KubernetesSettings(gpu="nvidia.com/g pu"), "gpu 'nvidia.com/g pu' is not a resource"),
        (lambda: EvalPods(wait_minutes=0), "wait_minutes must be positive"),
        (lambda: KubernetesSettings(environment={"A-B": "1"}), "environment: 'A-B'"),
        (lambda: KubernetesSettings(environment={"A": "a\x7fb"}), "whose control characters kubectl does not read"),
        (lambda: KubernetesSettings(environment={"PET_NNODES": "1"}), "one that the job sets itself"),
        (lambda: KubernetesSettings(environment={"RUN": "1"}), "one that the job sets itself"),
        (lambda: KubernetesSettings(data_secret="A"), "data_secret 'A'"),
        (lambda: KubernetesSettings(environment={"TASKMANAGERS": "9"}), "one that the job sets itself"),
        (lambda: KubernetesSettings(environment={"PATH": "/opt/bin"}), "one that the job sets itself"),
        (lambda: KubernetesSettings(environment={"PYTHONPATH": "/opt"}), "one that the job sets itself"),
        (lambda: KubernetesSettings(environment={"PYTHONHOME": "/opt"}), "one that the job sets itself"),
        (lambda: KubernetesSettings(environment={"PYTHONSAFEPATH": "0"}), "one that the job sets itself"),
        (lambda: KubernetesSettings(environment={"JOB_COMPLETION_INDEX": "0"}), "one that the job sets itself"),
        (lambda: KubernetesSettings(environment={"MASTER_ADDR": "a"}), "one that the job sets itself"),
        (lambda: KubernetesSettings(environment={"LOCAL_WORLD_SIZE": "1"}), "one that the job sets itself"),
        (lambda: PretrainPods(memory="64"), "memory '64' is not of a form like 64Gi"),
        (lambda: PretrainPods(memory="0Gi"), "memory '0Gi' is not of a form like 64Gi"),
        (lambda: PreprocessPods(worker_memory="2"), "worker_memory '2' is not of a form like 64Gi"),
        (lambda: PreprocessPods(image="beam"), "image 'beam' needs a tag"),
        (lambda: PretrainPods(nodes=0), "nodes, grace_seconds and wait_minutes must be positive"),
        (lambda: PretrainPods(grace_seconds=0), "nodes, grace_seconds and wait_minutes must be positive"),
        (lambda: PretrainPods(wait_minutes=0), "nodes, grace_seconds and wait_minutes must be positive"),
        (lambda: PretrainPods(gpus=8, processes=4), "4 ranks on 8 GPUs"),
        (lambda: PretrainPods(node_selector={"a b": "c"}), "node_selector 'a b'='c'"),
        (lambda: PretrainPods(node_selector={"a..b/c": "d"}), "node_selector 'a..b/c'='d'"),
        (lambda: PretrainPods(node_selector={"a." * 126 + "bc/d": "e"}), "node_selector"),
        (lambda: PretrainPods(node_selector={"a": "b c"}), "node_selector 'a'='b c'"),
        (lambda: PretrainPods(cpu=0), "cpu must be positive"),
        (lambda: PretrainPods(gpus=-1), "gpus 0 or more"),
        (lambda: PretrainPods(processes=-1), "processes 0 or more"),
        (lambda: PreprocessPods(gpus=1), "no use for GPUs"),
        (lambda: PreprocessPods(task_managers=0), "task_managers must be positive"),
        (lambda: EvalPods(pods=0), "pods and wait_minutes must be positive"),
        (lambda: EvalPods(pods=99999999999), "pods is more than 2147483647, the most that Kubernetes takes"),
        (lambda: Toleration("a", value="b"), "a value needs operator Equal"),
        (lambda: Toleration("a b"), "toleration 'a b'='' is not a valid taint"),
        (lambda: Toleration("a", "Equal", "b c"), "toleration 'a'='b c' is not a valid taint"),
    ],
)
def test_settings_that_no_cluster_takes_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_settings_that_clusters_take():
    digest = "sha256:" + "0" * 64
    for image in ("registry:5000/bert:1", f"registry:5000/bert@{digest}", f"registry:5000/bert:latest@{digest}"):
        KubernetesSettings(image=image, namespace="a" * 63, gpu="amd.com/gpu", mount_path="/data/shared")
    KubernetesSettings(claim="data.nfs", queue="user.queue", mlflow_secret="a." * 126 + "b")
    KubernetesSettings(environment={"A": "line\n\t서울 ~"})
    PretrainPods(memory="1Ti", node_selector={"gpu.example.com/kind": "H100_80.GB", "a": ""})
    Toleration("a", "Equal", "b", "NoExecute")
    EvalPods(pods=2**31 - 1)


def test_a_variable_is_text_or_a_number():
    """What YAML's or TOML's true would become in a variable, a program may take for something else."""
    assert parse({"environment": {"A": "true", "B": 22}}, KubernetesSettings, "").environment == {
        "A": "true",
        "B": "22",
    }
    with pytest.raises(ConfigError, match=r"environment\.A: Input should be a valid string"):
        parse({"environment": {"A": True}}, KubernetesSettings, "")


def test_variables_that_the_base_sets_are_none_of_the_user_s():
    """But the number of threads and how long ranks wait for one another, which are only defaults."""
    documents = [document for file in BASE.rglob("*.yaml") for document in yaml.safe_load_all(file.read_text())]
    set_there = {item["name"] for pod in pods(documents) for item in pod["containers"][0].get("env", [])}
    assert set_there > {"RUN", "SHARDS", "RECIPE", "TASKMANAGERS", "HOME", "CPUS"}
    for name in set_there - {"OMP_NUM_THREADS", "DEEPSPEED_TIMEOUT"}:
        with pytest.raises(ValueError, match="one that the job sets itself"):
            KubernetesSettings(environment={name: "1"})


def test_a_variable_may_begin_like_one_that_the_job_sets_itself():
    KubernetesSettings(environment={"JOBLIB_TEMP_FOLDER": "/tmp", "RUN_NAME": "a", "OMP_NUM_THREADS": "4"})


@pytest.mark.parametrize(
    ("image", "named"),
    [
        ("bert:1", False), ("me/bert:1", False), ("bert.cuda:1", False), ("bert@sha256:" + "0" * 64, False),
        ("example.com/bert:1", True), ("registry:5000/me/bert:1", True), ("localhost/bert:1", True),
        ("nvcr.io/me/bert@sha256:" + "0" * 64, True),
    ],
)  # fmt: skip
def test_a_registry_is_a_host_before_the_first_slash(image, named):
    assert has_registry(image) == named


def test_ranks_are_one_per_gpu_or_what_is_asked_for():
    assert PretrainPods(nodes=4).ranks == 32
    assert PretrainPods(nodes=2, gpus=0).ranks == 2
    assert PretrainPods(nodes=2, gpus=0, processes=3).ranks == 6


@needs_kubectl
def test_a_rendered_directory_stands_alone(tmp_path):
    """Moved elsewhere it still builds: nothing points into the repository."""
    first = write(tmp_path / "a", render(SETTINGS, WORK))
    objects = build(first)
    assert build(first.rename(tmp_path / "b")) == objects

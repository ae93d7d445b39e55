"""The base and the overlays of the repository. In tests/cluster/test_kubernetes.py a real server judges them."""

from __future__ import annotations

import functools
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.k8s.launch import POD_GROUP, POD_USER
from tests.cluster.k8s import kustomize
from tests.cluster.k8s.kustomize import containers, jobs, needs_kubectl, only, pods, variables
from tests.conftest import ROOT
from trainer.outcome import EXIT_CODES, MISTAKE

K8S = ROOT / "cluster" / "k8s"
OVERLAYS = sorted(path.parent for path in (K8S / "overlays").glob("*/*-*/kustomization.yaml"))
FILES = sorted(K8S.rglob("*.yaml"))
PRETRAIN = [K8S / "overlays" / "bert-large" / f"pretrain-{kind}" for kind in ("job", "jobset", "trainjob")]


build = functools.cache(kustomize.build)  # many tests look at the same


def name(path: Path) -> str:
    return str(path.relative_to(K8S))


def test_there_are_overlays_of_all_jobs_and_kinds():
    found = {path.name for path in OVERLAYS}
    assert found == {
        "preprocess-job",
        "preprocess-flink",
        "pretrain-job",
        "pretrain-jobset",
        "pretrain-trainjob",
        "eval-job",
    }


@pytest.mark.parametrize("path", FILES, ids=name)
def test_every_image_has_a_version(path: Path):
    documents = list(yaml.safe_load_all(path.read_text(encoding="utf-8")))
    images = [box["image"] for pod in pods(documents) for box in containers(pod) if "image" in box]
    for image in images:
        assert re.fullmatch(r"[\w./-]+:\d[\w.-]*", image), image


@needs_kubectl
@pytest.mark.parametrize("overlay", OVERLAYS, ids=name)
class TestEveryPod:
    """Of every overlay; the rules are those of the restricted Pod security standard, and some of ours."""

    @pytest.fixture
    def pods(self, overlay: Path) -> list[dict[str, Any]]:
        found = list(pods(build(overlay)))
        assert found
        return found

    def test_has_no_privileges(self, pods):
        for pod in pods:
            assert pod["securityContext"]["runAsNonRoot"] is True
            assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
            for box in containers(pod):
                assert box["securityContext"]["allowPrivilegeEscalation"] is False
                assert box["securityContext"]["capabilities"] == {"drop": ["ALL"]}
                user = box["securityContext"].get("runAsUser", pod["securityContext"].get("runAsUser", 0))
                assert user > 0

    def test_has_a_root_that_is_read_only_and_a_tmp_that_is_not(self, pods):
        for pod in pods:
            for box in containers(pod):
                assert box["securityContext"]["readOnlyRootFilesystem"] is True
            for box in pod["containers"]:
                assert "/tmp" in [mount["mountPath"] for mount in box["volumeMounts"]]

    def test_asks_for_what_it_may_use(self, pods):
        for pod in pods:
            for box in containers(pod):
                if box["name"] == "flink-main-container":  # the operator sets them
                    continue
                assert box["resources"]["requests"] == box["resources"]["limits"]
                assert {"cpu", "memory"} <= set(box["resources"]["limits"])

    def test_has_no_token_unless_it_is_flinks_jobmanager(self, pods):
        for pod in pods:
            talks = [box["name"] for box in pod["containers"]] == ["flink-main-container"]
            assert talks or pod["automountServiceAccountToken"] is False

    def test_that_sees_the_volume_writes_as_the_group_that_a_launch_lets_write(self, pods):
        for pod in pods:
            if "shared" in [volume["name"] for volume in pod["volumes"]]:
                assert pod["securityContext"]["fsGroup"] == POD_GROUP
                assert pod["securityContext"]["fsGroupChangePolicy"] == "OnRootMismatch"  # a large volume takes hours

    def test_has_the_claim_and_folders_of_a_limited_size(self, pods):
        for volume in [volume for pod in pods for volume in pod["volumes"]]:
            if volume["name"] == "shared":
                assert volume["persistentVolumeClaim"] == {"claimName": "bert-pretraining"}
            else:
                assert volume["emptyDir"]["sizeLimit"].endswith("Gi")
                assert (volume["emptyDir"].get("medium") == "Memory") == (volume["name"] == "shm")

    def test_runs_our_programs_as_the_user_that_a_launch_lets_read(self, pods):
        of_ours = [(pod, box) for pod in pods for box in containers(pod) if "/bert-pre" in box.get("image", "")]
        assert of_ours
        for pod, box in of_ours:
            context = {**pod["securityContext"], **box.get("securityContext", {})}
            assert (context["runAsUser"], context["runAsGroup"]) == (POD_USER, POD_GROUP)
            assert {"name": "HOME", "value": "/tmp"} in box["env"] or box in pod["initContainers"]

    def test_is_not_told_of_other_services(self, pods):
        """By variables, which those of some namespaces make thousands."""
        assert all(pod["enableServiceLinks"] is False for pod in pods)

    def test_of_ours_has_no_program_as_process_1_which_sigterm_would_not_end(self, pods):
        for pod in pods:
            if pod["containers"][0]["name"] != "flink-main-container":
                assert pod["shareProcessNamespace"] is True
                assert pod["restartPolicy"] == "Never"

    def test_names_secrets_and_has_none(self, pods):
        for pod in pods:
            for box in containers(pod):
                for variable in box.get("env", []):
                    assert not re.search("PASSWORD|TOKEN|SECRET|KEY", variable["name"])


@needs_kubectl
@pytest.mark.parametrize("overlay", PRETRAIN, ids=name)
def test_training_pods_are_the_same_in_all_kinds(overlay: Path):
    (pod,) = pods(build(overlay))
    (node,) = pod["containers"]
    assert node["name"] == "node"
    assert node["resources"]["limits"] == {"cpu": "64", "memory": "512Gi", "nvidia.com/gpu": "8"}
    assert pod["restartPolicy"] == "Never"  # the exit code decides
    assert pod["terminationGracePeriodSeconds"] >= 300
    assert {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}} in pod["volumes"]
    assert {"name": "shared", "persistentVolumeClaim": {"claimName": "bert-pretraining"}} in pod["volumes"]
    assert node["command"][:3] == ["python", "-m", "cluster.k8s.ranks"]  # no shell between SIGTERM and the ranks


@needs_kubectl
@pytest.mark.parametrize("overlay", [path for path in OVERLAYS if not path.name.startswith("preprocess")], ids=name)
def test_a_pod_waits_for_what_it_reads_and_may_go_without_mlflow(overlay: Path):
    (pod,) = pods(build(overlay))
    (wait,), (box,) = pod["initContainers"], pod["containers"]
    place = "RUN" if overlay.name == "eval-job" else "SHARDS"
    assert wait["command"] == ["python", "-m", "cluster.k8s.wait", f"--{place.lower()}", f"$({place})",
                               "--minutes", "$(WAIT_MINUTES)"]  # fmt: skip
    assert variables(wait)[place] == variables(box)[place]
    assert int(variables(wait)["WAIT_MINUTES"]) > 0
    assert wait["volumeMounts"] == [{"name": "shared", "mountPath": "/shared", "readOnly": True}]
    assert box["envFrom"] == [{"secretRef": {"name": "mlflow", "optional": True}}]


@needs_kubectl
@pytest.mark.parametrize("overlay", [*PRETRAIN, PRETRAIN[0].with_name("eval-job")], ids=name)
def test_a_runtime_class_in_the_base_reaches_the_pods(overlay: Path, tmp_path):
    """For nodes whose default runtime is not NVIDIA's; there is no setting for it."""
    shutil.copytree(K8S, tmp_path / "k8s")
    base = tmp_path / "k8s" / "base" / overlay.name.partition("-")[0] / "pod.yaml"
    base.write_text(base.read_text().replace("\n  spec:\n", "\n  spec:\n    runtimeClassName: nvidia\n"))
    (pod,) = pods(build(tmp_path / "k8s" / overlay.relative_to(K8S)))
    assert pod["runtimeClassName"] == "nvidia"


@needs_kubectl
@pytest.mark.parametrize("overlay", PRETRAIN, ids=name)
def test_nodes_and_queue_are_where_each_kind_has_them(overlay: Path):
    objects = build(overlay)
    kind = {"pretrain-job": "Job", "pretrain-jobset": "JobSet", "pretrain-trainjob": "TrainJob"}[overlay.name]
    found = only(objects, kind)
    assert found["metadata"]["labels"] == {"kueue.x-k8s.io/queue-name": "bert"}
    assert found["metadata"]["name"] == "bert-large-pretrain"
    spec = found["spec"]
    if kind == "TrainJob":
        assert (spec["trainer"]["numNodes"], spec["trainer"]["numProcPerNode"]) == (2, 8)
        assert spec["runtimeRef"]["name"] == only(objects, "TrainingRuntime")["metadata"]["name"]
        return
    job = spec["replicatedJobs"][0]["template"]["spec"] if kind == "JobSet" else spec
    assert (job["parallelism"], job["completions"]) == (2, 2)


@needs_kubectl
@pytest.mark.parametrize("overlay", PRETRAIN[1:], ids=name)
def test_one_lost_pod_restarts_the_gang(overlay: Path):
    """Of the child Job no Pod is replaced after a crash, so that it fails and the JobSet starts all of them anew."""
    objects = build(overlay)
    jobset = only(objects, "JobSet")["spec"] if overlay.name == "pretrain-jobset" else (
        only(objects, "TrainingRuntime")["spec"]["template"]["spec"])  # fmt: skip
    assert jobset["failurePolicy"]["maxRestarts"] > 0
    (rule,) = jobset["failurePolicy"]["rules"]  # but for what would come again
    assert (rule["action"], rule["onJobFailureReasons"]) == ("FailJobSet", ["PodFailurePolicy"])
    (nodes,) = jobset["replicatedJobs"]
    assert (nodes["name"], nodes.get("replicas", 1)) == ("node", 1)
    assert nodes["template"]["spec"]["backoffLimit"] == 0


def action_on(job: dict[str, Any], code: int = 137, *, is_disrupted: bool = False) -> str:
    """What becomes of a Job one of whose Pods fails: the first of its policy's rules that fits decides."""
    for rule in job.get("podFailurePolicy", {}).get("rules", []):
        if codes := rule.get("onExitCodes"):
            fits = codes["operator"] == "In" and code in codes["values"]
        else:
            fits = is_disrupted and rule["onPodConditions"] == [{"type": "DisruptionTarget", "status": "True"}]
        if fits:
            return rule["action"]
    return "Count"


@needs_kubectl
@pytest.mark.parametrize("overlay", OVERLAYS, ids=name)
def test_what_would_come_again_ends_a_job_and_what_is_nobody_s_fault_is_not_counted(overlay: Path):
    (job,) = jobs(build(overlay))
    if overlay.name == "preprocess-flink":  # which goes on in Flink without it
        assert (job["backoffLimit"], action_on(job, MISTAKE)) == (0, "Count")
        return
    assert action_on(job, MISTAKE) == "FailJob"
    assert [action_on(job, code) for code in (1, 137)] == ["Count"] * 2
    is_a_set_s = overlay.name in ("pretrain-jobset", "pretrain-trainjob")  # where one Pod that is lost ends all
    assert action_on(job, is_disrupted=True) == ("Count" if is_a_set_s else "Ignore")
    if overlay.name.startswith("pretrain"):
        assert action_on(job, EXIT_CODES["failed"]) == "FailJob"
        assert action_on(job, EXIT_CODES["requeue"]) == "Ignore"


@needs_kubectl
def test_a_point_of_evaluation_that_fails_is_tried_again_without_the_others():
    job = only(build(K8S / "overlays" / "bert-large" / "eval-job"), "Job")["spec"]
    assert job["completionMode"] == "Indexed"
    assert job["backoffLimitPerIndex"] > 0


@needs_kubectl
def test_the_plain_jobs_pods_find_each_other():
    objects = build(PRETRAIN[0])
    job, service = only(objects, "Job"), only(objects, "Service")
    assert job["spec"]["template"]["spec"]["subdomain"] == service["metadata"]["name"] == "bert-large-pretrain"
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True  # ranks look for each other before they are ready
    assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": job["metadata"]["name"]}


@needs_kubectl
@pytest.mark.parametrize(("overlay", "named_by", "first"), [
    (PRETRAIN[0], ("JOB", "batch.kubernetes.io/job-name"), "$(JOB)-0.$(JOB)"),
    (PRETRAIN[1], ("JOBSET", "jobset.sigs.k8s.io/jobset-name"), "$(JOBSET)-node-0-0.$(JOBSET)"),
], ids=["job", "jobset"])  # fmt: skip
def test_a_node_knows_its_number_and_the_first_one_s_name(overlay: Path, named_by, first):
    """Of a TrainJob the trainer tells it; a JobSet's jobs are Indexed unless they say something else."""
    objects = build(overlay)
    (pod,), (job,) = pods(objects), jobs(objects)
    assert job.get("completionMode", "Indexed" if overlay == PRETRAIN[1] else "NonIndexed") == "Indexed"
    (node,) = pod["containers"]
    fields = {item["name"]: item["valueFrom"]["fieldRef"]["fieldPath"]
              for item in node["env"] if "fieldRef" in item.get("valueFrom", {})}  # fmt: skip
    variable, label = named_by
    assert fields == {variable: f"metadata.labels['{label}']",
                      "PET_NODE_RANK": "metadata.annotations['batch.kubernetes.io/job-completion-index']"}  # fmt: skip
    assert variables(node)["PET_MASTER_ADDR"] == first


@needs_kubectl
def test_the_command_finds_its_flink_cluster():
    objects = build(K8S / "overlays" / "bert-large" / "preprocess-flink")
    pod = only(objects, "Job")["spec"]["template"]["spec"]
    server = next(box for box in pod["initContainers"] if box["name"] == "jobserver")
    assert {"name": "FLINK", "value": only(objects, "FlinkDeployment")["metadata"]["name"]} in server["env"]
    assert "--flink-master=$(FLINK)-rest:8081" in server["args"]
    assert server["restartPolicy"] == "Always"  # beside the command, which starts once the port is open
    (box,) = pod["containers"]
    assert f"--job_endpoint=localhost:{server['startupProbe']['tcpSocket']['port']}" in box["command"]
    assert box["command"][:5] == ["python", "-m", "preprocessing.beam_cli", "run", "preprocessing/make_shards.py"]
    assert {"name": "TASKMANAGERS", "value": "32"} in box["env"]


@needs_kubectl
def test_flink_restarts_a_job_and_is_the_version_of_its_job_server():
    objects = build(K8S / "overlays" / "bert-large" / "preprocess-flink")
    flink = only(objects, "FlinkDeployment")["spec"]
    settings = flink["flinkConfiguration"]
    assert settings["restart-strategy.type"] == "fixed-delay"  # its own default is to fail at the first fault
    assert int(settings["restart-strategy.fixed-delay.attempts"]) > 0
    assert settings["taskmanager.numberOfTaskSlots"] == "1"  # as one worker of Python's is beside each
    minor = flink["flinkVersion"].removeprefix("v").replace("_", ".")
    assert flink["image"].startswith(f"flink:{minor}.")
    server = only(objects, "Job")["spec"]["template"]["spec"]["initContainers"][0]
    assert server["image"].startswith(f"apache/beam_flink{minor}_job_server:")

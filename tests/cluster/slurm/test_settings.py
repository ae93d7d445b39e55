"""What no SLURM would take, refused before anything is written; test_launch.py has some of it as a user meets it."""

from pathlib import Path

import pytest

from cluster.slurm.settings import Common, Container, EvalJob, Job, PretrainJob, SlurmSettings


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Common(options=["--comment=a\nb"]), r"options: '--comment=a\\nb' is not an option of sbatch"),
        (lambda: Common(environment={"A": "a\0b"}), "environment: A holds a NUL character, which no variable can"),
        (lambda: Job(gpus_per_node=-1), "gpus_per_node must be 0 or more, cpus_per_task positive"),
        (lambda: Job(cpus_per_task=0), "gpus_per_node must be 0 or more, cpus_per_task positive"),
        (lambda: Job(gpu_type="h100 --x"), "gpu_type 'h100 --x' is not a name that SLURM knows"),
        (lambda: PretrainJob(nodes=0), "nodes must be positive, tasks_per_node 0 or more"),
        (lambda: PretrainJob(gpus_per_node=0, tasks_per_node=-1), "nodes must be positive, tasks_per_node 0 or more"),
        (lambda: EvalJob(array=0), "array must be positive, array_limit 0 or more"),
        (lambda: EvalJob(array_limit=-1), "array must be positive, array_limit 0 or more"),
        (lambda: Container("pyxis"), "runtime and image belong together; give both or none"),
        (lambda: Container(image="a#b:1"), "runtime and image belong together; give both or none"),
        (lambda: Container("pyxis", "a\nb"), "image holds characters that can't be printed"),
        (lambda: Container("pyxis", "a#b:1", [Path("data")]), "mounts: 'data' must be a whole path"),
        (lambda: Container("pyxis", "a#b:1", [Path("/a,/etc")]), "mounts: '/a,/etc' must be a whole path without comm"),
        (lambda: Container("pyxis", "a#b:1", [Path("/a:/b")]), "mounts: '/a:/b' must be a whole path without comm"),
        (lambda: Container("pyxis", "a#b:1", [Path("/a b")]), "mounts: '/a b' must be a whole path without commas"),
        (lambda: SlurmSettings(python="a\nb"), "python holds characters that can't be printed"),
        (lambda: SlurmSettings(notice=0), "notice must be from 1 to 65535 seconds, crashes 0 or more"),
        (lambda: SlurmSettings(notice=65536), "notice must be from 1 to 65535 seconds, crashes 0 or more"),
        (lambda: SlurmSettings(crashes=-1), "notice must be from 1 to 65535 seconds, crashes 0 or more"),
        (lambda: SlurmSettings(preprocess=Job(time="5")), "notice, 300 s, leaves nothing of preprocess.time, 5"),
    ],
)
def test_settings_that_no_slurm_takes_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("runtime", "image", "file"),
    [
        ("pyxis", "nvcr.io#nvidia/pytorch:26.01-py3", None),
        ("pyxis", "ubuntu", None),
        ("pyxis", "docker://ubuntu", None),
        ("pyxis", "/images/bert.sqsh", "/images/bert.sqsh"),
        ("pyxis", "./bert.sqsh", "bert.sqsh"),
        ("pyxis", "~/bert.sqsh", "~/bert.sqsh"),
        ("apptainer", "docker://ubuntu", None),
        ("apptainer", "bert.sif", "bert.sif"),
        ("", "", None),
    ],
)
def test_an_image_is_a_file_or_a_name_as_its_runtime_has_it(runtime, image, file):
    assert Container(runtime, image).image_file == (Path(file) if file else None)


def test_ranks_are_one_per_gpu_or_what_is_asked_for():
    assert PretrainJob(nodes=4).ranks == 32
    assert PretrainJob(nodes=2, gpus_per_node=0).ranks == 2
    assert PretrainJob(nodes=2, gpus_per_node=0, tasks_per_node=3).ranks == 6


@pytest.mark.parametrize("memory", ["", "0", "5000", "500M", "64G", "2T"])
def test_memory_may_be_of_each_of_sbatch_s_forms(memory):
    assert Job(memory=memory).memory == memory

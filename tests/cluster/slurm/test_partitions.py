"""Whether a job fits into a partition, by what sinfo says."""

import math
from dataclasses import replace

import pytest

from cluster.slurm.partitions import NodeGroup, check_fit, parse_partitions
from cluster.slurm.settings import Job
from trainer.settings import ConfigError

SINFO = """\
gpu*|2-00:00:00|4|gpu:h100:8(S:0-1),nvme:1
gpu*|2-00:00:00|2|gpu:a100:4(S:0)
cpu|infinite|10|(null)
old|30:00|1|gpu:2
plain|n/a|3|gpu:a100:2(S:0),gpu:a100:2(S:1)
odd|UNKNOWN|1|(null)
sinfo: a word of the site's
maintenance | on Friday | from 8 | to 12
"""


@pytest.fixture
def groups() -> list[NodeGroup]:
    return parse_partitions(SINFO)


def test_what_sinfo_prints(groups):
    assert groups == [
        NodeGroup("gpu", 172800, 4, {"h100": 8, "": 8}),
        NodeGroup("gpu", 172800, 2, {"a100": 4, "": 4}),
        NodeGroup("cpu", math.inf, 10, {}),
        NodeGroup("old", 1800, 1, {"": 2}),
        NodeGroup("plain", math.inf, 3, {"a100": 4, "": 4}),
        NodeGroup("odd", math.inf, 1, {}),
    ]


@pytest.mark.parametrize(
    ("names", "job", "nodes"),
    [
        ("gpu", Job(gpus_per_node=4), 6),
        ("gpu", Job(gpus_per_node=8, gpu_type="h100", time="2-00:00:00"), 4),
        ("cpu", Job(time="30-0"), 10),
        ("old,gpu", Job(gpus_per_node=8), 4),
        ("cpu,gpu", Job(gpus_per_node=8), 4),
        ("old", Job(gpus_per_node=2, time="30"), 1),
    ],
)
def test_fits(groups, names, job, nodes):
    check_fit(groups, "pretrain", replace(job, partition=names), nodes)


@pytest.mark.parametrize(
    ("names", "job", "nodes", "message"),
    [
        (
            "gpu",
            Job(gpus_per_node=8),
            5,
            "needs 5 nodes with 8 GPUs for 1-00:00:00, but gpu has 4 nodes with 8 h100 GPUs",
        ),
        ("gpu", Job(gpus_per_node=8, gpu_type="a100"), 1, "needs 1 node with 8 a100 GPUs"),
        ("gpu", Job(time="2-00:00:01"), 1, "48 h at most; gpu has 2 nodes with 4 a100 GPUs, 48 h at most"),
        ("cpu", Job(gpus_per_node=1), 1, "but cpu has 10 nodes with no GPUs, without limit"),
        ("old", Job(gpus_per_node=2), 1, "but old has 1 node with 2 GPUs, 0.5 h at most"),
        ("gpu,gqu", Job(), 1, "pretrain: there is no partition 'gqu'; this cluster has cpu, gpu, odd, old, plain"),
    ],
)
def test_does_not_fit(groups, names, job, nodes, message):
    with pytest.raises(ConfigError) as error:
        check_fit(groups, "pretrain", replace(job, partition=names), nodes)
    assert message in str(error.value)

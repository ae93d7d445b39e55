"""What of a command line is Beam's: which options it knows, and which of them would do harm or nothing."""

from __future__ import annotations

import shlex
import sys

from apache_beam.options.pipeline_options import (
    FlinkRunnerOptions,
    JobServerOptions,
    PipelineOptions,
    PortableOptions,
    PrismRunnerOptions,
    SparkRunnerOptions,
    StandardOptions,
)

from preprocessing.command_line import OneLineParser

_OF_CLUSTERS = (FlinkRunnerOptions, SparkRunnerOptions, PrismRunnerOptions, PortableOptions, JobServerOptions)
# The runners that work inside this process (and its worker processes).
EMBEDDED_RUNNERS = ("FnApiRunner", "DirectRunner", "BundleBasedDirectRunner", "SwitchingDirectRunner")


def check_beam_options(ours: OneLineParser, rest: list[str]) -> list[str]:
    """Check the options meant for Beam, and pin the runner.

    Left alone, Beam's default runner may fetch another one from the network and run on that.

    Args:
        ours: the parser of the command, which tells what is wrong.
        rest: what that does not know.

    Raises:
        SystemExit: with code 2, once the reason is on stderr.
    """
    beam = OneLineParser(prog=ours.prog, add_help=False)
    for group in {str(group): group for group in PipelineOptions.__subclasses__()}.values():
        group._add_argparse_args(beam)
    beam.set_defaults(direct_running_mode=None)
    known, unknown = beam.parse_known_args(rest)
    embedded = known.runner is None or _runner(ours, known.runner) in EMBEDDED_RUNNERS
    if unknown and (embedded or not unknown[0].startswith("--")):
        ours.error(f"unknown option {unknown[0]!r}: neither this program nor Beam has it")
    if known.direct_running_mode == "multi_threading":
        ours.error(
            "--direct_running_mode=multi_threading loses documents now and then (a race in Beam's threaded data "
            "channel); use multi_processing"
        )
    if not embedded:
        return rest
    of_clusters = _options_of_clusters()
    for option in (word.partition("=")[0] for word in rest):
        if option in of_clusters:
            ours.error(f"{option} is for another engine, and none is asked for: add its --runner, or leave it out")
    if known.num_workers is not None or known.max_num_workers is not None:
        ours.error("--num_workers is Dataflow's, and does nothing on one machine; there it is --direct_num_workers")
    for name in ("dry_run", "update", "streaming"):
        if getattr(known, name):
            ours.error(f"--{name} does nothing on one machine, where the job would run all the same; leave it out")
    if known.pickle_library.startswith("dill"):
        ours.error(
            f"--pickle_library={known.pickle_library}: this job goes to its workers by cloudpickle; leave it out"
        )
    if known.direct_num_workers < 0:
        ours.error("--direct_num_workers must be 0, for as many as there are cores, or more")
    if (known.profile_cpu or known.profile_memory) and not (known.profile_cpu and known.profile_location):
        ours.error("--profile_cpu needs --profile_location DIR, and --profile_memory needs both")
    several = known.direct_num_workers != 1
    if several and shlex.quote(sys.executable) != sys.executable:
        ours.error(
            f"--direct_num_workers: Beam can't start workers by {sys.executable}, whose path a shell would cut; take a "
            "virtual environment whose path has no blanks, or one worker"
        )
    if several and known.direct_running_mode == "in_memory":
        ours.error("--direct_running_mode=in_memory is one process; use multi_processing with --direct_num_workers")
    # Beam itself would run several workers as threads of this process, which share a core.
    mode = ["--direct_running_mode=multi_processing"] if several and known.direct_running_mode is None else []
    return [*rest, *mode, "--runner=FnApiRunner"]


def _options_of_clusters() -> set[str]:
    """What Beam takes for engines that run elsewhere."""
    theirs = OneLineParser(add_help=False)
    for group in _OF_CLUSTERS:
        group._add_argparse_args(theirs)
    return {*theirs._option_string_actions}


def _runner(ours: OneLineParser, name: str) -> str:
    """The class of a runner, which Beam takes in any case and without its ending too, or by its whole name."""
    if "." in name:
        return name.rpartition(".")[2]
    runners = {known.lower(): known for known in StandardOptions.KNOWN_RUNNER_NAMES}
    found: str | None = runners.get(name.lower()) or runners.get(f"{name.lower()}runner")
    if found is None:
        ours.error(f"--runner={name}: Beam has no such runner, but {', '.join(sorted(runners.values()))}")
    return found

"""Programs that a benchmark starts end with it, and a part of it that ends its process costs no other part."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import math
import os
import pkgutil
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest

from common import GPU_LOST, Parts, missing, run_programs, seconds_since_start
from tests.conftest import ROOT
from tests.ranks import is_there

ENDLESS = """
import pathlib, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
told = pathlib.Path(sys.argv[1])
told.with_suffix(".new").write_text(str(child.pid))
told.with_suffix(".new").rename(told)
time.sleep(600)
"""


def test_at_the_end_a_program_is_killed_with_all_that_it_started(tmp_path: Path):
    told = tmp_path / "pid"
    with pytest.raises(RuntimeError, match="endless was not done"):
        run_programs({"endless": [sys.executable, "-c", ENDLESS, told]}, tmp_path, seconds_since_start() + 5)
    child = int(told.read_text())
    for _ in range(300):  # the kernel takes its time
        if not is_there(child):
            return
        time.sleep(0.1)
    pytest.fail(f"process {child} still runs")


def test_a_program_that_fails_is_named_with_its_last_words(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    with pytest.raises(RuntimeError, match="broken ended with exit code 3: no such thing"):
        run_programs(
            {"broken": ["bash", "-c", "echo before; echo no such thing >&2; exit 3"], "other": ["sleep", "600"]},
            tmp_path, seconds_since_start() + 60,
        )  # fmt: skip
    assert "before\nno such thing" in capfd.readouterr().err


def measure_parts(output: Path, how: str, go_on: bool) -> int:
    """Four parts, of which the second ends the process, and another one needs it; returns a benchmark's exit code."""
    patience = 1.0 if how == "never ends" else 600.0
    release = mock.patch("common.release").start()  # seconds at the first time
    parts = Parts(output / "found", {}, lambda records: str(missing(records)), math.inf, go_on, patience)

    def breaks() -> None:
        if how == "dies":
            faulthandler.disable()  # of pytest, which would print where this happens
            os.abort()  # as NCCL does, where it sees a kernel's error first
        if how == "never ends":
            time.sleep(600)
        release.side_effect = RuntimeError("CUDA error: an illegal memory access")
        raise release.side_effect

    for name, measure, needs in (
        ("first", lambda: 1, ()), ("breaks", breaks, ("first",)), ("likewise", breaks, ("first", "breaks")),
        ("last", lambda: 3, ("first",)),
    ):  # fmt: skip
        parts.run("row", name, measure, needs)
    return int(not parts.complete)


def exit_code(function: Callable[..., int], *arguments: object) -> int:
    """That of a process which calls a function; a fork, which has imported everything."""
    if not (process := os.fork()):
        with contextlib.suppress(BaseException):
            os._exit(function(*arguments))
        os._exit(70)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


@pytest.mark.parametrize(("how", "codes", "why"), [
    ("dies", (-6, 1), "the process ended in it"),
    ("loses the GPU", (GPU_LOST, 1), "RuntimeError: CUDA error: an illegal memory access"),
    ("never ends", (GPU_LOST, 1), "given up after 1 seconds"),
])  # fmt: skip
def test_a_part_that_ends_the_process_is_named_and_left_out_by_the_next_one_with_those_that_need_it(
    how: str, codes: tuple[int, int], why: str, tmp_path: Path
):
    for code, go_on, found in ((codes[0], False, {"first": 1}), (codes[1], True, {"first": 1, "last": 3})):
        assert exit_code(measure_parts, tmp_path, how, go_on) == code
        records = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))["parts"]
        assert {record["name"]: record["found"] for record in records if "found" in record} == found
        page = (tmp_path / "found.md").read_text(encoding="utf-8")
        assert str(["row", "breaks", why]) in page
    assert str(["row", "likewise", "not run: it would be lost as was breaks"]) in page


def test_a_part_that_only_fails_rules_out_none_that_needs_it(tmp_path: Path):
    parts = Parts(tmp_path / "found", {}, lambda _: "")
    parts.run("error", "too far off", lambda: 1 / 0)
    assert parts.run("row", "of the same kernels", lambda: 1, ["too far off"]) == 1


def test_what_benchmarks_name_in_strings_is_there():
    """Functions that they replace and programs that they start, which a type checker does not see."""
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "benchmarks").rglob("*.py")]
    named = {name for text in sources for name in re.findall(r'"((?:preprocessing|trainer|eval)\.\w[\w.]*)"', text)}
    assert len(named) >= 8
    for name in named:
        pkgutil.resolve_name(name)

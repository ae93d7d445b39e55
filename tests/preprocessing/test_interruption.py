"""Ctrl-C: a terminal sends SIGINT to a job and to all that it has started, as SLURM does near a time limit; SIGTERM.

And SIGHUP, of a terminal that closes. What dies of Ctrl-C dies of SIGINT itself: 130 to a shell, and -2 here.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.conftest import ROOT
from tests.preprocessing.maker import started_by

# Nothing that Python could interrupt: one call of C, which takes minutes.
IN_C = """
import hashlib, sys
from preprocessing.interruption import end_when_interrupted
end_when_interrupted("told")
print("begun", flush=True)
hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)
"""

# What Python would interrupt by itself, with a traceback; the end takes a second.
IN_PYTHON = """
import time
from preprocessing import interruption
interruption._kill_all_below = lambda top: time.sleep(1)
interruption.end_when_interrupted("told")
print("begun", flush=True)
while True:
    time.sleep(0.01)
"""

# As of a cluster's job, whose end the main thread is told while the action still waits for the cluster.
BROKEN_OFF = """
import threading, time
from preprocessing.interruption import before_end, end_when_interrupted
end_when_interrupted("told")
cancelled = threading.Event()

def cancel():
    cancelled.set()
    time.sleep(1)

with before_end(cancel):
    print("begun", flush=True)
    cancelled.wait()
    raise RuntimeError("failed in state CANCELLED")
"""

# What is to be done before an end, by several: one that is over with, one that fails, and one that never returns.
BEFORE = """
import os, threading, time
from preprocessing import interruption
interruption.end_when_interrupted("told")
interruption._PATIENCE = 2

def fail():
    raise ConnectionError("no cluster")

def slow():
    time.sleep(0.5)
    os.write(1, b"done")

with interruption.before_end(lambda: os.write(1, b"over")):
    pass
with interruption.before_end(fail), interruption.before_end(threading.Event().wait), interruption.before_end(slow):
    print("begun", flush=True)
    time.sleep(1000)
"""

# The job's first worker is started a second after it was about to be, and the end takes two.
LATE_WORKER = """
import subprocess, time
from preprocessing import beam_cli, interruption

class Late(subprocess.Popen):
    def __init__(self, command, **options):
        if "sdk_worker_main" in command:
            print("begun", flush=True)
            time.sleep(1)
        super().__init__(command, **options)

def slowly(top, kill=interruption._kill_all_below):
    kill(top)
    time.sleep(2)

subprocess.Popen, interruption._kill_all_below = Late, slowly
beam_cli.main()
"""

# A process that sends itself a signal.
WORKER = """
import subprocess, sys
from preprocessing.interruption import end_when_interrupted
end_when_interrupted("told")
subprocess.run([sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGINT); print('alive')"])
"""


def start(*command: object, ignored: bool = False) -> subprocess.Popen[str]:
    """A command in a group of its own, which does or does not ignore SIGINT and SIGHUP from its start."""
    before = {
        number: signal.signal(number, signal.SIG_IGN if ignored else signal.SIG_DFL)
        for number in (signal.SIGINT, signal.SIGHUP)
    }
    try:
        return subprocess.Popen(
            [str(part) for part in command], cwd=ROOT, start_new_session=True, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def begin(*command: object, ignored: bool = False) -> subprocess.Popen[str]:
    """The same, once it says that it has begun."""
    process = start(*command, ignored=ignored)
    assert process.stdout
    assert process.stdout.readline() == "begun\n"
    return process


@pytest.mark.parametrize(
    ("workers", "moment"),
    [
        (1, "preprocessing.watchdog"),
        (2, "sdk_worker_main"),
        pytest.param(2, "preprocessing.watchdog", marks=pytest.mark.slow),
    ],
)
def test_a_job_ends_at_once_whatever_it_is_at(
    books: Path, vocabulary_file: Path, tmp_path: Path, workers: int, moment: str
) -> None:
    """Its workers begin, or units of text are tokenized: there is a process that watches over it then."""
    text = "\n\n".join(book.read_text() for book in books.glob("*.txt")) * 20
    for number in range(40):  # half a minute's work
        (tmp_path / f"book-{number:02d}.txt").write_text(text)
    options = ("--vocab", vocabulary_file, "--output", tmp_path / "out", f"--direct_num_workers={workers}")
    process = start("beam", "run", "preprocessing/make_shards.py", "--books", tmp_path / "*.txt", *options)
    while process.poll() is None and not started_by(process.pid, moment):
        time.sleep(0.01)
    below = psutil.Process(process.pid).children(recursive=True)
    os.killpg(process.pid, signal.SIGINT)
    assert process.communicate(timeout=60)[1] == "make_shards: interrupted; the same command goes on with this job\n"
    assert process.returncode == -signal.SIGINT
    assert psutil.wait_procs(below, timeout=60)[1] == []


def test_sigterm_ends_workers_that_have_hardly_begun(books: Path, vocabulary_file: Path, tmp_path: Path) -> None:
    """They would live on, and hold the pipe that `tee` reads."""
    options = ("--vocab", vocabulary_file, "--output", tmp_path / "out", "--direct_num_workers=2")
    process = start("beam", "run", "preprocessing/make_shards.py", "--books", books / "*.txt", *options)
    while process.poll() is None and not started_by(process.pid, "sdk_worker_main"):
        time.sleep(0.01)
    process.terminate()
    assert process.communicate(timeout=60)[1] == "make_shards: interrupted; the same command goes on with this job\n"
    assert process.returncode == 128 + signal.SIGTERM


@pytest.mark.slow
def test_a_worker_that_is_started_meanwhile_ends_too(books: Path, vocabulary_file: Path, tmp_path: Path) -> None:
    """It would wait for minutes for the job that started it."""
    options = ("--vocab", vocabulary_file, "--output", tmp_path / "out", "--direct_num_workers=2")
    job = ("run", "preprocessing/make_shards.py", "--books", books / "*.txt")
    process = begin(sys.executable, "-c", LATE_WORKER, *job, *options)
    process.terminate()
    assert process.communicate(timeout=60)[1] == "make_shards: interrupted; the same command goes on with this job\n"
    assert process.returncode == 128 + signal.SIGTERM


def test_the_training_of_a_vocabulary_ends_with_a_line(tmp_path: Path) -> None:
    texts, output = tmp_path / "texts.jsonl", tmp_path / "vocab.txt"
    texts.write_text('{"text": "a whale"}\n' * 3_000_000)  # half a minute's work
    process = start(sys.executable, "-m", "preprocessing.train_vocab", "--jsonl", texts, "--output", output)
    while process.poll() is None and str(texts) not in {file.path for file in psutil.Process(process.pid).open_files()}:
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)
    assert process.communicate(timeout=60)[1] == "train_vocab: interrupted; nothing was written\n"
    assert process.returncode == -signal.SIGINT
    assert not output.exists()


@pytest.mark.parametrize("code", [IN_C, IN_PYTHON], ids=["in C", "in Python"])
def test_code_of_every_kind_is_ended_with_a_line(code: str) -> None:
    process = begin(sys.executable, "-c", code)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60)[1] == "told\n"
    assert process.returncode == -signal.SIGINT


def test_ctrl_c_ends_the_loop_that_it_is_in_too() -> None:
    """Bash goes on with the next command where the one that it waits for ends with 130 as an exit code."""
    process = begin("bash", "-c", 'for turn in 1 2; do "$@"; done', "bash", sys.executable, "-c", IN_C)
    os.killpg(process.pid, signal.SIGINT)
    assert process.communicate(timeout=60) == ("", "told\n")
    assert process.returncode == -signal.SIGINT


def test_the_end_of_a_terminal_is_an_end_for_all_that_was_started() -> None:
    """Though it may reach the first process alone, as it does from the script of several jobs on one machine."""
    code = IN_C.replace("hashlib.pbkdf2", "import subprocess; subprocess.Popen(['sleep', '1000'])\nhashlib.pbkdf2")
    process = start(sys.executable, "-c", code)
    while not (below := psutil.Process(process.pid).children()):
        time.sleep(0.01)
    process.send_signal(signal.SIGHUP)
    assert process.communicate(timeout=60)[1] == "told\n"
    assert process.returncode == 128 + signal.SIGHUP
    assert psutil.wait_procs(below, timeout=60)[1] == []


def test_what_an_end_breaks_off_is_no_error() -> None:
    process = begin(sys.executable, "-c", BROKEN_OFF)
    process.terminate()
    assert process.communicate(timeout=60)[1] == "told\n"
    assert process.returncode == 128 + signal.SIGTERM


def test_each_that_has_something_to_do_before_an_end_gets_time_for_it() -> None:
    process = begin(sys.executable, "-c", BEFORE)
    process.terminate()
    said, told = process.communicate(timeout=60)
    assert said == "done"
    assert told.startswith("told\n")
    assert process.returncode == 128 + signal.SIGTERM


@pytest.mark.parametrize(("number", "said"), [("SIGINT", "alive\n"), ("SIGHUP", "alive\n"), ("SIGTERM", "")])
def test_a_worker_does_not_answer_by_itself_to_the_signal_that_goes_to_all(number: str, said: str) -> None:
    assert start(sys.executable, "-c", WORKER.replace("SIGINT", number)).communicate(timeout=60) == (said, "")


def test_the_message_takes_the_place_of_the_progress_on_a_terminal() -> None:
    master, terminal = os.openpty()
    process = subprocess.Popen([sys.executable, "-c", IN_C], cwd=ROOT, stdout=subprocess.PIPE, stderr=terminal)
    assert process.stdout
    assert process.stdout.readline() == b"begun\n"
    os.write(terminal, b"0:10  read 1/3 parts")
    process.terminate()
    assert process.wait(timeout=60) == 128 + signal.SIGTERM
    assert os.read(master, 1000) == b"0:10  read 1/3 parts\r\033[Ktold\r\n"


def test_nobody_need_be_there_to_read_it() -> None:
    """As in `beam run ... 2>&1 | tee log`: tee dies of the same Ctrl-C."""
    process = begin(sys.executable, "-c", IN_C)
    assert process.stderr
    process.stderr.close()
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == -signal.SIGINT


def test_nor_need_there_ever_have_been_anybody() -> None:
    """As under a daemon that has closed what it does not use: Python then has no stderr at all."""
    process = begin("sh", "-c", 'exec "$@" 2>&-', "sh", sys.executable, "-c", IN_C)
    process.terminate()
    assert process.wait(timeout=60) == 128 + signal.SIGTERM


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_job_in_the_background_of_a_script_or_under_nohup_is_not_interrupted(number: signal.Signals) -> None:
    process = begin(sys.executable, "-c", IN_C.replace("2**31 - 1", "2**20"), ignored=True)
    process.send_signal(number)
    assert process.communicate(timeout=60)[1] == ""
    assert process.returncode == 0

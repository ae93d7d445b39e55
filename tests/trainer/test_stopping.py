"""What asks a rank to stop: signals, and the end of its launcher."""

import contextlib
import os
import signal
import subprocess
import sys
import time

import pytest

from tests.ranks import is_there

RANK = """
import time
from trainer.stopping import StopRequests
stop = StopRequests()
stop.wait_for_the_step()
print("ready", flush=True)
until = time.monotonic() + 20
while not stop.received and time.monotonic() < until:
    time.sleep(0.01)
print("stopped" if stop.received else "went on", flush=True)
"""

# Not so in what a shell's script has put in the background, or nohup has started, as tests may be.
HEARS_ITS_TERMINAL = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
"""

# For a minute in the midst of C code, in which Python runs no handler.
STUCK_IN_C = """
import hashlib
from trainer.stopping import StopRequests
stop = StopRequests()
stop.wait_for_the_step()
print("ready", flush=True)
hashlib.pbkdf2_hmac("sha256", b"", b"", 100_000_000)
"""

# Starts the arguments after the first as a program of its own, and waits for it.
START = "import subprocess, sys; sys.exit(subprocess.call(sys.argv[2:]))"


def chain(*names, program=RANK):
    """A rank below processes with these names in their command lines, the outermost first."""
    command = [sys.executable, "-c", program]
    for name in reversed(names):
        command = [sys.executable, "-c", START, name, *command]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    return process


def stuck(program):
    """A rank that is in the midst of C code, and has pipes for all it says."""
    rank = subprocess.Popen(
        [sys.executable, "-c", HEARS_ITS_TERMINAL + program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert rank.stdout.readline() == "ready\n"
    return rank


def below(process):
    children = subprocess.run(["pgrep", "-P", str(process)], capture_output=True, text=True, check=True)
    return int(children.stdout)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP])
def test_a_signal(number):
    rank = chain(program=HEARS_ITS_TERMINAL + RANK)
    time.sleep(0.1)
    assert rank.poll() is None
    rank.send_signal(number)
    assert rank.communicate()[0] == "stopped\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_that_the_launcher_held_back(number):
    """As cluster.k8s.ranks blocks them while it starts ranks; a program inherits what is blocked."""
    rank = subprocess.Popen(
        [sys.executable, "-c", RANK], stdout=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_BLOCK, [number]),
    )  # fmt: skip
    rank.send_signal(number)
    assert rank.communicate()[0] == "ready\nstopped\n"


def test_a_second_ctrl_c_ends_a_rank_there_and_then():
    """Two within a second are one: torchrun passes on what a terminal has sent to all."""
    rank = stuck(STUCK_IN_C)
    for wait in (0.2, 1.2):
        rank.send_signal(signal.SIGINT)
        time.sleep(wait)
        assert rank.poll() is None
    rank.send_signal(signal.SIGINT)
    assert rank.communicate(timeout=10)[1] == "\nstopping after this step, with a checkpoint\n"
    assert rank.returncode == 130


def test_a_second_ctrl_c_ends_a_rank_whose_log_nobody_reads():
    """It waits in its write, and so would whatever else had a word to say."""
    program = STUCK_IN_C.replace("hashlib.pbkdf2_hmac", "import os; os.write(2, bytes(1 << 20)); hashlib.pbkdf2_hmac")
    rank = stuck(program)
    for wait in (1.2, 0):
        rank.send_signal(signal.SIGINT)
        time.sleep(wait)
    assert rank.wait(10) == 130
    rank.communicate()


def test_ctrl_c_before_the_first_step_ends_a_rank_there_and_then():
    """It may be copying shards for an hour, and has nothing to save."""
    rank = chain(program=HEARS_ITS_TERMINAL + STUCK_IN_C.replace("stop.wait_for_the_step()", ""))
    rank.send_signal(signal.SIGINT)
    assert rank.wait(10) == 130
    assert rank.stdout.read() == ""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_what_a_terminal_sends_is_not_for_what_is_in_the_background(number):
    """As a script has put it there, or nohup."""
    ignoring = f"import signal; signal.signal({number:d}, signal.SIG_IGN)\n"
    rank = chain(program=ignoring + RANK.replace("+ 20", "+ 0.5"))
    rank.send_signal(number)
    assert rank.communicate()[0] == "went on\n"


def test_a_parent_whose_command_line_is_secret_is_no_launcher():
    """As one of another user may be."""
    secret = "import psutil\ndef refuse(_): raise psutil.AccessDenied\npsutil.Process.cmdline = refuse\n"
    rank = chain(program=secret + RANK)
    rank.send_signal(signal.SIGTERM)
    assert rank.communicate()[0] == "stopped\n"


def test_a_moment_without_file_handles_is_no_reason_to_stop():
    """The look at the launcher needs one, before every step."""
    program = RANK.replace("until =", "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))\nuntil =")
    rank = chain("torchrun", program=program.replace("+ 20", "+ 0.5"))
    assert rank.stdout.read() == "went on\n"


@pytest.mark.parametrize("names", [
    ("torchrun",), ("torch.distributed.run",), ("deepspeed.launcher.launch",), ("torchrun", "bash"),
])  # fmt: skip
def test_a_launcher_that_is_killed(names):
    """A script of the user's may stand between it and the rank."""
    launcher = chain(*names)
    launcher.kill()
    assert launcher.stdout.read() == "stopped\n"


def test_the_deepspeed_command_that_ends_before_its_launcher():
    """It passes no signal on: the launcher below it would train on for nobody."""
    runner = chain("deepspeed", "deepspeed.launcher.launch")
    launcher = below(runner.pid)
    runner.send_signal(signal.SIGTERM)  # left unreaped: it is gone all the same
    assert runner.stdout.readline() == "stopped\n"
    with contextlib.suppress(ProcessLookupError):  # it ends by itself once its rank has
        os.kill(launcher, signal.SIGKILL)
    runner.wait()


@pytest.mark.parametrize("names", [("bash",), ("bash", "torchrun")])
def test_a_shell_may_go(names):
    """Whoever started the run with nohup and left the machine wants it to go on."""
    shell = chain(*names)
    rank = shell.pid
    for _ in names:
        rank = below(rank)
    shell.kill()
    shell.wait()
    time.sleep(0.3)
    os.kill(rank, signal.SIGKILL)
    assert shell.stdout.read() == "", "it had not stopped"


STUCK = """
import multiprocessing, threading, time
from trainer.stopping import end_at_once
child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(300,), daemon=True)
child.start()
threading.Thread(target=time.sleep, args=(300,)).start()  # which Python would wait for
print(child.pid)
end_at_once(3)
"""


def test_after_an_error_a_process_ends_whatever_its_threads_do():
    done = subprocess.run([sys.executable, "-c", STUCK], capture_output=True, text=True, timeout=120)
    assert done.returncode == 3
    child = int(done.stdout)  # flushed
    wait_until_gone(child)


def wait_until_gone(pid):
    end = time.monotonic() + 30
    while is_there(pid):
        assert time.monotonic() < end
        time.sleep(0.05)


SECOND = """
import os, subprocess, sys, time
first = subprocess.Popen(["sleep", sys.argv[1]], env={**os.environ, "LOCAL_RANK": "0"})
waiting = "from trainer.stopping import wait_for_first; print(wait_for_first(float(__import__('sys').argv[1])))"
second = subprocess.Popen([sys.executable, "-c", waiting, sys.argv[2]], env={**os.environ, "LOCAL_RANK": "1"})
while second.poll() is None:
    first.poll()  # as a launcher looks
    time.sleep(0.1)
first.kill()
"""


@pytest.mark.parametrize(("ends", "waits", "has_ended"), [(3, 60, True), (60, 1, False)])
def test_a_rank_waits_for_the_first_of_its_node(ends, waits, has_ended):
    done = subprocess.run(
        [sys.executable, "-c", SECOND, str(ends), str(waits)], capture_output=True, text=True, timeout=120
    )
    assert done.stdout == f"{has_ended}\n"

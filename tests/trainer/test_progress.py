"""What a run shows of itself, in a log and on a terminal."""

import contextlib
import fcntl
import logging
import os
import struct
import termios

from trainer.config import load_recipe
from trainer.progress import Progress


def line_of(step, **others):
    losses = {"loss": 9.87654, "mlm_loss": 9.2, "nsp_loss": 0.67654}
    return {"step": step, "learning_rate": 1.25e-4, "tokens_per_second": 12345.6, **losses, **others}


def messages_of(recipe, caplog, steps, *settings, first=0):
    caplog.set_level("INFO")
    caplog.clear()
    progress = Progress(True, load_recipe(recipe, settings), first)
    for step in steps:
        progress.show(line_of(step))
    progress.close()
    return [message.rpartition(", ")[0] for message in caplog.messages]


def test_a_log_has_every_so_many_steps_and_the_last_one(recipe, caplog):
    shown = "loss 9.8765 (MLM 9.2000, NSP 0.6765), lr 1.25e-04, 12,346 tokens/s"
    assert messages_of(recipe, caplog, range(1, 9), "log.every=3") == [f"step {n}/8: {shown}" for n in (3, 6, 8)]
    assert caplog.messages[-1].endswith(", 00:00 to go")
    of_a_part = messages_of(recipe, caplog, range(3, 6), "log.every=4", "train.max_steps=5", first=2)
    assert of_a_part == [f"step {n}/5: {shown}" for n in (4, 5)]


def test_what_is_not_learned_or_not_there_is_not_shown(recipe, caplog):
    shown = messages_of(recipe, caplog, [8], "train.next_sentence=false")
    assert shown == ["step 8/8: loss 9.8765, lr 1.25e-04, 12,346 tokens/s"]
    skipped = {"step": 8, "learning_rate": 1e-4, "tokens_per_second": 7.0}
    Progress(True, load_recipe(recipe), 7).show(skipped)
    assert caplog.messages[-1] == "step 8/8: nothing to predict, lr 1.00e-04, 7 tokens/s, 00:00 to go"


def test_the_time_to_go_is_of_the_steps_of_this_start(recipe, caplog, monkeypatch):
    clock = iter([100.0, 160.0, 220.0])
    monkeypatch.setattr("trainer.progress.time.monotonic", lambda: next(clock))
    caplog.set_level("INFO")
    progress = Progress(True, load_recipe(recipe, ["phases.0.steps=102", "log.every=1"]), 10)
    for step in (12, 14):
        progress.show(line_of(step))
    assert [message.rpartition(", ")[2] for message in caplog.messages] == ["45:00 to go", "44:00 to go"]


@contextlib.contextmanager
def terminal(columns=100):
    """A terminal as stderr; gives what reads what has been written to it since the last time."""
    reader, writer = os.openpty()
    fcntl.ioctl(writer, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    os.set_blocking(reader, False)
    with os.fdopen(reader, "rb", 0) as written, os.fdopen(writer, "w") as file, contextlib.redirect_stderr(file):
        yield lambda: (file.flush(), (written.read() or b"").decode())[1]


def test_a_terminal_has_a_bar_below_what_is_logged(recipe):
    log = logging.getLogger()
    with terminal() as read:
        handler = logging.StreamHandler()
        log.addHandler(handler)
        progress = Progress(True, load_recipe(recipe), 5)
        assert "5/8" in read()
        progress.show(line_of(6))
        progress.show(line_of(7))
        logging.getLogger("pretrain").warning("all ranks wait")
        shown = read()
        assert "all ranks wait\r\n" in shown
        bar = shown.rpartition("all ranks wait\r\n")[2]
        assert "7/8" in bar, "drawn anew"
        assert "loss 9.8765 (MLM 9.2000" in bar
        assert "to go" not in shown
        progress.close()
        assert read().endswith("\n"), "what comes next has a line of its own"
        log.warning("done")
        assert read() == "done\r\n"


def test_of_several_ranks_the_first_has_a_bar(recipe):
    with terminal() as read:
        Progress(False, load_recipe(recipe), 5).close()
        assert read() == ""


def test_a_terminal_without_a_width_has_lines(recipe, caplog):
    """As some that a container or a remote shell gives."""
    caplog.set_level("INFO")
    with terminal(columns=0) as read:
        progress = Progress(True, load_recipe(recipe), 5)
        progress.show(line_of(8))
        assert read() == ""
    assert caplog.messages[-1].startswith("step 8/8: loss 9.8765")

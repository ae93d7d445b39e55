"""What a full disk does, without one."""

import contextlib
import resource
import signal


@contextlib.contextmanager
def room_for(size):
    """A limit on the size of files fails in the middle of a line, as a full disk does."""
    before, limits = signal.signal(signal.SIGXFSZ, signal.SIG_IGN), resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)

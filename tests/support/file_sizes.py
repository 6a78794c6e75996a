"""A disk that is full, as far as this process can tell."""

import resource
from contextlib import contextmanager


@contextmanager
def files_up_to(size):
    """Within, writing a file beyond ``size`` bytes is an error; Python ignores the signal that comes with it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

"""What holds for all tests: hypothesis judges answers, not speed, since tests also run on busy machines."""

import atexit
import ctypes
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator

import pytest

# What tests make is not to stay in the user's cache.
if "LONGHAUL_CACHE" not in os.environ:
    os.environ["LONGHAUL_CACHE"] = tempfile.mkdtemp(prefix="longhaul-tests-cache-")
    atexit.register(shutil.rmtree, os.environ["LONGHAUL_CACHE"], ignore_errors=True)

# Read when torch is loaded: threads that wait awake take the cores from the other test process.
os.environ.setdefault("GOMP_SPINCOUNT", "0")

from hypothesis import HealthCheck, settings

settings.register_profile("longhaul", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("longhaul")

PR_SET_CHILD_SUBREAPER = 36

# A shell starts what it puts into the background with SIGINT ignored, and so would everything be that a test starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """The main modules of workers ignore signals when they are imported. A test that imports one would leave every
    command that a later test starts without Ctrl+C."""
    assert signal.getsignal(signal.SIGINT) is not signal.SIG_IGN


@pytest.fixture(autouse=True)
def _umask_stays() -> Iterator[None]:
    """Commands make what they write private; run in this process they would do so for all later tests."""
    before = os.umask(0o022)
    os.umask(before)
    yield
    os.umask(before)


@pytest.fixture(autouse=True)
def _orphans_are_not_ours() -> Iterator[None]:
    """A master that runs in this process adopts orphans. Later tests would inherit workers whose command was killed,
    and never reap them: dead, they would seem to live on."""
    yield
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)

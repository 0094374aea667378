"""What holds for all tests: hypothesis judges answers, not speed, since tests also run on busy machines."""

import os

# Read when torch is loaded: threads that wait awake take the cores from the other test process.
os.environ.setdefault("GOMP_SPINCOUNT", "0")

from hypothesis import HealthCheck, settings

settings.register_profile("longhaul", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("longhaul")

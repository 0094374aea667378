"""What holds for all tests: hypothesis judges answers, not speed, since tests also run on busy machines."""

from hypothesis import HealthCheck, settings

settings.register_profile("longhaul", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("longhaul")

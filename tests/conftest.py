"""Settings for all tests."""

from hypothesis import HealthCheck, settings

# How fast examples are made says more of what else the machine does than of what is tested.
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")

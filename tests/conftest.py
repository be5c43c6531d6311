"""Settings for all tests."""

from hypothesis import HealthCheck, settings

# How fast examples are made says more of what else the machine does than of what is tested. And a
# change fails by the same examples each time that it is tested; new ones are looked for with
# `--hypothesis-profile random`.
settings.register_profile(
    "same", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
settings.register_profile("random", settings.get_profile("same"), derandomize=False)
settings.load_profile("same")

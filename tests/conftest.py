"""What every test shares: the rules of the suite and the settings of hypothesis."""

import hypothesis

pytest_plugins = ["tests.suite_rules", "pytester"]

# A deadline per example says more about a busy machine than about the code; pytest-timeout bounds the whole test.
hypothesis.settings.register_profile("mainstem", deadline=None, print_blob=True)
hypothesis.settings.load_profile("mainstem")

"""What every test shares: the rules of the suite and the settings of hypothesis."""

import signal

import hypothesis

pytest_plugins = ["tests.suite_rules", "pytester"]

# A deadline per example says more about a busy machine than about the code; pytest-timeout bounds the whole test.
hypothesis.settings.register_profile("mainstem", deadline=None, print_blob=True)
hypothesis.settings.load_profile("mainstem")

# A shell that starts the suite in the background lets it ignore Ctrl-C, and with it every program that a test starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

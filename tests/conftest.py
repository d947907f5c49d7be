"""What every test shares: the rules of the suite and the settings of hypothesis."""

import os
import signal

import hypothesis

pytest_plugins = ["tests.suite_rules", "pytester"]

# A deadline per example says more about a busy machine than about the code; pytest-timeout bounds the whole test.
hypothesis.settings.register_profile("mainstem", deadline=None, print_blob=True)
hypothesis.settings.load_profile("mainstem")

# A test's Java lives for seconds: compiling for the long run, and collecting garbage on many threads, would be most of
# what it does, on the cores that other tests use. Of Spark's drivers, its daemons and what starts either.
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto"
for name in ("SPARK_SUBMIT_OPTS", "SPARK_DAEMON_JAVA_OPTS", "SPARK_LAUNCHER_OPTS"):
    os.environ.setdefault(name, QUICK_JAVA)

# A shell that starts the suite in the background lets it ignore Ctrl-C, and with it every program that a test starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

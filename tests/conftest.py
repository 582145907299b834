"""What the end of a test run prints besides pytest's own summary."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.support import outcomes
from tests.support.report import REPORT
from tests.support.text_data import VARIABLE

# A shell starts what runs in its background with Ctrl-C ignored, and every process that the tests start would inherit
# that: an interrupt would have no effect there. A handler, unlike "ignored", is not inherited.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def outcome_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint and the expected results of all programs that outcomes.py runs."""
    return outcomes.make_model(tmp_path_factory.mktemp("model"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if REPORT:
        terminalreporter.section("counted and measured")
        for line in REPORT:
            terminalreporter.write_line(line)
    without_data = [report for report in terminalreporter.stats.get("skipped", []) if VARIABLE in str(report.longrepr)]
    terminalreporter.write_line(f"{len(without_data)} tests skipped for want of {VARIABLE}")

import csv
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

# Programs of this environment first, one thread a process (two run at once; where there are more, they don't spin while
# they wait), and no use of the network.
os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", OMP_WAIT_POLICY="PASSIVE")
os.environ.update(HF_HUB_OFFLINE="1", MPLBACKEND="agg", TQDM_DISABLE="1")


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    "Chromium's path, and a folder with playwright-core and axe-core."
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if not (chromium and shutil.which("node") and shutil.which("npm")): pytest.skip("needs chromium, node and npm")
    folder = tmp_path_factory.mktemp("browser")
    done = subprocess.run(["npm", "install", "--prefix", str(folder), "--loglevel=error", "--ignore-scripts", "playwright-core@1.65.1", "axe-core@4.14.1"], capture_output=True, text=True, timeout=120)
    if done.returncode: pytest.skip(f"needs npm's playwright-core and axe-core, which can't be installed: {done.stderr[-200:]}")
    return chromium, folder


def pytest_addoption(parser):
    parser.addoption("--record", help="write a row a test to this CSV file: commit, test, outcome, seconds")


def pytest_terminal_summary(terminalreporter, config):
    "The rows that `--record` asks for. A commit with a plus had changes that were not committed."
    path = config.getoption("record")
    if path is None: return
    def git(*command): return subprocess.run(["git", *command], cwd=config.rootpath, capture_output=True, text=True).stdout.strip()
    changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", f":!{path}")
    commit = git("rev-parse", "HEAD") + "+" * bool(changed)
    rows = []
    for outcome in ("passed", "failed", "skipped", "error"):
        rows += [(commit, report.nodeid, outcome, round(report.duration)) for report in terminalreporter.stats.get(outcome, [])]
    with open(config.rootpath/path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("commit", "test", "outcome", "seconds"), *sorted(rows)])

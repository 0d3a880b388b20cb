"Every benchmark runs: small, by `--smoke`, with the columns of the committed rows. And the committed ones are left alone."
import importlib
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

ROOT = Path(__file__).resolve().parent.parent
ELSEWHERE = {"plasticity_engine", "finetune_step", "finetune_equivalence"}
BENCHMARKS = [path for path in sorted((ROOT/"benchmarks").glob("[!_]*.py")) if path.stem not in ELSEWHERE]
COMMITTED = {path: path.read_bytes() for path in (ROOT/"benchmarks").glob("*.csv")}


def run(path, *arguments):
    "What it prints; the committed rows stay as they are."
    done = subprocess.run([sys.executable, path, "--smoke", *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert {path: path.read_bytes() for path in (ROOT/"benchmarks").glob("*.csv")} == COMMITTED
    return done.stdout


def test_there_are_benchmarks():
    assert len(BENCHMARKS) + len(ELSEWHERE) == len(COMMITTED) == 10


@pytest.mark.parametrize("path", BENCHMARKS, ids=lambda path: path.stem)
def test_benchmark(path, tmp_path):
    run(path, "--out", tmp_path/"rows.csv")
    rows, committed = pd.read_csv(tmp_path/"rows.csv"), pd.read_csv(path.with_suffix(".csv"))
    assert list(rows) == list(committed) and len(rows)
    # What was measured once is measured now: no column of numbers has turned empty or into text.
    numbers = committed.select_dtypes("number").columns
    assert set(numbers) <= set(rows.select_dtypes("number").columns)


def test_where_rows_go(tmp_path, monkeypatch):
    "Beside the script, or where `--out` says; those of a smoke run there alone."
    monkeypatch.setattr(sys, "path", [str(ROOT/"benchmarks"), *sys.path])
    common, rows = importlib.import_module("_common"), pd.DataFrame({"a": [1]})
    cases = {"": ["script.csv"], "--out b.csv": ["b.csv"], "--smoke": [], "--smoke --out c.csv": ["c.csv"]}
    monkeypatch.chdir(tmp_path)
    for arguments, expected in cases.items():
        monkeypatch.setattr(sys, "argv", ["script.py", "7", *arguments.split()])
        options = common.command_line("Text", repeats=3)
        common.write_rows(rows, options)
        assert options.repeats == 7 and [path.name for path in tmp_path.iterdir()] == expected
        for path in tmp_path.iterdir(): path.unlink()

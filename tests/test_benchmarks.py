"Every benchmark runs: small, by `--smoke`, with the columns of the committed rows. And the committed ones are left alone."
import importlib
import platform
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch

from vit_plasticity.finetune import has_bfloat16

ROOT = Path(__file__).resolve().parent.parent
BENCHMARKS = sorted((ROOT/"benchmarks").glob("[!_]*.py"))
OWN = {"finetune_step", "finetune_equivalence", "plasticity_engine"} # with tests of their own, below
COMMITTED = {path: path.read_bytes() for path in (ROOT/"benchmarks").glob("*.csv")}


def smoke(path, folder, *arguments):
    "The rows that a benchmark writes to `--out`."
    command = [sys.executable, path, *arguments, "--smoke", "--out", folder/"rows.csv"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert {path: path.read_bytes() for path in (ROOT/"benchmarks").glob("*.csv")} == COMMITTED
    rows, committed = pd.read_csv(folder/"rows.csv"), pd.read_csv(path.with_suffix(".csv"))
    assert set(committed) <= set(rows) and len(rows)
    # What was a number once is one now: no column has turned empty or into text.
    assert set(committed.select_dtypes("number")) <= set(rows.select_dtypes("number"))
    return rows


def test_there_are_benchmarks():
    assert len(BENCHMARKS) == len(COMMITTED) == 10 and OWN < {path.stem for path in BENCHMARKS}


@pytest.mark.parametrize("path", [path for path in BENCHMARKS if path.stem not in OWN], ids=lambda path: path.stem)
def test_benchmark(path, tmp_path): smoke(path, tmp_path)


def check_processor(rows):
    assert rows.instructions.str.contains("bfloat16|AMX").all() == has_bfloat16(torch.device("cpu"))
    assert (rows.threads == 1).all()


def test_finetune_step(tmp_path):
    "B: `subspace` was missing. Each route is there, bfloat16 where the processor has arithmetic for it."
    rows = smoke(ROOT/"benchmarks/finetune_step.py", tmp_path, "1", "cpu", "ln1")
    routes = ["official", "float32"] + ["bfloat16"] * has_bfloat16(torch.device("cpu"))
    assert list(zip(rows.component, rows.route)) == [("ln1", route) for route in routes]
    assert (rows.seconds_per_step > 0).all() and rows.peak_memory_mib[0] > 0
    check_processor(rows)


def test_finetune_equivalence(tmp_path):
    "B: PROTOCOLS was imported from where it no longer is. The same steps in float32 give the very same accuracy."
    rows = smoke(ROOT/"benchmarks/finetune_equivalence.py", tmp_path)
    assert list(zip(rows.component, rows.route)) == [("mha", "float32"), ("mha", "bfloat16")]
    assert (rows.mean_difference[rows.route == "float32"] == 0).all() and (rows.seeds == 2).all()
    check_processor(rows)


UNPAIRED = ["float32 product", "W^T W, once a model"]


@pytest.fixture(scope="module")
def engine(tmp_path_factory): return smoke(ROOT/"benchmarks/plasticity_engine.py", tmp_path_factory.mktemp("engine"))


def test_engine_routes(engine):
    "The official protocol, the engine, and the engine in bfloat16 where the processor has such arithmetic; a floor."
    bfloat16 = ["bfloat16"] * has_bfloat16(torch.device("cpu"))
    routes = ["official", "official, fused", "engine", *bfloat16, "eleven targets", *UNPAIRED]
    threads = [1] * len(routes) + [2] * len(routes)
    assert engine.route.tolist() == routes * 2 and engine.threads.tolist() == threads
    compared = engine[~engine.route.isin(UNPAIRED)]
    assert (compared.seconds_per_pair > 0).all() and (compared.times_faster_than_official > 0).all()
    assert (compared[compared.route == "official"].times_faster_than_official == 1).all()


def test_engine_errors(engine):
    "All routes give the rates of the official protocol in float64."
    errors = engine.drop_duplicates("route").set_index("route").largest_relative_error
    assert (errors[["official", "official, fused", "engine"]] < 1e-6).all()
    assert errors.get("bfloat16", 0) < 5e-3


def test_engine_processor(engine):
    "What computed stands in each row."
    told = ["processor", "instructions", "bfloat16_in_hardware", "torch", "threads", "model"]
    assert engine.notna().all()[told].all()
    info = Path("/proc/cpuinfo")
    if platform.machine() == "x86_64" and info.is_file():
        flags = {*next(line for line in info.read_text().splitlines() if line.startswith("flags")).split()}
        for flag in ("avx2", "avx512f", "avx512_bf16", "amx_tile"):
            assert (flag in engine.processor[0].split()) == (flag in flags)


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

"The benchmark of the engine runs small, says what computed, and compares what is the same."
import platform
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch

ROOT = Path(__file__).resolve().parents[1]
UNPAIRED = ["float32 product", "W^T W, once a model"]


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    path = tmp_path_factory.mktemp("benchmark")/"rows.csv"
    script, committed = ROOT/"benchmarks/plasticity_engine.py", ROOT/"benchmarks/plasticity_engine.csv"
    before = committed.read_bytes()
    done = subprocess.run([sys.executable, script, "--smoke", "--out", path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert committed.read_bytes() == before
    return pd.read_csv(path)


def test_routes(rows):
    "The official protocol, the engine, and the engine in bfloat16 where the processor has such arithmetic; a floor."
    has_bfloat16 = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    routes = ["official", "official, fused", "engine", *["bfloat16"] * has_bfloat16, "eleven targets", *UNPAIRED]
    assert rows.route.tolist() == routes * 2 and rows.threads.tolist() == [1] * len(routes) + [2] * len(routes)
    compared = rows[~rows.route.isin(UNPAIRED)]
    assert (compared.seconds_per_pair > 0).all() and (compared.times_faster_than_official > 0).all()
    assert (compared[compared.route == "official"].times_faster_than_official == 1).all()


def test_errors(rows):
    "All routes give the rates of the official protocol in float64."
    errors = rows.drop_duplicates("route").set_index("route").largest_relative_error
    assert (errors[["official", "official, fused", "engine"]] < 1e-6).all()
    assert errors.get("bfloat16", 0) < 5e-3


def test_processor(rows):
    "What computed stands in each row."
    assert rows.notna().all()[["processor", "instructions", "bfloat16_in_hardware", "torch", "threads", "model"]].all()
    info = Path("/proc/cpuinfo")
    if platform.machine() == "x86_64" and info.is_file():
        flags = {*next(line for line in info.read_text().splitlines() if line.startswith("flags")).split()}
        for flag in ("avx2", "avx512f", "avx512_bf16", "amx_tile"):
            assert (flag in rows.processor[0].split()) == (flag in flags)

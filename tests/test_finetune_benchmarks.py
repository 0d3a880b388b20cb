"The two benchmarks of finetuning run, small, by `--smoke`; the committed rows are left alone."
import subprocess
import sys
from pathlib import Path

import pandas as pd
import torch

from vit_plasticity.finetune import has_bfloat16

ROOT = Path(__file__).resolve().parent.parent


def smoke(name, folder, *arguments):
    "The rows that a benchmark writes to `--out`."
    path, committed = ROOT/f"benchmarks/{name}.py", (ROOT/f"benchmarks/{name}.csv").read_bytes()
    command = [sys.executable, path, *arguments, "--smoke", "--out", folder/"rows.csv"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (ROOT/f"benchmarks/{name}.csv").read_bytes() == committed
    rows = pd.read_csv(folder/"rows.csv")
    assert set(pd.read_csv(ROOT/f"benchmarks/{name}.csv")) <= set(rows)
    assert rows.instructions.str.contains("bfloat16|AMX").all() == has_bfloat16(torch.device("cpu"))
    assert (rows.threads == 1).all()
    return rows


def test_step(tmp_path):
    "B: `subspace` was missing. Each route is there, bfloat16 where the processor has arithmetic for it."
    rows = smoke("finetune_step", tmp_path, "1", "cpu", "ln1")
    routes = ["official", "float32"] + ["bfloat16"] * has_bfloat16(torch.device("cpu"))
    assert list(zip(rows.component, rows.route)) == [("ln1", route) for route in routes]
    assert (rows.seconds_per_step > 0).all() and rows.peak_memory_mib[0] > 0


def test_equivalence(tmp_path):
    "B: PROTOCOLS was imported from where it no longer is. The same steps in float32 give the very same accuracy."
    rows = smoke("finetune_equivalence", tmp_path)
    assert list(zip(rows.component, rows.route)) == [("mha", "float32"), ("mha", "bfloat16")]
    assert (rows.mean_difference[rows.route == "float32"] == 0).all() and (rows.seeds == 2).all()

"The main job from end to end: papermill runs the experiment notebooks, from anywhere, with the parameters it was given or not at all."
import json
import shutil
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from vit_plasticity.results import read_runs

ROOT = Path(__file__).resolve().parent.parent


def papermill(notebook, folder, *parameters, cwd=ROOT, check=True):
    "Run a notebook with few steps; return the finished process."
    command = ["papermill", str(ROOT/"nbs"/f"{notebook}.ipynb"), str(folder/f"{notebook}_out.ipynb"), "-p", "out_dir", str(folder/"runs"), *map(str, parameters)]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    assert not check or done.returncode == 0, done.stderr
    return done


SHORT = ("-p", "steps", 6, "-p", "batch_size", 16)


@pytest.mark.parametrize("where", ["root", "elsewhere"])
def test_parameters_take_effect(tmp_path, where):
    cwd = ROOT if where == "root" else tmp_path
    papermill("finetune", tmp_path, "-p", "component", "fc1", "-p", "lr", 0.03, "-p", "optimizer", "adamw", "-p", "seed", 7, *SHORT, cwd=cwd)
    row = read_runs("finetune", "summary", tmp_path/"runs").iloc[0]
    assert (row.component, row.lr, row.optimizer, row.seed, row.steps, row.batch_size) == ("fc1", 0.03, "adamw", 7, 6, 16)
    assert (row.component_parameters, row.head_parameters) == (6 * (4 * 64 * 64 + 4 * 64), 64 * 10 + 10)
    steps = read_runs("finetune", "steps", tmp_path/"runs")
    assert len(steps) == 6 and np.isclose(steps.step_lr.max(), 0.03)


def test_plasticity_notebook(tmp_path):
    papermill("plasticity", tmp_path, "-p", "n_pairs", 8, "-p", "precision", "None")
    rates = read_runs("plasticity", "rates", tmp_path/"runs")
    assert len(rates) == 2 * 8 * 6 * 5 and set(rates.inputs) == {"embedding", "in_situ"} and (rates.rate > 0).all()
    assert {path.name for path in (tmp_path/"runs/plasticity").glob("*/*.png")} == {"layers.png", "distribution.png"}


@pytest.mark.parametrize("parameters, message", [
    (("-p", "componnent", "fc1"), "did you mean 'component'?"),
    (("-p", "lr", "[0.1]"), "`lr` must be None or float; got '[0.1]' (str)"),
    (("-p", "steps", "True"), "`steps` must be None or int; got True (bool)"),
    (("-p", "component", "attn"), "`component` must be one of"),
    (("-p", "dataset", "mini/digit"), "did you mean 'mini/digits'?"),
    (("-p", "model", "vit_min"), "did you mean 'vit_mini'?"),
    (("-p", "steps", "0"), "`steps` must be a whole number at least 1 and at most 1000000000; got 0"),
    (("-p", "out_dir", "/dev/null/runs"), "`out_dir` must be a folder that can be written"),
])
def test_refused_parameters(tmp_path, parameters, message):
    done = papermill("finetune", tmp_path, *parameters, check=False)
    assert done.returncode == 1 and message in done.stderr.splitlines()[-1] + done.stderr.splitlines()[-2], done.stderr
    assert not (tmp_path/"runs").exists() or not list((tmp_path/"runs").rglob("run.json"))


def test_same_seed_same_rows(tmp_path):
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        (tmp_path/name).mkdir()
        papermill("finetune", tmp_path/name, "-p", "seed", seed, *SHORT)
    a, b, c = (read_runs("finetune", "steps", tmp_path/name/"runs").drop(columns="seed") for name in "abc")
    pd.testing.assert_frame_equal(a, b)
    assert not a.loss.equals(c.loss)
    predictions = [read_runs("finetune", "predictions", tmp_path/name/"runs").prediction for name in "ab"]
    assert predictions[0].equals(predictions[1])


def test_killed_run_restarts(tmp_path):
    "kill -9 in the middle: nothing that looks like a run is left, and the next try computes it."
    code = f"from vit_plasticity.finetune import run_finetuning; run_finetuning(steps=200, out_dir={str(tmp_path/'runs')!r})"
    for wait in (1, 4):
        process = subprocess.Popen([shutil.which("python"), "-c", code], stderr=subprocess.DEVNULL)
        while not (tmp_path/"runs").exists(): time.sleep(0.05)
        time.sleep(wait)
        process.send_signal(signal.SIGKILL)
        process.wait()
        for path in (tmp_path/"runs").rglob("run.json"): json.loads(path.read_text()) # whole, if it had just ended
    subprocess.run([shutil.which("python"), "-c", code], check=True, capture_output=True)
    assert len(read_runs("finetune", "steps", tmp_path/"runs")) == 200

"`vit_plasticity run`: a study in slices, killed and resumed, is the study in one go."
import os
import random
import signal
import subprocess
import sys
import time

import pandas as pd
import pytest

from vit_plasticity.results import load_runs

STUDY = """
jobs:
  - {notebook: finetune_grid, dataset: mini/digits, component: [ln1, fc1], lrs: "0.1,0.3", seeds: "5,6", search_seed: 1,
     most_rates: 4, steps: 24, batch_size: 16, checkpoint_every: 2, device: cpu}
"""
TABLES = ("steps", "layers", "evaluations", "predictions")


def start(folder, *arguments):
    code = "from vit_plasticity.commands import main; main()"
    command = [sys.executable, "-c", code, "run", str(folder/"study.yaml"), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)


def finish(folder, *arguments):
    process = start(folder, *arguments)
    said, wrong = process.communicate()
    assert not process.returncode, wrong
    return said


def study(folder):
    folder.mkdir()
    (folder/"study.yaml").write_text(f"out_dir: {folder/'runs'}\n{STUDY}")
    return folder


def stored(folder):
    runs = [run for run in load_runs("finetune", folder/"runs") if run.info["status"] == "finished"]
    return {run.info["id"]: run for run in runs}


def test_killed_slices_equal_an_undisturbed_run(tmp_path):
    whole, cut, rng = study(tmp_path/"whole"), study(tmp_path/"cut"), random.Random(0)
    assert "0 left" in finish(whole, "--processes", "2").splitlines()[-1]
    for _ in range(2):
        process = start(cut, "--minutes", "1", "--processes", "2")
        while process.poll() is None and not list((cut/"runs").glob("finetune/.*.pt")): time.sleep(0.05)
        time.sleep(rng.random())
        if process.poll() is None: os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    for _ in range(5):
        if finish(cut, "--minutes", "1").splitlines()[-1].endswith("; 0 left"): break
    a, b = stored(whole), stored(cut)
    assert a.keys() == b.keys() and len(a) >= 8
    for name, run in a.items():
        for table in TABLES: pd.testing.assert_frame_equal(run.table(table), b[name].table(table), check_exact=True)


def test_no_time_no_run(tmp_path):
    folder = study(tmp_path/"study")
    assert finish(folder, "--minutes", "0.001").startswith("0 done; 4 left")
    assert not list((folder/"runs").glob("finetune/*/run.json"))


@pytest.mark.parametrize("arguments, message", [(("--minutes", "0"), "`minutes` must be"), (("--processes", "0"), "`processes` must be")])
def test_refused(tmp_path, arguments, message):
    process = start(study(tmp_path/"study"), *arguments)
    _, wrong = process.communicate()
    assert process.returncode == 2 and message in wrong and "Traceback" not in wrong

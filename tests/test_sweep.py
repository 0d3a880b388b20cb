"""Snakemake from end to end: a study runs, resumes, grows, keeps what failed, and comes out the same however often it is killed (`KILLS=20 pytest -m long tests/test_sweep.py`: some minutes for each few kills)."""
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
import yaml

from vit_plasticity.finetune import run_cell
from vit_plasticity.results import combine_runs, describe_runs, read_runs
from vit_plasticity.sweep import job_states, read_grid

ROOT = Path(__file__).resolve().parent.parent
STUDY = """
out_dir: {out}
device: cpu
jobs:
  - notebook: finetune_grid
    dataset: mini/digits
    component: [ln1]
    lrs: 0.1,0.3
    seeds: 0,1
    steps: 4
    batch_size: 8
"""
FAILING = """  - notebook: finetune_grid
    dataset: mini/digits
    component: all
    lrs: 1.0e+30,0.1
    seeds: 0
    steps: 4
    batch_size: 8
"""


def snakemake(path, *arguments):
    return [sys.executable, "-m", "snakemake", "--profile", str(ROOT/"profiles/local"), "--snakefile", str(ROOT/"Snakefile"), "--directory", str(path.parent), "--configfile", str(path), *arguments]


def run(path, *arguments):
    return subprocess.run(snakemake(path, *arguments), cwd=ROOT, capture_output=True, text=True)


def study(tmp_path, text=STUDY):
    path = tmp_path/"study.yaml"
    path.write_text(text.format(out=tmp_path/"runs"))
    return path


def test_a_study_runs_grows_and_keeps_what_failed(tmp_path):
    path, out = study(tmp_path), tmp_path/"runs"
    assert (done := run(path)).returncode == 0, done.stderr
    first = describe_runs(out)
    assert "1 jobs, 4 finetuning runs, of which 4 are left" in done.stderr and len(first) == 4
    study(tmp_path, STUDY.replace("[ln1]", "[ln1, ln2]") + FAILING)
    assert run(path).returncode == 1
    states = job_states(read_grid(path)).set_index("job").rename(index=lambda name: name.rpartition("-")[0])
    assert dict(states.state) == {"mini-digits_ln1": "done", "mini-digits_ln2": "done", "mini-digits_all": "failed"}
    assert "1 of 2 runs failed" in states.error["mini-digits_all"] and states.finished["mini-digits_all"] == 1 and states.failed["mini-digits_all"] == 1
    runs = describe_runs(out).set_index("run")
    assert (runs.started[first.run].to_numpy() == first.started.to_numpy()).all() and len(runs) == 10 # the first four are those of the first call
    again = run(path, "-n")
    assert "finetune_grid        1" in again.stdout + again.stderr # only what failed is left
    assert "RuntimeError" in (out/"sweep/finetune_grid").glob("mini-digits_all*.ipynb").__next__().read_text()


@pytest.mark.parametrize("old, new, message", [("component:", "componnent:", "line 7: `parameter` must be one of"), ("[ln1]", "[ln1, ln3]", "line 7: `component` must be one of")])
def test_a_wrong_study_is_refused_before_anything_runs(tmp_path, old, new, message):
    done = run(study(tmp_path, STUDY.replace(old, new)))
    assert done.returncode == 1 and message in done.stderr and "Traceback" not in done.stderr and not (tmp_path/"runs").exists()


def test_no_study_is_refused():
    done = subprocess.run([sys.executable, "-m", "snakemake", "-n"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1 and "Give one study: --configfile config/smoke.yaml" in done.stdout + done.stderr


def test_jobs_on_cuda_get_a_gpu():
    profile = yaml.safe_load((ROOT/"profiles/slurm/config.yaml").read_text())
    for path in (ROOT/"config").glob("*.yaml"):
        for job in read_grid(path).jobs:
            if job.all.get("device") == "cuda": assert profile["set-resources"].get(job.notebook, profile["default-resources"])["gpu"] == 1, (path.name, job.notebook)


def workers(out):
    "Processes of papermill and kernels of this study."
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try: command = (folder/"cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError: continue
        if str(out) in command and "execute.py" in command: found.append(int(folder.name))
    return found


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="finds processes by /proc")
def test_killed_at_random_moments(tmp_path):
    "kill -9 of Snakemake with all that it started, of Snakemake alone, or of one papermill, then again; whenever all is done, every row is there once, as if nothing had happened, and the study begins anew."
    path, out, chance = study(tmp_path, STUDY.replace("[ln1]", "[ln1, ln2, fc1]").replace("steps: 4", "steps: 30")), tmp_path/"runs", random.Random(int(os.environ.get("KILL_SEED", 0)))
    alone = [run for component in ("ln1", "ln2", "fc1") for run in run_cell(component=component, dataset="mini/digits", lrs="0.1,0.3", seeds="0,1", steps=30, batch_size=8, device="cpu", out_dir=tmp_path/"alone")]
    kills = 0
    while kills < int(os.environ.get("KILLS", 6)): # each of the three kinds twice
        subprocess.run(snakemake(path, "--unlock"), cwd=ROOT, capture_output=True, check=True)
        process = subprocess.Popen(snakemake(path), cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        deadline = time.monotonic() + 120
        while not workers(out) and process.poll() is None and time.monotonic() < deadline: time.sleep(0.1)
        time.sleep(chance.uniform(0, 25))
        kind = ("all", "snakemake", "one papermill")[kills % 3]
        if process.poll() is not None: # it was done before it could be killed
            check_whole(path, out, alone)
            shutil.rmtree(out)
            continue
        if kind == "one papermill":
            if not (alive := workers(out)):
                process.wait(timeout=300)
                continue
            os.kill(chance.choice(alive), signal.SIGKILL)
        else: (os.killpg if kind == "all" else os.kill)(process.pid, signal.SIGKILL)
        kills += 1
        process.wait(timeout=300)
        for run_folder in out.glob("finetune/[!.]*"): assert (run_folder/"run.json").is_file() # whole, or not there
    check_whole(path, out, alone)
    shutil.rmtree(out)


def check_whole(path, out, alone):
    subprocess.run(snakemake(path, "--unlock"), cwd=ROOT, capture_output=True, check=True)
    while workers(out): time.sleep(0.5) # of a Snakemake that was killed alone
    done = run(path)
    assert done.returncode == 0, done.stderr
    states = job_states(read_grid(path))
    assert list(states.state) == ["done"] * 3 and list(states.finished) == [4] * 3
    for table in ("steps", "evaluations", "predictions", "layers"):
        mine, theirs = (frame.sort_values(list(frame.columns.intersection(["run", "step", "layer", "image"])), ignore_index=True) for frame in (read_runs("finetune", table, out), combine_runs(alone, table)))
        pd.testing.assert_frame_equal(mine, theirs, check_like=True)
    assert not list(out.glob("finetune/.*.pt"))

"Real runs of most kinds are what `merge_runs` takes for plausible; with another number in the summary they are not."
import json
import shutil

import pandas as pd
import pytest

from vit_plasticity.finetune import run_finetuning, run_linear_probe
from vit_plasticity.mechanism import run_trajectory
from vit_plasticity.plasticity import run_plasticity
from vit_plasticity.prediction import run_criteria
from vit_plasticity.config import DTYPES, OPTIMIZERS, SCHEDULES
from vit_plasticity.results import LATER, _CHOICES, check_run, merge_runs, run_id
from vit_plasticity.robustness import run_robustness


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    options = dict(device="cpu", out_dir=tmp_path_factory.mktemp("runs"))
    short = options | dict(steps=4, eval_every=2, batch_size=16, progress=False)
    attacked = dict(attacks="fgsm", eps="2", n_images=4, steps_pgd=1, n_smooth=1)
    return [
        run_finetuning(component="ln1", **short),
        run_finetuning(component="fc1", subspace="lora:1", layers="5", head_lr=0.1, **short),
        # Its table layers has no rows.
        run_finetuning(component="head", head_init="zeros", **short),
        run_linear_probe(**options),
        run_plasticity(n_pairs=4, progress=False, **options),
        run_criteria(n_images=8, **options),
        run_trajectory(steps=2, batch_size=16, n_images=8, max_iterations=2, **options),
        run_robustness(component="ln1", **attacked, **short)]


def test_real_runs_are_plausible(runs, tmp_path):
    assert [check_run(run) for run in runs] == [None] * len(runs)
    assert set(merge_runs(runs[0].folder.parents[1], tmp_path).action) == {"added"}


@pytest.mark.parametrize("experiment", ["finetune", "robustness"])
def test_another_accuracy(runs, tmp_path, experiment):
    "A17: rows whose predictions contradict `test_accuracy`, under an id of their own."
    run = next(run for run in runs if run.info["experiment"] == experiment)
    parameters = run.info["parameters"] | {"seed": 7}
    forged = tmp_path/"there"/experiment/run_id(parameters)
    shutil.copytree(run.folder, forged)
    (forged/"run.json").write_text(json.dumps(run.info | {"id": forged.name, "parameters": parameters}))
    assert merge_runs(tmp_path/"there", tmp_path/"as it is").action.tolist() == ["added"]
    summary = pd.read_parquet(forged/"summary.parquet")
    summary.assign(test_accuracy=summary.test_accuracy / 2).to_parquet(forged/"summary.parquet", index=False)
    merged = merge_runs(tmp_path/"there", tmp_path/"here")
    assert merged.action.tolist() == ["refused"]
    assert "its test_accuracy of" in merged.reason[0] and "is not that of its rows" in merged.reason[0]


def test_choices_are_those_of_protocols():
    assert _CHOICES == {"optimizer": OPTIMIZERS, "schedule": SCHEDULES, "dtype": DTYPES}


def test_real_runs_of_earlier_versions(tmp_path):
    "A run of 3 steps is added as it is, and as earlier versions stored it; in other widths and order it is the same."
    run = run_finetuning(component="mha", device="cpu", out_dir=tmp_path/"there", steps=3, batch_size=16, progress=False)
    assert {"val_correct", "n_val"} <= {*run.table("evaluations")} and "n_test_classes" in run.table("summary")
    assert check_run(run) is None
    early = tmp_path/"early"/"finetune"/run.folder.name
    shutil.copytree(run.folder, early)
    for path in early.glob("*.parquet"):
        pd.read_parquet(path).drop(columns=[*LATER], errors="ignore").to_parquet(path, index=False)
    assert merge_runs(tmp_path/"early", tmp_path/"here").action.tolist() == ["added"]
    assert merge_runs(tmp_path/"there", tmp_path/"here").action.tolist() == ["same"]
    predictions = pd.read_parquet(early/"predictions.parquet").astype("int32").iloc[::-1]
    predictions.to_parquet(early/"predictions.parquet", index=False)
    assert merge_runs(tmp_path/"early", tmp_path/"here").action.tolist() == ["same"]

"""An option is declared once and reaches all that is made from it; runs that are stored keep their names."""
import contextlib
import io
import json
import pydoc
import shutil
import subprocess
import sys
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from unittest.mock import patch

import pandas as pd
import pytest
import torch

from vit_plasticity import mechanism, robustness
from vit_plasticity.causes import EQUAL, budget_parts, rescaling_variants
from vit_plasticity.config import FinetuneConfig, RunConfig, protocol_settings
from vit_plasticity.finetune import finetune, kept_dataset, run_finetuning, run_identity
from vit_plasticity.mechanism import run_trajectory
from vit_plasticity.models import load_model
from vit_plasticity.results import run_id
from vit_plasticity.robustness import run_robustness
from vit_plasticity.smoothing import smoothing_runs

ROOT = Path(__file__).parent.parent
DEVICE = torch.device("cpu")


def rows(path): return pd.read_parquet(ROOT/"outputs"/path)


@cache
def origin(dataset): # of model and data, as `run_finetuning` stores it
    return run_identity("vit_mini", load_model("vit_mini"), kept_dataset(dataset), DEVICE, "own")


def name_of(config, **more): # the id of its stored run
    config = config.complete()
    return run_id(config.identity() | origin(config.dataset) | more)


def test_ids_of_the_replication():
    "All 1,148 runs of the committed study are found again."
    table, names = rows("mini_replication/finetune.parquet"), {option.name for option in fields(RunConfig)}
    for row in table.to_dict("records"):
        settings = json.loads(row["setting"])
        assert settings.keys() <= names
        own = {name: row[name] for name in ("model", "dataset", "protocol", "optimizer", "lr", "seed")}
        assert name_of(RunConfig(component=row["configuration"], **own, **settings)) == row["run"]


def test_ids_of_rescaled_models():
    table = rows("rescaling/vit_mini/rows.parquet")
    factors = sorted({float(factor) for factor in table.factor if factor != EQUAL})
    equal = table[table.factor == EQUAL].groupby("dataset").c.first().to_dict()
    variants = rescaling_variants(equal, factors, sorted(table.lr.unique()), sorted(table.seed.unique()))
    planned = {name_of(RunConfig(**options)) for _, options in variants}
    assert planned == set(table.run.dropna()) and len(planned) == 600


def test_ids_of_parts_and_families():
    for study, source in (("families", None), ("budgets", "mini/fashion")):
        table = rows(f"{study}/vit_mini/rows.parquet").dropna(subset="run")
        parts = dict(budget_parts(64, 6))
        more = {} if source is None else {"source_sha256": kept_dataset(source).sha256}
        for row in table.astype(object).where(table.notna(), None).to_dict("records"):
            options = parts[row["part"]] if "part" in row else {"component": row["component"], "subspace": row["subspace"] or None}
            own = {name: row[name] for name in ("dataset", "optimizer", "lr", "seed")}
            assert name_of(RunConfig(source=source, **own, **options), **more) == row["run"]


def test_ids_of_trials():
    table = rows("prediction/vit_mini/rows.parquet").query("part == 'replication' and criterion == 'trial'")
    for row in table.to_dict("records"):
        lr = protocol_settings("mini", row["dataset"])["lr"]
        config = RunConfig(component=row["configuration"], dataset=row["dataset"], optimizer="sgd", steps=20, lr=lr)
        assert name_of(config) == row["run"]
    assert len(table) == 55


def stored_as(module, call): # the id under which a call would store its run
    with patch.object(module, "stored_run", lambda experiment, parameters, *_: run_id(parameters)): return call()


def test_ids_of_trajectories():
    table = rows("mechanism/vit_mini/rows.parquet").drop_duplicates("run")
    for row in table.to_dict("records"):
        own = {name: row[name] for name in ("component", "dataset", "seed")}
        assert stored_as(mechanism, lambda: run_trajectory(device="cpu", **own)) == row["run"]
    assert len(table) == 30


def test_ids_of_smoothed_models():
    "From pretrained weights, at one seed. Random ones differ with the processor's instructions, and so do their hashes."
    arguments = json.loads((ROOT/"outputs/smoothing/vit_mini/study.json").read_text())["arguments"]
    runs = [run for _, run in smoothing_runs(**arguments | {"scratch_steps": None, "seeds": [0]})]
    planned = {stored_as(robustness, lambda: run_robustness(replace(run, device="cpu"))) for run in runs}
    table = rows("smoothing/vit_mini/rows.parquet").query("start == 'pretrained' and seed == 0")
    assert planned == set(table.run) and len(planned) == 12


def test_help_says_what_options_mean():
    for function, config in ((finetune, FinetuneConfig), (run_finetuning, RunConfig), (run_robustness, RunConfig)):
        with contextlib.redirect_stdout(io.StringIO()) as text: pydoc.doc(function)
        for option in fields(config):
            assert f"{option.name}: " in text.getvalue() and option.metadata["meaning"] in text.getvalue()


def test_parameters_cells_are_written_from_the_options():
    done = subprocess.run([sys.executable, ROOT/"scripts/parameters.py", "--check"], capture_output=True, text=True)
    assert not done.returncode, done.stderr


DUMMY = '    dummy: float = option(0.5, "of no use")\n'
USE = """
import pydoc, sys
from pathlib import Path
import vit_plasticity
from vit_plasticity.finetune import finetune, run_finetuning
from vit_plasticity.results import run_id
from vit_plasticity.sweep import check_grid, read_grid
assert Path(vit_plasticity.__file__).is_relative_to(Path.cwd())
quick = dict(steps=1, batch_size=8, device="cpu", out_dir="runs", progress=False)
usual, other = run_finetuning(**quick), run_finetuning(dummy=2.0, **quick)
assert "dummy" not in usual.info["parameters"] and other.info["parameters"]["dummy"] == 2.0
without = {name: value for name, value in other.info["parameters"].items() if name != "dummy"}
assert run_id(without) == usual.info["id"] != other.info["id"]
assert 'dummy: float = 0.5 # of no use' in pydoc.render_doc(finetune)
Path("study.yaml").write_text("out_dir: runs\\njobs:\\n  - {notebook: finetune_grid, dummy: [1.5, 2.0], steps: 1, lrs: 0.2, seeds: 0}\\n")
grid = read_grid("study.yaml", notebooks="nbs")
check_grid(grid)
assert [run["dummy"] for job in grid.jobs for run in job.runs] == [1.5, 2.0]
"""


@pytest.mark.parametrize("after", ["    weight_decay: float", "    source: str | None"])
def test_an_option_is_declared_in_one_place(tmp_path, after):
    "One line in the configuration, of `finetune` or of a run, reaches notebooks, stored runs, study files and help."
    for name in ("vit_plasticity", "scripts"): shutil.copytree(ROOT/name, tmp_path/name)
    (tmp_path/"nbs").mkdir()
    for stem in ("finetune", "finetune_grid"): shutil.copy(ROOT/f"nbs/{stem}.ipynb", tmp_path/"nbs")
    path = tmp_path/"vit_plasticity/config.py"
    lines = path.read_text().splitlines(True)
    place = next(i for i, line in enumerate(lines) if line.startswith(after))
    path.write_text("".join([*lines[:place], DUMMY, *lines[place:]]))
    def run(*command):
        environment = {"PYTHONPATH": str(tmp_path), "PATH": str(Path(sys.executable).parent), "HOME": str(tmp_path)}
        done = subprocess.run([sys.executable, *command], cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert not done.returncode, done.stderr
    run("scripts/parameters.py")
    for stem in ("finetune", "finetune_grid"):
        assert "dummy: float = 0.5 # of no use" in (tmp_path/f"nbs/{stem}.ipynb").read_text()
    run("-c", USE if "source" not in after else USE.replace("(finetune)", "(run_finetuning)"))

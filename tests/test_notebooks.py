"Every notebook runs: one test each. Those that rebuild shipped files or take an hour run by hand; they say how."
import json
import math
import re
from pathlib import Path

import matplotlib.pyplot as plt
import nbdev.test
import pandas as pd
import pytest
from nbdev.config import get_config

from vit_plasticity import causes, mechanism, prediction, robustness, smoothing
from vit_plasticity.core import COMPONENTS

ROOT = Path(__file__).resolve().parent.parent
BY_HAND = {"pretrain_mini", "build_mini", "mini_benchmark"}
STUDIES = {"rescaling": ("rescaling", "families"), "matched_budget": ("budgets",), "mechanism": ("mechanism", "smoothness"), "prediction": ("prediction",), "robustness": ("smoothing", "courses")} # notebooks that show rows which take an hour: here, made by hand
DEFAULT = 'out_dir: "str or None" = None' # as experiments declare it
SHORTER = {"finetune_grid": {"steps": 6, "seeds": "0,42"}, "finetune": {"steps": 30}, "loss_landscape": {"resolution": 5, "steps": 10}, "scale": {"n_pairs": 12}, "your_images": {"steps": 10, "lrs": "0.06,0.2"}} # other parameters than the defaults, which take up to two minutes
NOTEBOOKS = [path for path in sorted((ROOT/"nbs").rglob("*.ipynb")) if path.stem not in BY_HAND and ".ipynb_checkpoints" not in path.parts]


def test_there_are_notebooks():
    assert {"00_core", "06_finetune", "finetune", "plasticity", "index"} <= {path.stem for path in NOTEBOOKS}


def made_prediction():
    tasks = [("models", model, model, dataset) for model in ("vit_mini", "steps:300", "width:32") for dataset in "abc"]
    rows = pd.DataFrame([labels | arguments for labels, arguments in prediction.prediction_variants(tasks)]).rename(columns={"component": "configuration"})
    accuracy = rows[rows.kind == "accuracy"].assign(criterion="", val_accuracy=lambda table: 0.8 - (table.lr - 0.2).abs())
    accuracy["value"] = 0.9 - 0.01 * accuracy.groupby(["model", "dataset", "lr", "seed"]).cumcount() - 0.001 * (accuracy.index % 7)
    criteria = pd.concat([rows[rows.kind == "criterion"].assign(criterion=name, value=lambda table: 10.0 * (table.configuration.isin(["mha", "fc1", "fc2"])) + place * (table.index % 5) + 1) for place, name in enumerate(("parameters", "embedding", "trial"))])
    made = pd.concat([accuracy, criteria], ignore_index=True)
    return made.assign(part=made.part.where(made.model != "vit_mini", "replication"), run=[f"{i:016x}" for i in made.index], commit="c", started="2026-01-01T00:00:00+00:00", wall_time_s=1.0, diverged=False)[prediction.COLUMNS]


def made_mechanism(study): # losses and measures that fall along training; plasticity and sensitivity of two blocks
    cells = [{"dataset": dataset, "component": component, "parameters": 10 ** (5 - i)} for dataset in "ab" for i, component in enumerate(COMPONENTS)]
    if study == "smoothness": return pd.DataFrame([cell | {"layer": layer, "embedding": math.log(cell["parameters"]) + layer, "in_situ": 2.0 + layer + 1 / math.log(cell["parameters"]), "sensitivity": cell["parameters"] ** 0.25 * (1 + layer)} for cell in cells for layer in (0, 1)])
    runs = [cell | {"seed": seed, "run": f"{i:015x}{seed}", "diverged": False} for i, cell in enumerate(cells) for seed in (0, 1)]
    return pd.DataFrame([run | {"step": step, "loss": math.exp(-step / 60), "iterations": 5, "residual": 0.01} | {name: run["parameters"] ** 0.5 * math.exp(-step / 60) * (1 + 0.01 * run["seed"]) for name in mechanism.MEASURES} for run in runs for step in (0, 60, 120)])


def made_smoothing(study): # constants that fall and accuracies that rise with the strength
    runs = [labels | {"dataset": "a", "seed": run["seed"], "run": f"{i:016x}", "diverged": False} for i, (labels, run) in enumerate(smoothing.smoothing_calls())]
    for i, run in enumerate(runs): run["size"] = 1 + (i // 3) % 12 + 0.01 * run["seed"]
    if study == "courses": return pd.DataFrame([run | {"step": step, "layer": layer, "g1_median": 0.1, "near_even": 0.5, "near_one_hot": 0.0, "sink": 0.05 + 0.01 * layer, "similarity": 0.2, "lipschitz": layer + run["size"]} | {bound: 10.0 for bound in robustness.SMOOTHNESS_BOUNDS} for run in runs for step in (0, 60) for layer in (0, 1)])
    accuracies = {name: lambda rows, place=place: 0.9 - 0.01 * place + 0.001 * rows["size"] for place, name in enumerate(("test_accuracy", "then_accuracy", "accuracy_clean", "accuracy_fgsm_8", "accuracy_pgd_8", "accuracy_autoattack_8"))}
    return pd.DataFrame(runs).assign(network=lambda rows: 20 / rows["size"], attention=lambda rows: 10 / rows["size"], mha_plasticity=2.0, masked=0.0, **accuracies)


def made_rows(study):
    if study == "prediction": return made_prediction()
    if study in ("smoothing", "courses"): return made_smoothing(study)
    if study in ("mechanism", "smoothness"): return made_mechanism(study)
    one = [{"dataset": dataset, "lr": lr, "seed": seed} for dataset in "ab" for lr in (0.1, 0.2, 0.3) for seed in (0, 1)]
    variants = {"rescaling": lambda: causes.rescaling_variants({"a": 3.0, "b": 4.0}, [0.125, 1.0, 8.0], [0.1, 0.2, 0.3], [0, 1]),
                "families": lambda: [({"family": norm, "name": name}, run | {"component": name}) for norm, (reader, _) in causes.FAMILIES.items() for name in (norm, reader) for run in one],
                "budgets": lambda: [({"part": part}, run | arguments) for part, arguments in causes.budget_parts(64, 6) for run in one]}[study]()
    rows = pd.DataFrame([labels | {name: arguments[name] for name in ("dataset", "component", "lr", "seed")} for labels, arguments in variants])
    accuracy = 0.8 - (rows.lr - 0.2).abs() + 0.001 * (rows.index % 7)
    return rows.assign(val_accuracy=accuracy, test_accuracy=accuracy, component_parameters=100 + rows.index // 12, activations_bytes=2**20 + rows.index // 12, relative_time=0.5, source_accuracy_before=0.9, source_accuracy=0.8, run=[f"{i:016x}" for i in rows.index])


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook(path, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("IN_TEST", "1") # as nbdev sets it; undone afterwards, since commands of nbdev do nothing where it is set
    if path.parent.name == "nbs": # an experiment: run anew, in a copy that stores elsewhere
        notebook = json.loads(path.read_text(encoding="utf-8"))
        cells = [cell for cell in notebook["cells"] if "parameters" in cell["metadata"].get("tags", [])]
        for cell in cells: cell["source"] = [line.replace(DEFAULT, f'out_dir: "str or None" = {str(tmp_path)!r}') for line in cell["source"]]
        assert str(tmp_path) in str(cells) or "out_dir" not in str(cells), "the default of out_dir was not found"
        for name, value in SHORTER.get(path.stem, {}).items():
            cells[0]["source"], found = re.subn(rf"(?m)^({name}: .*? = )[^#\n]*", rf"\g<1>{value!r} ", "".join(cells[0]["source"]))
            assert found == 1, f"no parameter {name}"
        for study in STUDIES.get(path.stem, ()):
            (tmp_path/study/"vit_mini").mkdir(parents=True)
            made_rows(study).to_parquet(tmp_path/study/"vit_mini/rows.parquet")
        path = tmp_path/path.name
        path.write_text(json.dumps(notebook), encoding="utf-8")
    passed, _ = nbdev.test.test_nb(path, skip_flags=get_config().tst_flags.split()) # what the command nbdev_test does, in this process
    plt.close("all")
    assert passed, capsys.readouterr().err

"Every notebook runs, as the command `nbdev_test` runs it; cells that it leaves out run small."
import os
import re
import subprocess
import sys

import matplotlib.pyplot as plt
import nbdev.test
import nbformat
import numpy as np
import pandas as pd
import pytest
from nbdev.config import get_config
from nbdev.doclinks import nbglob
from notebooks import NOTEBOOKS, ROOT, SHORTER, SMALL, cells_of, copy_notebook, images_in, is_slow

from vit_plasticity import data, mini
from vit_plasticity.core import ASSETS, manifest
from vit_plasticity.results import read_runs
from vit_plasticity.stats import mean_over_seeds, select_lr

SLOW = [path for path in NOTEBOOKS if is_slow(path)]
EXPERIMENTS = [path for path in NOTEBOOKS if path.parent.name == "nbs"]


def run(path, capsys, flags=()):
    "What the command does with a notebook, in this process."
    passed, _ = nbdev.test.test_nb(path, skip_flags=get_config().tst_flags.split(), force_flags=flags)
    plt.close("all")
    assert passed, capsys.readouterr().err


@pytest.fixture
def in_test(monkeypatch):
    "As nbdev sets it; undone afterwards, since commands of nbdev do nothing where it is set."
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("IN_TEST", "1")


def test_nothing_is_left_out(monkeypatch):
    "These are the notebooks that the command finds and that git knows; only cells marked `slow` are left out."
    monkeypatch.chdir(ROOT)
    command = ["git", "ls-files", "-co", "--exclude-standard", "nbs/*.ipynb"]
    known = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    existing = {(ROOT/name).resolve() for name in known if (ROOT/name).exists()}
    assert {path.resolve() for path in nbglob(as_path=True)} == existing == set(NOTEBOOKS) and len(NOTEBOOKS) > 35
    assert not list((ROOT/"nbs").rglob(".notest")) and get_config().tst_flags == "slow"
    for path in NOTEBOOKS:
        text = "\n".join(cells_of(path))
        assert not re.search(r"^#\| *eval: *false", text, re.M) and "skip_exec" not in path.read_text(encoding="utf-8"), path
    assert {path.stem for path in SLOW} == SMALL.keys()
    for path in SLOW: assert "`nbdev_test --flags slow --path" in cells_of(path, "markdown")[0], path


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook(path, tmp_path, capsys, in_test):
    "An experiment in a copy that stores elsewhere."
    if path in EXPERIMENTS and path.stem != "index": path = copy_notebook(path, tmp_path, **SHORTER.get(path.stem, {}))
    run(path, capsys)


@pytest.fixture
def downloads(monkeypatch):
    "Shipped arrays in the place of what is downloaded, drawn or corrupted."
    shipped = {name: dict(np.load(ASSETS/entry["file"])) for name, entry in manifest("data").items()}
    classes = data.load_dataset("mini/fashion").classes
    monkeypatch.setattr(data, "_fashion_mnist", lambda folder: (shipped["mini/fashion"], classes))
    monkeypatch.setattr(mini, "build_corrupted", lambda fashion, kind: shipped[f"mini/{kind}"])
    monkeypatch.setattr(mini, "build_emoji", lambda folder, style: shipped[f"mini/{style}"])
    for name in ("letters", "scripts", "typefaces"):
        monkeypatch.setattr(mini, f"build_{name}", lambda folder, name=name: shipped[f"mini/{name}"])


@pytest.mark.parametrize("path", SLOW, ids=lambda path: path.stem)
def test_slow_cells(path, tmp_path, capsys, in_test, downloads):
    "B: all cells, with few tasks, steps and images."
    run(copy_notebook(path, tmp_path, **SMALL[path.stem]), capsys, ["slow"])
    written = {file.relative_to(tmp_path).as_posix() for file in tmp_path.rglob("*") if file.is_file()}
    if path.stem == "mini_benchmark":
        assert {f"mini_benchmark/{name}" for name in ("learning_rates.csv", "sanity.csv", "sanity.png")} <= written
        table = pd.read_csv(tmp_path/"mini_benchmark/sanity.csv").set_index("dataset")
        runs = read_runs("finetune", "summary", tmp_path)
        chosen = runs[(runs.dataset == "mini/noto") & (runs.component == "all") & runs.pretrained & runs.seed.isin([0, 42, 1])]
        assert table.full["mini/noto"] == pytest.approx(chosen.test_accuracy.mean()) and table.full_n.tolist() == [3, 2]
    if path.stem == "pretrain_mini": assert "vit_mini_seed0.safetensors" in written
    if path.stem == "build_mini": assert {f"mini/{entry['file']}" for entry in manifest("data").values()} <= written


def test_mini_benchmark_shows_its_rows():
    "B: the committed tables are those shown, and agree with the study's rows of the same runs."
    folder, notebook = ROOT/"outputs/mini_benchmark", nbformat.read(ROOT/"nbs/mini_benchmark.ipynb", as_version=4)
    rates, sanity = pd.read_csv(folder/"learning_rates.csv", index_col=[0, 1]), pd.read_csv(folder/"sanity.csv")
    outputs = [output.data["text/html"] for cell in notebook.cells for output in cell.get("outputs", []) if "text/html" in output.get("data", {})]
    shown = [re.findall(r"<td[^>]*>([^<]*)</td>", output) for output in outputs]
    assert shown[0] == [f"{value:.3f}" for value in rates.to_numpy().ravel()]
    numbers = [float(text) for text in shown[1] if not text.startswith("mini/")]
    np.testing.assert_allclose(numbers, sanity.drop(columns="dataset").to_numpy(float).ravel(), atol=5.1e-4)
    rows = pd.read_parquet(ROOT/"outputs/mini_replication/finetune.parquet")
    rows = rows[(rows.configuration == "all") & (rows.optimizer == "sgd")]
    means, sanity = mean_over_seeds(select_lr(rows)).set_index("dataset"), sanity.set_index("dataset")
    # The other two have twelve seeds here, and three in the study.
    alike = sanity[sanity.full_n == 3]
    assert len(alike) == 9
    np.testing.assert_allclose(alike[["full", "full_low", "full_high"]], means.loc[alike.index, ["mean", "ci_low", "ci_high"]], rtol=1e-9)
    probes = pd.read_parquet(ROOT/"outputs/mini_replication/probes.parquet").set_index("dataset").accuracy
    np.testing.assert_allclose(sanity.probe, probes.loc[sanity.index], rtol=1e-9)


def figures(path, folder, monkeypatch):
    "Images of the notebook as papermill executes it, with a variable that hides figures in scripts."
    monkeypatch.setenv("MPLBACKEND", "Agg")
    copy = copy_notebook(path, folder, **SHORTER.get(path.stem, {}), **SMALL.get(path.stem, {}))
    command = [sys.executable, ROOT/"scripts/execute.py", "--no-progress-bar", copy, folder/"executed.ipynb"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return images_in(folder/"executed.ipynb")


def test_figures_whatever_mplbackend(tmp_path, monkeypatch):
    "A15: what is executed holds as many images as what is committed. test_papermill.py checks it of finetune and plasticity."
    path = ROOT/"nbs/explore.ipynb"
    assert figures(path, tmp_path, monkeypatch) == images_in(path) == 5


OTHERS = [path for path in EXPERIMENTS if images_in(path) and path.stem != "explore"]


@pytest.mark.long
@pytest.mark.parametrize("path", OTHERS, ids=lambda path: path.stem)
def test_figures_of_other_notebooks(path, tmp_path, monkeypatch):
    "A15, of all others."
    assert figures(path, tmp_path, monkeypatch) == images_in(path)


@pytest.mark.long
def test_nbdev_test_in_a_fresh_clone(tmp_path):
    "B: the bare command, without network; it leaves what git knows as it was."
    subprocess.run(["git", "clone", "--quiet", "--no-local", ROOT, tmp_path/"clone"], check=True)
    command = ["nbdev_test", "--n_workers", "1", "--do_print"]
    environment = os.environ | {"PYTHONPATH": str(tmp_path/"clone")}
    done = subprocess.run(command, cwd=tmp_path/"clone", capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("- Completed") == len(NOTEBOOKS) and "Success." in done.stdout
    changed = subprocess.run(["git", "status", "--porcelain"], cwd=tmp_path/"clone", capture_output=True, text=True)
    assert changed.stdout == "", changed.stdout

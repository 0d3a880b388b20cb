"Every notebook runs: one test each. Those that rebuild shipped files or take an hour run by hand; they say how."
import json
from pathlib import Path

import matplotlib.pyplot as plt
import nbdev.test
import pytest
from nbdev.config import get_config

ROOT = Path(__file__).resolve().parent.parent
BY_HAND = {"pretrain_mini", "build_mini", "mini_benchmark"} | {name for name, study in (("rescaling", "rescaling"), ("matched_budget", "budgets")) if not (ROOT/f"outputs/{study}/vit_mini/rows.parquet").is_file()} # these show rows that are computed once
DEFAULT = 'out_dir: "str or None" = None' # as experiments declare it
SHORTER = {"finetune_grid": ('\nsteps: "int or None" = None', '\nsteps: "int or None" = 6')} # by default two minutes
NOTEBOOKS = [path for path in sorted((ROOT/"nbs").rglob("*.ipynb")) if path.stem not in BY_HAND and ".ipynb_checkpoints" not in path.parts]


def test_there_are_notebooks():
    assert {"00_core", "06_finetune", "finetune", "plasticity", "index"} <= {path.stem for path in NOTEBOOKS}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook(path, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    if path.parent.name == "nbs": # an experiment: run anew, in a copy that stores elsewhere
        notebook = json.loads(path.read_text(encoding="utf-8"))
        cells = [cell for cell in notebook["cells"] if "parameters" in cell["metadata"].get("tags", [])]
        for cell in cells: cell["source"] = [line.replace(DEFAULT, f'out_dir: "str or None" = {str(tmp_path)!r}') for line in cell["source"]]
        assert not cells or str(tmp_path) in str(cells), "the default of out_dir was not found"
        if path.stem in SHORTER: cells[0]["source"] = "".join(cells[0]["source"]).replace(*SHORTER[path.stem])
        path = tmp_path/path.name
        path.write_text(json.dumps(notebook), encoding="utf-8")
    passed, _ = nbdev.test.test_nb(path, skip_flags=get_config().tst_flags.split()) # what the command nbdev_test does, in this process
    plt.close("all")
    assert passed, capsys.readouterr().err

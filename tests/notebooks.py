"The notebooks, and copies of them with other parameters."
import json
import re
import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = [path for path in sorted((ROOT/"nbs").rglob("*.ipynb")) if ".ipynb_checkpoints" not in path.parts]

# Experiment -> other parameters than the defaults, which take up to two minutes.
SHORTER = {
    "finetune_grid": {"steps": 6, "seeds": "0,42"},
    "finetune": {"steps": 30},
    "loss_landscape": {"resolution": 5, "steps": 10},
    "scale": {"n_pairs": 12},
    "your_images": {"steps": 10, "lrs": "0.06,0.2"},
}
# The same for those that have cells marked `slow`, which take an hour or a download.
SMALL = {
    "mini_benchmark": {
        "tasks": "mini/noto,mini/fluent", "searched": "mini/noto", "rates": "0.2", "lrs": "0.2", "seeds": "0,42",
        "repeated": "mini/noto", "more_seeds": "1", "steps": 2, "processes": 1},
    "pretrain_mini": {"steps": 2, "more_steps": 2, "batch_size": 8, "device": "cpu"},
    "build_mini": {},
    "real_tasks": {"model": "vit_mini", "tasks": "mini/noto,mini/digits", "img_size": None, "larger_size": None,
                   "n_train": 100, "n_val": 50},
}


def cells_of(path, kind="code"):
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == kind]


def is_slow(path):
    "Has it cells that `nbdev_test` leaves out?"
    return any(re.match(r"(#\|.*\n)*#\| *slow", cell) for cell in cells_of(path))


def images_in(path):
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return sum("image/png" in output.get("data", {}) for cell in cells for output in cell.get("outputs", []))


def with_parameters(path, **values):
    "A notebook's text with other defaults, without outputs."
    notebook = json.loads(path.read_text(encoding="utf-8"))
    cell = next(cell for cell in notebook["cells"] if "parameters" in cell["metadata"].get("tags", []))
    text = "".join(cell["source"])
    for name, value in values.items():
        text, found = re.subn(rf"(?m)^({name}: .*? = )[^#\n]*", lambda match: f"{match[1]}{value!r} ", text)
        assert found == 1, f"no parameter {name}"
    cell["source"] = text
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code": cell |= {"outputs": [], "execution_count": None}
    return json.dumps(notebook)


def copy_notebook(path, folder, **values):
    "An experiment that stores in `folder`, beside copies of the rows that take an hour."
    has_out_dir = any(cell.startswith("out_dir:") or "\nout_dir:" in cell for cell in cells_of(path))
    for study in (ROOT/"outputs").glob("*/vit_mini"): shutil.copytree(study, folder/study.relative_to(ROOT/"outputs"))
    copy = folder/path.name
    copy.write_text(with_parameters(path, **values | ({"out_dir": str(folder)} if has_out_dir else {})), encoding="utf-8")
    return copy

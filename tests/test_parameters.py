"What the notebooks' parameters take: one number where several are joined by commas, and blocks from 0."
import ast
import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vit_plasticity.core import check_declared, check_parameters, declared_parameters
from vit_plasticity.data import load_dataset
from vit_plasticity.finetune import run_finetuning
from vit_plasticity.results import load_runs

ROOT = Path(__file__).resolve().parent.parent
# Parameters that are several things joined by commas: numbers, with one that a person may give alone, or words.
NUMBERS = {"layers": 5, "seeds": 7, "more_seeds": 7, "lrs": 0.1, "rates": 0.1, "factors": 0.5, "sizes": 28, "eps": 4}
WORDS = {"components", "datasets", "sets", "tasks", "searched", "repeated", "model", "siblings", "penalties", "attacks"}
WORDS |= {"formats", "studies", "grid", "enlarged"}


def parameters_cell(path):
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return "".join(next((cell["source"] for cell in cells if "parameters" in cell["metadata"].get("tags", [])), []))


CELLS = {path.stem: parameters_cell(path) for path in sorted((ROOT/"nbs").glob("*.ipynb"))}
DECLARED = [(stem, name) for stem, cell in CELLS.items() for name in declared_parameters(cell)]


def comment(stem, name): return re.search(rf"^{name}: .*?# (.*)$", CELLS[stem], re.M)[1]


def several(stem, name):
    "Does a parameter hold several things joined by commas?"
    nodes = {node.target.id: node.value for node in ast.parse(CELLS[stem]).body if isinstance(node, ast.AnnAssign)}
    text = str(ast.literal_eval(nodes[name]))
    return "joined by commas" in comment(stem, name) or "," in text or name == "layers"


@pytest.mark.parametrize("stem, name", [pair for pair in DECLARED if several(*pair)])
def test_one_number_is_taken(stem, name):
    "D1: `-p layers 5` was refused, as were all numbers given to texts. A new such parameter is to be named above."
    assert name in {*NUMBERS, *WORDS}
    if name not in NUMBERS: return
    declared, value = declared_parameters(CELLS[stem]), NUMBERS[name]
    check_declared(name, value, declared)
    check_declared(name, f"{value},{value}", declared)
    # As papermill gives it, and a whole number where others may be fractions.
    for given in (value, int(value) or 1):
        check_parameters(["", CELLS[stem], f"# Parameters\n{name} = {given!r}\n", "check_parameters(In)"])


def test_there_are_such():
    found = {(stem, name) for stem, name in DECLARED if several(stem, name)}
    assert {("finetune", "layers"), ("finetune_grid", "seeds"), ("your_images", "lrs"), ("robustness", "eps")} <= found


@pytest.mark.parametrize("stem, name", [pair for pair in DECLARED if pair[1] in ("layer", "layers")])
def test_blocks_count_from_0(stem, name):
    "D1: `layers` did not say so, and explore counted from 1."
    assert "from 0" in comment(stem, name)


def test_one_block(tmp_path):
    "D1: a number is one block, and the run is that of the text."
    quick = dict(steps=1, batch_size=8, device="cpu", out_dir=tmp_path, progress=False)
    run = run_finetuning(component="ln1", layers=5, **quick)
    assert run.info["parameters"]["layers"] == [5] and set(run.table("layers").layer) == {5}
    assert run_finetuning(component="ln1", layers="5-5", **quick).info["id"] == run.info["id"]


def photos(folder, counts):
    "PNG files of noise, so many of each class."
    pixels = np.random.default_rng(len(folder.name)).integers(0, 256, (sum(counts.values()), 28, 28, 3), dtype=np.uint8)
    names = [(name, i) for name, count in counts.items() for i in range(count)]
    for name in counts: (folder/name).mkdir(parents=True)
    for (name, i), picture in zip(names, pixels): Image.fromarray(picture).save(folder/name/f"{i:03}.png")
    return f"folder:{folder}"


def test_a_class_without_test_images(tmp_path, capsys):
    "A11: folders of 20, 20 and 2 images; said before the accuracy is measured, and kept with the run."
    dataset = photos(tmp_path/"photos", {"a": 20, "b": 20, "c": 2})
    with pytest.warns(UserWarning, match="has no test images of 'c': accuracies leave them out"):
        data = load_dataset(dataset, tmp_path/"data", 28)
    assert len(data.classes) == 3 and len(data.test.labels.unique()) == 2
    options = dict(dataset=dataset, data_dir=tmp_path/"data", out_dir=tmp_path/"runs", device="cpu", progress=False)
    run = run_finetuning(component="ln1", steps=1, batch_size=8, **options)
    line = f"{data.name.removesuffix('@42')} has no test images of 'c': test accuracy is over the other 2 of 3 classes"
    assert line in run.info["notes"] and "has no validation images of 'c'" in capsys.readouterr().out
    assert sum("no test images of 'c'" in note for note in run.info["notes"]) == 1 # not as loading told it, too
    assert run.table("summary")[["n_classes", "n_test_classes"]].to_numpy().tolist() == [[3, 2]]
    assert [stored.info["notes"] for stored in load_runs("finetune", tmp_path/"runs")] == [run.info["notes"]]


def test_a_class_without_training_images(tmp_path):
    "A16: refused before a model is loaded."
    photos(tmp_path/"photos"/"train", {"a": 9, "b": 9})
    photos(tmp_path/"photos"/"test", {"a": 3, "b": 3, "c": 3})
    options = dict(dataset=f"folder:{tmp_path/'photos'}", data_dir=tmp_path/"data", out_dir=tmp_path/"runs")
    with pytest.raises(ValueError, match="training images of .*'c'"):
        run_finetuning(component="ln1", steps=1, batch_size=8, **options)

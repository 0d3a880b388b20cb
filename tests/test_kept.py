"D9: a kept model is read again by the recipes that `your_images` shows, to the bit, from the file alone."
import ast
import json
import re
import socket
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from vit_plasticity.models import (
    image_size, input_config, keep_model, load_model, model_identity, read_metadata, set_trainable
)
from vit_plasticity.plasticity import run_plasticity

NOTEBOOK = Path(__file__).resolve().parent.parent/"nbs/your_images.ipynb"
CELLS = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
SHOWN = "\n".join("".join(cell["source"]) for cell in CELLS if cell["cell_type"] == "markdown")
RECIPES = re.findall(r"```python\n(.*?)```", SHOWN, re.S)
CLASSES = ["cat", "dog", "café"]


def keeping():
    "The statements of the notebook that keep a model."
    for cell in CELLS:
        if cell["cell_type"] == "code" and "keep_model(network" in (source := "".join(cell["source"])):
            statements = [ast.unparse(node) for node in ast.parse(source).body]
            first = next(i for i, statement in enumerate(statements) if statement.startswith("pretrained_sha256 = "))
            return "\n".join(statements[first:first + 2])


@pytest.fixture
def offline(tmp_path, monkeypatch):
    "In an empty folder, without a network."
    def refuse(*arguments, **options): raise OSError("no network")
    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(params=["vit_mini", "test_vit", "vit_tiny_patch16_224.augreg_in21k", "earlier.safetensors"])
def kept(request, offline):
    "A model with a new head, whose weights have moved; kept as the notebook keeps it."
    model, weights, size = request.param, None, {}
    if model == "earlier.safetensors":
        keep_model(load_model("vit_mini", num_classes=7), model, "vit_mini")
    elif model != "vit_mini":
        weights, size = "w.safetensors", {"img_size": 64}
        save_file(load_model(model, pretrained=False).state_dict(), weights)
    network = load_model(model, num_classes=3, weights=weights, **size)
    generator = torch.Generator().manual_seed(0)
    for parameter in network.parameters():
        parameter.data += 0.01 * torch.randn(parameter.shape, generator=generator)
    stored = {"a": SimpleNamespace(info={"parameters": {"model_sha256": "f" * 64}})}
    images = SimpleNamespace(classes=CLASSES, name="folder:photos")
    file, best = offline/"runs/finetuned.safetensors", SimpleNamespace(run="a")
    known = dict(network=network, file=file, model=model, weights=weights, images=images, best=best, stored=stored,
                 keep_model=keep_model)
    file.parent.mkdir()
    exec(keeping(), known)
    return SimpleNamespace(**known)


def test_recipes(kept):
    "Each of them: with this library, without it, and on new photos."
    size, mean, std = input_config(kept.network)
    (Path("new")/"inside").mkdir(parents=True)
    pixels = np.random.default_rng(0).integers(0, 256, (3, size, size, 3), np.uint8)
    for i, picture in enumerate(pixels):
        Image.fromarray(picture).save(f"new/inside/{i}.png")
    centre, deviation = (torch.tensor(numbers).view(3, 1, 1) for numbers in (mean, std))
    images = (torch.tensor(pixels).permute(0, 3, 1, 2) / 255 - centre) / deviation
    with torch.no_grad():
        expected = kept.network(images)
        ours, timms, photos = ({"file": kept.file} for _ in RECIPES)
        for recipe, known in zip(RECIPES, (ours, timms, photos), strict=True):
            exec(recipe, known)
            torch.testing.assert_close(known["network"](images), expected, rtol=0, atol=0)
            assert not known["network"].training
    assert (ours["network"].notes, input_config(ours["network"])) == ((), (size, mean, std))
    told = timms["told"]
    assert (told["img_size"], tuple(told["mean"]), tuple(told["std"]), told["classes"]) == (size, mean, std, CLASSES)
    assert photos["names"] == {f"inside/{i}.png": CLASSES[label] for i, label in enumerate(expected.argmax(1))}


def test_what_the_file_records(kept):
    "The source of its weights too; and an architecture that stored runs name."
    told = read_metadata(kept.file)
    assert told["origin"] == {"model": kept.model, "weights": kept.weights}
    assert (told["pretrained_sha256"], told["dataset"]) == ("f" * 64, "folder:photos")
    assert told["notes"] == list(kept.network.notes)
    assert bool(told["notes"]) == (kept.weights is not None) and told["num_classes"] == 3
    assert image_size(kept.file) == told["img_size"] == told["architecture"]["img_size"]
    again = load_model(kept.file)
    assert model_identity(kept.file, again)["architecture"]["architecture"] == told["architecture"]
    other = load_model(kept.file, num_classes=5)
    assert other.head.weight.shape[0] == 5 and torch.equal(other.cls_token, kept.network.cls_token)
    kept.file.write_bytes(kept.file.read_bytes()[:-4] + b"\0\0\1\1")
    with pytest.raises(ValueError, match="finetuned.safetensors is damaged: SHA-256"):
        load_model(kept.file)


def test_measured_again(kept):
    "Images like those of pretraining are Fashion-MNIST's for vit_mini alone."
    small = dict(dataset="mini/digits", n_pairs=2, progress=False, out_dir=kept.file.parent, device="cpu")
    if kept.model == "vit_mini":
        run = run_plasticity(str(kept.file), **small)
        names = [run.info["parameters"][name] for name in ("source", "model")]
        assert names == ["mini/fashion", "finetuned.safetensors"]
    elif kept.model == "test_vit":
        with pytest.warns(UserWarning, match="`source` is not given: half of the images"):
            run_plasticity(str(kept.file), **small | {"dataset": f"folder:{photos()}"})


def photos():
    "Eight in two classes."
    draws = np.random.default_rng(1)
    for label in ("a", "b"):
        Path("photos", label).mkdir(parents=True)
        for i in range(4):
            Image.fromarray(draws.integers(0, 256, (40, 40, 3), np.uint8)).save(f"photos/{label}/{i}.png")
    return "photos"


def test_what_is_not_kept(tmp_path):
    "A model that its name does not rebuild is refused, and no file is left."
    path, model = tmp_path/"kept.safetensors", load_model("vit_mini", num_classes=3)
    adapted = load_model("vit_mini", num_classes=3)
    set_trainable(adapted, "mha", subspace="scale")
    other = load_model("vit_mini", norm_eps=1e-3)
    for wrong, name in ((adapted, "vit_mini"), (model, "test_vit"), (other, "vit_mini")):
        with pytest.raises(ValueError, match=f"what load_model.'{name}'. makes, without adapters or `norm_eps`"):
            keep_model(wrong, path, name)
    with pytest.raises(ValueError, match="`name` must be that of a model of images; got 'gpt2'"):
        keep_model(model, path, "gpt2")
    model.cls_token.data += float("nan")
    with pytest.raises(ValueError, match="`model` must have finite weights; cls_token has others"):
        keep_model(model, path, "vit_mini")
    assert not list(tmp_path.iterdir())

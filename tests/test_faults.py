"Files that are damaged or missing, and devices that are absent, are named before anything is computed."
import shutil

import pytest
import torch

from vit_plasticity import core, data, models
from vit_plasticity.core import ASSETS, get_device
from vit_plasticity.data import load_dataset
from vit_plasticity.models import load_model


@pytest.fixture
def assets(tmp_path, monkeypatch):
    shutil.copytree(ASSETS, tmp_path/"assets")
    for module in (core, data, models.loading): monkeypatch.setattr(module, "ASSETS", tmp_path/"assets")
    return tmp_path/"assets"


def change_byte(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("change, message", [(change_byte, "digits.npz"), (lambda path: path.unlink(), "digits.npz is missing"), (lambda path: path.write_bytes(b""), "can't be read")])
def test_data_file(assets, change, message):
    change(assets/"digits.npz")
    with pytest.raises(ValueError, match=message) as caught: load_dataset("mini/digits")
    assert "SHA-256" in str(caught.value) and "build_mini" in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("change, message", [(change_byte, "vit_mini.safetensors is damaged: SHA-256"), (lambda path: path.unlink(), "vit_mini.safetensors"),
                                             (lambda path: path.write_bytes(path.read_bytes()[:1000]), "not a whole safetensors file")])
def test_weight_file(assets, change, message):
    change(assets/"vit_mini.safetensors")
    with pytest.raises(ValueError, match=message) as caught: load_model("vit_mini")
    assert "\n" not in str(caught.value) and core.manifest("weights")["vit_mini"]["sha256"] in str(caught.value)


def test_fashion_mnist_elsewhere(tmp_path, monkeypatch):
    "A cut file is named; without files and network, the message says where to put them."
    from torchvision.datasets import FashionMNIST
    raw = tmp_path/"FashionMNIST"/"raw"
    raw.mkdir(parents=True)
    (raw/"train-images-idx3-ubyte.gz").write_bytes(b"\x1f\x8bnot gzip")
    with pytest.raises(ValueError, match="train-images-idx3-ubyte.gz"): load_dataset("fashion_mnist", tmp_path)
    monkeypatch.setattr(FashionMNIST, "download", lambda self: (_ for _ in ()).throw(OSError("no network")))
    (raw/"train-images-idx3-ubyte.gz").unlink()
    with pytest.raises(ValueError, match="dataset-fashion-mnist"): load_dataset("fashion_mnist", tmp_path)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")
def test_absent_cuda():
    with pytest.raises(ValueError, match="`device` must be one that this machine has"): get_device("cuda")


def test_unreachable_weights():
    with pytest.raises(ValueError, match="pretrained=False") as caught: load_model("vit_tiny_patch16_224", num_classes=3)
    assert "\n" not in str(caught.value)

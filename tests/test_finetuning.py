"What a finetuning must keep, on the paper's models and others, and under kill -9."
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import timm
import torch

from vit_plasticity.core import checksum
from vit_plasticity.data import make_dataset
from vit_plasticity.finetune import finetune, make_forward, run_grid
from vit_plasticity.models import component_parameters, load_model
from vit_plasticity.results import load_run

QUICK = dict(lr=0.01, steps=2, warmup_steps=1, batch_size=2, eval_every=2, device="cpu", progress=False)


def random_data(size=32, n=4):
    rng = np.random.RandomState(0)
    arrays = {f"{split}_{what}": array for split in ("train", "val", "test") for what, array in (("images", rng.randint(0, 256, (n, size, size, 3), np.uint8)), ("labels", np.arange(n) % 2))}
    return make_dataset("random", arrays, ("a", "b"))


def small(name, **options): return timm.create_model(name, num_classes=2, img_size=32 if "14" not in name else 28, **options).eval()


MODELS = {"vit_base": lambda: small("vit_base_patch16_224"), "vit_large": lambda: small("vit_large_patch16_224"), "deit": lambda: small("deit_tiny_patch16_224"), "dinov2": lambda: small("vit_small_patch14_dinov2"),
          "dinov2_registers": lambda: small("vit_small_patch14_reg4_dinov2"), "clip": lambda: small("vit_base_patch32_clip_quickgelu_224", depth=2), "dinov3": lambda: small("vit_small_patch16_dinov3"), "dinov3_gated": lambda: small("vit_small_plus_patch16_dinov3")}
COUNTS = {"vit_base": {"mha": 28_348_416, "ln1": 18_432, "fc2": 28_320_768}, "vit_large": {"mha": 100_761_600, "ln1": 49_152, "fc2": 100_687_872}} # of the paper's models


@pytest.mark.parametrize("name", [name if name != "vit_large" else pytest.param(name, marks=pytest.mark.long) for name in MODELS])
def test_frozen_stays_and_trainable_moves(name):
    "Counts are exact, frozen tensors stay bit for bit, every trainable one moves, whatever the model."
    for component in {"vit_large": ("mha",), "vit_base": ("fc2", "ln1")}.get(name, ("mha", "ln1", "fc2", "fc1+ln2")):
        model = MODELS[name]()
        before = {key: checksum({"": tensor}) for key, tensor in model.state_dict().items()}
        result = finetune(model, random_data(), component=component, optimizer="adamw", **QUICK)
        trainable = {key for key, p in model.named_parameters() if p.requires_grad}
        assert {key for key, tensor in model.state_dict().items() if checksum({"": tensor}) != before[key]} == trainable
        chosen = component_parameters(model, component)
        assert result.summary.component_parameters[0] == sum(p.numel() for p in chosen.values()) == COUNTS.get(name, {}).get(component, result.summary.component_parameters[0])
        assert trainable - chosen.keys() <= {key for key in before if key.startswith(("head.", "norm.", "fc_norm."))} and len(result.layers) == 2 * len(model.blocks)


def test_class_token_pass_of_big_models():
    "The shortened pass gives the logits and gradients of the full one."
    for name in ("deit", "dinov2_registers", "clip"):
        model, images, gradients = MODELS[name]().double(), torch.randn(2, 3, 28 if "dinov2" in name else 32, 28 if "dinov2" in name else 32, dtype=torch.float64), []
        for forward in (model, make_forward(model)):
            model.zero_grad()
            forward(images).square().sum().backward()
            gradients.append([p.grad for p in model.parameters()])
        assert make_forward(model) is not model, name
        for a, b in zip(*gradients): torch.testing.assert_close(a, b)


def test_models_that_do_not_fit():
    for model in (timm.create_model("resnet18", num_classes=2), torch.nn.Linear(2, 2)):
        model.num_classes = 2
        with pytest.raises(ValueError, match="`model` must be of a family that is covered"): finetune(model, random_data(), component="mha", **QUICK)
    model = load_model("vit_mini", num_classes=2)
    model.head = torch.nn.Linear(64, 2) # replaced by another module: it still trains
    finetune(model, random_data(28), component="head", **QUICK)
    model.blocks[3].mlp.fc1.forward = lambda x: x.new_zeros(*x.shape[:-1], 256) # a component that the loss does not see
    with pytest.raises(ValueError, match="get no gradient"): finetune(model, random_data(28), component="fc1", **QUICK)


def test_full_disk_keeps_the_last_checkpoint(tmp_path, monkeypatch):
    data, path, save, calls = random_data(28), tmp_path/"training.pt", torch.save, []
    def failing(state, target):
        calls.append(state["step"])
        if len(calls) == 2:
            Path(target).write_bytes(b"half")
            raise RuntimeError("[enforce fail at inline_container.cc] . PytorchStreamWriter failed writing file: file write failed")
        save(state, target)
    monkeypatch.setattr(torch, "save", failing)
    def stop(training):
        if training.step == 5: raise KeyboardInterrupt
    options = QUICK | dict(steps=6, checkpoint=path, checkpoint_every=2)
    with pytest.raises(KeyboardInterrupt), pytest.warns(UserWarning, match="the checkpoint training.pt could not be written, the training goes on"):
        finetune(load_model("vit_mini", num_classes=2), data, component="ln1", on_step=stop, **options)
    assert calls == [2, 4] and torch.load(path, weights_only=True)["step"] == 2 and [file.name for file in tmp_path.iterdir()] == ["training.pt"]
    model, expected = load_model("vit_mini", num_classes=2), load_model("vit_mini", num_classes=2)
    resumed, whole = finetune(model, data, component="ln1", **options), finetune(expected, data, component="ln1", **QUICK | dict(steps=6))
    pd.testing.assert_frame_equal(resumed.steps, whole.steps, check_exact=True)
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), expected.state_dict().values()))


GRID = dict(component="mha", optimizer=["sgd", "adamw"], seed=[0, 1], steps=16, batch_size=32, checkpoint_every=3, device="cpu")


@pytest.mark.parametrize("most", [1, pytest.param(3, marks=pytest.mark.long)])
def test_killed_grid_equals_an_undisturbed_one(most, tmp_path):
    "All processes of a grid are killed at random moments; what is stored in the end is the same, row by row."
    code = f"import sys; from vit_plasticity.finetune import run_grid; run_grid(2, **{GRID}, out_dir=sys.argv[1])"
    start = lambda folder: subprocess.Popen([sys.executable, "-c", code, str(folder)], start_new_session=True, stderr=subprocess.DEVNULL)
    rng, kills, checkpoints = random.Random(0), 0, lambda: {path: path.stat().st_mtime_ns for path in (tmp_path/"killed"/"finetune").glob(".*.pt") if path.exists()}
    while kills < most:
        before, process = checkpoints(), start(tmp_path/"killed")
        while checkpoints() == before and process.poll() is None: time.sleep(0.02) # it imports, and begins
        time.sleep(rng.random())
        if process.poll() is not None: break
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        kills += 1
    assert kills >= 1 and start(tmp_path/"killed").wait() == 0
    run_grid(1, **GRID, out_dir=tmp_path/"whole")
    runs = {name: {path.name: load_run(path) for path in (tmp_path/name/"finetune").glob("[!.]*")} for name in ("killed", "whole")}
    assert runs["killed"].keys() == runs["whole"].keys() and len(runs["whole"]) == 4 and not list((tmp_path/"killed"/"finetune").glob(".*.pt"))
    for name, run in runs["killed"].items():
        for table in ("steps", "layers", "evaluations", "predictions"): pd.testing.assert_frame_equal(run.table(table), runs["whole"][name].table(table), check_exact=True)
        unlike = ["time_s", "images_per_s", "peak_memory_bytes"]
        pd.testing.assert_frame_equal(run.table("summary").drop(columns=unlike), runs["whole"][name].table("summary").drop(columns=unlike), check_exact=True)


def children(pid): return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_workers_end_with_their_grid(tmp_path):
    "When a scheduler ends the main process alone, the workers keep a checkpoint and end too."
    code = "import sys; from vit_plasticity.finetune import run_grid; run_grid(2, steps=100_000, seed=[0, 1], checkpoint_every=4, device='cpu', out_dir=sys.argv[1])"
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stderr=subprocess.DEVNULL)
    checkpoints, deadline = lambda: list((tmp_path/"finetune").glob(".*.pt")), time.time() + 120
    while len(checkpoints()) < 2 and time.time() < deadline: time.sleep(0.5)
    workers = [pid for pid in children(process.pid) if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    process.terminate()
    process.wait()
    while any(Path(f"/proc/{pid}").exists() for pid in workers) and time.time() < deadline + 60: time.sleep(0.5)
    assert len(workers) == 2 and not any(Path(f"/proc/{pid}").exists() for pid in workers)
    first = [torch.load(path, weights_only=True)["step"] for path in checkpoints()]
    assert len(first) == 2 and min(first) >= 4


def test_interrupt_keeps_a_checkpoint(tmp_path):
    "Ctrl-C, or JupyterLab's stop button, ends a training after a step, and the same call goes on."
    data, path = random_data(28), tmp_path/"training.pt"
    interrupt = lambda training: os.kill(os.getpid(), signal.SIGINT) if training.step == 3 else None
    options = QUICK | dict(steps=6, checkpoint=path)
    with pytest.raises(KeyboardInterrupt): finetune(load_model("vit_mini", num_classes=2), data, component="ln1", on_step=interrupt, **options)
    assert torch.load(path, weights_only=True)["step"] == 3
    with pytest.raises(ValueError, match="is of another training: input"): finetune(load_model("vit_mini", num_classes=2, normalization="half"), data, component="ln1", **options)
    resumed, whole = (finetune(load_model("vit_mini", num_classes=2), data, component="ln1", **arguments) for arguments in (options, QUICK | dict(steps=6)))
    pd.testing.assert_frame_equal(resumed.steps, whole.steps, check_exact=True)

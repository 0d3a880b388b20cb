"""A finetuning step of a ViT-B (random weights) against a plain loop of the official protocol, on the CPU or a GPU, interleaved in one run.

    python benchmarks/finetune_step.py [repeats] [device]

Writes benchmarks/finetune_step.csv. A step takes 16 images (on a GPU 128) of 32 x 32, augmented to 224 x 224, with SGD and clipping. Routes, for all, mha, fc1 and ln1, the head and the final norm training with each:
  official      torchvision's transforms of one PIL image after the other, timm's forward pass, `requires_grad` set for the component, `clip_grad_norm_`, SGD's step
  float32       `training_batches` and the step of `finetune`, with all gradient norms that it records
  bfloat16      the same under autocast (on a CPU only where it has bfloat16 arithmetic)
  floor         the matrix products that cannot be saved: forward for all tokens but the last block's queries, outputs and MLP of other tokens than the class token, the same again for the gradients of activations down to the lowest
                trainable tensor, and for those of trainable matrices, at the speed of a plain float32 product of the size of FC1 in this run
Seconds are medians a step of the repeats, after one that does not count. Memory is the peak beyond that before the steps, of a process that does nothing else. About 8 minutes on two cores.
"""
import platform
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from PIL import Image
from torch import nn
from torch.nn import functional as F
from torchvision import transforms

from vit_plasticity.data import make_dataset
from vit_plasticity.finetune import _take_step, _Training
from vit_plasticity.models import load_model, set_trainable

COMPONENTS = ("all", "mha", "fc1", "ln1")
REPEATS, DEVICE = int(sys.argv[1]) if len(sys.argv) > 1 else 3, sys.argv[2] if len(sys.argv) > 2 else "cpu"
BATCH = 128 if DEVICE.startswith("cuda") else 16
BFLOAT16 = DEVICE.startswith("cuda") or torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
ROUTES = ("official", "float32", *(("bfloat16",) if BFLOAT16 else ()))
rng = np.random.RandomState(0)
arrays = {f"{split}_{what}": array for split in ("train", "val", "test") for what, array in (("images", rng.randint(0, 256, (4 * BATCH, 32, 32, 3), np.uint8)), ("labels", np.arange(4 * BATCH) % 10))}
data = make_dataset("random", arrays, tuple("0123456789"))
mean, std = (0.5,) * 3, (0.5,) * 3
transform = transforms.Compose([transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(), transforms.ToTensor(), transforms.Normalize(mean, std)])


def new_model(): return load_model("vit_base_patch16_224", num_classes=10, pretrained=False, normalization="half").to(DEVICE)


def official(component): # a function that takes one step
    model = new_model().train()
    set_trainable(model, component)
    trainable = [p for p in model.parameters() if p.requires_grad]
    optimizer, step = torch.optim.SGD(trainable, lr=1e-3, momentum=0.9), 0
    def take():
        nonlocal step
        index = [(step * BATCH + i) % len(data.train.labels) for i in range(BATCH)]
        images = torch.stack([transform(Image.fromarray(arrays["train_images"][i])) for i in index]).to(DEVICE)
        optimizer.zero_grad()
        F.cross_entropy(model(images), data.train.labels[index].to(DEVICE)).backward()
        nn.utils.clip_grad_norm_(trainable, 1.0).item()
        optimizer.step()
        step += 1
    return take


def ours(component, dtype):
    model = new_model().train()
    options = dict(component=component, optimizer="sgd", lr=1e-3, steps=1_000, warmup_steps=100, batch_size=BATCH, seed=0, weight_decay=0.0, clip_norm=1.0, eval_every=1_000, final_norm=True, crop_scale=0.08, layers=None, schedule="cosine",
                   head_lr=None, micro_batch=None, dtype=dtype, compile=False)
    training = _Training(model, data, options, torch.device(DEVICE))
    batches = training.batches()
    return lambda: _take_step(training, *next(batches))


def make(route, component): return official(component) if route == "official" else ours(component, route)


def seconds(call):
    if DEVICE != "cpu": torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    if DEVICE != "cpu": torch.cuda.synchronize()
    return time.perf_counter() - start


def floor_gflop(component): # of a step
    tokens, dim, layers = 197, 768, 12
    per_token = {"qkv": 3 * dim**2, "proj": dim**2, "fc1": 4 * dim**2, "fc2": 4 * dim**2}
    attention = 2 * tokens**2 * dim
    block, last = tokens * sum(per_token.values()) + attention, tokens * 2 * dim**2 + 10 * dim**2 + 2 * tokens * dim # the last: keys and values of all tokens, all else of one
    forward = 196 * 768 * dim + (layers - 1) * block + last
    activations = forward - 196 * 768 * dim - {"ln1": 0, "all": 0, "mha": tokens * per_token["qkv"], "fc1": tokens * (per_token["qkv"] + per_token["proj"] + per_token["fc1"]) + attention}[component] # none below the lowest trainable tensor
    full = {"ln1": 0, "mha": per_token["qkv"] + per_token["proj"], "fc1": per_token["fc1"], "all": sum(per_token.values())}[component]
    short = {"ln1": 0, "mha": tokens * 2 * dim**2 + 2 * dim**2, "fc1": per_token["fc1"], "all": tokens * 2 * dim**2 + 10 * dim**2}[component]
    return 2 * BATCH * (forward + activations + (layers - 1) * tokens * full + short + (196 * 768 * dim if component == "all" else 0)) / 1e9


def peak_memory(route, component): # bytes
    take = make(route, component)
    if DEVICE != "cpu":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        for _ in range(2): take()
        return torch.cuda.max_memory_allocated() - before
    status = lambda key: int(next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(key)).split()[1]) * 1024
    Path("/proc/self/clear_refs").write_text("5") # forget the peak so far
    before = status("VmRSS")
    for _ in range(2): take()
    return status("VmHWM") - before


if len(sys.argv) > 4: sys.exit(print(peak_memory(sys.argv[3], sys.argv[4]))) # a child process
rows, left, right = [], torch.randn(BATCH * 197, 768, device=DEVICE), torch.randn(3072, 768, device=DEVICE)
product = 2 * BATCH * 197 * 768 * 3072 / 1e9
for component in COMPONENTS:
    steps, times = {route: make(route, component) for route in ROUTES}, {route: [] for route in (*ROUTES, "product")}
    for repeat in range(REPEATS + 1):
        for route, call in (*steps.items(), ("product", lambda: [F.linear(left, right) for _ in range(5)])):
            taken = seconds(call)
            if repeat: times[route].append(taken)
    median = {route: float(np.median(values)) for route, values in times.items()}
    floor = floor_gflop(component) / (5 * product / median["product"])
    for route in ROUTES:
        ratios = np.array(times["official"]) / np.array(times[route])
        rows.append({"component": component, "route": route, "seconds_per_step": median[route], "times_faster_than_official": np.median(ratios), "ratio_min": ratios.min(), "ratio_max": ratios.max(), "times_the_float32_floor": median[route] / floor,
                     "peak_memory_mib": int(subprocess.run([sys.executable, __file__, str(REPEATS), DEVICE, route, component], capture_output=True, text=True, check=True).stdout) / 2**20})
        print(rows[-1], flush=True)
    del steps
table = pd.DataFrame(rows).assign(images=BATCH, repeats=REPEATS, threads=torch.get_num_threads(), machine=platform.machine() if DEVICE == "cpu" else torch.cuda.get_device_name(), instructions=torch.backends.cpu.get_cpu_capability(), torch=torch.__version__)
table.to_csv(Path(__file__).with_suffix(".csv"), index=False, float_format="%.4g")
print(table.drop(columns=["machine", "torch"]).to_string(index=False, float_format="%.3g"))

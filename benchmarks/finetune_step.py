"""A finetuning step of a ViT-B (random weights) against a plain loop of the official protocol, on the CPU or a GPU, interleaved in one run.

    python benchmarks/finetune_step.py [repeats] [device] [components] [--smoke] [--out FILE]

Writes benchmarks/finetune_step.csv. Components are joined by commas (all,mha,fc1,ln1). A step takes 16 images (on a GPU
128) of 32 x 32, augmented to 224 x 224, with SGD and clipping. Routes, the head and the final norm training with each
component:
  official      torchvision's transforms of one PIL image after the other, timm's forward pass, `requires_grad` set for the component, `clip_grad_norm_`, SGD's step
  float32       the loop of `finetune`, a step at a time, with all gradient norms that it records
  bfloat16      the same under autocast (on a CPU only where it has bfloat16 arithmetic)
  floor         the matrix products that cannot be saved: forward for all tokens but the last block's queries, outputs and MLP of other tokens than the class token, the same again for the gradients of activations down to the lowest
                trainable tensor, and for those of trainable matrices, at the speed of a plain float32 product of the size of FC1 in this run
Seconds are medians a step of the repeats, after one that does not count. Memory is the peak beyond that before the
steps, of a process that does nothing else; with one component and a route after it this alone is printed, in bytes.
`instructions` and `threads` say what computed. About 8 minutes on two cores.
"""
import platform
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from _common import command_line, write_rows
from _processor import instructions
from _step import stepper
from PIL import Image
from torch import nn
from torch.nn import functional as F
from torchvision import transforms

from vit_plasticity.config import FinetuneConfig
from vit_plasticity.core import check_choice
from vit_plasticity.data import make_dataset
from vit_plasticity.finetune import Training, has_bfloat16
from vit_plasticity.models import load_model, set_trainable

COMPONENTS = ("all", "mha", "fc1", "ln1") # whose floor is known
OPTIONS = command_line(__doc__, repeats=3, device="cpu", components=",".join(COMPONENTS), route="")
CHOSEN = [check_choice("components", name, COMPONENTS) for name in OPTIONS.components.split(",")]
MODEL, BLOCKS, SIZE, REPEATS, DEVICE = "vit_base_patch16_224", 12, 224, OPTIONS.repeats, OPTIONS.device
BATCH = 128 if DEVICE.startswith("cuda") else 16
if OPTIONS.smoke: MODEL, BLOCKS, SIZE, REPEATS, BATCH = "vit_tiny_patch16_224", 2, 32, 1, 2
ROUTES = ("official", "float32", "bfloat16") if has_bfloat16(torch.device(DEVICE)) else ("official", "float32")
rng = np.random.RandomState(0)
COUNT, arrays = max(4 * BATCH, 10), {} # images of a split: each class is in each
for split in ("train", "val", "test"):
    arrays[f"{split}_images"] = rng.randint(0, 256, (COUNT, 32, 32, 3), np.uint8)
    arrays[f"{split}_labels"] = np.arange(COUNT) % 10
data = make_dataset("random", arrays, tuple("0123456789"))
mean, std = (0.5,) * 3, (0.5,) * 3
crop, flip = transforms.RandomResizedCrop(SIZE), transforms.RandomHorizontalFlip()
transform = transforms.Compose([crop, flip, transforms.ToTensor(), transforms.Normalize(mean, std)])


def new_model():
    model = load_model(MODEL, num_classes=10, pretrained=False, normalization="half", img_size=SIZE)
    model.blocks = model.blocks[:BLOCKS]
    return model.to(DEVICE)


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
    config = FinetuneConfig(component=component, dtype=dtype, optimizer="sgd", lr=1e-3, steps=1_000, warmup_steps=100,
                            batch_size=BATCH, eval_every=1_000, crop_scale=0.08)
    return stepper(Training(model, data, config.complete(), torch.device(DEVICE)))


def make(route, component): return official(component) if route == "official" else ours(component, route)


def seconds(call):
    if DEVICE != "cpu": torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    if DEVICE != "cpu": torch.cuda.synchronize()
    return time.perf_counter() - start


def floor_gflop(component): # of a step
    patches, dim = (SIZE // 16)**2, DIM
    tokens, embedding = patches + 1, patches * 768 * dim # 768 = 3 x 16 x 16 values a patch
    per_token = {"qkv": 3 * dim**2, "proj": dim**2, "fc1": 4 * dim**2, "fc2": 4 * dim**2}
    attention = 2 * tokens**2 * dim
    block = tokens * sum(per_token.values()) + attention
    last = tokens * 2 * dim**2 + 10 * dim**2 + 2 * tokens * dim # keys and values of all tokens, all else of one
    forward = embedding + (BLOCKS - 1) * block + last
    # Gradients of activations, none below the lowest trainable tensor; of trainable matrices, fewer in the last block.
    below = {"ln1": 0, "all": 0, "mha": tokens * per_token["qkv"],
             "fc1": tokens * (per_token["qkv"] + per_token["proj"] + per_token["fc1"]) + attention}[component]
    keys_values = tokens * 2 * dim**2
    attention_weights = per_token["qkv"] + per_token["proj"]
    full = {"ln1": 0, "mha": attention_weights, "fc1": per_token["fc1"], "all": sum(per_token.values())}
    short = {"ln1": 0, "mha": keys_values + 2 * dim**2, "fc1": per_token["fc1"], "all": keys_values + 10 * dim**2}
    matrices = (BLOCKS - 1) * tokens * full[component] + short[component] + (embedding if component == "all" else 0)
    return 2 * BATCH * (forward + forward - embedding - below + matrices) / 1e9


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


def memory_alone(route, component): # bytes, in a process that does nothing else; in a smoke run once
    if OPTIONS.smoke and (route, component) != (ROUTES[0], CHOSEN[0]): return np.nan
    command = [sys.executable, __file__, str(REPEATS), DEVICE, component, route]
    if OPTIONS.smoke: command.append("--smoke")
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


DIM = new_model().embed_dim
if OPTIONS.route: # a child process
    print(peak_memory(check_choice("route", OPTIONS.route, ROUTES), CHOSEN[0]))
    sys.exit()
rows, left, right = [], torch.randn(BATCH * 197, DIM, device=DEVICE), torch.randn(4 * DIM, DIM, device=DEVICE)
product = 2 * BATCH * 197 * DIM * 4 * DIM / 1e9
for component in CHOSEN:
    steps, times = {route: make(route, component) for route in ROUTES}, {route: [] for route in (*ROUTES, "product")}
    for repeat in range(REPEATS + 1):
        for route, call in (*steps.items(), ("product", lambda: [F.linear(left, right) for _ in range(5)])):
            taken = seconds(call)
            if repeat: times[route].append(taken)
    median = {route: float(np.median(values)) for route, values in times.items()}
    floor = floor_gflop(component) / (5 * product / median["product"])
    for route in ROUTES:
        ratios = np.array(times["official"]) / np.array(times[route])
        row = {"component": component, "route": route, "seconds_per_step": median[route]}
        row |= {"times_faster_than_official": np.median(ratios), "ratio_min": ratios.min(), "ratio_max": ratios.max()}
        row["times_the_float32_floor"] = median[route] / floor
        row["peak_memory_mib"] = memory_alone(route, component) / 2**20
        rows.append(row)
        print(row, flush=True)
    del steps
machine = platform.machine() if DEVICE == "cpu" else torch.cuda.get_device_name()
table = pd.DataFrame(rows).assign(images=BATCH, repeats=REPEATS, threads=torch.get_num_threads(), machine=machine)
table = table.assign(instructions=instructions(), torch=torch.__version__)
write_rows(table, OPTIONS, float_format="%.4g")
print(table.drop(columns=["machine", "torch"]).to_string(index=False, float_format="%.3g"))

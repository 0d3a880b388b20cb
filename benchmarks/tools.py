"""A training step of a ViT-B (random weights) by three tools: timm with `requires_grad` set by hand, peft, and this library; on two threads of a CPU, interleaved in one run.

    python benchmarks/tools.py [repeats] [trains tool] [--smoke] [--out FILE]

Writes benchmarks/tools.csv. All take the same 16 images of 224 x 224 pixels, float32, SGD with momentum, gradients clipped at norm 1, the head trained with it, the final norm not. What trains:
  ln1+ln2   by hand: names with norm1 or norm2; peft: LNTuningConfig
  mha       by hand: names with attn; peft has no method for whole matrices beside adapters but `modules_to_save`, which copies them
  lora:8    peft: LoraConfig of rank 8 on qkv and proj; here: `subspace="lora:8"` of mha, which is peft's layers too
`trainable` is what the optimizer is given, counted once by its storage; `told` what the tool itself says. Seconds are medians a step of the repeats, after one that does not count; ratios are to the first tool of the same rows, repeat by repeat. Memory is the peak beyond that before the
steps, of a process that does nothing else; with `trains` and `tool` this alone is printed, in bytes. About 6 minutes.
"""
import itertools
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from _common import command_line, write_rows
from _step import stepper
from peft import LNTuningConfig, LoraConfig, get_peft_model
from torch import nn
from torch.nn import functional as F

from vit_plasticity.config import FinetuneConfig
from vit_plasticity.data import make_dataset
from vit_plasticity.finetune import Training
from vit_plasticity.models import load_model

OPTIONS = command_line(__doc__, repeats=3, trains="", tool="")
MODEL, BLOCKS, SIZE, REPEATS, BATCH, RANK = "vit_base_patch16_224", 12, 224, OPTIONS.repeats, 16, 8
if OPTIONS.smoke: MODEL, BLOCKS, SIZE, REPEATS, BATCH = "vit_tiny_patch16_224", 2, 32, 1, 2
ROUTES = [("ln1+ln2", "timm by hand"), ("ln1+ln2", "peft"), ("ln1+ln2", "vit_plasticity"), ("mha", "timm by hand"), ("mha", "peft"), ("mha", "vit_plasticity"), ("lora:8", "peft"), ("lora:8", "vit_plasticity")]
torch.manual_seed(0)
images, labels = torch.randn(BATCH, 3, SIZE, SIZE), torch.arange(BATCH) % 10


def new_model():
    model = load_model(MODEL, num_classes=10, pretrained=False, img_size=SIZE)
    model.blocks = model.blocks[:BLOCKS]
    return model.train()


def loop(model): # a plain step of what requires a gradient
    trainable = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trainable, lr=1e-3, momentum=0.9)
    def take():
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        nn.utils.clip_grad_norm_(trainable, 1.0)
        optimizer.step()
    return take, trainable


def by_hand(what):
    model, words = new_model(), {"ln1+ln2": ("norm1.", "norm2."), "mha": ("attn.",)}[what]
    for name, parameter in model.named_parameters(): parameter.requires_grad_(name.startswith("head.") or any(word in name for word in words))
    take, trainable = loop(model)
    return take, trainable, None


def by_peft(what):
    blocks = [f"blocks.{i}." for i in range(BLOCKS)]
    config = {"ln1+ln2": lambda: LNTuningConfig(target_modules=[f"{block}{norm}" for block in blocks for norm in ("norm1", "norm2")], modules_to_save=["head"]),
              "mha": lambda: LoraConfig(r=1, target_modules=["patch_embed.proj"], modules_to_save=["head", *(f"{block}attn" for block in blocks)]),
              "lora:8": lambda: LoraConfig(r=RANK, lora_alpha=RANK, target_modules=["qkv", "attn.proj"], modules_to_save=["head"])}[what]()
    model = get_peft_model(new_model(), config)
    if what == "mha": # no adapter: only the copies train
        for name, parameter in model.named_parameters():
            if "lora_" in name: parameter.requires_grad_(False)
    take, trainable = loop(model)
    return take, trainable, model.get_nb_trainable_parameters()[0]


def by_us(what):
    component, subspace = ("mha", what) if what.startswith("lora") else (what, None)
    pixels = {f"{split}_{kind}": array for split in ("train", "val", "test") for kind, array in (("images", np.zeros((BATCH, SIZE, SIZE, 3), np.uint8)), ("labels", labels.numpy()))}
    config = FinetuneConfig(component=component, subspace=subspace, optimizer="sgd", lr=1e-3, steps=1_000,
                            warmup_steps=0, batch_size=BATCH, eval_every=1_000, final_norm=False, augment=False,
                            schedule="constant")
    zeros = make_dataset("zeros", pixels, tuple("0123456789"))
    training = Training(new_model(), zeros, config.complete(), torch.device("cpu"))
    training.batches = lambda: itertools.repeat((images, labels))
    return stepper(training), [*training.trainable.values()], training.counts.component + training.counts.head


def make(what, tool): return {"timm by hand": by_hand, "peft": by_peft, "vit_plasticity": by_us}[tool](what)


def peak_memory(what, tool): # bytes
    take, _, _ = make(what, tool)
    status = lambda key: int(next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(key)).split()[1]) * 1024
    Path("/proc/self/clear_refs").write_text("5") # forget the peak so far
    before = status("VmRSS")
    for _ in range(2): take()
    return status("VmHWM") - before


if OPTIONS.trains: sys.exit(print(peak_memory(OPTIONS.trains, OPTIONS.tool))) # a child process
torch.set_num_threads(1 if OPTIONS.smoke else 2)
made, times, rows = {route: make(*route) for route in ROUTES}, {route: [] for route in ROUTES}, []
for repeat in range(REPEATS + 1):
    for route, (take, _, _) in made.items():
        start = time.perf_counter()
        take()
        if repeat: times[route].append(time.perf_counter() - start)
for what, tool in ROUTES:
    first = next(route for route in ROUTES if route[0] == what)
    ratios = np.array(times[what, tool]) / np.array(times[first])
    _, trainable, told = made[what, tool]
    command = [sys.executable, __file__, str(REPEATS), what, tool]
    if not OPTIONS.smoke: memory = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    # A process of its own takes seconds to start.
    else: memory = peak_memory(what, tool)
    rows.append({"trains": what, "tool": tool, "seconds_per_step": np.median(times[what, tool]), "times_the_first": np.median(ratios), "ratio_min": ratios.min(), "ratio_max": ratios.max(), "peak_memory_mib": memory / 2**20,
                 "trainable": sum({p.data_ptr(): p.numel() for p in trainable}.values()), "told": told})
    print(rows[-1], flush=True)
table = pd.DataFrame(rows).assign(images=BATCH, repeats=REPEATS, threads=torch.get_num_threads(), instructions=torch.backends.cpu.get_cpu_capability(), torch=torch.__version__)
write_rows(table, OPTIONS, float_format="%.4g")
print(table.to_string(index=False, float_format="%.4g"))

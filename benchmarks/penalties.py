"""What a penalty costs a finetuning step, against the same step without, interleaved in one run.

    python benchmarks/penalties.py [model] [repeats] [device] [--smoke] [--out FILE]

Writes benchmarks/penalties.csv. A step is `finetune`'s, of all parameters, with SGD and clipping, on random images of the model's size: 64 in a batch for vit_mini (the default), else 16. Routes:
  none          as it is: the last block for the class token alone, nothing hooked
  plain         a penalty of 0 that reads nothing: the whole last block, which every penalty needs
  others        see `parse_penalty`
`ratio` is the median over repeats of a penalty's seconds over those without, one after the other; each route takes one step before that does not count. Half a minute for vit_mini on one core.
"""
import platform
import time

import numpy as np
import pandas as pd
import torch
from _common import command_line, write_rows

from vit_plasticity.data import make_dataset
from vit_plasticity.finetune import _take_step, _Training
from vit_plasticity.models import image_size, load_model
from vit_plasticity.robustness import parse_penalty

OPTIONS = command_line(__doc__, model="vit_mini", repeats=15, device="cpu")
MODEL, REPEATS, DEVICE = OPTIONS.model, 1 if OPTIONS.smoke else OPTIONS.repeats, OPTIONS.device
BATCH, SIZE = 64 if MODEL == "vit_mini" else 16, image_size(MODEL)
if OPTIONS.smoke: BATCH = 4
PENALTIES = ("jasmin_g1:0.01", "jasmin_g1_over_g10:0.01", "entropy:0.01", "specformer:0.0001", "spectral_fc1:0.0001", "spectral_fc2:0.0001", "jasmin_g1:0.01+specformer:0.0001")
rng = np.random.RandomState(0)
arrays = {f"{split}_{what}": array for split in ("train", "val", "test") for what, array in (("images", rng.randint(0, 256, (4 * BATCH, SIZE, SIZE, 3), np.uint8)), ("labels", np.arange(4 * BATCH) % 10))}
data = make_dataset("random", arrays, tuple("0123456789"))


def whole(model, images): return (logits := model(images)), 0 * logits.sum()


def step(penalty): # a function that takes one
    model = load_model(MODEL, num_classes=10, pretrained=False).train()
    options = dict(component="all", optimizer="sgd", lr=1e-3, steps=10_000, warmup_steps=100, batch_size=BATCH, seed=0, weight_decay=0.0, clip_norm=1.0, eval_every=10_000, final_norm=True, crop_scale=None, layers=None, schedule="cosine",
                   head_lr=None, micro_batch=None, dtype="float32", compile=False, subspace=None)
    training = _Training(model, data, options, torch.device(DEVICE), penalty)
    batches = training.batches()
    return lambda: _take_step(training, *next(batches))


def seconds(call):
    if DEVICE != "cpu": torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    if DEVICE != "cpu": torch.cuda.synchronize()
    return time.perf_counter() - start


steps = {"none": step(None), "plain": step(whole)} | {text: step(parse_penalty(text)) for text in PENALTIES}
times = {route: [] for route in steps}
for repeat in range(REPEATS + 1):
    for route, call in steps.items():
        taken = seconds(call)
        if repeat: times[route].append(taken)
rows = []
for route, values in times.items():
    ratios = np.array(values) / np.array(times["none"])
    rows.append({"penalty": route, "seconds_per_step": np.median(values), "ratio": np.median(ratios), "ratio_q25": np.quantile(ratios, 0.25), "ratio_q75": np.quantile(ratios, 0.75)})
table = pd.DataFrame(rows).assign(model=MODEL, images=BATCH, repeats=REPEATS, threads=torch.get_num_threads(), machine=platform.machine() if DEVICE == "cpu" else torch.cuda.get_device_name(), instructions=torch.backends.cpu.get_cpu_capability(), torch=torch.__version__)
write_rows(table, OPTIONS, float_format="%.4g")
print(table.drop(columns=["machine", "torch"]).to_string(index=False, float_format="%.3g"))

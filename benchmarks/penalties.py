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
from _step import stepper
from torch.nn import functional as F

from vit_plasticity.config import FinetuneConfig
from vit_plasticity.data import make_dataset
from vit_plasticity.finetune import Training, cross_entropy
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


def whole(training, images, labels): # the plain model, with a penalty of 0
    logits = training.model(images)
    return {"loss": F.cross_entropy(logits, labels), "penalty": 0 * logits.sum()}


def step(loss_fn): # a function that takes one
    model = load_model(MODEL, num_classes=10, pretrained=False).train()
    config = FinetuneConfig(component="all", optimizer="sgd", lr=1e-3, steps=10_000, warmup_steps=100, batch_size=BATCH,
                            eval_every=10_000, augment=False)
    return stepper(Training(model, data, config.complete(), torch.device(DEVICE), loss_fn))


def seconds(call):
    if DEVICE != "cpu": torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    if DEVICE != "cpu": torch.cuda.synchronize()
    return time.perf_counter() - start


steps = {"none": step(cross_entropy), "plain": step(whole)} | {text: step(parse_penalty(text)) for text in PENALTIES}
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

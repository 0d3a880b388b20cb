"""Time to a result: plasticity of a ViT-B to ±1 % against the 12,800 pairs of the official protocol, and of a ViT-H/14 on 64 pairs; random weights, pictures of mini/fashion and mini/digits, two threads.

    python benchmarks/plasticity_time.py

Writes benchmarks/plasticity_time.csv. `official` is `official_rates` on 8 pairs; its time for 12,800 pairs is extrapolated. The other rows are whole calls of `sample_rates`, with all that it sets up. `peak_gib` is the largest memory of the whole process up to then. About 6 minutes.
"""
import platform
import resource
import time
from pathlib import Path

import pandas as pd
import torch

from vit_plasticity.data import load_dataset, preprocess
from vit_plasticity.models import input_config, load_model
from vit_plasticity.plasticity import official_rates, relative_half_width, sample_rates

torch.set_num_threads(2)
source, target, rows = load_dataset("mini/fashion").test, load_dataset("mini/digits").test, []


def timed(what, call):
    start = time.perf_counter()
    rates = call()
    seconds, pairs = time.perf_counter() - start, rates.pair.nunique()
    rows.append({"what": what, "pairs": pairs, "seconds": seconds, "half_width": relative_half_width(rates), "peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20})
    print(rows[-1], flush=True)
    return rows[-1]


model = load_model("vit_base_patch16_224", pretrained=False)
images = [preprocess(split.images[:8], input_config(model)) for split in (source, target)]
for inputs in ("embedding", "in_situ"):
    timed(f"ViT-B, {inputs}, precision=0.01", lambda: sample_rates(model, source, target, 1000, inputs=inputs, precision=0.01, progress=False))
official = timed("ViT-B, official", lambda: official_rates(model, *images))
for row in rows[:2]: row["times_faster_than_12800_official_pairs"] = official["seconds"] / 8 * 12_800 / row["seconds"]
del model
model = load_model("vit_huge_patch14_224.orig_in21k", pretrained=False)
timed("ViT-H/14, embedding", lambda: sample_rates(model, source, target, 64, progress=False))
table = pd.DataFrame(rows).assign(seed=0, threads=2, machine=platform.machine(), instructions=torch.backends.cpu.get_cpu_capability(), torch=torch.__version__)
table.to_csv(Path(__file__).with_suffix(".csv"), index=False, float_format="%.4g")
print(table.to_string(index=False, float_format="%.3g"))

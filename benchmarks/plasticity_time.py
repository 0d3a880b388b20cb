"""Time to a result: plasticity of a ViT-B to ±1 % against the 12,800 pairs of the official protocol, and of a ViT-H/14 on 64 pairs; random weights, two threads.

    python benchmarks/plasticity_time.py [--smoke] [--out FILE]

Writes benchmarks/plasticity_time.csv. How many pairs ±1 % takes depends on how much pairs differ. `noise`: images of independent Gaussian pixels, which hardly do; `photos`: random crops of scikit-learn's two sample photographs, the source from one and the target
from the other, which do, and attention's rate most (with random weights more than with trained ones); there 256 pairs are measured and `pairs_for_1_percent` is extrapolated from the half width. `official` is `official_rates` on 8 pairs, its time for 12,800 extrapolated. The
other rows are whole calls of `sample_rates`, with all that it sets up. `peak_gib` is the largest memory of the process up to then. About 6 minutes.
"""
import platform
import resource
import time

import pandas as pd
import torch
from _common import command_line, write_rows
from sklearn.datasets import load_sample_images

from vit_plasticity.data import preprocess
from vit_plasticity.models import input_config, load_model
from vit_plasticity.plasticity import official_rates, relative_half_width, sample_rates

options = command_line(__doc__)
BASE, HUGE, SIZE, CROPS = "vit_base_patch16_224", "vit_huge_patch14_224.orig_in21k", 224, 256
if options.smoke: BASE, HUGE, SIZE, CROPS = "vit_tiny_patch16_224", "vit_tiny_patch16_224", 32, 32
torch.set_num_threads(1 if options.smoke else 2)
rows, photos = [], [torch.from_numpy(photo.copy()).permute(2, 0, 1) for photo in load_sample_images().images]
noise = torch.randn(2, 64, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(0))


def timed(what, call):
    start = time.perf_counter()
    rates = call()
    seconds, pairs, width = time.perf_counter() - start, rates.pair.nunique(), relative_half_width(rates)
    rows.append({"what": what, "pairs": pairs, "seconds": seconds, "half_width": width, "pairs_for_1_percent": max(min(pairs, 32), pairs * (width / 0.01)**2),
                 "peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20})
    print(rows[-1], flush=True)
    return rows[-1]


model = load_model(BASE, pretrained=False, img_size=SIZE)
crops = [preprocess(photo.expand(CROPS, -1, -1, -1), input_config(model), generator=torch.Generator().manual_seed(seed)) for seed, photo in enumerate(photos)]
for inputs in ("embedding", "in_situ"):
    timed(f"ViT-B, noise, {inputs}, precision=0.01", lambda: sample_rates(model, *noise, 64, inputs=inputs, precision=0.01, progress=False))
timed("ViT-B, photos, embedding", lambda: sample_rates(model, *crops, CROPS, progress=False))
official = timed("ViT-B, noise, official", lambda: official_rates(model, *noise[:, :8]))["seconds"] / 8 * 12_800
rows[3]["pairs_for_1_percent"] = None
for row in rows[:3]: row["times_faster_than_12800_official_pairs"] = official / (row["seconds"] * max(1, row["pairs_for_1_percent"] / row["pairs"]))
del model
model = load_model(HUGE, pretrained=False, img_size=SIZE)
timed("ViT-H/14, noise, embedding", lambda: sample_rates(model, *noise, 64, progress=False))
table = pd.DataFrame(rows).assign(seed=0, threads=torch.get_num_threads(), machine=platform.machine(), instructions=torch.backends.cpu.get_cpu_capability(), torch=torch.__version__)
write_rows(table, options, float_format="%.4g")
print(table.to_string(index=False, float_format="%.3g"))

"""Norms of all heads of a ViT-B (random weights), on one thread, interleaved in one run; and all its bounds without data, on two.

    python benchmarks/attention_norms.py [repeats] [--smoke] [--out FILE]

Writes benchmarks/attention_norms.csv. A ratio is the median time of the full SVDs, in float64 and in the same type, over that of the k x k route; an error is relative to the float64 SVD.
"""
import platform
import time

import pandas as pd
import torch
from _common import command_line, write_rows

from vit_plasticity.bounds import _product_norm, attention_heads, component_bounds
from vit_plasticity.models import load_model

torch.set_num_threads(1)
options = command_line(__doc__, repeats=5)
repeats = 1 if options.smoke else options.repeats
model = load_model("vit_tiny_patch16_224" if options.smoke else "vit_base_patch16_224", pretrained=False)
if options.smoke: model.blocks = model.blocks[:2]
with torch.no_grad():
    for block in model.blocks: block.attn.qkv.weight.normal_(generator=torch.Generator().manual_seed(0)) # rows of like norms, as at initialisation
heads = [attention_heads(block.attn) for block in model.blocks]
query, key = (torch.stack([getattr(h, name) for h in heads]) for name in ("query", "key")) # (layers, heads, k, dim), float64
deficient = query.clone()
deficient[:, :, -1] = deficient[:, :, 0] # dependent rows: the fallback


def full_svd(query, key): return torch.stack([torch.linalg.svdvals(q.T @ k)[0] for q, k in zip(query.flatten(0, 1), key.flatten(0, 1))])


ROUTES = {"full SVD, float64": lambda: full_svd(query, key), "full SVD, float32": lambda: full_svd(query.float(), key.float()), "k x k, float64": lambda: _product_norm(query, key).flatten(),
          "k x k, float32": lambda: _product_norm(query.float(), key.float()).flatten(), "k x k, float64, rank-deficient": lambda: _product_norm(deficient, key).flatten()}
times, values = {name: [] for name in ROUTES}, {}
for repeat in range(repeats):
    for name, route in ROUTES.items():
        start = time.perf_counter()
        values[name] = route().double()
        times[name].append(time.perf_counter() - start)
truth, median = values["full SVD, float64"], {name: pd.Series(seconds).median() for name, seconds in times.items()}
truths = dict.fromkeys(ROUTES, truth) | {"k x k, float64, rank-deficient": full_svd(deficient, key)}
rows = pd.DataFrame([{"route": name, "seconds": median[name], "times_faster_than_float64_svd": median["full SVD, float64"] / median[name],
                      "times_faster_than_svd_of_its_type": median[f"full SVD, {'float32' if 'float32' in name else 'float64'}"] / median[name],
                      "largest_relative_error": ((values[name] - truths[name]) / truths[name]).abs().max().item()} for name in ROUTES])
start = time.perf_counter()
torch.set_num_threads(2)
bounds = component_bounds(model, radius=19.4)
route = f"component_bounds, {len(bounds)} bounds of {len(heads)} blocks, 2 threads"
rows = pd.concat([rows, pd.DataFrame([{"route": route, "seconds": time.perf_counter() - start}])])
rows = rows.assign(threads=[1] * len(ROUTES) + [2], repeats=repeats, machine=platform.machine(), torch=torch.__version__)
write_rows(rows, options, float_format="%.4g")
print(rows.to_string(index=False, float_format="%.3g"))

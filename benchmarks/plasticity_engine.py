"""The plasticity engine against the official protocol on a ViT-B (random weights), embedding protocol, one and two threads, interleaved in one run.

    python benchmarks/plasticity_engine.py [repeats]

Writes benchmarks/plasticity_engine.csv. Routes, all on the same 8 pairs (88 for eleven target sets):
  official            `official_rates` on the 8 pairs at once (the official code takes 64), attention unfused as there: every component of every block on both images, outputs kept
  official, fused     the same with fused attention
  engine              what `sample_rates` does, in its batches of 4; the float64 matrices W^T W, made once a model, are timed apart
  bfloat16            (where the processor has it) the engine with attention in bfloat16, with its float32 check of the nearest pair (once a run, here once in 64 pairs)
  eleven targets      the engine with one source set and eleven target sets, per pair
  float32 product     a plain matrix product of the size of the query, key and value map: its speed times 23.1 GFLOP, the work that one pair needs, is the floor
Seconds are medians a pair. Memory is the peak beyond that before the call, of a process that does nothing else; of the engine with W^T W included. Errors are relative to the official protocol in float64.
About 15 minutes.
"""
import copy
import platform
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import torch
from torch.nn import functional as F

from vit_plasticity.models import load_model, model_maps
from vit_plasticity.plasticity import _Bfloat16Guard, _grams, _measure, _Options, official_rates

PAIRS, BATCH, TARGETS, GFLOP = 8, 4, 11, 23.1
generator = torch.Generator().manual_seed(0)
model = load_model("vit_base_patch16_224", pretrained=False).requires_grad_(False)
unfused = copy.copy(model)
unfused._modules = dict(model._modules, blocks=torch.nn.Sequential(*(copy.copy(block) for block in model.blocks)))
for block in unfused.blocks:
    block._modules = dict(block._modules, attn=copy.copy(block.attn))
    block.attn.fused_attn = False
x, *ys = torch.randn(1 + TARGETS, PAIRS, 3, 224, 224, generator=generator)
maps, tokens, weight = model_maps(model), torch.randn(1576, 768), torch.randn(2304, 768)


@torch.inference_mode()
def engine(grams, targets, dtype=torch.float32, check=1.0):
    options = _Options(grams=grams, dtype=dtype)
    batches = [(x[i:i + BATCH], [y[i:i + BATCH] for y in targets]) for i in range(0, PAIRS, BATCH)]
    values = [_measure(maps, [batch], options)[0] for batch in batches]
    if dtype == torch.bfloat16:
        start = time.perf_counter()
        assert _Bfloat16Guard().passes(maps, batches[:1], options, values[:1])
        time_of_check.append((time.perf_counter() - start) * check)
    return values


ROUTES = { # name -> (call, pairs)
    "official": (lambda grams: official_rates(unfused, x, ys[0]), PAIRS), "official, fused": (lambda grams: official_rates(model, x, ys[0]), PAIRS),
    "engine": (lambda grams: engine(grams, ys[:1]), PAIRS), "bfloat16": (lambda grams: engine(grams, ys[:1], torch.bfloat16), PAIRS), "eleven targets": (lambda grams: engine(grams, ys), PAIRS * TARGETS),
    "float32 product": (lambda grams: [F.linear(tokens, weight) for _ in range(50)], 50 * 2 * 1576 * 768 * 2304 / 1e9 / GFLOP), "W^T W, once a model": (lambda grams: _grams(maps, 768), 1)}

BFLOAT16 = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
if not BFLOAT16: del ROUTES["bfloat16"] # in software it is many times slower than float32
COMPARED = [route for route in ROUTES if route not in ("float32 product", "W^T W, once a model")]


def peak_memory(route: str) -> int: # bytes beyond what is resident before
    Path("/proc/self/clear_refs").write_text("5") # forget the peak so far
    status = lambda key: int(next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(key)).split()[1]) * 1024
    before = status("VmRSS")
    with torch.inference_mode(): grams = _grams(maps, 768) if route in ("engine", "bfloat16", "eleven targets") else None
    ROUTES[route][0](grams)
    return status("VmHWM") - before


time_of_check = []
if len(sys.argv) > 2: # a child process
    torch.set_num_threads(1)
    sys.exit(print(peak_memory(sys.argv[2])))
repeats, rows = int(sys.argv[1]) if len(sys.argv) > 1 else 5, []
exact = official_rates(copy.deepcopy(model).double(), x.double(), ys[0].double()).rate
with torch.inference_mode(): grams = _grams(maps, 768)
for threads in (1, 2):
    torch.set_num_threads(threads)
    seconds = {route: [] for route in ROUTES}
    for repeat in range(repeats + 1): # the first round warms up
        for route, (call, pairs) in ROUTES.items():
            time_of_check.clear()
            start = time.perf_counter()
            with torch.inference_mode(): call(grams)
            taken = time.perf_counter() - start - sum(time_of_check) * (1 - PAIRS / 64)
            if repeat: seconds[route].append(taken / pairs)
    median = {route: pd.Series(values).median() for route, values in seconds.items()}
    rows += [{"threads": threads, "route": route, "seconds_per_pair": median[route], "times_faster_than_official": median["official"] / median[route] if route in COMPARED else None,
              "times_the_floor": median[route] / median["float32 product"] if route in COMPARED[:-1] else None} for route in ROUTES]
table = pd.DataFrame(rows)
error = lambda values: max(abs(torch.from_numpy(batch[0][0]).flatten() / torch.from_numpy(part) - 1).max().item() for batch, part in zip(values, exact_parts))
exact_parts = exact.to_numpy().reshape(12, 5, PAIRS).transpose(2, 0, 1).reshape(PAIRS // BATCH, -1)
plain = official_rates(model, x, ys[0]).rate.to_numpy().reshape(12, 5, PAIRS).transpose(2, 0, 1).reshape(PAIRS // BATCH, -1)
errors = {"official, fused": abs(plain / exact_parts - 1).max(), "engine": error(engine(grams, ys[:1])), **({"bfloat16": error(engine(grams, ys[:1], torch.bfloat16))} if BFLOAT16 else {})}
memory = {route: int(subprocess.run([sys.executable, __file__, "0", route], capture_output=True, text=True, check=True).stdout) / 2**20 for route in COMPARED}
table = table.assign(largest_relative_error=table.route.map(errors), extra_memory_mib=table.route.map(memory), repeats=repeats, machine=platform.machine(), instructions=torch.backends.cpu.get_cpu_capability(),
                     bfloat16_in_hardware=BFLOAT16, torch=torch.__version__)
table.to_csv(Path(__file__).with_suffix(".csv"), index=False, float_format="%.4g")
print(table.drop(columns=["machine", "torch"]).to_string(index=False, float_format="%.3g"))

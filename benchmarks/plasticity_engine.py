"""The plasticity engine against the official protocol: a ViT-B (random weights), embedding protocol, interleaved.

    python benchmarks/plasticity_engine.py [repeats] [official_code] [--smoke] [--out FILE]

Writes benchmarks/plasticity_engine.csv: a row a route and number of threads, 1 and 2. All routes take the same 8 pairs:
  official code       (where `official_code` is a checkout of github.com/ambroiseodt/vit-plasticity; needs einops) what
                      it calls itself, with these weights: the decomposition of both sides, then the distances
  official            `official_rates`, which stands for it: attention unfused as there, all outputs kept, on the 8
                      pairs at once (the official code takes 64)
  official, fused     the same with fused attention
  engine              what `sample_rates` does, in its batches of 4; the float64 matrices W^T W are apart
  bfloat16            (where the processor has it) the engine with attention in bfloat16, and its check of the nearest
                      pair in float32 (once a run, here once in 64 pairs)
  eleven targets      the engine with one set of source images and eleven sets of target images, per pair
  float32 product     a plain matrix product of the size of the query, key and value map: its speed times the work that
                      one pair needs is the floor
  W^T W               once a model

Seconds are medians a pair over the repeats, after a round that does not count, with their range; a route's place in a
round changes from one to the next. `times_faster_than_official` is the median of the ratios within the rounds. Memory
is the peak beyond that before the call, of a process that does nothing else; of the engine with W^T W included. Errors
are the largest of all rates, relative to the official protocol in float64. Some 9 minutes with 5 repeats on two quiet
cores with AVX-512, 15 with AVX2.
"""
import copy
import platform
import subprocess
import importlib
import sys
import time
from pathlib import Path
from types import ModuleType

import numpy as np
import pandas as pd
import torch
from _common import command_line, write_rows
from _processor import instructions
from torch.nn import functional as F

from vit_plasticity.models import embed, load_model, model_maps
from vit_plasticity.plasticity import _Bfloat16Guard, _grams, _measure, _Options, official_rates

OPTIONS = command_line(__doc__, repeats=5, official_code="", memory_of="")
MODEL, SIZE, PAIRS, BATCH, TARGETS = "vit_base_patch16_224", 224, 8, 4, 11
# The official code has no smaller model.
if OPTIONS.smoke and not OPTIONS.official_code: MODEL = "vit_tiny_patch16_224"
if OPTIONS.smoke: SIZE, PAIRS, BATCH, TARGETS = 32, 2, 1, 2
BFLOAT16 = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
FLAGS = ("avx2", "avx512f", "avx512_bf16", "amx_tile", "amx_bf16", "asimd", "sve", "bf16")
# Routes that measure no pairs.
UNPAIRED = ("float32 product", "W^T W, once a model")
# Pairs of images between two checks of the engine's bfloat16.
CHECKED = 64

generator = torch.Generator().manual_seed(0)
model = load_model(MODEL, pretrained=False, img_size=SIZE).requires_grad_(False)
maps = model_maps(model)
x, *ys = torch.randn(1 + TARGETS, PAIRS, 3, SIZE, SIZE, generator=generator)
N, DIM = embed(model, x[:1]).shape[1:]
# What takes no part in a round's time: seconds of checks that a longer run makes less often.
uncounted = []


def processor() -> str: # its name, and those of FLAGS that it has
    path = Path("/proc/cpuinfo")
    if not path.is_file(): return platform.processor() or platform.machine()
    pairs = (line.partition(":") for line in path.read_text().splitlines())
    told = {key.strip().lower(): value.strip() for key, _, value in pairs}
    present = {*told.get("flags", told.get("features", "")).split()}
    return " ".join([told.get("model name", platform.machine()), *(flag for flag in FLAGS if flag in present)])


def work() -> float: # floating-point operations that one pair needs
    one_map = 2 * N * DIM**2
    embedding = 2 * 2 * (N - 1) * model.patch_embed.proj.weight.numel()
    a_block = 2 * 3 * one_map + 2 * 4 * N**2 * DIM + one_map
    return embedding + len(model.blocks) * a_block + one_map


def unfused() -> torch.nn.Module: # the model with attention in three steps
    plain = copy.deepcopy(model)
    for block in plain.blocks: block.attn.fused_attn = False
    return plain


@torch.inference_mode()
def engine(grams: torch.Tensor, targets: list, dtype: torch.dtype = torch.float32) -> list: # values of each batch
    options = _Options(grams=grams, dtype=dtype)
    batches = [(x[i:i + BATCH], [y[i:i + BATCH] for y in targets]) for i in range(0, PAIRS, BATCH)]
    values = [_measure(maps, [batch], options)[0] for batch in batches]
    if dtype == torch.bfloat16:
        start = time.perf_counter()
        assert _Bfloat16Guard().passes(maps, batches[:1], options, values[:1])
        uncounted.append((time.perf_counter() - start) * (1 - PAIRS / CHECKED))
    return values


@torch.inference_mode()
def products(repeats: int) -> None: # as large as the query, key and value map of all pairs
    for _ in range(repeats): F.linear(tokens, weight)


def load_official_code(folder: str) -> torch.nn.Module: # with the weights of `model`
    sys.path.insert(0, str(Path(folder)/"src"))
    # its GPT-2, which is imported with its ViT, wants this package
    sys.modules.setdefault("tiktoken", ModuleType("tiktoken"))
    vit = importlib.import_module("vitef.models.vit")
    theirs = vit.ViT(vit.ViTConfig(model_name="base", pretrained=False, in21k=True, image_dim=(3, SIZE, SIZE))).eval().model
    pairs = [(theirs.embedding.patching.patching[0], model.patch_embed.proj)]
    for there, here in zip(theirs.blocks, model.blocks):
        pairs += [(there.attn_norm, here.norm1), (there.ffn_norm, here.norm2)]
        pairs += [(there.attn.qkv_mat, here.attn.qkv), (there.attn.output, here.attn.proj)]
        pairs += [(there.ffn.fc1, here.mlp.fc1), (there.ffn.fc2, here.mlp.fc2)]
        there.attn_norm.eps = there.ffn_norm.eps = here.norm1.eps
    for there, here in pairs: there.load_state_dict(here.state_dict())
    with torch.no_grad():
        theirs.embedding.cls_token.copy_(model.cls_token)
        theirs.embedding.pos_emb.copy_(model.pos_embed)
    return theirs


def run_official_code(theirs: torch.nn.Module) -> dict: # name of an output -> distances of the pairs
    kept = [theirs.get_decomposition(images) for images in (x, ys[0])]
    found = {}
    for name in list(kept[0]):
        first, second = (outputs.pop(name) for outputs in kept)
        found[name] = ((first - second)**2).flatten(1).sum(1).sqrt()
    return found


def official_code_rates(theirs: torch.nn.Module) -> np.ndarray: # as `rates_of`
    found = run_official_code(theirs)
    names = ("attn", "ffn_fc1", "ffn_fc2", "ffn_norm", "attn_norm") # in the order of COMPONENTS
    outputs = [f"block{layer}_{name}" for layer in range(len(model.blocks)) for name in names]
    rates = [found[output] / found["embedding"] for output in outputs]
    return torch.stack(rates, 1).double().numpy()


def rates_of(table: pd.DataFrame) -> np.ndarray: # (pairs, layers * components)
    return table.rate.to_numpy().reshape(PAIRS, -1)


def values_of(batches: list) -> np.ndarray: # as `rates_of`: of the first target of each batch
    return np.concatenate([batch[0][0].reshape(BATCH, -1) for batch in batches])


def routes() -> dict: # name -> (call, pairs that it measures)
    plain, repeats = unfused(), 2 if OPTIONS.smoke else 50
    found = {} if theirs is None else {"official code": (lambda: run_official_code(theirs), PAIRS)}
    found |= {"official": (lambda: official_rates(plain, x, ys[0]), PAIRS),
              "official, fused": (lambda: official_rates(model, x, ys[0]), PAIRS),
              "engine": (lambda: engine(grams, ys[:1]), PAIRS)}
    if BFLOAT16: found["bfloat16"] = lambda: engine(grams, ys[:1], torch.bfloat16), PAIRS
    found["eleven targets"] = lambda: engine(grams, ys), PAIRS * TARGETS
    found["float32 product"] = lambda: products(repeats), repeats * 2 * PAIRS * N * 3 * DIM**2 / work()
    found["W^T W, once a model"] = lambda: make_grams(), 1
    return found


@torch.inference_mode()
def make_grams() -> torch.Tensor: return _grams(maps, DIM)


def peak_memory(route: str) -> int: # bytes beyond what is resident before
    def status(key):
        lines = Path("/proc/self/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith(key)).split()[1]) * 1024
    global grams
    call = ROUTES[route][0]
    # forget the peak so far
    Path("/proc/self/clear_refs").write_text("5")
    before = status("VmRSS")
    if route in ("engine", "bfloat16", "eleven targets"): grams = make_grams()
    call()
    return status("VmHWM") - before


def measure(threads: int, repeats: int) -> pd.DataFrame: # route, seconds and their range, ratios
    torch.set_num_threads(threads)
    names, rounds = list(ROUTES), []
    for number in range(repeats + 1):
        # each round begins with another route; the first round warms up
        first, taken = number % len(names), {}
        for name in names[first:] + names[:first]:
            call, pairs = ROUTES[name]
            uncounted.clear()
            start = time.perf_counter()
            call()
            taken[name] = (time.perf_counter() - start - sum(uncounted)) / pairs
        if number: rounds.append(taken)
    seconds = pd.DataFrame(rounds)[names]
    compared = [name for name in names if name not in UNPAIRED]
    ratio = seconds.rdiv(seconds.official, axis=0)[compared].median()
    single = [name for name in compared if name != "eleven targets"]
    floor = seconds.div(seconds["float32 product"], axis=0)[single].median()
    table = pd.DataFrame({"threads": threads, "seconds_per_pair": seconds.median(), "seconds_low": seconds.min(),
                          "seconds_high": seconds.max(), "times_faster_than_official": ratio, "times_the_floor": floor})
    return table.loc[names].rename_axis("route").reset_index()


def largest_errors() -> dict: # route -> largest relative error of a rate
    sides = [side.double() for side in (x, ys[0])]
    exact = rates_of(official_rates(copy.deepcopy(model).double(), *sides))
    found = {"official": rates_of(official_rates(unfused(), x, ys[0])),
             "official, fused": rates_of(official_rates(model, x, ys[0])), "engine": values_of(engine(grams, ys[:1]))}
    if BFLOAT16: found["bfloat16"] = values_of(engine(grams, ys[:1], torch.bfloat16))
    if theirs is not None: found["official code"] = official_code_rates(theirs)
    return {route: abs(rates / exact - 1).max() for route, rates in found.items()}


def extra_memory(route: str) -> float: # MiB, of a process of its own
    command = [sys.executable, __file__, "0", OPTIONS.official_code, route] + ["--smoke"] * OPTIONS.smoke
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout) / 2**20


tokens, weight = torch.randn(PAIRS * N, DIM), torch.randn(3 * DIM, DIM)
theirs = load_official_code(OPTIONS.official_code) if OPTIONS.official_code else None
grams, ROUTES = None, routes()
if OPTIONS.memory_of:
    torch.set_num_threads(1)
    print(peak_memory(OPTIONS.memory_of))
    sys.exit()
grams = make_grams()
repeats = 1 if OPTIONS.smoke else OPTIONS.repeats
table = pd.concat([measure(threads, repeats) for threads in (1, 2)], ignore_index=True)
alone = [name for name in ROUTES if name not in UNPAIRED]
# a process of its own takes seconds to start
if OPTIONS.smoke: alone = ["engine"]
table["largest_relative_error"] = table.route.map(largest_errors())
table["extra_memory_mib"] = table.route.map({name: extra_memory(name) for name in alone})
table = table.assign(repeats=repeats, pairs=PAIRS, model=MODEL, img_size=SIZE, processor=processor(),
                     instructions=instructions(), bfloat16_in_hardware=BFLOAT16, machine=platform.machine(),
                     torch=torch.__version__)
write_rows(table, OPTIONS, float_format="%.4g")
print(table.drop(columns=["machine", "torch", "processor", "model"]).to_string(index=False, float_format="%.3g"))

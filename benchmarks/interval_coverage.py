"""How often the intervals of `summarize_rates` and `compare_components` hold the truth, on simulated rates of five components; seeded.

    python benchmarks/interval_coverage.py [repetitions] [--smoke] [--out FILE]

3,000 repetitions take about 4 minutes on one thread. Writes benchmarks/interval_coverage.csv. Laws of the rates h[i, j] of source image i and target image j:
  lognormal   a_i b_j e_ij, components correlated, log-deviations 0.15 to 0.35 a side: skewed to the right, and spread about 3 times as wide as the rates of vit_mini; the truth is known
  heavy       the same with log-deviations to 0.6, heavy tails: where the intervals fail
  gaussian    tokens drawn from two Gaussian laws, scaled by image; rates of two LayerNorms, attention and two linear maps; the truth is the mean of all repetitions
  mini        rates of vit_mini, means over layers, of 500 images of mini/fashion by 500 of mini/digits, drawn with replacement, so that the table's mean is the truth

Columns: `images` a side; shares of repetitions in which an interval of 95 % held (`coverage`: mean over components, `lowest`: of the worst one, `difference`: mean over the ten differences, `family`: all ten at once), with Monte Carlo standard
errors. Adaptive: start at 32 images a side, test after every 32 more matched pairs or every further batch of 8, stop when `relative_half_width` is at most `precision`, chosen so that it takes about 48 or 128 matched pairs; `images` is then the mean at the stop, `smallest` and `largest` its range.
"""
import platform
import time
from itertools import combinations

import numpy as np
import pandas as pd
import scipy
import torch
from _common import command_line, write_rows
from scipy import stats
from torch.nn import functional as F

from vit_plasticity.core import COMPONENTS
from vit_plasticity.data import load_dataset, preprocess
from vit_plasticity.models import blocks, embed, input_config, load_model
from vit_plasticity.plasticity import (
    _estimate,
    _quantile,
    _relative_half_width,
    compare_components,
    summarize_rates,
)

torch.set_num_threads(1)
options = command_line(__doc__, repetitions=3_000)
repetitions, DRAWN = (5, 8_000) if options.smoke else (options.repetitions, 20_000)
K, SIZES, BATCH, PAIRS = len(COMPONENTS), (8, 16, 32, 64, 128), 8, list(combinations(range(5), 2))
BOTH = np.concatenate([np.eye(K), *(np.eye(K)[:, [a]] - np.eye(K)[:, [b]] for a, b in PAIRS)], 1) # (K, K + 10): rates -> rates and their differences


def distance(a, b): # (groups, n, features) each -> (groups, n, n)
    return np.sqrt(np.maximum((a**2).sum(-1)[..., None] + (b**2).sum(-1)[:, None] - 2 * a @ b.swapaxes(1, 2), 1e-12))


class Lognormal: # draw(rng, groups, n): rates of all pairs within each group, (groups, n, n, K)
    def __init__(self, *sigma, noise=0.15): self.sigma, self.noise, self.truth = np.array(sigma), noise, np.ones(K)
    def image(self, rng, groups, n):
        z = 0.7 * rng.standard_normal((groups, n, 1)) + 0.51**0.5 * rng.standard_normal((groups, n, K))
        return np.exp(self.sigma * z - self.sigma**2 / 2)
    def draw(self, rng, groups, n):
        noise = np.exp(self.noise * rng.standard_normal((groups, n, n, K), dtype=np.float32) - self.noise**2 / 2)
        return self.image(rng, groups, n)[:, :, None] * self.image(rng, groups, n)[:, None] * noise


class Gaussian:
    truth = None
    def __init__(self, tokens=6, dim=12):
        rng = np.random.default_rng(1)
        self.shape, self.shift, self.scale = (tokens, dim), rng.standard_normal((2, tokens, dim)), np.exp(0.3 * rng.standard_normal((2, dim)))
        self.gamma, self.linear, self.query, self.value = np.exp(0.3 * rng.standard_normal((2, dim))), rng.standard_normal((2, dim, dim)), rng.standard_normal((dim, dim)) / dim, rng.standard_normal((dim, dim))
    def maps(self, x): # the input, then every component's output, flattened over tokens
        normed = x - x.mean(-1, keepdims=True)
        normed /= np.sqrt((normed**2).mean(-1, keepdims=True) + 1e-3)
        weights = np.exp(np.clip(x @ self.query @ x.swapaxes(-1, -2) / 4, -30, 30))
        attention = weights / weights.sum(-1, keepdims=True) @ (x @ self.value)
        return [f.reshape(*f.shape[:2], -1) for f in (x, attention, *(x @ w for w in self.linear), *(normed * g for g in self.gamma))]
    def tokens(self, rng, side, groups, n):
        size = np.exp(0.25 * rng.standard_normal((groups, n, 1, 1)))
        return size * (self.shift[side] + self.scale[side] * rng.standard_normal((groups, n, *self.shape)))
    def draw(self, rng, groups, n):
        inputs, *outputs = (distance(a, b) for a, b in zip(*(self.maps(self.tokens(rng, side, groups, n)) for side in (0, 1))))
        return np.stack([output / inputs for output in outputs], -1)


class Table: # a finite population: all rates of vit_mini, means over layers
    @torch.inference_mode()
    def __init__(self, images=500):
        model = load_model("vit_mini")
        x, y = (embed(model, preprocess(load_dataset(name).test.images[:images], input_config(model), "cpu")) for name in ("mini/fashion", "mini/digits"))
        def maps(block, component, tokens):
            f = getattr(block, component)
            return (F.linear(tokens, f.weight[:, :tokens.shape[-1]]) if component in ("fc1", "fc2") else f(tokens)).flatten(1)[None].double().numpy()
        inputs = distance(*(t.flatten(1)[None].double().numpy() for t in (x, y)))[0]
        self.table = np.stack([np.mean([distance(*(maps(block, c, t) for t in (x, y)))[0] / inputs for block in blocks(model)], 0) for c in COMPONENTS], -1)
        self.truth = self.table.mean((0, 1))
    def draw(self, rng, groups, n):
        i, j = rng.integers(len(self.table), size=(2, groups, n))
        return self.table[i[:, :, None], j[:, None]]


def units(groups, n): # source and target of all pairs within each group
    group, i, j = np.indices((groups, n, n)).reshape(3, -1)
    return group * n + i, group * n + j


def check(values, source, target): # what is measured here is what the public functions say
    frame = pd.DataFrame(values[:, :K], columns=COMPONENTS).assign(source=source, target=target, layer=0).melt(["source", "target", "layer"], var_name="component", value_name="rate")
    _, error, n = _estimate(values, source, target)
    summary, compared = summarize_rates(frame), compare_components(frame)
    np.testing.assert_allclose(summary.ci_high - summary.plasticity, _quantile(0.95, n) * error[:K], rtol=1e-9)
    for column, intervals in (("ci_high", 1), ("simultaneous_high", len(PAIRS))):
        np.testing.assert_allclose(np.sort(compared[column] - compared.difference), np.sort(_quantile(0.95, n, intervals) * error[K:]), rtol=1e-9)


def row(design, images, means, errors, degrees, truth, **more): # means and errors (repetitions, K + 10)
    off = np.abs(means - truth) / errors
    degrees = np.broadcast_to(degrees, len(off))[:, None]
    inside, family = off <= stats.t.isf(0.025, degrees), (off[:, K:] <= stats.t.isf(0.025 / len(PAIRS), degrees)).all(1)
    columns = {"coverage": inside[:, :K].mean(1), "lowest": inside[:, inside[:, :K].mean(0).argmin()], "difference": inside[:, K:].mean(1), "family": family}
    shares = {name + end: value for name, hit in columns.items() for end, value in (("", hit.mean()), ("_error", hit.std() / len(hit)**0.5))}
    return {"design": design, "images": images, **shares, **more}


def fixed(law, rng): # designs of fixed size, all cut from one 128 x 128 table a repetition: its diagonal, its first n x n, its diagonal blocks
    cuts = {("matched", n): (*units(n, 1), n) for n in SIZES} | {("crossed, one batch", n): (*units(1, n), n) for n in SIZES} | {(f"crossed, batches of {BATCH}", n): (*units(n // BATCH, BATCH), n) for n in SIZES}
    found = {cut: [] for cut in cuts}
    for repetition in range(repetitions):
        table = law.draw(rng, 1, SIZES[-1])[0] @ BOTH
        for cut, (source, target, n) in cuts.items():
            values = table.reshape(-1, table.shape[-1]) if len(source) == SIZES[-1]**2 else table[source, target]
            found[cut].append(_estimate(values, *((source, target) if "crossed" in cut[0] else ()))[:2])
            if not repetition and n == 32: check(values, source, target)
    truth = law.truth if law.truth is not None else np.mean([mean[:K] for mean, _ in found["crossed, one batch", SIZES[-1]]], 0)
    truth = truth @ BOTH
    return truth, [row(*cut, *(np.array(part) for part in zip(*pairs)), cut[1] - 1, truth) for cut, pairs in found.items()]


def adaptive(law, rng, truth, side, aim, most=800): # images a side come in groups of `side`: 1 matched, BATCH crossed; stops near `aim` if matched
    pilot = law.draw(rng, DRAWN, 1)[:, 0, 0]
    precision = float(f"{stats.norm.isf(0.025) * (pilot.std(0) / pilot.mean(0)).max() / aim**0.5:.2g}")
    source, target = units(most // side, side)
    groups, ends, stock = [], [], np.empty((0, side * side, K))
    for _ in range(repetitions):
        if len(stock) < most // side: stock = np.concatenate([stock, law.draw(rng, DRAWN // side**2, side).reshape(-1, side * side, K)])
        for n in range(32, most + 1, 32 if side == 1 else side):
            values = stock[:n // side].reshape(-1, K)
            sides = (source[:len(values)], target[:len(values)]) if side > 1 else (None, None)
            if _relative_half_width(values, 0.95, *sides) <= precision: break
        stock = stock[n // side:]
        groups.append(_estimate(values @ BOTH, *sides)[:2])
        ends.append(n)
    return row("matched, adaptive" if side == 1 else f"batches of {side}, adaptive", np.mean(ends), *(np.array(part) for part in zip(*groups)), np.array(ends) - 1, truth, precision=precision, smallest=min(ends), largest=max(ends))


laws = {
    "lognormal": Lognormal(0.35, 0.25, 0.15, 0.3, 0.2),
    "heavy": Lognormal(0.6, 0.4, 0.3, 0.5, 0.5, noise=0.3),
    "gaussian": Gaussian(),
    "mini": Table(50 if options.smoke else 500)}
rows = []
for seed, (name, law) in enumerate(laws.items()):
    start, rng = time.perf_counter(), np.random.default_rng(seed)
    truth, of_law = fixed(law, rng)
    of_law += [adaptive(law, rng, truth, side, aim) for side in (1, BATCH) for aim in (48, 128)]
    rows += [{"law": name, "seed": seed, **r, "seconds": time.perf_counter() - start} for r in of_law]
    print(pd.DataFrame(of_law).drop(columns=[c for c in of_law[0] if c.endswith("_error")]).assign(law=name).set_index("law").to_string(float_format="%.4g", na_rep=""), f"\n{time.perf_counter() - start:.0f} s", flush=True)
table = pd.DataFrame(rows).assign(repetitions=repetitions, threads=1, machine=platform.machine(), numpy=np.__version__, scipy=scipy.__version__)
write_rows(table, options, float_format="%.4g")

"""Does the fast path train to the same accuracy? Test accuracy on mini/digits after the mini protocol, for several seeds, against a plain loop in float32.

    python benchmarks/finetune_equivalence.py [seeds] [--smoke] [--out FILE]

Writes benchmarks/finetune_equivalence.csv. The plain loop has timm's whole forward pass, `clip_grad_norm_` and torch's SGD, on the same batches and from the same head; it keeps the weights that are best on the validation split, as `finetune` does.
  float32     `finetune`: the class-token-only last block
  bfloat16    the same with matrix products in bfloat16 (autocast), also in evaluation; `instructions` says whether the
              processor has arithmetic for it
For each component the table gives the mean difference of test accuracy to the plain loop over the seeds, its 90 % Student interval, and whether that lies within one percentage point (two one-sided tests at 5 %). About 15 minutes for 8 seeds on two cores.
"""
import platform
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from multiprocessing import get_context

import numpy as np
import pandas as pd
import torch
from _common import command_line, write_rows
from _processor import instructions
from scipy import stats
from torch import nn
from torch.nn import functional as F

from vit_plasticity.config import PROTOCOLS
from vit_plasticity.data import load_dataset, training_batches
from vit_plasticity.finetune import finetune, lr_factor, predict
from vit_plasticity.models import input_config, load_model, set_trainable

COMPONENTS, MARGIN, ROUTES = ("mha", "ln1"), 0.01, ("plain", "float32", "bfloat16")
SETTINGS = {name: PROTOCOLS["mini"][name] for name in ("steps", "lr", "warmup_steps", "batch_size", "eval_every")}


def plain(model, data, component, seed, steps, lr, warmup_steps, batch_size, eval_every): # test accuracy
    set_trainable(model, component)
    trainable, best = [p for p in model.parameters() if p.requires_grad], (-1.0, None)
    optimizer, batches = torch.optim.SGD(trainable, lr=lr, momentum=0.9), training_batches(data, batch_size, input_config(model), seed=seed)
    accuracy = lambda split: (predict(model, split.images).argmax(1) == split.labels).double().mean().item()
    for step in range(steps):
        images, labels = next(batches)
        model.train()
        optimizer.param_groups[0]["lr"] = lr * lr_factor(step, steps, warmup_steps)
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        nn.utils.clip_grad_norm_(trainable, 1.0)
        optimizer.step()
        if (step + 1) % eval_every == 0 and (found := accuracy(data.val)) > best[0]: best = found, [p.detach().clone() for p in trainable]
    with torch.no_grad():
        for p, kept in zip(trainable, best[1]): p.copy_(kept)
    return accuracy(data.test)


def run(job): # one thread each
    torch.set_num_threads(1)
    *job, settings = job
    component, seed, route = job
    data, model = load_dataset("mini/digits"), load_model("vit_mini", num_classes=10, seed=seed)
    if route == "plain": return *job, plain(model, data, component, seed, **settings)
    trained = finetune(model, data, component=component, seed=seed, dtype=route, device="cpu", progress=False, **settings)
    return *job, trained.summary.test_accuracy[0]


def compare(table): # component and seed x route -> a row a component and route
    present = [component for component in COMPONENTS if component in table.index]
    for component in present:
        for route in ROUTES[1:]:
            accuracy = table.loc[component, "plain"]
            difference = (table.loc[component, route] - accuracy).to_numpy()
            n, error = len(difference), difference.std(ddof=1) / np.sqrt(len(difference))
            low, high = difference.mean() + stats.t.ppf([0.05, 0.95], n - 1) * error
            row = {"component": component, "route": route, "plain_accuracy": accuracy.mean()}
            row |= {"mean_difference": difference.mean(), "ci90_low": low, "ci90_high": high}
            row |= {"largest": abs(difference).max(), "margin": MARGIN}
            yield row | {"equivalent": bool(-MARGIN < low and high < MARGIN), "seeds": n}


if __name__ == "__main__":
    options, settings = command_line(__doc__, seeds=8), SETTINGS
    components = COMPONENTS[:1] if options.smoke else COMPONENTS
    if options.smoke: options.seeds, settings = 2, SETTINGS | dict(steps=2, warmup_steps=0, eval_every=2)
    cells = product(components, range(options.seeds), ROUTES)
    jobs = [(*cell, settings) for cell in cells]
    if options.smoke: rows = list(map(run, jobs))
    else:
        with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool: rows = list(pool.map(run, jobs))
    table = pd.DataFrame(rows, columns=["component", "seed", "route", "accuracy"])
    table = table.pivot(index=["component", "seed"], columns="route", values="accuracy")
    result = pd.DataFrame(compare(table)).assign(machine=platform.machine(), instructions=instructions(), threads=1)
    result = result.assign(torch=torch.__version__)
    write_rows(result, options, float_format="%.5g")
    print(result.to_string(index=False))

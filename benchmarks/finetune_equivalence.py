"""Does the fast path train to the same accuracy? Test accuracy on mini/digits after the mini protocol, for several seeds, against a plain loop in float32.

    python benchmarks/finetune_equivalence.py [seeds]

Writes benchmarks/finetune_equivalence.csv. The plain loop has timm's whole forward pass, `clip_grad_norm_` and torch's SGD, on the same batches and from the same head; it keeps the weights that are best on the validation split, as `finetune` does.
  float32     `finetune`: the class-token-only last block
  bfloat16    the same with matrix products in bfloat16 (autocast), also in evaluation
For each component the table gives the mean difference of test accuracy to the plain loop over the seeds, its 90 % Student interval, and whether that lies within one percentage point (two one-sided tests at 5 %). About 15 minutes for 8 seeds on two cores.
"""
import platform
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from scipy import stats
from torch import nn
from torch.nn import functional as F

from vit_plasticity.data import load_dataset, training_batches
from vit_plasticity.finetune import PROTOCOLS, finetune, lr_factor, predict
from vit_plasticity.models import input_config, load_model, set_trainable

COMPONENTS, MARGIN, ROUTES = ("mha", "ln1"), 0.01, ("plain", "float32", "bfloat16")


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


def run(job):
    torch.set_num_threads(1)
    component, seed, route = job
    data, settings = load_dataset("mini/digits"), {name: PROTOCOLS["mini"][name] for name in ("steps", "lr", "warmup_steps", "batch_size", "eval_every")}
    model = load_model("vit_mini", num_classes=10, seed=seed)
    if route == "plain": return *job, plain(model, data, component, seed, **settings)
    return *job, finetune(model, data, component, seed=seed, dtype=route, device="cpu", progress=False, **settings).summary.test_accuracy[0]


if __name__ == "__main__":
    seeds = range(int(sys.argv[1]) if len(sys.argv) > 1 else 8)
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool: rows = list(pool.map(run, [(component, seed, route) for component in COMPONENTS for seed in seeds for route in ROUTES]))
    table, found = pd.DataFrame(rows, columns=["component", "seed", "route", "accuracy"]).pivot(index=["component", "seed"], columns="route", values="accuracy"), []
    for component in COMPONENTS:
        for route in ROUTES[1:]:
            difference = (table.loc[component, route] - table.loc[component, "plain"]).to_numpy()
            n, error = len(difference), difference.std(ddof=1) / np.sqrt(len(difference))
            low, high = difference.mean() + stats.t.ppf([0.05, 0.95], n - 1) * error
            found.append({"component": component, "route": route, "plain_accuracy": table.loc[component, "plain"].mean(), "mean_difference": difference.mean(), "ci90_low": low, "ci90_high": high, "largest": abs(difference).max(), "margin": MARGIN, "equivalent": bool(-MARGIN < low and high < MARGIN), "seeds": n})
    result = pd.DataFrame(found).assign(machine=platform.machine(), torch=torch.__version__)
    result.to_csv(Path(__file__).with_suffix(".csv"), index=False, float_format="%.5g")
    print(result.to_string(index=False))

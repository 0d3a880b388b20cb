"What the advice says of a model with small tokens: the same function as with larger ones, but LayerNorms lead."
import ast
import copy
import json
from pathlib import Path

import pytest
import torch
from IPython.display import Markdown
from torch import nn

from vit_plasticity.core import ASSETS
from vit_plasticity.data import load_dataset, preprocess
from vit_plasticity.models import input_config, load_model, read_metadata, save_model
from vit_plasticity.plasticity import compare_measures, recommend, run_plasticity

ROOT = Path(__file__).parents[1]
SCALE = "The order under embedding and in situ is one of scale, no ground to prefer a component: the rates span"


@torch.no_grad()
def resize_tokens(model, embedding=1.0, stream=1.0, ln2=1.0):
    """A copy whose token embedding is `embedding` times as large.
    `stream`, of all tokens between the blocks, and `ln2`, which FC1 takes back, leave the function as it is."""
    model = copy.deepcopy(model)
    for tensor in (model.patch_embed.proj.weight, model.patch_embed.proj.bias, model.pos_embed, model.cls_token):
        tensor.mul_(embedding * stream)
    for norm in model.modules():
        if isinstance(norm, nn.LayerNorm):
            norm.eps *= stream**2
    for block in model.blocks:
        for tensor in (*block.attn.proj.parameters(), *block.mlp.fc2.parameters()):
            tensor.mul_(stream)
        for tensor in block.norm2.parameters():
            tensor.mul_(ln2)
        block.mlp.fc1.weight.div_(ln2)
    return model


@pytest.fixture(scope="module")
def models():
    "The embedded model; with a smaller embedding, so that LN2 leads relatively; and that with small tokens."
    base = load_model("vit_mini").eval()
    return {"embedded": base, "plain": resize_tokens(base, 1 / 4), "small": resize_tokens(base, 1 / 4, 1 / 4, 3 / 2)}


@pytest.fixture(scope="module")
def runs(models, tmp_path_factory):
    "name -> stored runs under the embedding protocol and in situ"
    folder, found = tmp_path_factory.mktemp("runs"), {}
    metadata = read_metadata(ASSETS/"vit_mini.safetensors")
    kept = {name: metadata[name] for name in ("architecture", "mean", "std")}
    for name, model in models.items():
        path = folder/f"{name}.safetensors"
        save_model(model, path, **kept)
        options = dict(n_pairs=64, device="cpu", out_dir=folder, progress=False)
        embedding, in_situ = (run_plasticity(str(path), inputs=inputs, measure=measure, **options)
                              for inputs, measure in (("embedding", "rate"), ("in_situ", "both")))
        found[name] = embedding, in_situ
    return found


def advise(notebook, embedding, in_situ):
    "What the notebook's own cell shows of these runs."
    cells = json.loads((ROOT/f"nbs/{notebook}.ipynb").read_text(encoding="utf-8"))["cells"]
    (code,) = [code for code in map("".join, (cell["source"] for cell in cells)) if "recommend(" in code]
    rates, situ, costs = embedding.table("rates"), in_situ.table("rates"), embedding.table("components")
    names = {"embedding": embedding, "in_situ": in_situ, "rates": rates, "situ": situ, "costs": costs}
    names |= {"measures": compare_measures(rates, situ), "compare_measures": compare_measures, "recommend": recommend}
    names["Markdown"] = Markdown
    *statements, last = ast.parse(code).body
    exec(compile(ast.Module(statements, []), notebook, "exec"), names)
    return eval(compile(ast.Expression(last.value), notebook, "eval"), names).data


def test_same_function(models, runs):
    "The model with small tokens is the plain one, written otherwise; relative rates tell so (but for the norms' eps)."
    images = preprocess(load_dataset("mini/digits").test.images[:16], input_config(models["plain"]))
    with torch.no_grad():
        torch.testing.assert_close(models["small"](images), models["plain"](images), rtol=0, atol=1e-4)
    rates = {name: in_situ.table("rates").groupby("component") for name, (_, in_situ) in runs.items()}
    plain, small = (rates[name][["rate", "relative"]].mean() for name in ("plain", "small"))
    assert (small.relative / plain.relative - 1).abs().max() < 0.02
    assert (small.rate / plain.rate)["ln1"] > 3.5


@pytest.mark.parametrize("notebook", ["plasticity", "your_images"])
def test_order_of_scale(runs, notebook):
    "A6: all three measures agree on LN2, and the verdict says, with numbers, that the order is one of scale."
    advice = advise(notebook, *runs["small"])
    assert f"LN2 is the most plastic by all three measures. {SCALE}" in advice
    assert "The LayerNorms lead the others by a factor of" in advice
    assert "LN2's rates, " in advice and "are about its γ/σ, " in advice


@pytest.mark.parametrize("notebook", ["plasticity", "your_images"])
def test_no_order_of_scale(runs, notebook):
    "A6: nothing of the kind is said of the embedded model."
    advice = advise(notebook, *runs["embedded"])
    assert "one of scale" not in advice
    assert "The measures disagree about the most plastic component (embedding: MHA" in advice

"""Every family of models against arithmetic written out from its weights, in float64: LayerNorm, attention (query and key norms, rotary embedding, causal mask), linear maps, gated MLP, LayerScale.

The float32 engine must agree to 1e-5 for every pair, layer and component, under the embedding protocol and in situ.
"""
import numpy as np
import pandas as pd
import pytest
import torch
from timm.models.eva import Eva
from timm.models.vision_transformer import VisionTransformer
from transformers import GPT2Config, GPT2LMHeadModel

from vit_plasticity.core import COMPONENTS, seeded
from vit_plasticity.models import load_model
from vit_plasticity.plasticity import rates_of_change, sample_rates


def f64(tensor): return tensor.detach().double()


def norm(module, x):
    x = (x - x.mean(-1, keepdim=True)) / (x.var(-1, correction=0, keepdim=True) + module.eps).sqrt()
    return x if module.weight is None else x * f64(module.weight) + (0 if module.bias is None else f64(module.bias))


def linear(weight, bias, x): return x @ f64(weight)[:, :x.shape[-1]].T + (0 if bias is None else f64(bias)) # a wider map reads zeros in the missing places


def rotate(x, rope, prefix, half): # timm: `rope` is sines and cosines of every patch, side by side; class and register tokens are not turned
    sin, cos = f64(rope).chunk(2, -1)
    patches = x[..., prefix:, :]
    if half: turned = torch.cat([-patches[..., patches.shape[-1] // 2:], patches[..., :patches.shape[-1] // 2]], -1)
    else: turned = torch.stack([-patches[..., 1::2], patches[..., ::2]], -1).flatten(-2)
    return torch.cat([x[..., :prefix, :], patches * cos + turned * sin], -2)


def heads(x, count): return x.unflatten(-1, (count, -1)).transpose(1, 2) # (batch, heads, tokens, k)


def softmax_attention(q, k, v, causal=False):
    scores = q @ k.mT / q.shape[-1]**0.5
    if causal: scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1).bool(), -torch.inf)
    weights = (scores - scores.amax(-1, keepdim=True)).exp()
    return (weights / weights.sum(-1, keepdim=True) @ v).transpose(1, 2).flatten(2)


def vit_attention(m, x, rope=None):
    if getattr(m, "qkv", None) is not None:
        bias = m.qkv.bias if m.qkv.bias is not None or getattr(m, "q_bias", None) is None else torch.cat([m.q_bias, torch.zeros_like(m.q_bias), m.v_bias])
        q, k, v = linear(m.qkv.weight, bias, x).chunk(3, -1)
    else: q, k, v = (linear(part.weight, part.bias, x) for part in (m.q_proj, m.k_proj, m.v_proj))
    q, k, v = (heads(part, m.num_heads) for part in (q, k, v))
    if not isinstance(m.q_norm, torch.nn.Identity): q, k = norm(m.q_norm, q), norm(m.k_norm, k)
    if rope is not None: q, k = (rotate(part, rope, m.num_prefix_tokens, m.rotate_half) for part in (q, k))
    mixed = softmax_attention(q, k, v)
    return linear(m.proj.weight, m.proj.bias, norm(m.norm, mixed) if not isinstance(m.norm, torch.nn.Identity) else mixed)


def gelu(x): return x * (1 + torch.erf(x / 2**0.5)) / 2
def gelu_tanh(x): return x * (1 + torch.tanh((2 / np.pi)**0.5 * (x + 0.044715 * x**3))) / 2
def silu(x): return x / (1 + torch.exp(-x))
def quick_gelu(x): return x / (1 + torch.exp(-1.702 * x))


def patch_tokens(model, images):
    p = model.patch_embed.patch_size[0]
    patches = images.double().unfold(2, p, p).unfold(3, p, p).permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)
    x, place = linear(model.patch_embed.proj.weight.flatten(1), model.patch_embed.proj.bias, patches), model.pos_embed
    prefix = [f64(t).expand(len(images), -1, -1) for t in (model.cls_token, getattr(model, "reg_token", None)) if t is not None]
    if place is not None and getattr(model, "no_embed_class", False): return torch.cat([*prefix, x + f64(place)], 1)
    x = torch.cat([*prefix, x], 1)
    x = x if place is None else x + f64(place)
    return x if isinstance(model.norm_pre, torch.nn.Identity) else norm(model.norm_pre, x)


def vit_block(block, rope): # the five maps, what lies between FC1 and FC2, and the two LayerScales
    mlp = block.mlp
    if hasattr(mlp, "fc1_g"): fc1, gated = (lambda x: torch.cat([linear(part.weight, part.bias, x) for part in (mlp.fc1_g, mlp.fc1_x)], -1)), True
    else: fc1, gated = (lambda x: linear(mlp.fc1.weight, mlp.fc1.bias, x)), type(mlp).__name__ == "GluMlp"
    def between(h):
        if not gated: return (quick_gelu if "Quick" in type(mlp.act).__name__ else gelu)(h)
        a, b = h.chunk(2, -1)
        h = a * gelu(b) if getattr(mlp, "gate_last", False) else silu(a) * b # the gate last (with the block's GeLU) or first
        return h if isinstance(mlp.norm, torch.nn.Identity) else norm(mlp.norm, h)
    scales = [getattr(block, f"gamma_{i}", None) if hasattr(block, "gamma_1") else getattr(getattr(block, f"ls{i}"), "gamma", None) for i in (1, 2)]
    return {"ln1": lambda x: norm(block.norm1, x), "mha": lambda x: vit_attention(block.attn, x, rope), "ln2": lambda x: norm(block.norm2, x), "fc1": fc1,
            "fc2": lambda x: linear(mlp.fc2.weight, mlp.fc2.bias, x)}, between, [1 if scale is None else f64(scale) for scale in scales]


def gpt2_block(block):
    def attention(x):
        q, k, v = (heads(part, block.attn.num_heads) for part in linear(block.attn.c_attn.weight.T, block.attn.c_attn.bias, x).chunk(3, -1))
        return linear(block.attn.c_proj.weight.T, block.attn.c_proj.bias, softmax_attention(q, k, v, causal=True))
    return {"ln1": lambda x: norm(block.ln_1, x), "mha": attention, "ln2": lambda x: norm(block.ln_2, x), "fc1": lambda x: linear(block.mlp.c_fc.weight.T, block.mlp.c_fc.bias, x),
            "fc2": lambda x: linear(block.mlp.c_proj.weight.T, block.mlp.c_proj.bias, x)}, gelu_tanh, [1, 1]


def by_hand(model, x, y, inputs):
    if hasattr(model, "transformer"):
        body = model.transformer
        a, b = (f64(body.wte.weight)[side] + f64(body.wpe.weight)[:side.shape[1]] for side in (x, y))
        blocks = (gpt2_block(block) for block in body.h)
    else:
        a, b = (patch_tokens(model, side) for side in (x, y))
        rope = model.rope.get_embed(shape=model.patch_embed.grid_size) if getattr(model, "rope", None) is not None else None
        blocks = (vit_block(block, rope) for block in model.blocks)
    size, rows = (lambda t: t.square().sum((1, 2)).sqrt()), []
    for layer, (maps, between, (scale1, scale2)) in enumerate(blocks):
        seen = [dict.fromkeys(COMPONENTS, side) for side in (a, b)]
        if inputs == "embedding_ln1": seen = [{**reads, "mha": maps["ln1"](side)} for reads, side in zip(seen, (a, b))]
        if inputs == "in_situ":
            def run(x):
                reads = {"ln1": x, "mha": maps["ln1"](x)}
                reads["ln2"] = x + scale1 * maps["mha"](reads["mha"])
                reads["fc1"] = maps["ln2"](reads["ln2"])
                reads["fc2"] = between(maps["fc1"](reads["fc1"]))
                return reads, reads["ln2"] + scale2 * maps["fc2"](reads["fc2"])
            (seen_a, a), (seen_b, b) = run(a), run(b)
            seen = [seen_a, seen_b]
        for component in COMPONENTS:
            s, t = seen[0][component], seen[1][component]
            rate = size(maps[component](s) - maps[component](t)) / (size(a - b) if inputs == "embedding_ln1" else size(s - t))
            rows += [(pair, layer, component, value) for pair, value in enumerate(rate.tolist())]
    return pd.DataFrame(rows, columns=["pair", "layer", "component", "rate"]).set_index(["pair", "layer", "component"]).rate


def check(model, x, y, every_input=("embedding", "in_situ")):
    model.eval().requires_grad_(False)
    with seeded(1):
        for parameter in model.parameters(): # no bias of 0, no weight of a norm of 1, no LayerScale that silences its branch
            if parameter.ndim == 1: parameter += 0.1 * torch.randn_like(parameter)
    for inputs in every_input:
        with torch.inference_mode(): expected = by_hand(model, x, y, inputs)
        found = rates_of_change(model, x, y, inputs).set_index(["pair", "layer", "component"]).rate
        error = (found / expected.reindex(found.index) - 1).abs()
        assert len(found) == len(expected) and error.max(skipna=False) < 1e-5, error.groupby("component").max()


def pictures(size, n=2): return torch.randn(2, n, 3, size, size, generator=torch.Generator().manual_seed(0))


VITS = ["vit_base_patch16_224.orig_in21k", "deit_tiny_patch16_224", "vit_base_patch32_clip_quickgelu_224.openai"]
LONG_VITS = ["vit_large_patch16_224.orig_in21k", "vit_huge_patch14_224.orig_in21k", "vit_base_patch32_clip_224"]


@pytest.mark.parametrize("name", [*VITS, *(pytest.param(name, marks=pytest.mark.long) for name in LONG_VITS)])
def test_vit(name):
    model = load_model(name, pretrained=False, **({} if "clip" in name else {"norm_eps": 1e-12})) # as in the paper's code
    if "huge" in name or "large" in name: model.blocks = model.blocks[:4] # their width and heads; the other blocks are alike
    check(model, *pictures(224, 1))


@pytest.mark.parametrize("name", ["vit_small_patch14_dinov2", "vit_small_patch14_reg4_dinov2"])
def test_dinov2(name): check(load_model(name, pretrained=False, img_size=98), *pictures(98))


@pytest.mark.parametrize("name", ["vit_small_patch16_dinov3", "vit_small_patch16_dinov3_qkvb", "vit_small_plus_patch16_dinov3"]) # the last one has a gated MLP
def test_dinov3(name): check(load_model(name, pretrained=False, img_size=96), *pictures(96))


TINY = dict(img_size=28, patch_size=7, embed_dim=32, depth=3, num_heads=2, num_classes=0)


@pytest.mark.parametrize("options", [dict(qk_norm=True, qkv_bias=False), dict(scale_attn_norm=True, init_values=0.5), dict(reg_tokens=2, no_embed_class=True, class_token=False, global_pool="avg"),
                                     dict(pre_norm=True), dict(proj_bias=False), dict(mlp_layer="glu")], ids=lambda options: "+".join(options))
def test_vit_options(options):
    from timm.layers import GluMlp
    options = {key: GluMlp if value == "glu" else value for key, value in options.items()}
    with seeded(0): check(VisionTransformer(**TINY, **options), *pictures(28, 3))


@pytest.mark.parametrize("options", [dict(swiglu_mlp=True, scale_mlp=True, qkv_fused=False, use_rot_pos_emb=True), dict(swiglu_mlp=True, use_rot_pos_emb=True, init_values=0.5, scale_attn_inner=True)], ids=["eva02", "packed"])
def test_eva_options(options):
    with seeded(0): check(Eva(**TINY, **options), *pictures(28, 3))


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_gpt2(attention):
    with seeded(0):
        model = GPT2LMHeadModel(GPT2Config(n_layer=3, n_embd=64, n_head=4, n_positions=32, vocab_size=100, bos_token_id=0, eos_token_id=0, attn_implementation=attention))
        x, y = torch.randint(100, (2, 40, 20))
    check(model, x[:3], y[:3], ("embedding", "embedding_ln1", "in_situ"))
    assert len(sample_rates(model, x, y, 32, inputs="embedding_ln1", progress=False)) == 32 * 3 * 5

"Every load is exact or refused, and what was done to make a file fit is said and kept in `notes`."
import argparse
import json
import math
import os
import re

import pytest
import timm
import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional as F

from vit_plasticity import core, models
from vit_plasticity.finetune import run_finetuning
from vit_plasticity.models import image_size, load_model, set_trainable, stream_model
from vit_plasticity.models.files import Origin
from vit_plasticity.models.timm_files import converted, fitted
from vit_plasticity.plasticity import run_plasticity

SMALL = "test_vit" # timm's: 160 pixels, patches of 16, width 64, 6 blocks


def random_state(name=SMALL, seed=0, **arguments):
    "Weights of a timm model, each number drawn anew."
    generator = torch.Generator().manual_seed(seed)
    state = timm.create_model(name, **arguments).state_dict()
    return {key: 0.02 * torch.randn(tensor.shape, generator=generator) for key, tensor in state.items()}


def write(path, state):
    "As the name of the file says."
    if path.suffix == ".safetensors":
        save_file({key: tensor.contiguous() for key, tensor in state.items()}, path)
    else:
        torch.save(state, path)
    return path


def refused(message, **arguments):
    "In one line, which names the argument."
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        load_model(**{"name": SMALL} | arguments)
    assert "\n" not in str(caught.value) and re.search(r"`\w+`", str(caught.value))


def equal(model, state):
    "Has the model just these tensors?"
    own = model.state_dict()
    assert own.keys() == state.keys()
    for key, tensor in state.items():
        assert torch.equal(own[key], tensor), key


# Kinds of models ------------------------------------------------------------------------------------------------------

TINY = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)
WORDS, PICTURES = dict(vocab_size=20, num_key_value_heads=2), dict(image_size=16, patch_size=8)
KINDS = [("Llama", "llama", WORDS), ("Qwen3", "qwen3", WORDS), ("ViT", "vit", PICTURES), ("Dinov2", "dinov2", PICTURES),
         ("SiglipVision", "siglip_vision_model", PICTURES)]


@pytest.mark.parametrize("made, kind, more", KINDS, ids=[kind for _, kind, _ in KINDS])
def test_other_models_of_transformers(tmp_path, made, kind, more):
    "A1: their folders were measured as a GPT-2 with random weights."
    import transformers
    config = getattr(transformers, f"{made}Config")(**TINY, **more)
    getattr(transformers, f"{made}Model")(config).save_pretrained(tmp_path/"folder")
    for pretrained in (True, False):
        refused(f"`model`: 'folder': {kind} is not covered", name=tmp_path/"folder", pretrained=pretrained)
    (tmp_path/"folder/model.safetensors").unlink() # refused by its name, before weights are read
    refused(f"{kind} is not covered", name=tmp_path/"folder")


@pytest.mark.parametrize("text, message", [
    ("{", "its config.json names no model_type"),
    ("[]", "names no model_type"),
    ('{"architecture": "vit_small_patch16_224"}', "by its timm name"),
    ('{"model_type": 5}', "5 is not covered"),
    ('{"model_type": "a\\nb"}', "names no model_type"),
    (None, "has no config.json"),
])
def test_folders_without_a_kind(tmp_path, text, message):
    "A1"
    (tmp_path/"folder").mkdir()
    if text is not None:
        (tmp_path/"folder/config.json").write_text(text)
    refused(message, name=str(tmp_path/"folder"))


def test_kinds(tmp_path, monkeypatch):
    "A1: a folder called gpt2 is what its config.json says; a timm name stays one where a folder has it."
    monkeypatch.chdir(tmp_path)
    kinds = {"vit_mini": "vit_mini", "a/b.safetensors": "file", "gpt2": "gpt2", "gpt2-medium": "gpt2",
             "distilgpt2": "gpt2", "vit_tiny_patch16_224.augreg_in21k": "timm", "nothing": "timm"}
    assert {name: models.model_kind(name) for name in kinds} == kinds
    for name in ("gpt2", SMALL):
        (tmp_path/name).mkdir()
        (tmp_path/name/"config.json").write_text('{"model_type": "llama"}')
    refused("llama is not covered", name="gpt2", pretrained=False)
    assert models.model_kind(SMALL) == "timm"
    write(tmp_path/"w.pth", random_state())
    refused("'w.pth' is no .safetensors file; give the timm name, the file as `weights`", name="w.pth")
    write(tmp_path/"w.safetensors", random_state())
    refused("give the timm name as `model` and the file as `weights`", name="w.safetensors")
    refused("`weights` must be the path of a file or folder", weights="~nobody-has-this-name/w.pth")
    os.mkfifo("pipe.pth") # it was waited for
    refused("`weights`: there is no file or folder 'pipe.pth'", weights="pipe.pth")


@pytest.fixture
def gpt2(tmp_path):
    "A language model in a folder, and what its file holds."
    from transformers import GPT2Config, GPT2LMHeadModel
    sizes = dict(n_layer=2, n_embd=32, n_head=2, n_positions=16, vocab_size=50, bos_token_id=0, eos_token_id=0)
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(**sizes)).eval()
    model.save_pretrained(tmp_path/"words")
    return tmp_path/"words", load_file(tmp_path/"words/model.safetensors"), model


def bare(state):
    "As files of GPT-2's body name the tensors."
    return {name.removeprefix("transformer."): tensor for name, tensor in state.items()}


def test_gpt2_is_exact(gpt2):
    "A1: with and without transformer. before the names, with masks and head as in old files, as .safetensors and .bin."
    folder, state, whole = gpt2
    masks = {f"h.{layer}.attn.bias": torch.ones(1, 1, 16, 16).tril().bool() for layer in range(2)}
    masks |= {f"h.{layer}.attn.masked_bias": torch.tensor(-1e4) for layer in range(2)}
    numbers = torch.randint(50, (2, 9), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = whole.transformer(numbers).last_hidden_state
    for held in (state, bare(state) | masks, state | {"lm_head.weight": state["transformer.wte.weight"].clone()}):
        for name in ("model.safetensors", "pytorch_model.bin"):
            (folder/"model.safetensors").unlink(missing_ok=True)
            write(folder/name, held)
            read = load_model(folder)
            with torch.no_grad():
                torch.testing.assert_close(read(numbers).last_hidden_state, expected, rtol=0, atol=0)
            assert read.notes == ()


LAST = "transformer.ln_f.bias"


@pytest.mark.parametrize("lost, more, message", [
    ("transformer.h.1.mlp.c_fc.weight", {}, "1 tensors missing (first ['h.1.mlp.c_fc.weight']), 0 not known"),
    (None, {"score.weight": torch.ones(2, 32)}, "0 tensors missing (first []), 1 not known (first ['score.weight'])"),
    (None, {"transformer.h.2.ln_1.weight": torch.ones(32)}, "1 not known"),
    (None, {LAST: torch.ones(31)}, "size mismatch, ln_f.bias has shape (31,) and not (32,)"),
    (None, {LAST: torch.ones(32, dtype=torch.int8)}, "must be floating-point numbers; ln_f.bias is torch.int8"),
    (None, {LAST: torch.full((32,), torch.nan)}, "must be finite numbers in float32; ln_f.bias"),
    (None, {"ln_f.bias": torch.ones(32)}, "names some tensors twice"),
])
def test_gpt2_that_does_not_fit(gpt2, lost, more, message):
    "A1, A3: missing tensors were drawn anew, unknown ones left out."
    folder, state, _ = gpt2
    write(folder/"model.safetensors", {name: tensor for name, tensor in state.items() if name != lost} | more)
    refused(message, name=folder)


def test_gpt2_of_a_false_config(gpt2):
    "The blocks of a model were built before its files were looked at; and the connection is not at fault."
    folder, state, _ = gpt2
    config = json.loads((folder/"config.json").read_text())
    for change, message in (
        ({"n_layer": 10**9}, "that has 1000000000 blocks (n_layer), its files have 2"),
        ({"n_positions": 10**7}, "size mismatch, wpe.weight has shape (16, 32) and not (10000000, 32)"),
        ({"n_head": 5}, "its config.json describes no GPT-2 ("), ({"n_layer": "two"}, "describes no GPT-2 ("),
    ):
        (folder/"config.json").write_text(json.dumps(config | change))
        refused(message, name=folder)
        with pytest.raises(ValueError) as caught:
            load_model(folder)
        assert "connection" not in str(caught.value)
    refused("describes no GPT-2", name=folder, pretrained=False)


def test_gpt2_with_other_files(gpt2):
    "The file that transformers reads; others of its kind are named."
    folder, state, _ = gpt2
    expected = state["transformer.wte.weight"]
    write(folder/"adapter_model.safetensors", {"lora": torch.ones(2)})
    write(folder/"model.fp16.safetensors", {key: tensor.half() for key, tensor in state.items()})
    model = load_model(folder)
    assert torch.equal(model.wte.weight, expected)
    line = "'words': model.safetensors is read, not adapter_model.safetensors, model.fp16.safetensors"
    assert model.notes == (line,)
    (folder/"model.safetensors").unlink()
    (folder/"adapter_model.safetensors").rename(folder/"model.safetensors")
    refused("does not fit", name=folder)


def test_gpt2_in_several_bins(gpt2):
    folder, state, _ = gpt2
    (folder/"model.safetensors").unlink()
    refused("'words' has neither model.safetensors nor pytorch_model.bin", name=folder)
    names = list(state)
    parts = {"pytorch_model-00001-of-00002.bin": names[:9], "pytorch_model-00002-of-00002.bin": names[9:]}
    for file, part in parts.items():
        write(folder/file, {key: state[key] for key in part})
    expected = state["transformer.wte.weight"]
    model = load_model(folder)
    assert torch.equal(model.wte.weight, expected) and model.notes == ()
    write(folder/"pytorch_model.bin", {key: torch.zeros_like(tensor) for key, tensor in state.items()})
    refused(f"`model` must hold one model; {min(names[:9])} is in pytorch_model-00001-of-00002.bin and in "
            "pytorch_model.bin", name=folder)
    index = folder/"pytorch_model.bin.index.json"
    index.write_text(json.dumps({"weight_map": {key: file for file, part in parts.items() for key in part}}))
    model = load_model(folder)
    assert torch.equal(model.wte.weight, expected)
    assert model.notes == (f"'words': the files of {index.name} are read, not pytorch_model.bin",)
    (folder/"pytorch_model-00002-of-00002.bin").unlink()
    refused("pytorch_model-00002-of-00002.bin ", name=folder)


def test_gpt2_of_the_hub(gpt2, monkeypatch):
    "A1: transformers fetches it as before; what it would have drawn anew or left out is refused."
    from transformers import GPT2Config, GPT2Model
    (folder, state, _), asked = gpt2, []
    read, config = GPT2Model.from_pretrained, GPT2Config.get_config_dict
    def answer(ask, name, **options):
        asked.append(str(name))
        return ask(folder, **options)
    monkeypatch.setattr(GPT2Model, "from_pretrained", lambda name, **options: answer(read, name, **options))
    monkeypatch.setattr(GPT2Config, "get_config_dict", lambda name, **options: answer(config, name, **options))
    write(folder/"model.safetensors", bare(state) | {"h.0.attn.masked_bias": torch.tensor(-1e4)})
    assert torch.equal(load_model("gpt2").wte.weight, state["transformer.wte.weight"]) and asked[:2] == ["gpt2", "gpt2"]
    write(folder/"model.safetensors", {name: tensor for name, tensor in bare(state).items() if name != "ln_f.bias"})
    refused("the hub's gpt2 does not fit its config.json: 1 tensors are missing, not known or of another shape, "
            "such as ln_f.bias", name="gpt2")
    (folder/"config.json").write_text('{"model_type": "llama"}')
    refused("is of another kind, llama, which is not covered", name="gpt2-medium")


@pytest.fixture
def hub(monkeypatch):
    "What timm's hub holds, in place of a download."
    held = {}
    monkeypatch.setattr("timm.models._builder.load_state_dict_from_hf", lambda *arguments, **options: dict(held))
    return held


def test_hub_is_exact(hub):
    "A1, A2: timm's names too, with a new head or another size, which is said."
    hub.update(random_state())
    model = load_model(SMALL)
    equal(model, hub)
    assert model.notes == () and load_model(SMALL, num_classes=3).head.weight.shape == (3, 64)
    line = "positions are interpolated from a grid of 10 x 10 to 6 x 6, for images of 96 pixels"
    assert load_model(SMALL, img_size=96).notes == (f"the hub's file of test_vit: {line}",)
    fault = "`model`: the hub's file of test_vit does not fit test_vit:"
    hub["more"] = torch.ones(1)
    refused(f"{fault} 0 tensors missing (first []), 1 not known (first ['more'])")
    del hub["more"], hub["head.weight"]
    refused(f"{fault} 1 tensors missing (first ['head.weight']), 0 not known")
    hub.update(random_state(patch_size=8))
    refused("`model`: the hub's file of test_vit has patches of 8 x 8 pixels, test_vit of 16 x 16")


@pytest.mark.parametrize("name, written", [
    ("flexivit_small", {}),
    ("vit_base_patch16_siglip_gap_224", {"attn_pool.latent": torch.ones(1, 1, 768)}),
    ("vit_base_patch16_radio_v3", {"pos_embed": torch.randn(1, 40**2, 768)}),
    ("vit_so400m_patch16_radio_v4", {"pos_embed": torch.randn(1, 36**2, 1152)}),
])
def test_hub_reads_as_timm_does(hub, monkeypatch, name, written):
    "A1: models that timm interpolates in ways of their own, or reads leniently, give what timm's own loading gives."
    make = timm.create_model
    monkeypatch.setattr(timm, "create_model", lambda name, **given: make(name, **{"depth": 1} | given))
    hub.update(random_state(name) | written)
    for size in ({}, {"img_size": 96}):
        model = load_model(name, **size)
        equal(model, make(name, pretrained=True, depth=1, **size).state_dict())
        assert bool(model.notes) == bool(size or written)


# Numbers --------------------------------------------------------------------------------------------------------------

REAL, FINITE = "must be floating-point numbers; ", "must be finite numbers in float32; "
NUMBERS = {
    "int8": (torch.int8, 3, REAL), "int32": (torch.int32, -6, REAL), "bool": (torch.bool, True, REAL),
    "complex": (torch.complex64, 1j, REAL), "huge": (torch.float64, 1e300, FINITE),
    "infinite": (torch.float32, math.inf, FINITE), "nan": (torch.float16, math.nan, FINITE),
}


@pytest.mark.parametrize("suffix", ["pth", "safetensors"])
@pytest.mark.parametrize("label", NUMBERS)
def test_numbers_that_are_no_weights(tmp_path, suffix, label):
    "A3: a .pth of them was read; weights like -6, infinities."
    (dtype, value, message), state = NUMBERS[label], random_state()
    state["blocks.3.mlp.fc1.bias"] = torch.full((256,), value, dtype=dtype)
    weights = write(tmp_path/f"w.{suffix}", state)
    refused(f"`weights`: w.{suffix} {message}blocks.3.mlp.fc1.bias", weights=weights)


def test_narrow_and_wide_numbers(tmp_path):
    "A3: half precision, bfloat16 and doubles are read as they are; what half precision can't hold is not saved."
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        state = {key: tensor.to(dtype) for key, tensor in random_state().items()}
        model = load_model(SMALL, weights=write(tmp_path/"w.pth", state))
        equal(model, {key: tensor.float() for key, tensor in state.items()})
    model.cls_token.data += 1e5
    with pytest.raises(ValueError, match="must have finite weights in half precision; cls_token has others"):
        models.save_model(model, tmp_path/"w.safetensors", {})


def test_streamed_numbers(tmp_path):
    "A3, A16"
    state = random_state(num_classes=0)
    state["blocks.1.mlp.fc1.bias"][0] = math.inf
    streamed = stream_model(SMALL, write(tmp_path/"w.safetensors", state))
    assert streamed.notes == () and torch.equal(streamed.blocks[0].fc1.weight, state["blocks.0.mlp.fc1.weight"])
    with pytest.raises(ValueError, match=r"w.safetensors must be finite numbers in float32; blocks.1.mlp.fc1.bias"):
        streamed.blocks[1]
    for depth in (0, -1, 1.5, True):
        with pytest.raises(ValueError, match="`depth` must be a whole number at least 1; got"):
            stream_model(SMALL, tmp_path/"w.safetensors", depth=depth)


FLOAT4 = getattr(torch, "float4_e2m1fn_x2", torch.float32)


@pytest.mark.parametrize("make, message", [
    (lambda tensor: tensor.to("meta"), "has no values"),
    (lambda tensor: tensor.double() * 1e-300, "must not vanish in float32; norm.weight has numbers that all become 0"),
    (lambda tensor: torch.empty(len(tensor), dtype=FLOAT4), "norm.weight is torch.float4"),
    (lambda tensor: torch.nested.nested_tensor([tensor, tensor[1:]]), "norm.weight is nested"),
    (lambda tensor: tensor.to_sparse(), "norm.weight is sparse (torch.sparse_coo)"),
])
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors", "ignore:Validating sparse tensor")
def test_kinds_of_tensors(tmp_path, make, message):
    "Tensors without numbers, or of no dense layout."
    state = random_state()
    weights = write(tmp_path/"w.pth", state | {"norm.weight": make(state["norm.weight"])})
    refused(message, weights=weights)
    tiny = torch.full((64,), 1e-300, dtype=torch.float64)
    tiny[0] = 1
    for values in (torch.zeros(64).double(), tiny): # a zero may be one
        assert load_model(SMALL, weights=write(weights, state | {"norm.weight": values})) is not None


def test_matrix_of_patches(tmp_path):
    "Its order of columns can't be seen, and is said; of another shape it would be cut up otherwise."
    state, weights, key = random_state(), tmp_path/"w.pth", "patch_embed.proj.weight"
    model = load_model(SMALL, weights=write(weights, state | {key: state[key].flatten(1)}))
    equal(model, state)
    assert model.notes == (f"w.pth: {key}, a matrix (64, 768), is read as (64, 3, 16, 16): "
                           "its columns are assumed in the order channel, height, width",)
    for odd in (state[key].flatten(2), state[key].reshape(64 * 3, 256), state[key].reshape(1, 64, 768)):
        refused("w.pth ", weights=write(weights, state | {key: odd}))


def test_suffix_in_upper_case(tmp_path):
    state = random_state()
    write(tmp_path/"w.safetensors", state)
    os.rename(tmp_path/"w.safetensors", tmp_path/"w.SAFETENSORS")
    equal(load_model(SMALL, weights=tmp_path/"w.SAFETENSORS"), state)
    equal(load_model(SMALL, weights=tmp_path), state)
    models.keep_model(load_model("vit_mini"), tmp_path/"k.safetensors", "vit_mini")
    os.rename(tmp_path/"k.safetensors", tmp_path/"k.SafeTensors")
    equal(load_model(tmp_path/"k.SafeTensors"), load_model("vit_mini").state_dict())


class Unknown:
    "Of a training script."


def test_reasons_of_torch(tmp_path):
    "One plain sentence, without advice to load what may run code."
    weights = tmp_path/"w.pth"
    torch.save({"model": random_state(), "made": Unknown()}, weights)
    broken = tmp_path/"broken.pth"
    broken.write_bytes(b"PK\x03\x04 and no more")
    for path in (weights, broken):
        with pytest.raises(ValueError) as caught:
            load_model(SMALL, weights=path)
        line = str(caught.value)
        assert line.isprintable() and len(line) < 300 and "give a .safetensors or .pth file of weights alone" in line
        assert not re.search(r"weights_only|trust|Please|you", line)
        assert ("Unknown was not an allowed global" if path == weights else "failed reading zip archive") in line


# Names ----------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("suffix", ["pth", "safetensors"])
@pytest.mark.parametrize("prefix", ["module", "_orig_mod", "_orig_mod.module", "model", "backbone", "student",
                                    "teacher", "encoder", "state_dict.model", "teacher.backbone"])
def test_prefixes(tmp_path, prefix, suffix):
    "D15: refused with a misleading line where timm does not strip them."
    state = random_state()
    held = {f"{prefix}.{key}": tensor for key, tensor in state.items()}
    model = load_model(SMALL, weights=write(tmp_path/f"w.{suffix}", held))
    equal(model, state)
    average = ", an average of the weights along training" if "teacher" in prefix else ""
    assert model.notes == (f"w.{suffix}: the tensors under {prefix} are read{average}",)


def nested(names, state):
    "{'teacher': {'backbone': state}} for teacher.backbone."
    for name in reversed(names.split(".")):
        state = {name: state}
    return state


@pytest.mark.parametrize("wrapper", ["model", "state_dict", "teacher", "student", "encoder.module", "module"])
def test_wrappers(tmp_path, wrapper):
    "D15: beside them are numbers of the training that are none of the model's."
    state = random_state()
    steps = {"step": torch.tensor(7), "exp_avg": torch.full((2,), math.nan)}
    held = nested(wrapper, state) | {"epoch": 3, "optimizer": {"state": {0: steps}}}
    model = load_model(SMALL, weights=write(tmp_path/"w.pth", held))
    equal(model, state)
    [note] = model.notes
    assert note.startswith(f"w.pth: the tensors under {wrapper} are read")
    assert note.endswith(", not 2 others, such as optimizer.state.0.step")


def test_average_of_weights(tmp_path, monkeypatch, capsys):
    "A4: timm's choice, said and kept; in one dictionary, too, and not where there is none."
    monkeypatch.setattr(core, "_SAID", set())
    raw, average = random_state(), random_state(seed=1)
    held, weights = {"state_dict": raw, "state_dict_ema": average}, tmp_path/"w.pth"
    line = ("w.pth: the tensors under state_dict_ema are read, an average of the weights along training, "
            "not those under state_dict")
    model = load_model(SMALL, weights=write(weights, held))
    equal(model, average)
    equal(timm.create_model(SMALL, checkpoint_path=weights), average) # timm's choice
    assert model.notes == (line,) and line in capsys.readouterr().out.splitlines()
    assert load_model(SMALL, weights=weights).notes == (line,) and capsys.readouterr().out == "" # said once
    flat = {f"{key}.{name}": tensor for key, state in held.items() for name, tensor in state.items()}
    equal(load_model(SMALL, weights=write(tmp_path/"w.safetensors", flat)), average)
    equal(load_model(SMALL, weights=write(weights, held | {"state_dict_ema": None})), raw)
    equal(load_model(SMALL, weights=write(weights, {"model": raw, "model_ema": average})), average)


def test_teacher_and_student(tmp_path):
    "D15: DINO's checkpoint; its heads are none of the model's."
    body = {key: tensor for key, tensor in random_state().items() if not key.startswith("head.")}
    def half(factor):
        backbone = {f"backbone.{key}": factor * tensor for key, tensor in body.items()}
        return backbone | {"head.mlp.0.weight": torch.ones(2)}
    model = load_model(SMALL, weights=write(tmp_path/"dino.pth", {"student": half(1), "teacher": half(2)}))
    equal(model, {key: 2 * tensor for key, tensor in body.items()})
    assert model.notes == ("dino.pth: the tensors under teacher.backbone are read, an average of the weights along "
                           "training, not those under student.backbone",)


def test_prefix_of_some(tmp_path):
    "D15: only a prefix that all of the model's tensors share is stripped."
    state, weights = random_state(), tmp_path/"w.pth"
    some = {("module." if "blocks.5" not in key else "") + key: tensor for key, tensor in state.items()}
    refused("w.pth does not fit test_vit: 12 tensors missing (first ['blocks.5.norm1.weight']), 0 not known",
            weights=write(weights, some))
    refused("w.pth does not fit test_vit: 0 tensors missing (first []), 1 not known (first ['module.more'])",
            weights=write(weights, state | {"module.more": torch.ones(1)}))
    refused("must name each tensor once", weights=write(weights, {"a": {"b": torch.ones(1)}, "a.b": torch.ones(1)}))
    for odd in (torch.ones(2), [state]):
        refused("w.pth must be a state dict; it is one", weights=write(weights, odd))


def to_clip(state):
    "As OpenAI's file names an image tower, with a tower of text beside it."
    swaps = (("norm_pre", "ln_pre"), ("norm1", "ln_1"), ("norm2", "ln_2"), ("attn.qkv.", "attn.in_proj_"),
             ("attn.proj", "attn.out_proj"), ("mlp.fc1", "mlp.c_fc"), ("mlp.fc2", "mlp.c_proj"),
             ("blocks.", "transformer.resblocks."), ("patch_embed.proj", "conv1"))
    held = {"token_embedding.weight": torch.ones(9, 4), "vocab_size": torch.tensor(9)}
    for key, tensor in state.items():
        if key.startswith("norm."):
            key = key.replace("norm.", "ln_post.")
        for own, clip in swaps:
            key = key.replace(own, clip)
        held[f"visual.{key}"] = tensor
    for own, clip, change in (("pos_embed", "positional_embedding", lambda tensor: tensor[0]),
                              ("cls_token", "class_embedding", lambda tensor: tensor[0, 0]),
                              ("head.weight", "proj", lambda tensor: tensor.T)):
        held[f"visual.{clip}"] = change(held.pop(f"visual.{own}"))
    del held["visual.head.bias"] # which the original lacks
    return held


@pytest.mark.parametrize("prefix", ["", "module."])
def test_clip(tmp_path, prefix):
    "D15: CLIP's original layout, by timm's conversion; the projection of the image is the head."
    name, weights = "vit_xsmall_patch16_clip_224", tmp_path/"clip.pth"
    state = {key: tensor.half().float() for key, tensor in random_state(name).items()}
    state["head.bias"].zero_()
    held = {prefix + key: tensor for key, tensor in to_clip(state).items()}
    held = {key: tensor.half() if tensor.is_floating_point() else tensor for key, tensor in held.items()}
    model = load_model(name, weights=write(weights, held))
    equal(model, state)
    assert model.notes[-1] == f"clip.pth: timm's conversion makes {len(state)} tensors of its {len(held)}"
    assert len(model.notes) == 1 + bool(prefix) and image_size(name, weights=weights) == 224


def rebuilt(state, name):
    "What a model of one block is given of these tensors."
    body, origin = timm.create_model(name, depth=1), Origin("weights", "w.pth")
    state, notes = converted(state, body, name, origin)
    body.load_state_dict(fitted(state, body, name, origin)[0])
    return body, notes


def test_old_names_of_layer_scale():
    "D15: DeiT III's original files."
    name = "deit3_small_patch16_224"
    state = random_state(name, depth=1)
    old = {re.sub(r"ls(\d)\.gamma", r"gamma_\1", key): tensor for key, tensor in state.items()}
    body, notes = rebuilt(old, name)
    equal(body, state)
    assert old.keys() != state.keys() and len(notes) == 1


@pytest.mark.parametrize("query, keys, value", [(0, 5, 0), (0, 0, 1), (1, 0, 0)])
def test_biases_of_dinov3(query, keys, value):
    "A1, D15: timm drops attention's biases for a model without; the keys' are masked, the others must be 0."
    name = "vit_small_patch16_dinov3"
    state = random_state(name, depth=1)
    old = {re.sub(r"gamma_(\d)", r"ls\1.gamma", key).replace("reg_token", "storage_tokens"): tensor
           for key, tensor in state.items()}
    old["blocks.0.attn.qkv.bias"] = torch.tensor([query, keys, value]).float().repeat_interleave(384)
    if query == value == 0:
        equal(rebuilt(old, name)[0], state)
        return
    line = f"w.pth has biases that {name} lacks, blocks.0.attn.qkv.bias; try the timm name with _qkvb"
    with pytest.raises(ValueError, match=line):
        rebuilt(old, name)


# Training beside the model --------------------------------------------------------------------------------------------

def adamw_state(state):
    "What AdamW keeps of these weights after one step."
    parameters = [torch.nn.Parameter(tensor.clone()) for tensor in state.values()]
    optimizer = torch.optim.AdamW(parameters)
    sum(parameter.sum() for parameter in parameters).backward()
    optimizer.step()
    return optimizer.state_dict()


@pytest.mark.parametrize("wrapper", ["model", "state_dict", "anything"])
@pytest.mark.parametrize("key", ["optimizer", "trainer_state"])
def test_moments_of_the_optimizer(tmp_path, wrapper, key):
    "Moments of a patch embedding look like one; beneath their names is no model, whatever they are called."
    raw = random_state()
    held = {"epoch": 3, "arch": SMALL, "args": argparse.Namespace(lr=1e-3), wrapper: raw, key: adamw_state(raw)}
    weights = write(tmp_path/"w.pth", held)
    model = load_model(SMALL, weights=weights)
    equal(model, raw)
    n = 3 * len(raw)
    assert model.notes == (f"w.pth: the tensors under {wrapper} are read, not {n} others, such as {key}.state.0.step",)
    assert image_size(SMALL, weights=weights) == 160
    held = dict(raw) | {"optimizer": adamw_state(raw)}
    model = load_model(SMALL, weights=write(weights, held))
    equal(model, raw)
    assert model.notes == (f"w.pth: {n} tensors of the training are left out, such as optimizer.state.0.step",)
    refused("1 not known (first ['more'])", weights=write(weights, held | {"more": torch.ones(1)}))
    held = {wrapper: raw | {"more": torch.ones(1)}, key: adamw_state(raw)}
    refused("0 tensors missing (first []), 1 not known (first ['more'])", weights=write(weights, held))


@pytest.mark.parametrize("chosen, other, average", [
    ("model", "ema", False), ("state_dict", "ema_model", False), ("state_dict", "ema_state_dict", False),
    ("model_ema", "model", True), ("module.base_encoder", "module.momentum_encoder", False),
    ("_forward_module.teacher", "_forward_module.student", True), ("teacher", "head.student", True),
])
def test_which_of_two(tmp_path, chosen, other, average):
    "The one that timm would read, and the line names the other; in whichever order they are."
    raw, line = random_state(), f"w.pth: the tensors under {chosen} are read"
    line += ", an average of the weights along training" * average + f", not those under {other}"
    for first, second in ((chosen, other), (other, chosen)):
        values = {chosen: raw, other: {key: torch.zeros_like(tensor) for key, tensor in raw.items()}}
        held = {f"{prefix}.{key}": tensor for prefix in (first, second) for key, tensor in values[prefix].items()}
        model = load_model(SMALL, weights=write(tmp_path/"w.pth", held))
        equal(model, raw)
        assert model.notes == (line,)


def test_two_of_unknown_names(tmp_path):
    raw, weights = random_state(), tmp_path/"w.pth"
    refused("w.pth must hold one model; it has one under a.b and one under a.c",
            weights=write(weights, {"a": {"b": raw, "c": raw}}))
    other = random_state("vit_tiny_patch16_224", depth=6)
    equal(load_model(SMALL, weights=write(weights, {"teacher": other, "student": raw})), raw) # the one that fits
    # beside a model of its own names, another one is not taken in its place
    refused(f"0 tensors missing (first []), {len(raw)} not known", weights=write(weights, raw | {"ema": raw}))


def test_average_without_dots(tmp_path):
    "LitEma's names lack the dots, and fit no model."
    raw = random_state()
    held = {f"model.{key}": tensor for key, tensor in raw.items()}
    held |= {f"model_ema.{key.replace('.', '')}": torch.zeros_like(tensor) for key, tensor in raw.items()}
    held |= {"model_ema.decay": torch.tensor(0.99), "model_ema.num_updates": torch.tensor(5)}
    model = load_model(SMALL, weights=write(tmp_path/"w.pth", {"state_dict": held}))
    equal(model, raw)
    others = f"{len(raw) + 2} others, such as state_dict.model_ema.cls_token"
    assert model.notes == (f"w.pth: the tensors under state_dict.model are read, not {others}",)
    average = {f"model_ema.{key}": tensor for key, tensor in raw.items()}
    assert "average" in load_model(SMALL, weights=write(tmp_path/"w.pth", average)).notes[0]


@pytest.mark.parametrize("prefix", ["vit", "visual_encoder", "trunk", "visual", "backbone.model", "_forward_module",
                                    "base_model.model", "ema"])
def test_prefix_of_any_name(tmp_path, prefix):
    raw, weights = random_state(), tmp_path/"w.pth"
    held = {f"{prefix}.{key}": tensor for key, tensor in raw.items()}
    model = load_model(SMALL, weights=write(weights, held))
    equal(model, raw)
    average = ", an average of the weights along training" if prefix == "ema" else ""
    assert model.notes == (f"w.pth: the tensors under {prefix} are read{average}",)
    refused("0 tensors missing (first []), 1 not known (first ['more'])",
            weights=write(weights, held | {f"{prefix}.more": torch.ones(1)}))


def test_statistics_of_colours(tmp_path):
    "They are of three channels, as a patch embedding."
    raw, ones = random_state(), torch.ones(1, 3, 1, 1)
    statistics = {"normalize.mean": ones, "normalize.std": ones}
    held = {f"model.{key}": tensor for key, tensor in raw.items()} | statistics
    model = load_model(SMALL, weights=write(tmp_path/"w.pth", held))
    equal(model, raw)
    assert model.notes == ("w.pth: the tensors under model are read, not 2 others, such as normalize.mean",)
    refused("2 not known (first ['normalize.mean'])", weights=write(tmp_path/"w.pth", raw | statistics))


# Sizes ----------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("suffix", ["pth", "safetensors"])
@pytest.mark.parametrize("patch", [8, 32])
def test_patches_of_another_size(tmp_path, patch, suffix):
    "A2: they were resampled, with the positions, without a word; also under other names of the tensors."
    state, weights = random_state(patch_size=patch), tmp_path/f"w.{suffix}"
    line = f"`weights`: w.{suffix} has patches of {patch} x {patch} pixels, test_vit of 16 x 16"
    refused(line, weights=write(weights, state))
    refused(line, weights=weights, img_size=160 * 16 // patch)
    with pytest.raises(ValueError, match=re.escape(line)):
        image_size(SMALL, weights=weights)
    refused(line, weights=write(weights, to_clip(state)))


def test_patches_of_an_eva(tmp_path):
    "A2"
    name = "vit_small_patch16_rope_224"
    weights = write(tmp_path/"w.pth", random_state(name, depth=1, patch_size=8))
    refused(f"has patches of 8 x 8 pixels, {name} of 16 x 16", name=name, weights=weights)


@pytest.mark.parametrize("size", [96, 224])
def test_positions_are_interpolated(tmp_path, size):
    "A2, A5: to the size that is given, and said; independently of timm, by torch's bicubic interpolation."
    state, side = random_state(img_size=128), size // 16
    weights = write(tmp_path/"w.safetensors", state)
    model = load_model(SMALL, weights=weights, img_size=size)
    change = f"from a grid of 8 x 8 to {side} x {side}, for images of {size} pixels"
    assert model.notes == (f"w.safetensors: positions are interpolated {change}",)
    assert image_size(SMALL, size, weights) == models.input_config(model).size == size
    grid = state["pos_embed"][:, 1:].reshape(1, 8, 8, 64).permute(0, 3, 1, 2)
    grid = F.interpolate(grid, (side, side), mode="bicubic", antialias=True).permute(0, 2, 3, 1).reshape(1, -1, 64)
    torch.testing.assert_close(model.pos_embed.data, torch.cat([state["pos_embed"][:, :1], grid], 1), rtol=0, atol=0)


@pytest.mark.parametrize("suffix", ["pth", "safetensors"])
def test_size_of_the_file(tmp_path, suffix):
    "A5: a grid is not interpolated where no size is given."
    state = random_state(img_size=128)
    weights = write(tmp_path/f"w.{suffix}", state)
    model = load_model(SMALL, weights=weights)
    equal(model, state)
    assert image_size(SMALL, weights=weights) == models.input_config(model).size == 128
    line = "images of 128 pixels, for which its 8 x 8 positions are, not 160 as is usual for test_vit"
    assert model.notes == (f"w.{suffix}: {line}",)


def test_dinov2(tmp_path, monkeypatch, capsys):
    "A5: the size that its 37 x 37 positions are for, which its name does not say, is said."
    monkeypatch.setattr(core, "_SAID", set())
    name, weights = "vit_small_patch14_dinov2", tmp_path/"dinov2.pth"
    state = random_state(name)
    write(weights, state | {"mask_token": torch.zeros(1, 384)}) # as the original
    model = load_model(name, weights=weights)
    equal(model, state)
    line = "dinov2.pth: images of 518 pixels, for which its 37 x 37 positions are; `img_size` takes another size"
    assert image_size(name, weights=weights) == 518 and line in capsys.readouterr().out.splitlines()
    assert model.notes == (f"dinov2.pth: timm's conversion makes {len(state)} tensors of its {len(state) + 1}",)
    write(weights, state | {"pos_embed": state["pos_embed"][:, :257]})
    assert image_size(name, weights=weights) == models.input_config(load_model(name, weights=weights)).size == 224


@pytest.mark.parametrize("shape", [(1, 100, 64), (1, 102, 64), (101, 64), (64,), (2, 101, 64), (1, 1, 64), (1, 0, 64)])
def test_positions_of_no_grid(tmp_path, shape):
    "D15: without a class token's position, an IndexError."
    weights = write(tmp_path/"w.pth", random_state() | {"pos_embed": torch.zeros(shape)})
    line = (f"`weights`: w.pth has positions of shape {shape}; test_vit needs (1, n, width), n those of a square grid "
            "and 1 more, of class or register tokens")
    for size in (None, 96):
        refused(line, weights=weights, img_size=size)
    with pytest.raises(ValueError, match=re.escape(line)):
        image_size(SMALL, weights=weights)


@pytest.mark.parametrize("key, shape", [
    ("head.weight", (5, 64, 1)), ("head.weight", ()), ("head.weight", (0, 64)), ("patch_embed.proj.weight", ()),
    ("patch_embed.proj.weight", (64, 3, 0, 0)), ("patch_embed.proj.weight", (64, 767)), ("cls_token", (1,)),
    ("norm.weight", (3, 3, 3, 3)),
])
def test_odd_tensors(tmp_path, key, shape):
    "What is of another shape is refused in one line, whatever timm would do with it."
    refused("`weights`: w.pth ", weights=write(tmp_path/"w.pth", random_state() | {key: torch.zeros(shape)}))


def test_runs_keep_notes(tmp_path):
    "A4, A5: images are loaded in the size of the file, and run.json says what was done."
    weights = write(tmp_path/"w.pth", {"state_dict_ema": random_state(img_size=32, num_classes=0)})
    call = dict(model=SMALL, weights=weights, out_dir=tmp_path, progress=False, device="cpu")
    measured = run_plasticity(dataset="mini/digits", source="mini/fashion", n_pairs=2, **call)
    assert len(measured.info["notes"]) == 2 and "state_dict_ema" in measured.info["notes"][0]
    assert measured.info["notes"][1].startswith("w.pth: images of 32 pixels")
    trained = run_finetuning(component="ln1", steps=1, batch_size=2, **call)
    assert trained.info["parameters"]["img_size"] is None and len(trained.table("predictions"))


def test_refused_options():
    "A16"
    refused("`norm_eps` must be a finite number at least 0 and at most 1; got 1e+30", norm_eps=1e30, pretrained=False)
    model = load_model("vit_mini")
    for value in ("no", 0, None):
        with pytest.raises(ValueError, match="`final_norm` must be True or False; got"):
            set_trainable(model, "mha", final_norm=value)

"Every load is exact or refused, and what was done to make a file fit is said and kept in `notes`."
import json
import math
import re

import pytest
import timm
import torch
from safetensors.torch import save_file
from torch.nn import functional as F

from vit_plasticity import core, models
from vit_plasticity.models import image_size, load_model, set_trainable, stream_model

SMALL = "test_vit" # timm's: 160 pixels, patches of 16, width 64, 6 blocks


def random_state(name=SMALL, seed=0, **arguments):
    "Weights of a timm model, each number drawn anew."
    generator = torch.Generator().manual_seed(seed)
    state = timm.create_model(name, **arguments).state_dict()
    return {key: 0.02 * torch.randn(tensor.shape, generator=generator) for key, tensor in state.items()}


def write(path, state):
    "As the name of the file says."
    save_file({key: tensor.contiguous() for key, tensor in state.items()}, path) if path.suffix == ".safetensors" else torch.save(state, path)
    return path


def refused(message, **arguments):
    "In one line, which names the argument."
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        load_model(**{"name": SMALL} | arguments)
    assert "\n" not in str(caught.value) and re.search(r"`\w+`", str(caught.value))


def equal(model, state):
    own = model.state_dict()
    assert own.keys() == state.keys()
    for key, tensor in state.items():
        assert torch.equal(own[key], tensor), key


# Kinds of models ------------------------------------------------------------------------------------------------------

TINY = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)


@pytest.mark.parametrize("made, kind", [("Llama", "llama"), ("ViT", "vit"), ("Dinov2", "dinov2"), ("SiglipVision", "siglip_vision_model"), ("Qwen3", "qwen3")])
def test_other_models_of_transformers(tmp_path, made, kind):
    "A1: their folders were measured as a GPT-2 with random weights."
    import transformers
    more = dict(vocab_size=20, num_key_value_heads=2) if kind in ("llama", "qwen3") else dict(image_size=16, patch_size=8)
    config = getattr(transformers, f"{made}Config")(**TINY, **more)
    getattr(transformers, f"{made}Model")(config).save_pretrained(tmp_path/"folder")
    for pretrained in (True, False):
        refused(f"`model`: 'folder': {kind} is not covered", name=tmp_path/"folder", pretrained=pretrained)
    (tmp_path/"folder/model.safetensors").unlink() # refused by its name, before weights are read
    refused(f"{kind} is not covered", name=tmp_path/"folder")


@pytest.mark.parametrize("text, message", [
    ("{", "its config.json names no model_type"), ("[]", "names no model_type"), ('{"architecture": "vit_small_patch16_224"}', "by its timm name"),
    ('{"model_type": 5}', "5 is not covered"), (json.dumps({"model_type": "a\nb"}), "names no model_type"), (None, "has no config.json"),
])
def test_folders_without_a_kind(tmp_path, text, message):
    "A1"
    (tmp_path/"folder").mkdir()
    if text is not None: (tmp_path/"folder/config.json").write_text(text)
    refused(message, name=str(tmp_path/"folder"))


def test_kinds(tmp_path, monkeypatch):
    "A1: a folder called gpt2 is what its config.json says; a timm name stays one where a folder has it."
    monkeypatch.chdir(tmp_path)
    kinds = {"vit_mini": "vit_mini", "a/b.safetensors": "file", "gpt2": "gpt2", "gpt2-medium": "gpt2", "distilgpt2": "gpt2", "vit_tiny_patch16_224.augreg_in21k": "timm", "nothing": "timm"}
    assert {name: models.model_kind(name) for name in kinds} == kinds
    for name in ("gpt2", "test_vit"):
        (tmp_path/name).mkdir()
        (tmp_path/name/"config.json").write_text('{"model_type": "llama"}')
    refused("llama is not covered", name="gpt2", pretrained=False)
    assert models.model_kind("test_vit") == "timm"
    write(tmp_path/"w.pth", random_state())
    refused("'w.pth' is no .safetensors file; give the timm name, the file as `weights`", name="w.pth")
    write(tmp_path/"w.safetensors", random_state())
    refused("give the timm name as `model` and the file as `weights`", name="w.safetensors")
    refused("`weights` must be the path of a file or folder", weights="~nobody-has-this-name/w.pth")


@pytest.fixture
def gpt2(tmp_path):
    "A language model in a folder, and what its file holds."
    from safetensors.torch import load_file
    from transformers import GPT2Config, GPT2LMHeadModel
    sizes = dict(n_layer=2, n_embd=32, n_head=2, n_positions=16, vocab_size=50, bos_token_id=0, eos_token_id=0)
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(**sizes)).eval()
    model.save_pretrained(tmp_path/"words")
    return tmp_path/"words", load_file(tmp_path/"words/model.safetensors"), model


def test_gpt2_is_exact(gpt2):
    "A1: with and without transformer. before the names, with masks and head as in old files, as .safetensors and .bin."
    folder, state, whole = gpt2
    masks = {f"h.{layer}.attn.bias": torch.ones(1, 1, 16, 16).tril().bool() for layer in range(2)}
    masks |= {f"h.{layer}.attn.masked_bias": torch.tensor(-1e4) for layer in range(2)}
    bare = {name.removeprefix("transformer."): tensor for name, tensor in state.items()}
    numbers = torch.randint(50, (2, 9), generator=torch.Generator().manual_seed(0))
    with torch.no_grad(): expected = whole.transformer(numbers).last_hidden_state
    for held in (state, bare | masks, state | {"lm_head.weight": state["transformer.wte.weight"].clone()}):
        for name in ("model.safetensors", "pytorch_model.bin"):
            (folder/"model.safetensors").unlink(missing_ok=True)
            write(folder/name, held)
            read = load_model(folder)
            with torch.no_grad(): torch.testing.assert_close(read(numbers).last_hidden_state, expected, rtol=0, atol=0)
            assert read.notes == ()


@pytest.mark.parametrize("change, message", [
    (lambda state: state.pop("transformer.h.1.mlp.c_fc.weight"), "1 tensors missing (first ['h.1.mlp.c_fc.weight']), 0 not known"),
    (lambda state: state.update({"score.weight": torch.ones(2, 32)}), "0 tensors missing (first []), 1 not known (first ['score.weight'])"),
    (lambda state: state.update({"transformer.h.2.ln_1.weight": torch.ones(32)}), "1 not known"),
    (lambda state: state.update({"transformer.ln_f.bias": torch.ones(31)}), "size mismatch, ln_f.bias has shape (31,) and not (32,)"),
    (lambda state: state.update({"transformer.ln_f.bias": torch.ones(32, dtype=torch.int8)}), "must be floating-point numbers; ln_f.bias is torch.int8"),
    (lambda state: state.update({"transformer.ln_f.bias": torch.full((32,), torch.nan)}), "must be finite numbers in float32; ln_f.bias"),
    (lambda state: state.update({"ln_f.bias": torch.ones(32)}), "names some tensors twice"),
])
def test_gpt2_that_does_not_fit(gpt2, change, message):
    "A1, A3: missing tensors were drawn anew, unknown ones left out."
    folder, state, _ = gpt2
    change(state)
    write(folder/"model.safetensors", state)
    refused(message, name=folder)


def test_gpt2_of_the_hub(gpt2, monkeypatch):
    "A1: transformers fetches it as before; what it would have drawn anew or left out is refused."
    from transformers import GPT2Config, GPT2Model
    (folder, state, _), asked = gpt2, []
    read, config = GPT2Model.from_pretrained, GPT2Config.get_config_dict
    monkeypatch.setattr(GPT2Model, "from_pretrained", lambda name, **options: (asked.append(name), read(folder, **options))[1])
    monkeypatch.setattr(GPT2Config, "get_config_dict", lambda name, **options: (asked.append(name), config(folder, **options))[1])
    bare = {name.removeprefix("transformer."): tensor for name, tensor in state.items()}
    write(folder/"model.safetensors", bare | {"h.0.attn.masked_bias": torch.tensor(-1e4)})
    assert torch.equal(load_model("gpt2").wte.weight, bare["wte.weight"]) and asked == ["gpt2", "gpt2"]
    write(folder/"model.safetensors", {name: tensor for name, tensor in bare.items() if name != "ln_f.bias"})
    refused("the hub's gpt2 does not fit its config.json: 1 tensors are missing, not known or of another shape, such as ln_f.bias", name="gpt2")
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
    [note] = load_model(SMALL, img_size=96).notes
    assert note == "the hub's file of test_vit: positions are interpolated from a grid of 10 x 10 to 6 x 6, for images of 96 pixels"
    hub["more"] = torch.ones(1)
    refused("`model`: the hub's file of test_vit does not fit test_vit: 0 tensors missing (first []), 1 not known (first ['more'])")
    del hub["more"], hub["head.weight"]
    refused("1 tensors missing (first ['head.weight'])")
    hub.update(random_state(patch_size=8))
    refused("`model`: the hub's file of test_vit has patches of 8 x 8 pixels, test_vit of 16 x 16")


@pytest.mark.parametrize("name, written", [("flexivit_small", {}), ("vit_base_patch16_siglip_gap_224", {"attn_pool.latent": torch.ones(1, 1, 768)}), ("vit_base_patch16_radio_v3", {"pos_embed": torch.randn(1, 40**2, 768)}), ("vit_so400m_patch16_radio_v4", {"pos_embed": torch.randn(1, 36**2, 1152)})])
def test_hub_reads_as_timm_does(hub, monkeypatch, name, written):
    "A1: models that timm interpolates in ways of their own, or reads leniently, give what timm's own loading gives."
    arguments = {"depth": 1}
    make = timm.create_model
    monkeypatch.setattr(timm, "create_model", lambda name, **given: make(name, **arguments | given))
    hub.update(random_state(name, **arguments) | written)
    for size in ({}, {"img_size": 96}):
        assert load_model(name, **size).notes or not (size or written)
        equal(load_model(name, **size), make(name, pretrained=True, **arguments, **size).state_dict())


# Numbers --------------------------------------------------------------------------------------------------------------

NUMBERS = [("int8", torch.int8, 3), ("int32", torch.int32, -6), ("bool", torch.bool, True), ("complex", torch.complex64, 1j), ("huge", torch.float64, 1e300), ("inf", torch.float32, math.inf), ("nan", torch.float16, math.nan)]


@pytest.mark.parametrize("suffix", ["pth", "safetensors"])
@pytest.mark.parametrize("label, dtype, value", NUMBERS, ids=[label for label, *_ in NUMBERS])
def test_numbers_that_are_no_weights(tmp_path, suffix, label, dtype, value):
    "A3: a .pth of them was read; weights like -6, infinities."
    state = random_state()
    state["blocks.3.mlp.fc1.bias"] = torch.full((256,), value, dtype=dtype)
    message = "must be finite numbers in float32; " if label in ("huge", "inf", "nan") else "must be floating-point numbers; "
    refused(f"`weights`: w.{suffix} {message}blocks.3.mlp.fc1.bias", weights=write(tmp_path/f"w.{suffix}", state))


def test_narrow_and_wide_numbers(tmp_path):
    "A3: half precision, bfloat16 and doubles are read as the numbers they are."
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        state = {key: tensor.to(dtype) for key, tensor in random_state().items()}
        equal(load_model(SMALL, weights=write(tmp_path/"w.pth", state)), {key: tensor.float() for key, tensor in state.items()})
    with pytest.raises(ValueError, match="must have finite weights in half precision; cls_token has others"):
        model = load_model(SMALL, pretrained=False)
        model.cls_token.data += 1e5
        models.save_model(model, tmp_path/"w.safetensors", {})


def test_streamed_numbers(tmp_path):
    "A3, A16"
    state = random_state(num_classes=0)
    state["blocks.1.mlp.fc1.bias"][0] = math.inf
    streamed = stream_model(SMALL, write(tmp_path/"w.safetensors", state))
    assert streamed.notes == () and len(streamed.blocks[0].fc1.weight)
    with pytest.raises(ValueError, match=r"w.safetensors must be finite numbers in float32; blocks.1.mlp.fc1.bias"): streamed.blocks[1]
    for depth in (0, -1, 1.5, True):
        with pytest.raises(ValueError, match="`depth` must be a whole number at least 1; got"): stream_model(SMALL, tmp_path/"w.safetensors", depth=depth)


# Names ----------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("suffix", ["pth", "safetensors"])
@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "_orig_mod.module.", "model.", "backbone.", "student.", "teacher.", "encoder.", "state_dict.model.", "teacher.backbone."])
def test_prefixes(tmp_path, prefix, suffix):
    "D15: refused with a misleading line where timm does not strip them."
    state = random_state()
    model = load_model(SMALL, weights=write(tmp_path/f"w.{suffix}", {prefix + key: tensor for key, tensor in state.items()}))
    equal(model, state)
    [note] = model.notes
    assert note.startswith(f"w.{suffix}: the tensors under {prefix[:-1]} are read") and ("average" in note) == ("teacher" in prefix)


def nested(names, state):
    "{'teacher': {'backbone': state}} for teacher.backbone."
    for name in reversed(names.split(".")): state = {name: state}
    return state


@pytest.mark.parametrize("wrapper", ["model", "state_dict", "teacher", "student", "encoder.module", "module"])
def test_wrappers(tmp_path, wrapper):
    "D15: beside them are numbers of the training that are none of the model's."
    state = random_state()
    extra = {"epoch": 3, "optimizer": {"state": {0: {"step": torch.tensor(7), "exp_avg": torch.full((2,), math.nan)}}}}
    model = load_model(SMALL, weights=write(tmp_path/"w.pth", nested(wrapper, state) | extra))
    equal(model, state)
    assert model.notes[0].startswith(f"w.pth: the tensors under {wrapper} are read") and model.notes[0].endswith(", not 2 others, such as optimizer.state.0.step")


def test_average_of_weights(tmp_path, monkeypatch, capsys):
    "A4: timm's choice, said and kept; with the tensors side by side in one dictionary, and with none, too."
    monkeypatch.setattr(core, "_SAID", set())
    raw, average = random_state(), random_state(seed=1)
    held = {"state_dict": raw, "state_dict_ema": average}
    line = "w.pth: the tensors under state_dict_ema are read, an average of the weights along training, not those under state_dict"
    model = load_model(SMALL, weights=write(tmp_path/"w.pth", held))
    equal(model, average)
    assert model.notes == (line,) and capsys.readouterr().out == f"{line}\n"
    equal(timm.create_model(SMALL, checkpoint_path=tmp_path/"w.pth"), average) # timm's choice
    assert load_model(SMALL, weights=tmp_path/"w.pth").notes == (line,) and capsys.readouterr().out == "" # said once
    flat = {f"{key}.{name}": tensor for key, state in held.items() for name, tensor in state.items()}
    equal(load_model(SMALL, weights=write(tmp_path/"w.safetensors", flat)), average)
    equal(load_model(SMALL, weights=write(tmp_path/"w.pth", held | {"state_dict_ema": None})), raw)
    equal(load_model(SMALL, weights=write(tmp_path/"w.pth", {"model": raw, "model_ema": average})), average)


def test_teacher_and_student(tmp_path):
    "D15: DINO's checkpoint; its heads are none of the model's."
    body = {key: tensor for key, tensor in random_state().items() if not key.startswith("head.")}
    heads = {"head.mlp.0.weight": torch.ones(2, 2)}
    held = {name: {f"backbone.{key}": tensor * scale for key, tensor in body.items()} | heads for name, scale in (("student", 1), ("teacher", 2))}
    model = load_model(SMALL, weights=write(tmp_path/"dino.pth", held))
    equal(model, {key: 2 * tensor for key, tensor in body.items()})
    assert model.notes == ("dino.pth: the tensors under teacher.backbone are read, an average of the weights along training, not those under student.backbone",)


def test_prefix_of_some(tmp_path):
    "D15: only a prefix that all of the model's tensors share is stripped."
    state = random_state()
    some = {("module." if "blocks.5" not in key else "") + key: tensor for key, tensor in state.items()}
    refused("w.pth does not fit test_vit: 12 tensors missing (first ['blocks.5.norm1.weight']), 0 not known", weights=write(tmp_path/"w.pth", some))
    refused("w.pth does not fit test_vit: 0 tensors missing (first []), 1 not known (first ['module.more'])", weights=write(tmp_path/"w.pth", state | {"module.more": torch.ones(1)}))
    refused("must name each tensor once", weights=write(tmp_path/"w.pth", {"a": {"b": torch.ones(1)}, "a.b": torch.ones(1)}))
    for odd in (torch.ones(2), [state]): refused("w.pth must be a state dict; it is one", weights=write(tmp_path/"w.pth", odd))


def to_clip(state):
    "As OpenAI's file names an image tower, with a tower of text beside it."
    swaps = (("norm_pre", "ln_pre"), ("norm1", "ln_1"), ("norm2", "ln_2"), ("attn.qkv.", "attn.in_proj_"), ("attn.proj", "attn.out_proj"), ("mlp.fc1", "mlp.c_fc"), ("mlp.fc2", "mlp.c_proj"),
             ("blocks.", "transformer.resblocks."), ("patch_embed.proj", "conv1"), ("pos_embed", "positional_embedding"), ("cls_token", "class_embedding"))
    renamed = {}
    for key, tensor in state.items():
        if key == "head.bias": continue
        if key == "head.weight": key, tensor = "proj", tensor.T
        elif key.startswith("norm."): key = key.replace("norm.", "ln_post.")
        for own, clip in swaps: key = key.replace(own, clip)
        if key in ("positional_embedding", "class_embedding"): tensor = tensor[0] if key[0] == "p" else tensor[0, 0]
        renamed[f"visual.{key}"] = tensor.half()
    return renamed | {"token_embedding.weight": torch.ones(9, 4).half(), "logit_scale": torch.tensor(1.0), "vocab_size": torch.tensor(9)}


@pytest.mark.parametrize("prefix", ["", "module."])
def test_clip(tmp_path, prefix):
    "D15: CLIP's original layout, by timm's conversion; the projection of the image is the head."
    name = "vit_xsmall_patch16_clip_224"
    state = {key: tensor.half().float() for key, tensor in random_state(name).items() if key != "patch_embed.proj.bias"}
    state["head.bias"] = torch.zeros_like(state["head.bias"]) # the original has none
    held = {prefix + key: tensor for key, tensor in to_clip(state).items()}
    model = load_model(name, weights=write(tmp_path/"clip.pth", held))
    equal(model, state)
    assert model.notes[-1] == f"clip.pth: timm's conversion makes {len(state)} tensors of its {len(held)}" and image_size(name, weights=tmp_path/"clip.pth") == 224


def test_deit3_and_dinov3(tmp_path):
    "D15: LayerScale under its old name; attention's biases, which timm drops for models without, must be 0 there."
    state = random_state("deit3_small_patch16_224", depth=1)
    old = {re.sub(r"ls(\d)\.gamma", r"gamma_\1", key): tensor for key, tensor in state.items()}
    assert old.keys() != state.keys()
    probe, origin = timm.create_model("deit3_small_patch16_224", depth=1), models._Origin("weights", "w.pth")
    after, notes = models._converted(old, probe, "deit3_small_patch16_224", origin)
    assert after.keys() == state.keys() and len(notes) == 1
    name = "vit_small_patch16_dinov3"
    body = timm.create_model(name, depth=1)
    facebook = {key.replace("gamma_1", "ls1.gamma").replace("gamma_2", "ls2.gamma").replace("reg_token", "storage_tokens"): tensor for key, tensor in random_state(name, depth=1).items()}
    for values, allowed in (((0, 5, 0), True), ((0, 0, 1), False), ((1, 0, 0), False)):
        biases = {"blocks.0.attn.qkv.bias": torch.tensor(values).repeat_interleave(384).float()}
        convert = lambda: models._fitted(models._converted(facebook | biases, body, name, origin)[0], body, name, origin)
        if allowed: assert convert()[0].keys() == body.state_dict().keys()
        else:
            with pytest.raises(ValueError, match="has biases that vit_small_patch16_dinov3 lacks, blocks.0.attn.qkv.bias; try the timm name with _qkvb"): convert()


# Sizes ----------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("suffix", ["pth", "safetensors"])
@pytest.mark.parametrize("patch", [8, 32])
def test_patches_of_another_size(tmp_path, patch, suffix):
    "A2: they were resampled, with the positions, without a word; also under other names of the tensors."
    state = random_state(patch_size=patch)
    line = f"`weights`: w.{suffix} has patches of {patch} x {patch} pixels, test_vit of 16 x 16"
    refused(line, weights=write(tmp_path/f"w.{suffix}", state))
    refused(line, weights=tmp_path/f"w.{suffix}", img_size=160 * 16 // patch)
    with pytest.raises(ValueError, match=re.escape(line)): image_size(SMALL, weights=tmp_path/f"w.{suffix}")
    refused(line, weights=write(tmp_path/f"w.{suffix}", to_clip(state)))


def test_patches_of_an_eva(tmp_path):
    "A2"
    state = random_state("vit_small_patch16_rope_224", depth=1, patch_size=8)
    refused("has patches of 8 x 8 pixels, vit_small_patch16_rope_224 of 16 x 16", name="vit_small_patch16_rope_224", weights=write(tmp_path/"w.pth", state))


@pytest.mark.parametrize("given", [None, 96, 224])
def test_positions_are_interpolated(tmp_path, given):
    "A2, A5: to the size that is given, and said; None: the file's own. The interpolation is torch's bicubic one."
    state = random_state(img_size=128)
    weights = write(tmp_path/"w.safetensors", state)
    model = load_model(SMALL, weights=weights, img_size=given)
    size = given or 128
    assert image_size(SMALL, given, weights) == model.patch_embed.img_size[0] == models.input_config(model).size == size
    if given is None:
        equal(model, state)
        assert model.notes == ("w.safetensors: images of 128 pixels, for which its 8 x 8 positions are, not 160 as is usual for test_vit",)
        return
    assert model.notes == (f"w.safetensors: positions are interpolated from a grid of 8 x 8 to {size // 16} x {size // 16}, for images of {size} pixels",)
    grid = state["pos_embed"][:, 1:].reshape(1, 8, 8, 64).permute(0, 3, 1, 2)
    grid = F.interpolate(grid, (size // 16, size // 16), mode="bicubic", antialias=True).permute(0, 2, 3, 1).reshape(1, -1, 64)
    torch.testing.assert_close(model.pos_embed.data, torch.cat([state["pos_embed"][:, :1], grid], 1), rtol=0, atol=0)


def test_dinov2(tmp_path, monkeypatch, capsys):
    "A5: the size that its 37 x 37 positions are for, which its name does not say, is said; another grid is not interpolated unasked."
    monkeypatch.setattr(core, "_SAID", set())
    name = "vit_small_patch14_dinov2"
    state = random_state(name)
    weights = write(tmp_path/"dinov2.pth", state | {"mask_token": torch.zeros(1, 384)}) # as the original
    model = load_model(name, weights=weights)
    equal(model, state)
    assert image_size(name, weights=weights) == 518 and "dinov2.pth: images of 518 pixels, for which its 37 x 37 positions are; `img_size` takes another size\n" in capsys.readouterr().out
    assert model.notes == (f"dinov2.pth: timm's conversion makes {len(state)} tensors of its {len(state) + 1}",)
    few = write(tmp_path/"few.pth", state | {"pos_embed": state["pos_embed"][:, :257]})
    assert image_size(name, weights=few) == load_model(name, weights=few).patch_embed.img_size[0] == 224
    assert image_size(name, 98, few) == load_model(name, weights=few, img_size=98).patch_embed.img_size[0] == 98


@pytest.mark.parametrize("shape", [(1, 100, 64), (1, 102, 64), (101, 64), (64,), (2, 101, 64), (1, 1, 64), (1, 0, 64)])
def test_positions_of_no_grid(tmp_path, shape):
    "D15: without a class token's position, an IndexError."
    weights = write(tmp_path/"w.pth", random_state() | {"pos_embed": torch.zeros(shape)})
    line = f"`weights`: w.pth has positions of shape {shape}; test_vit needs (1, n, width), n those of a square grid and 1 more, of class or register tokens"
    for size in (None, 96): refused(line, weights=weights, img_size=size)
    with pytest.raises(ValueError, match=re.escape(line)): image_size(SMALL, weights=weights)


def test_odd_tensors(tmp_path):
    "What is of another shape is named, whatever timm would do with it."
    for key, shape in (("head.weight", (5, 64, 1)), ("head.weight", ()), ("head.weight", (0, 64)), ("patch_embed.proj.weight", (64, 3, 0, 0)), ("patch_embed.proj.weight", (64, 767)), ("patch_embed.proj.weight", ()), ("cls_token", (1,)), ("norm.weight", (3, 3, 3, 3))):
        refused("`weights`: w.pth ", weights=write(tmp_path/"w.pth", random_state() | {key: torch.zeros(shape)}))


def test_refused_options():
    "A16"
    refused("`norm_eps` must be a finite number at least 0 and at most 1; got 1e+30", norm_eps=1e30, pretrained=False)
    model = load_model("vit_mini")
    for value in ("no", 0, None):
        with pytest.raises(ValueError, match="`final_norm` must be True or False; got"): set_trainable(model, "mha", final_norm=value)

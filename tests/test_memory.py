"Memory of the plasticity engine: it does not grow with the number of pairs, nor with the depth of a streamed model. Peaks are those of fresh processes."
import shutil
import subprocess
import sys

import pytest
import torch
from safetensors.torch import save_file

PEAK = """
import sys, torch, vit_plasticity.plasticity
from pathlib import Path
def status(key): return int(next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(key)).split()[1]) * 1024
"""


def peak(code, *arguments): # bytes
    done = subprocess.run([sys.executable, "-c", PEAK + code + "\nprint(status('VmHWM') - before)", *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return int(done.stdout.split()[-1])


@pytest.mark.parametrize("pairs", [1024, pytest.param(4096, marks=pytest.mark.long)])
def test_memory_is_flat_in_pairs(pairs):
    code = """
from vit_plasticity.models import load_model
from vit_plasticity.plasticity import sample_rates
images = torch.randint(256, (2, 4096, 3, 28, 28), dtype=torch.uint8)
model, inputs = load_model(), sys.argv[2]
before = status("VmRSS")
rates = sample_rates(model, *images, int(sys.argv[1]), inputs=inputs, progress=False, batch_size=64)
assert rates.pair.nunique() == int(sys.argv[1])
"""
    for inputs in ("embedding", "in_situ"):
        few, many = peak(code, 64, inputs), peak(code, pairs, inputs)
        # what it needs, whatever the allocator keeps
        if many >= few + 2**25: many = min(many, peak(code, pairs, inputs))
        # a table of 30 rows a pair; the outputs of all components would take 0.4 GB for 1,024 pairs
        assert many < few + 2**25, (inputs, few, many)


def write_shards(folder, blocks, dim, hidden): # of a DINOv3 with a gated MLP: one file a block, random, in half precision as published
    generator = torch.Generator().manual_seed(0)
    def random(*shape): return (0.02 * torch.randn(shape, generator=generator)).to(torch.bfloat16)
    save_file({"cls_token": random(1, 1, dim), "reg_token": random(1, 4, dim), "patch_embed.proj.weight": random(dim, 3, 16, 16), "patch_embed.proj.bias": random(dim)}, folder/"rest.safetensors")
    block = {f"{norm}.{part}": random(dim) + (part == "weight") for norm in ("norm1", "norm2") for part in ("weight", "bias")} | {"gamma_1": random(dim), "gamma_2": random(dim)}
    block |= {"attn.qkv.weight": random(3 * dim, dim), "attn.proj.weight": random(dim, dim), "attn.proj.bias": random(dim)}
    for gate in "gx": block |= {f"mlp.fc1_{gate}.weight": random(hidden, dim), f"mlp.fc1_{gate}.bias": random(hidden)}
    block |= {"mlp.fc2.weight": random(dim, hidden), "mlp.fc2.bias": random(dim)}
    for layer in range(blocks): save_file({f"blocks.{layer}.{name}": tensor for name, tensor in block.items()}, folder/f"block{layer}.safetensors")


STREAMED = { # model -> width of tokens and of the MLP, blocks, and the most memory, bytes
    "vit_huge_plus_patch16_dinov3.lvd1689m": (1280, 5120, (2, 10), 2 * 2**30),
    "vit_7b_patch16_dinov3.lvd1689m": (4096, 8192, (3, 6), 6 * 2**30),
}


@pytest.mark.parametrize("name", [name if "7b" not in name else pytest.param(name, marks=pytest.mark.long) for name in STREAMED])
def test_streamed_memory_is_flat_in_depth(name, tmp_path):
    code = """
before = 0
from vit_plasticity.models import stream_model
from vit_plasticity.plasticity import sample_rates
images = torch.randint(256, (2, 2, 3, 224, 224), dtype=torch.uint8)
model = stream_model(sys.argv[1], sys.argv[2], img_size=224, depth=int(sys.argv[3]))
for inputs in ("embedding", "in_situ"):
    rates = sample_rates(model, *images, 2, inputs=inputs, progress=False)
    assert rates.layer.nunique() == int(sys.argv[3]) and (rates.rate > 0).all()
"""
    dim, hidden, depths, most = STREAMED[name]
    peaks, sizes = [], []
    for blocks in depths:
        folder = tmp_path/str(blocks)
        folder.mkdir()
        write_shards(folder, blocks, dim, hidden)
        sizes.append(sum(file.stat().st_size for file in folder.iterdir()))
        peaks.append(peak(code, name, folder, blocks))
        shutil.rmtree(folder)
    # Kept in memory, the further blocks would take what their files do, in half precision.
    assert peaks[1] - peaks[0] < (sizes[1] - sizes[0]) / 4 and peaks[1] < most, (peaks, sizes)

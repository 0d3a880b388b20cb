"Exact counts of trainable parameters for the paper's three models, by their timm names (paper's table of trainable parameters)."
import pytest
import timm
import torch

from vit_plasticity.models import set_trainable

COUNTS = { # component: ViT-B, ViT-L, ViT-H
    "mha": (28_348_416, 100_761_600, 209_879_040), "fc1": (28_348_416, 100_761_600, 209_879_040), "fc2": (28_320_768, 100_687_872, 209_756_160),
    "ln2": (18_432, 49_152, 81_920), "ln1": (18_432, 49_152, 81_920)}
BACKBONES = (85_798_656, 303_301_632, 630_764_800)
NAMES = ("vit_base_patch16_224.orig_in21k", "vit_large_patch16_224.orig_in21k", "vit_huge_patch14_224.orig_in21k")


@pytest.mark.parametrize("i", range(3), ids=NAMES)
def test_counts(i):
    with torch.device("meta"): model = timm.create_model(NAMES[i], num_classes=10)
    dim = model.embed_dim
    for component, counts in COUNTS.items():
        report = set_trainable(model, component)
        assert report == (counts[i], 2 * dim, 10 * dim + 10)
        assert report.total == sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert set_trainable(model, "all").total == BACKBONES[i] + 10 * dim + 10
    assert set_trainable(model, "head") == (0, 2 * dim, 10 * dim + 10)

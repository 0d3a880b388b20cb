"What is of one family of models, or of one library, stands in `models/` and nowhere else."
import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent/"vit_plasticity"
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if "models" not in path.parts and path.name != "_modidx.py")
LIBRARIES = ("timm", "transformers", "torchvision", "open_clip")
# attributes of their models
FOREIGN = {"norm1", "norm2", "attn", "qkv", "mlp", "patch_embed", "pos_embed", "pos_drop", "cls_token", "fc_norm", "norm_pre",
           "reset_classifier", "forward_features", "forward_head", "embed_dim", "num_heads", "num_classes",
           "num_prefix_tokens", "pretrained_cfg", "default_cfg", "q_proj", "k_proj", "v_proj", "proj", "ls1", "ls2",
           "c_attn", "c_proj", "c_fc", "wte", "wpe", "ln_f", "lm_head", "encoder", "embeddings", "classifier",
           "attention", "intermediate", "layernorm_before", "layernorm_after"}
# these are ours as well, of maps, counts and families; of a model they are timm's
OF_MODELS = {"blocks", "head", "norm", "fc1", "fc2", "layers"}
MODEL_NAMES = {"model", "network", "net", "vit", "empty", "self.model"}
PATHS = ("norm1.", "norm2.", "attn.", "mlp.", "head.", "blocks.", "encoder.", "patch_embed.", "layer.")
# module and what it says there -> why
EXCEPTIONS = {}


def library_names(tree): # names under which classes of the libraries are imported
    names = set(LIBRARIES)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in LIBRARIES:
            names |= {alias.asname or alias.name for alias in node.names}
    return names


def docstrings(tree):
    owners = (ast.Module, ast.ClassDef, ast.FunctionDef)
    return {id(node.body[0].value) for node in ast.walk(tree) if isinstance(node, owners) and node.body
            and isinstance(node.body[0], ast.Expr)}


def violations(source):
    tree = ast.parse(source)
    libraries, prose = library_names(tree), docstrings(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            of_model = node.attr in OF_MODELS and ast.unparse(node.value) in MODEL_NAMES
            if node.attr in FOREIGN or of_model: yield ast.unparse(node)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("isinstance", "issubclass"):
            inside = {part.id for part in ast.walk(node.args[1]) if isinstance(part, ast.Name)}
            if inside & libraries: yield ast.unparse(node)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "hasattr"):
            if isinstance(node.args[1], ast.Constant) and node.args[1].value in FOREIGN: yield ast.unparse(node)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            if any(part in node.value for part in PATHS) and " " not in node.value: yield repr(node.value)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_families_stand_in_models(path):
    name = path.relative_to(PACKAGE).as_posix()
    assert not [found for found in violations(path.read_text()) if (name, found) not in EXCEPTIONS]


def test_exceptions_are_few_and_real():
    found = {(path.relative_to(PACKAGE).as_posix(), one) for path in MODULES for one in violations(path.read_text())}
    assert len(EXCEPTIONS) <= 5 and EXCEPTIONS.keys() <= found and all(EXCEPTIONS.values())


@pytest.mark.parametrize("source", [
    "model.blocks[0].norm1", "x.attn.qkv", "self.model.head", "isinstance(m, timm.models.VisionTransformer)",
    "from timm.layers import Mlp\nisinstance(m, (int, Mlp))", "getattr(m, 'mlp')", "name.startswith('blocks.')",
])
def test_violations_are_seen(source): assert [*violations(source)]

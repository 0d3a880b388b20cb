"Published data sets in small files of the original formats, one's own folders, downloads, and the store of decoded photos: what is right is loaded, what is wrong is named in one line."
import hashlib
import io
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import time
import warnings
import zipfile
import zlib
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.io import savemat

from vit_plasticity import data
from vit_plasticity.core import manifest
from vit_plasticity.data import load_dataset, load_text

RNG = np.random.RandomState(0)


def refused(message, call):
    with pytest.raises(ValueError) as caught: call()
    assert message in str(caught.value) and "\n" not in str(caught.value), str(caught.value)


@pytest.fixture
def published(monkeypatch):
    "Change what the manifest says of a set, e.g. its numbers of images, which are too large for a test."
    entries = manifest("published")
    monkeypatch.setattr(data, "manifest", lambda kind: entries if kind == "published" else manifest(kind))
    return entries


# CIFAR

class Python2Pickler(pickle._Pickler):
    "Writes texts and bytes as Python 2 did, as in CIFAR's files."
    def save_string(self, value):
        value = value.encode() if isinstance(value, str) else value
        self.write(pickle.BINSTRING + len(value).to_bytes(4, "little") + value)
        self.memoize(value)
    dispatch = {**pickle._Pickler.dispatch, str: save_string, bytes: save_string}


def python2_pickle(value):
    stream = io.BytesIO()
    Python2Pickler(stream, protocol=2).dump(value)
    return stream.getvalue().replace(b"numpy._core.multiarray", b"numpy.core.multiarray")


def write_cifar(folder, name="cifar10", n=20):
    "Returns the images (n, 32, 32, 3) of the training and test files."
    ten = name == "cifar10"
    files = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"] if ten else ["train", "test"]
    root = folder/("cifar-10-batches-py" if ten else "cifar-100-python")
    root.mkdir(parents=True)
    images = []
    for file in files:
        images.append(RNG.randint(0, 256, (n, 32, 32, 3), np.uint8))
        labels = [i % (10 if ten else 100) for i in range(n)]
        rows = images[-1].transpose(0, 3, 1, 2).reshape(n, -1) # red, green and blue plane of each image
        (root/file).write_bytes(python2_pickle({"data": rows, "labels" if ten else "fine_labels": labels, "filenames": ["a.png"] * n}))
    names = {"label_names": [f"class {i}" for i in range(10)]} if ten else {"fine_label_names": [f"class {i}" for i in range(100)]}
    (root/("batches.meta" if ten else "meta")).write_bytes(python2_pickle(names))
    return np.concatenate(images[:-1]), images[-1]


def as_bytes(images): return [image.permute(1, 2, 0).numpy().tobytes() for image in images]


def test_cifar10(tmp_path, published):
    train, test = write_cifar(tmp_path)
    refused("cifar10 must have 50,000 train images; its files have 100", lambda: load_dataset("cifar10", tmp_path))
    published["cifar10"]["images"] = {"train": 100, "test": 20}
    cifar = load_dataset("cifar10", tmp_path)
    assert cifar.name == "cifar10@42" and cifar.classes[3] == "class 3" and [len(split.labels) for split in (cifar.train, cifar.val, cifar.test)] == [80, 20, 20]
    assert as_bytes(cifar.test.images) == [image.tobytes() for image in test] and cifar.test.labels.tolist() == [i % 10 for i in range(20)]
    assert sorted(as_bytes(cifar.train.images) + as_bytes(cifar.val.images)) == sorted(image.tobytes() for image in train) # disjoint, all
    where = {image.tobytes(): i % 20 % 10 for i, image in enumerate(train)}
    for split in (cifar.train, cifar.val): assert [where[image] for image in as_bytes(split.images)] == split.labels.tolist()
    other = load_dataset("cifar10@7", tmp_path)
    assert load_dataset("cifar10@42", tmp_path).sha256 == cifar.sha256 != other.sha256 and other.name == "cifar10@7"


def test_cifar100_and_low_data(tmp_path, published):
    write_cifar(tmp_path, "cifar100", n=1_200)
    published["cifar100"]["images"] = {"train": 1_200, "test": 1_200}
    assert len(load_dataset("cifar100", tmp_path).train.labels) == 960
    low = load_dataset("cifar100/low", tmp_path)
    assert [len(split.labels) for split in (low.train, low.val, low.test)] == [800, 200, 1_200] and low.name == "cifar100/low@42" # the paper's sizes
    assert torch.bincount(torch.cat([low.train.labels, low.val.labels])).tolist() == [10] * 100


class Hostile:
    def __init__(self, path): self.path = path
    def __reduce__(self): return os.system, (f"touch {self.path}",)


@pytest.mark.parametrize("spoil, message", [
    (lambda content, path: pickle.dumps({"data": Hostile(path)}, 2), "which no file of CIFAR does"),
    (lambda content, path: pickle.dumps(Hostile(path), 4), "which no file of CIFAR does"),
    (lambda content, path: f"cbuiltins\nexec\n(Vopen({str(path)!r}, 'w')\ntR.".encode(), "builtins.exec"),
    (lambda content, path: content[:len(content) // 2], "can't be read"), (lambda content, path: b"", "can't be read"), (lambda content, path: b"\x00" + content[1:], "can't be read"),
    (lambda content, path: python2_pickle({"data": np.zeros((20, 3_071), np.uint8), "labels": [0] * 20}), "does not hold images of 3,072 bytes"),
    (lambda content, path: python2_pickle({"data": np.zeros((20, 3_072), np.uint8), "labels": [0] * 19}), "does not hold images of 3,072 bytes"),
    (lambda content, path: python2_pickle({"data": np.zeros((20, 3_072), np.uint8), "labels": [10] * 20}), "labels of cifar10 must lie in 0 ... 9; its files have 0 ... 10"),
    (lambda content, path: python2_pickle([1, 2]), "does not hold images"), (lambda content, path: None, "the file data_batch_2 is missing")])
def test_spoiled_pickle(tmp_path, published, spoil, message):
    write_cifar(tmp_path)
    published["cifar10"]["images"] = {"train": 100, "test": 20}
    path, marker = tmp_path/"cifar-10-batches-py"/"data_batch_2", tmp_path/"marker"
    content = spoil(path.read_bytes(), marker)
    path.unlink()
    if content is not None: path.write_bytes(content)
    refused(message, lambda: load_dataset("cifar10", tmp_path))
    assert not marker.exists()


def write_cifar10c(folder, n=50):
    (folder/"CIFAR-10-C").mkdir()
    images = RNG.randint(0, 256, (5 * n, 32, 32, 3), np.uint8)
    np.save(folder/"CIFAR-10-C"/"snow.npy", images)
    np.save(folder/"CIFAR-10-C"/"labels.npy", np.tile(np.arange(n) % 10, 5).astype(np.uint8))
    return images


def test_cifar10c(tmp_path, published):
    images = write_cifar10c(tmp_path)
    published["cifar10c"]["images"] = {"all": 50}
    for severity in (1, 5):
        snow = load_dataset(f"cifar10c/snow/{severity}", tmp_path)
        assert snow.name == f"cifar10c/snow/{severity}@42" and [len(split.labels) for split in (snow.train, snow.val, snow.test)] == [32, 8, 10]
        label = {image.tobytes(): i % 10 for i, image in enumerate(images[50 * (severity - 1):50 * severity])}
        for split in (snow.train, snow.val, snow.test): assert [label.pop(image) for image in as_bytes(split.images)] == split.labels.tolist()
        assert not label # each image of this severity once
    refused("the file fog.npy is missing", lambda: load_dataset("cifar10c/fog/5", tmp_path))
    path = tmp_path/"CIFAR-10-C"/"snow.npy"
    for spoil, message in ((lambda: path.write_bytes(path.read_bytes()[:-100]), "snow.npy"), (lambda: np.save(path, np.array([{}] * 5), allow_pickle=True), "snow.npy"),
                           (lambda: np.save(path, images.astype(float) / 255), "must hold 5 x n images (32, 32, 3) of uint8"), (lambda: np.save(path, images[:200]), "must hold 5 x n images"), (lambda: np.save(path, images.transpose(0, 3, 1, 2)), "must hold 5 x n images")):
        spoil()
        refused(message, lambda: load_dataset("cifar10c/snow/1", tmp_path))


# Photos

COLOURS = {"red": (255, 0, 0), "green": (0, 255, 0), "blue": (0, 0, 255)}


def photo(colour, size=(50, 40), name="JPEG", **options):
    stream = io.BytesIO()
    noise = RNG.randint(-20, 20, (size[1], size[0], 3))
    Image.fromarray((np.array(colour) + noise).clip(0, 255).astype(np.uint8)).save(stream, name, **options)
    return stream.getvalue()


def check_colours(split, colours):
    "Each image shows the colour of its label: neither labels nor channels are mixed up."
    means = split.images.float().mean((2, 3))
    for mean, label in zip(means, split.labels): assert (mean - torch.tensor(colours[label]).float()).abs().max() < 25


def write_domainnet(folder, n=6):
    (folder/"domainnet").mkdir()
    lists = {"train": [], "test": []}
    with zipfile.ZipFile(folder/"domainnet"/"clipart.zip", "w") as archive:
        for label, (name, colour) in enumerate(COLOURS.items()):
            for i in range(n):
                path = f"clipart/{name}/clipart_{label:03d}_{i:06d}.jpg"
                archive.writestr(path, photo(colour, (60 - i, 40 + i)))
                lists["train" if i < n - 1 else "test"].append(f"{path} {label}\n")
    for split, lines in lists.items(): (folder/"domainnet"/f"clipart_{split}.txt").write_text("".join(lines))
    return {split: len(lines) for split, lines in lists.items()}


def let_in(entry, folder, **images):
    "Let the manifest know the test's files."
    entry["images"] = images
    for file in entry["files"]:
        if (folder/file["path"]).exists(): file |= {"bytes": (folder/file["path"]).stat().st_size, "digest": f"md5:{hashlib.md5((folder/file['path']).read_bytes()).hexdigest()}"}


def test_domainnet(tmp_path, published):
    let_in(published["domainnet/clipart"], tmp_path, **write_domainnet(tmp_path))
    clipart = load_dataset("domainnet/clipart", tmp_path, size=32)
    assert clipart.name == "domainnet/clipart@42" and clipart.classes == ("red", "green", "blue") and [len(split.labels) for split in (clipart.train, clipart.val, clipart.test)] == [11, 3, 4]
    for split in (clipart.train, clipart.val, clipart.test): check_colours(split, [*COLOURS.values()])
    whole = load_dataset("domainnet/clipart", tmp_path, size=32, crops=True)
    assert whole.train.images.shape == (11, 3, 45, 45) and ((whole.train.aspects > 1.1) & (whole.train.aspects < 1.6)).all() and torch.equal(whole.train.labels, clipart.train.labels)
    check_colours(whole.train, [*COLOURS.values()])
    alone = load_dataset("domainnet/clipart", tmp_path, size=32, splits=("test",))
    assert len(alone.train.labels) == len(alone.val.labels) == 0 and torch.equal(alone.test.images, clipart.test.images)
    official = load_dataset("domainnet/clipart/official", tmp_path, size=32)
    assert [len(split.labels) for split in (official.train, official.val, official.test)] == [12, 3, 3] and official.test.labels.tolist() == [0, 1, 2]
    with zipfile.ZipFile(tmp_path/"domainnet"/"clipart.zip") as archive: archive.extractall(tmp_path/"domainnet") # unpacked by hand: the archive is not needed any more
    (tmp_path/"domainnet"/"clipart.zip").unlink()
    assert load_dataset("domainnet/clipart", tmp_path, size=32).sha256 == clipart.sha256


def test_spoiled_domainnet(tmp_path, published):
    counts = write_domainnet(tmp_path)
    path, entry = tmp_path/"domainnet"/"clipart.zip", published["domainnet/clipart"]
    content = path.read_bytes()
    def load(): return load_dataset("domainnet/clipart", tmp_path, size=32)
    refused("clipart.zip has", load) # not the size that is known
    path.write_bytes(content[:-200])
    let_in(entry, tmp_path, **counts)
    refused("clipart.zip in", load) # half of it
    broken = bytearray(content)
    broken[len(content) // 2] ^= 255
    path.write_bytes(broken)
    let_in(entry, tmp_path, **counts)
    refused("can't be read (Bad CRC-32", load)
    path.write_bytes(content)
    names = tmp_path/"domainnet"/"clipart_test.txt"
    for text, message in (("clipart/red/none.jpg 0\n", "it is not in the archive"), ("../../secret.jpg 0\n", "outside its folder"), ("clipart/red/none.jpg\n", "must have lines of a path and a whole number")):
        names.write_text(text)
        let_in(entry, tmp_path, **counts | {"test": 1})
        refused(message, load)


def test_flowers102(tmp_path, published, monkeypatch):
    from torchvision.datasets import Flowers102
    root = tmp_path/"flowers-102"
    (root/"jpg").mkdir(parents=True)
    colours = [*COLOURS.values()]
    for i in range(1, 13): (root/"jpg"/f"image_{i:05d}.jpg").write_bytes(photo(colours[i % 3], (70, 50)))
    savemat(root/"imagelabels.mat", {"labels": np.array([[i % 3 + 1 for i in range(1, 13)]], np.uint8)})
    savemat(root/"setid.mat", {"trnid": np.array([[1, 2, 3]]), "valid": np.array([[4, 5, 6]]), "tstid": np.array([[12, 11, 10, 9, 8, 7]])})
    monkeypatch.setattr(Flowers102, "_file_dict", {key: (name, hashlib.md5((root/name).read_bytes()).hexdigest() if (root/name).exists() else "") for key, (name, _) in Flowers102._file_dict.items()})
    let_in(published["flowers102"], tmp_path, train=3, val=3, test=6)
    flowers = load_dataset("flowers102", tmp_path, size=32)
    assert flowers.name == "flowers102" and [len(split.labels) for split in (flowers.train, flowers.val, flowers.test)] == [3, 3, 6] and flowers.test.labels.tolist() == [0, 2, 1, 0, 2, 1]
    for split in (flowers.train, flowers.val, flowers.test): check_colours(split, colours)
    (root/"jpg"/"image_00001.jpg").write_bytes(photo(colours[1])[:-300])
    refused("the file jpg/image_00001.jpg of flowers-102 can't be read", lambda: load_dataset("flowers102", tmp_path, size=32))
    savemat(root/"setid.mat", {"trnid": np.array([[1, 2, 4]]), "valid": np.array([[4, 5, 6]]), "tstid": np.array([[7]])})
    let_in(published["flowers102"], tmp_path, train=3, val=3, test=6)
    refused("torchvision can't read it", lambda: load_dataset("flowers102", tmp_path, size=32)) # its checksum is another


def test_pets(tmp_path, published):
    root = tmp_path/"oxford-iiit-pet"
    for folder in ("images", "annotations"): (root/folder).mkdir(parents=True)
    lines = []
    for i in range(30):
        name, colour = [("Russian_Blue", COLOURS["blue"]), ("red_setter", COLOURS["red"])][i % 2]
        (root/"images"/f"{name}_{i}.jpg").write_bytes(photo(colour, (40, 60)))
        lines.append(f"{name}_{i} {i % 2 + 1} 1 {i % 2 + 1}\n")
    (root/"annotations"/"trainval.txt").write_text("".join(lines[:20]))
    (root/"annotations"/"test.txt").write_text("".join(lines[20:]))
    let_in(published["pets"], tmp_path, train=20, test=10)
    pets = load_dataset("pets", tmp_path, size=32)
    assert [len(split.labels) for split in (pets.train, pets.val, pets.test)] == [16, 4, 10] and pets.classes == ("Russian Blue", "Red Setter")
    for split in (pets.train, pets.val, pets.test): check_colours(split, [COLOURS["blue"], COLOURS["red"]])
    (root/"annotations"/"test.txt").write_text("half a li")
    refused("torchvision can't read it", lambda: load_dataset("pets", tmp_path, size=32))


def test_imagenet(tmp_path, published):
    refused("put its 1,000 folders of validation images into", lambda: load_dataset("imagenet", tmp_path))
    for name, colour in (("n01440764", COLOURS["green"]), ("n01443537", COLOURS["red"])):
        (tmp_path/"imagenet"/"val"/name).mkdir(parents=True)
        for i in range(3): (tmp_path/"imagenet"/"val"/name/f"ILSVRC2012_val_0000000{i}.JPEG").write_bytes(photo(colour))
    refused("imagenet must have 50,000 test images; its files have 6", lambda: load_dataset("imagenet", tmp_path))
    published["imagenet"]["images"] = {"test": 6}
    imagenet = load_dataset("imagenet", tmp_path, size=32)
    assert [len(split.labels) for split in (imagenet.train, imagenet.val, imagenet.test)] == [0, 0, 6] and imagenet.test.labels.tolist() == [0, 0, 0, 1, 1, 1]
    check_colours(imagenet.test, [COLOURS["green"], COLOURS["red"]])


def test_vtab1k(tmp_path):
    refused("put VTAB-1k's folder of dtd", lambda: load_dataset("vtab1k/dtd", tmp_path))
    root = tmp_path/"vtab-1k"/"dtd"
    (root/"images").mkdir(parents=True)
    for i in range(1_010): Image.new("RGB", (9, 9), (i % 256, i // 256, 7)).save(root/"images"/f"{i}.png")
    lines = [f"images/{i}.png {i % 47}\n" for i in range(1_010)]
    for name, part in (("train800", lines[:800]), ("val200", lines[800:1_000]), ("train800val200", lines[:1_000]), ("test", lines[1_000:])): (root/f"{name}.txt").write_text("".join(part))
    tuning, final = (load_dataset(name, tmp_path, size=9) for name in ("vtab1k/dtd", "vtab1k/dtd/final"))
    assert [len(split.labels) for dataset in (tuning, final) for split in (dataset.train, dataset.val, dataset.test)] == [800, 200, 10, 1_000, 0, 10]
    assert [image[:2, 0, 0].tolist() for image in final.train.images] == [[i % 256, i // 256] for i in range(1_000)] and tuning.val.labels.tolist() == [i % 47 for i in range(800, 1_000)]
    (root/"train800.txt").write_text("".join(lines[:799]))
    refused("train800.txt of dtd must name 800 images; got 799", lambda: load_dataset("vtab1k/dtd", tmp_path, size=9))


# One's own

def write_classes(root, colours=COLOURS, n=10, name="{i}.jpg"):
    for label, colour in colours.items():
        (root/label).mkdir(parents=True)
        for i in range(n): (root/label/name.format(i=i)).write_bytes(photo(colour, (50, 40)))


def load_own(path, tmp_path, size=32):
    "The data set and its warnings."
    with warnings.catch_warnings(record=True, action="always") as caught: return load_dataset(f"folder:{path}", tmp_path/"data", size), [str(w.message) for w in caught]


def sizes(dataset): return [len(split.labels) for split in (dataset.train, dataset.val, dataset.test)]


def test_own_classes(tmp_path):
    root = tmp_path/"my photos"
    write_classes(root, {"été rouge": COLOURS["red"], "猫": COLOURS["green"], "b lue": COLOURS["blue"]}, name="a photo {i} é.jpg")
    own, messages = load_own(root, tmp_path)
    assert own.name == "folder:my photos@42" and own.classes == ("b lue", "été rouge", "猫") and sizes(own) == [18, 6, 6] and messages == []
    for split in (own.train, own.val, own.test):
        check_colours(split, [COLOURS["blue"], COLOURS["red"], COLOURS["green"]])
        assert len(set(torch.bincount(split.labels).tolist())) == 1 # the same of each class
    assert load_own(root, tmp_path)[0].sha256 == own.sha256 and len(list((tmp_path/"data"/"cache").glob("[!.]*"))) == 3
    time.sleep(0.01)
    (root/"猫"/"a photo 0 é.jpg").write_bytes(photo(COLOURS["red"])) # changed: decoded anew
    assert load_own(root, tmp_path)[0].sha256 != own.sha256


def test_own_splits(tmp_path):
    root = tmp_path/"photos"
    for split, n in (("train", 10), ("val", 2), ("test", 3)): write_classes(root/split, n=n)
    own, _ = load_own(root, tmp_path)
    assert own.name == "folder:photos" and sizes(own) == [30, 6, 9]
    shutil.rmtree(root/"val"/"red") # a class that is missing in validation
    assert sizes(load_own(root, tmp_path)[0]) == [30, 4, 9]
    shutil.rmtree(root/"val")
    own, _ = load_own(root, tmp_path)
    assert own.name == "folder:photos@42" and sizes(own) == [24, 6, 9]
    shutil.rmtree(root/"train"/"red")
    refused("has no training images of 'red' that can be read", lambda: load_own(root, tmp_path))
    write_classes(root/"Validation", n=2)
    write_classes(root/"train"/"red", {"nested": COLOURS["red"]})
    assert sizes(load_own(root, tmp_path)[0]) == [30, 6, 9]
    write_classes(root/"dev", n=2)
    refused("has Validation and dev and test and train; beside train and test keep one folder", lambda: load_own(root, tmp_path))
    (root/"dev").rename(root/"holdout")
    refused("has Validation and holdout and test and train; beside train and test keep one folder", lambda: load_own(root, tmp_path))
    shutil.rmtree(root/"holdout")
    shutil.rmtree(root/"test")
    refused("has Validation and train but no test folder", lambda: load_own(root, tmp_path))


def test_own_extremes(tmp_path):
    for n in (1, 2):
        write_classes(tmp_path/f"few{n}", n=n)
        refused("too few images to keep a fifth of them for testing", lambda: load_own(tmp_path/f"few{n}", tmp_path))
    write_classes(tmp_path/"three", n=3)
    own, messages = load_own(tmp_path/"three", tmp_path)
    assert sizes(own) == [6, 0, 3] and len(messages) == 1 and "too few images to keep a fifth of them for validation" in messages[0]
    refused("got '', which", lambda: load_dataset("folder:", tmp_path/"data"))
    for split in ("train", "test"): write_classes(tmp_path/"one"/split, n=1) # an image a class, divided by the reader
    assert sizes(load_own(tmp_path/"one", tmp_path)[0]) == [3, 0, 3]
    write_classes(tmp_path/"single", {"only": (1, 2, 3)})
    refused("must have at least 2 folders with images, one for each class; got 1", lambda: load_own(tmp_path/"single", tmp_path))
    (tmp_path/"loose").mkdir()
    (tmp_path/"loose"/"a.png").write_bytes(photo((1, 2, 3), name="PNG"))
    refused("got 0 (it holds 1 image: put those of each class in a folder of its own", lambda: load_own(tmp_path/"loose", tmp_path))
    (tmp_path/"empty"/"class").mkdir(parents=True)
    refused("which holds no files", lambda: load_own(tmp_path/"empty", tmp_path))
    refused("which does not exist", lambda: load_own(tmp_path/"none", tmp_path))


def test_own_formats_and_links(tmp_path):
    root = tmp_path/"photos"
    write_classes(root, {"green": COLOURS["green"], "blue": COLOURS["blue"]})
    (root/"red").symlink_to(tmp_path/"elsewhere") # a class that is a link
    write_classes(tmp_path, {"elsewhere": COLOURS["red"]}, n=5)
    (root/"red"/"link.jpg").symlink_to(root/"red"/"0.jpg")
    Image.new("CMYK", (30, 20), (0, 255, 255, 0)).save(root/"red"/"cmyk.jpg")
    Image.new("RGB", (1, 1), COLOURS["red"]).save(root/"red"/"dot.png")
    Image.new("P", (30, 20)).save(root/"red"/"broken.gif")
    (root/"red"/"broken.gif").write_bytes(b"GIF89a")
    (root/"red"/"notes.txt").write_text("no image")
    own, messages = load_own(root, tmp_path)
    assert own.classes == ("blue", "green", "red") and sum(sizes(own)) == 28
    assert len(messages) == 1 and "1 of 29 images" in messages[0] and "red/broken.gif" in messages[0]
    for split in (own.train, own.val, own.test): check_colours(split, [COLOURS["blue"], COLOURS["green"], COLOURS["red"]])
    Image.fromarray(np.full((9, 9), 40_000, np.uint16)).save(root/"red"/"deep.png")
    own, _ = load_own(root, tmp_path)
    assert sum(round(40_000 / 257) in image[:, 0, 0].tolist() for split in (own.train, own.val, own.test) for image in split.images) == 1
    (root/"loop").symlink_to(tmp_path)
    refused("is a link that leads back", lambda: load_own(root, tmp_path))


def test_own_csv(tmp_path):
    write_classes(tmp_path/"images", n=10)
    files = [(path.relative_to(tmp_path).as_posix(), path.parent.name) for path in sorted((tmp_path/"images").rglob("*.jpg"))]
    table = tmp_path/"photos.csv"
    def write(rows, header="file,label"): table.write_text("\n".join([header, *(",".join(row) for row in rows)]))
    write(files)
    own, _ = load_own(table, tmp_path)
    assert own.name == "folder:photos.csv@42" and sizes(own) == [18, 6, 6] and own.classes == ("blue", "green", "red")
    check_colours(own.test, [COLOURS["blue"], COLOURS["green"], COLOURS["red"]])
    write([(*row, ("train", "val", "test")[i % 3]) for i, row in enumerate(files)], "file,label,split")
    assert sizes(load_own(table, tmp_path)[0]) == [10, 10, 10]
    for rows, header, message in ((files, "path,label", "must have the columns file, label and perhaps split; file missing; got path, label"), ([*files, ("", "red")], "file,label", "row 31 of photos.csv has no file"),
                                  ([*files, files[0]], "file,label", "more than once"), ([(*row, "dev") for row in files], "file,label,split", "must be train, val or test; got 'dev'"),
                                  ([(*row, "train") for row in files], "file,label,split", "has no rows of the split test"), ([(file, "same") for file, _ in files], "file,label", "at least 2 labels; got 1")):
        write(rows, header)
        refused(message, lambda: load_own(table, tmp_path))
    write([*files, ("images/none.jpg", "red")])
    assert any("images/none.jpg" in message for message in load_own(table, tmp_path)[1])
    write([("images/none.jpg", "red"), ("none.jpg", "blue")])
    refused("none of the 2 files that photos.csv names exist; the first is", lambda: load_own(table, tmp_path))
    write([*files, (f"./images/../{files[0][0]}", "red")])
    refused("more than once", lambda: load_own(table, tmp_path))
    table.write_text("\ufefffile; label\n" + "\n".join(f"{tmp_path/file}; {label}" for file, label in files)) # another separator, blanks, a byte order mark and absolute paths
    assert load_own(table, tmp_path)[0].classes == ("blue", "green", "red")
    shutil.copytree(tmp_path/"images", tmp_path/"split"/"train")
    shutil.copytree(tmp_path/"images"/"red", tmp_path/"split"/"test"/"red")
    assert "10 photos of folder:split@42 are in more than one split, as copies" in load_own(tmp_path/"split", tmp_path)[1][-1]
    table.write_bytes(b"\x00\xff" * 50)
    refused("photos.csv", lambda: load_own(table, tmp_path))


# One's own: what folders hold besides photos

def grey_photo(path, seed, size=(50, 40), **options):
    "A file of noise that differs from all others."
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.RandomState(seed).randint(0, 256, (*size[::-1], 3), np.uint8)).save(path, **options)


def two_classes(root, n=10):
    for i, label in enumerate(("cat", "dog")):
        for k in range(n): grey_photo(root/label/f"{k}.png", 100 * i + k)


@pytest.mark.parametrize("system", ["@eaDir", "@EADIR", "__MACOSX", "$RECYCLE.BIN", "lost+found", "System Volume Information", "#recycle", ".hidden"])
def test_folders_of_systems(tmp_path, system):
    "A8: they are left out at every depth and beside train and test, as classes and in lists."
    two_classes(tmp_path/"plain")
    two_classes(tmp_path/"photos")
    for parent in ("photos", "photos/cat", "photos/cat/deep/deeper"): grey_photo(tmp_path/parent/system/"000.png"/"SYNOPHOTO_THUMB_M.jpg", len(parent))
    grey_photo(tmp_path/"photos"/system/"0.png", 1)
    own, messages = load_own(tmp_path/"photos", tmp_path)
    assert own.classes == ("cat", "dog") and messages == [] and own.notes == () and own.sha256 == load_own(tmp_path/"plain", tmp_path)[0].sha256
    assert len(data.load_folder(tmp_path/"photos", 8, progress=False).files) == 20
    for split in ("train", "test"): shutil.copytree(tmp_path/"plain", tmp_path/"split"/split)
    grey_photo(tmp_path/"split"/system/"0.png", 1)
    grey_photo(tmp_path/"split"/"train"/system/"0.png", 2)
    assert sizes(load_own(tmp_path/"split", tmp_path)[0]) == [16, 4, 20]
    if system.startswith("."): return # a list may name hidden files
    files = [*sorted(path.relative_to(tmp_path).as_posix() for path in (tmp_path/"plain").rglob("*.png")), f"photos/{system}/0.png", str(tmp_path/"photos"/"cat"/system/"000.png"/"SYNOPHOTO_THUMB_M.jpg")]
    (tmp_path/"list.csv").write_text("file,label\n" + "".join(f'"{file}",{"cat" if "cat" in file else "dog"}\n' for file in files))
    own, messages = load_own(tmp_path/"list.csv", tmp_path)
    assert sum(sizes(own)) == 20 and messages == [] and own.notes == ("2 rows of list.csv that name files in folders which systems make are left out",)
    assert len(data.load_folder(tmp_path/"list.csv", 8, progress=False).files) == 20


def test_foreign_kinds(tmp_path):
    "A9: images of kinds that can't be read are counted for each class and listed with the remedy."
    root = tmp_path/"photos"
    two_classes(root)
    plain = load_own(root, tmp_path)[0]
    for i in range(20): (root/"cat"/f"IMG_{i}.HEIC").write_bytes(b"\0\0\0\x18ftypheic")
    for name in ("cat/sub/a.NEF", "dog/b.dng", "dog/3.cr2"): # the last is there as a PNG file
        (root/name).parent.mkdir(exist_ok=True)
        (root/name).write_bytes(b"II*\0")
    own, messages = load_own(root, tmp_path)
    counted = "22 images of folder:photos@42 are of kinds that can't be read and are left out: 20 HEIC and 1 NEF in 'cat', 1 DNG in 'dog'"
    assert messages == [f"{counted}; convert them to JPEG or PNG"] and own.notes == (counted,) and own.sha256 == plain.sha256
    with pytest.warns(UserWarning, match="20 HEIC in 'cat', 1 NEF in 'cat/sub', 1 DNG in 'dog'; convert them to JPEG or PNG"): photos = data.load_folder(root, 8, progress=False)
    assert len(photos.files) == 20 and len(photos.skipped) == 22 and photos.skipped["dog/b.dng"] == "DNG can't be read: convert it to JPEG or PNG"
    table = tmp_path/"photos.csv"
    table.write_text("file,label\n" + "".join(f"{path.relative_to(tmp_path)},{path.relative_to(root).parts[0]}\n" for path in sorted(root.rglob("*.*"))))
    listed, messages = load_own(table, tmp_path)
    assert messages == [f"{counted}; convert them to JPEG or PNG".replace("folder:photos@", "folder:photos.csv@")] and sum(sizes(listed)) == 20
    with pytest.warns(UserWarning, match="20 HEIC"): assert len(data.load_folder(table, 8, progress=False).skipped) == 22


def test_foreign_kinds_alone(tmp_path):
    "A9: a class, or a folder, of nothing else; and names that lie."
    two_classes(tmp_path/"photos")
    (tmp_path/"photos"/"bird").mkdir()
    (tmp_path/"photos"/"bird"/"a.heic").write_bytes(b"\0\0\0\x18ftypheic")
    own, messages = load_own(tmp_path/"photos", tmp_path)
    assert own.classes == ("cat", "dog") and len(messages) == 1 and "1 HEIC in 'bird'" in messages[0]
    refused("which holds no others but 1 HEIC: convert them to JPEG or PNG", lambda: data.load_folder(tmp_path/"photos"/"bird", 8))
    shutil.rmtree(tmp_path/"photos"/"dog")
    refused("it also holds 1 HEIC, which can't be read: convert them to JPEG or PNG", lambda: load_own(tmp_path/"photos", tmp_path))
    (tmp_path/"photos"/"bird"/"a.heic").write_bytes(photo(COLOURS["red"])) # really a JPEG file
    (tmp_path/"photos"/"cat"/"b.jpg").write_bytes(b"\0\0\0\x18ftypheic\0\0\0\0mif1heic") # really HEIC
    photos = data.load_folder(tmp_path/"photos", 8, progress=False)
    assert "bird/a.heic" in photos.files and photos.skipped == {"cat/b.jpg": "HEIC can't be read: convert it to JPEG or PNG"}


@pytest.mark.parametrize("suffix", data.PHOTO_SUFFIXES)
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_kinds_that_are_read(tmp_path, suffix, mode):
    "A9: AVIF, JPEG 2000 and PPM among them."
    colour = (200, 120, 40) if mode == "RGB" else 120
    if suffix == ".pbm": colour = (255,) * 3 if mode == "RGB" else 255
    image = Image.new(mode if suffix != ".pbm" else "1", (30, 20), colour if suffix != ".pbm" else 1)
    image.save(tmp_path/f"a{suffix.upper()}")
    found = data.load_folder(tmp_path, 8, progress=False)
    expected = torch.tensor(colour if mode == "RGB" else (colour,) * 3)
    assert found.skipped == {} and (found.images[0].int() - expected.view(3, 1, 1)).abs().max() <= 4


def test_names_in_two_forms(tmp_path):
    "A10: what differs in its form of Unicode alone is one class, in folders, between train and test, and in lists."
    composed, decomposed = "café", "cafe\u0301"
    root = tmp_path/"photos"
    for k, label in enumerate((composed, decomposed, "bar")):
        for i in range(10): grey_photo(root/label/f"{k} {i}.png", 10 * k + i)
    own, messages = load_own(root, tmp_path)
    assert own.classes == ("bar", composed) and messages == [] and torch.bincount(torch.cat([own.train.labels, own.val.labels, own.test.labels])).tolist() == [10, 20]
    assert own.notes == ("classes written in two ways of Unicode that look the same are taken as one: 'café'",)
    for split, label in (("train", composed), ("test", decomposed)):
        shutil.copytree(root/label, tmp_path/"split"/split/label)
        for i in range(10): grey_photo(tmp_path/"split"/split/"bar"/f"{i}.png", 50 + i + 10 * (split == "test"))
    own, messages = load_own(tmp_path/"split", tmp_path)
    assert own.classes == ("bar", composed) and messages == [] and sizes(own) == [16, 4, 20] and own.notes == ()
    table = tmp_path/"photos.csv"
    rows = [(f"photos/{composed}/2 é{i}.png", (composed, decomposed)[i % 2]) for i in range(10)] + [(f"photos/bar/2 {i}.png", "bar") for i in range(10)]
    for i in range(10): (root/decomposed/f"1 {i}.png").rename(root/decomposed/f"2 e\u0301{i}.png")
    shutil.rmtree(root/composed) # the list names what the disk has in the other form
    table.write_text("file,label\n" + "".join(f"{file},{label}\n" for file, label in rows), encoding="utf-8")
    own, messages = load_own(table, tmp_path)
    assert own.classes == ("bar", composed) and messages == [] and sum(sizes(own)) == 20 and len(own.notes) == 1


def test_names_that_look_alike(tmp_path):
    "A10: names that differ in case or blanks alone stay two classes, with a warning."
    for k, label in enumerate(("Cat", "cat", "cat ", "dog")):
        for i in range(10): grey_photo(tmp_path/"photos"/label/f"{i}.png", 10 * k + i)
    own, messages = load_own(tmp_path/"photos", tmp_path)
    doubt = "the classes 'Cat' and 'cat' and 'cat ' of folder:photos@42 differ only in case or blanks"
    assert len(own.classes) == 4 and messages == [f"{doubt}: if they are one, give them one name"] and own.notes == (doubt,)
    for split, label in (("train", "Cat"), ("test", "cat")):
        for name in (label, "dog"): shutil.copytree(tmp_path/"photos"/name, tmp_path/"split"/split/name)
    refused("no training images of 'cat' that can be read ('Cat' differs from it only in case or blanks)", lambda: load_own(tmp_path/"split", tmp_path))
    (tmp_path/"list.csv").write_text("file,label\n" + "".join(f"photos/{folder}/{i}.png,{label}\n" for i in range(10) for folder, label in (("Cat", "sea  lion"), ("cat", "Sea lion"))))
    assert "the classes 'Sea lion' and 'sea  lion' of" in load_own(tmp_path/"list.csv", tmp_path)[1][0]


def png_chunk(name, content, wrong=0):
    return len(content).to_bytes(4) + name + content + (zlib.crc32(name + content) ^ wrong).to_bytes(4)


def with_chunks(png, *chunks): return png[:33] + b"".join(chunks) + png[33:] # after the header


def with_segment(jpeg, marker, content): return jpeg[:2] + b"\xff" + bytes([marker]) + (len(content) + 2).to_bytes(2) + content + jpeg[2:]


def damaged_metadata():
    "File name -> content, each of a red photo."
    png, jpeg = photo(COLOURS["red"], name="PNG"), photo(COLOURS["red"])
    files = {f"{name}.{name.lower()}": photo(COLOURS["red"], name=name, exif=b"nonsense") for name in ("JPEG", "PNG", "WebP")}
    exif = Image.Exif()
    exif[0x0112], exif[0x010f] = 1, "maker"
    for n in (3, 9, 13, 20): files |= {f"{name} {n}.{name.lower()}": photo(COLOURS["red"], name=name, exif=exif.tobytes()[:n]) for name in ("JPEG", "PNG", "WebP")}
    for value in (0, 9, 65_535):
        exif[0x0112] = value
        files[f"orientation {value}.png"] = photo(COLOURS["red"], name="PNG", exif=exif)
    files |= {f"{name.decode()}.png": with_chunks(png, png_chunk(name, content)) for name, content in (
        (b"zTXt", b"a\0\0" + zlib.compress(bytes(10**8))), (b"pHYs", b"ab"), (b"gAMA", b"a"), (b"iCCP", b"a\0\5xx"), (b"sRGB", b""), (b"cHRM", b"abc"), (b"acTL", b"a"))}
    files["checksum.png"] = with_chunks(png, png_chunk(b"tEXt", b"a\0b", wrong=1))
    files |= {f"segment {marker:x}.jpg": with_segment(jpeg, marker, content) for marker, content in (
        (0xe0, b"JFIF"), (0xe2, b"ICC_PROFILE\0"), (0xe2, b"MPF\0nonsense"), (0xed, b"Photoshop 3.0\x008BIM\x03"), (0xee, b"Adobe"), (0xe1, b"Exif\0\0II*\0\xff\xff\xff\xff"))}
    return files


def test_metadata_cost_no_photo(tmp_path):
    "A12"
    files = damaged_metadata()
    for name, content in files.items(): (tmp_path/name).write_bytes(content)
    photos = data.load_folder(tmp_path, 8, progress=False)
    assert photos.skipped == {} and len(photos.files) == len(files)
    for image, name in zip(photos.images, photos.files): assert (image.float().mean((1, 2)) - torch.tensor([255.0, 0, 0])).abs().max() < 25, name


def test_orientation_survives_damage(tmp_path):
    "A12: what is cut out of a file is not what says how to turn it."
    exif, halves = Image.Exif(), Image.fromarray(np.array([[255, 0]], np.uint8).repeat(20, 0).repeat(10, 1)) # white on the left
    exif[0x0112] = 6 # to be turned clockwise: white at the top
    stream = io.BytesIO()
    halves.save(stream, "PNG", exif=exif)
    (tmp_path/"a.png").write_bytes(with_chunks(stream.getvalue(), png_chunk(b"gAMA", b"a")))
    halves.save(tmp_path/"b.jpg", exif=exif)
    (tmp_path/"b.jpg").write_bytes(with_segment((tmp_path/"b.jpg").read_bytes(), 0xe2, b"ICC_PROFILE\0"))
    for image in data.load_folder(tmp_path, 8, progress=False).images: assert image[:, :3].min() > 240 and image[:, 5:].max() < 15


def deep_png(values, significant=None):
    "A PNG file of 16 bits: grey (h, w), or colours (h, w, 3), perhaps with alpha, 4."
    height, width, kind = *values.shape[:2], {2: 0, 3: 2, 4: 6}[values.shape[2] if values.ndim == 3 and values.shape[2] > 2 else 2]
    kind = 0 if values.ndim == 2 else {2: 4, 3: 2, 4: 6}[values.shape[2]]
    header = width.to_bytes(4) + height.to_bytes(4) + bytes([16, kind, 0, 0, 0])
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    bits = png_chunk(b"sBIT", bytes(significant)) if significant else b""
    return b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", header) + bits + png_chunk(b"IDAT", zlib.compress(rows)) + png_chunk(b"IEND", b"")


def load_deep(folder, **files):
    "Images by name, and warnings."
    folder.mkdir()
    for name, content in files.items(): (folder/name.replace("_", ".")).write_bytes(content)
    with warnings.catch_warnings(record=True, action="always") as caught: photos = data.load_folder(folder, 9, progress=False)
    return {file.replace(".", "_"): image for file, image in zip(photos.files, photos.images)}, [str(w.message) for w in caught]


@pytest.mark.parametrize("bits", [8, 10, 12, 14])
def test_few_bits_of_sixteen(tmp_path, bits, capsys):
    "A13: scaled where the file says how many bits, otherwise said."
    top, rng = 2**bits - 1, np.random.RandomState(0)
    grey, colour = rng.randint(0, top + 1, (9, 9)), rng.randint(0, top + 1, (9, 9, 3))
    grey[0, 0] = colour[0, 0] = top
    alpha = np.concatenate((colour, np.full((9, 9, 1), 65_535)), 2)
    told, messages = load_deep(tmp_path/"told", grey_png=deep_png(grey, [bits]), colour_png=deep_png(colour, [bits] * 3), alpha_png=deep_png(alpha, [bits] * 3 + [16]))
    assert messages == [] and "were scaled by them" in capsys.readouterr().out
    for name, values in (("grey_png", grey[..., None]), ("colour_png", colour), ("alpha_png", colour)): assert (told[name].permute(1, 2, 0) - torch.from_numpy(values * 255 / top)).abs().max() <= 0.501, name
    _, messages = load_deep(tmp_path/"untold", grey_png=deep_png(grey), colour_png=deep_png(colour))
    assert len(messages) == 1 and f"the 2 photos of 16 bits in '{tmp_path/'untold'}' use only the lowest {bits} bits and are read as dark ones, at most {round(top / 257)} of 255; multiply their values by {2**(16 - bits)}, or" in messages[0]
    full, messages = load_deep(tmp_path/"full", a_png=deep_png(grey), b_png=deep_png(np.full((9, 9), 40_000))) # a dark one among others
    assert messages == [] and (full["a_png"][0] - torch.from_numpy(grey / 257)).abs().max() <= 0.501


def test_significant_bits_as_png_asks(tmp_path):
    "A13: values that are stretched to 16 bits aren't stretched again; not even those of a dark photo."
    values = np.random.RandomState(0).randint(0, 4_096, (9, 9))
    for stretched in (values << 4, values << 4 | values >> 8, np.round(values * 65_535 / 4_095).astype(int)):
        for part in (stretched, stretched // 16 // 16 * 16):
            found, _ = load_deep(tmp_path/f"{len(list(tmp_path.iterdir()))}", a_png=deep_png(part, [12]))
            assert (found["a_png"][0] - torch.from_numpy(part / 257)).abs().max() <= 0.501


def test_few_bits_of_other_formats(tmp_path):
    "A13: TIFF and PPM."
    rng = np.random.RandomState(0)
    grey, colour = rng.randint(0, 4_096, (9, 9)), rng.randint(0, 4_096, (9, 9, 3))
    grey[0, 0] = colour[0, 0] = 4_095
    def netpbm(kind, values, top): return f"{kind} 9 9 {top}\n".encode() + values.astype(">u2").tobytes()
    found, messages = load_deep(tmp_path/"told", grey_pgm=netpbm("P5", grey, 4_095), colour_ppm=netpbm("P6", colour, 4_095))
    for name, values in (("grey_pgm", grey[..., None]), ("colour_ppm", colour)): assert (found[name].permute(1, 2, 0) - torch.from_numpy(values * 255 / 4_095)).abs().max() <= 0.51 and messages == []
    (tmp_path/"untold").mkdir()
    Image.fromarray(grey.astype(np.uint16)).save(tmp_path/"untold"/"grey.tif")
    Image.fromarray(grey.astype(np.uint16)).save(tmp_path/"untold"/"grey.jp2", irreversible=False)
    (tmp_path/"untold"/"grey.pgm").write_bytes(netpbm("P5", grey, 65_535))
    (tmp_path/"untold"/"colour.ppm").write_bytes(netpbm("P6", colour, 65_535))
    with pytest.warns(UserWarning, match="the 4 photos of 16 bits in .* use only the lowest 12 bits"): data.load_folder(tmp_path/"untold", 9, progress=False)


def test_twelve_bits_in_a_tiff_file(tmp_path):
    "A13: two values in three bytes."
    values = np.random.RandomState(0).randint(0, 4_096, (8, 8))
    pairs = values.reshape(-1, 2)
    packed = np.stack((pairs[:, 0] >> 4, (pairs[:, 0] & 15) << 4 | pairs[:, 1] >> 8, pairs[:, 1] & 255), 1).astype(np.uint8).tobytes()
    tags = {256: 8, 257: 8, 258: 12, 259: 1, 262: 1, 273: 8 + 2 + 10 * 12 + 4, 277: 1, 278: 8, 279: len(packed), 339: 1}
    entries = b"".join(tag.to_bytes(2, "little") + b"\4\0\1\0\0\0" + value.to_bytes(4, "little") for tag, value in tags.items())
    (tmp_path/"a.tif").write_bytes(b"II*\0\x08\0\0\0" + len(tags).to_bytes(2, "little") + entries + bytes(4) + packed)
    assert (data.load_folder(tmp_path, 8, progress=False).images[0, 0] - torch.from_numpy(values * 255 / 4_095)).abs().max() <= 0.501


def test_few_bits_of_a_data_set(tmp_path):
    "A13: said for the whole of it, also when it is read from the store."
    for k, label in enumerate(("a", "b")):
        (tmp_path/"photos"/label).mkdir(parents=True)
        for i in range(10): (tmp_path/"photos"/label/f"{i}.png").write_bytes(deep_png(np.random.RandomState(10 * k + i).randint(0, 4_096, (9, 9)), [12] if i < 3 else None))
    for _ in range(2):
        own, messages = load_own(tmp_path/"photos", tmp_path)
        assert len(messages) == 1 and messages[0].startswith("the 14 photos of 16 bits in folder:photos@42 use only the lowest 12 bits")
        assert own.notes == ("6 photos of folder:photos@42 use fewer than the 16 bits of their files, by the files' own word, and were scaled by them", messages[0].split(";")[0])


def scenes():
    "Pieces of two photographs."
    from sklearn.datasets import load_sample_images
    return [Image.fromarray(photo[y:y + 130, x:x + 150]) for photo in load_sample_images().images for y in range(0, 290, 140) for x in range(0, 480, 160)]


CHANGES = {"encoded": lambda image: image, "half": lambda image: image.resize((image.width // 2, image.height // 2)), "brighter": lambda image: image.point(lambda value: value * 1.1),
           "grey": lambda image: image.convert("L")}


@pytest.mark.parametrize("crops", [False, True])
@pytest.mark.parametrize("change", CHANGES)
def test_near_copies(tmp_path, change, crops):
    "A14: changed copies in another split are told, with two of them; others are not taken for copies."
    pieces = scenes()
    for i, image in enumerate(pieces):
        folder = tmp_path/"photos"/("train" if i < 10 else "test")/"ab"[i % 2]
        folder.mkdir(parents=True, exist_ok=True)
        image.save(folder/f"{i}.png")
    def load():
        with warnings.catch_warnings(record=True, action="always") as caught: own = load_dataset(f"folder:{tmp_path/'photos'}", tmp_path/"data", 64, crops=crops)
        return own, [str(w.message) for w in caught]
    assert load()[1] == []
    for i in range(4, 8): CHANGES[change](pieces[i]).save(tmp_path/"photos"/"test"/"ab"[i % 2]/f"copy of {i}.jpg", quality=60)
    for _ in range(2): # the second time from the store
        own, (message,) = load()
        start, end = message.split(", e.g. ")
        assert start == "4 pairs of photos of folder:photos@42 in different splits are near copies (one photo encoded anew, resized or slightly changed)" and own.notes == (start,)
        assert end.endswith(": what is tested was trained on; keep near copies in one split, or remove them") and "/copy of " in end and " (test)" in end and (" (train)" in end or " (val)" in end)


def test_near_copies_in_one_folder(tmp_path):
    "A14: three changed copies of each photo fall into all splits."
    for i, image in enumerate(scenes()):
        (tmp_path/"photos"/"ab"[i % 2]).mkdir(parents=True, exist_ok=True)
        image.save(tmp_path/"photos"/"ab"[i % 2]/f"{i}.png")
        for name in ("encoded", "half", "brighter"): CHANGES[name](image).save(tmp_path/"photos"/"ab"[i % 2]/f"{i} {name}.jpg")
    own, (message,) = load_own(tmp_path/"photos", tmp_path, 64)
    assert sum(sizes(own)) == 72 and int(message.split()[0]) > 20 and "are near copies" in message


def test_class_without_test_images(tmp_path):
    "A11: folders of 20, 20 and 2 images."
    for k, (label, n) in enumerate((("cat", 20), ("dog", 20), ("owl", 2))):
        for i in range(n): grey_photo(tmp_path/"photos"/label/f"{i}.png", 100 * k + i)
    own, messages = load_own(tmp_path/"photos", tmp_path)
    assert own.notes == ("folder:photos@42 has no test images of 'owl'",) and messages == [own.notes[0] + ": accuracies leave them out; add images (of fewer than 3 none is kept for testing), or remove the class"]
    assert set(own.test.labels.tolist()) == {0, 1} and torch.bincount(own.train.labels).tolist() == [13, 13, 2]


def test_loose_photos(tmp_path):
    "Photos beside the folders of classes, also in train and test, are told; hidden ones aren't."
    two_classes(tmp_path/"photos"/"train")
    for i, label in enumerate(("cat", "dog")):
        for k in range(5): grey_photo(tmp_path/"photos"/"test"/label/f"{k}.png", 1_000 + 100 * i + k)
    grey_photo(tmp_path/"photos"/"train"/"loose.jpg", 1)
    (tmp_path/"photos"/"._a.jpg").write_bytes(b"resource fork")
    messages = load_own(tmp_path/"photos", tmp_path)[1]
    assert len(messages) == 1 and messages[0].startswith("1 images in ") and "lie beside the folders and are not used, e.g. 'loose.jpg'" in messages[0]


# Downloads

@pytest.fixture
def server(tmp_path):
    "A folder that is served; `asked` lists the requests."
    (tmp_path/"www").mkdir()
    asked = []
    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *_): asked.append(self.path)
    serving = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=tmp_path/"www"))
    threading.Thread(target=serving.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{serving.server_port}", tmp_path/"www", asked
    serving.shutdown()
    serving.server_close()


def offer(entry, address, www, make):
    "Put an archive of a set on the server, as the manifest says it."
    (file,) = entry["files"]
    with tarfile.open(www/file["path"], "w:gz") as archive: make(archive)
    content = (www/file["path"]).read_bytes()
    file |= {"url": f"{address}/{file['path']}", "bytes": len(content), "digest": f"md5:{hashlib.md5(content).hexdigest()}"}


def test_download_and_unpack(tmp_path, published, server):
    address, www, asked = server
    write_cifar(tmp_path/"made")
    published["cifar10"]["images"] = {"train": 100, "test": 20}
    offer(published["cifar10"], address, www, lambda archive: archive.add(tmp_path/"made"/"cifar-10-batches-py", "cifar-10-batches-py"))
    cifar = load_dataset("cifar10", tmp_path/"data", progress=False)
    assert len(asked) == 1 and (tmp_path/"data"/"cifar-10-batches-py").is_dir()
    assert load_dataset("cifar10", tmp_path/"data").sha256 == load_dataset("cifar10", tmp_path/"made").sha256 == cifar.sha256 and len(asked) == 1 # what is there is used, the network is not asked
    shutil.rmtree(tmp_path/"data"/"cifar-10-batches-py")
    assert load_dataset("cifar10", tmp_path/"data").sha256 == cifar.sha256 and len(asked) == 1 # unpacked again
    shutil.rmtree(tmp_path/"data"/"cifar-10-batches-py")
    archive = tmp_path/"data"/"cifar-10-python.tar.gz"
    content = bytearray(archive.read_bytes())
    archive.write_bytes(content[:-1])
    refused("it is half downloaded or another version", lambda: load_dataset("cifar10", tmp_path/"data"))
    content[len(content) // 2] ^= 1
    archive.write_bytes(content)
    refused("cifar-10-python.tar.gz is damaged (md5", lambda: load_dataset("cifar10", tmp_path/"data"))


def member(name, kind=None, target=None):
    entry = tarfile.TarInfo(name)
    if kind is not None: entry.type, entry.linkname = kind, target
    return entry


@pytest.mark.parametrize("entry", [member("../evil"), member("/tmp/vit_plasticity_evil"), member("cifar-10-batches-py/../../evil"), member("cifar-10-batches-py/link", tarfile.SYMTYPE, "../../../evil"),
                                   member("cifar-10-batches-py/hard", tarfile.LNKTYPE, "../../../evil"), member("cifar-10-batches-py/device", tarfile.CHRTYPE, "")], ids=lambda entry: entry.name)
def test_hostile_archive(tmp_path, published, server, entry):
    address, www, _ = server
    (tmp_path/"evil").write_text("outside")
    def make(archive):
        write_cifar(tmp_path/"made")
        archive.add(tmp_path/"made"/"cifar-10-batches-py", "cifar-10-batches-py")
        archive.addfile(entry)
    offer(published["cifar10"], address, www, make)
    refused("the archive cifar-10-python.tar.gz can't be unpacked", lambda: load_dataset("cifar10", tmp_path/"data", progress=False))
    assert sorted(path.name for path in (tmp_path/"data").glob("[!.]*")) == ["cifar-10-python.tar.gz"] and (tmp_path/"evil").read_text() == "outside"


def test_disk_and_permissions(tmp_path, published, server, monkeypatch):
    address, www, _ = server
    write_cifar(tmp_path/"made")
    offer(published["cifar10"], address, www, lambda archive: archive.add(tmp_path/"made"/"cifar-10-batches-py", "cifar-10-batches-py"))
    (tmp_path/"file").touch()
    refused("`data_dir` must be a folder that can be written", lambda: load_dataset("cifar10", tmp_path/"file"))
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: shutil._ntuple_diskusage(10**6, 10**6 - 100, 100))
    refused("`data_dir`: cifar-10-python.tar.gz needs", lambda: load_dataset("cifar10", tmp_path/"data"))
    write_classes(tmp_path/"photos")
    refused("`data_dir`: decoding 18 photos of photos needs 0.00 GB", lambda: load_own(tmp_path/"photos", tmp_path))


# The store of decoded photos

SLOW = """
import sys, time
from vit_plasticity import data
decode = data._decode
def slowly(*arguments):
    time.sleep(0.004)
    return decode(*arguments)
data._decode, data._CHUNK = slowly, 32
print(data.load_dataset(f"folder:{sys.argv[1]}", sys.argv[2], 32).sha256)
"""


def test_two_processes_one_killed(tmp_path):
    "The one that waits takes over what the killed one had done, and is right."
    write_classes(tmp_path/"photos", n=120)
    start = lambda: subprocess.Popen([sys.executable, "-c", SLOW, tmp_path/"photos", tmp_path/"data"], stdout=subprocess.PIPE, text=True)
    def read(): # how many the building process has noted
        try: return json.loads(next((tmp_path/"data"/"cache").glob(".*.building/progress.json")).read_text())["read"]
        except (StopIteration, OSError, ValueError): return 0
    first = start()
    while read() < 64: time.sleep(0.005)
    second = start()
    time.sleep(0.2)
    first.send_signal(signal.SIGKILL)
    first.wait()
    done = read()
    found = second.communicate(timeout=120)[0].split()[-1]
    assert second.returncode == 0 and 64 <= done < 360
    whole = load_dataset(f"folder:{tmp_path/'photos'}", tmp_path/"other", 32)
    assert found == whole.sha256 == load_dataset(f"folder:{tmp_path/'photos'}", tmp_path/"data", 32).sha256
    for split in (whole.train, whole.val, whole.test): check_colours(split, [COLOURS["blue"], COLOURS["green"], COLOURS["red"]])


def test_both_processes_finish(tmp_path):
    write_classes(tmp_path/"photos", n=40)
    both = [subprocess.Popen([sys.executable, "-c", SLOW, tmp_path/"photos", tmp_path/"data"], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert len({process.communicate(timeout=120)[0].split()[-1] for process in both}) == 1 and [process.returncode for process in both] == [0, 0]


def test_interrupted_is_resumed(tmp_path, monkeypatch):
    write_classes(tmp_path/"photos", n=30)
    (tmp_path/"photos"/"red"/"broken.jpg").write_bytes(b"\xff\xd8\xff")
    monkeypatch.setattr(data, "_CHUNK", 16)
    decoded, decode = [], data._decode
    def counting(content, *options):
        decoded.append(content)
        if len(decoded) == 60: raise KeyboardInterrupt
        return decode(content, *options)
    monkeypatch.setattr(data, "_decode", counting)
    with pytest.raises(KeyboardInterrupt): load_own(tmp_path/"photos", tmp_path)
    own, messages = load_own(tmp_path/"photos", tmp_path)
    assert len(decoded) < 60 + 91 - 30 and len(messages) == 1 and sum(sizes(own)) == 90 # the first two chunks at least were not read again
    monkeypatch.setattr(data, "_decode", decode)
    assert load_dataset(f"folder:{tmp_path/'photos'}", tmp_path/"fresh", 32).sha256 == own.sha256


def test_damaged_store(tmp_path):
    write_classes(tmp_path/"photos")
    load_own(tmp_path/"photos", tmp_path)
    store = next((tmp_path/"data"/"cache").glob("folder-photos@42-test-*"))
    for spoil in (lambda path: path.write_bytes(path.read_bytes()[:-1]), lambda path: path.write_bytes(path.read_bytes()[:-1] + b"\x00" * 2), lambda path: path.unlink(), lambda path: path.write_bytes(bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:])):
        for name in ("images.bytes", "info.json"):
            content = (store/name).read_bytes()
            spoil(store/name)
            refused(f"delete the folder {str(store)!r}", lambda: load_own(tmp_path/"photos", tmp_path))
            (store/name).write_bytes(content)
    load_own(tmp_path/"photos", tmp_path)


# Text

def test_text(tmp_path, published):
    (tmp_path/"ag_news").mkdir()
    (tmp_path/"ag_news"/"train.csv").touch()
    (tmp_path/"ag_news"/"test.csv").write_text('"3","A ""title""","One, two\\nthree."\n"1","Other","été"\n', encoding="utf-8")
    entry = published["ag_news"]
    let_in(entry, tmp_path)
    refused("the file test.csv in", lambda: load_text("ag_news", data_dir=tmp_path)) # 7,600 lines
    entry["texts"] = {"test": 2}
    assert load_text("ag_news", data_dir=tmp_path) == ['A "title" One, two\\nthree.', "Other été"]
    (tmp_path/"wikitext-103-raw").mkdir()
    (tmp_path/"wikitext-103-raw"/"wiki.valid.raw").write_text(" \n = Title = \n Text @-@ more . \n", encoding="utf-8")
    published["wikitext103"]["texts"] = {"val": 3}
    assert load_text("wikitext103", "val", tmp_path) == ["= Title =", "Text @-@ more ."]
    (tmp_path/"wikitext-103-raw"/"wiki.valid.raw").write_bytes(b"\xff\xfe\x00")
    refused("can't be read", lambda: load_text("wikitext103", "val", tmp_path))


# In runs

def test_runs_on_photos(tmp_path):
    "Photos are decoded at the model's size, the row names split seed and normalisation, and a set without validation images keeps the last step."
    from vit_plasticity.finetune import run_finetuning, run_linear_probe
    from vit_plasticity.plasticity import run_plasticity
    write_classes(tmp_path/"photos", n=12)
    folders = dict(dataset=f"folder:{tmp_path/'photos'}", data_dir=tmp_path/"data", out_dir=tmp_path)
    run = run_finetuning("fc1", steps=3, batch_size=8, normalization="half", progress=False, **folders)
    assert run.info["parameters"]["dataset"] == "folder:photos@42" and run.info["parameters"]["normalization"] == "half" and len(run.table("predictions")) == 6
    assert len(run_linear_probe(**folders).table("predictions")) == 6
    assert run_plasticity(n_pairs=8, **folders).table("rates").pair.nunique() == 8
    crops = run_finetuning("fc1", steps=2, batch_size=8, augment=True, progress=False, **folders)
    assert crops.info["parameters"]["crop_scale"] == 0.08 and load_dataset(folders["dataset"], folders["data_dir"], 28, crops=True).train.images.shape == (24, 3, 40, 40)
    assert len(run_linear_probe(augmented=True, **folders).table("predictions")) == 6
    for split in ("train", "test"): write_classes(tmp_path/"no validation"/split, n=2)
    run = run_finetuning("fc1", steps=2, batch_size=4, progress=False, **folders | {"dataset": f"folder:{tmp_path/'no validation'}"})
    assert run.table("summary").best_step[0] == 2 and run.table("evaluations").val_accuracy.isna().all()


def test_gpt2_on_text(tmp_path, published):
    "A small GPT-2 and its tokenizer in a folder, measured on texts in the published formats."
    from tokenizers import ByteLevelBPETokenizer
    from transformers import GPT2Config, GPT2Model
    from vit_plasticity.plasticity import run_plasticity
    articles = [f'"{i % 4 + 1}","Title {i}","{" ".join(RNG.choice(["red", "green", "blue", "sky", "sea"], 30))}"' for i in range(40)]
    paragraphs = [" ".join(RNG.choice(["the", "old", "house", "was", "built"], 30)) for _ in range(40)]
    for folder, files in (("ag_news", {"train.csv": "", "test.csv": "\n".join(articles)}), ("wikitext-103-raw", {"wiki.test.raw": "\n".join(paragraphs)})):
        (tmp_path/"data"/folder).mkdir(parents=True)
        for name, text in files.items(): (tmp_path/"data"/folder/name).write_text(text)
    let_in(published["ag_news"], tmp_path/"data")
    published["ag_news"]["texts"], published["wikitext103"]["texts"] = {"test": 40}, {"test": 40}
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(articles + paragraphs, vocab_size=300, show_progress=False)
    model = tmp_path/"tiny"
    model.mkdir()
    tokenizer.save_model(str(model))
    GPT2Model(GPT2Config(vocab_size=300, n_positions=64, n_embd=16, n_layer=2, n_head=2)).save_pretrained(model)
    (model/"tokenizer_config.json").write_text('{"tokenizer_class": "GPT2Tokenizer"}')
    run = run_plasticity(str(model), "ag_news", n_pairs=8, data_dir=tmp_path/"data", out_dir=tmp_path, progress=False)
    assert run.info["parameters"]["source"] == "wikitext103" and (run.table("rates").rate > 0).all() and run.table("rates").pair.nunique() == 8
    refused("must be one of ag_news, wikitext103; got 'mini/digits'", lambda: run_plasticity(str(model), data_dir=tmp_path/"data", out_dir=tmp_path))
    refused("`n_pairs` must be a", lambda: run_plasticity(str(model), "ag_news", n_pairs=10**6, data_dir=tmp_path/"data", out_dir=tmp_path))


def test_unlike_folders_of_equal_times(tmp_path):
    "Files of the same name, size and times in two folders are not taken for each other."
    for name, colours in (("a", ("red", "blue")), ("b", ("blue", "red"))):
        for label, colour in zip(("cat", "dog"), colours):
            (tmp_path/name/"photos"/label).mkdir(parents=True)
            for i in range(10): Image.new("RGB", (20, 20), COLOURS[colour]).save(tmp_path/name/"photos"/label/f"{i}.bmp")
    for path in tmp_path.rglob("*.bmp"): os.utime(path, (0, 0))
    for name, colours in (("a", ("red", "blue")), ("b", ("blue", "red"))):
        own, messages = load_own(tmp_path/name/"photos", tmp_path)
        check_colours(own.train, [COLOURS[colour] for colour in colours])
        assert any("copies" in message for message in messages) # the files of a class are all the same


def test_files_that_fail_for_a_while(tmp_path, monkeypatch):
    "A read error of the system stops with one line, and is not remembered."
    write_classes(tmp_path/"photos")
    read = data._read_bytes
    def failing(path):
        if path.name == "3.jpg": raise OSError(5, "Input/output error")
        return read(path)
    monkeypatch.setattr(data, "_read_bytes", failing)
    refused("can't be read (Input/output error); mend or remove it and run again", lambda: load_own(tmp_path/"photos", tmp_path))
    monkeypatch.setattr(data, "_read_bytes", read)
    own, messages = load_own(tmp_path/"photos", tmp_path)
    assert sum(sizes(own)) == 30 and messages == []


def test_disk_that_fills_up(tmp_path, monkeypatch):
    "The store that was begun goes on when there is room again."
    write_classes(tmp_path/"photos", n=30)
    write, calls = data._write_text, []
    def filling(path, text):
        calls.append(path)
        if len(calls) == 2: raise OSError(28, "No space left on device")
        write(path, text)
    monkeypatch.setattr(data, "_write_text", filling)
    refused("could not be written to", lambda: load_own(tmp_path/"photos", tmp_path))
    assert sum(sizes(load_own(tmp_path/"photos", tmp_path)[0])) == 90


@pytest.mark.parametrize("answer, message", [(b"HTTP/1.1 200 OK\r\nContent-Length: abc\r\n\r\nx", "could not be downloaded"), (b"nonsense\r\n\r\n", "could not be downloaded"), (b"HTTP/1.1 302 Found\r\nLocation: /\r\nContent-Length: 0\r\n\r\n", "could not be downloaded"),
                                             (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab", "could not be downloaded"), (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", "could not be downloaded"), (b"", "could not be downloaded"),
                                             (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n<html>hi>", "it is another version")])
def test_odd_servers(tmp_path, monkeypatch, answer, message):
    import socketserver
    class Handler(socketserver.BaseRequestHandler):
        def handle(self):
            self.request.recv(4096)
            self.request.sendall(answer)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as serving:
        threading.Thread(target=serving.serve_forever, daemon=True).start()
        refused(message, lambda: data.download(f"http://127.0.0.1:{serving.server_address[1]}/file", tmp_path/"file", 1_000, "md5:0", progress=False))
        serving.shutdown()
    assert not (tmp_path/"file").exists()

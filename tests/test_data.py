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
    "The data set and its warnings, as in a new process."
    data._WARNED.clear()
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


def test_a_folder_is_warned_of_once_a_process(tmp_path, capsys):
    "Plainly: without the seed of the division, and without a line of this library's code."
    root = tmp_path/"photos"
    write_classes(root, {"a": COLOURS["red"], "b": COLOURS["blue"]})
    (root/"a"/"broken.jpg").write_bytes(b"no image")
    own, (message,) = load_own(root, tmp_path)
    assert message.startswith(f"1 of 21 images in {str(root)!r} can't be read and were skipped: 'a/broken.jpg'")
    assert own.notes == ("1 photo of folder:photos can't be read and is left out",)
    with warnings.catch_warnings(record=True, action="always") as caught:
        again = load_dataset(f"folder:{root}", tmp_path/"data", 32)
        assert again.notes == own.notes and not caught
        data.load_folder(root, 8, progress=False)
        assert not caught
        shutil.copytree(root, tmp_path/"others"/"photos")
        load_dataset(f"folder:{tmp_path}/others/photos", tmp_path/"data", 32)
    [other] = caught
    line = warnings.formatwarning(other.message, other.category, other.filename, other.lineno, other.line)
    assert line == f"<vit_plasticity>:0: UserWarning: {other.message}\n"


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
    assert "10 photos of folder:split are in more than one split, as copies" in load_own(tmp_path/"split", tmp_path)[1][-1]
    table.write_bytes(b"\x00\xff" * 50)
    refused("photos.csv", lambda: load_own(table, tmp_path))


# One's own: what folders hold besides photos

def grey_photo(path, seed, size=(50, 40)):
    "A file of noise that differs from all others."
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.RandomState(seed).randint(0, 256, (*size[::-1], 3), np.uint8)
    Image.fromarray(pixels).save(path)


def two_classes(root, n=10, first=0):
    for i, label in enumerate(("cat", "dog")):
        for k in range(n): grey_photo(root/label/f"{k}.png", first + 100 * i + k)


def write_list(path, rows):
    "A CSV file of files and their labels."
    path.write_text("file,label\n" + "".join(f'"{file}",{label}\n' for file, label in rows), encoding="utf-8")


def load_photos(folder, size=8):
    "Photos of a folder, and the warnings, as in a new process."
    data._WARNED.clear()
    with warnings.catch_warnings(record=True, action="always") as caught:
        photos = data.load_folder(folder, size, progress=False)
    return photos, [str(w.message) for w in caught]


SYSTEMS = ["@eaDir", "@EADIR", "__MACOSX", "$RECYCLE.BIN", "lost+found", "System Volume Information", "#recycle",
           "found.000", "FOUND.017", "#snapshot", "~snapshot", "@SynoEAStream", "@SynoResource", "@tmp",
           "cat@eaDir@tmp", "RECYCLED", "RECYCLER", "Network Trash Folder", "TheVolumeSettingsFolder", "__pycache__",
           "_gsdata_", "_GSDATA_"]


@pytest.mark.parametrize("system", [*SYSTEMS, ".hidden"])
def test_folders_of_systems(tmp_path, system):
    "A8: they are left out at every depth and beside train and test."
    root, thumbnail = tmp_path/"photos", "000.png/SYNOPHOTO_THUMB_M.jpg"
    two_classes(tmp_path/"plain")
    two_classes(root)
    for parent in ("", "cat", "cat/deep/deeper"): grey_photo(root/parent/system/thumbnail, len(parent))
    grey_photo(root/system/"0.png", 1)
    own, messages = load_own(root, tmp_path)
    assert own.classes == ("cat", "dog") and messages == [] and own.notes == ()
    assert own.sha256 == load_own(tmp_path/"plain", tmp_path)[0].sha256
    assert len(load_photos(root)[0].files) == 20
    for split in ("train", "test"): shutil.copytree(tmp_path/"plain", tmp_path/"split"/split)
    grey_photo(tmp_path/"split"/system/"0.png", 1)
    grey_photo(tmp_path/"split"/"train"/system/"0.png", 2)
    assert sizes(load_own(tmp_path/"split", tmp_path)[0]) == [16, 4, 20]


@pytest.mark.parametrize("name", ["Thumbs", "thumbnails", "found", "found.objects", "snapshot", "tmp", "recycled cans"])
def test_folders_of_people(tmp_path, name):
    "A8: names that resemble those of systems are classes."
    two_classes(tmp_path/"photos")
    shutil.copytree(tmp_path/"photos"/"cat", tmp_path/"photos"/name)
    assert name in load_own(tmp_path/"photos", tmp_path)[0].classes


@pytest.mark.parametrize("system", SYSTEMS)
def test_folders_of_systems_in_a_list(tmp_path, system):
    "A8: so are a list's rows, which a program may have written, with a word."
    two_classes(tmp_path/"photos")
    rows = [(path.relative_to(tmp_path), path.parent.name) for path in sorted((tmp_path/"photos").rglob("*.png"))]
    for k, file in enumerate((f"photos/{system}/0.png", f"photos/cat/{system}/1.png/a.jpg")):
        grey_photo(tmp_path/file, k)
        rows.append((tmp_path/file if k else file, "cat"))
    write_list(tmp_path/"list.csv", rows)
    own, messages = load_own(tmp_path/"list.csv", tmp_path)
    assert sum(sizes(own)) == 20 and messages == []
    assert own.notes == ("2 rows of list.csv that name files in folders which systems make are left out",)
    assert len(load_photos(tmp_path/"list.csv")[0].files) == 20


def test_foreign_kinds(tmp_path):
    "A9: images of kinds that can't be read are counted for each class and listed with the remedy."
    root = tmp_path/"photos"
    two_classes(root)
    plain = load_own(root, tmp_path)[0]
    for i in range(20): (root/"cat"/f"IMG_{i}.HEIC").write_bytes(b"\0\0\0\x18ftypheic")
    for name in ("cat/sub/a.NEF", "dog/b.dng", "dog/3.cr2"): # the last is there as a PNG file
        (root/name).parent.mkdir(exist_ok=True)
        (root/name).write_bytes(b"II*\0")
    counted = "are of kinds that can't be read and are left out: 20 HEIC and 1 NEF in 'cat', 1 DNG in 'dog'"
    own, messages = load_own(root, tmp_path)
    assert own.notes == (f"22 images of folder:photos {counted}",) and own.sha256 == plain.sha256
    assert messages == [f"{own.notes[0]}; convert them to JPEG or PNG"]
    photos, (message,) = load_photos(root)
    assert "20 HEIC in 'cat', 1 NEF in 'cat/sub', 1 DNG in 'dog'; convert them to JPEG or PNG" in message
    assert len(photos.files) == 20 and len(photos.skipped) == 22
    assert photos.skipped["dog/b.dng"] == "DNG can't be read: convert it to JPEG or PNG"
    paths = sorted(root.rglob("*.*"))
    write_list(tmp_path/"photos.csv", [(path.relative_to(tmp_path), path.relative_to(root).parts[0]) for path in paths])
    own, messages = load_own(tmp_path/"photos.csv", tmp_path)
    assert messages == [f"22 images of folder:photos.csv {counted}; convert them to JPEG or PNG"]
    assert sum(sizes(own)) == 20
    photos, (message,) = load_photos(tmp_path/"photos.csv")
    assert len(photos.skipped) == 22 and "20 HEIC in 'photos/cat'" in message


def test_foreign_kinds_alone(tmp_path):
    "A9: a class, or a folder, of nothing else; and names that lie."
    root = tmp_path/"photos"
    two_classes(root)
    (root/"bird").mkdir()
    (root/"bird"/"a.heic").write_bytes(b"\0\0\0\x18ftypheic")
    own, (message,) = load_own(root, tmp_path)
    assert own.classes == ("cat", "dog") and "1 HEIC in 'bird'" in message
    remedy = "convert them to JPEG or PNG"
    refused(f"which holds no others but 1 HEIC: {remedy}", lambda: data.load_folder(root/"bird", 8))
    shutil.rmtree(root/"dog")
    refused(f"it also holds 1 HEIC, which can't be read: {remedy}", lambda: load_own(root, tmp_path))
    (root/"bird"/"a.heic").write_bytes(photo(COLOURS["red"])) # really a JPEG file
    (root/"cat"/"b.jpg").write_bytes(b"\0\0\0\x18ftypheic\0\0\0\0mif1heic") # really HEIC
    photos, _ = load_photos(root)
    assert "bird/a.heic" in photos.files
    assert photos.skipped == {"cat/b.jpg": "HEIC can't be read: convert it to JPEG or PNG"}


@pytest.mark.parametrize("suffix", data.PHOTO_SUFFIXES)
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_kinds_that_are_read(tmp_path, suffix, mode):
    "A9: AVIF, JPEG 2000 and PPM among them."
    colour = (200, 120, 40) if mode == "RGB" else (120,)
    image = Image.new(mode, (30, 20), colour)
    if suffix == ".pbm": image, colour = Image.new("1", (30, 20), 1), (255,) # black and white
    image.save(tmp_path/f"a{suffix.upper()}")
    photos, messages = load_photos(tmp_path)
    expected = torch.tensor(colour).view(-1, 1, 1)
    assert photos.skipped == {} and messages == [] and (photos.images[0].int() - expected).abs().max() <= 4


COMPOSED, DECOMPOSED = "café", "cafe\u0301"


def test_names_in_two_forms(tmp_path):
    "A10: what differs in its form of Unicode alone is one class."
    root = tmp_path/"photos"
    for k, label in enumerate((COMPOSED, DECOMPOSED, "bar")):
        for i in range(10): grey_photo(root/label/f"{k} {i}.png", 10 * k + i)
    own, messages = load_own(root, tmp_path)
    labels = torch.cat([own.train.labels, own.val.labels, own.test.labels])
    assert own.classes == ("bar", COMPOSED) and messages == [] and torch.bincount(labels).tolist() == [10, 20]
    assert own.notes == ("classes written in two ways of Unicode that look the same are taken as one: 'café'",)


def test_splits_in_two_forms(tmp_path):
    "A10: also between train and test."
    for k, (split, label) in enumerate((("train", COMPOSED), ("test", DECOMPOSED))):
        for i in range(10):
            grey_photo(tmp_path/"photos"/split/label/f"{i}.png", 100 * k + i)
            grey_photo(tmp_path/"photos"/split/"bar"/f"{i}.png", 100 * k + 50 + i)
    own, messages = load_own(tmp_path/"photos", tmp_path)
    assert own.classes == ("bar", COMPOSED) and messages == [] and sizes(own) == [16, 4, 20] and own.notes == ()


def test_list_in_two_forms(tmp_path):
    "A10: labels, and files and folders that the disk has in the other form."
    rows = []
    for i in range(10):
        grey_photo(tmp_path/DECOMPOSED/f"e\u0301 {i}.png", i)
        grey_photo(tmp_path/"bar"/f"{i}.png", 50 + i)
        rows += [(f"{COMPOSED}/é {i}.png", (COMPOSED, DECOMPOSED)[i % 2]), (tmp_path/"bar"/f"{i}.png", "bar")]
    write_list(tmp_path/"list.csv", rows)
    own, messages = load_own(tmp_path/"list.csv", tmp_path)
    assert own.classes == ("bar", COMPOSED) and messages == [] and sum(sizes(own)) == 20 and len(own.notes) == 1
    assert len(load_photos(tmp_path/"list.csv")[0].files) == 20
    write_list(tmp_path/"list.csv", [*rows, (f"{DECOMPOSED}/e\u0301 0.png", COMPOSED)])
    refused("more than once", lambda: load_own(tmp_path/"list.csv", tmp_path)) # in two forms


def test_names_that_look_alike(tmp_path):
    "A10: names that differ in case or blanks alone stay two classes, with a warning; so do rows of a list."
    root = tmp_path/"photos"
    for k, label in enumerate(("Cat", "cat", "cat ", "dog")):
        for i in range(10): grey_photo(root/label/f"{i}.png", 10 * k + i)
    own, messages = load_own(root, tmp_path)
    assert len(own.classes) == 4
    assert own.notes == ("the classes 'Cat' and 'cat' and 'cat ' of folder:photos look alike",)
    assert messages == [f"{own.notes[0]}: if they are one, give them one name"]
    for split, label in (("train", "Cat"), ("test", "cat")):
        for name in (label, "dog"): shutil.copytree(root/name, tmp_path/"split"/split/name)
    message = "no training images of 'cat' that can be read ('Cat' looks like it)"
    refused(message, lambda: load_own(tmp_path/"split", tmp_path))
    labels = {"Cat": "sea  lion", "cat": "Sea lion"}
    rows = [(f"photos/{folder}/{i}.png", label) for i in range(10) for folder, label in labels.items()]
    write_list(tmp_path/"list.csv", rows)
    assert "the classes 'Sea lion' and 'sea  lion' of" in load_own(tmp_path/"list.csv", tmp_path)[1][0]


@pytest.mark.parametrize("names", [
    ("golden retriever", "golden_retriever", "golden-retriever", "Golden  Retriever", "golden._retriever"),
    ("cat", "cat.", "_cat", "cat_ "), ("cat", "c\u00adat", "cat\u200b", "\ufeffcat"), ("x\u2013ray", "x-ray"),
    ("sea lion", "sealion"), ("1.5 m", "1_5 m")])
def test_names_that_differ_in_signs(names):
    "A10: each of these names looks like each other; blanks, _ - . and signs that can't be seen are put aside."
    listed = " and ".join(map(repr, names))
    doubts = data._found_doubts("x", data._Found({}, (*names, "dog")))
    assert [doubt.what for doubt in doubts] == [f"the classes {listed} of x look alike"]


def test_names_that_do_not_look_alike():
    "A10: signs that mean something."
    names = ("1.5", "15", "1", "-1", "A", "A-", "A+", "cat", "cats", "c#", "c", "_", "-", "v1.0", "v10", "été", "ete")
    assert data._alike_names(names) == []


def parts_of_classes(root, parts, classes=("cat", "dog"), n=8):
    "Photos in part/class; each differs from all others."
    for k, part in enumerate(parts):
        for j, label in enumerate(classes):
            for i in range(n): grey_photo(root/part/label/f"{i}.png", 50 * k + 20 * j + i)


@pytest.mark.parametrize("parts", [
    ("training_set", "test_set"), ("trainset", "testset"), ("train_images", "val_images"), ("Train", "Eval"),
    ("train ", "test"), ("train", "test_set"), ("TrainImages", "TestImages"), ("train2017", "val2017"),
    ("01 train", "02 test"), ("signs_train", "signs_test"), ("training-data", "Validation.Data", "holdout"),
    ("trainA", "testA"), ("train_augmented", "test"), ("train", "test\u200b")])
def test_splits_under_other_names(tmp_path, parts):
    "A8: train and test under other names are not two classes."
    root = tmp_path/"photos"
    parts_of_classes(root, parts)
    def load(): return load_own(root, tmp_path)
    listed = " and ".join(map(repr, sorted(parts)))
    refused(f"photos' looks like a split, with {listed}: rename to train, val, test, each with a folder", load)
    if "augmented" in parts[0]: return
    # Beside other folders, and with photos that are not in folders of classes.
    grey_photo(root/"spare"/"0.png", 250)
    refused("looks like a split", load)
    for part in parts: shutil.rmtree(root/part)
    for k, part in enumerate(parts): grey_photo(root/part/"0.png", k)
    refused("looks like a split", load)


@pytest.mark.parametrize("classes", [
    ("train", "bus", "car"), ("bullet_train", "blood_test", "train"), ("train", "test tube"), ("valid", "invalid"),
    ("pre_test", "post_test"), ("training", "trainers"), ("device", "evaluator"), ("contest", "retrain")])
def test_classes_that_are_no_splits(tmp_path, classes):
    "A8: names that a split's words are in, and folders of unlike names in them."
    for k, label in enumerate(classes):
        for j in range(2):
            for i in range(4): grey_photo(tmp_path/"photos"/label/f"{label} {j}"/f"{i}.png", 40 * k + 10 * j + i)
    own, messages = load_own(tmp_path/"photos", tmp_path)
    assert own.classes == tuple(sorted(classes)) and not [line for line in messages if "taken together" in line]


def test_classes_of_the_same_folders(tmp_path):
    "A8: left and right by day and night may be classes, so a warning says what is done."
    root = tmp_path/"photos"
    parts_of_classes(root, ("left", "right"), ("day", "night"))
    own, messages = load_own(root, tmp_path)
    assert own.classes == ("left", "right")
    told = ("the classes of folder:photos are 'left', 'right', and the photos in the folders 'day', 'night' that "
            "each of them holds are taken together")
    assert told in own.notes
    remedy = "; if the classes are 'day', 'night', rename the folders above them to train, val, test"
    assert f"{told}{remedy}" in messages
    # One more class without them, or with one of them only.
    grey_photo(root/"middle"/"day"/"0.png", 201)
    grey_photo(root/"middle"/"0.png", 202)
    own, messages = load_own(root, tmp_path)
    assert len(own.classes) == 3 and not [line for line in messages if "taken together" in line]
    # A train is a class beside a bus, whatever they hold.
    shutil.rmtree(root)
    parts_of_classes(root, ("bus", "train"), ("day", "night"))
    own, messages = load_own(root, tmp_path)
    assert own.classes == ("bus", "train") and any("'day', 'night' that each" in line for line in messages)


def test_splits_below_classes(tmp_path):
    "A8: train and test in each class are put together and divided anew, with a warning."
    parts_of_classes(tmp_path/"photos", ("cat", "dog"), ("train", "test"))
    own, messages = load_own(tmp_path/"photos", tmp_path)
    assert own.classes == ("cat", "dog") and sum(sizes(own)) == 32
    remedy = "taken together; to keep them apart, put the folders of the classes into train, val, test"
    assert any(remedy in line for line in messages)


def png_chunk(name, content, wrong=0):
    return len(content).to_bytes(4) + name + content + (zlib.crc32(name + content) ^ wrong).to_bytes(4)


def with_chunk(png, *chunk, **options):
    "After the header."
    return png[:33] + png_chunk(*chunk, **options) + png[33:]


def with_segment(jpeg, marker, content):
    return jpeg[:2] + bytes([255, marker]) + (len(content) + 2).to_bytes(2) + content + jpeg[2:]


def red(kind, **options): return photo(COLOURS["red"], name=kind, **options)


def damaged_metadata():
    "File name -> content, each of a red photo."
    png, jpeg, exif = red("PNG"), red("JPEG"), Image.Exif()
    exif[0x0112], exif[0x010f] = 1, "maker"
    nonsense, files = [b"nonsense", *(exif.tobytes()[:n] for n in (3, 9, 13, 20))], {}
    for kind in ("JPEG", "PNG", "WebP"):
        for i, part in enumerate(nonsense): files[f"{i}.{kind.lower()}"] = red(kind, exif=part)
    for value in (0, 9, 65_535):
        exif[0x0112] = value
        files[f"orientation {value}.png"] = red("PNG", exif=exif)
    bomb = b"a\0\0" + zlib.compress(bytes(10**8))
    chunks = {b"zTXt": bomb, b"pHYs": b"ab", b"gAMA": b"a", b"iCCP": b"a\0\5x", b"sRGB": b"", b"cHRM": b"a",
              b"acTL": b"a"}
    for name, content in chunks.items(): files[f"{name.decode()}.png"] = with_chunk(png, name, content)
    files["checksum.png"] = with_chunk(png, b"tEXt", b"a\0b", wrong=1)
    segments = [(0xe0, b"JFIF"), (0xe1, b"Exif\0\0II*\0\xff\xff\xff\xff"), (0xe2, b"ICC_PROFILE\0"),
                (0xe2, b"MPF\0nonsense"), (0xed, b"Photoshop 3.0\x008BIM\x03"), (0xee, b"Adobe")]
    for i, segment in enumerate(segments): files[f"segment {i}.jpg"] = with_segment(jpeg, *segment)
    return files


def test_metadata_cost_no_photo(tmp_path):
    "A12"
    files = damaged_metadata()
    for name, content in files.items(): (tmp_path/name).write_bytes(content)
    photos, messages = load_photos(tmp_path)
    assert photos.skipped == {} and len(photos.files) == len(files) == 32 and messages == []
    means = photos.images.float().mean((2, 3))
    assert (means - torch.tensor([255.0, 0, 0])).abs().max() < 25


def test_orientation_survives_damage(tmp_path):
    "A12: what is cut out of a file is not what says how to turn it."
    exif = Image.Exif()
    exif[0x0112] = 6 # to be turned clockwise
    halves = Image.fromarray(np.array([[255, 0]], np.uint8).repeat(20, 0).repeat(10, 1)) # white on the left
    for name in ("a.png", "b.jpg"): halves.save(tmp_path/name, exif=exif)
    (tmp_path/"a.png").write_bytes(with_chunk((tmp_path/"a.png").read_bytes(), b"gAMA", b"a"))
    (tmp_path/"b.jpg").write_bytes(with_segment((tmp_path/"b.jpg").read_bytes(), 0xe2, b"ICC_PROFILE\0"))
    photos, _ = load_photos(tmp_path)
    assert len(photos.images) == 2 and photos.images[:, :, :3].min() > 240 and photos.images[:, :, 5:].max() < 15


def deep_png(values, significant=None):
    "A PNG file of 16 bits: grey (h, w), or colours (h, w, 3), or those with alpha (h, w, 4)."
    height, width = values.shape[:2]
    kind = {(): 0, (3,): 2, (4,): 6}[values.shape[2:]]
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    chunks = [png_chunk(b"IHDR", width.to_bytes(4) + height.to_bytes(4) + bytes([16, kind, 0, 0, 0]))]
    if significant: chunks.append(png_chunk(b"sBIT", bytes(significant)))
    return b"\x89PNG\r\n\x1a\n" + b"".join([*chunks, png_chunk(b"IDAT", zlib.compress(rows)), png_chunk(b"IEND", b"")])


def load_deep(folder, **files):
    "Write files, their suffix after _; images (h, w, 3) by name, and warnings."
    folder.mkdir()
    for name, content in files.items(): (folder/name.replace("_", ".")).write_bytes(content)
    photos, messages = load_photos(folder, 9)
    names = [file.replace(".", "_") for file in photos.files]
    return dict(zip(names, photos.images.permute(0, 2, 3, 1))), messages


def check_scaled(image, values, top):
    "To 255, rounded."
    values = torch.from_numpy(values if values.ndim == 3 else values[..., None])
    assert (image - values * 255 / top).abs().max() <= 0.51


def random_values(bits, *shape, seed=0):
    "The largest is there."
    values = np.random.RandomState(seed).randint(0, 2**bits, shape)
    values[0, 0] = 2**bits - 1
    return values


@pytest.mark.parametrize("bits", [8, 10, 12, 14])
def test_few_bits_of_sixteen(tmp_path, bits, capsys):
    "A13: scaled where the file says how many bits, otherwise said."
    top, grey, colour = 2**bits - 1, random_values(bits, 9, 9), random_values(bits, 9, 9, 3)
    alpha = np.concatenate((colour, np.full((9, 9, 1), 65_535)), 2)
    files = {"grey_png": deep_png(grey, [bits]), "colour_png": deep_png(colour, [bits] * 3)}
    told, messages = load_deep(tmp_path/"told", **files, alpha_png=deep_png(alpha, [bits] * 3 + [16]))
    assert messages == [] and "were scaled by them" in capsys.readouterr().out
    for name in told: check_scaled(told[name], grey if name == "grey_png" else colour, top)
    _, (message,) = load_deep(tmp_path/"untold", grey_png=deep_png(grey), colour_png=deep_png(colour))
    assert f"use only the lowest {bits} bits and are read as dark ones, at most {round(top / 257)} of 255" in message
    assert message.startswith("the 2 photos of 16 bits in ")
    assert f"; multiply their values by {2**(16 - bits)}, or" in message
    # Each photo is judged by itself; that it may be a dark one is said.
    full, (message,) = load_deep(tmp_path/"full", a_png=deep_png(grey), b_png=deep_png(np.full((9, 9), 40_000)))
    assert message.startswith("1 of the 2 photos of 16 bits in ")
    assert message.endswith("unless they are dark; e.g. 'a.png'")
    check_scaled(full["a_png"], grey, 65_535)


def test_significant_bits_as_png_asks(tmp_path):
    "A13: values that are stretched to 16 bits aren't stretched again; not even those of a dark photo."
    values = random_values(12, 9, 9)
    stretched = (values << 4, values << 4 | values >> 8, np.round(values * 65_535 / 4_095).astype(int))
    for i, part in enumerate((*stretched, (values >> 4) << 4, *(part // 256 * 16 for part in stretched))):
        found, messages = load_deep(tmp_path/str(i), a_png=deep_png(part, [12]))
        check_scaled(found["a_png"], part, 65_535)
        # The file says that they are as they should be, so a dark photo is dark.
        assert messages == []


def netpbm(kind, values, top): return f"{kind} 9 9 {top}\n".encode() + values.astype(">u2").tobytes()


def test_few_bits_of_other_formats(tmp_path):
    "A13: TIFF, JPEG 2000 and PPM."
    grey, colour = random_values(12, 9, 9), random_values(12, 9, 9, 3)
    files = {"grey_pgm": netpbm("P5", grey, 4_095), "colour_ppm": netpbm("P6", colour, 4_095)}
    found, messages = load_deep(tmp_path/"told", **files)
    assert messages == []
    for name, values in (("grey_pgm", grey), ("colour_ppm", colour)): check_scaled(found[name], values, 4_095)
    (tmp_path/"untold").mkdir()
    for name in ("grey.tif", "grey.jp2"): Image.fromarray(grey.astype(np.uint16)).save(tmp_path/"untold"/name)
    (tmp_path/"untold"/"grey.pgm").write_bytes(netpbm("P5", grey, 65_535))
    (tmp_path/"untold"/"colour.ppm").write_bytes(netpbm("P6", colour, 65_535))
    _, (message,) = load_photos(tmp_path/"untold")
    assert message.startswith("the 4 photos of 16 bits in ") and "use only the lowest 12 bits" in message


def test_twelve_bits_in_a_tiff_file(tmp_path):
    "A13: two values in three bytes."
    values = random_values(12, 8, 8)
    first, second = values.reshape(-1, 2).T
    packed = np.stack((first >> 4, (first & 15) << 4 | second >> 8, second & 255), 1).astype(np.uint8).tobytes()
    # Width, height, bits, no compression, black is 0, place, values a pixel, rows, bytes, whole numbers.
    tags = {256: 8, 257: 8, 258: 12, 259: 1, 262: 1, 273: 134, 277: 1, 278: 8, 279: len(packed), 339: 1}
    entries = [tag.to_bytes(2, "little") + b"\4\0\1\0\0\0" + value.to_bytes(4, "little") for tag, value in tags.items()]
    (tmp_path/"a.tif").write_bytes(b"II*\0\x08\0\0\0\x0a\0" + b"".join(entries) + bytes(4) + packed)
    check_scaled(load_photos(tmp_path)[0].images[0].permute(1, 2, 0), values, 4_095)


def test_few_bits_of_a_data_set(tmp_path):
    "A13: said for the whole of it, also when it is read from the store."
    for k, label in enumerate(("a", "b")):
        (tmp_path/"photos"/label).mkdir(parents=True)
        for i in range(10):
            content = deep_png(random_values(12, 9, 9, seed=10 * k + i), [12] if i < 3 else None)
            (tmp_path/"photos"/label/f"{i}.png").write_bytes(content)
    for _ in range(2):
        own, (message,) = load_own(tmp_path/"photos", tmp_path)
        scaled, dark = own.notes
        assert scaled.startswith("6 photos of folder:photos use fewer than the 16 bits of their files")
        assert dark.startswith("the 14 photos of 16 bits in folder:photos use only the lowest 12 bits")
        assert message.startswith(dark + "; multiply their values by 16")


def write_deep(root, label, n, bits, seed=0, hot=False):
    "Photos of 16 bits a value that use `bits` of them; `hot`: but for one pixel."
    (root/label).mkdir(parents=True, exist_ok=True)
    for i in range(n):
        values = random_values(bits, 40, 40, seed=seed + i)
        if hot: values[20, 20] = 65_535
        (root/label/f"{bits} {i}.png").write_bytes(deep_png(values))


def test_few_bits_in_one_class(tmp_path):
    "Each photo is judged by itself, and that classes differ is said."
    write_deep(tmp_path/"photos", "a", 10, 12)
    write_deep(tmp_path/"photos", "b", 10, 16, seed=50)
    own, (message,) = load_own(tmp_path/"photos", tmp_path)
    (note,) = own.notes
    assert note.startswith("10 of the 20 photos of 16 bits in folder:photos use only the lowest 12 bits")
    assert note.endswith("; classes differ: 10 of 10 in 'a', 0 of 10 in 'b'") and "e.g. 'a/12 " in message


@pytest.mark.parametrize("hot", [False, True])
def test_few_bits_beside_large_values(tmp_path, hot):
    "One photo of 16 bits, or one hot pixel in each, hides nothing."
    for k, label in enumerate("ab"): write_deep(tmp_path/"photos", label, 10, 12, seed=50 * k, hot=hot)
    if not hot: write_deep(tmp_path/"photos", "b", 1, 16, seed=200)
    own, _ = load_own(tmp_path/"photos", tmp_path)
    among = "the 20 photos" if hot else "20 of the 21 photos"
    (note,) = own.notes
    assert note.startswith(f"{among} of 16 bits in folder:photos use only the lowest 12 bits")
    assert "classes differ" not in note


def test_files_of_several_images(tmp_path):
    "Said once, with their number; the first image is read."
    frames = [Image.new("RGB", (40, 40), colour) for colour in ("red", "blue")]
    for label in "ab":
        for i in range(10): grey_photo(tmp_path/"photos"/label/f"{i}.png", 100 * ord(label) + i)
    for suffix in ("gif", "webp", "png", "tif"):
        frames[0].save(tmp_path/"photos"/"a"/f"several.{suffix}", save_all=True, append_images=frames[1:])
    frames[0].save(tmp_path/"photos"/"b"/"one.gif")
    own, _ = load_own(tmp_path/"photos", tmp_path)
    assert own.notes == ("4 files of folder:photos hold several images (animations or pages), of which the first "
                         "is read",)
    images = torch.cat([split.images for split in (own.train, own.val, own.test)]).float().mean((2, 3))
    assert ((images[:, 0] > 240) & (images[:, 1:] < 15).all(1)).sum() == 5


def scenes():
    "18 pieces of two photographs."
    from sklearn.datasets import load_sample_images
    corners = [(x, y, x + 150, y + 130) for y in (0, 140, 280) for x in (0, 160, 320)]
    return [Image.fromarray(photo).crop(corner) for photo in load_sample_images().images for corner in corners]


CHANGES = {"encoded": lambda image: image, "grey": lambda image: image.convert("L"),
           "half": lambda image: image.resize((image.width // 2, image.height // 2)),
           "brighter": lambda image: image.point(lambda value: value * 1.1)}


@pytest.mark.parametrize("crops", [False, True])
@pytest.mark.parametrize("change", CHANGES)
def test_near_copies(tmp_path, change, crops):
    "A14: changed copies in another split are told, with two of them; others are not taken for copies."
    pieces, root = scenes(), tmp_path/"photos"
    for split in ("train", "test"):
        for label in "ab": (root/split/label).mkdir(parents=True)
    for i, image in enumerate(pieces): image.save(root/("train" if i < 10 else "test")/"ab"[i % 2]/f"{i}.png")
    def load():
        data._WARNED.clear()
        with warnings.catch_warnings(record=True, action="always") as caught:
            own = load_dataset(f"folder:{root}", tmp_path/"data", 64, crops=crops)
        return own, [str(w.message) for w in caught]
    assert load()[1] == []
    for i in range(4, 8): CHANGES[change](pieces[i]).save(root/"test"/"ab"[i % 2]/f"copy of {i}.jpg", quality=60)
    for _ in range(2): # the second time from the store
        own, (message,) = load()
        start, example = message.split(", e.g. ")
        assert own.notes == (start,)
        assert start == ("4 pairs of photos of folder:photos in different splits look alike "
                         "(as one photo encoded anew, resized or slightly changed would)")
        assert example.endswith("; if they are of one scene or one photo, keep them in one split (a group), else "
                                "ignore this")
        assert "/copy of " in example and " (test)" in example and (" (train)" in example or " (val)" in example)


def test_near_copies_in_one_folder(tmp_path):
    "A14: three changed copies of each photo fall into all splits."
    for label in "ab": (tmp_path/"photos"/label).mkdir(parents=True)
    for i, image in enumerate(scenes()):
        place = tmp_path/"photos"/"ab"[i % 2]
        image.save(place/f"{i}.png")
        for name in ("encoded", "half", "brighter"): CHANGES[name](image).save(place/f"{i} {name}.jpg")
    own, (message,) = load_own(tmp_path/"photos", tmp_path, 64)
    assert sum(sizes(own)) == 72 and int(message.split()[0]) > 20 and "in different splits look alike" in message


def fixed_scene(kind, rng):
    "One object in any colour, a microscope's round field with other contents, a bench that hardly changes."
    y, x = np.mgrid[:120, :120]
    colour = rng.randint(0, 256, 3)
    if kind == "object":
        inside = (abs(x - 60) < 30) & (abs(y - 70) < 30) | ((x - 60)**2 + (y - 30)**2 < 150)
        return np.where(inside[..., None], colour, 200).astype(np.uint8)
    if kind == "field":
        spots = Image.fromarray(rng.randint(0, 256, (12, 12, 3), np.uint8)).resize((120, 120))
        inside = (x - 60)**2 + (y - 60)**2 < 55**2
        return np.where(inside[..., None], 200 - np.asarray(spots) * 0.15, 5).astype(np.uint8)
    bench = np.asarray(scenes()[4].resize((120, 120))).astype(int)
    return (bench + rng.randint(-3, 4, bench.shape)).clip(0, 255).astype(np.uint8)


@pytest.mark.parametrize("kind", ["object", "field", "bench"])
@pytest.mark.parametrize("crops", [False, True])
def test_fixed_scenes(tmp_path, kind, crops):
    "Photos of one scene that differ in it are no copies; if they don't, the scene is told, not pairs."
    rng = np.random.RandomState(0)
    for label in "ab":
        (tmp_path/"photos"/label).mkdir(parents=True)
        for i in range(20): Image.fromarray(fixed_scene(kind, rng)).save(tmp_path/"photos"/label/f"{i}.png")
    with warnings.catch_warnings(record=True, action="always") as caught:
        own = load_dataset(f"folder:{tmp_path/'photos'}", tmp_path/"data", 64, crops=crops)
    if kind == "bench":
        assert own.notes == ("40 of 40 photos of folder:photos look alike, as if they share a fixed scene",)
    else: assert not caught and own.notes == ()


def test_class_without_test_images(tmp_path):
    "A11: folders of 20, 20 and 2 images."
    for k, (label, n) in enumerate((("cat", 20), ("dog", 20), ("owl", 2))):
        for i in range(n): grey_photo(tmp_path/"photos"/label/f"{i}.png", 100 * k + i)
    own, (message,) = load_own(tmp_path/"photos", tmp_path)
    assert own.notes == ("folder:photos has no test images of 'owl'",)
    remedy = "add images (of fewer than 3 none is kept for testing), or remove the class"
    assert message == f"{own.notes[0]}: accuracies leave them out; {remedy}"
    assert set(own.test.labels.tolist()) == {0, 1} and torch.bincount(own.train.labels).tolist() == [13, 13, 2]


def test_loose_photos(tmp_path):
    "Photos beside the folders of classes, also in train and test, are told; hidden ones aren't."
    two_classes(tmp_path/"photos"/"train")
    two_classes(tmp_path/"photos"/"test", n=5, first=1_000)
    grey_photo(tmp_path/"photos"/"train"/"loose.jpg", 1)
    (tmp_path/"photos"/"._a.jpg").write_bytes(b"resource fork")
    _, (message,) = load_own(tmp_path/"photos", tmp_path)
    assert message == (f"1 images in {str(tmp_path/'photos'/'train')!r} lie beside the folders and are not used, "
                       "e.g. 'loose.jpg'")


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
    run = run_finetuning(component="fc1", steps=3, batch_size=8, normalization="half", progress=False, **folders)
    assert run.info["parameters"]["dataset"] == "folder:photos@42" and run.info["parameters"]["normalization"] == "half" and len(run.table("predictions")) == 6
    assert len(run_linear_probe(**folders).table("predictions")) == 6
    assert run_plasticity(n_pairs=8, **folders).table("rates").pair.nunique() == 8
    crops = run_finetuning(component="fc1", steps=2, batch_size=8, augment=True, progress=False, **folders)
    assert crops.info["parameters"]["crop_scale"] == 0.08 and load_dataset(folders["dataset"], folders["data_dir"], 28, crops=True).train.images.shape == (24, 3, 40, 40)
    assert len(run_linear_probe(augmented=True, **folders).table("predictions")) == 6
    for split in ("train", "test"): write_classes(tmp_path/"no validation"/split, n=2)
    run = run_finetuning(component="fc1", steps=2, batch_size=4, progress=False, **folders | {"dataset": f"folder:{tmp_path/'no validation'}"})
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

"""Images a second from bytes to normalised batches of 224 x 224, against torchvision's transforms of one PIL image after the other, on one core, interleaved in one run.

    python benchmarks/data_path.py [repeats] [device] [--smoke] [--out FILE]

Writes benchmarks/data_path.csv. Batches have 32 images. The baseline opens (photos) or makes (32 x 32) a PIL image, transforms it (`RandomResizedCrop` and `RandomHorizontalFlip`, or `Resize` and `CenterCrop`, then `ToTensor` and `Normalize`) and stacks
the batch. The photos are 256 JPEG files of 500 x 375 pixels, quality 90, cut at random from two photographs (scikit-learn's samples), read from a warm file cache.
  small               32 x 32 bytes in memory: `preprocess`
  stored              photos that are decoded already: what `load_dataset` maps, shuffled and cropped by `training_batches`, or in order by `preprocess`
  first pass          photos that are not: `load_dataset`, which decodes and stores, and one epoch
Times are medians of the repeats, after one that does not count. Ratios are medians of the ratios within a repeat. On a device, batches are made there. About 2 minutes.
"""
import os
import platform
import shutil
import tempfile
import time
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"
if hasattr(os, "sched_setaffinity"): os.sched_setaffinity(0, {max(os.sched_getaffinity(0))}) # one core, decoding threads too

import numpy as np
import pandas as pd
import torch
from _common import command_line, write_rows
from PIL import Image
from sklearn.datasets import load_sample_images
from torchvision import transforms

from vit_plasticity.data import load_dataset, preprocess, training_batches
from vit_plasticity.models import InputConfig

OPTIONS = command_line(__doc__, repeats=7, device="cpu")
REPEATS, DEVICE, N, BATCH = OPTIONS.repeats, OPTIONS.device, 256, 32
if OPTIONS.smoke: REPEATS, N, BATCH = 1, 8, 4
torch.set_num_threads(1)
config = InputConfig(224, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
ending = [transforms.ToTensor(), transforms.Normalize(config.mean, config.std)]
TRANSFORMS = {"training": transforms.Compose([transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(), *ending]), "evaluation": transforms.Compose([transforms.Resize(224), transforms.CenterCrop(224), *ending])}
generator, rng = torch.Generator().manual_seed(0), np.random.RandomState(0)
small = torch.randint(0, 256, (N, 3, 32, 32), generator=generator, dtype=torch.uint8)
work = Path(tempfile.mkdtemp())


def write_photos(): # two classes; all of them for training, the same again for testing
    for i in range(N):
        photo = Image.fromarray(load_sample_images().images[i % 2])
        width = rng.randint(300, 640)
        left, top = rng.randint(0, 641 - width), rng.randint(0, 428 - width * 2 // 3)
        photo = photo.crop((left, top, left + width, top + width * 2 // 3)).resize((500, 375), Image.Resampling.BICUBIC)
        for split in ("train", "test"):
            for part in ("train", "val", "test"): (work/split/"photos"/part/str(i % 2)).mkdir(parents=True, exist_ok=True)
            photo.save(work/split/"photos"/split/str(i % 2)/f"{i}.jpg", quality=90)
    for split in ("train", "test"): # the other splits have one small image a class
        for part in {"train", "val", "test"} - {split}:
            for label in "01": Image.new("RGB", (8, 8)).save(work/split/"photos"/part/label/"0.png")


def consume(batches): # how many images
    count = sum(len(batch) for batch in batches)
    if DEVICE != "cpu": torch.cuda.synchronize()
    return count


def baseline(kind, mode): # one image after the other
    transform = TRANSFORMS[mode]
    if kind == "small": images = (Image.fromarray(image.permute(1, 2, 0).numpy()) for image in small)
    else: images = (Image.open(path).convert("RGB") for path in sorted((work/"train"/"photos"/"train").rglob("*.jpg")))
    def batches():
        batch = []
        for image in images:
            batch.append(transform(image))
            if len(batch) == BATCH:
                yield torch.stack(batch).to(DEVICE)
                batch = []
    return consume(batches())


def epoch(data, mode): # of the training images, or of the test images
    if mode == "training":
        batches = training_batches(data, BATCH, config, DEVICE, crop_scale=0.08)
        return consume(next(batches)[0] for _ in range(len(data.train.labels) // BATCH))
    return consume(preprocess(images, config, DEVICE) for images in data.test.images.split(BATCH))


def of_small(mode):
    return consume(preprocess(images, config, DEVICE, generator if mode == "training" else None) for images in small.split(BATCH))


def load(mode): # the photos of one split
    split = {"training": "train", "evaluation": "test"}[mode]
    return load_dataset(f"folder:{work/split/'photos'}", work/"data", splits=(split,), crops=mode == "training", progress=False)


def first_pass(mode): return epoch(load(mode), mode)


def rate(call, *arguments):
    start = time.perf_counter()
    return call(*arguments) / (time.perf_counter() - start)


write_photos()
rows = []
for repeat in range(REPEATS + 1):
    for mode in TRANSFORMS:
        rates = {("small", "one by one"): rate(baseline, "small", mode), ("small", "small"): rate(of_small, mode)}
        shutil.rmtree(work/"data", ignore_errors=True)
        rates |= {("photos", "one by one"): rate(baseline, "photos", mode), ("photos", "first pass"): rate(first_pass, mode)}
        stored = load(mode)
        rates |= {("photos", "stored"): rate(epoch, stored, mode)}
        if repeat: rows += [{"repeat": repeat, "mode": mode, "images": images, "route": route, "images_per_s": value, "ratio": value / rates[images, "one by one"]} for (images, route), value in rates.items()]
table = pd.DataFrame(rows).groupby(["images", "mode", "route"], sort=False)[["images_per_s", "ratio"]].agg(["median", "min", "max"]).round(2)
table.columns = [f"{name}_{what}" if what != "median" else name for name, what in table.columns]
cpu = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), platform.processor()) if os.path.exists("/proc/cpuinfo") else platform.processor()
table = table.reset_index().assign(repeats=REPEATS, device=DEVICE if DEVICE == "cpu" else torch.cuda.get_device_name(), cpu=cpu, torch=torch.__version__, pillow=Image.__version__, stored_bytes=lambda t: np.where(t.images == "small", 3_072, np.where(t["mode"] == "training", 320**2 * 3, 224**2 * 3)))
write_rows(table, OPTIONS)
print(table.to_string(index=False))
shutil.rmtree(work)

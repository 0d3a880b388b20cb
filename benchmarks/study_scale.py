"""Ten thousand runs: how long `status` and the tables take, and how much memory. Synthetic rows in a temporary folder, written as runs are.

    python benchmarks/study_scale.py [runs] [--smoke] [--out FILE]

Writes benchmarks/study_scale.csv.
"""
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd
from _common import command_line, write_rows

STUDY = """
out_dir: {out}
jobs:
  - notebook: finetune_grid
    dataset: [{tasks}]
    component: [mha, fc1, fc2, ln2, ln1, all, head]
    lrs: {lrs}
    seeds: {seeds}
"""


def write(out: Path, runs: int) -> Path:
    "A study of so many finished runs with their tables, and its file."
    from vit_plasticity.data import MINI_TASKS
    from vit_plasticity.results import run_id
    from vit_plasticity.sweep import find_runs, read_grid
    seeds = -(-runs // (11 * 7 * 4))
    path = out/"study.yaml"
    path.write_text(STUDY.format(out=out, tasks=", ".join(MINI_TASKS), lrs='"0.02,0.06,0.2,0.6"', seeds='"' + ",".join(map(str, range(seeds))) + '"'))
    generator = np.random.default_rng(0)
    for _, planned, _ in find_runs(read_grid(path))[:runs]:
        parameters = planned | {"model_sha256": "0" * 64, "data_sha256": "1" * 64, "device": "cpu"}
        folder = out/"finetune"/run_id(parameters)
        folder.mkdir(parents=True)
        accuracy = generator.uniform(0.5, 0.9)
        tables = {"summary": pd.DataFrame([dict(test_accuracy=accuracy, val_accuracy=accuracy, best_step=120, majority_class=0, n_classes=10, n_test=1000, component_parameters=1, final_norm_parameters=1, head_parameters=1, trainable_parameters=3, clipped=0.1,
                                                time_s=8.0, images_per_s=900.0, peak_memory_bytes=10**9)]),
                  "evaluations": pd.DataFrame({"step": [30, 60, 90, 120], "val_loss": generator.uniform(0, 1, 4), "val_accuracy": generator.uniform(0, 1, 4)}),
                  "steps": pd.DataFrame({name: generator.uniform(0, 1, 120) for name in ("step_lr", "loss", "grad_norm", "component_grad_norm", "component_grad_rms", "component_relative_grad_norm", "head_grad_norm", "final_norm_grad_norm")}).assign(step=range(120), step_micro_batch=64),
                  "layers": pd.DataFrame({"step": 0, "layer": range(6), "grad_norm": 1.0, "relative_grad_norm": 1.0}), "predictions": pd.DataFrame({"image": range(10), "label": 0, "prediction": 0})}
        for name, table in tables.items(): table.to_parquet(folder/f"{name}.parquet", index=False)
        (folder/"run.json").write_text(json.dumps({"experiment": "finetune", "id": folder.name, "status": "finished", "error": None, "parameters": parameters, "versions": {"torch": "2"}, "commit": "a", "modified": False, "code": {}, "threads": 1,
                                                   "started": "2026-01-01T00:00:00+00:00", "wall_time_s": 8.0, "tables": sorted(tables)}))
    return path


def measure(what: str, path: str):
    "In a process of its own: seconds, and the largest memory."
    start = time.perf_counter()
    from vit_plasticity import commands, sweep, tables
    imports = time.perf_counter() - start
    if what == "status": commands.main(["status", path])
    else:
        study = tables.collect_study(sweep.read_grid(path))
        accuracies = tables.accuracy_table(study)
        tables.significance_table(accuracies), tables.over_rates(study, "sgd"), tables.write_study(study, Path(path).parent/"rows")
    print(json.dumps({"what": what, "total_s": round(time.perf_counter() - start, 2), "imports_s": round(imports, 2), "peak_memory_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)}))


if __name__ == "__main__":
    if sys.argv[1:2] == ["measure"]: measure(*sys.argv[2:])
    else:
        options = command_line(__doc__, runs=10_000)
        runs = 84 if options.smoke else options.runs
        with tempfile.TemporaryDirectory() as folder:
            path = write(Path(folder), runs)
            rows = [json.loads(subprocess.run([sys.executable, __file__, "measure", what, str(path)], stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()[-1]) for what in ("status", "tables")]
        table = pd.DataFrame(rows).assign(runs=runs)
        write_rows(table, options)
        print(table.to_string(index=False))

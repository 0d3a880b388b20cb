"""A study on a real Slurm of one node, through profiles/slurm: one job fails on purpose, one is killed on the node, and the next call finishes what can be finished.
Starting Slurm's daemons needs root and is asked for: `SLURM_TEST=1 pytest -m long tests/test_slurm.py` (Debian: apt-get install slurm-wlm munge)."""
import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

import pandas as pd
import pytest

from vit_plasticity.finetune import run_cell
from vit_plasticity.results import combine_runs, read_runs
from vit_plasticity.sweep import job_states, read_grid

ROOT = Path(__file__).resolve().parent.parent
CONF = Path("/etc/slurm/slurm.conf")
MARK = "# written by tests/test_slurm.py"


def why_not():
    "Why Slurm can't run here; None: it can."
    if os.environ.get("SLURM_TEST") != "1": return "starts Slurm's daemons; ask for it by SLURM_TEST=1"
    if os.geteuid(): return "Slurm's daemons need root"
    if missing := [name for name in ("slurmctld", "slurmd", "munged", "sbatch") if not shutil.which(name)]: return f"not installed: {', '.join(missing)}"
    if CONF.exists() and MARK not in CONF.read_text(): return "this machine belongs to a cluster already"


pytestmark = [pytest.mark.long, pytest.mark.skipif(bool(why_not()), reason=str(why_not()))]


@pytest.fixture(scope="module")
def cluster():
    host = socket.gethostname().split(".")[0]
    for folder in ("/etc/slurm", "/run/munge", "/var/spool/slurmctld", "/var/spool/slurmd", "/var/log/slurm"): Path(folder).mkdir(parents=True, exist_ok=True)
    shutil.chown("/run/munge", "munge", "munge")
    settings = dict(ClusterName="one", SlurmctldHost=host, SlurmUser="root", AuthType="auth/munge", ProctrackType="proctrack/linuxproc", TaskPlugin="task/none", JobAcctGatherType="jobacct_gather/none",
                    AccountingStorageType="accounting_storage/none", SelectType="select/cons_tres", SelectTypeParameters="CR_Core_Memory", ReturnToService=2, StateSaveLocation="/var/spool/slurmctld", SlurmdSpoolDir="/var/spool/slurmd",
                    SlurmctldLogFile="/var/log/slurm/slurmctld.log", SlurmdLogFile="/var/log/slurm/slurmd.log", MpiDefault="none", MinJobAge=3600)
    nodes = f"NodeName={host} NodeAddr=127.0.0.1 CPUs={os.cpu_count()} RealMemory=8000 State=UNKNOWN\nPartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP\n"
    CONF.write_text(MARK + "\n" + "".join(f"{name}={value}\n" for name, value in settings.items()) + nodes)
    if not Path("/etc/munge/munge.key").exists(): subprocess.run(["mungekey"], check=True)
    subprocess.run(["su", "-s", "/bin/sh", "munge", "-c", "munged --force"], check=True)
    for daemon in (["slurmctld", "-c"], ["slurmd"]): subprocess.run(daemon, check=True)
    for _ in range(60):
        if "idle" in subprocess.run(["sinfo", "-h", "-o", "%T"], capture_output=True, text=True).stdout: break
        time.sleep(1)
    else: pytest.fail("the node did not come up: " + Path("/var/log/slurm/slurmctld.log").read_text()[-2000:])
    yield
    for daemon in ("slurmd", "slurmctld", "munged"): subprocess.run(["pkill", "-x", daemon])
    CONF.unlink()


STUDY = """
out_dir: {out}
device: cpu
jobs:
  - notebook: finetune_grid
    dataset: mini/digits
    component: [mha, ln1]
    lrs: 0.06,0.2
    seeds: 0
    steps: 12
  - notebook: finetune_grid # fails on purpose: this rate makes the loss infinite
    dataset: mini/digits
    component: all
    lrs: 1.0e+30
    seeds: 0
    steps: 12
  - notebook: finetune_grid # killed on the node
    dataset: mini/snow
    component: fc1
    lrs: 0.06,0.2
    seeds: 0,42,3407
    steps: 60
  - notebook: linear_probe
    dataset: [mini/digits, mini/snow]
"""


def test_study_on_slurm(cluster, tmp_path):
    out, path = tmp_path/"runs", tmp_path/"study.yaml"
    path.write_text(STUDY.format(out=out))
    command = ["snakemake", "--profile", str(ROOT/"profiles/slurm"), "--configfile", str(path), "--snakefile", str(ROOT/"Snakefile"), "--directory", str(tmp_path), "--retries", "0", "--slurm-no-account", "--slurm-status-command", "squeue",
               "--default-resources", "mem_mb=2000", "runtime=20", "--set-threads", "finetune_grid=1", "linear_probe=1", "--set-resources", "linear_probe:runtime=20", "--slurm-init-seconds-before-status-checks", "5", "--latency-wait", "30", "--groups", "linear_probe=probes", "--group-components", "probes=2"]
    with open(tmp_path/"first.log", "w") as log: first = subprocess.Popen(command, stdout=log, stderr=log, cwd=ROOT)
    killed = ""
    while first.poll() is None and not killed: # once the job's first run is stored
        if out.exists() and any("snow" in run.read_text() for run in out.glob("finetune/*/run.json")): killed = subprocess.run(["pkill", "-9", "-f", "execute.py.*mini-snow_fc1"], capture_output=True).returncode == 0
        time.sleep(0.5)
    assert first.wait(timeout=600) == 1 and killed, (tmp_path/"first.log").read_text()[-4000:]
    grid = read_grid(path)
    states = job_states(grid).set_index("job").rename(index=lambda name: name.rpartition("-")[0])
    assert dict(states.state.drop("mini-snow_fc1")) == {"mini-digits_mha": "done", "mini-digits_ln1": "done", "mini-digits_all": "failed", "mini-digits": "done", "mini-snow": "done"}
    assert states.state["mini-snow_fc1"] in ("running", "interrupted") and "loss is" in states.error["mini-digits_all"]
    again = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert again.returncode == 1, again.stderr[-4000:] # the job that fails fails again
    states = job_states(grid)
    assert dict(states.state.value_counts()) == {"done": 5, "failed": 1} and states.finished.sum() == 10
    rows = read_runs("finetune", "steps", out)
    assert not rows.duplicated(["run", "step"]).any() and rows.run.nunique() == 10
    alone = combine_runs(run_cell(component="fc1", dataset="mini/snow", lrs="0.06,0.2", seeds="0,42,3407", steps=60, device="cpu", out_dir=tmp_path/"alone"), "steps")
    both = [frame[frame.dataset == "mini/snow"].sort_values(["run", "step"], ignore_index=True) for frame in (rows, alone)]
    pd.testing.assert_frame_equal(*both, check_like=True) # as if nobody had been killed

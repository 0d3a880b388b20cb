import os
import sys
from pathlib import Path

# Programs of this environment first, one thread a process (two run at once), and no use of the network.
os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", HF_HUB_OFFLINE="1", MPLBACKEND="agg", TQDM_DISABLE="1")

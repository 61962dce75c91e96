"""An emulated device that does nothing but lend its dense stages: a process of its own.

    python -m assist.emulated_device RUN_DIR PROFILE

Serves the arena in RUN_DIR as an idle gpu-engine does, with the times of a profile, until its
standard input is closed.
"""

import sys
import threading
from pathlib import Path

from dualpace.checkpoint import fetch_demo_model, open_checkpoint
from dualpace.core.clock import SystemClock
from dualpace.core.request import Engine
from dualpace.gpu_engine.dense_assist import DenseAssist
from dualpace.gpu_engine.device import CpuDevice
from dualpace.gpu_engine.emulated import EmulatedStages
from dualpace.gpu_engine.lending import Lending
from dualpace.gpu_engine.offer import OfferKeeper
from dualpace.ipc.arena import Arena
from dualpace.ipc.assist_region import AssistRegion
from dualpace.profiles import read_profile
from dualpace.scheduling.cost import GpuCosts
from dualpace.scheduling.lease import AssistLease

_LOOK_S = 0.25


def main() -> None:
    """Serve."""
    run_dir, profile = map(Path, sys.argv[1:])
    checkpoint = open_checkpoint(fetch_demo_model())
    arena = Arena.attach(run_dir, checkpoint.fingerprint, timeout_s=30)
    region = AssistRegion(arena)
    bell = region.bell(Engine.GPU)
    channels = region.channels(bell)
    num_layers = checkpoint.config.num_layers
    stages = EmulatedStages(
        costs=GpuCosts(read_profile(profile)),
        num_layers=num_layers,
        arena=arena,
        channels=channels,
        vocab_size=checkpoint.config.vocab_size,
    )
    assist = DenseAssist(
        stages=stages,
        device=CpuDevice(),
        channels=channels,
        lease=AssistLease(),
        clock=SystemClock(),
    )
    lending = Lending(assist, OfferKeeper(region, share=1.0, num_layers=num_layers))
    ended = threading.Event()

    def wait_for_end() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=wait_for_end, daemon=True).start()
    print("ready", flush=True)
    while not ended.is_set():
        bell.listen()
        if not lending.idle():
            bell.wait(_LOOK_S)


if __name__ == "__main__":
    main()

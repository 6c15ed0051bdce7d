"""Exact NashConv of a run's policy at Kuhn poker: where training began, and its newest version.

    python experiments/nash_conv.py RUN_DIR

The policy is read off the model: at each of the twelve information sets, the probabilities of the
answers that are a legal action, renormalised; what they leave over is the illegal mass.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from rlforge.config.compose import from_yaml
from rlforge.config.schema import RunConfig
from rlforge.config.sft import ACTION
from rlforge.engines.policies import load_policy
from rlforge.games.openspiel import information_sets, nash_conv
from rlforge.games.prompts import Prompter
from rlforge.local.policies import find_policy
from rlforge.models.load import load_base_model, load_tokenizer
from rlforge.rollout.datasets import AnswerEncoder, written
from rlforge.rollout.lineup import train_envs

GAME = "kuhn_poker"


def tabular(model: Any, tokenizer: Any, config: RunConfig) -> tuple[dict[str, Any], float]:
    """Probabilities of the legal actions at every information set, and the mean illegal mass."""
    prompter, encoder = Prompter(tokenizer, config.prompts), AnswerEncoder(config.model, tokenizer)
    env = train_envs(config)[0]
    policy: dict[str, dict[str, float]] = {}
    illegal = []
    for text, _, view in information_sets(GAME):
        _, prompt = prompter.encode(env.prompt_template, view, env.action_extraction)
        assert view.legal_actions is not None
        masses = {}
        for action in view.legal_actions:
            said = written(ACTION, env.action_extraction, action)
            # With and without a space in front.
            answers = {encoder.answer(said, after=before) for before in ("", ".")}
            masses[action] = math.fsum(
                probability(model, prompt, answer, config.engine.temperature) for answer in answers
            )
        total = sum(masses.values())
        illegal.append(1.0 - total)
        policy[text] = {action: mass / total for action, mass in masses.items()}
    return policy, sum(illegal) / len(illegal)


@torch.no_grad()
def probability(
    model: Any, prompt: Sequence[int], answer: Sequence[int], temperature: float
) -> float:
    """Of a whole answer, its end included."""
    logits = model(torch.tensor([[*prompt, *answer]])).logits[0, len(prompt) - 1 : -1].double()
    logprobs = torch.log_softmax(logits / temperature, dim=-1)
    return float(logprobs.gather(-1, torch.tensor(answer)[:, None]).sum().exp())


def version_nash_conv(run_dir: Path, version: str) -> tuple[float, float]:
    """NashConv and illegal mass of a saved version: ``step-N`` or ``latest``."""
    config = from_yaml(run_dir / "config.yaml")
    found, _ = find_policy(run_dir, version)
    base = load_base_model(config.model, torch.device("cpu"), torch.float32)
    model = load_policy(base, str(found.path_or_name), found.uid)
    policy, illegal = tabular(model, load_tokenizer(config.model), config)
    return nash_conv(GAME, policy), illegal


def policy_nash_conv(run_dir: Path) -> dict[str, float]:
    """NashConv and illegal mass of the version that training began with, and of the newest."""
    figures = {}
    for name, version in (("before", "step-0"), ("after", "latest")):
        figures[name], figures[f"illegal_{name}"] = version_nash_conv(run_dir, version)
    return figures


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run_dir", type=Path)
    print(json.dumps(policy_nash_conv(parser.parse_args().run_dir), indent=1))

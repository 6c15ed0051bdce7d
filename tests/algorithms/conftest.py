"""Small tensors and steps to learn from."""

from collections.abc import Callable

import pytest
import torch

from rlforge.algorithms.base import LossInputs
from rlforge.types import Step


@pytest.fixture(autouse=True)
def _double_precision():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def make_inputs(logprobs, **fields) -> LossInputs:
    """Loss inputs around ``logprobs`` (nested lists or a tensor), on-policy by default."""
    tensors = {
        name: field if isinstance(field, torch.Tensor) else torch.tensor(field)
        for name, field in fields.items()
        if field is not None and not name.startswith("total")
    }
    if not isinstance(logprobs, torch.Tensor):
        logprobs = torch.tensor(logprobs, requires_grad=True)
    mask = tensors.setdefault("mask", torch.ones_like(logprobs.detach()))
    tensors.setdefault("behaviour_logprobs", logprobs.detach())
    tensors.setdefault("proximal_logprobs", logprobs.detach())
    tensors.setdefault("advantages", torch.ones(len(logprobs)))
    return LossInputs(
        logprobs=logprobs,
        total_tokens=fields.get("total_tokens", int(mask.sum())),
        total_sequences=fields.get("total_sequences", len(logprobs)),
        **tensors,
    )


def make_step(
    game_id: str = "g",
    reward: float = 0.0,
    turn_index: int = 0,
    last_turn: bool = True,
    player_id: int = 0,
    group_id: str | None = None,
    outcome_reward: float = 0.0,
) -> Step:
    return Step(
        game_id=game_id,
        env_id="env",
        player_id=player_id,
        group_id=group_id,
        turn_index=turn_index,
        last_turn=last_turn,
        observation="",
        action="",
        prompt_token_ids=(1,),
        token_ids=(2,),
        logprobs=(-0.5,),
        raw_reward=0.0,
        reward=reward,
        outcome_reward=outcome_reward,
        policy_uid="p",
        policy_version=0,
    )


@pytest.fixture(name="make_inputs", scope="session")
def make_inputs_fixture() -> Callable[..., LossInputs]:
    return make_inputs


@pytest.fixture(name="make_step", scope="session")
def make_step_fixture() -> Callable[..., Step]:
    return make_step

"""Values of ``rlforge.types`` and small models with defaults; a test names what it is about."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rlforge.types import (
    Completion,
    EnvSpec,
    Episode,
    GameRecord,
    GameSpec,
    PolicyRef,
    Seat,
    Step,
    TrainBatch,
    Turn,
)


def checkpoint(version: int = 3, **changes: Any) -> PolicyRef:
    """A version of the trained policy."""
    fields = {"uid": f"step-{version}", "kind": "checkpoint", "path_or_name": "adapter"}
    return PolicyRef(**{**fields, "version": version, **changes})


def scripted(name: str = "random_legal") -> PolicyRef:
    return PolicyRef(uid=name, kind="scripted", path_or_name=name)


def seat(player_id: int = 0, policy: PolicyRef | None = None, **changes: Any) -> Seat:
    """A trained seat of ``checkpoint()`` by default."""
    fields = {"trained": True, "prompt_template": "default", "action_extraction": "boxed"}
    return Seat(player_id=player_id, policy=policy or checkpoint(), **{**fields, **changes})


def game_spec(
    game_id: str = "g1",
    env: EnvSpec | str = "SimpleTak-v0-train",
    seats: Sequence[Seat] | None = None,
    **changes: Any,
) -> GameSpec:
    """A training game; without ``seats``, every seat of ``env`` is ``seat()``."""
    env = EnvSpec(id=env) if isinstance(env, str) else env
    if seats is None:
        seats = [seat(player) for player in range(env.num_players)]
    fields = {"seed": 11, "purpose": "train"}
    return GameSpec(game_id=game_id, env=env, seats=tuple(seats), **{**fields, **changes})


def completion(text: str = "[4]", **changes: Any) -> Completion:
    """An answer of two tokens by ``checkpoint()``."""
    fields = {
        "prompt_token_ids": (5, 6, 7),
        "token_ids": (9, 2),
        "logprobs": (-0.5, -0.1),
        "policy_uid": "step-3",
        "policy_version": 3,
    }
    return Completion(text=text, **{**fields, **changes})


def turn(player_id: int = 0, action: str = "[4]", **changes: Any) -> Turn:
    """A legal turn whose answer is the action."""
    fields = {
        "observation": "board",
        "completion": completion(action),
        "well_formed": True,
        "legal": True,
    }
    return Turn(player_id=player_id, action=action, **{**fields, **changes})


def game_record(
    spec: GameSpec | None = None,
    turns: Iterable[Turn] | None = None,
    rewards: dict[int, float] | None = None,
    **changes: Any,
) -> GameRecord:
    """A finished game that player 0 wins in two turns."""
    return GameRecord(
        spec=spec or game_spec(),
        turns=tuple([turn(0), turn(1)] if turns is None else turns),
        rewards={0: 1.0, 1: -1.0} if rewards is None else rewards,
        **{"end_reason": "finished", **changes},
    )


def step(**changes: Any) -> Step:
    """The only turn of player 0 in a game without a group, with a reward of 1."""
    fields = {
        "game_id": "g1",
        "env_id": "env",
        "player_id": 0,
        "group_id": None,
        "turn_index": 0,
        "last_turn": True,
        "observation": "",
        "action": "",
        "prompt_token_ids": (5, 6, 7),
        "token_ids": (8, 9),
        "logprobs": (-1.0, -2.0),
        "raw_reward": 1.0,
        "reward": 1.0,
        "policy_uid": "step-0",
        "policy_version": 0,
    }
    return Step(**{**fields, **changes})


def episode(
    game_id: str = "g1", versions: Sequence[int] = (0,), group_size: int = 1, **changes: Any
) -> Episode:
    """An episode with one step per policy version; ``changes`` are those of its steps."""
    last = len(versions) - 1
    steps = tuple(
        step(
            **{
                "game_id": game_id,
                "turn_index": index,
                "last_turn": index == last,
                "policy_version": version,
                **changes,
            }
        )
        for index, version in enumerate(versions)
    )
    shared = {"env_id": "env", "player_id": 0, "group_id": None}
    fields = {name: changes.get(name, default) for name, default in shared.items()}
    return Episode(game_id=game_id, group_size=group_size, steps=steps, **fields)


def batch(steps: Sequence[Step], whole_episodes: bool = False) -> TrainBatch:
    """The batch of these steps, with the range of their versions."""
    versions = [each.policy_version for each in steps] or [0]
    return TrainBatch(
        steps=tuple(steps),
        whole_episodes=whole_episodes,
        min_version=min(versions),
        max_version=max(versions),
    )


def llama(seed: int = 0, **changes: Any) -> Any:
    """A random Llama of two layers and 32 units with large weights, ready to predict."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {
        "vocab_size": 40,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
        "initializer_range": 0.2,
        "tie_word_embeddings": True,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(LlamaConfig(**{**sizes, **changes})).eval()

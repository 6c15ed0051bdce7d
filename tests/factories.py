"""Values of the package and small models with defaults; a test names what it is about."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

from rlforge.continuous.decisions.records import Decision, Metadata
from rlforge.games.base import Game, View
from rlforge.record.results import LadderRow, PoolEntry, PoolSnapshot
from rlforge.samples import Episode, Sample, TrainBatch, UpdateResult
from rlforge.statistics import wilson_interval
from rlforge.types import (
    Completion,
    EnvSpec,
    EvalResult,
    Form,
    GameRecord,
    GameSpec,
    PolicyRef,
    Seat,
    Turn,
)


def changed(config: Any, **groups: dict[str, Any]) -> Any:
    """The configuration with other values in its groups: ``engine={"max_tokens": 4}``."""
    made = {name: replace(getattr(config, name), **values) for name, values in groups.items()}
    return replace(config, **made)


def checkpoint(version: int = 3, **changes: Any) -> PolicyRef:
    """A version of the trained policy."""
    fields = {"uid": f"step-{version}", "kind": "checkpoint", "path_or_name": "adapter"}
    return PolicyRef(**{**fields, "version": version, **changes})


def scripted(name: str = "random_legal") -> PolicyRef:
    return PolicyRef(uid=name, kind="scripted", path_or_name=name)


def seat(player_id: int = 0, policy: PolicyRef | None = None, **changes: Any) -> Seat:
    """A trained seat of ``checkpoint()`` by default."""
    fields = {"trained": True, "form": Form()}
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


def spiel(name: str, players: int = 2, **changes: Any) -> EnvSpec:
    """A game of OpenSpiel."""
    return EnvSpec(id=name, source="openspiel", num_players=players, **changes)


def random_views(game: Game, seed: int = 0) -> Iterator[View]:
    """Each view of a game, which is then answered with a random legal action."""
    draw = Random(seed)
    while not game.done:
        view = game.view()
        yield view
        game.step(draw.choice(view.legal_actions or ()))


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


def equal_turns(
    game_id: str = "g1",
    env_id: str = "SimpleTak-v0-train",
    *,
    turns: int = 2,
    trained: Sequence[int] = (0, 1),
    version: int = 3,
    text: str = "[4]",
    finish_reason: str = "stop",
    purpose: str = "train",
    focus: int | None = None,
    error: str | None = None,
    turn_is: dict[str, Any] | None = None,
    **changes: Any,
) -> GameRecord:
    """A game of turns that are all the same; ``error`` and ``invalid_by`` set how it ended.

    turn_is: fields of every turn. changes: fields of the record.
    """
    policy = checkpoint(version)
    seats = [seat(player, policy, trained=player in trained) for player in (0, 1)]
    made_by = {"policy_uid": policy.uid, "policy_version": version}
    answer = completion(text, finish_reason=finish_reason, **made_by)
    each = {"completion": answer, "info": {"legal_moves": 3}, **(turn_is or {})}
    ended = {"rewards": {}, "end_reason": "error", "error": error} if error else {}
    ended |= {"end_reason": "invalid_move"} if "invalid_by" in changes else {}
    return game_record(
        game_spec(game_id, env_id, seats, purpose=purpose, focus=focus),
        [turn(index % 2, text, **each) for index in range(turns)],
        **{"duration_s": 0.25, **ended, **changes},
    )


def evaluation(step: int, wins: int, games: int = 100, **changes: Any) -> EvalResult:
    """A result of version ``step`` against ``random_legal``; what is not won is half drawn."""
    draws = (games - wins) // 2
    losses = games - wins - draws
    fields = {
        "env_id": "SimpleTak-v0-train",
        "opponent": "random_legal",
        "policy_uid": f"step-{step}",
        "draws": draws,
        "losses": losses,
        "win_rate": wins / games,
        "ci95": wilson_interval(wins, games),
        "mean_reward": (wins - losses) / games,
        "invalid_rate": 0.03,
        "failed": 1,
    }
    return EvalResult(step=step, games=games, wins=wins, **{**fields, **changes})


def update(version: int, **metrics: float) -> UpdateResult:
    """The result of an update of 64 samples and 700 tokens."""
    numbers = {
        "loss": 0.5 / version,
        "lr": 0.003,
        "grad_norm": 0.4,
        "entropy": 1.2,
        "kl": 0.01,
        "reward_mean": 0.25,
        "lag_mean": 0.5,
        "logprob_gap_mean": 2e-6,
        "logprob_gap_max": 3e-4,
        "tokens": 700.0,
        "tokens_per_s": 21_000.0,
    }
    return UpdateResult(version=version, samples=64, tokens=700, metrics={**numbers, **metrics})


#: Shares of time of an update, and a number that an engine reports.
SHARES = {"engine_share": 0.61, "learner_share": 0.42, "idle_share": 0.06, "restarts": 0.0}
LOAD = {"queued": 3, "running": 128, "tok_s": 2200.0, "tokens": 4400}


def pool_snapshot(step: int, **changes: Any) -> PoolSnapshot:
    """A pool whose newest policy is ``step-STEP``, as ``ModelPool.snapshot`` gives it."""
    uids = ["base", *(f"step-{version}" for version in range(1, step + 1))]
    matches: dict[str, dict[str, int]] = {uid: {} for uid in uids}
    for index, (first, second) in enumerate(pairwise(uids)):
        matches[first][second] = matches[second][first] = 7 + index
    pool = PoolSnapshot(
        mode="mirror",
        current=uids[-1],
        entries=tuple(
            PoolEntry(
                uid=uid,
                version=index,
                mu=25.0 + index,
                sigma=4.0,
                active=index > step - 3,
                games=10 * index,
                rated_games=10 * index,
            )
            for index, uid in enumerate(uids)
        ),
        matches=matches,
        ladder=tuple(
            LadderRow(uids=(uid,), elo=10.0 * index, low=-40.0, high=400.0, games=7 + index)
            for index, uid in reversed(list(enumerate(uids)))
        )[:48],
        exploration={"envs": {"SimpleTak-v0-train": {"coverage": 0.375}}, "opponents": {}},
    )
    return replace(pool, **changes)


def sample(**changes: Any) -> Sample:
    """The only turn of player 0 in a game without a group, with a reward of 1."""
    fields = {
        "origin": "g1",
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
    return Sample(**{**fields, **changes})


def episode(origin: str = "g1", versions: Sequence[int] = (0,), **changes: Any) -> Episode:
    """An episode with one sample per policy version; ``changes`` are those of its samples."""
    last = len(versions) - 1
    return tuple(
        sample(
            **{
                "origin": origin,
                "turn_index": index,
                "last_turn": index == last,
                "policy_version": version,
                **changes,
            }
        )
        for index, version in enumerate(versions)
    )


def batch(samples: Sequence[Sample], whole_episodes: bool = False) -> TrainBatch:
    """The batch of these samples."""
    return TrainBatch(samples=tuple(samples), whole_episodes=whole_episodes)


def decision(
    number: int = 0,
    agent: str = "agent-1",
    reward: float | None = 0.5,
    *,
    version: int = 0,
    tokens: Sequence[int] | None = (9,),
    prompt: Sequence[int] = (1, 2, 3),
    provider: str = "model",
    **changes: Any,
) -> Decision:
    """A decision of a model at second ``number``; without ``tokens``, of a player that is none."""
    answer = completion(
        "[hold]",
        prompt_token_ids=tuple(prompt),
        token_ids=tuple(tokens or ()),
        logprobs=(-0.5,) * len(tokens or ()),
        policy_uid=f"deploy-{version}",
        policy_version=version,
    )
    fields = {
        "id": f"{agent}-{number}",
        "agent_id": agent,
        "window_id": "2024-11-13-10:00",
        "state": {},
        "action": {"type": "NO_OP"},
        "timestamp": float(number),
        "metadata": Metadata(provider=provider),
        "reward": reward,
        "next_state": None if reward is None else {},
        "completion": None if tokens is None else answer,
    }
    return Decision(**{**fields, **changes})


def without_outcome(decision: Decision) -> Decision:
    """The decision as it was when it was made."""
    return replace(decision, reward=None, next_state=None, result=None)


def scripted_game(env: EnvSpec, names: Sequence[str], seed: int) -> Any:
    """A finished game between players with these names, each of whose actions is accepted."""
    from rlforge.games.players import make_player
    from rlforge.games.registry import make_game

    game = make_game(env, seed)
    players = [make_player(name, env, 1000 * seed + place) for place, name in enumerate(names)]
    while not game.done:
        view = game.view()
        game.step(players[view.player_id].act(view))
        assert game.accepted
    return game


def market_state(
    predictions: Iterable[Any] = (),
    perpetuals: Iterable[Any] = (),
    feed: Iterable[Any] = (),
    memory: Iterable[Any] = (),
    positions: Iterable[Any] = (),
    following: Iterable[str] = (),
    balance: float = 1000.0,
) -> dict[str, Any]:
    """The state that an agent of a market sees at minute 0, having done nothing so far."""
    return {
        "portfolio": {"balance": balance, "positions": [*positions], "lifetimePnL": 0.0},
        "markets": {"predictions": [*predictions], "perpetuals": [*perpetuals]},
        "social": {"feed": [*feed], "unreadMessages": 0},
        "agent": {
            "recentActions": [],
            "memory": [*memory],
            "following": [*following],
            "minute": 0.0,
        },
    }


def any_answer(grammars: Any, tokenizer: Any, draw: Random, grammar: Any) -> str:
    """The answer of a model that knows nothing: each token is any that the grammar allows."""
    state, tokens = grammars.begin(grammar, [tokenizer.eos_token_id]), [-1]
    while tokens[-1] != tokenizer.eos_token_id:
        tokens.append(int(draw.choice(state.allowed().nonzero()[0])))
        state.take(tokens[-1])
    return str(tokenizer.decode(tokens[1:-1]))


#: A chat template that ends each message with ``<|im_end|>``.
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_tokenizer(
    text: str = "", special: Sequence[str] = (), vocab_size: int = 400, **named: Any
) -> Any:
    """A byte-level tokenizer with merges from ``text``; named: fields as ``chat_template``."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(special),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    core.train_from_iterator([text], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=core, **named)


def model_files(tokenizer: Any, folder: Path, config: str = "{}") -> Path:
    """The folder, made a model of which only the tokenizer is there."""
    tokenizer.save_pretrained(folder)
    (folder / "config.json").write_text(config)
    return folder


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


def causal_lm(kind: str, **changes: Any) -> Any:
    """A random model of two layers of the architecture ``kind``, ready to predict.

    changes: fields of its configuration; one that is None is left to the architecture.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "vocab_size": 40}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
    others = {"max_position_embeddings": 64, "initializer_range": 0.3}
    ids = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2}
    fields = {**sizes, **heads, **others, **ids, **changes}
    config = AutoConfig.for_model(kind, **{n: v for n, v in fields.items() if v is not None})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return AutoModelForCausalLM.from_config(config).eval()


#: Fields of ``causal_lm`` that an architecture has under other names.
_OWN_FIELDS: dict[str, dict[str, Any]] = {
    "gpt2": {"num_key_value_heads": None, "head_dim": None, "n_positions": 2048},
    "gpt_neox": {"num_key_value_heads": None, "head_dim": None},
    "mamba": {"intermediate_size": None, "head_dim": None, "num_key_value_heads": None},
    "opt": {"ffn_dim": 48, "word_embed_proj_dim": 32, "head_dim": None},
    "phi": {"head_dim": None},
    "phi3": {"head_dim": None},
}


def causal_folder(folder: Path, kind: str, **changes: Any) -> Path:
    """The folder, with a model of the architecture ``kind`` and a byte tokenizer that fits it."""
    ends = {"pad_token": "<pad>", "eos_token": "<eos>", "bos_token": "<bos>"}
    tokenizer = byte_tokenizer(special=[*ends.values()], chat_template=CHATML, **ends)
    sizes = {"vocab_size": len(tokenizer), "max_position_embeddings": 2048}
    model = causal_lm(kind, **{**sizes, **_OWN_FIELDS.get(kind, {}), **changes})
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


class Clock:
    """Seconds that pass only when a test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

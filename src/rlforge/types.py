"""The values that packages and processes exchange: games, and the policies that play them.

Token ids and log-probabilities come from an engine and are never derived again from text.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any, Literal, TypeVar, cast, dataclass_transform

PolicyKind = Literal["checkpoint", "scripted", "api", "hf"]
Purpose = Literal["train", "eval"]
FinishReason = Literal["stop", "length", "context", "scripted", "error"]
EndReason = Literal["finished", "invalid_move", "turn_limit", "context_limit", "timeout", "error"]
Outcome = Literal["win", "draw", "loss"]
Actions = Literal["words", "numbers"]
Winners = Literal["one", "team", "all"]

#: Games in which more than one player can win, by source and by who wins together.
_WINNERS: Mapping[tuple[str, Winners], Sequence[str]] = {
    ("textarena", "team"): ("Codenames", "SecretMafia", "Taboo", "TwoRoomsAndABoom"),
    ("textarena", "all"): ("Hanabi",),
    ("openspiel", "team"): (
        *("bridge", "dou_dizhu", "euchre", "skat", "social_deduction", "spades"),
        "tiny_bridge_4p",
    ),
    ("openspiel", "all"): (
        *("bridge_uncontested_bidding", "coop_box_pushing", "hanabi", "lewis_signaling"),
        *("matrix_coordination", "tiny_bridge_2p", "tiny_hanabi", "trade_comm"),
    ),
}

OTHER_RUN = -1
"""The ``policy_version`` of answers that no version of the run gave."""

_T = TypeVar("_T")


@dataclass_transform(
    kw_only_default=True, frozen_default=True, field_specifiers=(dataclasses.field,)
)
def value(cls: type[_T]) -> type[_T]:
    """Make a class a frozen, keyword-only dataclass with slots, which pickles fast.

    Example:
        >>> @value
        ... class Point:
        ...     x: int
        ...     y: int = 0
        >>> Point(x=1)
        Point(x=1, y=0)
    """
    # Thousands a second pass between processes: they are pickled as their fields' contents in
    # order, without the look-up of fields that dataclasses do each time.
    made: Any = dataclasses.dataclass(frozen=True, slots=True, kw_only=True)(cls)
    names = tuple(field.name for field in dataclasses.fields(made))
    read = attrgetter(*names)
    # A frozen dataclass refuses ``setattr``; its slots do not.
    fill = tuple(getattr(made, name).__set__ for name in names)

    def contents(self: Any) -> tuple[Any, ...]:
        # ``attrgetter`` of a single name gives no tuple.
        return read(self) if len(names) > 1 else (read(self),)

    def refill(self: Any, state: Sequence[Any]) -> None:
        for fill_one, content in zip(fill, state, strict=True):
            fill_one(self, content)

    made.__getstate__, made.__setstate__ = contents, refill
    return cast(type[_T], made)


@value
class PolicyRef:
    """A policy.

    Attributes:
        kind: ``checkpoint`` (weights of the run's model), ``scripted`` (a player of
            ``rlforge.games.players``), ``api`` (``openai:MODEL``, ``openrouter:MODEL`` or
            ``litellm:PROVIDER/MODEL``) or ``hf`` (another local model with its own tokenizer).
        path_or_name: Folder of a checkpoint, None before training; folder or id for ``hf``.
        version: Number of the update that made a checkpoint; 0 for all others.
        name: Entry of the run's ``policies`` that a checkpoint is a version of; else empty.

    Example:
        >>> PolicyRef(uid="random_legal", kind="scripted", path_or_name="random_legal").version
        0
    """

    uid: str
    kind: PolicyKind
    path_or_name: str | None = None
    version: int = 0
    name: str = ""


@value
class Form:
    """How a seat is asked, and how its answers are read.

    Example:
        >>> EnvSpec(id="Nim-v0", form=Form(template="chat")).form.extraction
        'boxed'
    """

    template: str = "default"
    extraction: str = "boxed"


def _stored(prefix: str = "") -> Mapping[str, Any]:
    # Files have the parts of a form beside the other fields of a value.
    names = {"template": "prompt_template", "extraction": "action_extraction"}
    return {"columns": {part: f"{prefix}{name}" for part, name in names.items()}}


@value
class PolicyForm:
    """How seats of the policy called ``name`` are asked in every game."""

    name: str
    form: Form = dataclasses.field(metadata=_stored())


_FOR_ANY_MODEL = Form(template="chat-actions")


@value
class EnvSpec:
    """One environment: its id, when a game of it ends or is won, and how its players are asked.

    Attributes:
        max_turns, timeout_s: Turns and seconds after which a game is cut; None: it is not.
        win_score: The least reward that is a win in a game of one player, or of one team.
        winners: Rule for several players, see ``outcome``; None takes the game's own.
        actions: Form of OpenSpiel's actions: ``words``, or its own ``numbers``.
        canonical: Whether the run's model is shown grids in one of the orientations that are alike.
        form: At seats of the model.
        api_form, hf_form: At seats of API and other models, which know no short forms.
        forms: Forms by policy, for those with one of their own.

    Example:
        >>> EnvSpec(id="kuhn_poker", source="openspiel").num_players
        2
    """

    id: str
    source: str = "textarena"
    num_players: int = 2
    max_turns: int | None = 200
    timeout_s: float | None = 600.0
    error_allowance: int = 1
    weight: float = 1.0
    win_score: float = 1.0
    winners: Winners | None = None
    actions: Actions = "words"
    form: Form = dataclasses.field(default=Form(), metadata=_stored())
    api_form: Form = dataclasses.field(default=_FOR_ANY_MODEL, metadata=_stored("api_"))
    hf_form: Form = dataclasses.field(default=_FOR_ANY_MODEL, metadata=_stored("hf_"))
    context: Literal["turn", "conversation"] = "turn"
    overflow: Literal["end", "drop_oldest"] = "end"
    canonical: bool = False
    forms: tuple[PolicyForm, ...] = ()

    @property
    def drops_turns(self) -> bool:
        """Whether conversations that are too long lose their oldest turns."""
        return self.context == "conversation" and self.overflow == "drop_oldest"

    def asked(self, policy: PolicyRef) -> Form:
        # Other models do not know the short forms of the trained one.
        if policy.kind in ("api", "hf"):
            return self.api_form if policy.kind == "api" else self.hf_form
        return next((own.form for own in self.forms if own.name == policy.name), self.form)

    @property
    def won_by(self) -> Winners:
        """``winners``, or what is known of the game, or ``one``.

        Example:
            >>> EnvSpec(id="SecretMafia-v0-train", num_players=6).won_by
            'team'
        """
        # Versions, modes and parameters are no part of a game's name.
        name = re.split(r"-v\d|\(", self.id, maxsplit=1)[0]
        if self.winners is not None:
            return self.winners
        own = ((who, games) for (source, who), games in _WINNERS.items() if source == self.source)
        return next((who for who, games in own if name in games), "one")

    def outcome(self, rewards: Mapping[int, float], player_id: int) -> Outcome:
        """The result of a player: the one rule of rewards, metrics and evaluations.

        One player, or ``all`` as one team, wins by a reward of at least ``win_score``, else loses.
        Of several the highest reward wins. Players who share it win as a ``team``, unless all do;
        where ``one`` wins, they draw.

        Example:
            >>> EnvSpec(id="TicTacToe-v0").outcome({0: 1.0, 1: -1.0}, player_id=1)
            'loss'
            >>> EnvSpec(id="Sudoku-v0", num_players=1, win_score=0.5).outcome({0: 0.6}, 0)
            'win'
            >>> EnvSpec(id="Codenames-v0").outcome({0: 1, 1: 1, 2: -1, 3: -1}, 0)
            'win'
        """
        own, highest = rewards[player_id], max(rewards.values())
        if len(rewards) == 1 or self.won_by == "all":
            return "win" if own >= self.win_score else "loss"
        if own < highest:
            return "loss"
        sharing = sum(reward == highest for reward in rewards.values())
        # A reward that all share makes no player the winner.
        most = len(rewards) - 1 if self.won_by == "team" else 1
        return "win" if sharing <= most else "draw"


@value
class Seat:
    """One player's place in a game; ``trained``: its turns become training samples.

    Example:
        >>> seat = Seat(
        ...     player_id=0,
        ...     policy=PolicyRef(uid="base", kind="checkpoint"),
        ...     trained=True,
        ...     form=Form(template="chat"),
        ... )
        >>> seat.policy.uid
        'base'
    """

    player_id: int
    policy: PolicyRef
    trained: bool
    form: Form = dataclasses.field(metadata=_stored())


@value
class GameSpec:
    """All inputs of one game; with the recorded completions the game can be replayed.

    Attributes:
        group_id: Games of a group share env, seed and line-up; None: of no group.
        seats: In order of ``player_id``.
        focus: Player id of the evaluated policy; None in training games.
        past: Turns of another game of this env and seed that are played again first; chance events
            after them are drawn anew.
        part: How often the run was resumed before; 0 in strict runs.

    Example:
        >>> env = EnvSpec(id="TicTacToe-v0-train")
        >>> GameSpec(game_id="train-0-0000000", env=env, seed=1, purpose="train", seats=()).env_id
        'TicTacToe-v0-train'
    """

    game_id: str
    env: EnvSpec
    seed: int
    purpose: Purpose
    seats: tuple[Seat, ...]
    group_id: str | None = None
    group_size: int = 1
    focus: int | None = None
    past: tuple[Turn, ...] | None = None
    part: int = 0

    @property
    def env_id(self) -> str:
        return self.env.id

    @property
    def trained(self) -> tuple[int, ...]:
        return tuple(seat.player_id for seat in self.seats if seat.trained)

    @property
    def viewpoint(self) -> int:
        """The player whose result counts: the evaluated, else the first that trains, else 0."""
        return self.focus if self.focus is not None else next(iter(self.trained), 0)

    @property
    def learner(self) -> str:
        return next((seat.policy.name for seat in self.seats if seat.trained), "")


@value
class SamplingParams:
    """How an engine samples tokens. Log-probs are of the distribution these settings describe.

    Attributes:
        top_k, top_p, min_p: Filters (``rlforge.engines.sampling``); 0, 1 and 0: none.
        stop_token_ids: Tokens that end a completion and stay in it, to be trained on.
        seed: Makes the sample repeatable, whatever its batch.
        conversation: Number of a conversation, whose later requests continue this prompt and answer
            token by token, so that one engine may keep their keys and values; None: none.
        grammar: Grammar of answers (``rlforge.engines.grammars``); None: any tokens.
        model_logprobs: Give log-probs of the model's own distribution, too.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    max_tokens: int = 4096
    stop_token_ids: tuple[int, ...] = ()
    seed: int | None = None
    conversation: int | None = None
    grammar: str | None = None
    model_logprobs: bool = False


@value
class Completion:
    """An answer: prompt tokens, sampled tokens, and the policy version that sampled them.

    Attributes:
        logprobs: Behaviour log-probs, of the sampling distribution, one per token of ``token_ids``;
            empty, as both id tuples, for policies that return text only.
        model_logprobs: Log-probabilities of the model at temperature 1 and without filters, over
            the tokens that a grammar allows; empty unless asked for.
        finish_reason: ``length`` where ``max_tokens`` cut it, ``context`` where the model's context
            ended before, ``scripted`` for players that are no models.

    Example:
        >>> answer = Completion(text="[4]", token_ids=(17, 2), logprobs=(-0.7, -0.1))
        >>> len(answer.logprobs) == len(answer.token_ids)
        True
    """

    text: str
    prompt_token_ids: tuple[int, ...] = ()
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    finish_reason: FinishReason = "stop"
    policy_uid: str = ""
    policy_version: int = 0
    model_logprobs: tuple[float, ...] = ()


def continues(prompt: tuple[int, ...], before: tuple[int, ...], answer: tuple[int, ...]) -> bool:
    """Whether ``prompt`` begins with the prompt ``before`` and its answer.

    Example:
        >>> continues((5, 6, 7, 8), (5, 6), (7,)), continues((5, 6, 9), (5, 6), (7,))
        (True, False)
    """
    begin, end = len(before), len(before) + len(answer)
    # The answer first: it is short, and differs more often than the prompt.
    return prompt[begin:end] == answer and prompt[:begin] == before


@value
class Turn:
    """One decision of one player.

    Attributes:
        action: The text passed to the game.
        well_formed: The answer had the requested format.
        legal: The game accepted the action.
        legal_tokens: For each token of the answer, the tokens with which a legal answer goes on
            (``rlforge.rollout.legal``); empty where they are not known or not asked for.

    Example:
        >>> turn = Turn(
        ...     player_id=0,
        ...     observation="Available Moves: [0], [4]",
        ...     completion=Completion(text="[4]", token_ids=(17,), logprobs=(-0.7,)),
        ...     action="[4]",
        ...     well_formed=True,
        ...     legal=True,
        ... )
        >>> turn.completion.logprobs
        (-0.7,)
    """

    player_id: int
    observation: str
    completion: Completion
    action: str
    well_formed: bool
    legal: bool
    legal_tokens: tuple[tuple[int, ...], ...] = ()
    info: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@value
class GameRecord:
    """A game that ended or failed. A failed one has ``error`` and no rewards.

    A game that is cut by a limit of turns, context or time is a draw. rewards: raw, per player id.
    invalid_by: the player whose invalid move ended it. cut_by: the player whose prompt or answer
    outgrew the context.

    Example:
        >>> env = EnvSpec(id="TicTacToe-v0-train")
        >>> spec = GameSpec(game_id="train-0-0000000", env=env, seed=1, purpose="train", seats=())
        >>> GameRecord(spec=spec, turns=(), rewards={0: 1.0}, end_reason="finished").rewards
        {0: 1.0}
    """

    spec: GameSpec
    turns: tuple[Turn, ...]
    rewards: Mapping[int, float]
    end_reason: EndReason
    invalid_by: int | None = None
    cut_by: int | None = None
    error: str | None = None
    duration_s: float = 0.0

    @property
    def ending(self) -> str:
        """The ending in words, as ``invalid move by player 1``."""
        reason = self.end_reason.replace("_", " ")
        if self.cut_by is not None:
            return f"{reason} of player {self.cut_by}"
        return reason if self.invalid_by is None else f"{reason} by player {self.invalid_by}"

    def __repr__(self) -> str:
        # A line: the turns hold all tokens, and ``rlforge.transcript`` shows them.
        spec, end = self.spec, self.end_reason if self.error is None else f"failed: {self.error}"
        rewards = ", ".join(f"player {player} {r:+zg}" for player, r in self.rewards.items())
        head = f"{spec.env_id}, {len(self.turns)} turns, {end}"
        return f"GameRecord({spec.game_id}: {head}{rewards and f', {rewards}'})"


@value
class Checkpoint:
    """A saved version of a policy, after ``version`` updates. path None: the untrained model.

    name: entry of the run's ``policies``, or empty.
    """

    uid: str
    version: int
    path: str | None
    parent_uid: str | None = None
    metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)
    name: str = ""

    def policy(self) -> PolicyRef:
        return PolicyRef(
            uid=self.uid,
            kind="checkpoint",
            path_or_name=self.path,
            version=self.version,
            name=self.name,
        )


@value
class EvalResult:
    """Seat-swapped games of one policy version against one opponent in one environment."""

    step: int
    env_id: str
    opponent: str
    policy_uid: str
    games: int
    wins: int
    draws: int
    losses: int
    win_rate: float
    ci95: tuple[float, float]
    mean_reward: float
    invalid_rate: float
    failed: int = 0

    @property
    def draw_rate(self) -> float:
        # Every game may have failed.
        return self.draws / max(self.games, 1)

    @property
    def loss_rate(self) -> float:
        return self.losses / max(self.games, 1)

    @property
    def score(self) -> float:
        """Share of points, a draw half a one, by Laplace's prior: its noise is never 0."""
        return (self.wins + self.draws / 2 + 1) / (self.games + 2)

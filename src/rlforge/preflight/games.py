"""Checks of a run that plays games, before anything is created."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from functools import partial

from rlforge.config.compose import Composed
from rlforge.config.games import RewardsConfig
from rlforge.config.per_policy import of_policy, own_keys, policy_names, trained_seats
from rlforge.config.plugins import EXTRACTIONS, MEASURES, MODES, OBSERVERS, SOURCES
from rlforge.config.schema import GamesConfig, PolicyConfig, RunConfig
from rlforge.engines.openai import check_api
from rlforge.errors import ConfigError, RunError, collected, counted, raise_all, refusals
from rlforge.games.actions import extract
from rlforge.games.base import View
from rlforge.games.originals import OneTurn
from rlforge.games.prompts import Prompter
from rlforge.games.registry import check_env, make_game, subject_of, tried
from rlforge.kinds import kind_of
from rlforge.league.names import parse_opponent
from rlforge.league.pool import ModelPool
from rlforge.models.load import load_tokenizer, local_copy, model_positions, prompt_room
from rlforge.models.made import made_model
from rlforge.preflight.policy import (
    Problems,
    machine_problems,
    name_problems,
    policy_problems,
    prompt_problems,
    reader_problems,
    reward_problems,
    temperature_problems,
    value_problems,
)
from rlforge.rewards.pipeline import RewardPipeline
from rlforge.rollout.lineup import (
    check_plays,
    env_spec,
    eval_envs,
    eval_opponents,
    eval_pairings,
    train_envs,
)
from rlforge.system.checkpoint import step_name
from rlforge.types import Checkpoint, EnvSpec, GameRecord, GameSpec, PolicyRef


def validate(composed: Composed[RunConfig], *, keys: bool = True) -> None:
    """Raise ConfigError for impossible values and unknown names, or else for contradictions.

    keys: also ask for the API keys and packages that a run would need.
    """
    raise_all(_run_problems(composed, keys=keys))


def _run_problems(composed: Composed[RunConfig], *, keys: bool) -> Problems:
    config, said = composed.config, set[str]()
    unusable = {row.name: row for row in OBSERVERS.rows() if row.problem}
    for name, row in unusable.items():
        yield f"observer {name!r}, of every run of games while {row.origin} is there: {row.problem}"
    if config.policies:
        # Keys that all policies share come first, so that their problems are said once.
        shared = collected(value_problems(composed)) or collected(policy_problems(composed))
        yield from shared
        if shared:
            return
    for name in policy_names(config):
        own = dataclasses.replace(
            composed, config=of_policy(config, name), elsewhere=own_keys(config, name)
        )
        found = collected(value_problems(own))
        found = found or collected(_game_problems(own, trained_seats(config, name), keys=keys))
        if name and not found:
            found = collected(_entry_problems(composed, own, name))
        for text in found:
            known = not name or text.startswith(f"policies.{name}")
            # Policies share most keys, so the same problem would be said for each.
            if text not in said:
                yield text if known else f"policies.{name}: {text}"
            said.add(text)
    if keys:
        yield from machine_problems(config)


def _game_problems(composed: Composed[RunConfig], trained: int, *, keys: bool) -> Problems:
    yield from policy_problems(composed)
    yield from reward_problems(composed)
    yield from lineup_problems(composed, keys=keys)
    stacks: list[ConfigError] = []
    for stack in ("final", "step", "sampling"):
        rewards = RewardsConfig(**{stack: getattr(composed.config.rewards, stack)})
        stacks += composed.trial(f"rewards.{stack}", partial(RewardPipeline, rewards))
    yield from stacks or _algorithm_problems(composed, trained)
    yield from _batch_problems(composed)


def _entry_problems(composed: Composed[RunConfig], own: Composed[RunConfig], name: str) -> Problems:
    entry, config = composed.config.policies[name], own.config
    found: list[ConfigError | str] = []
    if entry.prompt_template is not None:
        found += prompt_problems(
            composed, f"policies.{name}.prompt_template", entry.prompt_template
        )
    if entry.action_extraction is not None:
        key = f"policies.{name}.action_extraction"
        found += name_problems(composed, key, entry.action_extraction, EXTRACTIONS)
    yield from found
    if not found and (entry.prompt_template is not None or entry.action_extraction is not None):
        asked = [
            dataclasses.replace(
                env,
                prompt_template=entry.prompt_template or env.prompt_template,
                action_extraction=entry.action_extraction or env.action_extraction,
            )
            for env in config.env.train
        ]
        envs = dataclasses.replace(config.env, train=asked)
        yield from _env_problems(
            dataclasses.replace(own, config=dataclasses.replace(config, env=envs))
        )
    if config.pool.mode == "lagged" and len(entry.meets(name)) > 1:
        yield composed.error(
            f"policies.{name}.opponents",
            "are of several policies, and pool.mode=lagged counts the versions of one; name one, "
            "or choose another mode",
        )


def lineup_problems(composed: Composed[GamesConfig], *, keys: bool = True) -> Problems:
    config = composed.config
    found = [*_env_problems(composed)]
    yield from found
    yield from _mode_problems(composed)
    if found:
        # Players cannot be asked in games with problems.
        return
    opponents, envs = config.pool.fixed_opponents, train_envs(config)
    yield from opponent_problems(composed, "pool.fixed_opponents", opponents, envs, keys=keys)
    yield from opponent_problems(composed, "env.opponents", config.env.opponents, (), keys=keys)
    for entry, key, opponents in eval_opponents(config):
        env = env_spec(entry, config)
        mend = _MEND_OF_ALL if key == "eval.opponents" else ""
        if not (opponents or config.eval.base) and env.num_players > 1:
            yield composed.error("eval.base", f"leaves no opponent in {env.id}; name some: {key}")
        yield from opponent_problems(composed, key, opponents, [env], keys=keys, mend=mend)
    yield from _evaluation_problems(composed)
    # Prompts are counted by the model's tokenizer: a missing model is checked later.
    if keys and local_copy(config.model) is not None:
        yield from refusals(lambda: check_room(config))


def game_notes(config: PolicyConfig) -> tuple[str, ...]:
    notes: dict[str, None] = {}
    for env in () if config.games is None else train_envs(config.games):
        # ``lineup_problems`` reports these errors.
        with contextlib.suppress(ConfigError):
            notes |= dict.fromkeys(f"{env.id}: {note}" for note in tried(env).notes)
    return tuple(notes)


_MEND_OF_ALL = (
    "; eval.opponents=null takes those that belong to the games, and an entry of env.eval may have "
    "its own: {id: ID, opponents: [NAME]}"
)


def _mode_problems(composed: Composed[GamesConfig]) -> Problems:
    settings = composed.config.pool
    unknown = [*name_problems(composed, "pool.mode", settings.mode, MODES)]
    yield from unknown
    if unknown:
        return
    # Only a draw shows what a mode of another package cannot do.
    pool = ModelPool(settings, [PolicyRef(uid="fixed", kind="scripted")], seed=0)
    pool.add_checkpoint(Checkpoint(uid=step_name(0), version=0, path=None))
    try:
        with MODES.trial(settings.mode):
            pool.weights()
    except (ConfigError, RunError) as error:
        yield composed.error("pool.mode", str(error))


def opponent_problems(
    composed: Composed[PolicyConfig],
    key: str,
    names: Sequence[str],
    envs: Sequence[EnvSpec],
    *,
    keys: bool = True,
    mend: str = "",
) -> Problems:
    """Players among ``names``, the value of ``key``, that cannot play in ``envs``.

    keys: also ask for the API keys that they need. mend: ends the message about such an
    environment.
    """
    for name in names:
        end = ""
        try:
            policy = parse_opponent(name)
            if policy.kind == "api":
                _check_api_player(name, composed.config)
                if keys:
                    check_api(name, composed.config.other_api)
            end = mend
            for env in envs:
                check_plays(policy, env)
        except ConfigError as error:
            yield composed.error(key, f"{error}{end}")


def _check_api_player(name: str, config: PolicyConfig) -> None:
    api, key = config.other_api, f"{config.others}.api"
    if config.strict:
        raise ConfigError(
            f"{name} may answer differently each time, which determinism=strict excludes; "
            "leave it out, or set determinism=fast"
        )
    if api.max_cost is not None and api.prices is None and name.startswith("openai:"):
        raise ConfigError(
            f"{name} does not say what its answers cost, which {key}.max_cost={api.max_cost:g} "
            f"counts; set {key}.prices=[PROMPT,ANSWER], dollars for a million tokens"
        )


def _env_problems(composed: Composed[GamesConfig]) -> Problems:
    config, found = composed.config, list[ConfigError | str]()
    for group in ("api", "hf"):
        asked = getattr(config.pool, group)
        found += prompt_problems(composed, f"pool.{group}.prompt_template", asked.prompt_template)
        key = f"pool.{group}.action_extraction"
        found += name_problems(composed, key, asked.action_extraction, EXTRACTIONS)
    yield from found
    if found:
        # These problems would return in every environment.
        return
    for group, entries in (("train", config.env.train), ("eval", config.env.eval)):
        for index, entry in enumerate(entries):
            key, found = f"env.{group}.{index}", []
            found += name_problems(composed, f"{key}.source", entry.source, SOURCES)
            spec = env_spec(entry, config)
            found += prompt_problems(composed, f"{key}.prompt_template", spec.form.template)
            extraction = spec.form.extraction
            found += name_problems(composed, f"{key}.action_extraction", extraction, EXTRACTIONS)
            if not found:
                found += composed.trial(f"{key}.id", partial(check_env, spec))
            if not found:
                subject = subject_of(entry.source)
                found += reader_problems(composed, f"{key}.id", subject, spec.id)
            yield from found
            if not found:
                view = make_game(spec, seed=0).view()
                yield from _template_problems(composed, key, spec, view)
                yield from _extraction_problems(composed, key, spec, view)


def _template_problems(
    composed: Composed[GamesConfig], key: str, spec: EnvSpec, view: View
) -> Problems:
    """Find templates that need what the game lacks, as a board. view: its first one."""
    prompter = Prompter(None, composed.config.prompts)
    words = not prompter.template(spec.form.template).shows_boards_only
    if words and _reads_boards(composed.config):
        own = _set_by(composed, key, "prompt_template", spec.form.template)
        yield composed.error(
            own,
            f"writes words, and model={composed.config.model.kind} reads compact boards only; use "
            f"{own}=board, or a language model such as model=smollm2_135m",
        )
    if spec.canonical and view.grid is None:
        yield composed.error("env.canonical", f"{spec.id} has no grid of squares; leave it out")
    elif spec.canonical:
        for form in (spec.form, *(own.form for own in spec.forms)):
            if prompter.template(form.template).shows_observation:
                yield composed.error(
                    "env.canonical",
                    f"prompt_template={form.template} shows the game's own text, which is not "
                    "turned; use a template of {grid} or {board}",
                )
    asked = (spec.form, spec.api_form, spec.hf_form)
    for name in dict.fromkeys(form.template for form in asked):
        template = prompter.template(name)
        if template.games and not spec.id.startswith(template.games):
            yield composed.error(
                f"{key}.id",
                f"prompt_template={name} is about {', '.join(template.games)} "
                f"(prompts.{name}.games); choose another template",
            )
        if isinstance(template, OneTurn) and spec.context == "conversation":
            yield composed.error(
                "env.context",
                f"prompt_template={name} writes one turn, and no conversation; use context=turn",
            )
        if lacking := template.lacks(view):
            yield composed.error(
                f"{key}.id",
                f"has no {lacking} for prompt_template={name}, which shows it (as the tiny "
                "model's does); choose another game, or another model and template",
            )


def _set_by(composed: Composed[GamesConfig], entry: str, name: str, found: str) -> str:
    """The key of ``found``: of the model, or of the environment at ``entry``."""
    return f"model.{name}" if getattr(composed.config.model, name) == found else f"{entry}.{name}"


def _reads_boards(config: GamesConfig) -> bool:
    """Whether the model knows compact boards only, and answers with actions as they are."""
    made = made_model(config.model.kind)
    # Fine-tuning teaches the model other forms, so they are not refused.
    taught = kind_of(config).supervised or config.learner.initial_adapter is not None
    return made is not None and made.reads != "text" and not taught


def _extraction_problems(
    composed: Composed[GamesConfig], key: str, spec: EnvSpec, view: View
) -> Problems:
    name, legal = spec.form.extraction, view.legal_actions
    write = getattr(EXTRACTIONS.find(name), "write", str)
    # An extraction that does not say how its answers are written cannot be tried.
    for action in (legal or ()) if write is not str else ():
        if extract(name, write(action), legal).action != action:
            yield composed.error(
                _set_by(composed, key, "action_extraction", name),
                f"action_extraction={name} cannot read the action {action} of {spec.id}; choose "
                "another one",
            )
            return
    if _reads_boards(composed.config) and write("[0]") != "[0]":
        own = _set_by(composed, key, "action_extraction", name)
        yield composed.error(
            own,
            f"asks for {write('[0]')}, and model={composed.config.model.kind} answers [0]; use "
            f"{own}=bracket",
        )


def check_history(config: GamesConfig) -> None:
    """Raise ConfigError where conversations drop old turns and nothing is left for a prompt."""
    if any(env.drops_turns for env in train_envs(config)):
        prompt_room(config)


def check_room(config: GamesConfig) -> None:
    """Raise ConfigError where the first prompt of a game leaves no room for an action."""
    raise_all(_room_problems(config))


def _room_problems(config: GamesConfig) -> Problems:
    folder = local_copy(config.model)
    assert folder is not None, "the model is made or fetched"
    engine, tokenizer = config.engine, load_tokenizer(config.model)
    prompter = Prompter(tokenizer, config.prompts)
    try:
        known = model_positions(config.model)
    except ConfigError:
        # The checks of the model report this error.
        return
    games = dict.fromkeys((*train_envs(config), *eval_envs(config)))
    for env, form in [
        (game, form) for game in games for form in (game.form, *(own.form for own in game.forms))
    ]:
        view, found = make_game(env, seed=0).view(), list[str]()
        try:
            _, prompt = prompter.encode(form, view)
        except ConfigError as error:
            of_model = form.template == config.model.prompt_template
            key = "model.prompt_template" if of_model else "prompt_template"
            yield f"{key}={form.template} (env {env.id!r}): {error}"
            return
        write = getattr(EXTRACTIONS.find(form.extraction), "write", str)
        # A model made for boards has a token for each action, so none is too long.
        actions = () if _reads_boards(config) else view.legal_actions or ()
        answers = {
            action: len(tokenizer.encode(write(action), add_special_tokens=False))
            for action in actions
        }
        longest = max(answers, key=lambda action: answers[action], default="")
        answer = answers.get(longest, 1)
        if answer > engine.max_tokens:
            found.append(
                f"engine.max_tokens={engine.max_tokens}: an answer with the action {longest} of "
                f"{env.id} has {answer} tokens; raise it to that, and to more for a model that "
                "reasons"
            )
        asked = f"the first prompt of {env.id} has {len(prompt)} tokens, an action {answer}"
        needed = len(prompt) + answer
        if needed > engine.max_model_len:
            found.append(
                f"engine.max_model_len={engine.max_model_len}: {asked}; raise it to {needed}, and "
                "to more for answers that reason"
            )
        if needed > known:
            found.append(
                f"model {config.model.label} has positions for {known} tokens: "
                f"{asked}; choose a shorter prompt_template or another model"
            )
        if found:
            # Other games mostly have the same problems.
            yield from found
            return


def _batch_problems(composed: Composed[RunConfig]) -> Problems:
    config = composed.config
    learner, buffer = config.learner, config.buffer
    rows = learner.mini_batch_size
    if config.buffer.kind == "step" and rows is not None and learner.batch_size % rows:
        yield composed.error(
            "learner.mini_batch_size", f"does not divide learner.batch_size={learner.batch_size}"
        )
    needed = learner.batch_size * learner.batch_delay_buffer
    if needed > buffer.max_size:
        yield composed.error(
            "buffer.max_size",
            f"never holds the {needed:g} samples that an update waits for "
            f"(learner.batch_size={learner.batch_size} x batch_delay_buffer); raise it",
        )
    if learner.save_every > buffer.max_staleness + 1:
        yield composed.error(
            "learner.save_every",
            f"games would wait for a version that is never published: at most "
            f"{buffer.max_staleness + 1} with buffer.max_staleness={buffer.max_staleness}; "
            "pool.keep_every sets how far apart opponents are",
        )


def _evaluation_problems(composed: Composed[GamesConfig]) -> Problems:
    config = composed.config
    cap = config.eval.max_games_per_checkpoint
    for pairing in eval_pairings(config):
        if cap is not None and cap < pairing.fewest_games:
            yield composed.error(
                "eval.max_games_per_checkpoint",
                f"{pairing.env.id} needs at least {pairing.fewest_games}, one game per seat "
                f"against each of {counted(len(pairing.rivals), 'opponent')}",
            )
    for key in ("games", "final_games"):
        odd = (getattr(config.eval, key) or 0) % 2 == 1
        if odd and any(spec.num_players == 2 for spec in eval_envs(config)):
            yield composed.error(
                f"eval.{key}", "must be even: every game is played from both seats"
            )
    yield from temperature_problems(composed, "eval.temperature", config.eval.temperature)
    for env in eval_envs(config) if config.eval.exploitability else ():
        yield from composed.trial(
            "eval.exploitability", partial(MEASURES.find("exploitability").check, env)
        )


def _algorithm_problems(composed: Composed[RunConfig], trained: int) -> Problems:
    config = composed.config
    algorithm = config.algorithm
    if algorithm.whole_games and config.buffer.kind != "episode":
        yield composed.error("algorithm.name", f"{algorithm.whole_games}; use buffer=episode")
    # Settings of other packages may have a group_size, too, which the scheduler reads this way.
    group_size = getattr(algorithm, "group_size", 1)
    if group_size > 1:
        share = group_size * trained
        if config.learner.batch_size % share:
            yield composed.error(
                "learner.batch_size",
                f"must be a multiple of {share}: groups of {group_size} games are "
                "learned from whole, with every trained seat",
            )
        yield from _score_problems(composed)
        if RewardPipeline(config.rewards).moves:
            yield composed.error(
                "rewards.final",
                "a running baseline gives equal games of a group different rewards; drop it, as "
                f"rewards=none does: the group is the baseline of algorithm={algorithm.name}",
            )


def _score_problems(composed: Composed[RunConfig]) -> Problems:
    rewards = RewardPipeline(composed.config.rewards)
    # MaxRL divides by the mean reward, whose sign a negative reward could turn.
    divides = getattr(composed.config.algorithm, "advantage", None) == "max_rl"
    for env in train_envs(composed.config) if divides else ():
        won = {player: 1.0 if player == 0 else -1.0 for player in range(env.num_players)}
        spec = GameSpec(game_id="", env=env, seed=0, purpose="train", seats=())
        game = GameRecord(spec=spec, turns=(), rewards=won, end_reason="finished")
        least = min(rewards.final(game, learned=tuple(won)).values())
        if least < 0 and env.num_players > 1:
            yield composed.error(
                "algorithm.advantage",
                f"needs rewards of 0 or more, and a lost game of {env.id} pays {least:g}; use "
                "rewards=wins, or end rewards.final with {name: clamp, min_r: 0}",
            )

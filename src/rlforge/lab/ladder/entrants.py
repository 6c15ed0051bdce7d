"""Members of a ladder: which policies enter, in which game, and the files they are made of."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from rlforge.config.model import ModelConfig
from rlforge.config.plugins import PLAYERS
from rlforge.config.roots import read_run
from rlforge.config.schema import GamesConfig
from rlforge.errors import ConfigError, nearest
from rlforge.games.registry import check_env
from rlforge.lab.ladder.record import FileHash, LadderMember, LadderRules
from rlforge.league.names import parse_opponent
from rlforge.local.policies import RESULT, find_policy
from rlforge.models.load import local_copy
from rlforge.rollout.lineup import check_plays, eval_envs, train_envs
from rlforge.system.checkpoint import MANIFEST, STATE, is_step_name
from rlforge.system.files import files_below, sha256_of
from rlforge.system.hardware import versions
from rlforge.types import EnvSpec, PolicyRef, value

#: Fields of an environment that decide who wins; members must agree in them.
_GAME_RULES = ("source", "num_players", "max_turns", "error_allowance", "actions")


@value
class Entrant:
    """A policy on a ladder, with its game and configuration."""

    policy: PolicyRef
    env: EnvSpec
    config: GamesConfig


@value
class LadderPlan:
    entrants: tuple[Entrant, ...]
    rules: LadderRules


def plan_ladder(
    runs: Sequence[tuple[Path, str | None]],
    *,
    against: Sequence[str] = (),
    checkpoints: Sequence[str] = (RESULT,),
    env_id: str | None = None,
    games: int = 200,
    precision: float = 0.1,
) -> LadderPlan:
    """The members and rules of a ladder, after checks.

    runs: each enters ``checkpoints``, or the version that is named with it. against: opponents as
    in a configuration, or versions of a single run. env_id: None is the only game of two that all
    play. games: most per pairing. precision: width of an interval at which a pairing ends.
    """
    if games < 2 or games % 2:
        raise ConfigError(f"--games {games}: must be even and at least 2; seats are swapped")
    if not 0 < precision <= 1:
        raise ConfigError(f"--precision {precision:g}: must be above 0 and at most 1")
    if not runs:
        raise ConfigError("a ladder needs a run; its opponents play in the run's game")
    configs = {path: read_run(path, GamesConfig) for path, _ in runs}
    envs = _common_env(configs, env_id)
    labels = _labels([*configs])
    entrants = [
        _entrant(path, name, labels[path], configs[path], envs[path])
        for path, version in runs
        for name in ([version] if version is not None else checkpoints)
    ]
    first = runs[0][0]
    models = len({engine_key(config) for config in configs.values()})
    for name in against:
        if is_step_name(name) and len(configs) > 1:
            raise ConfigError(f"--against {name}: of which run? Name it as RUN:{name}")
        if is_step_name(name):
            entrants.append(_entrant(first, name, labels[first], configs[first], envs[first]))
            continue
        policy = parse_opponent(name)
        if policy.kind == "checkpoint" and models > 1:
            mend = "RUN:step-0" if policy.path_or_name is None else "a run, as RUN:step-40"
            raise ConfigError(f"--against {name}: the runs have several models; name {mend}")
        check_plays(policy, envs[first])
        entrants.append(Entrant(policy=policy, env=envs[first], config=configs[first]))
    # Equal policies enter once, or they would play themselves; the first name stays.
    distinct: dict[tuple[str, str | None, str | None], Entrant] = {}
    for one in entrants:
        kind, place = one.policy.kind, one.policy.path_or_name
        model = engine_key(one.config) if kind == "checkpoint" else None
        distinct.setdefault((kind, place, model), one)
    members = [*distinct.values()]
    if len(members) < 2:
        [only] = members
        raise ConfigError(
            f"a ladder needs two members, and {only.policy.uid} is the only one; add "
            "--against random_legal, --checkpoints step-0,latest or another run"
        )
    check_env(envs[first])
    rules = LadderRules(
        env_id=envs[first].id, seed=configs[first].seed, games=games, precision=precision
    )
    return LadderPlan(entrants=tuple(members), rules=rules)


def _common_env(configs: dict[Path, GamesConfig], env_id: str | None) -> dict[Path, EnvSpec]:
    known: dict[Path, dict[str, EnvSpec]] = {}
    for path, config in configs.items():
        known[path] = {env.id: env for env in (*train_envs(config), *eval_envs(config))}
    first, *others = known.values()
    common = [name for name in first if all(name in other for other in others)]
    if env_id is not None and env_id not in common:
        where = "all runs play" if others else "the run plays"
        raise ConfigError(
            f"--env {env_id}: no game that {where}{nearest(env_id, common)}; there are "
            f"{', '.join(common) or 'none'}"
        )
    if not common:
        plays = "; ".join(f"{path} plays {', '.join(envs)}" for path, envs in known.items())
        raise ConfigError(f"the runs share no game ({plays}); name runs of one game")
    of_two = [name for name in common if first[name].num_players == 2]
    if env_id is None and len(of_two) > 1:
        raise ConfigError(f"the runs play {', '.join(of_two)}; choose one with --env")
    chosen = env_id or (of_two or common)[0]
    if first[chosen].num_players != 2:
        raise ConfigError(
            f"{chosen} has {first[chosen].num_players} player(s): a ladder plays games of two; "
            "measure this one with rlforge eval"
        )
    found = {path: envs[chosen] for path, envs in known.items()}
    for path, env in found.items():
        for field in _GAME_RULES:
            mine, theirs = getattr(env, field), getattr(first[chosen], field)
            if mine != theirs:
                raise ConfigError(
                    f"{chosen}: {field} is {mine} in {path} and {theirs} in {next(iter(known))}; "
                    "name runs with the same rules"
                )
    return found


def _labels(paths: Sequence[Path]) -> dict[Path, str]:
    # The shortest ends of paths that differ tell the runs apart.
    if len(paths) == 1:
        return {paths[0]: ""}
    whole = [path.absolute() for path in paths]
    for length in range(1, max(len(path.parts) for path in whole) + 1):
        ends = ["/".join(path.parts[-length:]) for path in whole]
        if len(set(ends)) == len(ends):
            break
    return {path: f"{end}:" for path, end in zip(paths, ends, strict=True)}


def _entrant(path: Path, name: str, label: str, config: GamesConfig, env: EnvSpec) -> Entrant:
    policy, _ = find_policy(path, name)
    policy = dataclasses.replace(policy, uid=f"{label}{policy.uid}")
    return Entrant(policy=policy, env=env, config=config)


def engine_key(config: GamesConfig) -> str:
    # Runs that agree in all of these share an engine, which holds the model once.
    parts = (config.model, config.engine, config.prompts, config.pool.api, config.eval_temperature)
    return repr((*parts, config.hardware.device))


def member_of(entrant: Entrant) -> LadderMember:
    policy = entrant.policy
    about = {
        "checkpoint": entrant.config.model.label,
        "scripted": f"rlforge {versions().get('rlforge', '')}".strip(),
        "api": "an API model",
        "hf": f"{policy.path_or_name}, as pool.hf asks it",
    }
    return LadderMember(
        uid=policy.uid,
        kind=policy.kind,
        source=policy.path_or_name,
        about=about[policy.kind],
        files=tuple(files_of(policy.kind, policy.path_or_name)),
    )


def _folder(kind: str, source: str) -> Path | None:
    """The folder of a saved policy or another model; None: it has none here."""
    if kind == "hf":
        return local_copy(ModelConfig(name=source))
    return Path(source) if kind == "checkpoint" and Path(source).is_dir() else None


def is_here(kind: str, source: str) -> bool:
    return kind not in ("checkpoint", "hf") or _folder(kind, source) is not None


def files_of(kind: str, source: str | None) -> list[FileHash]:
    """The files that decide how a policy plays."""
    if source is None or kind == "api" or not is_here(kind, source):
        return []
    if (root := _folder(kind, source)) is not None:
        paths = sorted(files_below(root))
        inner = [(path.relative_to(root), path) for path in paths]
        # The state to resume from, and the manifest with it, may change; no player reads them.
        kept = [(name, path) for name, path in inner if name.parts[0] not in (STATE, MANIFEST)]
        return [FileHash(name=name.as_posix(), sha256=sha256_of(path)) for name, path in kept]
    # A scripted player plays by its code.
    code = PLAYERS.find(source)
    while isinstance(code, partial):
        code = code.func
    try:
        path = inspect.getsourcefile(code)
    except TypeError:
        # ``inspect`` knows no source of an object that is no class, function or module.
        path = None
    return [] if path is None else [FileHash(name=Path(path).name, sha256=sha256_of(Path(path)))]

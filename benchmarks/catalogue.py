"""Every game of TextArena and OpenSpiel: plays, plays with a note, or is refused before the start.

    python benchmarks/catalogue.py [--processes N] [--seconds S] [--again]

Each id goes through the check of a start (``check_env``). One that passes is played, to the end of
its games or for some turns, by random legal players, by players whose answers make no sense, of
five kinds, and by players of whose answers some do not. What fails then is *fails*, which no id may
be. A sweep that was stopped goes on where it stopped; ``--again`` begins anew.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from multiprocessing import get_context
from typing import Any

from common import RESULTS, record

from rlforge.errors import ConfigError, RlforgeError
from rlforge.games.registry import check_env, env_ids, make_game, tried
from rlforge.games.trial import sensible_action
from rlforge.types import EnvSpec

SOURCES = ("textarena", "openspiel")
ANSWERS = {
    "text": "I would rather not say.",
    "nothing": "",
    "[0]": "[0]",
    "numbers": "-17 1e9 0.5",
    "unicode": "\u2603 \u3010\u661f\u3011 [\u00e9\u0000]",
}


def examine(source: str, env_id: str, limit_s: float) -> dict[str, Any]:
    """What one id does. limit_s: seconds of computing after which no further game begins."""
    players = 2
    while True:
        env = EnvSpec(id=env_id, source=source, num_players=players)
        try:
            check_env(env)
        except ConfigError as error:
            named = re.search(r" is for (\d+)", str(error))
            if named and int(named.group(1)) != players:
                players = int(named.group(1))
                continue
            why = str(error).removeprefix(f"env {env_id!r} ").replace(f"{env_id}: ", "")
            return {"result": "refused", "why": re.sub(r"/(\S*/site-packages|project)/", "", why)}
        return {"players": players, **play(env, limit_s)}


def play(env: EnvSpec, limit_s: float) -> dict[str, Any]:
    """Games of an id that passed the check: of how many turns, and what failed or is peculiar."""
    began, turns = time.process_time(), 0
    for seed, kind in enumerate(("legal", "both", *ANSWERS, "legal", "both", "legal", "both")):
        rng = random.Random(seed)
        try:
            game = make_game(env, seed)
            while not game.done and time.process_time() - began < limit_s:
                senseless = kind in ANSWERS or (kind == "both" and rng.random() < 0.3)
                answer = ANSWERS.get(kind, ANSWERS["text"])
                game.step(answer if senseless else sensible_action(game.view(), rng))
                turns += 1
            if game.done:
                game.result()
        except RlforgeError as error:
            return {"result": "fails", "why": f"{kind}, seed {seed}: {error}", "turns": turns}
    if notes := tried(env).notes:
        return {"result": "plays, with a note", "why": "; ".join(notes), "turns": turns}
    return {"result": "plays", "turns": turns}


def sweep(done: dict[str, Any], processes: int, limit_s: float) -> None:
    """Fill ``done``, source -> id -> what it does, with the ids that are not in it."""
    jobs = [(source, one) for source in SOURCES for one in env_ids(source)]
    missing = [(source, one) for source, one in jobs if one not in done.setdefault(source, {})]
    with get_context("spawn").Pool(processes) as pool:
        found = pool.imap_unordered(partial(_examined, limit_s), missing)
        for number, (source, env_id, does) in enumerate(found, start=1):
            done[source][env_id] = does
            if number % 50 == 0 or number == len(missing):
                save(done)
                print(f"{number} of {len(missing)}", flush=True)


def _examined(limit_s: float, job: tuple[str, str]) -> tuple[str, str, dict[str, Any]]:
    return *job, examine(*job, limit_s)


def save(done: dict[str, Any]) -> None:
    """Write what is done, with the counts."""
    results = [found["result"] for ids in done.values() for found in ids.values()]
    ordered = {source: dict(sorted(ids.items())) for source, ids in done.items()}
    record("catalogue", {"counts": dict(sorted(Counter(results).items())), "ids": ordered})


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Every game of TextArena and OpenSpiel.")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=2.0, help="of computing per id")
    parser.add_argument("--again", action="store_true", help="begin anew")
    asked = parser.parse_args(arguments)
    os.nice(5)
    file = RESULTS / "catalogue.json"
    done = json.loads(file.read_text())["ids"] if file.is_file() and not asked.again else {}
    sweep(done, asked.processes, asked.seconds)
    print(json.loads(file.read_text())["counts"])


if __name__ == "__main__":
    main()

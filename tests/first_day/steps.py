"""A user's first day, in a folder with one file: the steps in order."""

from __future__ import annotations

from tests.first_day.walk import Step

#: An experiment of the user's own: TicTacToe as shipped, but shorter.
EXPERIMENT = "mine/experiment/first_day.yaml"
YAML = """\
# @package _global_
defaults: [tictactoe_mirror]
name: first_day
learner: {total_updates: 24, batch_size: 64}
eval: {every: 12, games: 10, final_games: 20}
tracker: {progress: plain}
"""

_TRAIN = "rlforge train first_day --config-dir mine"
_FIRST_FREE_CELL = {
    r"Available Moves: '(\[\d\])'[^>]*\(you\)> ": r"\1",
    # In tests a stand-in for the tiny model plays, and forfeits about every other game.
    r"(?s)invalid move by player 1\).*another game\? \[y/N\]:? $": "y",
    r"another game\? \[y/N\]:? $": "n",
}
_ASK = (
    "curl -s http://127.0.0.1:{port}/v1/completions -H 'Content-Type: application/json' "
    """-d '{"model": "first_day", "prompt": "hello", "max_tokens": 1}'"""
)

STEPS = (
    Step(
        "The commands",
        "rlforge",
        ("(?s)train .*serve .*monitor .*report ", "To begin: rlforge train simpletak_mirror"),
        code=2,
        same=True,
    ),
    Step("The version", "rlforge --version", (r"rlforge \d+\.\d+",), same=True),
    Step(
        "What can be trained",
        "rlforge list experiments",
        ("simpletak_mirror", "tictactoe_mirror"),
        same=True,
    ),
    Step(
        "What a key means",
        "rlforge show learner.batch_size first_day --config-dir mine",
        (r"learner\.batch_size=64",),
        same=True,
    ),
    Step(
        "Train",
        _TRAIN,
        (
            "run directory ",
            "eval at 0: .* vs random_legal: win",
            "done at update 24/24",
            r"next: rlforge play --run runs/first_day/\S+",
        ),
        until="eval at 12: .*random_legal",
        meanwhile=(
            Step(
                "Watch it from another terminal",
                "rlforge monitor latest --once",
                ("updates .*/24", "Win rate", "Ladder", "running"),
                picture="dashboard",
            ),
        ),
        finds={"run": r"results: (runs/first_day/\S+)/report\.html"},
    ),
    Step(
        "Stop a run",
        f"{_TRAIN} seed=1",
        ("interrupted at update", r"rlforge train --resume \S*runs/first_day/"),
        code=130,
        until=r"\] update [1-9]\d*/24",
        interrupt=True,
    ),
    Step(
        "Go on with it",
        "rlforge train --resume latest",
        ("resumed at update", "done at update 24/24"),
    ),
    Step("The runs of this folder", "rlforge runs", ("(?s)(done 24/24.*){2}",)),
    Step("Compare them", "rlforge compare runs/first_day", ("seed",), picture="compare"),
    Step(
        "Evaluate a version",
        "rlforge eval {run} --checkpoint step-12 --opponent random_legal --games 100",
        (r"environment +opponent +games +win +95% CI", r"random_legal +100 "),
        picture="eval",
    ),
    Step(
        "Play against it",
        "rlforge play --run {run}",
        (r"player 1 \(step-24\): \[\d\]", "Final board:"),
        replies=_FIRST_FREE_CELL,
    ),
    Step(
        "Its games",
        "rlforge replay {run} --purpose train --last 5",
        ("games .*newest 5", "game +seats +turns +result +rewards"),
        finds={"game": r"(train-\S+)"},
    ),
    Step(
        "One of them, turn by turn",
        "rlforge replay {run} {game}",
        (r"\d\. player [01] \(step-\d+\)", r"plays \[\d\] +probability", "wins|a draw"),
        last=32,
        picture="replay",
    ),
    Step(
        "The same as an animated picture",
        "rlforge replay {run} {game} --export game.svg",
        ("game.svg",),
    ),
    Step("The report", "rlforge report {run}", (r"runs/first_day/\S+/report\.html",)),
    Step("Export for transformers", "rlforge export {run} my-model --merge", ("my-model",)),
    Step(
        "Serve it",
        "rlforge serve {run} serve.port={port}",
        ("serving deploy-1 at http://127.0.0.1:", "interrupted as it served"),
        code=130,
        until="serving deploy-1 at .*state in",
        meanwhile=(Step("Ask it", _ASK, ('"model": ?"first_day', '"usage"')),),
        interrupt=True,
    ),
)

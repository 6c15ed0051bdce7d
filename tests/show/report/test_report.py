"""The report: numbers, games, at any moment of a run, with answers of models escaped."""

import dataclasses
import re

import pytest
from tests.factories import (
    SHARES,
    equal_turns,
    evaluation,
    game_record,
    pool_snapshot,
    turn,
    update,
)
from tests.harness.pages import cells, charts, check
from tests.harness.records import write_games

from rlforge.config.pool import ApiConfig
from rlforge.errors import RlforgeError
from rlforge.league.budget import ApiBudget
from rlforge.record.files import create_run, write_jsonl
from rlforge.record.results import Alarm, ApiUsage, ExactResult
from rlforge.show.report import write_report


@pytest.fixture(scope="module")
def page(full_run, tmp_path_factory):
    """The report of ``full_run``."""
    return write_report(full_run, tmp_path_factory.mktemp("page") / "report.html").read_text()


def page_of(run_dir, *games):
    """The report of a run that has these games and, without a tracker, nothing else."""
    if not (run_dir / "summary.json").exists():
        create_run(run_dir).config.write_text("name: x\n")
    write_games(run_dir, *games)
    return write_report(run_dir).read_text()


def test_the_report_holds_the_results_of_the_run(page):
    text, tags = check(page)
    for part in (
        "demo",
        "done",
        "6 of 10",
        "33.0% wins (24.6% to 42.7%)",
        "72.0% wins (62.5% to 79.9%)",
        "14.0% draws, 14.0% losses (8.5% to 22.1%)",
        "100 games after 6 updates",
        "+39.0 pts",
        "rating of the newest policy",
        "30.00 ± 4.00",
        "GameError: SimpleTak-v0-train raised IndexError",
        "rlforge train +experiment=demo",
        "name: demo",
        "2.13.0",
        "log-prob gap, max",
        "3e-4",
    ):
        assert part in text, part
    assert "nan" not in text.lower().split()
    assert tags.count("figure") > 15
    won = charts(page)["SimpleTak-v0-train vs random_legal"]
    assert won["shares"]
    assert [line["name"] for line in won["lines"]] == ["win", "draw", "loss"]
    win = won["lines"][0]
    assert (win["xs"], win["ys"]) == ([0, 6], [0.33, 0.72])
    assert win["low"] == pytest.approx([0.246, 0.625], abs=1e-3)


def test_the_games_are_annotated_and_without_a_script_their_turns_are_in_a_list_that_opens(page):
    assert page.count("<summary>2 turns</summary>") == 5
    assert not re.search(r"<li[^>]*hidden", page)
    text, _ = check(page)
    for title in (
        "First training game",
        "A training game half-way",
        "Last training game",
        "Evaluation: a loss of step-6",
        "Evaluation: a win of step-6",
    ):
        assert title in text, title
    assert text.count("log-prob -0.60 in 2 tokens, mean -0.30, probability 54.9%") == 10
    assert text.count("finished: player 0 +1, player 1 -1") == 5
    for game_id in ("train-1-0", "train-6-4", "won", "lost"):
        assert f"game {game_id} " in text, game_id


def test_a_turn_shows_what_is_new_to_its_player(tmp_path):
    boards = ["x..", "x..", "xo.", "xo."]
    turns = [turn(n % 2, observation=f"The rules.\n\nBoard: {b}") for n, b in enumerate(boards)]
    text, _ = check(page_of(tmp_path, game_record(turns=turns)))
    assert (text.count("The rules."), text.count("Board: xo.")) == (2, 2)


def test_an_observation_shows_its_end_first_where_the_board_is(page):
    boxes = re.findall(r'<pre[^>]*aria-label="observation"[^>]*>', page)
    assert boxes
    assert all('class="from-end"' in box for box in boxes)
    (rule,) = re.findall(r"\.from-end \{(.*?)\}", page)
    assert "flex-direction: column-reverse" in rule  # a box of that kind starts at its bottom


def test_the_page_loads_no_other_file_and_stays_small(page):
    assert not re.search(r"""(src|href)\s*=|url\(|@import|fetch\(""", page)
    assert re.findall(r"https?://[^ ]*", page) == ["https://github.com/leeoniya/uPlot"]
    assert "Permission is hereby granted" in page, "its licence goes with it"
    assert len(page) < 400_000


def test_answers_of_models_are_text_not_markup(tmp_path):
    attack = "<script>alert('x')</script>\"><img src=x onerror=y>&amp;"
    paths = create_run(tmp_path)
    paths.config.write_text(f"name: {attack}\n")
    paths.command.write_text(attack)
    paths.summary.write_text("{}")
    env = "'\"><img src=x>&amp;"
    write_jsonl(paths.metrics, [{"step": n, f"collection-{env}/reward": n} for n in (1, 2)])
    attacked = equal_turns("a", attack, text=attack, turn_is={"observation": attack})
    page = page_of(tmp_path, attacked, equal_turns("b", error=attack))
    text, tags = check(page)
    assert tags.count("script") == 1, "uPlot and the player of the games"
    assert "img" not in tags
    assert text.count(attack) >= 6
    (line,) = charts(page)["reward of trained seats"]["lines"]
    assert line["name"] == env


def test_marks_show_what_was_wrong_with_an_answer(tmp_path):
    wrong = {"legal": False, "well_formed": False}
    game = equal_turns(turns=1, turn_is=wrong, finish_reason="length", invalid_by=0)
    page = page_of(tmp_path, game)
    text, _ = check(page)
    cut = "cut at the token limit"
    for part in ("wrong format", "illegal move", cut, "invalid move by player 0"):
        assert part in text, part
    assert 'class="turn c0 wrong"' in page


def test_long_games_and_long_texts_are_cut_and_say_so(tmp_path):
    page = page_of(tmp_path, equal_turns("a", turns=60, text="y" * 5000 + "END"))
    text, _ = check(page)
    assert "20 turns left out" in text
    assert page.count('<li class="turn c0">') == 20
    assert "60. player 1" in text
    assert "[1003 characters left out]" in text


def test_a_run_that_has_just_begun_has_a_report(tmp_path, new_tracker):
    def shown():
        return check(write_report(tmp_path).read_text())[0]

    create_run(tmp_path).config.write_text("name: x\n")
    assert "running" in shown()
    tracker = new_tracker()
    assert "running" in shown()
    tracker.log_learner(update(1), SHARES)
    assert "No evaluation has finished yet" in shown()
    tracker.add_eval(evaluation(0, 33))
    tracker.log_pool(pool_snapshot(0))
    assert "33.0% wins" in shown()
    assert "No evaluation has finished yet" not in shown()
    write_games(tmp_path, equal_turns("later", version=9))
    assert "game later " in shown()
    assert not list(tmp_path.glob("*.tmp"))


def test_a_damaged_games_file_is_shown_and_does_not_hide_the_rest(own_run):
    chunk = next((own_run / "games").glob("*.parquet"))
    chunk.write_bytes(b"PAR1 oops")
    text, _ = check(write_report(own_run).read_text())
    assert f"{chunk.name} is damaged" in text
    assert "72.0% wins" in text


def test_a_large_pool_is_folded_and_says_so(tmp_path, tracker):
    tracker.log_pool(pool_snapshot(300))
    text, _ = check(write_report(tmp_path).read_text())
    assert "Further policies: 289, without a rated game: 1" in text
    assert "89 more are not shown" in text
    assert "of the 14 with most games" in text


def test_measured_ratings_come_first_and_inherited_ones_are_a_folded_dash(tmp_path, tracker):
    pool = pool_snapshot(40)
    rated = {"base": 60, "step-20": 60, "step-7": 60}
    entries = [dataclasses.replace(one, rated_games=rated.get(one.uid, 0)) for one in pool.entries]
    tracker.add_eval(evaluation(20, 50, opponent="base"))
    tracker.log_pool(dataclasses.replace(pool, entries=tuple(entries)))
    page = write_report(tmp_path).read_text()
    shown, folded = page.split("Further policies: 38, without a rated game: 38")
    uid = r"<tr><td>(base|step-\d+)</td>"
    first = re.findall(uid, shown[shown.index("<h2>Pool</h2>") :])
    assert first == ["step-20", "base", "step-7"], "those of evaluations, then by rating"
    assert "45.00 ± 4.00" in shown
    assert len(re.findall(uid, folded)) == 38
    assert "±" not in folded.split("</table>")[0]


def test_only_changes_beyond_the_intervals_have_a_colour(tmp_path, tracker):
    for opponent, wins in {"better": 71, "worse": 30, "same": 53}.items():
        tracker.add_eval(evaluation(0, 50, opponent=opponent))
        tracker.add_eval(evaluation(2, wins, opponent=opponent))
    page = write_report(tmp_path).read_text()
    for mark in ('"good">+21.0 pts', '"bad">-20.0 pts', '"soft">+3.0 pts'):
        assert mark in page, mark


def test_exact_series_are_drawn_as_they_are_and_noise_is_folded(tmp_path, tracker):
    for step in range(1, 41):
        tracker.log_learner(
            update(
                step,
                lr=1e-7 / step,
                lag_mean=float(step % 3),
                entropy=2.0 - step / 40,
                advantage_mean=(-1) ** step * 2e-9,
            ),
            SHARES,
        )
    page = write_report(tmp_path).read_text()
    text, _ = check(page)
    drawn = {caption: chart["lines"][0] for caption, chart in charts(page).items()}
    assert drawn["learning rate"]["mean"] is drawn["staleness"]["mean"] is None
    assert len(drawn["entropy"]["mean"]) == 40
    learning = page[page.index("<h2>Learning</h2>") :]
    first, folded = learning.split("<details>")[:2]
    assert re.findall("<figcaption>(.*?)</figcaption>", first)[0] == "loss"
    assert "advantage" not in first
    assert "advantage (below 1e-6)" in folded
    assert "No change above 1e-6: reward (0.25); KL (0.01)" in text


def test_a_gap_that_some_updates_did_not_measure_says_so(tmp_path, tracker):
    for step in (1, 2, 3):
        result = update(step)
        if step != 2:
            del result.metrics["logprob_gap_max"]
        tracker.log_learner(result, SHARES)
    text, _ = check(write_report(tmp_path).read_text())
    assert "3e-4 largest log-prob gap, 1 of 3 updates" in text
    assert "log-prob gap, max, measured in 1 of 3 updates" in text


def test_alarms_are_listed_and_distances_from_an_equilibrium_are_curves(tmp_path):
    paths = create_run(tmp_path)
    paths.config.write_text("name: x\n")
    measured = {"policy_uid": "p", "env_id": "kuhn_poker", "values": (0.0, 0.0)}
    counted = {"decisions": 12, "illegal": 0.0, "illegal_most": 0.0}
    rows = [
        ExactResult(step=step, nash_conv=sum(gains), gains=gains, **measured, **counted)
        for step, gains in ((0, (0.5, 0.25)), (8, (0.1, 0.2)))
    ]
    write_jsonl(paths.exact, list(map(dataclasses.asdict, rows)))
    told = {"step": 8, "since": 6, "good": 5, "observed": 1.0, "expected": 0.5}
    alarm = Alarm(signal="seat_gap", about="", actions=("rollback",), **told)
    write_jsonl(paths.sentinel, [dataclasses.asdict(alarm)])
    page = write_report(tmp_path).read_text()
    lines = charts(page)["kuhn_poker"]["lines"]
    assert {one["name"]: one["ys"] for one in lines} == {
        "NashConv": [0.75, pytest.approx(0.3)],
        "gain of seat 0": [0.5, 0.1],
        "gain of seat 1": [0.25, 0.2],
    }
    assert ["8", "seat gap", "–", "1 instead of 0.5", "6", "rollback"] in cells(page)


def test_of_several_policies_each_has_a_curve_and_results_name_the_first(tmp_path, tracker):
    (tmp_path / "config.yaml").write_text("policies:\n  main: {}\n  rival: {}\n")
    tracker.add_eval(evaluation(0, 33))
    for step in range(1, 7):
        result = update(step, entropy=2.0 + step, logprob_gap_max=step / 100)
        tracker.log_learner(result, SHARES, "" if step % 2 else "rival")
    page = write_report(tmp_path).read_text()
    text, _ = check(page)
    lines = charts(page)["entropy"]["lines"]
    assert {one["name"]: one["xs"] for one in lines} == {"main": [1, 3, 5], "rival": [2, 4, 6]}
    assert "0.06 largest log-prob gap" in text
    assert "rates of the policy main at its first" in text


def test_the_report_goes_to_the_run_or_to_a_file_that_is_given(own_run, tmp_path):
    page = write_report(own_run, tmp_path / "page.html")
    assert page == tmp_path / "page.html"
    assert not (own_run / "report.html").exists()
    assert write_report(own_run) == own_run / "report.html"
    assert (own_run / "report.html").read_text() == page.read_text()
    for wrong in (tmp_path, tmp_path / "none" / "page.html"):
        with pytest.raises(RlforgeError, match="the name of a file in an existing folder"):
            write_report(own_run, wrong)
    with pytest.raises(RlforgeError, match="no run directory"):
        write_report(tmp_path / "none")


def test_the_report_says_what_api_players_took_and_that_their_budget_is_used(tmp_path):
    paths = create_run(tmp_path)
    budget = ApiBudget(ApiConfig(max_cost=0.5), paths.api)
    assert "Players behind APIs" not in page_of(tmp_path)
    spent = ApiUsage(uid="openai:m", requests=12, failed=1, seconds=6.0, prompt_tokens=1500)
    budget.spend([dataclasses.replace(spent, cost=0.75)])
    budget.save()
    text, _ = check(page_of(tmp_path))
    assert "No game with them began once pool.api.max_cost=0.5 is used: $0.75" in text
    assert "openai:m 0 12 1 0.5 s 1,500 0 $0.75" in text

"""The command ``rlforge continuous``: HTTP, Ctrl-C, and what its defaults do."""

import json
import shutil
import signal
import sys

import httpx
import pytest
import yaml
from tests.harness.live_run import RUN, rows, start, wait_for

from rlforge.cli import main
from rlforge.continuous.loop.journal import Journal
from rlforge.continuous.loop.tiny_market import TINY_MARKET


@pytest.mark.ray
def test_a_run_serves_over_http_and_ends_at_ctrl_c(small_market):
    arguments = [*small_market, "continuous.windows=null", "continuous.compare_episodes=0"]
    arguments += ["continuous.http=true", "serve.port=0", f"run_dir={RUN}"]
    process = start("continuous", *arguments)
    wait_for(lambda: bool(rows("windows.jsonl")), process)
    url = json.loads((RUN / "deployments" / "service.json").read_text())["url"]
    answer = httpx.post(
        f"{url}/v1/completions",
        json={"model": "test", "prompt": "market bet p5", "max_tokens": 1, "user": "a-user"},
        timeout=60,
    )
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["text"]
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert "interrupted after" in err
    assert f"rlforge continuous --resume {RUN.absolute()}" in err
    assert out.splitlines()[-1] == str(RUN.absolute())
    assert json.loads((RUN / "summary.json").read_text())["status"] == "interrupted"
    assert (RUN / "report.html").is_file()
    journal = Journal(RUN / "journal.sqlite")
    done = sum(entry.phase == "done" for entry in journal.entries())
    assert done == len(rows("windows.jsonl"))


def test_the_documented_defaults_train(in_process, market_model):
    """Plain ``rlforge continuous``, with a smaller model in the place of the tiny trader."""
    shutil.copytree(market_model, TINY_MARKET.folder)
    try:
        few = ["window.clock=simulated", "continuous.windows=1", "continuous.compare_episodes=0"]
        few += ["deployment.holdout_games=16", "deployment.min_format=0"]
        assert in_process.rlforge_here("continuous", *few, f"run_dir={RUN}") == 0
    finally:
        shutil.rmtree(TINY_MARKET.folder)
    (row,) = rows("windows.jsonl")
    assert row["reason"] == ""
    assert row["policy_reward"] < 0.3  # as of most untrained models
    assert row["high_score_count"] >= 5
    assert (RUN / "checkpoints" / "step-1").is_dir()


def command(monkeypatch, capsys, *arguments):
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(sys, "argv", ["rlforge", *map(str, arguments)])
    with pytest.raises(SystemExit) as ending:
        main()
    out, err = capsys.readouterr()
    assert isinstance(ending.value.code, int)
    return ending.value.code, out, err


def test_config_and_graph_show_a_continuous_experiment(monkeypatch, capsys):
    code, out, _ = command(monkeypatch, capsys, "config", "+experiment=market_rolling")
    assert code == 0
    shown = yaml.safe_load(out)
    assert shown["window"]["mode"] == "rolling"
    assert not {"pool", "env", "buffer"} & shown.keys()
    code, out, _ = command(
        monkeypatch, capsys, "graph", "+experiment=market_rolling", "--format", "mermaid"
    )
    assert code == 0
    assert "learner -->|Checkpoint| deployment" in out

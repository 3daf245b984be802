# The tasks of developers: tests and checks; sourced by run.sh. Arguments are options of pytest.
# shellcheck shell=bash

run_tests() {
  setup_development
  mkdir -p "$BUILD"
  local pytest=(-m pytest -q --durations 10) judges_made=
  if [ -f "$VOICE_DIR/llm.pt" ]; then
    judges >"$BUILD/judges.log" 2>&1 & # beside tests whose results don't depend on time
    judges_made=$!
  fi
  python "${pytest[@]}" -n auto --dist worksteal --reruns 1 -rfER tests/unit tests/parity "$@"
  [ -z "$judges_made" ] || wait "$judges_made" || fail "the judges of the voice could not be installed; see $BUILD/judges.log"
  # Up to thirty processes on two cores: a test that fails is tried once more, and the summary names it (RERUN): a race to be mended. Who
  # waits for a server or a limit leaves the cores to one more worker; groups and their order: tests/triton/conftest.py.
  python "${pytest[@]}" -n $(($(nproc) + 1)) --dist loadgroup --no-loadscope-reorder --reruns 1 --rerun-show-tracebacks -rfER tests/triton "$@"
  if [ -n "$judges_made" ]; then
    VOICE_DIR=$VOICE_DIR JUDGES_PYTHON=$(realpath -s "$BUILD/judges/bin/python") python "${pytest[@]}" -n auto --dist loadfile tests/voice "$@"
  fi
}

test_clients() { # before a stand-in for the server and before the real one, whose checkpoint is the tiny one; the page needs Chromium as well
  setup_clients
  local clients plugin
  clients=$(realpath -s "$BUILD/clients")
  for plugin in livekit pipecat; do
    (cd "plugins/$plugin" && MYPYPATH=../.. "$clients/$plugin/bin/python" -m mypy --cache-dir "../../.mypy_cache/$plugin")
    (cd "plugins/$plugin" && PYTHONPATH=../.. "$clients/$plugin/bin/python" -m pytest -q --timeout 300)
  done
  BISTREAM_CLIENTS=$clients python -m pytest -q tests/clients -m slow "$@"
}

test_gpu() {
  command -v "$PYTHON_GPU" >/dev/null || fail "$PYTHON_GPU does not exist; set PYTHON_GPU to a Python with torch, triton and pytest"
  export PYTHONPATH=.${PYTHONPATH:+:$PYTHONPATH}
  "$PYTHON_GPU" scripts/check_gpu.py || exit 1
  "$PYTHON_GPU" -m pytest -q tests/gpu "$@"
}

attack() {
  setup_development
  BISTREAM_CHAOS_SECONDS=${BISTREAM_CHAOS_SECONDS:-60} python -m pytest -q tests/triton/{attacks,test_{gate,serve_all,chaos}.py} \
    tests/unit/edge/test_attacks.py -m "slow or not slow" --timeout 2400 --long-attacks --reliability-report docs/log/reliability.md "$@"
}

check() {
  setup_development
  "$VENV/bin/ruff" check .
  "$VENV/bin/ruff" format --check .
  "$VENV/bin/mypy"
  local model
  for model in model_repo/*/1/model.py; do "$VENV/bin/mypy" "$model"; done # one at a time: all have the module name "model"
  python -m pytest -q tests/unit/test_import_order.py tests/unit/test_size_report.py
  python scripts/size_report.py
}

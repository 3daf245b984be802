#!/bin/sh
# What the container runs.
#   docker run IMAGE [OPTION OF serve.py]...   serves, with the settings of the variables BISTREAM__... (--names lists them)
#   docker run IMAGE COMMAND...                runs the command in the image, e.g. python scripts/check_gpu.py
# Every step is an exec, so that a SIGTERM to the container reaches the keeper, which drains.
set -eu
cd "$(dirname "$0")/.."
case ${1:-} in
  '' | -*) exec "${PYTHON:-python3}" scripts/serve_from_environment.py "$@" ;;
  *) exec "$@" ;;
esac

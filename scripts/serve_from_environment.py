#!/usr/bin/env python3
"""Makes the model repository from environment variables, then becomes serve.py: what a container runs (deploy/entrypoint.sh).

    MODEL_DIR=/models/CosyVoice2-0.5B               required; as in run.sh, like PROFILE and MODEL_REPO
    BISTREAM__MAX_SESSIONS=128                      ${max_sessions} of every model whose template has it
    BISTREAM__LLM_BISTREAM__MAX_SESSIONS=256        ... of llm_bistream alone
    BISTREAM__SERVE__SESSIONS_PER_KEY=64            --sessions-per-key of serve.py; true and false for an option without a value

An unknown name with this prefix is an error, an empty value counts as not set. Options of serve.py may follow, and count last. --names
lists all variables. Exit code 1: nothing was started, for the reason in the last line.
"""

from __future__ import annotations

import argparse
import difflib
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bistream.errors import BistreamError, ConfigError
from gateway.options import port
from scripts.fill_template import TemplateError, placeholders
from scripts.make_model_repo import (
    PROFILES,
    check_values,
    make,
    model_names,
    model_values,
    read_template,
    template_names,
    with_limits,
)
from scripts.serve import BUILD, make_parser

SERVE = Path(__file__).resolve().with_name("serve.py")
PREFIX, SEPARATOR = "BISTREAM__", "__"
SERVE_GROUP = f"{PREFIX}SERVE__"
MODEL_DIR, MODEL_REPO, PROFILE = "MODEL_DIR", "MODEL_REPO", "PROFILE"  # the names of run.sh
NEAREST = 3
NEEDED = {int: "a whole number", float: "a number", port: "a port from 1 to 65535"}
FLAGS = {"true": True, "1": True, "false": False, "0": False}
LOG_TO_CONTAINER = "--log-file=-"  # containers collect standard error; an option after it counts more
EXIT_FAILED = 1


@dataclass
class Plan:
    """settings: as for ``make_model_repo.py --set``. serve_words: options of serve.py."""

    repository: Path
    profile: str
    settings: dict[str, str] = field(default_factory=dict)
    serve_words: list[str] = field(default_factory=list)


def template_variables() -> dict[str, str]:
    """Variable to setting: ``key``, or ``model.key``."""
    wanted = {model: placeholders(read_template(model)) for model in template_names()}
    shared = {PREFIX + key.upper(): key for keys in wanted.values() for key in keys}
    own = {f"{PREFIX}{model.upper()}{SEPARATOR}{key.upper()}": f"{model}.{key}" for model, keys in wanted.items() for key in keys}
    return {**shared, **own}


def serve_variables() -> dict[str, argparse.Action]:
    """Variable to option of serve.py."""
    actions = [action for action in make_parser()._actions if action.option_strings and action.dest not in ("help", "model_repository")]
    return {SERVE_GROUP + action.dest.upper(): action for action in actions}


def read_plan(environment: Mapping[str, str]) -> Plan:
    """Raises ``ConfigError``."""
    templates, options = template_variables(), serve_variables()
    plan = Plan(Path(environment.get(MODEL_REPO) or BUILD / "model_repo"), checked_profile(environment.get(PROFILE) or "torch"))
    if environment.get(MODEL_DIR):
        plan.settings["model_dir"] = environment[MODEL_DIR]
    for name, value in sorted(environment.items()):
        if not name.startswith(PREFIX) or not value:
            continue
        if name in templates:
            plan.settings[templates[name]] = value
        elif name in options:
            plan.serve_words += option_words(name, options[name], value)
        else:
            raise ConfigError(unknown(name, (*templates, *options)))
    check_model_dir(plan.settings.get("model_dir"))
    return plan


def option_words(name: str, action: argparse.Action, value: str) -> list[str]:
    """The option and its value, which is checked here so that an error can name the variable."""
    option = action.option_strings[-1]
    if action.nargs == 0:
        if value.lower() not in FLAGS:
            raise ConfigError(f"{name} is {value!r}; it is true or false.")
        return [option] if FLAGS[value.lower()] else []
    if action.choices is not None and value not in action.choices:
        raise ConfigError(f"{name} is {value!r}; it is one of {', '.join(map(str, action.choices))}.")
    if callable(action.type) and action.type in NEEDED:
        try:
            action.type(value)
        except ValueError:
            raise ConfigError(f"{name} is {value!r}; {NEEDED[action.type]} is needed.") from None
    return [f"{option}={value}"]


def checked_profile(value: str) -> str:
    if value not in PROFILES:
        raise ConfigError(f"{PROFILE} is {value!r}; it is one of {', '.join(PROFILES)}.")
    return value


def check_model_dir(value: str | None) -> None:
    if value is None:
        raise ConfigError(f"{MODEL_DIR} is not set; it is the folder of CosyVoice2-0.5B, Fun-CosyVoice3-0.5B-2512 or Spark-TTS-0.5B.")
    if not Path(value).is_dir():
        raise ConfigError(f"{MODEL_DIR} is {value}, where there is no folder; mount the checkpoint there.")


def unknown(name: str, known: Iterable[str]) -> str:
    nearest = difflib.get_close_matches(name, list(known), n=NEAREST)
    advice = f"did you mean {' or '.join(nearest)}?" if nearest else "--names lists those that are."
    return f"{name} is not a setting; {advice}"


def main(arguments: list[str] | None = None) -> int:
    words = sys.argv[1:] if arguments is None else arguments
    if words in (["-h"], ["--help"]):
        print(__doc__)
        return 0
    if words == ["--names"]:
        print("\n".join(sorted([*template_variables(), *serve_variables(), MODEL_DIR, MODEL_REPO, PROFILE])))
        return 0
    try:
        plan = read_plan(os.environ)
        models = model_names(plan.settings["model_dir"])
        values = model_values(models, with_limits(models, plan.settings, plan.profile), plan.profile)
        check_values(values)
        make(plan.repository, values)
    except (TemplateError, BistreamError, OSError) as error:
        print(f"serve_from_environment.py: {error}", file=sys.stderr)
        return EXIT_FAILED
    command = [sys.executable, str(SERVE), f"--model-repository={plan.repository}", LOG_TO_CONTAINER, *plan.serve_words, *words]
    os.execv(sys.executable, command)


if __name__ == "__main__":
    sys.exit(main())

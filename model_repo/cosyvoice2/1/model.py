"""Upstream's front model: the whole text in, audio out."""

from __future__ import annotations

import triton_python_backend_utils as pb_utils

from bistream.contract.fields import COSYVOICE2
from bistream.triton.upstream_model import UpstreamModel


class TritonPythonModel(UpstreamModel):
    backend = pb_utils
    contract = COSYVOICE2

"""The front model of Spark-TTS's upstream: the whole text in, audio out, in chunks that its client cross-fades."""

from __future__ import annotations

import triton_python_backend_utils as pb_utils

from bistream.contract.fields import SPARK_TTS
from bistream.triton.upstream_model import UpstreamModel


class TritonPythonModel(UpstreamModel):
    backend = pb_utils
    contract = SPARK_TTS

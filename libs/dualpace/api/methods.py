"""The methods of the service, typed: paths, and how messages are written and read."""

from typing import Final

from dualpace.api.v1 import inference_pb2 as pb

SERVICE: Final = pb.DESCRIPTOR.services_by_name["Inference"].full_name

GENERATE: Final = f"/{SERVICE}/Generate"
TOKENIZE: Final = f"/{SERVICE}/Tokenize"
MODEL_INFO: Final = f"/{SERVICE}/ModelInfo"

CODE_KEY: Final = "dualpace-code"
PARAM_KEY: Final = "dualpace-param"
RETRY_KEY: Final = "retry-after-ms"
"""Trailing metadata of a failed call."""

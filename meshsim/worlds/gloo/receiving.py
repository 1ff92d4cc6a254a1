"""The worker's end of sending: rebuilding a request."""

from __future__ import annotations

import io
import pickle

from meshsim.worlds.base import RunRequest
from meshsim.worlds.gloo.arriving import remember_source


def load_request(data: bytes) -> RunRequest:
    """The request that the parent packed."""
    stream = io.BytesIO(data)
    remember_source(pickle.load(stream))
    request = pickle.load(stream)
    if not isinstance(request, RunRequest):
        raise TypeError(f"expected a RunRequest, got {type(request).__name__}")
    return request

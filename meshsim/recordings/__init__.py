"""Recordings of runs, and running them again.

``meshsim.run(..., record="run.json")`` writes a recording; ``meshsim.replay("run.json", backend="gloo")``
runs the same scenario on the same plan in any world and says what differs first: plan, verdict, trace or
returns.
The file's format is in ``recording.schema.json``, beside this module.
"""

from meshsim.recordings.compare import Difference
from meshsim.recordings.recording import SCHEMA_VERSION, Recording, read_recording
from meshsim.recordings.running import ReplayResult, replay

__all__ = ["SCHEMA_VERSION", "Difference", "Recording", "ReplayResult", "read_recording", "replay"]

"""A world for the runner's tests: no processes, no mesh, only reports."""

from __future__ import annotations

import pytest

from meshsim.failure import failure_from
from meshsim.report import RankReport, RankState, WorldReport
from meshsim.worlds.base import RunRequest


class CallingWorld:
    """Calls the scenario once a rank with the rank's number instead of a context."""

    backend = "calling"

    def __init__(self) -> None:
        self.requests: list[RunRequest] = []
        self.missing: str | None = None

    def unavailable(self) -> str | None:
        return self.missing

    def run(self, request: RunRequest) -> WorldReport:
        self.requests.append(request)
        ranks = []
        for rank in range(request.world_size):
            try:
                value = request.scenario(rank)  # type: ignore[arg-type]
                ranks.append(RankReport(rank, RankState.RETURNED, value=value, ended=0.1 * rank))
            except Exception as error:  # noqa: BLE001 - as a world does
                ranks.append(
                    RankReport(rank, RankState.RAISED, failure=failure_from(error), ended=0.1 * rank)
                )
        return WorldReport(ranks, duration=1.25)


@pytest.fixture
def world() -> CallingWorld:
    return CallingWorld()

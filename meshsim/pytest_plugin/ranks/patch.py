"""A change that one rank makes to the process, in effect only while that rank runs."""

from __future__ import annotations

from meshsim.worlds import hand_over


class RankPatch:
    """Subclasses say how to ``apply`` the change and how to ``remove`` it again.

    ``put_on`` and ``take_off`` are for worlds whose ranks share a process. A rank that the world unwinds
    while another one runs has its patches off, and must not touch the process any more.
    """

    is_on = False

    def apply(self) -> None:
        raise NotImplementedError

    def remove(self) -> None:
        raise NotImplementedError

    def start(self) -> None:
        self.put_on()
        hand_over.register(self)

    def stop(self) -> None:
        hand_over.unregister(self)
        self.take_off()

    def put_on(self) -> None:
        if not self.is_on:
            self.is_on = True
            self.apply()

    def take_off(self) -> None:
        if self.is_on:
            self.is_on = False
            self.remove()

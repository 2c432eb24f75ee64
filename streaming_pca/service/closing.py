"""When a batch closes: a function of the clock's ticks and of counts, whoever reads them and when."""

from __future__ import annotations

from collections.abc import Callable

from streaming_pca.service.snapshots import Feed, Snapshot

__all__ = ["Closing"]

Shares = list[int]


class Closing:
    """Walks through the snapshots of a feed and finds the one at which each batch closes.

    It closes at the first snapshot that covers the planned count, starting from
    the one that closed the last batch. With a ``max_wait``, when that time has
    passed since the last batch closed (since the feed was opened, for the first),
    it closes at the newest snapshot of that moment, or at the first one after it,
    that has the fewest records of use.

    Parameters
    ----------
    feed : Feed
    max_wait : float or None
        Seconds of the ticks' clock.
    """

    def __init__(self, feed: Feed, max_wait: float | None) -> None:
        self._feed, self._max_wait = feed, max_wait
        self._since = feed.started
        self.snapshot: Snapshot | None = None
        """The one that is looked at, or that closed the last batch."""

    def aim(self) -> None:
        """Have the feed notify when ``max_wait`` is over."""
        if self._max_wait is not None:
            self._feed.wake_at(self._since + self._max_wait)

    def advance(self, shares_under: Callable[[Snapshot, bool], Shares | None]) -> Shares | None:
        """Go on through the snapshots that are there.

        Parameters
        ----------
        shares_under : callable
            What each partition gives under a snapshot, None if that is too
            little: of the planned count, or (True) of what may close it late.

        Returns
        -------
        list of int or None
            The shares, once a snapshot closes the batch.
        """
        while True:
            if self.snapshot is not None:
                at = self.snapshot.time
                shares = shares_under(self.snapshot, False)
                # One look decides both whether this closes late and whether there is a newer one: a
                # tick that came between two looks would make the batch depend on the reader's pace.
                # In this order: a tick that comes in between must not count as one without change.
                ticked = self._feed.ticked
                newer = self._feed.peek()
                unchanged_until = ticked if newer is None else newer
                if shares is None and (late := self._late(self.snapshot, unchanged_until)) is not None:
                    at, shares = late, shares_under(self.snapshot, True)
                if shares is not None:
                    self._since = at
                    return shares
                if newer is None:
                    self._feed.check()
                    return None
            taken = self._feed.next()
            if taken is None:
                return None
            self.snapshot = taken

    def _late(self, snapshot: Snapshot, unchanged_until: float) -> float | None:
        """The moment of ``max_wait`` if this was the newest snapshot then, or its own time if it is later."""
        if self._max_wait is None:
            return None
        due = self._since + self._max_wait
        if snapshot.time >= due:
            return snapshot.time
        return due if unchanged_until > due else None

// SPDX-License-Identifier: Apache-2.0

//! Whether the rings of a session have something for a reader, or room for a writer.

use crate::conn::{Phase, Session};
use crate::ring::Rings;
use crate::sys::socket;
use beeline_ring::{Answer, Recall};
use core::sync::atomic::Ordering;
use libc::c_int;

impl Session {
    /// Returns whether the ring has something for a reader: octets, or an index that cannot be. While
    /// octets from before the ring are missing it is the kernel that knows.
    pub fn is_readable(&self, rings: &Rings) -> bool {
        let direction = &self.end().receive;
        let begun = match direction.phase() {
            Phase::Before => rings.receive().start().is_some_and(|n| n <= direction.kernel.load(Ordering::Relaxed)),
            Phase::Ring => self.recalled(rings) == Some(0),
            Phase::After => false,
        };
        if !begun {
            return false;
        }
        let head = direction.index.load(Ordering::Relaxed);
        let available = rings.receive().available(head, rings.capacity);
        available.map_or(true, |(n, _)| n > 0)
    }

    /// Returns the number of octets in the ring that come by the kernel's connection instead; None if the peer is
    /// about to send some.
    pub fn recalled(&self, rings: &Rings) -> Option<u64> {
        let end = self.end();
        if end.recalled.load(Ordering::Relaxed) == 0 {
            return Some(0);
        }
        match rings.peer_recall().map(Recall::answer) {
            Some(Answer::Taken) => None,
            Some(Answer::Done(index)) => Some(index.saturating_sub(end.receive.index.load(Ordering::Relaxed))),
            _ => Some(0),
        }
    }

    /// Notes that somebody has found less room than was asked for: room is an edge from now on.
    pub fn found_full(&self) {
        self.end().room_waits.fetch_add(1, Ordering::Relaxed);
    }

    /// Makes the peer wake this end when the ring has room.
    pub fn await_room(&self, rings: &Rings) {
        self.found_full();
        rings.send().producer_waits();
    }

    /// Asks the kernel for SO_RCVLOWAT, which it bounds, and an accepted socket has from its listener.
    pub fn learn_low_mark(&self, fd: c_int) {
        let value = socket::option(fd, libc::SO_RCVLOWAT).unwrap_or(1);
        self.end().low_mark.store(value as u32, Ordering::Relaxed);
    }

    /// Like `is_readable`, for programs that ask for readiness: from SO_RCVLOWAT on. A ring that is half full is
    /// readable, since it may never have as many.
    pub fn reports_readable(&self, fd: c_int, rings: &Rings) -> bool {
        let low_mark = u64::from(self.end().low_mark.load(Ordering::Relaxed));
        if low_mark <= 1 {
            return self.is_readable(rings);
        }
        let direction = &self.end().receive;
        let Ok((n, closed)) = rings.receive().available(direction.index.load(Ordering::Relaxed), rings.capacity) else {
            return true;
        };
        let by_kernel = direction.kernel.load(Ordering::Relaxed);
        let missing = match direction.phase() {
            Phase::Before => rings.receive().start().map(|start| start.saturating_sub(by_kernel)),
            Phase::Ring => self.recalled(rings).filter(|&by_kernel| by_kernel == 0),
            Phase::After => None,
        };
        let Some(missing) = missing.filter(|missing| missing + n > 0) else { return false };
        let after = if closed { socket::queued(fd) as u64 } else { 0 };
        missing + n + after >= low_mark.min(rings.capacity / 2)
    }

    /// Returns whether the ring has octets that follow some which the kernel has yet to deliver.
    pub fn has_behind_kernel(&self, rings: &Rings) -> bool {
        let direction = &self.end().receive;
        let waits = direction.phase() == Phase::Before
            && rings.receive().start().is_some_and(|start| start > direction.kernel.load(Ordering::Relaxed));
        let available = || rings.receive().available(direction.index.load(Ordering::Relaxed), rings.capacity);
        waits && available().is_ok_and(|(n, _)| n > 0)
    }

    /// Returns whether a writer of the ring gets anywhere. While the kernel's connection carries the
    /// stream it is the kernel that knows.
    pub fn is_writable(&self, rings: &Rings) -> bool {
        let direction = &self.end().send;
        if direction.phase() != Phase::Ring {
            return false;
        }
        let free = rings.send().free(direction.index.load(Ordering::Relaxed), rings.capacity);
        free.map_or(true, |n| n >= enough(rings.capacity))
            || rings.send().is_closed()
            || self.suspect.load(Ordering::Relaxed)
    }
}

/// Returns the room at which a sleeping writer is woken, so that it is not woken for each octet.
pub fn enough(capacity: u64) -> u64 {
    capacity / 4
}

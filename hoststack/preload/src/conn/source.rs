// SPDX-License-Identifier: Apache-2.0

//! Where a send gets octets: from a program's buffers, or from a pipe.

use crate::conn::Buffers;
use crate::ring::Octets;
use crate::sys::errno::{self, EFAULT};
use crate::sys::{uncancelled, Outcome};
use libc::{c_int, MSG_DONTWAIT, MSG_OOB};

pub trait Source {
    /// Returns the number of octets that the program wants to send.
    fn length(&self) -> usize;

    /// Returns whether it is urgent data, which only the kernel sends.
    fn is_urgent(&self) -> bool;

    /// Sends by the kernel's connection without waiting.
    fn by_kernel(&self, fd: c_int) -> Outcome;

    /// Copies octets into a ring, which has `room` for more than none from `index` on.
    fn by_ring(&self, octets: &Octets, index: u64, room: usize) -> Outcome;

    /// Sends what by_ring has copied, `count` octets, by the kernel's connection, because the ring was closed
    /// meanwhile. None if the source still has them.
    fn rescue(&self, fd: c_int, octets: &Octets, index: u64, count: usize) -> Option<Outcome>;
}

impl Source for Buffers {
    fn length(&self) -> usize {
        self.parts.length()
    }

    fn is_urgent(&self) -> bool {
        self.flags & MSG_OOB != 0
    }

    fn by_kernel(&self, fd: c_int) -> Outcome {
        let flags = self.flags | MSG_DONTWAIT;
        // SAFETY: the buffers are the program's, for this call.
        self.parts.message(|m| errno::outcome(unsafe { uncancelled::sendmsg(fd, m, flags) }))
    }

    fn by_ring(&self, octets: &Octets, index: u64, room: usize) -> Outcome {
        if self.parts.is_missing(room) {
            return Err(EFAULT);
        }
        octets.put(index, &self.parts, room);
        Ok(room)
    }

    fn rescue(&self, _: c_int, _: &Octets, _: u64, _: usize) -> Option<Outcome> {
        None
    }
}

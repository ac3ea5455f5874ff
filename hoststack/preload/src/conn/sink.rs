// SPDX-License-Identifier: Apache-2.0

//! Where a receive puts octets: into a program's buffers, or into a pipe.

use crate::ring::{Octets, Parts};
use crate::sys::errno::{self, EFAULT};
use crate::sys::{uncancelled, Outcome};
use libc::{c_int, MSG_DONTWAIT, MSG_OOB, MSG_PEEK, MSG_TRUNC, MSG_WAITALL};

pub trait Sink {
    /// Leaves out the first `n` octets.
    fn after(&self, n: usize) -> Self;

    /// Leaves out all octets after the first `n`.
    fn at_most(&self, n: usize) -> Self;

    /// Returns the number of octets that the program asked for.
    fn length(&self) -> usize;

    /// Returns whether the octets stay where they are (MSG_PEEK).
    fn keeps(&self) -> bool;

    /// Returns whether urgent data is asked for, which only the kernel has.
    fn is_urgent(&self) -> bool;

    /// Returns how many octets by_kernel would get now, or fewer; 0 is the end of the connection.
    fn count(&self, fd: c_int) -> Outcome;

    /// Receives from the kernel's connection without waiting.
    fn by_kernel(&self, fd: c_int) -> Outcome;

    /// Copies octets of a ring, of which it has `available` from `index` on.
    fn by_ring(&self, octets: &Octets, index: u64, available: usize) -> Outcome;
}

/// A program's, with the flags of its call.
#[derive(Clone, Copy)]
pub struct Buffers {
    pub parts: Parts,
    pub flags: c_int,
}

impl Buffers {
    fn receive(&self, fd: c_int, flags: c_int) -> Outcome {
        // SAFETY: the buffers are the program's, for this call.
        self.parts.message(|m| errno::outcome(unsafe { uncancelled::recvmsg(fd, m, flags) }))
    }
}

impl Sink for Buffers {
    fn after(&self, n: usize) -> Self {
        Self { parts: self.parts.after(n), ..*self }
    }

    fn at_most(&self, n: usize) -> Self {
        Self { parts: self.parts.at_most(n), ..*self }
    }

    fn length(&self) -> usize {
        self.parts.length()
    }

    fn keeps(&self) -> bool {
        self.flags & MSG_PEEK != 0
    }

    fn is_urgent(&self) -> bool {
        self.flags & MSG_OOB != 0
    }

    /// MSG_TRUNC would count without a copy, but sockets of programs that use it may not join a sockmap
    /// (mesh/reader.h).
    fn count(&self, fd: c_int) -> Outcome {
        self.receive(fd, MSG_PEEK | MSG_DONTWAIT | self.flags & MSG_TRUNC)
    }

    fn by_kernel(&self, fd: c_int) -> Outcome {
        self.receive(fd, self.flags & !MSG_WAITALL | MSG_DONTWAIT)
    }

    fn by_ring(&self, octets: &Octets, index: u64, available: usize) -> Outcome {
        let count = self.parts.length().min(available);
        if self.flags & MSG_TRUNC == 0 {
            if self.parts.is_missing(count) {
                return Err(EFAULT);
            }
            octets.get(index, &self.parts, count);
        }
        Ok(count)
    }
}

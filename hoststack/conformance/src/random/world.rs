// SPDX-License-Identifier: Apache-2.0

//! What the calls of a random program act on: two connections with both ends in this process, copies of their
//! descriptors, two epoll instances, a pipe and a file.

use crate::sys::{self, *};
use libc::c_int;
use std::sync::atomic::{AtomicU64, Ordering};

/// Descriptors of ends, and copies of them.
pub const SLOTS: usize = 8;

/// As many octets of a direction are under way at most: neither the kernel's buffers nor a ring is full by them.
pub const IN_FLIGHT: u64 = 20_000;

/// A call that waits does so for as many milliseconds.
pub const READ_TIMEOUT: c_int = 20;

/// By then the kernel has got the acknowledgement of a FIN, which may be delayed, and is an edge.
pub const ACKNOWLEDGED: std::time::Duration = std::time::Duration::from_millis(45);

/// Totals of one direction, in memory that children share.
#[derive(Default)]
pub struct Total {
    pub sent: AtomicU64,
    pub received: AtomicU64,
    /// The end that receives has been shut down for it.
    pub shut: AtomicU64,
}

#[derive(Clone, Copy)]
pub struct Slot {
    pub fd: c_int,
    pub connection: usize,
    /// 0 is the connector.
    pub end: usize,
}

pub struct World {
    pub slots: [Option<Slot>; SLOTS],
    totals: &'static [[Total; 2]; 2],
    pub epolls: [c_int; 2],
    pub pipe: [c_int; 2],
    pub file: c_int,
    /// The next steps are for a child, as many, which is killed or ends.
    pub child: Option<(usize, bool)>,
    /// The child alone gets this end of this connection.
    pub given: Option<(usize, usize)>,
    pub is_child: bool,
    /// The descriptor is or was in an epoll instance.
    pub registered: [bool; SLOTS],
}

impl World {
    pub fn new() -> Self {
        let mut pipe = [0; 2];
        // SAFETY: an array of two; memory of the size of the totals, for which zero is valid; a signal is ignored.
        let (totals, file) = unsafe {
            libc::signal(libc::SIGPIPE, libc::SIG_IGN);
            assert_eq!(libc::pipe2(pipe.as_mut_ptr(), libc::O_NONBLOCK), 0);
            let (length, access) = (size_of::<[[Total; 2]; 2]>(), libc::PROT_READ | libc::PROT_WRITE);
            let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
            let memory = libc::mmap(std::ptr::null_mut(), length, access, flags, -1, 0);
            assert_ne!(memory, libc::MAP_FAILED);
            (&*memory.cast(), libc::memfd_create(c"file".as_ptr(), 0))
        };
        let text: Vec<u8> = (0..100_000u32).map(|i| (i * i % 251) as u8).collect();
        // SAFETY: the text has that many octets.
        assert_eq!(unsafe { libc::write(file, text.as_ptr().cast(), text.len()) }, text.len() as isize);
        Self {
            slots: [None; SLOTS],
            totals,
            epolls: [epoll(), epoll()],
            pipe,
            file,
            child: None,
            given: None,
            is_child: false,
            registered: [false; SLOTS],
        }
    }

    /// Replaces a connection, of which nothing is left then.
    pub fn open(&mut self, connection: usize, warm: bool) {
        for slot in self.slots.iter_mut().filter(|slot| slot.is_some_and(|s| s.connection == connection)) {
            close(slot.take().expect("is open").fd);
        }
        let made = if warm { pair() } else { fresh() };
        for (end, fd) in [made.connector, made.acceptor].into_iter().enumerate() {
            limit(fd, READ_TIMEOUT);
            self.slots[2 * connection + end] = Some(Slot { fd, connection, end });
            self.totals[connection][end].sent.store(0, Ordering::Relaxed);
            self.totals[connection][end].received.store(0, Ordering::Relaxed);
            self.totals[connection][end].shut.store(0, Ordering::Relaxed);
        }
    }

    /// Returns an open one, the next if that of the number is closed.
    pub fn slot(&self, number: u32) -> Option<(usize, Slot)> {
        let places = (0..SLOTS).map(|i| (number as usize + i) % SLOTS);
        places.filter_map(|i| Some((i, self.slots[i]?))).next()
    }

    /// Returns an open descriptor of the other end.
    pub fn peer(&self, of: Slot) -> Option<(usize, Slot)> {
        let is_peer = |slot: &Slot| slot.connection == of.connection && slot.end != of.end;
        (0..SLOTS).find_map(|i| Some((i, self.slots[i].filter(is_peer)?)))
    }

    /// Returns the name of a slot: the end, and which copy.
    pub fn name(i: usize, slot: Slot) -> String {
        let end = ["c", "a"][slot.end];
        let copy = if i < 4 { String::new() } else { format!("'{}", i - 3) };
        format!("{end}{}{copy}", slot.connection)
    }

    pub fn sending(&self, slot: Slot) -> &'static Total {
        &self.totals[slot.connection][slot.end]
    }

    pub fn receiving(&self, slot: Slot) -> &'static Total {
        &self.totals[slot.connection][1 - slot.end]
    }

    /// Returns the next ones of this direction; None if too many are under way.
    pub fn octets(&self, slot: Slot, count: usize) -> Option<Vec<u8>> {
        let total = self.sending(slot);
        let sent = total.sent.load(Ordering::Relaxed);
        let in_flight = sent.saturating_sub(total.received.load(Ordering::Relaxed));
        (in_flight + count as u64 <= IN_FLIGHT).then(|| content(sent, count))
    }

    /// Counts and describes the result of a send.
    pub fn sent(&self, slot: Slot, n: isize) -> String {
        let text = outcome(n);
        self.sending(slot).sent.fetch_add(n.max(0) as u64, Ordering::Relaxed);
        text
    }

    /// Counts and describes the result of a receive.
    pub fn received(&self, slot: Slot, n: isize, buffer: &[u8], taken: bool) -> String {
        let text = received(n, buffer);
        if taken {
            self.receiving(slot).received.fetch_add(n.max(0) as u64, Ordering::Relaxed);
        }
        text
    }
}

/// Returns what stands at a place of a direction.
fn content(at: u64, count: usize) -> Vec<u8> {
    (at..at + count as u64).map(|i| (i.wrapping_mul(0x9e37_79b9) >> 13) as u8).collect()
}

/// Describes octets by a sum of them (FNV-1a).
pub fn received(n: isize, buffer: &[u8]) -> String {
    if n <= 0 {
        return outcome(n);
    }
    let step = |hash: u32, octet: &u8| (hash ^ u32::from(*octet)).wrapping_mul(0x0100_0193);
    format!("{n} {:08x}", buffer[..n as usize].iter().fold(0x811c_9dc5, step))
}

/// Sets how long calls on a socket wait.
pub fn limit(fd: c_int, milliseconds: c_int) {
    let time = libc::timeval { tv_sec: (milliseconds / 1000).into(), tv_usec: i64::from(milliseconds % 1000) * 1000 };
    sys::set_option(fd, libc::SO_RCVTIMEO, time);
    sys::set_option(fd, libc::SO_SNDTIMEO, time);
}

// SPDX-License-Identifier: Apache-2.0

//! The memory of a connection: a page with the header, then the octets of both directions.

use crate::atomic::{AtomicU32, Ordering};
use crate::{Direction, Recall};

const MAGIC: u32 = 0x6265_6531;

/// The layout that this code writes, and the oldest one that it reads. The first one has no recalls.
pub const VERSION: u32 = 2;
const OLDEST: u32 = 1;
const WITH_RECALLS: u32 = 2;

/// The header's place, a page. Rings begin after it.
pub const HEADER_BYTES: usize = 4096;

/// `chosen` until the connector has mapped the memory.
const OFFERED: u32 = 0;

/// Which end of the TCP connection a process has.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub enum Role {
    /// The end that accept(2) returned. It makes the memory.
    Acceptor,
    /// The end that called connect(2).
    Connector,
}

#[repr(C)]
pub struct Header {
    magic: u32,
    /// The range of versions that the acceptor can speak.
    oldest: u32,
    newest: u32,
    /// Octets of each ring, a power of two.
    capacity: u32,
    /// The version that the connector chose; 0 until it has. The exchange of accept() pairs with the
    /// acquires: both ends have mapped the memory.
    chosen: AtomicU32,
    /// An end has closed or shut down its socket: the kernel knows the details. By role. A hint: who
    /// sees it asks the kernel, so nothing is ordered by its load.
    left: [AtomicU32; 2],
    directions: [Direction; 2],
    /// By the role of the producer.
    recalls: [Recall; 2],
}

const _: () = assert!(cfg!(loom) || size_of::<Header>() <= HEADER_BYTES);

impl Header {
    pub fn new(capacity: u32) -> Self {
        Self {
            magic: MAGIC,
            oldest: OLDEST,
            newest: VERSION,
            capacity,
            chosen: AtomicU32::new(OFFERED),
            left: Default::default(),
            directions: Default::default(),
            recalls: Default::default(),
        }
    }

    /// Chooses the newest version that both ends speak, and begins the use of the rings.
    /// False if there is none: the connection stays on the kernel.
    pub fn accept(&self, layout: &Layout) -> bool {
        let free = self.chosen.compare_exchange(OFFERED, layout.version, Ordering::AcqRel, Ordering::Acquire);
        free.is_ok()
    }

    /// Returns whether both ends have mapped the memory.
    pub fn is_active(&self) -> bool {
        self.chosen.load(Ordering::Acquire) != OFFERED
    }

    /// Publishes that the kernel's connection knows of a change of this end.
    pub fn leave(&self, role: Role) {
        of(&self.left, role).store(1, Ordering::Release);
    }

    /// Returns whether the end `role` has called leave.
    pub fn has_left(&self, role: Role) -> bool {
        of(&self.left, role).load(Ordering::Relaxed) != 0
    }

    /// Returns the direction whose producer is the end `role`.
    pub fn from(&self, role: Role) -> &Direction {
        of(&self.directions, role)
    }

    /// Returns the recall of the octets whose producer is the end `role`, if both ends know of it.
    pub fn recall(&self, role: Role) -> Option<&Recall> {
        (self.chosen.load(Ordering::Acquire) >= WITH_RECALLS).then(|| of(&self.recalls, role))
    }

    /// Returns the direction whose consumer is the end `role`.
    pub fn to(&self, role: Role) -> &Direction {
        let [of_acceptor, of_connector] = &self.directions;
        match role {
            Role::Acceptor => of_connector,
            Role::Connector => of_acceptor,
        }
    }
}

fn of<T>(pair: &[T; 2], role: Role) -> &T {
    let [of_acceptor, of_connector] = pair;
    match role {
        Role::Acceptor => of_acceptor,
        Role::Connector => of_connector,
    }
}

/// What an end has checked of a header. The peer may change the header afterwards, so nothing is read twice.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub struct Layout {
    pub capacity: u32,
    pub version: u32,
}

impl Layout {
    /// The bounds of a ring, in octets.
    pub const SMALLEST: u32 = 4096;
    pub const LARGEST: u32 = 1 << 20;

    /// Returns the size of the memory whose rings have `capacity` octets.
    pub fn bytes(capacity: u32) -> usize {
        HEADER_BYTES + 2 * capacity as usize
    }

    /// Reads a peer's header in memory of `length` octets. The four words are read once.
    pub fn check(words: [u32; 4], length: usize) -> Option<Self> {
        let [magic, oldest, newest, capacity] = words;
        let version = newest.min(VERSION);
        let sane = magic == MAGIC
            && (OLDEST..=VERSION).contains(&version)
            && version >= oldest
            && capacity.is_power_of_two()
            && (Self::SMALLEST..=Self::LARGEST).contains(&capacity)
            && length == Self::bytes(capacity);
        sane.then_some(Self { capacity, version })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_header_with_a_wrong_size_or_an_unknown_version_is_refused() {
        let capacity = 65536;
        let length = Layout::bytes(capacity);
        let good = [MAGIC, 1, VERSION, capacity];
        let accepted = |version| Some(Layout { capacity, version });
        let (huge, later) = (1 << 31, VERSION + 1);
        for (what, header, length, result) in [
            ("versions 1 to this one", good, length, accepted(VERSION)),
            ("a ring longer than its memory", good, length - 1, None),
            ("another kind of file", [MAGIC + 1, 1, 1, capacity], length, None),
            ("a capacity that is no power of two", [MAGIC, 1, 1, capacity + 1], length + 2, None),
            ("a peer with later versions alone", [MAGIC, later, later, capacity], length, None),
            ("a peer with version 1 alone", [MAGIC, 1, 1, capacity], length, accepted(1)),
            ("a capacity beyond the limit", [MAGIC, 1, 1, huge], Layout::bytes(huge), None),
        ] {
            assert_eq!(
                Layout::check(header, length),
                result,
                "{what}: header {header:x?} in {length} octets of memory"
            );
        }
    }

    #[test]
    fn a_newer_peer_that_speaks_this_version_too_is_accepted() {
        let capacity = Layout::SMALLEST;
        let newer = [MAGIC, OLDEST, VERSION + 7, capacity];
        assert_eq!(Layout::check(newer, Layout::bytes(capacity)), Some(Layout { capacity, version: VERSION }));
    }
}

// SPDX-License-Identifier: Apache-2.0

//! The shared memory of a connection, as one end has mapped it.

use crate::sys::Mmap;
use beeline_ring::{Direction, Header, Layout, Recall, Role, HEADER_BYTES};

/// The rings of an attached session.
#[derive(Clone, Copy)]
pub struct Rings {
    pub header: &'static Header,
    pub memory: *mut u8,
    pub capacity: u64,
    pub role: Role,
}

impl Rings {
    pub fn receive(&self) -> &'static Direction {
        self.header.to(self.role)
    }

    pub fn send(&self) -> &'static Direction {
        self.header.from(self.role)
    }

    /// Returns the place of the direction whose producer is `role`.
    pub fn octets(&self, role: Role) -> *mut u8 {
        // SAFETY: the layout was checked against the size of the mapping.
        unsafe { self.memory.add(HEADER_BYTES + role as usize * self.capacity as usize) }
    }

    /// recall is of what this end sends; and what the peer sends.
    pub fn own_recall(&self) -> Option<&'static Recall> {
        self.header.recall(self.role)
    }

    pub fn peer_recall(&self) -> Option<&'static Recall> {
        self.header.recall(self.peer())
    }

    pub fn peer(&self) -> Role {
        match self.role {
            Role::Acceptor => Role::Connector,
            Role::Connector => Role::Acceptor,
        }
    }
}

/// A mapping of rings that no session has yet.
pub struct Memory {
    mapped: Mmap,
    pub layout: Layout,
}

impl Memory {
    pub fn new(mapped: Mmap, layout: Layout) -> Self {
        Self { mapped, layout }
    }

    pub fn header(&self) -> &Header {
        // SAFETY: the mapping begins with a header whose layout was checked.
        unsafe { &*self.mapped.as_ptr().cast::<Header>() }
    }

    /// Gives the mapping to a session.
    pub fn into_raw(self) -> *mut u8 {
        self.mapped.into_raw()
    }
}

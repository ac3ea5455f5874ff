// SPDX-License-Identifier: Apache-2.0

//! The shared memory of one connection: a header and two rings, one for each direction.
//!
//! Both ends map the same memory, and neither trusts the other. Each end keeps its own index outside of it,
//! and checks what it reads from the peer against that. No system calls are made here.

#![cfg_attr(not(any(test, loom)), no_std)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

mod atomic;
mod direction;
mod layout;
mod recall;

pub use direction::{Direction, Published, Violation};
pub use layout::{Header, Layout, Role, HEADER_BYTES, VERSION};
pub use recall::{Answer, Recall};

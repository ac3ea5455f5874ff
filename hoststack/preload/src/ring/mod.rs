// SPDX-License-Identifier: Apache-2.0

//! The memory of rings, and copies between it and a program's buffers.

pub mod memory;
pub mod parts;

pub use memory::{Memory, Rings};
pub use parts::{Octets, Parts};

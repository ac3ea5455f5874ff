// SPDX-License-Identifier: Apache-2.0

//! What the numbers of descriptors are: made, copied, closed, and inherited by other processes.

pub mod descriptors;
pub mod fork;
pub mod reuse;
pub mod table;

pub use table::Table;

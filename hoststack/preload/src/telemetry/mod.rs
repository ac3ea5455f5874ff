// SPDX-License-Identifier: Apache-2.0

//! What the agent reads of a program, and the switch that it writes.

pub mod counters;
pub mod page;

pub use counters::{Counters, Refusal};

// SPDX-License-Identifier: Apache-2.0

//! Readiness of connections, and calls that wait for it.

pub mod blocking;
pub mod epoll;
pub mod poll;
pub mod splice;
pub mod transfer;
pub mod wait;

pub use blocking::Receiver;
pub use epoll::Epoll;
pub use poll::Lookup;

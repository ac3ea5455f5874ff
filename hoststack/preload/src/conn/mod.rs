// SPDX-License-Identifier: Apache-2.0

//! Connections: their state in this process and in those that share it, how they get rings, and what they send and
//! receive.

pub mod clients;
pub mod config;
pub mod earn;
pub mod end;
pub mod identity;
pub mod offer;
pub mod order;
pub mod owners;
pub mod peer;
pub mod readiness;
pub mod recall;
pub mod receive;
pub mod send;
pub mod session;
pub mod sink;
pub mod source;
pub mod stream;
pub mod watch;

pub use end::{Direction, End, Phase, LONG, SHORT};
pub use session::{Held, Identity, Session};
pub use sink::{Buffers, Sink};
pub use source::Source;
pub use watch::{Watcher, READ_BITS, WRITE_BITS};

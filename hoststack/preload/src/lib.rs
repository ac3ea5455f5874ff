// SPDX-License-Identifier: Apache-2.0

//! `libbeeline_hoststack.so`: a program with it in `LD_PRELOAD` talks to another such program in the same network
//! namespace through shared memory, over the socket API and without a change.
//!
//! TCP connections are made by the kernel, and stay open as long as the program's sockets do. What the program sends
//! then goes through rings ([`conn::offer`], [`conn::stream`]); the end of a connection, and of a process, is the
//! kernel's.
//!
//! Atomics that order other memory say at their declaration what their accesses pair with. `Relaxed` is for values that
//! stand alone, and for those that a lock or such an atomic orders.

#![cfg_attr(not(test), no_std)]
// A panic would end the program that has the library.
#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

extern crate alloc;

mod abi;
mod conn;
mod fdtable;
mod ready;
mod ring;
mod sys;
mod telemetry;

use conn::config;
use fdtable::fork;
use sys::real;

/// Runs before the program's main function.
extern "C" fn start() {
    fork::start();
    config::get();
    real::at_fork(fork::before, fork::in_parent, fork::in_child);
}

#[used]
#[link_section = ".init_array"]
static START: extern "C" fn() = start;

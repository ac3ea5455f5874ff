// SPDX-License-Identifier: Apache-2.0

//! Time limits of calls that wait.

use core::time::Duration;

/// The end of a time limit; without a limit it is never over.
#[derive(Clone, Copy)]
pub struct Deadline(Option<Duration>);

impl Deadline {
    pub fn after(limit: Option<Duration>) -> Self {
        // Without time to wait the clock is not asked.
        Self(limit.map(|limit| if limit.is_zero() { limit } else { now().saturating_add(limit) }))
    }

    /// Returns the time that remains; None without a limit.
    pub fn left(self) -> Option<Duration> {
        self.0.map(|end| if end.is_zero() { end } else { end.saturating_sub(now()) })
    }

    pub fn is_over(self) -> bool {
        self.0.is_some_and(|end| end.is_zero() || now() >= end)
    }
}

fn now() -> Duration {
    read(libc::CLOCK_MONOTONIC)
}

fn read(clock: libc::clockid_t) -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the structure is this function's.
    unsafe { libc::clock_gettime(clock, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Returns the time in milliseconds, as exact as the kernel's own timestamps of connections, without a system call.
pub fn ticks() -> u64 {
    let time = read(libc::CLOCK_MONOTONIC_COARSE);
    time.as_secs() * 1000 + u64::from(time.subsec_millis())
}

/// Returns by how much ticks() grows at a time, in milliseconds rounded up: 1 to 10, by CONFIG_HZ.
pub fn tick() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 10_000_000 };
    // SAFETY: the structure is this function's.
    unsafe { libc::clock_getres(libc::CLOCK_MONOTONIC_COARSE, &mut time) };
    (time.tv_nsec as u64).div_ceil(1_000_000)
}

/// Rounds up, for calls that take them.
pub fn milliseconds(time: Duration) -> libc::c_int {
    let whole = time.as_secs().saturating_mul(1000).saturating_add(time.subsec_nanos().div_ceil(1_000_000).into());
    whole.min(i32::MAX as u64) as libc::c_int
}

pub fn to_timespec(duration: Duration) -> libc::timespec {
    libc::timespec { tv_sec: duration.as_secs() as libc::time_t, tv_nsec: duration.subsec_nanos().into() }
}

// SPDX-License-Identifier: Apache-2.0

//! Descriptors of this library's own. Those that it keeps have high numbers, so that the program gets the low ones that
//! it would get without this library, and select(2) never meets them.

use crate::sys::{errno, real, uncancelled};
use core::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use libc::c_int;

/// A number that poll(2) leaves out, and epoll_ctl(2) refuses.
pub const NO_FD: c_int = -1;

/// A bit for each of the first million numbers.
static HIDDEN: [AtomicU64; 1 << 14] = [const { AtomicU64::new(0) }; 1 << 14];

fn word_of(fd: c_int) -> Option<(&'static AtomicU64, u64)> {
    let fd = usize::try_from(fd).ok()?;
    Some((HIDDEN.get(fd / 64)?, 1 << (fd % 64)))
}

/// Returns whether a descriptor is this library's own: the program must not close it.
pub fn is_hidden(fd: c_int) -> bool {
    word_of(fd).is_some_and(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
}

/// Returns the hidden descriptors in the order of their numbers.
pub fn hidden() -> impl Iterator<Item = c_int> {
    let used = HIDDEN.iter().zip(0..).filter(|(word, _)| word.load(Ordering::Relaxed) != 0);
    used.flat_map(|(_, i)| i * 64..(i + 1) * 64).filter(|&fd| is_hidden(fd))
}

/// The lowest number for hidden descriptors: the upper half of what the process may have.
fn floor() -> c_int {
    let mut limit = libc::rlimit { rlim_cur: 1024, rlim_max: 1024 };
    // SAFETY: the structure is this function's.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) };
    (limit.rlim_cur.min(1 << 19) / 2) as c_int
}

/// An open descriptor, which is closed when it is dropped.
#[derive(Debug)]
pub struct Fd(c_int);

impl Fd {
    /// Takes what a system call has returned; None if it has failed.
    pub fn new(result: c_int) -> Option<Self> {
        (result >= 0).then_some(Self(result))
    }

    /// Takes what a system call has returned, and moves it out of the program's way; None if there is no room.
    pub fn adopt(result: c_int) -> Option<Self> {
        Self::new(result)?.hide()
    }

    /// Moves the descriptor out of the program's way; None if there is no room.
    pub fn hide(self) -> Option<Self> {
        // SAFETY: fcntl with a number.
        let high = Self::new(unsafe { real::fcntl(self.0, libc::F_DUPFD_CLOEXEC, floor() as usize) })?;
        if let Some((word, bit)) = word_of(high.0) {
            word.fetch_or(bit, Ordering::Relaxed);
        }
        Some(high)
    }

    pub fn number(&self) -> c_int {
        self.0
    }

    /// Returns the number of a descriptor that somebody else closes.
    pub fn into_number(self) -> c_int {
        core::mem::ManuallyDrop::new(self).0
    }
}

impl Drop for Fd {
    fn drop(&mut self) {
        if let Some((word, bit)) = word_of(self.0) {
            word.fetch_and(!bit, Ordering::Relaxed);
        }
        // SAFETY: closing a number is harmless to memory; it is this library's own.
        errno::preserve(|| unsafe { uncancelled::close(self.0) });
    }
}

/// A place for the number of a descriptor, which threads share.
/// SeqCst, with the memory of the session: a thread that waits stores its event and then looks whether the session is
/// attached, and the one that attaches it stores the memory and then signals the event.
pub struct Number(AtomicI32);

impl Number {
    pub const fn none() -> Self {
        Self(AtomicI32::new(NO_FD))
    }

    pub fn get(&self) -> Option<c_int> {
        Some(self.0.load(Ordering::SeqCst)).filter(|&fd| fd != NO_FD)
    }

    pub fn set(&self, fd: Option<c_int>) {
        self.0.store(fd.unwrap_or(NO_FD), Ordering::SeqCst);
    }
}

/// A place for a descriptor of this library, which threads share.
pub struct FdCell(Number);

impl FdCell {
    pub const fn empty() -> Self {
        Self(Number::none())
    }

    pub fn number(&self) -> Option<c_int> {
        self.0.get()
    }

    /// Stores a descriptor, and closes the one that was there.
    pub fn put(&self, fd: Option<Fd>) {
        let before = self.0 .0.swap(fd.map_or(NO_FD, Fd::into_number), Ordering::SeqCst);
        drop(Fd::new(before));
    }

    /// Stores a descriptor if there is none, and returns the number of the one that is there then.
    pub fn put_first(&self, fd: Fd) -> c_int {
        match self.0 .0.compare_exchange(NO_FD, fd.number(), Ordering::SeqCst, Ordering::SeqCst) {
            Ok(_) => fd.into_number(),
            Err(other) => other,
        }
    }
}

/// A place for an eventfd(2), by which threads of this end or of the peer are woken.
pub struct EventFd(FdCell);

impl EventFd {
    pub const fn empty() -> Self {
        Self(FdCell::empty())
    }

    /// Makes a descriptor for a place.
    pub fn make() -> Option<Fd> {
        // SAFETY: eventfd has no preconditions.
        Fd::adopt(unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) })
    }

    /// Makes the event readable, if there is one.
    pub fn signal(&self) {
        let Some(fd) = self.number() else { return };
        let one = 1u64;
        // SAFETY: eight octets, as eventfd(2) requires.
        errno::preserve(|| unsafe { uncancelled::write(fd, core::ptr::from_ref(&one).cast(), 8) });
    }

    /// Makes the event unreadable.
    pub fn drain(&self) {
        let Some(fd) = self.number() else { return };
        let mut count = 0u64;
        // SAFETY: eight octets, as eventfd(2) requires.
        errno::preserve(|| unsafe { uncancelled::read(fd, core::ptr::from_mut(&mut count).cast(), 8) });
    }
}

impl core::ops::Deref for EventFd {
    type Target = FdCell;
    fn deref(&self) -> &FdCell {
        &self.0
    }
}

// SPDX-License-Identifier: Apache-2.0

//! Mappings of memory.

use crate::sys::{errno, real, Fd, Outcome};
use core::ffi::CStr;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering};
use libc::{c_int, MAP_ANONYMOUS, MAP_NORESERVE, MAP_PRIVATE, MAP_SHARED};

/// Memory that can be read and written, and is unmapped when it is dropped.
pub struct Mmap {
    at: *mut u8,
    length: usize,
}

impl Mmap {
    fn new(length: usize, flags: c_int, fd: c_int) -> Outcome<Self> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let at = unsafe { libc::mmap(null_mut(), length, protection, flags, fd, 0) };
        match at {
            libc::MAP_FAILED => Err(errno::last()),
            _ => Ok(Self { at: at.cast(), length }),
        }
    }

    /// Maps zeroed memory of this process alone.
    pub fn private(length: usize) -> Outcome<Self> {
        Self::new(length, MAP_PRIVATE | MAP_ANONYMOUS, -1)
    }

    /// Maps zeroed memory that children of this process share.
    pub fn shared(length: usize) -> Outcome<Self> {
        Self::new(length, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1)
    }

    /// Maps the first `length` octets of a file.
    pub fn of_file(file: &Fd, length: usize) -> Outcome<Self> {
        Self::new(length, MAP_SHARED, file.number())
    }

    /// Makes and maps memory for other processes, whose size cannot change.
    pub fn sealed(name: &CStr, length: usize) -> Option<(Fd, Self)> {
        // SAFETY: the name ends with a zero octet.
        let file = Fd::new(unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) })?;
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        // SAFETY: ftruncate and fcntl of this function's own descriptor.
        let is_sealed = unsafe {
            libc::ftruncate(file.number(), length as libc::off_t) == 0
                && real::fcntl(file.number(), libc::F_ADD_SEALS, seals as usize) == 0
        };
        let mapped = Self::of_file(&file, length).ok().filter(|_| is_sealed)?;
        Some((file, mapped))
    }

    /// # Safety
    /// into_raw has returned the address of a mapping of this length, which nobody uses.
    pub unsafe fn from_raw(at: *mut u8, length: usize) -> Self {
        Self { at, length }
    }

    /// Returns the address of a mapping that stays.
    pub fn into_raw(self) -> *mut u8 {
        core::mem::ManuallyDrop::new(self).at
    }

    pub fn as_ptr(&self) -> *mut u8 {
        self.at
    }

    /// Stores the address in a place without one. If another thread was faster the mapping is dropped. Returns what the
    /// place has then.
    pub fn publish<T>(self, place: &AtomicPtr<T>) -> *mut T {
        // The contents are published with the address: readers of the place acquire it.
        match place.compare_exchange(null_mut(), self.at.cast(), Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => self.into_raw().cast(),
            Err(other) => other,
        }
    }
}

impl Drop for Mmap {
    fn drop(&mut self) {
        // SAFETY: nobody else has the mapping.
        unsafe { libc::munmap(self.at.cast(), self.length) };
    }
}

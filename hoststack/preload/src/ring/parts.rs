// SPDX-License-Identifier: Apache-2.0

//! A program's buffers, and copies between them and a ring.

use crate::sys::errno::EINVAL;
use crate::sys::Outcome;
use libc::{c_int, c_void, iovec, msghdr};

/// The buffers of one call, from a position on.
#[derive(Clone, Copy)]
pub struct Parts {
    first: *const iovec,
    count: usize,
    skip: usize,
    most: usize,
}

impl Parts {
    /// # Safety
    /// `first` leads to `count` buffers that the program lets the call use.
    pub unsafe fn new(first: *const iovec, count: usize) -> Self {
        Self { first, count, skip: 0, most: usize::MAX }
    }

    /// Leaves out the first `n` octets.
    pub fn after(self, n: usize) -> Self {
        Self { skip: self.skip + n, ..self }
    }

    /// Leaves out all octets after the first `n`.
    pub fn at_most(self, n: usize) -> Self {
        Self { most: n, ..self }
    }

    /// Returns whether one of the buffers of the first `count` octets cannot be one.
    pub fn is_missing(&self, count: usize) -> bool {
        let mut left = count;
        self.each().any(|(address, length)| {
            let is_used = left > 0;
            left = left.saturating_sub(length);
            is_used && is_no_address(address)
        })
    }

    pub fn length(&self) -> usize {
        self.each().map(|(_, length)| length).sum()
    }

    /// Returns each buffer as address and length, without what is left out.
    fn each(&self) -> impl Iterator<Item = (*mut u8, usize)> + '_ {
        let (mut skip, mut most) = (self.skip, self.most);
        (0..self.count).filter_map(move |i| {
            // SAFETY: new's caller has `count` buffers.
            let part = unsafe { *self.first.add(i) };
            let left_out = skip.min(part.iov_len);
            skip -= left_out;
            let length = (part.iov_len - left_out).min(most);
            most -= length;
            (length > 0).then(|| (part.iov_base.cast::<u8>().wrapping_add(left_out), length))
        })
    }

    /// Runs `f` with a message header for the buffers: for the program's own list if nothing is left out,
    /// otherwise for at most 64 of them, so that such a call may be short.
    pub fn message<T>(&self, f: impl FnOnce(&mut msghdr) -> T) -> T {
        if self.skip == 0 && self.most == usize::MAX {
            return with_header(self.first.cast_mut(), self.count, f);
        }
        let mut list = [iovec { iov_base: core::ptr::null_mut(), iov_len: 0 }; 64];
        let mut count = 0;
        for (place, (address, length)) in list.iter_mut().zip(self.each()) {
            *place = iovec { iov_base: address.cast::<c_void>(), iov_len: length };
            count += 1;
        }
        with_header(list.as_mut_ptr(), count, f)
    }
}

/// Runs `f` with a message header for `count` buffers. The kernel does not change their list.
fn with_header<T>(list: *mut iovec, count: usize, f: impl FnOnce(&mut msghdr) -> T) -> T {
    // SAFETY: zero is a valid msghdr, for glibc with padding and for musl.
    let mut message: msghdr = unsafe { core::mem::zeroed() };
    message.msg_iov = list;
    message.msg_iovlen = count as _;
    f(&mut message)
}

/// The octets of one direction of a ring in shared memory.
#[derive(Clone, Copy)]
pub struct Octets {
    pub at: *mut u8,
    pub capacity: u64,
}

impl Octets {
    /// Copies the first `count` octets of `parts` into the ring from `index` on.
    pub fn put(&self, index: u64, parts: &Parts, count: usize) {
        self.walk(index, parts, count, |ring, buffer, n| {
            // SAFETY: walk stays inside of both; the peer may change the ring meanwhile, which can only
            // change octets that it gets.
            unsafe { core::ptr::copy_nonoverlapping(buffer.cast_const(), ring, n) }
        });
    }

    /// Copies `count` octets from `index` on into `parts`.
    pub fn get(&self, index: u64, parts: &Parts, count: usize) {
        self.walk(index, parts, count, |ring, buffer, n| {
            // SAFETY: as above; octets that a hostile peer changes during the copy are its own.
            unsafe { core::ptr::copy_nonoverlapping(ring.cast_const(), buffer, n) }
        });
    }

    /// Returns the places of `count` octets from `index` on: two, if the ring ends between.
    pub fn regions(&self, index: u64, count: usize) -> [iovec; 2] {
        let offset = index & (self.capacity - 1);
        let first = count.min((self.capacity - offset) as usize);
        [one(self.at.wrapping_add(offset as usize).cast(), first), one(self.at.cast(), count - first)]
    }

    /// Splits `count` octets where a buffer or the ring ends.
    fn walk(&self, index: u64, parts: &Parts, count: usize, copy: impl Fn(*mut u8, *mut u8, usize)) {
        let (mut index, mut left) = (index, count);
        for (mut buffer, mut length) in parts.each() {
            while length > 0 && left > 0 {
                let offset = index & (self.capacity - 1);
                let n = length.min(left).min((self.capacity - offset) as usize);
                copy(self.at.wrapping_add(offset as usize), buffer, n);
                buffer = buffer.wrapping_add(n);
                (index, length, left) = (index + n as u64, length - n, left - n);
            }
        }
    }
}

/// Returns whether no program can have memory at an address: the first page, and the kernel's half. Whether
/// other memory is there only the kernel knows.
pub fn is_no_address<T>(address: *const T) -> bool {
    let address = address.addr();
    // On aarch64 the upper octet may be a tag.
    address < 4096 || cfg!(target_arch = "x86_64") && address >> 63 != 0
}

/// Describes a single buffer.
pub fn one(buffer: *mut c_void, length: usize) -> iovec {
    iovec { iov_base: buffer, iov_len: length }
}

/// The most buffers of a call, and messages of sendmmsg(2): UIO_MAXIOV of linux/uio.h.
pub const MOST: usize = 1024;

/// Checks the number of buffers as the kernel does.
pub fn valid_count(count: c_int) -> Outcome {
    usize::try_from(count).ok().filter(|&n| n <= MOST).ok_or(EINVAL)
}

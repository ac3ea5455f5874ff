// SPDX-License-Identifier: Apache-2.0

//! What the kernel says of a socket.

use super::real;
use core::mem::size_of;
use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use libc::{c_int, sockaddr, sockaddr_storage, socklen_t};

/// Reads a socket address of IPv4 or IPv6; None if it is of another family.
pub fn from_raw(storage: &sockaddr_storage) -> Option<SocketAddr> {
    let at = core::ptr::from_ref(storage);
    match i32::from(storage.ss_family) {
        libc::AF_INET => {
            // SAFETY: a sockaddr_storage is large enough for each family's address, and aligned for it.
            let v4 = unsafe { &*at.cast::<libc::sockaddr_in>() };
            let ip = Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
            Some(SocketAddr::new(ip.into(), u16::from_be(v4.sin_port)))
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let v6 = unsafe { &*at.cast::<libc::sockaddr_in6>() };
            let ip = IpAddr::from(v6.sin6_addr.s6_addr).to_canonical();
            Some(SocketAddr::new(ip, u16::from_be(v6.sin6_port)))
        }
        _ => None,
    }
}

type AddressCall = unsafe extern "C" fn(c_int, *mut sockaddr, *mut socklen_t) -> c_int;

/// Returns an end of a connection; None if it is not of IPv4 or IPv6.
pub fn address(fd: c_int, call: AddressCall) -> Option<SocketAddr> {
    // SAFETY: zero is a valid sockaddr_storage.
    let mut storage: sockaddr_storage = unsafe { core::mem::zeroed() };
    let mut length = size_of::<sockaddr_storage>() as socklen_t;
    // SAFETY: the storage has `length` octets.
    let result = unsafe { call(fd, core::ptr::from_mut(&mut storage).cast(), &mut length) };
    (result == 0).then(|| from_raw(&storage)).flatten()
}

/// Returns a number that getsockopt(2) returns for SOL_SOCKET.
pub fn option(fd: c_int, name: c_int) -> Option<c_int> {
    option_of(fd, libc::SOL_SOCKET, name)
}

pub fn option_of(fd: c_int, level: c_int, name: c_int) -> Option<c_int> {
    let mut value: c_int = 0;
    let mut length = size_of::<c_int>() as socklen_t;
    let place = core::ptr::from_mut(&mut value).cast();
    // SAFETY: the option stores a number.
    let result = unsafe { real::getsockopt(fd, level, name, place, &mut length) };
    (result == 0).then_some(value)
}

/// Returns the kernel's number of a socket, which no other socket gets.
pub fn cookie(fd: c_int) -> Option<u64> {
    let mut cookie = 0u64;
    let mut length = size_of::<u64>() as libc::socklen_t;
    let place = core::ptr::from_mut(&mut cookie).cast();
    // SAFETY: SO_COOKIE stores eight octets.
    let result = unsafe { real::getsockopt(fd, libc::SOL_SOCKET, libc::SO_COOKIE, place, &mut length) };
    (result == 0).then_some(cookie)
}

/// Returns the number of octets that the kernel's connection has for this end.
pub fn queued(fd: c_int) -> usize {
    let mut count: c_int = 0;
    // SAFETY: FIONREAD stores a number.
    unsafe { real::ioctl(fd, libc::FIONREAD, core::ptr::from_mut(&mut count) as usize) };
    count as usize
}

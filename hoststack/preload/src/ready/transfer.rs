// SPDX-License-Identifier: Apache-2.0

//! sendfile(2) to a session: by a copy through a buffer.

use crate::conn::Session;
use crate::ready::blocking::{self, some};
use crate::ring::parts::one;
use crate::ring::Parts;
use crate::sys::errno::{self, EINVAL, EISDIR, ESPIPE};
use crate::sys::Outcome;
use libc::{c_int, off_t};

const BUFFER: usize = 65536;

/// Does sendfile(2) to a session: from `offset`, or from the file's own position if there is none.
pub fn from_file(
    session: &'static Session,
    fd: c_int,
    file: c_int,
    offset: Option<&mut off_t>,
    count: usize,
) -> Outcome {
    let mut position = match &offset {
        Some(offset) => **offset,
        // SAFETY: lseek of a descriptor.
        None => match unsafe { libc::lseek(file, 0, libc::SEEK_CUR) } {
            // As the kernel says of a pipe or socket to which none can be spliced.
            -1 if errno::last() == ESPIPE => return Err(EINVAL),
            -1 => return Err(errno::last()),
            position => position,
        },
    };
    let result = copy_file(session, fd, file, &mut position, count);
    match offset {
        Some(offset) => *offset = position,
        // SAFETY: as above.
        None => drop(unsafe { libc::lseek(file, position, libc::SEEK_SET) }),
    }
    result
}

fn copy_file(session: &'static Session, fd: c_int, file: c_int, position: &mut off_t, count: usize) -> Outcome {
    let mut buffer = alloc::vec![0u8; BUFFER.min(count)];
    let mut done = 0;
    while done < count {
        let most = buffer.len().min(count - done);
        // SAFETY: the buffer has `most` octets.
        let n = match errno::outcome(unsafe { libc::pread(file, buffer.as_mut_ptr().cast(), most, *position) }) {
            Ok(0) => break,
            Ok(n) => n,
            // A folder.
            Err(EISDIR) => return Err(EINVAL),
            Err(error) => return some(done, error),
        };
        match send(session, fd, buffer.get_mut(..n).unwrap_or_default(), 0) {
            Ok(sent) => {
                done += sent;
                *position += sent as off_t;
                if sent < n {
                    break;
                }
            }
            Err(error) => return some(done, error),
        }
    }
    Ok(done)
}

fn send(session: &'static Session, fd: c_int, octets: &mut [u8], flags: c_int) -> Outcome {
    let part = one(octets.as_mut_ptr().cast(), octets.len());
    // SAFETY: one buffer, which lives as long as the call.
    blocking::send(session, fd, unsafe { Parts::new(&part, 1) }, flags)
}

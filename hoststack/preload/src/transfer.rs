// SPDX-License-Identifier: Apache-2.0

//! sendfile(2) and splice(2) with a session at one end: by a copy through a buffer.

use crate::parts::{one, Parts};
use crate::session::Session;
use crate::stream::{self, Outcome};
use crate::{real, table};
use libc::{c_int, off_t, MSG_DONTWAIT, MSG_NOSIGNAL, MSG_PEEK, MSG_TRUNC, SPLICE_F_NONBLOCK};

const BUFFER: usize = 65536;

/// from_file is sendfile(2) to a session: from `offset`, or from the file's own position if there is none.
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
            -1 => return Err(real::errno()),
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
        let n = match real::outcome(unsafe { libc::pread(file, buffer.as_mut_ptr().cast(), most, *position) }) {
            Ok(0) => break,
            Ok(n) => n,
            Err(error) => return some(done, error),
        };
        match send(session, fd, &mut buffer[..n], 0) {
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

fn some(done: usize, error: i32) -> Outcome {
    if done > 0 {
        Ok(done)
    } else {
        Err(error)
    }
}

fn send(session: &'static Session, fd: c_int, octets: &mut [u8], flags: c_int) -> Outcome {
    let part = one(octets.as_mut_ptr().cast(), octets.len());
    // SAFETY: one buffer, which lives as long as the call.
    stream::send(session, fd, unsafe { Parts::new(&part, 1) }, flags)
}

fn receive(session: &'static Session, fd: c_int, octets: &mut [u8], flags: c_int) -> Outcome {
    let part = one(octets.as_mut_ptr().cast(), octets.len());
    // SAFETY: one buffer, which lives as long as the call.
    stream::receive(session, fd, unsafe { Parts::new(&part, 1) }, flags)
}

/// splice is splice(2) if one end is a session and the other a pipe.
pub fn splice(from: c_int, to: c_int, count: usize, flags: u32) -> Outcome {
    match (table::session(from), table::session(to)) {
        (Some(session), None) => to_pipe(session.forever(), from, to, count, flags),
        (None, Some(session)) => from_pipe(session.forever(), from, to, count, flags),
        _ => Err(libc::EINVAL),
    }
}

/// to_pipe takes from the session only what the pipe has taken.
fn to_pipe(session: &'static Session, fd: c_int, pipe: c_int, count: usize, flags: u32) -> Outcome {
    let wait = if flags & SPLICE_F_NONBLOCK != 0 { MSG_DONTWAIT } else { 0 };
    let mut buffer = alloc::vec![0u8; BUFFER.min(count)];
    let n = receive(session, fd, &mut buffer, MSG_PEEK | wait)?;
    // SAFETY: the buffer has n octets.
    let written = real::outcome(unsafe { real::write(pipe, buffer.as_ptr().cast(), n) })?;
    receive(session, fd, &mut buffer[..written], MSG_TRUNC | MSG_DONTWAIT)
}

/// from_pipe sends all that it takes from the pipe, since it cannot put anything back.
fn from_pipe(session: &'static Session, pipe: c_int, fd: c_int, count: usize, flags: u32) -> Outcome {
    let nonblocking = flags & SPLICE_F_NONBLOCK != 0;
    if nonblocking && real::poll_one(pipe, libc::POLLIN) == 0 {
        return Err(libc::EAGAIN);
    }
    let room = stream::room(session, fd);
    if room == 0 && nonblocking {
        return Err(libc::EAGAIN);
    }
    let mut buffer = alloc::vec![0u8; BUFFER.min(count).min(room.max(1))];
    // SAFETY: the buffer has as many octets.
    let n = real::outcome(unsafe { real::read(pipe, buffer.as_mut_ptr().cast(), buffer.len()) })?;
    let mut done = 0;
    while done < n {
        match send(session, fd, &mut buffer[done..n], MSG_NOSIGNAL) {
            Ok(sent) => done += sent,
            Err(libc::EAGAIN) => crate::wait::writable(session, fd)?,
            Err(error) => return some(done, error),
        }
    }
    Ok(done)
}
